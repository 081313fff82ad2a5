"""Estimators against arithmetic done by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from califkit.metrics import (
    adjusted_win_rate,
    change_by_transition,
    distinct_2,
    identified,
    instruction_accuracy,
    interval_by_prompt,
    mean_and_std,
    nan_mean,
    pair_outcome,
    pairwise_auc,
    pointwise_information,
    prompt_accuracy,
    transitions,
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


def test_a_transition_names_base_then_trained():
    assert transitions([1, 0, 1, 0], [1, 1, 0, 0]).tolist() == [
        "pass_to_pass",
        "fail_to_pass",
        "pass_to_fail",
        "fail_to_fail",
    ]
    with pytest.raises(ValueError, match="2 base verdicts, but 1"):
        transitions([True, False], [True])


def test_the_change_is_averaged_within_each_transition():
    base, trained = [1, 1, 1, 0, 0], [1, 1, 1, 1, 0]
    table = change_by_transition(base, trained, [-1.0, -4.0, math.nan, -2.0, 3.0])
    assert table["pass_to_pass"] == (-2.5, 2), "the prompt without a score is left out"
    assert table["fail_to_pass"] == (-2.0, 1)
    assert table["fail_to_fail"] == (3.0, 1)
    mean, n = table["pass_to_fail"]
    assert math.isnan(mean) and n == 0
    with pytest.raises(ValueError, match="1 changes, but 2 prompts"):
        change_by_transition([1, 1], [1, 1], [0.0])


@pytest.mark.parametrize("first", ["first", "second", "tie", None])
@pytest.mark.parametrize("second", ["first", "second", "tie", None])
def test_a_win_needs_both_orders(first, second):
    expected = {("first", "second"): "win", ("second", "first"): "loss"}
    assert pair_outcome(first, second) == expected.get((first, second), "tie")


def test_a_verdict_has_three_values():
    with pytest.raises(ValueError, match="not 'A'"):
        pair_outcome("A", "second")


def test_a_tie_counts_half():
    assert adjusted_win_rate(0, 10, 0) == 50.0
    assert adjusted_win_rate(3, 0, 1) == 75.0
    for counts in ((0, 0, 0), (1, -1, 0)):
        with pytest.raises(ValueError, match="no pairs to average"):
            adjusted_win_rate(*counts)


# --- request identification ----------------------------------------------------------------------

NAN = math.nan
# Own request in column 0: best of three; second; tied with another for best; no answer.
GIVEN_REQUESTS = [[-1.0, -2.0, -3.0], [-2.0, -1.0, -3.0], [-1.0, -1.0, -2.0], [NAN, NAN, NAN]]


def test_an_answer_is_identified_when_no_request_makes_it_likelier():
    assert identified(GIVEN_REQUESTS).tolist() == pytest.approx([1, 0, 1 / 2, 1 / 3])


def test_the_auc_counts_the_requests_that_are_beaten():
    assert pairwise_auc(GIVEN_REQUESTS).tolist() == [1.0, 0.5, 0.75, 0.5]


def test_information_is_what_the_own_request_adds_to_the_mean_of_the_others():
    # p(y | x) = e^-4, the others e^-8 and e^-12; then with a single token.
    expected = -4 - math.log((math.exp(-8) + math.exp(-12)) / 2)
    single = -2 - math.log((math.exp(-1) + math.exp(-3)) / 2)
    found = pointwise_information([*GIVEN_REQUESTS[:2], GIVEN_REQUESTS[3]], [4, 1, 0])
    assert found.tolist() == pytest.approx([expected, single, 0.0])
    long = pointwise_information([[-1.0, -5.0]], [10_000])
    assert long.tolist() == [40_000.0], "probabilities that underflow"


def test_answers_that_know_nothing_of_their_requests_are_identified_by_chance():
    table = np.random.default_rng(0).normal(size=(20_000, 6))
    assert identified(table).mean() == pytest.approx(1 / 6, abs=0.01)
    assert pairwise_auc(table).mean() == pytest.approx(1 / 2, abs=0.01)
    assert pointwise_information(table, np.ones(20_000)).mean() < 0


@pytest.mark.parametrize("estimator", [identified, pairwise_auc])
def test_a_table_of_likelihoods_that_cannot_be_read_is_refused(estimator):
    with pytest.raises(ValueError, match="answer 1 has l given some of its requests only"):
        estimator([[-1.0, -2.0], [NAN, -2.0]])
    with pytest.raises(ValueError, match=r"at least two requests, got an array of \(2, 1\)"):
        estimator([[-1.0], [-2.0]])
    with pytest.raises(ValueError, match="no answers"):
        estimator([])


def test_repeats_of_a_prompt_are_not_further_prompts():
    values, prompts = [1.0, 0.0, 1.0, 0.0], ["a", "b", "c", "d"]
    once = interval_by_prompt(values, prompts, np.random.default_rng(0))
    repeated = interval_by_prompt(values * 25, prompts * 25, np.random.default_rng(0))
    assert once == repeated
    further = [f"{prompt}{i}" for i in range(25) for prompt in prompts]
    low, high = interval_by_prompt(values * 25, further, np.random.default_rng(0))
    assert high - low < 0.25 < once[1] - once[0]
