"""Estimators: arrays in, numbers out. Nothing here reads files, draws, or knows a model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike


def prompt_accuracy(verdicts: Sequence[Sequence[bool]]) -> float:
    """Share of prompts whose constraints all hold, in percent.

    ``verdicts[i]`` lists the verdicts of prompt i. With loose verdicts on IFBench this is the
    paper's Constraint Satisfaction (section 1). Raises ValueError without prompts.
    """
    _require(verdicts, "prompts")
    return 100.0 * float(np.mean([all(row) for row in verdicts]))


def instruction_accuracy(verdicts: Sequence[Sequence[bool]]) -> float:
    """Share of constraints that hold, pooled over prompts, in percent."""
    pooled = [verdict for row in verdicts for verdict in row]
    _require(pooled, "constraints")
    return 100.0 * float(np.mean(pooled))


def distinct_2(tokens: Sequence[int]) -> float:
    """Unique token 2-grams / all token 2-grams of one response; NaN under two tokens.

    Per response (paper section 6, open point A22): 1 without repetition, near 0 in a loop.

    >>> distinct_2([5, 6, 5, 6, 5])
    0.5
    """
    if len(tokens) < 2:
        return float("nan")
    pairs = list(zip(tokens[:-1], tokens[1:], strict=True))
    return len(set(pairs)) / len(pairs)


def bootstrap_interval(
    hits: ArrayLike,
    totals: ArrayLike,
    rng: np.random.Generator,
    level: float = 0.95,
    n_resamples: int = 10_000,
) -> tuple[float, float]:
    """Percentile bootstrap interval of sum(hits) / sum(totals), resampling whole units.

    A unit is a prompt: its constraints stand or fall together, so an accuracy over constraints
    has to be resampled by prompt too. ``hits`` and ``totals`` (above 0) are what each unit adds to
    numerator and denominator, shape (units,); ``level`` is the coverage.

    >>> bootstrap_interval([1] * 30 + [0] * 70, [1] * 100, np.random.default_rng(0))
    (0.21, 0.39)
    """
    units = np.stack([np.asarray(hits, dtype=float), np.asarray(totals, dtype=float)], axis=1)
    _require(units, "units")
    if not (units[:, 1] > 0).all():
        raise ValueError("every unit needs a total above 0")
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, not {level}")
    sums = bootstrap_sums(units, rng, n_resamples)
    low, high = np.quantile(sums[:, 0] / sums[:, 1], [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def wilson_interval(hits: float, total: float, level: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval of a proportion, hits of total (above 0) independent ones.

    Unlike the bootstrap it has a width where all or none hit.

    >>> [round(end, 3) for end in wilson_interval(0, 10)]
    [0.0, 0.278]
    """
    if not 0 <= hits <= total or not total:
        raise ValueError(f"{hits} hits of {total}")
    z = NormalDist().inv_cdf((1 + level) / 2)
    share, spread = hits / total, z * z / total
    middle = share + spread / 2
    half = z * math.sqrt(share * (1 - share) / total + spread / (4 * total))
    low, high = (middle - half) / (1 + spread), (middle + half) / (1 + spread)
    return max(0.0, low), min(1.0, high)


_RESAMPLED_CELLS = 2_000_000  # of the matrix that is held at a time


