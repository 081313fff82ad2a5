"""Every reward branch by branch, and what all of them have in common."""

# ruff: noqa: E741  (l is the paper's name for the log-likelihood)
import math
import typing

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from califkit.anchors.region import ZONES, confidence_region, exceeds_ceiling, zones
from califkit.rewards.rules import (
    METHODS,
    REGION_RULES,
    RewardRule,
    calif_reward,
    direct_bonus_reward,
    judge_reward,
    no_lower_dev_reward,
    no_lower_reward,
    no_upper_dev_reward,
    no_upper_reward,
)
from califkit.runs import params
from califkit.runs import settings as run_settings

NAN = math.nan

# Paper sections 2.3 and 2.4. What is paid: v = r_ver, b = r_ver + alpha * [r_ver > 0], 0 = nothing.
# Columns: calif, calif with reversed bounds kept, no_lower, no_upper, no_lower_dev, no_upper_dev.
TABLE = [
    # usual bounds
    (-4.0, -3.0, -1.0, "below", "v v b v v v"),
    (np.nextafter(-3.0, -9), -3.0, -1.0, "below", "v v b v v v"),
    (-3.0, -3.0, -1.0, "inside", "b b b b v b"),
    (-2.0, -3.0, -1.0, "inside", "b b b b v b"),
    (-1.0, -3.0, -1.0, "inside", "b b b b v b"),
    (np.nextafter(-1.0, 0), -3.0, -1.0, "above", "0 0 0 b 0 b"),
    (0.0, -3.0, -1.0, "above", "0 0 0 b 0 b"),
    # l0 = l1: a region of one point
    (-2.5, -2.0, -2.0, "below", "v v b v v v"),
    (-2.0, -2.0, -2.0, "inside", "b b b b v b"),
    (-1.5, -2.0, -2.0, "above", "0 0 0 b 0 b"),
    # reversed bounds: no region; a rule with one bound does not notice
    (-4.0, -1.0, -3.0, "reversed", "v v b v v v"),
    (-3.0, -1.0, -3.0, "reversed", "v v b v v v"),
    (np.nextafter(-3.0, 0), -1.0, -3.0, "reversed", "0 v 0 v 0 v"),
    (-2.0, -1.0, -3.0, "reversed", "0 v 0 v 0 v"),
    (-1.0, -1.0, -3.0, "reversed", "0 v 0 b 0 v"),
    (-0.5, -1.0, -3.0, "reversed", "0 v 0 b 0 v"),
    # nothing to compare: r_ver as it is; one missing bound switches off both, if both are used
    (NAN, -3.0, -1.0, "unbounded", "v v v v v v"),
    (NAN, -1.0, -3.0, "unbounded", "v v v v v v"),
    (-2.0, NAN, -1.0, "unbounded", "v v b v v v"),
    (-0.5, NAN, -1.0, "unbounded", "v v 0 v v v"),
    (-2.0, -3.0, NAN, "unbounded", "v v v b v v"),
    (-4.0, -3.0, NAN, "unbounded", "v v v v v v"),
    (-2.0, NAN, NAN, "unbounded", "v v v v v v"),
    (NAN, NAN, NAN, "unbounded", "v v v v v v"),
]

COLUMNS = [
    (RewardRule(), lambda r, l, l0, l1: calif_reward(r, l, l0, l1)),
    (
        RewardRule(reversed_bounds="keep"),
        lambda r, l, l0, l1: calif_reward(r, l, l0, l1, reversed_bounds="keep"),
    ),
    (RewardRule("no_lower"), lambda r, l, l0, l1: no_lower_reward(r, l, l1, 0.1)),
    (RewardRule("no_upper"), lambda r, l, l0, l1: no_upper_reward(r, l, l0, 0.1)),
    (RewardRule("no_lower_dev"), lambda r, l, l0, l1: no_lower_dev_reward(r, l, l0, l1)),
    (RewardRule("no_upper_dev"), lambda r, l, l0, l1: no_upper_dev_reward(r, l, l0, l1, 0.1)),
]


