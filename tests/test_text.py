"""Text rules: words, sentences, tokens, language, loose variants."""

import random
import re

import pytest

from califkit.verifiers import text as rules
from califkit.verifiers.text import (
    Text,
    depunct,
    loose_variants,
    lps_strip,
    ps_strip,
    punkt_sentences,
    rps_strip,
    rule_sentences,
    word_tokens,
)


def test_ps_strip_takes_ascii_punctuation_and_the_plain_space_only():
    assert ps_strip('  "(tea)!" ') == "tea"
    assert lps_strip("--tea--") == "tea--"
    assert rps_strip("--tea--") == "--tea"
    assert ps_strip("\ttea\n") == "\ttea\n"
    assert ps_strip("“tea”") == "“tea”"


def test_depunct_puts_nothing_in_place():
    assert depunct("well-known 3.14!") == "wellknown 314"


@pytest.mark.parametrize(
    ("raw", "n"),
    [("don't", 2), ("well-known", 2), ("3.14", 2), ("你好吗", 1), ("a_b", 1), ("", 0), ("x²", 1)],
)
def test_words_are_runs_of_the_standard_w(raw, n):
    assert Text(raw).n_words == n


def test_ws_tokens_split_at_unicode_blanks_but_not_at_zero_width_ones():
    assert Text("a\u00a0b\u3000c\u200bd").ws_tokens == ["a", "b", "c\u200bd"]


def test_lines_split_at_newline_only():
    assert Text("a\r\nb\u2028c").lines == ["a\r", "b\u2028c"]


@pytest.mark.parametrize(
    ("raw", "sentences"),
    [
        ("Mr. Smith left. He ran.", ["Mr. Smith left.", "He ran."]),
        ("One line\nand another", ["One line\nand another"]),
        ("Wait! Why? Go on.", ["Wait!", "Why?", "Go on."]),
        ('He said "Go." Then he left.', ['He said "Go."', "Then he left."]),
        (" \n\t", []),
    ],
)
def test_punkt_sentences(raw, sentences):
    assert punkt_sentences(raw) == sentences


@pytest.mark.parametrize(
    ("raw", "tokens"),
    [
        ("It's easy.", ["It", "'s", "easy", "."]),
        ("I can't, cannot.", ["I", "ca", "n't", ",", "can", "not", "."]),
        ('"Yes"', ["``", "Yes", "''"]),
        ("Made in the U.S. by us.", ["Made", "in", "the", "U.S.", "by", "us", "."]),
        ("Wait... what -- 5%?", ["Wait", "...", "what", "--", "5", "%", "?"]),
        (
            "cannot, well-known. Gimme 1,000",
            ["can", "not", ",", "well-known", ".", "Gim", "me", "1,000"],
        ),
        # The opening single quote stays on its word unless the word is one letter (NLTK 3.9).
        ("the 'clean' one", ["the", "'clean", "'", "one"]),
    ],
)
def test_word_tokens(raw, tokens):
    assert word_tokens(raw) == tokens
    assert Text(raw).tokens == tokens


def test_the_token_shortcut_for_plain_sentences_changes_nothing():
    """Plain sentences skip NLTK's rules; on random ones both ways give the same tokens."""
    from califkit.verifiers import english

    rng = random.Random(0)
    words = [
        "tea",
        "cannot",
        "Wanna",
        "gonna",
        "well-known",
        "1",
        "2,000",
        "a",
        "I",
        "é",
        "_x",
        "ok,",
        "x--y",
    ]
    ends = ["", ".", "!", "?", "..", " .", ","]
    plain = 0
    for _ in range(2000):
        s = " ".join(rng.choices(words, k=rng.randint(1, 6))) + rng.choice(ends)
        assert english.sentence_tokens(s) == english._words.tokenize(s), s
        plain += english._PLAIN.fullmatch(s) is not None
    assert plain > 200


