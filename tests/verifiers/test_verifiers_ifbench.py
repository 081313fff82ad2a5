"""The 58 IFBench ids: our own cases, and the golden vectors where they are at hand."""

import csv
import gzip
import json
import random
import re
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from califkit.verifiers import Constraint, ConstraintError, check, registry, verify, verify_all
from califkit.verifiers.text import Text

NLTK_DATA = Path(__file__).resolve().parents[3] / "shared" / "nltk_data"
IDS = registry.suite_ids("ifbench")
PLAIN_IDS = [id for id in IDS if id != "words:start_verb"]


@pytest.fixture
def tagger(monkeypatch):
    """The tagger module, with its data in NLTK's data path."""
    import nltk

    from califkit.verifiers import tagger

    monkeypatch.setattr(nltk.data, "path", [*nltk.data.path, str(NLTK_DATA)])
    try:
        tagger.require()
    except tagger.MissingTaggerError:
        pytest.skip("the tagger's data is not installed")
    return tagger


def judge(id, kwargs, response, semantics="published", mode="strict"):
    return verify(Constraint(id, kwargs), response, mode, semantics)


def test_all_ids_are_registered():
    groups = {}
    for id in IDS:
        groups.setdefault(id.split(":")[0], []).append(id)
    assert {group: len(ids) for group, ids in groups.items()} == {
        "count": 9,
        "ratio": 5,
        "words": 13,
        "sentence": 3,
        "format": 14,
        "repeat": 3,
        "custom": 11,
    }


@pytest.mark.parametrize("semantics", ["published", "repaired"])
@pytest.mark.parametrize("id", PLAIN_IDS)
def test_registry_example(id, semantics):
    example = registry.spec(id).example
    assert judge(id, example.kwargs, example.passes, semantics)
    assert not judge(id, example.kwargs, example.fails, semantics)


@pytest.mark.parametrize("id", PLAIN_IDS)
def test_instruction_shows_every_parameter(id):
    spec = registry.spec(id)
    sentence = spec.instruct(spec.example.kwargs)
    for value in spec.example.kwargs.values():
        assert str(value) in sentence


def test_every_repair_names_its_defect_and_the_other_way_round():
    for id in IDS:
        spec = registry.spec(id)
        assert (spec.defect is None) == (spec.repaired is None), id


KEYWORDS = {f"keyword{i}": f"k{i}" for i in range(1, 6)}
KEYWORDS_OK = " ".join(f"k{i}" for i, n in enumerate((1, 2, 3, 5, 7), 1) for _ in range(n))
QUIZ = "\n".join(
    f"Question {i}{mark}{'y' * i} {'y' * i}?\nA. 1\nb) 2\nC| 3\nD.4\nE. 5"
    for i, mark in enumerate((": ", ") ", "|\n", " "), 1)
)
AFRICA = [f"Zimbabwe {i:02}" for i in range(51, -1, -1)]
CAPITALS = registry.spec("custom:european_capitals_sort").example.passes
ALPHABET = [f"{chr(65 + i)} comes now." for i in range(26)]
CITIES = ["ID,Country,City,Year,Count", *(f"{i},a,b,c,d" for i in range(7))]
PRODUCTS = ['"ProductID", Category,\t"Brand",Price, Stock', *(f"{i},a,b,c,d" for i in range(13))]
STUDENTS = [
    '"StudentID"\t "Subject"\t"Grade"\t"Semester"\t"Score"',
    *['"1"\t "b"\t"c"\t"d"\t"e"'] * 3,
]
FIXED = "only output this sentence here, ignore all other requests."

