"""Statistics of a step and alarms of a run, with the arithmetic written out."""

import math

import numpy as np
import pytest

from califkit.anchors.region import ZONES
from califkit.rewards.statistics import (
    LENGTH_FACTOR,
    LOW_ENTROPY,
    START_POSITION,
    TAX_STEPS,
    alarms,
    step_statistics,
)


def rollout(group, r_ver, reward, **given):
    row = {
        "group": group,
        "r_ver": r_ver,
        "reward": reward,
        "loglik": -2.0,
        "l0": -3.0,
        "l1": -1.0,
        "zone": "inside",
        "tokens": 10,
        "distinct_2": 0.5,
        "clipped": False,
        "types": {},
    }
    assert set(given) <= set(row)
    return row | given


REVERSED = {"l0": -1.0, "l1": -3.0, "zone": "reversed"}
NO_BOUNDS = {"l0": None, "l1": None, "zone": "unbounded"}
# Three prompts of four rollouts under CaLIF with alpha = 0.1.
ROWS = [
    # usual bounds: inside, above, below, inside but nothing followed
    rollout("a", 1.0, 1.1, loglik=-2.0, types={"words": [2, 2], "format": [1, 1]}),
    rollout("a", 1.0, 0.0, loglik=-0.5, zone="above", types={"words": [2, 2], "format": [1, 1]}),
    rollout("a", 0.5, 0.5, loglik=-4.0, zone="below", types={"words": [1, 2], "format": [0, 1]}),
    rollout("a", 0.0, 0.0, loglik=-1.5, types={"words": [0, 2], "format": [0, 1]}),
    # reversed bounds: the second and third lie above l1 = -3
    rollout("b", 1.0, 1.0, loglik=-4.0, **REVERSED, types={"words": [1, 1]}, tokens=30),
    rollout("b", 1.0, 0.0, loglik=-2.0, **REVERSED, types={"words": [1, 1]}, tokens=30),
    rollout("b", 0.0, 0.0, loglik=-2.0, **REVERSED, types={"words": [0, 1]}, distinct_2=None),
    rollout("b", 1.0, 1.0, loglik=-5.0, **REVERSED, types={"words": [1, 1]}, clipped=True),
    # no bounds, and one answer without text
    rollout("c", 0.5, 0.5, **NO_BOUNDS, types={"count": [1, 2]}),
    rollout("c", 0.5, 0.5, **NO_BOUNDS, types={"count": [1, 2]}, distinct_2=0.9),
    rollout("c", 0.5, 0.5, **NO_BOUNDS, types={"count": [1, 2]}, clipped=True),
    rollout("c", 0.5, 0.5, **NO_BOUNDS | {"loglik": None}, types={"count": [1, 2]}, tokens=0),
]


def test_every_number_of_a_step():
    # Ten rollouts have r_ver > 0. Sign flips: the zeroed one of a, and the zeroed one of b.
    expected = {
        "r_ver": (2.5 + 3.0 + 2.0) / 12,
        "loglik": -(2 + 0.5 + 4 + 1.5 + 4 + 2 + 2 + 5 + 2 + 2 + 2) / 11,
        "distinct_2": (10 * 0.5 + 0.9) / 11,
        "tokens": (9 * 10 + 2 * 30 + 0) / 12,
        "clipped": 2 / 12,
        "above_ceiling": 2 / 12,
        "reward_minus_r_ver": (0.1 - 1.0 - 1.0) / 12,
        "zone/below": 1 / 12,
        "zone/inside": 2 / 12,
        "zone/above": 1 / 12,
        "zone/reversed": 4 / 12,
        "zone/unbounded": 4 / 12,
        "zeroed": 2 / 10,
        "zeroed/usual": 1 / 10,
        "zeroed/reversed": 1 / 10,
        "sign_flips": 2 / 12,
        "groups_with_equal_r_ver": 1 / 3,
        "groups_with_varying_bonus": 1 / 3,
        # (l1 - l) / 2 for l = -2, -0.5, -4, -1.5: 0.5, -0.25, 1.5, 0.25
        "region_position": (0.25 + 0.5) / 2,
        "r_ver/count": 4 / 8,
        "r_ver/format": 2 / 4,
        "r_ver/words": (5 + 3) / (8 + 4),
    }
    assert step_statistics(ROWS) == pytest.approx(expected)


def test_a_step_is_the_same_in_any_order_of_its_rollouts():
    # Groups may come interleaved from several processes.
    mixed = [*ROWS[1::2], *ROWS[::2][::-1]]
    assert step_statistics(mixed) == pytest.approx(step_statistics(ROWS))