@pytest.mark.parametrize(("l", "l0", "l1", "zone", "paid"), TABLE)
def test_every_branch(l, l0, l1, zone, paid):
    assert str(zones(l, l0, l1)) == zone
    for (rule, reward), pays in zip(COLUMNS, paid.split(), strict=True):
        for r_ver in (0.2, 0.5, 1.0):
            expected = {"v": r_ver, "b": r_ver + 0.1, "0": 0.0}[pays]
            assert reward(r_ver, l, l0, l1) == pytest.approx(expected, abs=1e-15), rule
            assert rule(r_ver, l, l0, l1) == pytest.approx(expected, abs=1e-15), rule
        assert reward(0.0, l, l0, l1) == 0.0, "no bonus without a satisfied constraint"
    assert bool(exceeds_ceiling(l, l0, l1)) == (paid[0] == "0")


def test_zones_and_ceiling_take_the_margin_of_the_rule():
    l, l0, l1 = [-3.5, -2.9, -2.2, -1.6, -1.4], -3.0, -2.0
    expected = ["below", "inside", "inside", "inside", "above"]
    assert zones(l, l0, l1, ceiling_margin=0.5).tolist() == expected
    assert exceeds_ceiling(l, l0, l1, ceiling_margin=0.5).tolist() == [False] * 4 + [True]
    # Which bounds are reversed does not depend on it.
    assert str(zones(-1.0, -1.8, -2.0, ceiling_margin=0.5)) == "reversed"
    paid = RewardRule(ceiling_margin=0.5)(0.5, l, l0, l1)
    assert paid.tolist() == pytest.approx([0.5, 0.6, 0.6, 0.6, 0.0])


@pytest.mark.parametrize("method", ["inner_region", "outer_region"])
def test_a_confidence_region_pays_as_calif_does(method):
    l, l0, l1 = (np.array(column) for column in list(zip(*TABLE, strict=True))[:3])
    rewards = RewardRule(method)(0.5, l, l0, l1)
    expected = [{"v": 0.5, "b": 0.6, "0": 0.0}[row[-1][0]] for row in TABLE]
    assert rewards.tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("l", "l0", "l1", "expected"),
    [
        # usual: the region ends at -1 + 0.5
        (-3.5, -3.0, -1.0, 1.0),
        (-3.0, -3.0, -1.0, 1.1),
        (-1.0, -3.0, -1.0, 1.1),
        (-0.5, -3.0, -1.0, 1.1),
        (np.nextafter(-0.5, 0), -3.0, -1.0, 0.0),
        # reversed stays reversed, although the margin lifts the ceiling over l0
        (-2.25, -2.0, -2.25, 1.0),
        (-2.0, -2.0, -2.25, 1.0),
        (-1.75, -2.0, -2.25, 1.0),
        (np.nextafter(-1.75, 0), -2.0, -2.25, 0.0),
        # missing
        (-0.1, NAN, -1.0, 1.0),
        (-0.1, -3.0, NAN, 1.0),
        (NAN, -3.0, -1.0, 1.0),
    ],
)
def test_a_ceiling_margin_lifts_the_ceiling_and_widens_the_region(l, l0, l1, expected):
    assert calif_reward(1.0, l, l0, l1, ceiling_margin=0.5) == pytest.approx(expected)
    assert RewardRule(ceiling_margin=0.5)(1.0, l, l0, l1) == pytest.approx(expected)


def test_kept_reversed_bounds_and_a_margin_go_together():
    rewards = RewardRule(reversed_bounds="keep", ceiling_margin=0.5)(
        1.0, [-0.6, -0.4, -0.4], [-3.0, -3.0, -1.0], [-1.0, -1.0, -3.0]
    )
    assert rewards.tolist() == pytest.approx([1.1, 0.0, 1.0])