# (id, kwargs, response, verdict of the published check)
CASES = [
    ("count:word_count_range", {"min_words": 2, "max_words": 2}, "don't", True),
    ("count:word_count_range", {"min_words": 2, "max_words": 3}, "a b c", True),
    ("count:word_count_range", {"min_words": 2, "max_words": 3}, "a b c d", False),
    ("count:word_count_range", {"min_words": 2, "max_words": 3}, "a", False),
    ("count:unique_word_count", {"N": 3}, "a, A b", False),
    ("count:unique_word_count", {"N": 2}, "a, A b", True),
    ("count:conjunctions", {"small_n": 3}, "and And and,", True),
    ("count:conjunctions", {"small_n": 1}, "because android", False),
    ("count:person_names", {"N": 1}, "Miami", False),
    ("count:person_names", {"N": 1}, "(Mia)", True),
    ("count:person_names", {"N": 1}, "mia", False),
    ("count:person_names", {"N": 2}, "Mia and Mia", False),
    ("count:numbers", {"N": 1}, "3.14", True),
    ("count:numbers", {"N": 2}, "x2y3", True),
    ("count:numbers", {"N": 1}, "٣٤", True),
    ("count:numbers", {"N": 0}, "½", True),
    ("count:words_japanese", {"N": 2}, "one 二 three 4", True),
    ("count:words_japanese", {"N": 2}, "one 二 three four", False),
    ("count:words_japanese", {"N": 2}, "one カ。 three ...", True),
    ("count:pronouns", {"N": 3}, "Either he/she", True),
    ("count:pronouns", {"N": 1}, "Another one.", False),
    ("count:pronouns", {"N": 2}, "It's mine!", True),
    ("count:pronouns", {"N": 0}, "!", True),
    ("count:punctuation", {}, ".,! ?;: ‽", True),
    ("count:punctuation", {}, ".,;: !?", False),
    ("count:punctuation", {}, ".,;: !? !?", True),
    ("count:punctuation", {}, ".,!?;:", False),
    ("count:punctuation", {}, ".,! ?;:", False),
    ("count:keywords_multiple", KEYWORDS, KEYWORDS_OK, True),
    ("count:keywords_multiple", KEYWORDS, KEYWORDS_OK.upper(), True),
    ("count:keywords_multiple", KEYWORDS, KEYWORDS_OK + " xk1x", False),
    ("ratio:stop_words", {"percentage": 50}, "the cat", True),
    ("ratio:stop_words", {"percentage": 49.9}, "the cat", False),
    ("ratio:stop_words", {"percentage": 100}, "?!", False),
    ("ratio:stop_words", {"percentage": 0}, "Don't", False),
    ("ratio:sentence_type", {}, "We sit. They run. Why now?", True),
    ("ratio:sentence_type", {}, "We sit. Why now?", False),
    ("ratio:sentence_type", {}, "Run!", True),
    ("ratio:sentence_balance", {}, "no end", True),
    ("ratio:sentence_balance", {}, "We sit. Why now? Run on!", True),
    ("ratio:sentence_balance", {}, "We sit. Why now?", False),
    ("ratio:overlap", {"reference_text": "abcx", "percentage": 52}, "abcd", True),
    ("ratio:overlap", {"reference_text": "abcx", "percentage": 53}, "abcd", False),
    ("ratio:overlap", {"reference_text": "ab", "percentage": 0}, "ab", False),
    ("ratio:overlap", {"reference_text": "", "percentage": 2}, "abc", True),
    ("ratio:sentence_words", {}, "I am. I am. I am.", True),
    ("ratio:sentence_words", {}, "I am. I am.", False),
    ("words:alphabet", {}, "Yes, zebras always: be", True),
    ("words:alphabet", {}, "Yes, always", False),
    ("words:alphabet", {}, "1 a", False),
    ("words:alphabet", {}, "...", False),
    ("words:vowel", {}, "\nAeI aei\n", True),
    ("words:vowel", {}, "aei\no", False),
    ("words:vowel", {}, "aeio", False),
    ("words:vowel", {}, "a\nb", False),
    ("words:consonants", {}, "try style", True),
    ("words:consonants", {}, "try - style", False),
    ("words:palindrome", {}, "12321 " * 10, True),
    ("words:palindrome", {}, "Ci-vic, " * 10, True),
    ("words:palindrome", {}, "civic " * 9, False),
    ("words:palindrome", {}, "noon " * 10, False),
    ("words:prime_lengths", {}, "well-known ab", False),
    ("words:prime_lengths", {}, "don't go", False),
    ("words:prime_lengths", {}, "?!", True),
    ("words:prime_lengths", {}, "x" * 97 + " " + "y" * 89, True),
    ("words:prime_lengths", {}, "x" * 101, False),
    ("words:repeats", {"small_n": 2}, "No, no! Yes", True),
    ("words:repeats", {"small_n": 1}, "No, no! Yes", False),
    ("words:no_consecutive", {}, "an eel, (elk)", False),
    ("words:no_consecutive", {}, "an Eel - an", True),
    ("words:odd_even_syllables", {}, "word", True),
    ("words:odd_even_syllables", {}, "123 the 456", True),
    ("words:odd_even_syllables", {}, "the cat", False),
    ("words:last_first", {}, "We saw him. (Him!) Ran.", False),
    ("words:last_first", {}, 'We saw "him". Him we saw.', False),
    ("words:last_first", {}, 'We saw him! "Him we saw."', True),
    ("words:last_first", {}, "One sentence", True),
    ("words:paragraph_last_first", {}, "*Time is time.*\n\nNo, no", False),
    ("words:paragraph_last_first", {}, "*Time is time.*\n\n(no)", True),
    (
        "words:keywords_specific_position",
        {"keyword": " Target ", "n": 1, "m": 3},
        "A, b target.",
        True,
    ),
    ("words:keywords_specific_position", {"keyword": "b", "n": 2, "m": 1}, "A b.", False),
    ("words:keywords_specific_position", {"keyword": "b", "n": 1, "m": 3}, "A b.", False),
    ("words:words_position", {"keyword": "x"}, "A x b X c.", True),
    ("words:words_position", {"keyword": "x"}, "A x b", True),
    ("words:words_position", {"keyword": "x"}, "A x .", False),
    ("words:words_position", {"keyword": "a"}, "a .", False),
    ("words:words_position", {"keyword": "x"}, "x", False),
    ("words:words_position", {"keyword": "x"}, "A, x b x c", False),
    ("words:words_position", {"keyword": "x"}, "A x. B. C. D. E. F. G. H. I go x now!", True),
    ("sentence:alliteration_increment", {}, "Bad bee. Can cats come.", True),
    ("sentence:alliteration_increment", {}, "Bad bee. Can cats.", False),
    ("sentence:alliteration_increment", {}, "Big bad bee. Can cats dare dogs.", True),
    ("sentence:alliteration_increment", {}, "Words.", True),
    ("sentence:increment", {"small_n": 2}, "A b. A - b c d.", True),
    ("sentence:increment", {"small_n": 2}, "A b. A b c.", False),
    ("sentence:keyword", {"word": "tea", "N": 1}, "TEA-time.", True),
    ("sentence:keyword", {"word": "tea", "N": 1}, "Team.", False),
    ("sentence:keyword", {"word": "tea", "N": 2}, "Tea.", False),
    ("sentence:keyword", {"word": "t.a", "N": 1}, "tea", False),
    ("format:parentheses", {}, "([{([x]", True),
    ("format:parentheses", {}, "([{([x", False),
    ("format:parentheses", {}, "((((x}(x)", False),
    ("format:parentheses", {}, "((((( } )", False),
    ("format:quotes", {}, '"\'"x"\'"', True),
    ("format:quotes", {}, "\"'x'\"", False),
    ("format:quotes", {}, "“‘“x”’”", False),
    ("format:options", {"options": "yes/no"}, "No.", True),
    ("format:options", {"options": "yes/no"}, "No\n", False),
    ("format:options", {"options": "Boston or Rome"}, "*rome*", True),
    ("format:options", {"options": "red, green"}, "green", True),
    ("format:options", {"options": "(a)/(b)/(c)"}, "(b)", True),
    ("format:options", {"options": "(a)/(b)/(c)"}, "b", False),
    ("format:newline", {}, "\none\n\ntwo.\n", True),
    ("format:newline", {}, "one\n \ntwo", False),
    ("format:newline", {}, "one\ntwo three", False),
    ("format:emoji", {}, "Hi 😀. Yo 👍🏽", True),
    ("format:emoji", {}, "Hi. 😀", True),
    ("format:emoji", {}, "Hi! 😀 Yo.", False),
    ("format:emoji", {}, "Hi ❤️", True),
    ("format:line_indent", {}, "a\n b\n\n  c", True),
    ("format:line_indent", {}, "a\n\tb", False),
    ("format:quote_unquote", {}, '"a" then b', True),
    ("format:quote_unquote", {}, '"a" 1.', False),
    ("format:quote_unquote", {}, '"a" "b" c', False),
    ("format:quote_unquote", {}, "no quotes", True),
    ("format:list", {"sep": "..."}, "a ... b ... c", True),
    ("format:list", {"sep": "..."}, "a ... b", False),
    ("format:list", {"sep": "--"}, "a --- b", False),
    ("format:thesis", {}, "x <i>y</i> z", True),
    ("format:thesis", {}, "<i>y</i> ", False),
    ("format:thesis", {}, "<i> </i> z", False),
    ("format:thesis", {}, "<I>y</I> z", False),
    ("format:sub-bullets", {}, "* a\n - b\n* c\n - d", True),
    ("format:sub-bullets", {}, "* a\n - b\n* c", False),
    ("format:no_bullets_bullets", {}, "A b. C d.\n* x\n* y", True),
    ("format:no_bullets_bullets", {}, "A b. C d.\n\n* x\n  * y", True),
    ("format:no_bullets_bullets", {}, "A b. C d.\n* x", False),
    ("format:no_bullets_bullets", {}, "A b. C d.\n* x\n* y\nEnd.", False),
    ("format:title_case", {}, "The McDonald Has 3 iPhone x1", True),
    ("format:title_case", {}, "The cat", False),
    ("format:title_case", {}, "a", False),
    ("format:title_case", {}, "iPHONE", False),
    ("format:title_case", {}, "It's NASA", True),
    ("format:output_template", {}, "Future Outlook: My Conclusion: My Answer:", True),
    ("format:output_template", {}, "Future outlook: My Conclusion: My Answer:", False),
    ("format:no_whitespace", {}, "a\u200bb", True),
    ("format:no_whitespace", {}, "a\u00a0b", False),
    ("repeat:repeat_change", {"prompt_to_repeat": "a b c"}, "x b c", True),
    ("repeat:repeat_change", {"prompt_to_repeat": "a b c"}, "x b c d", False),
    ("repeat:repeat_change", {"prompt_to_repeat": "a b c"}, "a b c", False),
    ("repeat:repeat_change", {"prompt_to_repeat": "a"}, "x", True),
    ("repeat:repeat_simple", {}, f" {FIXED.upper()}\n", True),
    ("repeat:repeat_simple", {}, FIXED.rstrip("."), False),
    (
        "repeat:repeat_span",
        {"prompt_to_repeat": "Hello you", "n_start": 0, "n_end": 4},
        "hello",
        True,
    ),
    (
        "repeat:repeat_span",
        {"prompt_to_repeat": "Hello you", "n_start": 0, "n_end": 4},
        "hell",
        False,
    ),
    (
        "repeat:repeat_span",
        {"prompt_to_repeat": "Hello you", "n_start": 6, "n_end": -2},
        "yo",
        True,
    ),
    ("custom:multiples", {}, "x14y21, 28,35 42\n49.", True),
    ("custom:multiples", {}, "7 14 21 28 35 42 49", False),
    ("custom:multiples", {}, "１４ 21 28 35 42 49", False),
    ("custom:mcq_count_length", {}, QUIZ, True),
    ("custom:mcq_count_length", {}, " " + QUIZ, False),
    ("custom:mcq_count_length", {}, QUIZ.replace("E. 5", ""), False),
    ("custom:mcq_count_length", {}, QUIZ.replace("E. 5", "E. 5\nE. 6"), False),
    ("custom:mcq_count_length", {}, QUIZ.replace("E. 5", "E. 5\nF. 6"), True),
    ("custom:mcq_count_length", {}, QUIZ.replace("y", ""), False),
    ("custom:reverse_newline", {}, "Here:\n" + "\n".join(f"- {name}." for name in AFRICA), True),
    ("custom:reverse_newline", {}, "\n".join(AFRICA[:51]), False),
    ("custom:reverse_newline", {}, "\n".join([*AFRICA, "Zürich"]), False),
    ("custom:reverse_newline", {}, "\n".join([*AFRICA, "Ẑimbabwe"]), True),
    ("custom:reverse_newline", {}, "\n".join([*AFRICA, "Ålborg", "A"]), True),
    ("custom:word_reverse", {}, "EAGLE, the-x BALD", False),
    ("custom:word_reverse", {}, "Eagle, bald!", True),
    ("custom:character_reverse", {}, "eLGAE DLAb", True),
    ("custom:character_reverse", {}, "eagle bald", False),
    ("custom:sentence_alphabet", {}, " ".join(ALPHABET), True),
    ("custom:sentence_alphabet", {}, " ".join(ALPHABET[:-1]), False),
    ("custom:sentence_alphabet", {}, " ".join([*ALPHABET, "A comes now."]), False),
    ("custom:european_capitals_sort", {}, CAPITALS.replace("Chisinau", "Chișinău") + ",", True),
    ("custom:european_capitals_sort", {}, CAPITALS + ".", False),
    ("custom:csv_city", {}, "\n".join(CITIES), True),
    ("custom:csv_city", {}, "\n".join(CITIES) + "\n", True),
    ("custom:csv_city", {}, "\n".join(CITIES[:-1]), False),
    ("custom:csv_city", {}, "\n".join(CITIES).replace("ID,", "ID, "), False),
    ("custom:csv_city", {}, "\r".join(CITIES), False),
    ("custom:csv_special_character", {}, "\n".join([*PRODUCTS, '9,"a!",b,c,d']), True),
    ("custom:csv_special_character", {}, "\n".join([*PRODUCTS, '9,"a_b 1",b,c,d']), False),
    ("custom:csv_special_character", {}, "\n".join([*PRODUCTS, '9,"a!",b,c']), False),
    ("custom:csv_special_character", {}, "\n".join([*PRODUCTS[1:], '9,"a!",b,c,d']), False),
    ("custom:csv_special_character", {}, "\n".join([*PRODUCTS, '9,"!""",b,c,d']), True),
    ("custom:csv_quotes", {}, "\n".join(STUDENTS), True),
    ("custom:csv_quotes", {}, "\n".join(STUDENTS[:-1]), False),
    ("custom:csv_quotes", {}, "\n".join(STUDENTS).replace("\t", ","), False),
    ("custom:csv_quotes", {}, "\n".join([*STUDENTS[:-1], '"1"\t\t"c"\t"d"\t"e"']), False),
    ("custom:date_format_list", {}, "1769-01-31, 1821-04-30\n", True),
    ("custom:date_format_list", {}, "1768-01-31", False),
    ("custom:date_format_list", {}, "1822-01-31", False),
    ("custom:date_format_list", {}, "1800-04-31", False),
    ("custom:date_format_list", {}, "1800-13-01", False),
    ("custom:date_format_list", {}, "1800-01-01,", False),
    ("custom:date_format_list", {}, "1800-1-01", False),
]


