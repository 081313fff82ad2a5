"""The 58 IFBench ids: repairs, parameters, rules rewritten in one pass, any text."""

import csv
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from califkit.verifiers import Constraint, ConstraintError, check, registry, verify
from califkit.verifiers.text import Text

IDS = registry.suite_ids("ifbench")
PLAIN_IDS = [id for id in IDS if id != "words:start_verb"]


def judge(id, kwargs, response, semantics="published", mode="strict"):
    return verify(Constraint(id, kwargs), response, mode, semantics)


def test_there_is_no_0th_word_to_be_japanese():
    with pytest.raises(ConstraintError, match="count:words_japanese.*N.*0"):
        Constraint("count:words_japanese", {"N": 0})


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
        whole = tagger.require().tag(Text(text).tokens)[0][1]
        assert judge("words:start_verb", {}, text) == ("VB" in whole), text


def test_missing_tagger_data_is_one_clear_error_when_the_constraint_is_built(monkeypatch):
    import nltk

    from califkit.verifiers import tagger

    monkeypatch.setattr(nltk.data, "path", [])
    tagger.require.cache_clear()
    with pytest.raises(ConstraintError, match="nltk.downloader averaged_perceptron_tagger_eng"):
        Constraint("words:start_verb")