def test_the_direct_bonus_is_the_likelihood_times_alpha():
    l = [-math.log(2), -math.log(10), 0.0, NAN, 0.0, NAN]
    r_ver = [1.0, 0.5, 0.25, 0.5, 0.0, 0.0]
    expected = [1.0 + 0.4 / 2, 0.5 + 0.4 / 10, 0.25 + 0.4, 0.5, 0.0, 0.0]
    assert direct_bonus_reward(r_ver, l, 0.4).tolist() == pytest.approx(expected)
    assert RewardRule("direct_bonus", 0.4)(r_ver, l, NAN, NAN).tolist() == pytest.approx(expected)


def test_a_judge_pays_strictly_above_its_mean_score():
    scores = [6.0, 6.4, np.nextafter(6.4, 9), 7.0, NAN, 10.0]
    r_ver = [1.0, 1.0, 1.0, 0.5, 0.5, 0.0]
    rewards = judge_reward(r_ver, scores, tau=6.4, alpha=0.1)
    assert rewards.tolist() == pytest.approx([1.0, 1.0, 1.1, 0.6, 0.5, 0.0])


def test_whole_thresholds_of_a_judge_are_half_a_point_below():
    rewards = judge_reward(1.0, np.arange(1.0, 11.0), tau=8 - 0.5, alpha=0.1)
    assert rewards.tolist() == pytest.approx([1.0] * 7 + [1.1] * 3)


def test_a_judge_without_a_mean_score_is_refused():
    with pytest.raises(ValueError, match="tau is NaN"):
        judge_reward(1.0, 5.0, tau=NAN, alpha=0.1)


def test_if_rlvr_pays_the_fraction_and_looks_at_no_likelihood():
    rule = RewardRule("if_rlvr", alpha=None)
    assert rule([0.0, 0.5, 1.0], None, None, None).tolist() == [0.0, 0.5, 1.0]


def test_the_size_of_the_bonus_is_alpha():
    assert calif_reward(0.25, -2.0, -3.0, -1.0, alpha=0.7) == pytest.approx(0.95)
    for method in ("calif", "no_lower", "no_upper", "no_upper_dev", *REGION_RULES):
        assert RewardRule(method, alpha=0.7)(0.25, -2.0, -3.0, -1.0) == pytest.approx(0.95)


def test_rows_are_scored_each_against_its_own_bounds():
    result = calif_reward([1, 0.5, 1, 0.5], [-2, -2, -2, -2], [-3, -1, -4, NAN], [-1, -0.5, -3, -1])
    assert result.tolist() == pytest.approx([1.1, 0.5, 0.0, 0.5])


# Confidence regions (section 6). Draws at mean +- 1: s = sqrt(n / (n - 1)), so h = q / sqrt(n - 1).
EIGHT = np.array([1.0, -1.0] * 4)
T_8 = 2.364624 / math.sqrt(7)
NORMAL_8 = 1.959964 / math.sqrt(7)


@pytest.mark.parametrize(
    ("kind", "quantile", "lower", "upper"),
    [
        ("inner", "t", -4 + T_8, -1 - T_8),
        ("outer", "t", -4 - T_8, -1 + T_8),
        ("inner", "normal", -4 + NORMAL_8, -1 - NORMAL_8),
        ("outer", "normal", -4 - NORMAL_8, -1 + NORMAL_8),
    ],
)
def test_a_region_between_confidence_intervals(kind, quantile, lower, upper):
    bounds = confidence_region([-4 + EIGHT], [-1 + EIGHT], kind, quantile)
    assert [bound.tolist() for bound in bounds] == [
        pytest.approx([lower], abs=1e-6),
        pytest.approx([upper], abs=1e-6),
    ]


def test_student_t_is_the_default_and_follows_the_number_of_draws():
    # One degree of freedom for two draws: 12.7062; the other side keeps its eight.
    lower, upper = confidence_region([[-5.0, -3.0]], [-1 + EIGHT], "outer")
    assert lower.tolist() == pytest.approx([-4 - 12.7062], abs=1e-4)
    assert upper.tolist() == pytest.approx([-1 + T_8], abs=1e-6)