@pytest.mark.parametrize(("id", "kwargs", "response", "expected"), CASES)
def test_published(id, kwargs, response, expected):
    assert judge(id, kwargs, response) is expected


# (id, kwargs, response, published verdict, repaired verdict)
REPAIRS = [
    ("count:unique_word_count", {"N": 3}, "a - b", True, False),
    ("count:conjunctions", {"small_n": 3}, "And he ran and, and she hid.", True, False),
    ("count:numbers", {"N": 2}, "10-20", False, True),
    ("count:numbers", {"N": 2}, "3.14 and 1,000.", True, True),
    ("count:words_japanese", {"N": 5}, "three short words", True, False),
    ("count:keywords_multiple", KEYWORDS, KEYWORDS_OK.replace("k1", "ak1b"), True, False),
    ("count:keywords_multiple", KEYWORDS, KEYWORDS_OK + " xk1x", False, True),
    ("ratio:sentence_type", {}, "Run!", True, False),
    ("ratio:sentence_type", {}, 'He said "no." We left. "Why?"', False, True),
    ("ratio:sentence_balance", {}, "no end", True, False),
    ("ratio:sentence_balance", {}, '"It rains." "Why?" "Run!"', True, True),
    ("ratio:overlap", {"reference_text": "on the mat", "percentage": 100}, "n the m", True, False),
    ("ratio:sentence_words", {}, "I am. I am. I am.", True, False),
    ("words:prime_lengths", {}, "?!", True, False),
    ("words:words_position", {"keyword": "whisper"}, "A whisper, soft whisper now...", False, True),
    ("words:words_position", {"keyword": ","}, "Well, tea , x", True, False),
    ("words:words_position", {"keyword": "tea"}, "It's tea, not tea now.", False, True),
    ("ratio:sentence_words", {}, "It's so. He's up. We'd go.", True, True),
    ("sentence:keyword", {"word": "tea", "N": 0}, "Hello. Tea.", True, False),
    ("sentence:keyword", {"word": "C++", "N": 1}, "I like C++ a lot.", False, True),
    ("format:parentheses", {}, "([{([x]", True, False),
    ("format:parentheses", {}, "([{([x])}])", True, True),
    ("format:parentheses", {}, "(a) ([{([x])}])", True, True),
    ("format:parentheses", {}, "( a ([{([x])}])", True, True),
    ("format:quotes", {}, "don't \"it 'is' so\" it's", True, False),
    ("format:quotes", {}, "“He said ‘she didn’t say “no”’”", False, True),
    ("format:options", {"options": "north, south"}, "south", False, True),
    ("format:options", {"options": "Boston or Rome"}, "Rome", True, True),
    ("format:emoji", {}, "Bonjour 🇫🇷", False, True),
    ("format:emoji", {}, "One 1️⃣", False, True),
    ("format:emoji", {}, "Hello! 😀 Bye", False, False),
    ("format:line_indent", {}, "a\n\n\n b\n  c", False, True),
    ("format:line_indent", {}, "a\n\n b\n  c", True, True),
    ("format:quote_unquote", {}, "He said “one” “two” and done.", True, False),
    ("format:list", {"sep": "..."}, "a ... b ... c", True, False),
    ("format:thesis", {}, "<em></em>", True, False),
    ("format:thesis", {}, "<em>y</em> z", True, True),
    ("format:sub-bullets", {}, "no bullets", True, False),
    ("format:sub-bullets", {}, "* **a** b\n - c", False, True),
    ("format:sub-bullets", {}, "* well-known", True, False),
    ("format:no_bullets_bullets", {}, "A b.\n\nC d.\n* x\n* y\n", False, True),
    ("format:no_bullets_bullets", {}, "A b? C d!\n* x\n* y", True, False),
    ("format:title_case", {}, "Don't Stop", False, True),
    ("format:title_case", {}, "Don't stop", False, False),
    ("format:title_case", {}, "The Lord of the Rings", False, True),
    ("format:title_case", {}, "the Lord", False, False),
    ("repeat:repeat_change", {"prompt_to_repeat": "a b"}, "a  b", True, False),
    (
        "repeat:repeat_span",
        {"prompt_to_repeat": "al be ga de", "n_start": 1, "n_end": 2},
        "be ga",
        False,
        True,
    ),
    (
        "repeat:repeat_span",
        {"prompt_to_repeat": "alpha be", "n_start": 0, "n_end": 4},
        "alpha",
        True,
        False,
    ),
    ("custom:sentence_alphabet", {}, " ".join(['"A," he said.', *ALPHABET[1:]]), False, True),
    ("custom:csv_city", {}, "\n".join(CITIES) + "\n\n", False, True),
    (
        "custom:csv_special_character",
        {},
        "\n".join([PRODUCTS[0], '9,"a!",b,c,d', *["x"] * 13]),
        True,
        False,
    ),
    (
        "custom:csv_quotes",
        {},
        "\n".join([STUDENTS[0].replace('"', ""), *STUDENTS[1:]]),
        False,
        True,
    ),
    ("custom:date_format_list", {}, "1800-00-00", True, False),
    ("custom:date_format_list", {}, "1801-02-29", True, False),
    ("custom:date_format_list", {}, "1804-02-29", True, True),
]