def bootstrap_sums(
    units: np.ndarray, rng: np.random.Generator, n_resamples: int = 10_000
) -> np.ndarray:
    """Column sums over units drawn with replacement, as many as there are: from shape
    (units, columns) to (n_resamples, columns)."""
    # Drawing how often each distinct outcome comes up is drawing the units themselves, but costs
    # no more for a million of them.
    outcomes, times = np.unique(units, axis=0, return_counts=True)
    step = max(1, _RESAMPLED_CELLS // len(outcomes))
    sums = []
    for start in range(0, n_resamples, step):
        size = min(step, n_resamples - start)
        drawn = rng.multinomial(len(units), times / len(units), size=size)
        sums.append(drawn.astype(float) @ outcomes)
    return np.concatenate(sums)


TRANSITIONS = ("pass_to_pass", "fail_to_pass", "pass_to_fail", "fail_to_fail")
"""Verdict of the base policy, then of the trained one, on the same prompt."""


def transitions(base: ArrayLike, trained: ArrayLike) -> np.ndarray:
    """Which of `TRANSITIONS` each prompt made, shape (prompts,), from whether the response of each
    policy passes."""
    base, trained = np.asarray(base, dtype=bool), np.asarray(trained, dtype=bool)
    if base.shape != trained.shape:
        raise ValueError(f"{base.size} base verdicts, but {trained.size} of the trained policy")
    conditions = [base & trained, ~base & trained, base & ~trained]
    return np.select(conditions, TRANSITIONS[:3], default=TRANSITIONS[3])


def change_by_transition(
    base: ArrayLike, trained: ArrayLike, change: ArrayLike
) -> dict[str, tuple[float, int]]:
    """Mean change and number of prompts in each transition (paper, Table 2).

    ``change`` is a per-prompt difference, trained minus base (response quality in the paper); NaN
    where either side was not measured, which leaves the prompt out. An empty group has mean NaN.
    """
    which = transitions(base, trained)
    change = np.asarray(change, dtype=float)
    if change.shape != which.shape:
        raise ValueError(f"{change.size} changes, but {which.size} prompts")
    found = {name: change[(which == name) & ~np.isnan(change)] for name in TRANSITIONS}
    return {name: (nan_mean(values), len(values)) for name, values in found.items()}


def pair_outcome(first_order: str | None, second_order: str | None) -> str:
    """Outcome of a pair for method A, judged in both orders (paper, Table 5).

    ``first_order`` is the verdict with A's response first, ``second_order`` with B's first; each
    ``first``, ``second``, ``tie``, or None for an invalid verdict. A win or a loss needs both
    orders to name the same method; everything else is a tie.

    >>> pair_outcome("first", "second"), pair_outcome("second", "first")
    ('win', 'loss')
    >>> pair_outcome("first", "first"), pair_outcome("first", None)
    ('tie', 'tie')
    """
    for verdict in (first_order, second_order):
        if verdict not in ("first", "second", "tie", None):
            raise ValueError(f"a verdict is first, second, tie or None, not {verdict!r}")
    return {("first", "second"): "win", ("second", "first"): "loss"}.get(
        (first_order, second_order), "tie"
    )


def adjusted_win_rate(wins: int, ties: int, losses: int) -> float:
    """(wins + ties / 2) / pairs, in percent; a tie counts half (paper, Table 5).

    >>> adjusted_win_rate(229, 34, 37)
    82.0
    """
    pairs = wins + ties + losses
    if pairs == 0 or min(wins, ties, losses) < 0:
        raise ValueError(f"no pairs to average: {wins} wins, {ties} ties, {losses} losses")
    return 100.0 * (wins + ties / 2) / pairs


def identified(loglik: ArrayLike) -> np.ndarray:
    """Whether each answer is most likely given its own request: 1 or 0, chance 1 / K.

    ``loglik`` is l of each answer given each of K >= 2 requests, shape (answers, K), its own in
    column 0. An answer without l (NaN throughout) tells nothing: all requests tie. Where the own
    request ties with others it has an equal share of the 1.
    """
    table = _requests_table(loglik)
    best = table == table.max(axis=1, keepdims=True)
    return best[:, 0] / best.sum(axis=1)


def pairwise_auc(loglik: ArrayLike) -> np.ndarray:
    """Share of the other requests given which an answer is less likely than given its own.

    A tie counts half, so chance is 0.5. ``loglik`` as in `identified`.
    """
    table = _requests_table(loglik)
    own, others = table[:, :1], table[:, 1:]
    return ((own > others) + 0.5 * (own == others)).mean(axis=1)


def pointwise_information(loglik: ArrayLike, tokens: ArrayLike) -> np.ndarray:
    """What an answer tells of its request, in nats: log p(y | x) - log p(y).

    p(y) is the mean of p(y | x') over the other requests x'. Summed over tokens, so a long answer
    can tell more than a short one; negative if the answer fits others better. 0 without l.
    ``loglik`` as in `identified`, in nats per token, each the mean over ``tokens`` tokens.
    """
    sums = _requests_table(loglik) * np.asarray(tokens, dtype=float)[:, None]
    others = sums[:, 1:]
    highest = others.max(axis=1)
    mean = np.exp(others - highest[:, None]).mean(axis=1)  # its largest term is 1
    return sums[:, 0] - highest - np.log(mean)


def interval_by_prompt(
    values: ArrayLike, prompts: Sequence[str], rng: np.random.Generator, level: float = 0.95
) -> tuple[float, float]:
    """Bootstrap interval of the mean of some answers, resampling prompts with all their answers.

    Repeats of a prompt (other seeds, say) are not further prompts. ``values`` has shape (answers,),
    ``prompts`` names the prompt of each; otherwise as `bootstrap_interval`.
    """
    _require(prompts, "answers")
    _, which = np.unique(np.asarray(prompts), return_inverse=True)
    sums = np.bincount(which, weights=np.asarray(values, dtype=float))
    return bootstrap_interval(sums, np.bincount(which), rng, level=level)


def _requests_table(loglik: ArrayLike) -> np.ndarray:
    table = np.asarray(loglik, dtype=float)
    _require(table, "answers")
    if table.ndim != 2 or table.shape[1] < 2:
        raise ValueError(f"needs l given at least two requests, got an array of {table.shape}")
    missing = np.isnan(table)
    if (partly := missing.any(axis=1) & ~missing.all(axis=1)).any():
        raise ValueError(f"answer {int(partly.argmax())} has l given some of its requests only")
    return np.where(missing, 0.0, table)


def mean_and_std(runs: ArrayLike) -> tuple[float, float]:
    """Mean and sample standard deviation (n - 1) of run-level scores, shape (runs,).

    The paper's printed deviations fit only the sample formula (section 8). One run has no
    deviation: NaN. Missing runs (NaN) are refused.
    """
    values = np.asarray(runs, dtype=float)
    _require(values, "runs")
    if np.isnan(values).any():
        raise ValueError(f"run-level scores contain NaN: {values.tolist()}")
    std = float(values.std(ddof=1)) if len(values) > 1 else float("nan")
    return float(values.mean()), std


def nan_mean(values: ArrayLike) -> float:
    """Mean over the values that are there; NaN if none is."""
    array = np.asarray(values, dtype=float)
    present = array[~np.isnan(array)]
    return float(present.mean()) if present.size else float("nan")


def none_if_nan(value: float) -> float | None:
    """A number as JSON can hold it: None where it is not defined."""
    return None if np.isnan(value) else float(value)


def _require(values: Sequence | np.ndarray, what: str) -> None:
    if len(values) == 0:
        raise ValueError(f"no {what} to average")