def test_intervals_that_cross_leave_reversed_bounds():
    lower, upper = confidence_region([-1.5 + EIGHT], [-1 + EIGHT], "inner")
    assert lower > upper
    assert RewardRule("inner_region")(1.0, [-3.0, -1.25], lower, upper).tolist() == [1.0, 0.0]


def test_a_prompt_with_a_missing_draw_has_no_bounds():
    constrained = np.tile(-4 + EIGHT, (3, 1))
    natural = np.tile(-1 + EIGHT, (3, 1))
    constrained[0, 2] = NAN
    natural[2, 7] = NAN
    lower, upper = confidence_region(constrained, natural, "inner")
    assert np.isnan(lower).tolist() == np.isnan(upper).tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[-1.0, -2.0]], [[-1.0, -2.0]], "middle"), "kind must be 'inner' or 'outer'"),
        (([[-1.0, -2.0]], [[-1.0, -2.0]], "inner", "z"), "quantile must be 't' or 'normal'"),
        (([-1.0, -2.0], [-1.0, -2.0], "inner"), r"shape \(prompts, samples\)"),
        (([[-1.0]], [[-1.0]], "inner"), "at least 2 samples each, got"),
        (([[-1.0, -2.0]], [[-1.0, -2.0]] * 2, "inner"), r"got \(1, 2\) and \(2, 2\)"),
    ],
)
def test_draws_that_make_no_region_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        confidence_region(*arguments)


# The rule.
def test_methods_and_options_are_those_of_the_settings():
    assert (*METHODS, *run_settings.JUDGE_METHODS) == typing.get_args(run_settings.Method)
    assert REGION_RULES == ("calif", *run_settings.REGION_METHODS)
    assert RewardRule("calif", 0.1, **run_settings.RewardOptions().model_dump()) == RewardRule()
    options = run_settings.RewardOptions(
        reversed_bounds="keep", ceiling_margin=0.7, bonus_requires_compliant_anchor=True
    )
    rule = RewardRule(method="outer_region", alpha=0.2, **options.model_dump())
    assert rule == RewardRule("outer_region", 0.2, "keep", 0.7, True)


def test_every_training_run_of_the_settings_has_a_rule():
    settings = params.Settings(methods=METHODS)
    for stage in settings.train_stages():
        options = stage.reward.model_dump() if stage.reward else {}
        assert RewardRule(method=stage.method, alpha=stage.alpha, **options).method in METHODS


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "clif"}, "unknown method 'clif'; known: if_rlvr, calif, direct_bonus, no_low"),
        ({"alpha": None}, "method 'calif' needs a positive alpha, got None"),
        ({"method": "no_lower", "alpha": None}, "'no_lower' needs a positive alpha"),
        ({"alpha": 0.0}, "alpha must be positive, got 0.0"),
        ({"method": "if_rlvr", "alpha": -1.0}, "alpha must be positive, got -1.0"),
        ({"reversed_bounds": "drop"}, "reversed_bounds must be None or 'keep', got 'drop'"),
        ({"ceiling_margin": -0.1}, "ceiling_margin must be 0 or more nats, got -0.1"),
        (
            {"method": "no_lower", "reversed_bounds": "keep"},
            "method 'no_lower' does not use reversed_bounds; only these do: calif, inner_region",
        ),
        (
            {"method": "if_rlvr", "ceiling_margin": 0.7, "bonus_requires_compliant_anchor": True},
            "'if_rlvr' does not use ceiling_margin, bonus_requires_compliant_anchor",
        ),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        RewardRule(**arguments)