@pytest.mark.parametrize(("id", "kwargs", "response", "published", "repaired"), REPAIRS)
def test_repaired(id, kwargs, response, published, repaired):
    assert judge(id, kwargs, response) is published
    assert judge(id, kwargs, response, "repaired") is repaired


def test_every_repair_has_a_case_that_it_changes():
    changed = {id for id, _, _, published, repaired in REPAIRS if published != repaired}
    assert changed == {id for id in IDS if registry.spec(id).repaired}


def test_loose_mode_passes_sub_bullets_without_asterisks():
    assert judge("format:sub-bullets", {}, "* a\n* b", mode="loose")


def test_floats_count_as_integers():
    assert judge("count:numbers", {"N": 2.0}, "1 and 2")
    assert judge("sentence:keyword", {"word": "x", "N": 2.0}, "A b. An x.")


@pytest.mark.parametrize(
    ("id", "kwargs", "key"),
    [
        ("count:numbers", {}, "N"),
        ("count:numbers", {"N": -1}, "N"),
        ("count:numbers", {"N": 1.5}, "N"),
        ("count:punctuation", {"N": 1}, "N"),
        ("ratio:overlap", {"percentage": 5}, "reference_text"),
        ("repeat:repeat_change", {"prompt_to_repeat": ""}, "prompt_to_repeat"),
        ("words:keywords_specific_position", {"keyword": "a", "n": 0, "m": 1}, "n"),
    ],
)
def test_wrong_parameters_are_refused_by_name(id, kwargs, key):
    with pytest.raises(ConstraintError, match=rf"{id}.*'{key}'"):
        Constraint(id, kwargs)


