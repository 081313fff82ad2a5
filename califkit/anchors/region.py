"""The likelihood region between l0 and l1: where l lies in it, and regions from several samples."""

from __future__ import annotations

# ruff: noqa: E741  (l is the paper's name for the log-likelihood)
import math
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

ZONES = ("below", "inside", "above", "reversed", "unbounded")
"""Where l lies: relative to usual bounds; ``reversed`` for l0 > l1; ``unbounded`` if l, l0 or l1
is missing. They describe the bounds, not what a method pays: ``no_upper`` pays above them too."""

_MAY_EXCEED_0 = {"inner_region": "l0", "outer_region": "l1"}
"""The end of a confidence interval that can lie above 0, by method."""


def finite_or_nan(value: object, name: str) -> float:
    """A number that may be missing: NaN for None. ValueError names what else it is."""
    is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    try:
        number = math.nan if value is None else float(value) if is_number else math.inf
    except OverflowError:  # an integer beyond all floats
        number = math.inf
    if math.isinf(number):
        raise ValueError(f"{name} must be a finite number or None, not {value!r:.80}")
    return number


def read_bound(value: object, name: str, method: str = "calif") -> float:
    """l0 or l1 as data give it, for the reward of `method`; NaN for None. ValueError for what is no
    number or above 0, which no log-likelihood is (only one end of the region methods may be)."""
    bound = finite_or_nan(value, name)
    if bound > 0 and name != _MAY_EXCEED_0.get(method):
        raise ValueError(
            f"{name} must be at most 0, as a log-likelihood in nats per token is; got {value}"
        )
    return bound


def zones(l: ArrayLike, l0: ArrayLike, l1: ArrayLike, ceiling_margin: float = 0.0) -> np.ndarray:
    """Zone of each rollout, one of `ZONES`; arguments broadcast, NaN is missing.

    Inside reaches up to l1 plus the margin; which bounds are reversed does not depend on it.
    """
    l, l0, l1 = np.broadcast_arrays(*floats(l, l0, l1))
    missing = np.isnan(l) | np.isnan(l0) | np.isnan(l1)
    return np.select(
        [missing, l0 > l1, l < l0, l <= l1 + ceiling_margin],
        ["unbounded", "reversed", "below", "inside"],
        default="above",
    )


def exceeds_ceiling(
    l: ArrayLike, l0: ArrayLike, l1: ArrayLike, ceiling_margin: float = 0.0
) -> np.ndarray:
    """Whether CaLIF zeroes the reward because l > l1 + margin, in usual and reversed bounds alike;
    arguments as in `zones`."""
    l, l0, l1 = floats(l, l0, l1)
    return ~np.isnan(l0) & (l > l1 + ceiling_margin)


def confidence_region(
    constrained: ArrayLike,
    natural: ArrayLike,
    kind: Literal["inner", "outer"],
    quantile: Literal["t", "normal"] = "t",
) -> tuple[np.ndarray, np.ndarray]:
    """Bounds per prompt from the 95 % confidence intervals of both means (paper sections 2.4, 6).

    With mean_m and s_m (n - 1) over the n samples of a side, h_m = q * s_m / sqrt(n)::

        inner:  (mean_0 + h_0, mean_1 - h_1)
        outer:  (mean_0 - h_0, mean_1 + h_1)

    An inner region whose ends cross is not repaired: l0 > l1, so the reversed rule holds. The
    upper end of an outer region may exceed 0, which no l reaches.

    Parameters
    ----------
    constrained, natural
        l of the samples given (x, c), side 0, and given x, side 1; shape (prompts, samples), at
        least two a side, in nats per token. NaN is a missing sample.
    quantile
        q: ``t`` is Student's with n - 1 degrees of freedom (2.365 for 8 samples), ``normal`` 1.960
        (open point A6).

    Returns
    -------
    tuple of numpy.ndarray
        Lower and upper bound, shape (prompts,). Only prompts complete in all samples of both sides
        have bounds, as in the authors' development code; the others get NaN for both.
    """
    # Here, since it takes longer to import than the rest of the module.
    from scipy import stats

    if kind not in ("inner", "outer"):
        raise ValueError(f"kind must be 'inner' or 'outer', got {kind!r}")
    if quantile not in ("t", "normal"):
        raise ValueError(f"quantile must be 't' or 'normal', got {quantile!r}")
    sides = floats(constrained, natural)
    shapes = [side.shape for side in sides]
    if any(len(s) != 2 or s[1] < 2 for s in shapes) or shapes[0][0] != shapes[1][0]:
        raise ValueError(
            "constrained and natural need the shape (prompts, samples) with the same prompts and "
            f"at least 2 samples each, got {shapes[0]} and {shapes[1]}"
        )
    mean_0, mean_1 = (side.mean(axis=1) for side in sides)
    half_0, half_1 = (
        (stats.t.ppf(0.975, n - 1) if quantile == "t" else stats.norm.ppf(0.975))
        * side.std(axis=1, ddof=1)
        / math.sqrt(n)
        for side, (_, n) in zip(sides, shapes, strict=True)
    )
    inwards = 1.0 if kind == "inner" else -1.0
    lower, upper = mean_0 + inwards * half_0, mean_1 - inwards * half_1
    missing = np.isnan(lower) | np.isnan(upper)
    return np.where(missing, np.nan, lower), np.where(missing, np.nan, upper)


def floats(*arrays: ArrayLike) -> list[np.ndarray]:
    """The arrays as float64."""
    return [np.asarray(array, dtype=float) for array in arrays]
