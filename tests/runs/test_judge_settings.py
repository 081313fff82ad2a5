"""Settings of a judge: what they refuse, and that a key put in the wrong place is not shown."""

import pytest
from pydantic import ValidationError

from califkit.runs.judge_settings import JudgeModel, JudgeSettings
from califkit.runs.params import Frozen

GOOD = {"name": "local", "model": "m", "base_url": "http://localhost:8000/v1"}


def refusal(**changes) -> ValidationError:
    with pytest.raises(ValidationError) as caught:
        JudgeSettings(**(GOOD | changes))
    return caught.value


@pytest.mark.parametrize(
    "changes",
    [
        {"structured": "yes"},
        {"max_tokens": 0},
        {"max_tokens_field": "n_predict"},
        {"temperature": -1},
        {"concurrency": 0},
        {"retries": -1},
        {"retries": True},
        {"timeout_s": 0},
        {"name": "a/b"},
        {"model": ""},
        {"base_url": "localhost:8000/v1"},
        {"base_url": "ftp://host/v1"},
        {"base_url": "http:///v1"},
        {"base_url": None},
        {"extra_body": {"temperature": 1}},
        {"max_cost": 1.0, "price_input": 1.0},
    ],
)
def test_a_value_that_cannot_work_is_refused(changes):
    message = str(refusal(**changes))
    assert next(iter(changes)) in message


@pytest.mark.parametrize(
    "changes",
    [
        {"api_key_env": "sk-SECRET123"},
        {"api_key_env": "SECRET123abc"},
        {"api_key": "sk-SECRET123"},
        {"base_url": "https://user:SECRET123@host/v1"},
        {"base_url": "https://host/v1?key=SECRET123"},
    ],
)
def test_a_key_in_the_wrong_place_is_refused_without_being_shown(changes):
    class Tree(Frozen):
        judges: tuple[JudgeSettings, ...]

    with pytest.raises(ValidationError) as caught:
        Tree(judges=[GOOD | changes])
    shown = str(caught.value) + repr(caught.value.errors())
    assert "SECRET123" not in shown
    assert next(iter(changes)) in shown


def test_the_identity_of_a_judge_is_what_can_change_its_answers():
    judge = JudgeSettings(**GOOD)
    moved = JudgeSettings(
        **GOOD | {"base_url": "https://other/v1", "concurrency": 99, "retries": 0}
    )
    other = JudgeSettings(**GOOD | {"temperature": 1.0})
    assert type(judge.identity()) is JudgeModel
    assert judge.identity() == moved.identity()
    assert judge.identity() != other.identity()