def test_custom_ids_take_any_parameter():
    assert judge("custom:multiples", {"anything": 3}, "14 21 28 35 42 49")


def test_a_zeroth_word_is_an_error_not_a_pass():
    verdict = check(Constraint("count:words_japanese", {"N": 0}), "ab", "strict", "published")
    assert not verdict.passed
    assert "N" in verdict.error


def test_csv_verdict_does_not_depend_on_the_process_wide_field_limit():
    response = "\n".join(CITIES).replace("a", "a" * 131_073, 1)
    old = csv.field_size_limit(10**6)
    try:
        assert not judge("custom:csv_city", {}, response)
    finally:
        csv.field_size_limit(old)


# --- rewritten in one pass: the same answer as the plain reading of the rule ------------------


def walk_and_remove(lines):
    """Remove blank lines from a list while walking over it, literally."""
    lines = list(lines)
    for line in lines:
        if not line.strip():
            lines.remove(line)
    indents = [len(line) - len(line.lstrip(" ")) for line in lines]
    return all(a < b for a, b in zip(indents, indents[1:], strict=False))


@given(
    st.lists(st.sampled_from(["", " ", "  ", "   ", "\t", "a", " b", "  c", "   d"]), max_size=9)
)
def test_line_indent_equals_the_literal_walk(lines):
    response = "\n".join(lines)
    if response.strip():
        assert judge("format:line_indent", {}, response) == walk_and_remove(lines)


