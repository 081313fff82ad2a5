"""The rewards branch by branch."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from califkit.rewards import (
    ZONES,
    calif_reward,
    exceeds_ceiling,
    zones,
)

NAN = math.nan


# Paper section 2.3, alpha = 0.1; l0 = -3, l1 = -1 is a usual case, l0 = -1, l1 = -3 a reversed one.
@pytest.mark.parametrize(
    ("l", "l0", "l1", "zone", "factor", "bonus"),
    [
        # usual
        (-4.0, -3.0, -1.0, "below", 1, 0),
        (np.nextafter(-3.0, -9), -3.0, -1.0, "below", 1, 0),
        (-3.0, -3.0, -1.0, "inside", 1, 0.1),
        (-2.0, -3.0, -1.0, "inside", 1, 0.1),
        (-1.0, -3.0, -1.0, "inside", 1, 0.1),
        (np.nextafter(-1.0, 0), -3.0, -1.0, "above", 0, 0),
        (0.0, -3.0, -1.0, "above", 0, 0),
        # l0 = l1: a region of one point
        (-2.5, -2.0, -2.0, "below", 1, 0),
        (-2.0, -2.0, -2.0, "inside", 1, 0.1),
        (-1.5, -2.0, -2.0, "above", 0, 0),
        # reversed: no bonus anywhere, zero above l1
        (-4.0, -1.0, -3.0, "reversed", 1, 0),
        (-3.0, -1.0, -3.0, "reversed", 1, 0),
        (np.nextafter(-3.0, 0), -1.0, -3.0, "reversed", 0, 0),
        (-2.0, -1.0, -3.0, "reversed", 0, 0),
        (-1.0, -1.0, -3.0, "reversed", 0, 0),
        (-0.5, -1.0, -3.0, "reversed", 0, 0),
        # nothing to compare: r_ver as it is, both bounds off
        (NAN, -3.0, -1.0, "unbounded", 1, 0),
        (NAN, -1.0, -3.0, "unbounded", 1, 0),
        (-2.0, NAN, -1.0, "unbounded", 1, 0),
        (-0.5, NAN, -1.0, "unbounded", 1, 0),
        (-2.0, -3.0, NAN, "unbounded", 1, 0),
        (-4.0, -3.0, NAN, "unbounded", 1, 0),
        (-2.0, NAN, NAN, "unbounded", 1, 0),
        (NAN, NAN, NAN, "unbounded", 1, 0),
    ],
)
def test_every_branch(l, l0, l1, zone, factor, bonus):  # noqa: E741
    assert str(zones(l, l0, l1)) == zone
    for r_ver in (0.2, 0.5, 1.0):
        assert calif_reward(r_ver, l, l0, l1) == pytest.approx(factor * r_ver + bonus, abs=1e-15)
    assert calif_reward(0.0, l, l0, l1) == 0.0, "no bonus without a satisfied constraint"
    assert bool(exceeds_ceiling(l, l0, l1)) == (factor == 0)


def test_the_size_of_the_bonus_is_alpha():
    assert calif_reward(0.25, -2.0, -3.0, -1.0, alpha=0.7) == pytest.approx(0.95)


def test_rows_are_scored_each_against_its_own_bounds():
    result = calif_reward([1, 0.5, 1, 0.5], [-2, -2, -2, -2], [-3, -1, -4, NAN], [-1, -0.5, -3, -1])
    assert result.tolist() == pytest.approx([1.1, 0.5, 0.0, 0.5])


@pytest.mark.parametrize("alpha", [0, -0.1, NAN])
def test_alpha_has_to_be_positive(alpha):
    with pytest.raises(ValueError, match="alpha must be positive, got"):
        calif_reward(1.0, -2.0, -3.0, -1.0, alpha=alpha)


@pytest.mark.parametrize("r_ver", [-0.1, 1.1, NAN])
def test_r_ver_has_to_be_a_fraction(r_ver):
    with pytest.raises(ValueError, match=r"r_ver must lie in \[0, 1\], got"):
        calif_reward([1.0, r_ver], -2.0, -3.0, -1.0)


# Few distinct values, so that ties and both orders of the bounds come up.
LEVELS = st.sampled_from([-3.0, -2.0, -1.5, -1.0, -0.25, NAN])
ROWS = st.lists(
    st.tuples(st.floats(0, 1), LEVELS, LEVELS, LEVELS, st.integers()), min_size=1, max_size=12
)


@given(ROWS, st.floats(1e-3, 10))
def test_a_reward_is_a_number_between_0_and_1_plus_alpha(rows, alpha):
    r_ver, l, l0, l1, _ = map(np.array, zip(*rows, strict=True))  # noqa: E741
    rewards = calif_reward(r_ver, l, l0, l1, alpha)
    assert rewards.shape == r_ver.shape
    assert ((rewards >= 0) & (rewards <= 1 + alpha)).all()
    assert (rewards[r_ver == 0] == 0).all()
    assert set(zones(l, l0, l1)) <= set(ZONES)


@given(ROWS)
def test_the_order_of_rows_is_irrelevant(rows):
    order = sorted(range(len(rows)), key=lambda i: rows[i][4])
    columns = [np.array(c) for c in zip(*rows, strict=True)][:4]
    together = calif_reward(*columns)
    assert together[order].tolist() == calif_reward(*(c[order] for c in columns)).tolist()
    assert together.tolist() == [float(calif_reward(*row[:4])) for row in rows]


@given(st.floats(0, 1), st.floats(0, 1), LEVELS, LEVELS, LEVELS)
def test_more_constraints_never_cost_reward_at_equal_likelihood(a, b, l, l0, l1):  # noqa: E741
    low, high = sorted([a, b])
    assert calif_reward(low, l, l0, l1) <= calif_reward(high, l, l0, l1)
