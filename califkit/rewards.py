"""Rewards: the verifier fraction and the calibrated one, on arrays.

CaLIF (paper section 2.3), with l = l(y; x) and the bounds l0, l1 of the prompt::

    l0 <= l1:   l < l0          r_ver
                l0 <= l <= l1   r_ver + alpha * [r_ver > 0]
                l > l1          0
    l0 > l1:    l <= l1         r_ver
                l > l1          0

Both ends of the region are closed, and l0 = l1 is a region of one point. What the paper leaves
open: an answer without text has no l and a prompt may lack a bound; both keep r_ver.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

ZONES = ("below", "inside", "above", "reversed", "unbounded")
"""Where l lies: relative to usual bounds; ``reversed`` for l0 > l1; ``unbounded`` if l, l0 or l1
is missing."""


def zones(l: ArrayLike, l0: ArrayLike, l1: ArrayLike) -> np.ndarray:  # noqa: E741
    """Zone of each rollout, one of `ZONES`.

    Parameters
    ----------
    l, l0, l1
        Log-likelihoods in nats per token, broadcast to a common shape; NaN means missing.

    Returns
    -------
    numpy.ndarray
        Strings, of the common shape.
    """
    l, l0, l1 = np.broadcast_arrays(*(np.asarray(a, dtype=float) for a in (l, l0, l1)))  # noqa: E741
    missing = np.isnan(l) | np.isnan(l0) | np.isnan(l1)
    return np.select(
        [missing, l0 > l1, l < l0, l <= l1],
        ["unbounded", "reversed", "below", "inside"],
        default="above",
    )


def calif_reward(
    r_ver: ArrayLike,
    l: ArrayLike,  # noqa: E741
    l0: ArrayLike,
    l1: ArrayLike,
    alpha: float = 0.1,
) -> np.ndarray:
    """The CaLIF reward (paper section 2.3).

    Parameters
    ----------
    r_ver
        Fraction of satisfied constraints, in [0, 1].
    l, l0, l1
        Log-likelihood of the rollout and the prompt's bounds, all given the request alone, in nats
        per token; NaN means missing and leaves r_ver.
    alpha
        Size of the bonus, > 0.

    Returns
    -------
    numpy.ndarray
        Rewards in [0, 1 + alpha], of the broadcast shape.

    Examples
    --------
    >>> calif_reward([1.0, 1.0, 1.0, 0.0], [-3.0, -2.0, -0.5, -2.0], l0=-2.5, l1=-1.0).tolist()
    [1.0, 1.1, 0.0, 0.0]
    """
    if not alpha > 0:
        raise ValueError(f"alpha must be positive, got {alpha}")
    r_ver = np.asarray(r_ver, dtype=float)
    if np.any(~((r_ver >= 0) & (r_ver <= 1))):
        raise ValueError(f"r_ver must lie in [0, 1], got {r_ver[~((r_ver >= 0) & (r_ver <= 1))]}")
    zone = zones(l, l0, l1)
    bonus = alpha * (r_ver > 0) * (zone == "inside")
    return np.where(exceeds_ceiling(l, l0, l1), 0.0, r_ver + bonus)


def exceeds_ceiling(l: ArrayLike, l0: ArrayLike, l1: ArrayLike) -> np.ndarray:  # noqa: E741
    """Whether the reward is zeroed because l > l1, in usual and in reversed bounds alike."""
    l, l0, l1 = (np.asarray(a, dtype=float) for a in (l, l0, l1))  # noqa: E741
    return ~np.isnan(l0) & (l > l1)