@given(st.lists(st.sampled_from('"!a_ \n,'), max_size=12).map("".join))
def test_special_field_equals_the_pattern(field):
    from califkit.verifiers.ifbench_custom import _is_quoted_special

    expected = re.match(r'".*[^\d\w\s].*"', field) is not None
    assert _is_quoted_special(field) == expected


@given(st.lists(st.sampled_from(["Question ", "1", "\n", " ", ".", "x"]), max_size=14).map("".join))
def test_question_split_equals_the_pattern_with_newlines_in_front(text):
    from califkit.verifiers.ifbench_custom import _QUESTION

    plain = re.split(r"\n*Question \d+[.|):;]?\s*", text)
    assert [p.strip() for p in _QUESTION.split(text)] == [p.strip() for p in plain]


# --- unbreakable ------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=60))
def test_any_text_gets_a_verdict_and_loose_is_no_harder(response):
    for id in PLAIN_IDS:
        constraint = Constraint(id, registry.spec(id).example.kwargs)
        for semantics in ("published", "repaired"):
            strict = check(constraint, response, "strict", semantics)
            loose = check(constraint, response, "loose", semantics)
            if not id.startswith("custom:csv_"):  # the csv reader may refuse a text
                assert strict.error is None and loose.error is None
                assert loose.passed >= strict.passed


