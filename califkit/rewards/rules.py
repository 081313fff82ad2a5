"""Every reward of the paper as a pure function of arrays, and `RewardRule`, which picks one.

CaLIF (paper section 2.3), with l = l(y; x) and the bounds l0, l1 of the prompt::

    l0 <= l1:   l < l0          r_ver
                l0 <= l <= l1   r_ver + alpha * [r_ver > 0]
                l > l1          0
    l0 > l1:    l <= l1         r_ver
                l > l1          0

Both ends of the region are closed, and l0 = l1 is a region of one point.

What all functions here share: arrays broadcast to a common shape. ``r_ver`` is the fraction of
satisfied constraints, in [0, 1]. l, l0 and l1 are mean token log-likelihoods given the request
alone, in nats per token. NaN means missing, as for an answer without text or a prompt whose
anchors failed; the paper leaves this case open, and here such a rollout keeps r_ver. A bound that
a function does not use may be missing. ``alpha`` is the size of the bonus, positive. Every reward
is 0 where r_ver = 0. A number out of its range is a ValueError.

A new reward is a function here and a line in `_METHODS`; its name goes into
`califkit.runs.settings.Method`, its colour and label into `califkit.exhibits.methods`.
"""

# ruff: noqa: E741  (l is the paper's name for the log-likelihood)
from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from califkit.anchors.region import exceeds_ceiling, floats


def calif_reward(
    r_ver: ArrayLike,
    l: ArrayLike,
    l0: ArrayLike,
    l1: ArrayLike,
    alpha: float = 0.1,
    *,
    reversed_bounds: Literal["keep"] | None = None,
    ceiling_margin: float = 0.0,
) -> np.ndarray:
    """The CaLIF reward (paper section 2.3); the formula heads this module.

    If any of l, l0, l1 is missing, both bounds are off: r_ver. Rewards lie in [0, 1 + alpha].

    Parameters
    ----------
    reversed_bounds
        None is the paper's rule, which zeroes above l1 in reversed bounds too. ``"keep"`` pays
        r_ver wherever l0 > l1, as the authors' development code does since August 2026. It matters
        because reversed bounds are common and often only the noise of one sample a side: that
        code's logs show them on about 13 % of prompts, and before the change 62 % of the zeroed
        rollouts with r_ver > 0 came from them.
    ceiling_margin
        m >= 0 in nats per token: zero only where l > l1 + m, and the bonus region reaches up to
        l1 + m. Which bounds are reversed is still decided by l0 > l1.

    Examples
    --------
    >>> calif_reward([1.0, 1.0, 1.0, 0.0], [-3.0, -2.0, -0.5, -2.0], l0=-2.5, l1=-1.0).tolist()
    [1.0, 1.1, 0.0, 0.0]
    """
    _check_options(reversed_bounds, ceiling_margin)
    l, l0, l1 = floats(l, l0, l1)
    usual = l0 <= l1
    zero = exceeds_ceiling(l, l0, l1, ceiling_margin)
    if reversed_bounds == "keep":
        zero &= usual
    inside = usual & (l0 <= l) & (l <= l1 + ceiling_margin)
    return _pay(r_ver, alpha, bonus_where=inside, zero_where=zero)


def direct_bonus_reward(r_ver: ArrayLike, l: ArrayLike, alpha: float) -> np.ndarray:
    """Direct bonus (paper sections 2.4, 6): ``r_ver + alpha * exp(l) * [r_ver > 0]``."""
    (l,) = floats(l)
    return _pay(r_ver, alpha, bonus_where=~np.isnan(l), share=np.exp(l))


def no_lower_reward(r_ver: ArrayLike, l: ArrayLike, l1: ArrayLike, alpha: float) -> np.ndarray:
    """CaLIF without the lower bound (paper sections 2.4, 6; open point A4)::

        l <= l1   r_ver + alpha * [r_ver > 0]
        l > l1    0

    l0 is not used, so no bounds are reversed.
    """
    l, l1 = floats(l, l1)
    return _pay(r_ver, alpha, bonus_where=l <= l1, zero_where=l > l1)


def no_upper_reward(r_ver: ArrayLike, l: ArrayLike, l0: ArrayLike, alpha: float) -> np.ndarray:
    """CaLIF without the upper bound (paper sections 2.4, 6; open point A4)::

        l < l0    r_ver
        l >= l0   r_ver + alpha * [r_ver > 0]

    Nothing is zeroed and l1 is not used, so no bounds are reversed.
    """
    l, l0 = floats(l, l0)
    return _pay(r_ver, alpha, bonus_where=l >= l0)


