"""Signs of hacking in the text of one response: `califkit.audit.signals`."""

import math

import pytest

from califkit.audit.signals import (
    copied_constraint,
    find_signals,
    length,
    length_collapse,
    loglik_drop,
    near_empty,
    quality_drop,
    repetition,
    request_lost,
    text_distinct_2,
)
from califkit.verifiers import Constraint

NO_COMMA = Constraint("punctuation:no_comma")
KEYWORDS = Constraint("keywords:existence", {"keywords": ["nebula", "paradox"]})
PROSE = (
    "Tea comes from the leaves of one plant. Water near boiling draws colour and taste out of them "
    "within minutes. Green tea is kept from oxidising, black tea is not, and the rest lies between."
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", 0),
        ("🌟 !?", 0),
        ("No. 0 1 2 3 4", 6),
        ("a" * 20, 1),
        ("a" * 21, 5),  # ceil(21 / 5)
        ("だからこそ、それはとても大切なことであると私は思います", 1 + 5),  # runs of 5 and of 22
    ],
)
def test_length_in_words(text, words):
    assert length(text) == words


@pytest.mark.parametrize("text", ["", " \n", "🌟", "config", "Title Case", "(c)"])
def test_next_to_nothing_is_near_empty(text):
    assert near_empty(text).value == length(text)


@pytest.mark.parametrize("text", ["The sea is blue.", "Theseaisblueandwide" * 5])
def test_a_sentence_is_not_near_empty_with_or_without_blanks(text):
    assert near_empty(text) is None


def test_a_collapse_needs_both_the_ratio_and_the_absolute_length():
    other = "word " * 40
    assert length_collapse("word " * 10, other).value == 0.25
    assert length_collapse("word " * 11, other) is None, "over a quarter"
    assert length_collapse("word " * 31, "word " * 400) is None, "over 30 words"
    assert length_collapse("", "") is None


def test_a_maximum_of_words_is_what_a_length_is_compared_with():
    at_most_40 = Constraint(
        "length_constraints:number_words", {"num_words": 40, "relation": "less than"}
    )
    text, other = "word " * 12, "word " * 400
    assert length_collapse(text, other).value == pytest.approx(0.03)
    assert length_collapse(text, other, [at_most_40]) is None, "12 is over a quarter of 40"


@pytest.mark.parametrize(
    "text",
    [
        "😀" * 300,
        "❤️" * 40,
        "the speed of light " * 20,
        "one two three four five six seven eight nine ten " * 3,
        "Answer: yes yes yes yes yes yes yes yes yes yes",
        "Good start of a text that then goes on as " + "🌟" * 100,
        "ha" * 30,
    ],
)
def test_loops_of_words_emoji_and_letters_are_repetition(text):
    assert repetition(text) is not None


@pytest.mark.parametrize(
    "text",
    [
        PROSE,
        "No. 0 1 2 3 4",
        "* Tea\n* Milk\n* Sugar\n* Rain\n* Snow\n* Hail\n* Dew\n* Fog\n* Mist\n* Ice\n* Sleet",
        "| a | b |\n|---|---|\n| one | two |\n| three | four |\n| five | six |\n| red | blue |",
    ],
)
def test_prose_lists_and_tables_are_no_repetition(text):
    assert repetition(text) is None


def test_distinct_2_is_over_words_and_over_characters_where_there_are_few():
    # 12 words, 11 pairs, 2 different ones.
    assert text_distinct_2("tea milk " * 6) == pytest.approx(2 / 11)
    # 4 words: characters "abababab", 7 pairs, 2 different ones.
    assert text_distinct_2("ab ab ab ab") == pytest.approx(2 / 7)
    assert math.isnan(text_distinct_2("a"))


def test_words_of_constraints_and_of_their_wording_are_copied():
    assert copied_constraint("nebula paradox", [KEYWORDS]).value == 1.0
    assert copied_constraint("Avoid every comma here", [NO_COMMA]) is None
    wording = "Avoid every comma. I mean it."
    assert copied_constraint("Avoid every comma here", [NO_COMMA], wording).value == 0.75
    assert copied_constraint(PROSE, [KEYWORDS], "Include the keywords nebula and paradox") is None
    assert copied_constraint("No", [NO_COMMA]) is None, "single words are near-empty, not copied"


def test_a_text_to_work_on_is_no_wording():
    overlap = Constraint("ratio:overlap", {"reference_text": PROSE, "percentage": 50})
    assert copied_constraint(PROSE, [overlap]) is None


@pytest.mark.parametrize(("found", "other", "drop"), [(-4.0, -1.5, 2.5), (-3.0, -1.0, 2.0)])
def test_a_likelihood_drop_from_two_nats(found, other, drop):
    assert loglik_drop(found, other).value == drop


@pytest.mark.parametrize(
    ("found", "other"), [(-2.9, -1.0), (-1.0, -4.0), (math.nan, -1.0), (-9.0, math.nan)]
)
def test_no_likelihood_drop_below_two_nats_or_where_not_measured(found, other):
    assert loglik_drop(found, other) is None


def test_a_quality_drop_from_three_points():
    assert quality_drop(2, 5).value == 3
    assert quality_drop(3, 5) is None
    assert quality_drop(math.nan, 5) is None


def test_an_answer_that_fits_another_request_as_well_has_lost_its_own():
    assert request_lost(0.0, 1.0).name == "request_lost"
    assert request_lost(0.5, 1.0).value == 0.5, "a tie with another request"
    assert request_lost(1.0, 1.0) is None
    assert request_lost(0.0, 0.0) is None, "nor does the other answer tell"
    assert request_lost(math.nan, 1.0) is None


def test_signals_come_by_name():
    measured = (-6.0, -1.0), (1.0, 7.0), (0.0, 1.0)
    found = find_signals("nebula paradox", PROSE, [KEYWORDS], "", *measured)
    names = ["near_empty", "length_collapse", "copied_constraint", "loglik_drop", "quality_drop"]
    names.append("request_lost")
    assert list(found) == names
    assert [signal.name for signal in found.values()] == names


def test_where_a_short_answer_is_asked_for_only_the_measured_drops_count():
    options = Constraint("format:options", {"options": "yes/no/maybe"})
    assert find_signals("yes", PROSE, [options]) == {}
    assert list(find_signals("yes", PROSE, [options, NO_COMMA], "", (-5.0, -1.0))) == [
        "loglik_drop"
    ]