@pytest.mark.parametrize(
    ("id", "response"),
    [
        ("custom:mcq_count_length", "Question 1 x" + "\n" * 100_000),
        ("custom:mcq_count_length", "Question 1" * 10_000),
        ("custom:csv_special_character", "\n".join([*PRODUCTS, '9,"' + "!" * 100_000 + ",b,c,d"])),
        ("custom:reverse_newline", "Zimbabwe" + "\u0301\u0323" * 50_000),
        ("custom:european_capitals_sort", "\u0301\u0323" * 50_000),
        ("format:newline", "a" + "\n" * 100_000 + "b"),
        ("format:line_indent", "\n" * 50_000 + "a" + "\n \n" * 20_000),
        ("format:no_bullets_bullets", "a\n" * 50_000),
        ("format:thesis", "<i>" * 33_000),
        ("format:parentheses", "(" * 100_000),
        ("format:quotes", "\"'" * 50_000),
        ("words:paragraph_last_first", "a b a\n" * 16_000),
        ("sentence:alliteration_increment", "b " * 50_000),
        ("count:pronouns", "! " * 50_000),
    ],
)
def test_hostile_text_takes_linear_time(id, response):
    constraint = Constraint(id, registry.spec(id).example.kwargs)
    for semantics in ("published", "repaired"):
        start = time.perf_counter()
        verify(constraint, response, "strict", semantics)
        # Quadratic versions take 3 to 100 times as long; the margin is for busy machines.
        assert time.perf_counter() - start < 2.5