def no_lower_dev_reward(r_ver: ArrayLike, l: ArrayLike, l0: ArrayLike, l1: ArrayLike) -> np.ndarray:
    """What the authors' development code has nearest to "without lower bound"::

        l <= l1   r_ver
        l > l1    0

    No bonus at all, where the paper says that responses "remain eligible" for it
    (`no_lower_reward`). A bonus for everybody cancels in the mean of a group, so both should train
    alike. l0 matters only by being there.
    """
    return np.where(exceeds_ceiling(l, l0, l1), 0.0, _fractions(r_ver, "r_ver"))


def no_upper_dev_reward(
    r_ver: ArrayLike, l: ArrayLike, l0: ArrayLike, l1: ArrayLike, alpha: float
) -> np.ndarray:
    """ "Without upper bound" as in the authors' development code::

        l0 <= l1:   l < l0    r_ver
                    l >= l0   r_ver + alpha * [r_ver > 0]
        l0 > l1:    r_ver

    Unlike `no_upper_reward` it pays no bonus in reversed bounds.
    """
    l, l0, l1 = floats(l, l0, l1)
    return _pay(r_ver, alpha, bonus_where=(l0 <= l1) & (l >= l0))


def judge_reward(r_ver: ArrayLike, score: ArrayLike, tau: float, alpha: float) -> np.ndarray:
    """Judge reward (paper sections 2.4, 5): ``r_ver + alpha * [r_ver > 0 and score > tau]``.

    One rule for both judges of Table 3: the base policy itself, and a stronger model. A score of
    NaN means that the judge failed and pays no bonus; for tau see `califkit.rewards.judge`.
    """
    if math.isnan(tau):
        raise ValueError("tau is NaN: no bonus would ever be paid")
    (score,) = floats(score)
    return _pay(r_ver, alpha, bonus_where=score > tau)


@dataclass(frozen=True)
class _Method:
    """What a method pays, from r_ver, l, l0, l1 and alpha; whether that includes a bonus, and
    whether it goes by the region between two bounds and so takes the options of `calif_reward`."""

    pays: Callable[..., np.ndarray]
    has_bonus: bool = True
    has_region: bool = False


_METHODS = {
    "if_rlvr": _Method(lambda r_ver, *rest: _fractions(r_ver, "r_ver"), has_bonus=False),
    "calif": _Method(calif_reward, has_region=True),
    "direct_bonus": _Method(lambda r_ver, l, l0, l1, alpha: direct_bonus_reward(r_ver, l, alpha)),
    "no_lower": _Method(lambda r_ver, l, l0, l1, alpha: no_lower_reward(r_ver, l, l1, alpha)),
    "no_upper": _Method(lambda r_ver, l, l0, l1, alpha: no_upper_reward(r_ver, l, l0, alpha)),
    "no_lower_dev": _Method(
        lambda r_ver, l, l0, l1, alpha: no_lower_dev_reward(r_ver, l, l0, l1), has_bonus=False
    ),
    "no_upper_dev": _Method(no_upper_dev_reward),
    # The caller passes bounds of `califkit.anchors.region.confidence_region`.
    "inner_region": _Method(calif_reward, has_region=True),
    "outer_region": _Method(calif_reward, has_region=True),
}

METHODS = tuple(_METHODS)
"""Names of the rules that `RewardRule` knows."""

REGION_RULES = tuple(name for name, method in _METHODS.items() if method.has_region)
"""Methods that take the options of `RewardRule`."""


