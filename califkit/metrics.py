"""Estimators: arrays in, numbers out. Nothing here reads files, draws, or knows a model."""

from __future__ import annotations

from collections.abc import Sequence

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


def _require(values: Sequence | np.ndarray, what: str) -> None:
    if len(values) == 0:
        raise ValueError(f"no {what} to average")
