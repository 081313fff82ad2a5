"""Estimators against arithmetic done by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from califkit.metrics import (
    distinct_2,
    instruction_accuracy,
    mean_and_std,
    nan_mean,
    prompt_accuracy,
)

VERDICTS = [[True], [True, True], [True, False], [False, False, True]]


def test_a_prompt_counts_when_all_its_constraints_hold():
    assert prompt_accuracy(VERDICTS) == 50.0
    assert prompt_accuracy([[False], [True], [True]]) == pytest.approx(200 / 3)


def test_constraints_are_pooled_over_prompts():
    # 1 + 2 + 1 + 1 of 1 + 2 + 2 + 3; the mean of the prompts' shares would be 70.8.
    assert instruction_accuracy(VERDICTS) == 62.5


@pytest.mark.parametrize("accuracy", [prompt_accuracy, instruction_accuracy])
def test_an_accuracy_over_nothing_is_refused(accuracy):
    with pytest.raises(ValueError, match="no (prompts|constraints) to average"):
        accuracy([])


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([1, 2], 1.0),
        ([1, 2, 3, 4], 1.0),
        ([7, 7, 7, 7, 7], 1 / 4),
        ([1, 2, 1, 2, 1, 2], 2 / 5),
        ([1, 2, 3, 1, 2, 4], 4 / 5),
    ],
)
def test_distinct_2(tokens, expected):
    assert distinct_2(tokens) == pytest.approx(expected)


@pytest.mark.parametrize("tokens", [[], [5]])
def test_distinct_2_of_less_than_a_pair_is_undefined(tokens):
    assert math.isnan(distinct_2(tokens))


@given(st.lists(st.integers(0, 3), min_size=2))
def test_distinct_2_is_a_share_and_symmetric(tokens):
    assert 0 < distinct_2(tokens) <= 1
    assert distinct_2(tokens[::-1]) == distinct_2(tokens)


def test_the_deviation_is_that_of_a_sample():
    # Squared deviations 4 + 0 + 4 over n - 1 = 2; the population formula would give 1.63.
    assert mean_and_std([24.0, 26.0, 28.0]) == (26.0, 2.0)
    mean, std = mean_and_std([1.0, 2.0])
    assert (mean, std) == (1.5, pytest.approx(math.sqrt(0.5)))


def test_one_run_has_no_deviation():
    mean, std = mean_and_std([5.0])
    assert mean == 5.0
    assert math.isnan(std)


def test_missing_runs_are_refused():
    with pytest.raises(ValueError, match="no runs to average"):
        mean_and_std([])
    with pytest.raises(ValueError, match=r"contain NaN: \[1.0, nan\]"):
        mean_and_std([1.0, math.nan])


def test_a_mean_over_what_is_there():
    assert nan_mean([1.0, math.nan, 4.0]) == 2.5
    assert math.isnan(nan_mean([math.nan]))
    assert math.isnan(nan_mean([]))
