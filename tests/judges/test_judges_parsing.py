"""Answers of judges as text: what is read from them, and what is refused."""

import pytest

from califkit.judges.parsing import OutOfRange, Unparsable, read_choice, read_object, read_score


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"reasoning": "Fine.", "score": 7}', 7),
        ('{"score": 1}', 1),
        ('{"score": 10}', 10),
        ('{"score": "7"}', 7),
        ('```json\n{"score": 7}\n```', 7),
        ('I would say 3 at first. {"score": 7} That is all, 9 of 10 agree.', 7),
        ('The format is {"score": <1 to 10>}. My verdict: {"score": 7}', 7),
        ('{"score": 7}. Once more: {"reasoning": "It is good.", "score": 7}', 7),
        ('The opening tag is not there.</think>{"score": 7}', 7),
        ('{"reasoning": "It ends in </think> and {\\"score\\": 1}.", "score": 7}', 7),
        ('{"reasoning": "it says \\"score: 10\\" and } and {", "score": 2}', 2),
        ('{"reasoning": "two\nlines", "score": 7}', 7),
        ('{"parts": {"score": 3}, "score": 7}', 7),
        ('<think>{"score": 2}? Rather more.</think>\n{"score": 7}', 7),
        ('The set \\{1\\} is meant. {"score": 7}', 7),
    ],
)
def test_a_score_is_found_whatever_stands_around_it(text, expected):
    score = read_score(text)
    assert score == expected
    assert type(score) is int


@pytest.mark.parametrize(
    "value",
    ["0", "11", "-3", "7.5", "1e9", "NaN", "Infinity", "-Infinity", "true", "null", "[7]", "{}"]
    + ["7.0", '"7/10"', '"11/10"', '"7.5"', '"NaN"', '"seven"', '"7 out of 10"', '"7/5"', '""'],
)
def test_a_score_that_is_no_integer_from_1_to_10_is_out_of_range(value):
    with pytest.raises(OutOfRange):
        read_score(f'{{"reasoning": "x", "score": {value}}}')


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  \n",
        "I would give it 7 out of 10.",
        "Score: 7",
        "7",
        "7/10",
        "7 8",
        '{"rating": 7}',
        '{"Score": 7}',
        '{"scores": {"score": 7}}',
        '{"score": 7',
        '{"score": 7} and again {"score": ',
        '{"score": 7,}',
        "{'score': 7}",
        '{"parts": {"score": 3}, "score": 7,}',
        '<think>perhaps {"score": 7}',
        "[7]",
        '{"score": ' + "9" * 5000 + "}",
        '{"a":' * 5000 + "1" + "}" * 5000,
    ],
)
def test_a_number_that_is_not_in_the_field_asked_for_does_not_count(text):
    with pytest.raises(Unparsable):
        read_score(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('The format is {"score": 1}. My verdict: {"score": 7}', "two verdicts that differ"),
        ('{"score": 7} or rather {"reasoning": "No.", "score": 2}', "two verdicts that differ"),
        ('<think>Hm.</think>{"score": 7}{"score": 8}', "two verdicts that differ"),
        ('Perhaps {"score": 3}.</think>{"score": 7}', "in front of </think>"),
        ('{"score": 9}</think> I would rather not say.', "in front of </think>"),
        ('{"score": 9}</think>', "in front of </think>"),
        ('<think>Hm.</think>{"score": 3} again </think>{"score": 7}', "in front of </think>"),
    ],
)
def test_no_verdict_is_chosen_from_several(text, reason):
    with pytest.raises(Unparsable, match=reason):
        read_score(text)


def test_a_long_answer_is_read_in_linear_time():
    # Quadratic work on this many braces would take minutes.
    with pytest.raises(Unparsable):
        read_object('{"a":' * 400_000, "a")
    assert read_object('{"a": 1} ' * 200_000, "a") == {"a": 1}


@pytest.mark.parametrize("word", ["first", "First", " TIE "])
def test_a_choice_is_read_in_any_case(word):
    assert read_choice(f'{{"verdict": "{word}"}}', "verdict", ("first", "second", "tie")) in (
        "first",
        "tie",
    )


@pytest.mark.parametrize("value", ['"A"', '"first or second"', "1", "null", '["first"]'])
def test_another_choice_is_out_of_range(value):
    with pytest.raises(OutOfRange):
        read_choice(f'{{"verdict": {value}}}', "verdict", ("first", "second", "tie"))
