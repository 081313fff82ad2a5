"""What every policy is called and how it is drawn: one row a method.

Methods keep one colour and one marker in every figure (Okabe and Ito's palette). Hue, marker and
line together tell any two apart, also without colours.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pandas as pd

if TYPE_CHECKING:
    from califkit.runs.stages import TrainStage

MAIN = ("base", "if_rlvr", "calif")
"""Methods of the main figures, in their order."""


@dataclass(frozen=True)
class Look:
    """Label, colour, marker, dashes (lengths of lines and gaps; empty is solid) and hatch."""

    label: str
    colour: str
    marker: str
    dashes: tuple[float, ...]
    hatch: str


_GREY, _RED, _BLUE, _PINK = "#333333", "#D55E00", "#0072B2", "#CC79A7"
_GREEN, _ORANGE, _SKY, _LIGHT = "#009E73", "#E69F00", "#56B4E9", "#7F7F7F"
_SOLID, _DASHED, _DOTTED, _MIXED = (), (4, 1.5), (1, 1.5), (4, 1.5, 1, 1.5)

LOOKS = {
    "base": Look("base", _GREY, "o", _DOTTED, ""),
    "if_rlvr": Look("IF-RLVR", _RED, "s", _DASHED, "//"),
    "calif": Look("CaLIF", _BLUE, "^", _SOLID, ".."),
    "direct_bonus": Look("direct likelihood bonus", _PINK, "D", _MIXED, "xx"),
    "no_lower": Look("CaLIF without lower bound", _GREEN, "v", _SOLID, "\\\\"),
    "no_upper": Look("CaLIF without upper bound", _ORANGE, "<", _SOLID, "||"),
    "no_lower_dev": Look("without lower bound (development code)", _GREEN, "P", _DASHED, "--"),
    "no_upper_dev": Look("without upper bound (development code)", _ORANGE, ">", _DASHED, "++"),
    "inner_region": Look("CaLIF, inner 95 % region", _SKY, "X", _SOLID, "oo"),
    "outer_region": Look("CaLIF, outer 95 % region", _SKY, "p", _DASHED, "OO"),
    "self_judge": Look("self judge", _LIGHT, "h", _MIXED, "**"),
    "stronger_judge": Look("stronger judge", _LIGHT, "H", _DOTTED, "/"),
}


def look(method: str) -> Look:
    """How a method, or an arm of `arm_names`, is called and drawn.

    A KeyError names this file where the method has no row."""
    name, comma, settings = method.partition(",")
    if name not in LOOKS:
        raise KeyError(f"{name!r} has no label, colour and marker: add it to {__name__}.LOOKS")
    return replace(LOOKS[name], label=LOOKS[name].label + comma + settings)


def arm_names(policies: Iterable[TrainStage | None]) -> dict[TrainStage | None, str]:
    """What to call the policies of one table, so that only training seeds share a name.

    The method, and of several policies of a method the settings in which they differ:
    ``calif, alpha=0.2``. None is the base policy.
    """
    settings = {policy: _flat(policy) for policy in policies}
    names = {}
    for policy, own in settings.items():
        others = [o for o in settings.values() if o.get("method") == own.get("method")]
        varied = [key for key in own if len({repr(other.get(key)) for other in others}) > 1]
        varied += [key for other in others for key in other if key not in own]
        told = "".join(f", {key}={own.get(key)}" for key in dict.fromkeys(varied))
        names[policy] = (policy.method if policy else "base") + told
    return names


def _flat(policy: TrainStage | None) -> dict[str, Any]:
    if policy is None:
        return {}
    flat = pd.json_normalize(policy.model_dump(mode="json", exclude={"seed"})).iloc[0].to_dict()
    return {key.removeprefix("anchors."): value for key, value in flat.items()}


def palette(methods: Iterable[str] = tuple(LOOKS)) -> dict[str, str]:
    """The colours of methods, as seaborn wants them."""
    return {method: look(method).colour for method in methods}


def label(method: str) -> str:
    """The name of a method in tables and legends."""
    return look(method).label


def arm_label(name: str) -> str:
    """An arm of a study in legends: the label of its method, and what else its name says.

    >>> arm_label("calif_variant"), arm_label("if_rlvr_beta_0.01"), arm_label("one_draw")
    ('CaLIF variant', 'IF-RLVR beta 0.01', 'one draw')
    """
    methods = [method for method in LOOKS if name == method or name.startswith(f"{method}_")]
    if not methods:
        return name.replace("_", " ")
    method = max(methods, key=len)
    return look(method).label + name.removeprefix(method).replace("_", " ")