@pytest.mark.parametrize(
    ("raw", "sentences"),
    [
        ("Wait?!", ["Wait?", "!"]),
        ("Dr. Who met Mr. X. They ran.", ["Dr. Who met Mr. X. They ran."]),
        ("See example.com today. Good.", ["See example.com today.", "Good."]),
        ("Pay 3.50 now. Then go", ["Pay 3.50 now.", "Then go"]),
        ("Well... no.", ["Well...", "no."]),
        ("A Ph.D. is long. Yes.", ["A Ph.D. is long.", "Yes."]),
        ('She said "Go." He went.', ['She said "Go".', "He went."]),
        ("The U.S. He left.", ["The U.S.", "He left."]),
        ("Tea Inc. He left.", ["Tea Inc", "He left."]),
        ("a<stop>b<prd>", ["a", "b."]),
        ("... . x", ["...", ".", "x"]),
        ("no end", ["no end"]),
        (" \n ", []),
    ],
)
def test_rule_sentences(raw, sentences):
    assert rule_sentences(raw) == sentences


def test_loose_variants_in_order_without_blanks_and_copies():
    assert loose_variants("one") == ["one"]
    assert loose_variants("a\n*b*\nc") == [
        "a\n*b*\nc",
        "a\nb\nc",
        "*b*\nc",
        "a\n*b*",
        "*b*",
        "b\nc",
        "a\nb",
        "b",
    ]
    assert loose_variants(" \n ") == []
    assert loose_variants(" x ") == [" x "]  # The first two variants are not stripped.


def test_language_is_the_same_on_every_call_and_after_other_texts():
    short = "Hello world"
    first = rules.detect_language(short)
    for other in ("Guten Morgen", "12345 !!!", "こんにちは", short) * 5:
        rules.detect_language(other)
        assert rules.detect_language(short) == first


def test_language_of_clear_cases():
    assert Text("Heute ist ein schöner Tag, und wir gehen in den Garten.").language == "de"
    assert Text("12345 !!!").language is None


def langdetect_answer(text: str) -> str | None:
    """The answer of the package's own detector, from the same profiles and seed."""
    from langdetect.lang_detect_exception import LangDetectException

    from califkit.verifiers import language

    detector = language._factory.create()
    detector.append(text)
    try:
        return detector.detect()
    except LangDetectException:
        return None


ENGLISH = "The garden is full of flowers and trees. "
GERMAN = "Der Garten ist voller Blumen und Bäume. "
URLS = "http://example.org/" + "a" * 2000 + " a@b.example "


@pytest.mark.parametrize(
    "raw",
    [
        "",
        "x",
        "ok",
        "12345 !!!",
        "ALL CAPITAL LETTERS HERE",
        "NASA and the UN met in Rome",
        "Hello world",
        "no si ja da",
        "你好，世界。今天天气很好 and some English",
        "こんにちは世界",
        "Tiếng Việt có dấu và nguye\u0302\u0303n",
        "Привет, как дела?",
        "see http://example.org/x and mail me@example.org   now",
        "مرحبا بالعالم",
        "a\u00a0b\u2003c  d",
        "안녕하세요 세계",
        "x" * 500,
        ENGLISH * 400 + GERMAN * 3000,
        URLS * 60 + GERMAN * 300,
        ENGLISH + GERMAN,
    ],
)
def test_language_is_what_langdetect_says_with_seed_0(raw):
    assert rules.detect_language(raw) == langdetect_answer(raw)


def test_each_analysis_is_computed_once(monkeypatch):
    calls = []
    monkeypatch.setattr(rules, "punkt_sentences", lambda s: calls.append(s) or [s])
    text = Text("One. Two.")
    assert text.sentences is text.sentences
    assert calls == ["One. Two."]


def test_tokens_do_not_depend_on_the_regex_engine_of_nltk():
    """Every pattern that runs is one of the standard `re`."""
    from califkit.verifiers import english

    tokenizer = english._WordTokenizer
    used = [
        p
        for group in ("STARTING_QUOTES", "PUNCTUATION", "ENDING_QUOTES")
        for p, _ in getattr(tokenizer, group)
    ]
    used += [
        *tokenizer.CONTRACTIONS2,
        *tokenizer.CONTRACTIONS3,
        tokenizer.DOUBLE_DASHES[0],
        tokenizer.PARENS_BRACKETS[0],
    ]
    assert all(type(pattern) is re.Pattern for pattern in used)
