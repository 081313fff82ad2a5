"""What every policy is called and how it is drawn: one row a method.

Methods keep one colour and one marker in every figure (Okabe and Ito's palette). Hue, marker and
line together tell any two apart, also without colours.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

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
    """How a method is called and drawn; a KeyError that names this file where it has no row."""
    if method not in LOOKS:
        raise KeyError(f"{method!r} has no label, colour and marker: add it to {__name__}.LOOKS")
    return LOOKS[method]


def palette(methods: Iterable[str] = tuple(LOOKS)) -> dict[str, str]:
    """The colours of methods, as seaborn wants them."""
    return {method: look(method).colour for method in methods}


def label(method: str) -> str:
    """The name of a method in tables and legends."""
    return look(method).label
