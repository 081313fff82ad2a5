"""Statistics of one training step from its rollouts, and warnings from the steps so far.

What to watch in a run follows from what the method's own authors found in their development runs:
zeroing hits many correct rollouts, and mostly in reversed bounds; group normalisation turns one
zeroed rollout into a large negative advantage; and the likelihood term can become a pure tax. TRL
itself logs ``reward_std`` and ``frac_reward_zero_std``, the share of groups that teach nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from califkit.anchors.region import ZONES, exceeds_ceiling
from califkit.metrics import nan_mean

TAX_STEPS = 20
"""So many steps in a row without a mean gain from the likelihood term raise an alarm."""

START_POSITION = 0.5
"""A first step whose median rollout lies nearer to l1 than this share of the region does too."""

LOW_ENTROPY = 0.30
"""So does a policy whose mean token entropy, in nats, is no higher than this. The development runs
without a ceiling ended at 0.291, the lowest of all."""

LENGTH_FACTOR = 2.0
"""So does a median rollout that is longer or shorter than its anchor by more than this factor: l
depends on length, so that the bounds then say little of the rollouts."""

ROUNDING = 1e-9
"""Equal numbers may differ by rounding after arithmetic; a smaller difference is none."""


def step_statistics(
    rows: Sequence[Mapping[str, Any]], ceiling_margin: float = 0.0
) -> dict[str, float]:
    """What the training log keeps of the rollouts of one step, from every process: ``rows`` as
    `califkit.rewards.trl.CalifReward` hands them to ``on_rollouts``, None where unknown.

    Returns
    -------
    dict of str to float
        Shares lie in [0, 1]. Means over rollouts, where defined: ``r_ver``, ``loglik``,
        ``distinct_2``, ``tokens``, ``clipped``, ``reward_minus_r_ver``. Shares of all rollouts:
        ``above_ceiling`` (r_ver > 0 and l > l1), ``zone/<zone>`` for all `ZONES`, ``sign_flips``
        (r_ver above the mean of the group, reward below it: the advantage has the wrong sign).
        The rest:

        ``zeroed``
            Share of the rollouts with r_ver > 0 whose reward is 0; ``zeroed/reversed`` (l0 > l1)
            and ``zeroed/usual`` (all others) have the same denominator and add up to it.
        ``r_ver/<type>``
            Share of the type's constraints that are followed.
        ``groups_with_equal_r_ver``
            Share of groups with all r_ver equal, where the likelihood term alone sets the
            advantage, whatever alpha is.
        ``groups_with_varying_bonus``
            Share of groups in which rollouts with r_ver > 0 get different bonuses (what a reward
            has above r_ver); in all others the bonus cannot tell rollouts apart.
        ``bonus/violating_anchor``
            With ``anchor_r_ver``: share of all bonus paid that goes to prompts whose constrained
            reference answer violates a constraint, where likelihood like that answer's is no merit.
        ``region_position``
            Median of (l1 - l) / (l1 - l0) where l0 < l1: 0 at the ceiling l1, 1 at l0.
        ``anchor_length_ratio``
            With both lengths: median of ``answer_tokens / anchor_tokens`` where neither is empty.

        ``loglik`` and ``distinct_2`` are NaN where no rollout has one; whatever else is undefined
        is left out.
    """
    if not rows:
        raise ValueError("no rollouts to describe")
    zone = np.array([row["zone"] for row in rows])
    if unknown := set(zone.tolist()) - set(ZONES):
        raise ValueError(f"unknown zone {sorted(unknown)}; known: {', '.join(ZONES)}")
    r_ver, reward, l, l0, l1 = (  # noqa: E741
        _values(rows, key) for key in ("r_ver", "reward", "loglik", "l0", "l1")
    )
    groups = _groups([row["group"] for row in rows])
    satisfied = r_ver > 0
    zeroed = satisfied & (reward == 0)
    with_width = l0 < l1
    position = (l1 - l)[with_width] / (l1 - l0)[with_width]
    bonus = np.maximum(reward - r_ver, 0)
    answer, anchor = (_values(rows, key) for key in ("answer_tokens", "anchor_tokens"))
    both = (answer > 0) & (anchor > 0)

    always = {
        "r_ver": float(r_ver.mean()),
        "loglik": nan_mean(l),
        "distinct_2": nan_mean(_values(rows, "distinct_2")),
        "tokens": float(_values(rows, "tokens").mean()),
        "clipped": float(_values(rows, "clipped").mean()),
        "above_ceiling": float((satisfied & exceeds_ceiling(l, l0, l1, ceiling_margin)).mean()),
        "reward_minus_r_ver": float((reward - r_ver).mean()),
    } | {f"zone/{name}": float((zone == name).mean()) for name in ZONES}
    where_defined = {
        "zeroed": nan_mean(zeroed[satisfied]),
        "zeroed/usual": nan_mean((zeroed & (zone != "reversed"))[satisfied]),
        "zeroed/reversed": nan_mean((zeroed & (zone == "reversed"))[satisfied]),
        "sign_flips": float(_sign_flips(r_ver, reward, groups).mean()),
        "groups_with_equal_r_ver": nan_mean([np.ptp(r_ver[g]) == 0 for g in groups]),
        "groups_with_varying_bonus": nan_mean([_varies(bonus[g][satisfied[g]]) for g in groups]),
        "bonus/violating_anchor": _bonus_on_violating_anchors(rows, bonus),
        "region_position": _nan_median(position),
        "anchor_length_ratio": _nan_median(answer[both] / anchor[both]),
        **{f"r_ver/{name}": share for name, share in _shares_by_type(rows).items()},
    }
    return always | {k: v for k, v in where_defined.items() if not np.isnan(v)}


def alarms(history: Sequence[Mapping[str, Any]]) -> list[str]:
    """Plain-language warnings that hold at the last step of a run.

    ``history`` holds the logged steps in order, from the first one on, with the names of
    `step_statistics`, ``step`` and, if it is logged, ``entropy`` (mean token entropy of the policy,
    in nats). What a step lacks (or has as None or NaN) raises no alarm. Where rollouts start is an
    alarm of the first step alone; a stretch of steps is one while it lasts.
    """
    if not history:
        return []
    steps = [row.get("step", i) for i, row in enumerate(history, start=1)]
    position, entropy, ratio = (
        _values(history[-1:], key)[0]
        for key in ("region_position", "entropy", "anchor_length_ratio")
    )
    found = []

    if len(history) == 1 and position < START_POSITION:
        found.append(
            f"step {steps[0]}: the median rollout starts at {position:.2f} of the way from l1 to "
            f"l0 (alarm below {START_POSITION}), so near the ceiling that many answers "
            "lie above it; check that anchors and rollouts are drawn and scored alike"
        )

    gain = _values(history, "reward_minus_r_ver")
    without = np.flatnonzero(~(gain <= 0))
    first = int(without[-1]) + 1 if without.size else 0
    # Steps of exactly 0 throughout are those of a reward without a likelihood term.
    if len(gain) - first >= TAX_STEPS and (gain[first:] < 0).any():
        found.append(
            f"steps {steps[first]} to {steps[-1]}: the likelihood term took at least as much as "
            f"it gave (mean reward - r_ver at most 0 for {len(gain) - first} steps in a row, alarm "
            f"at {TAX_STEPS}); the policy may be learning to dodge the ceiling"
        )

    if entropy <= LOW_ENTROPY:
        found.append(
            f"step {steps[-1]}: the policy's entropy is down to {entropy:.2f} nats "
            f"(alarm at {LOW_ENTROPY:.2f}); its rollouts may be collapsing into one form"
        )

    if ratio > LENGTH_FACTOR or ratio < 1 / LENGTH_FACTOR:
        found.append(
            f"step {steps[-1]}: the median rollout has {ratio:.2f} times the length of its "
            f"constrained anchor (alarm beyond a factor {LENGTH_FACTOR:g}); l depends on length, "
            "so the bounds say little of such rollouts"
        )
    return found


def _values(rows: Sequence[Mapping[str, Any]], key: str) -> np.ndarray:
    """One value a row or step as float; NaN where it does not have it."""
    return np.array([row.get(key) for row in rows], dtype=float)


def _groups(labels: Sequence[Any]) -> list[np.ndarray]:
    """Row numbers of each group."""
    members: dict[Any, list[int]] = {}
    for i, label in enumerate(labels):
        members.setdefault(label, []).append(i)
    return [np.array(rows) for rows in members.values()]


def _varies(values: np.ndarray) -> bool:
    return values.size > 0 and bool(np.ptp(values) > ROUNDING)


def _sign_flips(r_ver: np.ndarray, reward: np.ndarray, groups: list[np.ndarray]) -> np.ndarray:
    flips = np.zeros(len(r_ver), dtype=bool)
    for g in groups:
        better = r_ver[g] - r_ver[g].mean() > ROUNDING
        flips[g] = better & (reward[g] - reward[g].mean() < -ROUNDING)
    return flips


def _bonus_on_violating_anchors(rows: Sequence[Mapping[str, Any]], bonus: np.ndarray) -> float:
    """NaN if no compliance of an anchor is known, or no bonus was paid."""
    compliance = _values(rows, "anchor_r_ver")
    paid = np.where(bonus > ROUNDING, bonus, 0.0)
    if np.isnan(compliance).all() or not paid.any():
        return float("nan")
    return float(paid[compliance < 1].sum() / paid.sum())


def _shares_by_type(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Followed / total constraints of each type, in alphabetical order."""
    counts: dict[str, np.ndarray] = {}
    for row in rows:
        for name, (followed, total) in row["types"].items():
            counts[name] = counts.get(name, np.zeros(2)) + (followed, total)
    return {name: float(f / t) for name, (f, t) in sorted(counts.items()) if t > 0}


def _nan_median(values: np.ndarray) -> float:
    present = values[~np.isnan(values)]
    return float(np.median(present)) if present.size else float("nan")