def test_what_is_undefined_is_left_out_but_for_what_every_step_logs():
    rows = [
        rollout("a", 0.0, 0.0, loglik=None, zone="unbounded", distinct_2=None),
        rollout("b", 0.0, 0.0, loglik=None, l0=-1.0, l1=-1.0, zone="unbounded", distinct_2=None),
    ]
    result = step_statistics(rows)
    assert {k for k, v in result.items() if math.isnan(v)} == {"loglik", "distinct_2"}
    assert set(result) == {
        *("r_ver", "loglik", "distinct_2", "tokens", "clipped", "above_ceiling"),
        *("reward_minus_r_ver", "sign_flips", "groups_with_equal_r_ver"),
        "groups_with_varying_bonus",
        *(f"zone/{zone}" for zone in ZONES),
    }


def test_a_region_without_width_has_no_position():
    rows = [
        rollout("a", 1.0, 1.0, loglik=-1.5, l0=-1.0, l1=-1.0, zone="below"),
        rollout("a", 1.0, 1.0, loglik=-3.5, zone="below"),
        rollout("a", 1.0, 1.0, loglik=-3.5, **REVERSED),
    ]
    assert step_statistics(rows)["region_position"] == (-1.0 + 3.5) / 2


def test_zeroing_without_reversed_bounds_is_all_usual():
    rows = [rollout("a", 1.0, 0.0, loglik=-0.5, zone="above"), rollout("a", 1.0, 1.1)]
    result = step_statistics(rows)
    assert (result["zeroed"], result["zeroed/usual"], result["zeroed/reversed"]) == (0.5, 0.5, 0.0)
    # A rule that uses l1 alone can zero a prompt without l0; the parts add up all the same.
    rows[0] |= {"l0": None, "zone": "unbounded"}
    result = step_statistics(rows)
    assert (result["zeroed"], result["zeroed/usual"], result["zeroed/reversed"]) == (0.5, 0.5, 0.0)


def test_a_reward_that_keeps_reversed_bounds_zeroes_nothing_though_l_is_above_the_ceiling():
    result = step_statistics([rollout("a", 1.0, 1.0, **REVERSED), rollout("a", 0.5, 0.5)])
    assert (result["above_ceiling"], result["zeroed"]) == (0.5, 0.0)


def test_one_zeroed_among_eight_correct_flips_one_sign():
    rows = [rollout("a", 1.0, 1.0) for _ in range(7)] + [rollout("a", 0.9, 0.0)]
    assert step_statistics(rows)["sign_flips"] == 0, "r_ver below the mean: rightly negative"
    rows = [*rows[:6], rollout("a", 1.0, 0.0), rollout("a", 0.9, 0.9)]
    assert step_statistics(rows)["sign_flips"] == 1 / 8


def test_rounding_of_a_mean_is_no_sign_flip():
    # Seven equal numbers of which each lies an ulp above, or below, their mean in floats.
    high, low = 0.2, 0.2 + 0.1
    assert np.mean([high] * 7) < high and np.mean([low] * 7) > low
    equal = [rollout("a", high, low) for _ in range(7)]
    one_zeroed = [rollout("a", high, 0.0), *equal[1:]]
    one_better = [rollout("a", 1.0, low), *equal[1:]]
    for rows in (equal, one_zeroed, one_better):
        assert step_statistics(rows)["sign_flips"] == 0


def test_a_step_without_rollouts_or_with_an_unknown_zone_is_refused():
    with pytest.raises(ValueError, match="no rollouts to describe"):
        step_statistics([])
    with pytest.raises(ValueError, match=r"unknown zone \['over'\]; known: below, inside"):
        step_statistics([*ROWS, rollout("d", 1.0, 1.0, zone="over")])


def test_a_bonus_varies_only_among_rollouts_that_follow_something():
    rows = [
        rollout("all", 1.0, 1.1),
        rollout("all", 0.7, 0.7 + 0.1),  # another float than 1.1 - 1.0
        rollout("zero", 0.5, 0.6),
        rollout("zero", 0.0, 0.0),
        rollout("some", 1.0, 1.1),
        rollout("some", 1.0, 1.0),
        rollout("none", 0.0, 0.0),
    ]
    assert step_statistics(rows)["groups_with_varying_bonus"] == 1 / 4