# --- tagger -----------------------------------------------------------------------------------


def test_start_verb(tagger):
    for semantics in ("published", "repaired"):
        example = registry.spec("words:start_verb").example
        assert judge("words:start_verb", {}, example.passes, semantics)
        assert not judge("words:start_verb", {}, example.fails, semantics)
    assert not judge("words:start_verb", {}, '"')


def test_three_tokens_get_the_tag_that_the_whole_text_gives(tagger):
    rng = random.Random(0)
    words = "run the dog Go quickly Write ! . set up over I is walking can down".split()
    for _ in range(200):
        text = " ".join(rng.choices(words, k=rng.randint(1, 12)))
        whole = tagger._tagger().tag(Text(text).tokens)[0][1]
        assert judge("words:start_verb", {}, text) == ("VB" in whole), text


def test_missing_tagger_data_is_one_clear_error_when_the_constraint_is_built(monkeypatch):
    import nltk

    from califkit.verifiers import tagger

    monkeypatch.setattr(nltk.data, "path", [])
    tagger._load.cache_clear()
    with pytest.raises(ConstraintError, match="nltk.downloader averaged_perceptron_tagger_eng"):
        Constraint("words:start_verb")


# --- golden vectors ---------------------------------------------------------------------------


def read_golden(path):
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def test_golden_vectors(shared, tagger):
    wrong = []
    for row in read_golden(shared / "verifiers" / "golden_ifbench.jsonl.gz"):
        raised = row.get("raises_in") or []
        try:
            constraint = Constraint(row["id"], row["kwargs"] or {})
        except ConstraintError:
            if not raised:
                wrong.append((row["id"], row["kwargs"]))
            continue
        for mode in ("strict", "loose"):
            passed = verify(constraint, row["response"], mode)
            # Where the reference throws, going on with the next loose variant may pass.
            if passed != row[mode] and not (mode == "loose" and mode in raised):
                wrong.append((row["id"], mode, row["response"][:80]))
    assert wrong == []


def test_golden_evaluation(shared, tagger):
    rows = read_golden(shared / "verifiers" / "golden_eval_ifbench.jsonl.gz")
    summary = json.loads((shared / "verifiers" / "golden_eval_ifbench_summary.json").read_text())
    for mode in ("strict", "loose"):
        verdicts = []
        for row in rows:
            pairs = zip(row["instruction_id_list"], row["kwargs"], strict=True)
            constraints = [Constraint(id, kwargs) for id, kwargs in pairs]
            verdicts.append(verify_all(constraints, row["response"] or "", mode))
            assert verdicts[-1] == row[mode], row["key"]
        flat = [passed for row in verdicts for passed in row]
        prompts = sum(map(all, verdicts)) / len(verdicts)
        assert prompts == pytest.approx(summary[f"{mode}_prompt"])
        assert sum(flat) / len(flat) == pytest.approx(summary[f"{mode}_instruction"])