@dataclass(frozen=True)
class RewardRule:
    """The reward of a training run: one of `METHODS` and its options, checked once, then called.

    Parameters
    ----------
    alpha
        Size of the bonus; None or without effect where the method pays none.
    reversed_bounds, ceiling_margin
        As in `calif_reward`, only for `REGION_RULES`; None is the paper's rule. The logged zones
        take the margin along; for the rest they describe the bounds, not the method.
    bonus_requires_compliant_anchor
        Only for `REGION_RULES`: no bonus where the constrained anchor violates one of its own
        constraints or its verdict is missing; what is zeroed stays zeroed.
    """

    method: str = "calif"
    alpha: float | None = 0.1
    reversed_bounds: Literal["keep"] | None = None
    ceiling_margin: float | None = None
    bonus_requires_compliant_anchor: bool = False

    def __post_init__(self) -> None:
        if self.method not in _METHODS:
            raise ValueError(f"unknown method {self.method!r}; known: {', '.join(METHODS)}")
        method = _METHODS[self.method]
        if self.alpha is not None:
            _check_alpha(self.alpha)
        elif method.has_bonus:
            raise ValueError(f"method {self.method!r} needs a positive alpha, got None")
        _check_options(self.reversed_bounds, self.margin)
        options = ("reversed_bounds", "ceiling_margin", "bonus_requires_compliant_anchor")
        given = [name for name in options if getattr(self, name) not in (None, False)]
        if given and not method.has_region:
            raise ValueError(
                f"method {self.method!r} does not use {', '.join(given)}; "
                f"only these do: {', '.join(REGION_RULES)}"
            )

    @property
    def margin(self) -> float:
        """How far above l1 a reward is zeroed, in nats."""
        return self.ceiling_margin or 0.0

    def __call__(
        self,
        r_ver: ArrayLike,
        l: ArrayLike,
        l0: ArrayLike,
        l1: ArrayLike,
        anchor_r_ver: ArrayLike | None = None,
    ) -> np.ndarray:
        """Rewards of rollouts, of the broadcast shape. ``anchor_r_ver`` is that of each prompt's
        constrained anchor; only `bonus_requires_compliant_anchor` looks at it and then needs it.
        """
        method, options = _METHODS[self.method], {}
        if method.has_region:
            options = {"reversed_bounds": self.reversed_bounds, "ceiling_margin": self.margin}
        rewards = method.pays(r_ver, l, l0, l1, self.alpha, **options)
        if not self.bonus_requires_compliant_anchor:
            return rewards
        if anchor_r_ver is None:
            raise ValueError(
                "bonus_requires_compliant_anchor needs anchor_r_ver, the r_ver of each prompt's "
                "constrained anchor"
            )
        compliant = _fractions(anchor_r_ver, "anchor_r_ver", may_miss=True) >= 1
        # A reward above r_ver is r_ver and the bonus; one below is a zero, which stays.
        return np.where(compliant, rewards, np.minimum(rewards, r_ver))

    def rewards(self, rows: Sequence[Mapping[str, Any]]) -> np.ndarray:
        """Rewards of rows with ``r_ver``, ``loglik``, ``l0``, ``l1`` and perhaps
        ``anchor_r_ver``; None is missing."""
        names = ("r_ver", "loglik", "l0", "l1", "anchor_r_ver")
        return self(*(np.array([row.get(name) for row in rows], dtype=float) for name in names))


def _check_options(reversed_bounds: str | None, ceiling_margin: float) -> None:
    if reversed_bounds not in (None, "keep"):
        raise ValueError(f"reversed_bounds must be None or 'keep', got {reversed_bounds!r}")
    if not 0 <= ceiling_margin < math.inf:
        raise ValueError(f"ceiling_margin must be 0 or more nats, got {ceiling_margin}")


def _pay(
    r_ver: ArrayLike,
    alpha: float,
    *,
    bonus_where: np.ndarray,
    share: ArrayLike = 1.0,
    zero_where: ArrayLike = False,
) -> np.ndarray:
    """r_ver, plus ``alpha * share`` where the bonus is due and r_ver > 0; 0 where zeroed."""
    _check_alpha(alpha)
    r_ver = _fractions(r_ver, "r_ver")
    paid = np.where((r_ver > 0) & bonus_where, r_ver + alpha * np.asarray(share), r_ver)
    return np.where(zero_where, 0.0, paid)


def _fractions(values: ArrayLike, name: str, may_miss: bool = False) -> np.ndarray:
    """A copy as floats, all in [0, 1]; NaN passes if values may be missing."""
    array = np.array(values, dtype=float)
    wrong = ~((array >= 0) & (array <= 1)) & ~(may_miss & np.isnan(array))
    if np.any(wrong):
        raise ValueError(f"{name} must lie in [0, 1], got {array[wrong]}")
    return array


def _check_alpha(alpha: float) -> None:
    if not 0 < alpha < math.inf:
        raise ValueError(f"alpha must be positive, got {alpha}")