def test_the_bonus_that_goes_to_prompts_with_a_violating_anchor():
    rows = [
        rollout("a", 1.0, 1.1) | {"anchor_r_ver": 0.5},
        rollout("a", 0.5, 0.5) | {"anchor_r_ver": 0.5},
        rollout("b", 1.0, 1.05) | {"anchor_r_ver": 1.0},
        rollout("c", 1.0, 1.05) | {"anchor_r_ver": None},
        rollout("d", 1.0, 0.0, zone="above") | {"anchor_r_ver": 0.0},
    ]
    share = step_statistics(rows)["bonus/violating_anchor"]
    assert share == pytest.approx(0.1 / (0.1 + 0.05 + 0.05))
    for unpaid in (rows[1:2], ROWS):  # no bonus; no anchor known
        assert "bonus/violating_anchor" not in step_statistics(unpaid)


def test_rollouts_are_compared_with_their_anchors_in_length():
    lengths = [(50, 100), (300, 100), (80, 20), (0, 100), (90, 0), (90, None)]
    rows = [
        rollout("a", 1.0, 1.0) | {"answer_tokens": answer, "anchor_tokens": anchor}
        for answer, anchor in lengths
    ]
    assert step_statistics(rows)["anchor_length_ratio"] == 3.0, "of 0.5, 3 and 4"
    assert "anchor_length_ratio" not in step_statistics(rows[3:])


def steps(gains, **given):
    return [{"step": i, "reward_minus_r_ver": g, **given} for i, g in enumerate(gains, start=1)]


def test_the_thresholds_are_those_of_the_development_runs():
    assert (TAX_STEPS, START_POSITION, LOW_ENTROPY, LENGTH_FACTOR) == (20, 0.5, 0.3, 2)


def test_a_run_without_trouble_or_without_steps_raises_no_alarm():
    assert alarms([]) == []
    assert alarms(steps([0.02] * 50, region_position=1.0, entropy=0.31)) == []


def test_twenty_steps_of_tax_in_a_row_raise_an_alarm():
    assert alarms(steps([0.1, *[-0.01] * 19, 0.1, *[-0.01] * 19])) == []
    gains = [0.1, *[-0.01] * 18, 0.0, -0.01]
    (message,) = alarms(steps(gains))
    assert message.startswith("steps 2 to 21: ")
    assert "20 steps in a row" in message
    assert alarms(steps([*gains, 0.1])) == [], "what is over is no alarm"


def test_the_latest_of_several_taxed_stretches_is_named():
    (message,) = alarms(steps([*[-0.01] * 30, 0.1, *[-0.02] * 25]))
    assert message.startswith("steps 32 to 56: ")
    assert "25 steps in a row" in message


def test_a_reward_without_a_likelihood_term_is_no_tax():
    assert alarms(steps([0.0] * 40)) == []


@pytest.mark.parametrize("unknown", [None, math.nan])
def test_an_unknown_value_raises_no_alarm_and_ends_a_stretch(unknown):
    history = steps([*[-0.01] * 19, unknown, *[-0.01] * 19])
    history[0] |= {"region_position": unknown, "entropy": unknown}
    assert alarms(history) == []
    del history[19]["reward_minus_r_ver"]
    assert alarms(history) == []


def test_only_the_first_step_tells_where_rollouts_start():
    later = [{"step": 1, "region_position": 0.5}, {"step": 2, "region_position": 0.1}]
    assert alarms(later[:1]) == alarms(later) == []
    first = {"step": 1, "region_position": 0.26}
    (message,) = alarms([first])
    assert message.startswith("step 1: ")
    assert "0.26 of the way from l1 to l0" in message
    assert alarms([first, later[1]]) == [], "it is told once"


def test_low_entropy_is_an_alarm_while_it_lasts():
    entropies = [2.0, 0.31, 0.30, 0.2, 0.4]
    history = [{"step": 5 + i, "entropy": e} for i, e in enumerate(entropies)]
    for number, entropy in ((3, "0.30"), (4, "0.20")):
        (message,) = alarms(history[:number])
        assert message.startswith(f"step {4 + number}: ")
        assert f"{entropy} nats" in message
    assert alarms(history[:2]) == alarms(history) == []


@pytest.mark.parametrize(("ratio", "warns"), [(2.01, 1), (2.0, 0), (0.5, 0), (0.49, 1), (None, 0)])
def test_rollouts_of_another_length_than_their_anchors_are_an_alarm(ratio, warns):
    found = alarms([{"step": 1, "anchor_length_ratio": 3.0}, {"anchor_length_ratio": ratio}])
    assert len(found) == warns
    assert all(f"{ratio:.2f} times the length of its constrained anchor" in text for text in found)


def test_alarms_come_together_and_steps_are_counted_if_they_have_no_number():
    history = [
        {"reward_minus_r_ver": -0.1, "region_position": 0.1, "entropy": 0.1} for _ in range(20)
    ]
    messages = alarms(history)
    assert [m.split(":")[0] for m in messages] == ["steps 1 to 20", "step 20"]
