"""What every policy is called and how it is drawn: one row a method.

Methods keep one colour and one marker in every figure (Okabe and Ito's palette). Hue, marker and
line together tell any two apart, also without colours.
"""

from __future__ import annotations

from dataclasses import dataclass

MAIN = ("base", "if_rlvr", "calif")
"""Methods of the main figures, in their order."""


@dataclass(frozen=True)
class Look:
    """Label of a method, and matplotlib's colour, marker, line style and hatch."""

    label: str
    colour: str
    marker: str
    line: str
    hatch: str


_GREY, _RED, _BLUE, _PINK = "#333333", "#D55E00", "#0072B2", "#CC79A7"
_GREEN, _ORANGE, _SKY, _LIGHT = "#009E73", "#E69F00", "#56B4E9", "#7F7F7F"

LOOKS = {
    "base": Look("base", _GREY, "o", ":", ""),
    "if_rlvr": Look("IF-RLVR", _RED, "s", "--", "//"),
    "calif": Look("CaLIF", _BLUE, "^", "-", ".."),
    "direct_bonus": Look("direct likelihood bonus", _PINK, "D", "-.", "xx"),
    "no_lower": Look("CaLIF without lower bound", _GREEN, "v", "-", "\\\\"),
    "no_upper": Look("CaLIF without upper bound", _ORANGE, "<", "-", "||"),
    "no_lower_dev": Look("without lower bound (development code)", _GREEN, "P", "--", "--"),
    "no_upper_dev": Look("without upper bound (development code)", _ORANGE, ">", "--", "++"),
    "inner_region": Look("CaLIF, inner 95 % region", _SKY, "X", "-", "oo"),
    "outer_region": Look("CaLIF, outer 95 % region", _SKY, "p", "--", "OO"),
    "self_judge": Look("self judge", _LIGHT, "h", "-.", "**"),
    "stronger_judge": Look("stronger judge", _LIGHT, "H", ":", "/"),
}


def look(method: str) -> Look:
    """How a method is called and drawn; a KeyError that names this file where it has no row."""
    if method not in LOOKS:
        raise KeyError(f"{method!r} has no label, colour and marker: add it to {__name__}.LOOKS")
    return LOOKS[method]


def label(method: str) -> str:
    """The name of a method in tables and legends."""
    return look(method).label