@pytest.mark.parametrize("method", REGION_RULES)
def test_the_bonus_can_ask_for_an_anchor_that_keeps_its_own_constraints(method):
    rule = RewardRule(method, bonus_requires_compliant_anchor=True)
    anchor = [1.0, 0.5, NAN, 0.0, 0.5, 1.0, 0.5]
    l = [-2.0, -2.0, -2.0, -2.0, -0.5, -0.5, -4.0]
    rewards = rule(0.5, l, -3.0, -1.0, anchor_r_ver=anchor)
    # Paid for the first only; zeroed rollouts stay zeroed and those below l0 keep r_ver.
    assert rewards.tolist() == pytest.approx([0.6, 0.5, 0.5, 0.5, 0.0, 0.0, 0.5])


def test_verdicts_of_anchors_are_asked_for_only_where_they_count():
    assert RewardRule()(0.5, -2.0, -3.0, -1.0, anchor_r_ver=[0.0]) == pytest.approx(0.6)
    rule = RewardRule(bonus_requires_compliant_anchor=True)
    with pytest.raises(ValueError, match="needs anchor_r_ver"):
        rule(0.5, -2.0, -3.0, -1.0)
    with pytest.raises(ValueError, match=r"anchor_r_ver must lie in \[0, 1\], got \[100"):
        rule(0.5, -2.0, -3.0, -1.0, anchor_r_ver=100.0)


# What all rewards have in common.
RULES = [{"method": method} for method in METHODS] + [
    {"method": "calif", **options}
    for options in (
        {"reversed_bounds": "keep"},
        {"ceiling_margin": 0.5},
        {"bonus_requires_compliant_anchor": True},
        {"reversed_bounds": "keep", "ceiling_margin": 0.5, "bonus_requires_compliant_anchor": True},
    )
]
every_rule = pytest.mark.parametrize(
    "rule", RULES, ids=lambda rule: "-".join(map(str, rule.values()))
)
# No deadline: other processes may share the machine.
quick = settings(max_examples=40, deadline=None)
# Few distinct values, so that ties and both orders of the bounds come up.
LEVELS = st.sampled_from([-3.0, -2.0, -1.5, -1.0, -0.25, NAN])
ANCHORS = st.sampled_from([0.0, 0.5, 1.0, NAN])
ROWS = st.lists(
    st.tuples(st.floats(0, 1), LEVELS, LEVELS, LEVELS, ANCHORS, st.integers()),
    min_size=1,
    max_size=12,
)
ALPHAS = st.sampled_from([0.001, 0.01, 0.1, 0.2, 0.5, 1.0]) | st.floats(1e-3, 10)


def columns_of(rows):
    return [np.array(column) for column in zip(*rows, strict=True)][:5]


@every_rule
@quick
@given(rows=ROWS, alpha=ALPHAS)
def test_a_reward_is_a_number_between_0_and_1_plus_alpha(rule, rows, alpha):
    r_ver, *others = columns_of(rows)
    rewards = RewardRule(**rule, alpha=alpha)(r_ver, *others)
    assert rewards.shape == r_ver.shape
    assert ((rewards >= 0) & (rewards <= 1 + alpha)).all()
    assert (rewards[r_ver == 0] == 0).all()
    assert set(zones(*others[:3])) <= set(ZONES)


@every_rule
@quick
@given(rows=ROWS)
def test_the_order_of_rows_is_irrelevant(rule, rows):
    reward = RewardRule(**rule)
    order = sorted(range(len(rows)), key=lambda i: rows[i][5])
    columns = columns_of(rows)
    together = reward(*columns)
    assert together[order].tolist() == reward(*(c[order] for c in columns)).tolist()
    assert together.tolist() == [float(reward(*row[:5])) for row in rows]


@every_rule
@quick
@given(a=st.floats(0, 1), b=st.floats(0, 1), l=LEVELS, l0=LEVELS, l1=LEVELS, anchor=ANCHORS)
def test_more_constraints_never_cost_reward_at_equal_likelihood(rule, a, b, l, l0, l1, anchor):
    reward = RewardRule(**rule)
    low, high = sorted([a, b])
    assert reward(low, l, l0, l1, anchor) <= reward(high, l, l0, l1, anchor)


