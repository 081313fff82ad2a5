"""Statistics of one training step from its rollouts, and warnings from the steps so far.

What to watch in a run follows from what the method's own authors found in their development runs:
zeroing hits many correct rollouts, and mostly in reversed bounds; group normalisation turns one
zeroed rollout into a large negative advantage; and the likelihood term can become a pure tax.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from califkit.metrics import nan_mean
from califkit.rewards import ZONES, exceeds_ceiling

TAX_STEPS = 20
"""So many steps in a row without a mean gain from the likelihood term raise an alarm."""

START_POSITION = 0.5
"""A first step whose median rollout lies nearer to l1 than this share of the region does too."""

LOW_ENTROPY = 0.30
"""So does a policy whose mean token entropy, in nats, is no higher than this. The development runs
without a ceiling ended at 0.291, the lowest of all."""

ROUNDING = 1e-9
"""The mean of equal numbers may miss them by rounding; a smaller difference is none."""


def step_statistics(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """What the training log keeps of the rollouts of one step.

    Parameters
    ----------
    rows
        All rollouts of the step, from every process. Keys: ``group`` (hashable, the same for the
        rollouts of one prompt), ``r_ver``, ``reward``, ``loglik``, ``l0`` and ``l1`` (nats per
        token or None), ``zone`` (one of `ZONES`), ``tokens``, ``distinct_2`` (or None),
        ``clipped`` (cut at the token limit), ``families`` (constraint family -> [followed, total],
        where the family is the constraint's id up to the colon).

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
        ``r_ver/<family>``
            Share of the family's constraints that are followed.
        ``group_reward_std``
            Mean over groups of the sample standard deviation (n - 1) of the rewards.
        ``groups_without_spread``
            Share of groups with all rewards equal, which teach nothing.
        ``groups_with_equal_r_ver``
            Share of groups with all r_ver equal, where the likelihood term alone sets the
            advantage, whatever alpha is.
        ``region_position``
            Median of (l1 - l) / (l1 - l0) where l0 < l1: 0 at the ceiling l1, 1 at l0.

        ``loglik`` and ``distinct_2`` are NaN where no rollout has one; whatever else is undefined
        is left out.

    Raises
    ------
    ValueError
        Without rollouts, or for an unknown zone.
    """
    if not rows:
        raise ValueError("no rollouts to describe")
    zone = np.array([row["zone"] for row in rows])
    if unknown := set(zone.tolist()) - set(ZONES):
        raise ValueError(f"unknown zone {sorted(unknown)}; known: {', '.join(ZONES)}")
    r_ver, reward, l, l0, l1 = (  # noqa: E741
        _column(rows, key) for key in ("r_ver", "reward", "loglik", "l0", "l1")
    )
    groups = _groups([row["group"] for row in rows])
    satisfied = r_ver > 0
    zeroed = satisfied & (reward == 0)
    with_width = l0 < l1
    position = (l1 - l)[with_width] / (l1 - l0)[with_width]

    always = {
        "r_ver": float(r_ver.mean()),
        "loglik": nan_mean(l),
        "distinct_2": nan_mean(_column(rows, "distinct_2")),
        "tokens": float(_column(rows, "tokens").mean()),
        "clipped": float(_column(rows, "clipped").mean()),
        "above_ceiling": float((satisfied & exceeds_ceiling(l, l0, l1)).mean()),
        "reward_minus_r_ver": float((reward - r_ver).mean()),
    } | {f"zone/{name}": float((zone == name).mean()) for name in ZONES}
    where_defined = {
        "zeroed": nan_mean(zeroed[satisfied]),
        "zeroed/usual": nan_mean((zeroed & (zone != "reversed"))[satisfied]),
        "zeroed/reversed": nan_mean((zeroed & (zone == "reversed"))[satisfied]),
        "sign_flips": float(_sign_flips(r_ver, reward, groups).mean()),
        "group_reward_std": nan_mean([reward[g].std(ddof=1) for g in groups if len(g) > 1]),
        "groups_without_spread": nan_mean([np.ptp(reward[g]) == 0 for g in groups]),
        "groups_with_equal_r_ver": nan_mean([np.ptp(r_ver[g]) == 0 for g in groups]),
        "region_position": _nan_median(position),
    } | {f"r_ver/{family}": share for family, share in _family_shares(rows).items()}
    return always | {k: v for k, v in where_defined.items() if not np.isnan(v)}


def alarms(history: Sequence[Mapping[str, Any]]) -> list[str]:
    """Plain-language warnings about a run.

    Parameters
    ----------
    history
        Logged steps in order, from the first one on, with the names of `step_statistics`; also
        ``step`` and, if it is logged, ``entropy`` (mean token entropy of the policy, in nats).
        What a step lacks (or has as None or NaN) raises no alarm.

    Returns
    -------
    list of str
        At most one sentence for each alarm; empty if there is nothing to say.
    """
    steps = [row.get("step", i) for i, row in enumerate(history, start=1)]
    found = []

    start = _values(history[:1], "region_position")
    if (start < START_POSITION).any():
        found.append(
            f"step {steps[0]}: the median rollout starts at {start[0]:.2f} of the way from l1 to "
            f"l0 (alarm below {START_POSITION}), so near the ceiling that many answers "
            "lie above it; check that anchors and rollouts are drawn and scored alike"
        )

    gain = _values(history, "reward_minus_r_ver")
    # Steps of exactly 0 throughout are those of a reward without a likelihood term.
    taxed = [
        (first, last)
        for first, last in _streaks(gain <= 0)
        if last - first + 1 >= TAX_STEPS and (gain[first : last + 1] < 0).any()
    ]
    if taxed:
        first, last = taxed[-1]
        found.append(
            f"steps {steps[first]} to {steps[last]}: the likelihood term took at least as much as "
            f"it gave (mean reward - r_ver at most 0 for {last - first + 1} steps in a row, alarm "
            f"at {TAX_STEPS}); the policy may be learning to dodge the ceiling"
        )

    entropy = _values(history, "entropy")
    low = np.flatnonzero(entropy <= LOW_ENTROPY)
    if low.size:
        found.append(
            f"step {steps[low[0]]}: the policy's entropy is down to {entropy[low[0]]:.2f} nats "
            f"(alarm at {LOW_ENTROPY:.2f}); its rollouts may be collapsing into one form"
        )
    return found


def _column(rows: Sequence[Mapping[str, Any]], key: str) -> np.ndarray:
    """One value a row as float; None is NaN."""
    return np.array([row[key] for row in rows], dtype=float)


def _values(history: Sequence[Mapping[str, Any]], key: str) -> np.ndarray:
    """One value a step as float; NaN where the step does not have it."""
    return np.array([row.get(key) for row in history], dtype=float)


def _groups(labels: Sequence[Any]) -> list[np.ndarray]:
    """Row numbers of each group."""
    members: dict[Any, list[int]] = {}
    for i, label in enumerate(labels):
        members.setdefault(label, []).append(i)
    return [np.array(rows) for rows in members.values()]


def _sign_flips(r_ver: np.ndarray, reward: np.ndarray, groups: list[np.ndarray]) -> np.ndarray:
    flips = np.zeros(len(r_ver), dtype=bool)
    for g in groups:
        better = r_ver[g] - r_ver[g].mean() > ROUNDING
        flips[g] = better & (reward[g] - reward[g].mean() < -ROUNDING)
    return flips


def _family_shares(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Followed / total constraints of each family, in alphabetical order."""
    counts: dict[str, np.ndarray] = {}
    for row in rows:
        for family, (followed, total) in row["families"].items():
            counts[family] = counts.get(family, np.zeros(2)) + (followed, total)
    return {family: float(f / t) for family, (f, t) in sorted(counts.items()) if t > 0}


def _nan_median(values: np.ndarray) -> float:
    present = values[~np.isnan(values)]
    return float(np.median(present)) if present.size else float("nan")


def _streaks(flags: np.ndarray) -> list[tuple[int, int]]:
    """First and last index of each run of true flags."""
    runs = []
    for flag, members in groupby(range(len(flags)), key=lambda i: bool(flags[i])):
        if flag:
            indices = list(members)
            runs.append((indices[0], indices[-1]))
    return runs
