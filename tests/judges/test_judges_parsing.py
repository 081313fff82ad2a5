"""Answers of judges as text: what is read from them, and what is refused."""

import pytest

from califkit.judges.parsing import (
    OutOfRange,
    Unparsable,
    check_schema,
    read_choice,
    read_fields,
    read_object,
    read_score,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"reasoning": "Fine.", "score": 7}', 7),
        ('{"score": 1}', 1),
        ('{"score": 10}', 10),
        ('{"score": "7"}', 7),
        ('```json\n{"score": 7}\n```', 7),
        ('I would say 3 at first. {"score": 7} That is all, 9 of 10 agree.', 7),
        ('The format is {"score": 1}. My verdict: {"score": 7}', 7),
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


def test_a_long_answer_is_read_in_linear_time():
    # Quadratic work on this many braces would take minutes.
    with pytest.raises(Unparsable):
        read_object('{"a":' * 400_000)
    assert read_object('{"a": 1} ' * 200_000) == {"a": 1}


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


SCHEMA = {
    "type": "object",
    "properties": {
        "reason": {"type": "string"},
        "n": {"type": "integer"},
        "answers": {"type": "array", "items": {"type": "string", "enum": ["YES", "NO"]}},
    },
    "required": ["answers"],
}


def test_an_object_that_fits_its_schema_is_returned_whole():
    text = 'So: {"answers": ["YES", "NO"], "n": 2, "more": null}'
    assert read_fields(text, SCHEMA) == {"answers": ["YES", "NO"], "n": 2, "more": None}


@pytest.mark.parametrize(
    ("text", "problem", "message"),
    [
        ('{"n": 2}', Unparsable, "answers"),
        ('{"answers": "YES"}', Unparsable, "answers: 'YES' is no array"),
        ('{"answers": [], "n": true}', Unparsable, "n: True is no integer"),
        ('{"answers": [], "n": NaN}', Unparsable, "n: nan is no integer"),
        ('{"answers": [], "reason": null}', Unparsable, "reason: None is no string"),
        ('{"answers": ["YES", "MAYBE"]}', OutOfRange, r"answers\[1\]: 'MAYBE'"),
    ],
)
def test_an_object_that_does_not_fit_names_the_field(text, problem, message):
    with pytest.raises(problem, match=message):
        read_fields(text, SCHEMA)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "number"},
        {"type": "object", "additionalProperties": False},
        {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}},
        {"type": "array", "items": {"$ref": "#/x"}},
    ],
)
def test_a_schema_that_some_endpoints_refuse_is_refused_here(schema):
    with pytest.raises(ValueError, match="judge schema"):
        check_schema(schema)