@pytest.mark.parametrize("rule", [r for r in RULES if r["method"] != "direct_bonus"])
@quick
@given(
    r_ver=st.floats(0, 1),
    l0=st.floats(-20, -1),
    width=st.floats(0, 10),
    share=st.floats(0, 1),
    alpha=ALPHAS,
    anchor=ANCHORS,
)
def test_both_ends_of_the_region_pay_like_its_inside(rule, r_ver, l0, width, share, alpha, anchor):
    l1 = l0 + width
    inside = min(max(l0 + share * width, l0), l1)
    rewards = RewardRule(**rule, alpha=alpha)([r_ver] * 3, [l0, inside, l1], l0, l1, anchor)
    assert len(set(rewards.tolist())) == 1


@quick
@given(
    r_ver=st.floats(0, 1),
    scores=st.lists(st.just(NAN) | st.integers(1, 10), min_size=1),
    tau=st.floats(1, 10),
    alpha=ALPHAS,
)
def test_a_judge_never_takes_and_never_pays_for_nothing(r_ver, scores, tau, alpha):
    rewards = judge_reward(r_ver, scores, tau, alpha)
    assert set(rewards.tolist()) <= {r_ver, r_ver + alpha}
    assert (judge_reward(0.0, scores, tau, alpha) == 0).all()


@quick
@given(
    st.lists(st.floats(-9, 0), min_size=3, max_size=3),
    st.lists(st.floats(-9, 0), min_size=3, max_size=3),
)
def test_the_outer_region_holds_both_means_and_the_inner_region(constrained, natural):
    inner, outer = (
        [float(b[0]) for b in confidence_region([constrained], [natural], k)]
        for k in ("inner", "outer")
    )
    means = np.mean(constrained), np.mean(natural)
    assert outer[0] <= means[0] <= inner[0]
    assert inner[1] <= means[1] <= outer[1]
    assert [(i + o) / 2 for i, o in zip(inner, outer, strict=True)] == pytest.approx(means)


CALLS = [
    lambda r_ver, alpha: calif_reward(r_ver, -2.0, -3.0, -1.0, alpha),
    lambda r_ver, alpha: direct_bonus_reward(r_ver, -2.0, alpha),
    lambda r_ver, alpha: no_lower_reward(r_ver, -2.0, -1.0, alpha),
    lambda r_ver, alpha: no_upper_reward(r_ver, -2.0, -3.0, alpha),
    lambda r_ver, alpha: no_upper_dev_reward(r_ver, -2.0, -3.0, -1.0, alpha),
    lambda r_ver, alpha: judge_reward(r_ver, 7.0, 6.5, alpha),
    lambda r_ver, alpha: RewardRule(alpha=alpha)(r_ver, -2.0, -3.0, -1.0),
]


@pytest.mark.parametrize("alpha", [0, -0.1, NAN, math.inf])
@pytest.mark.parametrize("call", CALLS)
def test_alpha_has_to_be_positive(call, alpha):
    with pytest.raises(ValueError, match="alpha must be positive, got"):
        call(1.0, alpha)


@pytest.mark.parametrize("r_ver", [-0.1, 1.1, NAN])
def test_r_ver_has_to_be_a_fraction(r_ver):
    alone = [
        lambda r_ver, _: no_lower_dev_reward(r_ver, -2.0, -3.0, -1.0),
        lambda r_ver, _: RewardRule("if_rlvr")(r_ver, -2.0, -3.0, -1.0),
    ]
    for call in [*CALLS, *alone]:
        with pytest.raises(ValueError, match=r"r_ver must lie in \[0, 1\], got"):
            call([1.0, r_ver], 0.1)


@pytest.mark.parametrize("margin", [-0.1, NAN, math.inf])
def test_a_margin_cannot_be_negative(margin):
    with pytest.raises(ValueError, match="ceiling_margin must be 0 or more nats, got"):
        calif_reward(1.0, -2.0, -3.0, -1.0, ceiling_margin=margin)
