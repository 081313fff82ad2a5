"""The pictures of an audit; nothing here computes a statistic."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from califkit.audit.compare import Audit
from califkit.audit.statistics import Difference
from califkit.exhibits.methods import look
from califkit.exhibits.plots.shared import GREY, THEME

_COLOURS = {"base": look("base").colour, "trained": look("if_rlvr").colour}
_MARKERS = {"base": look("base").marker, "trained": look("if_rlvr").marker}
_STYLE = THEME | {"font.size": 11}
_ANSWER_SIDE = {
    "loglik": "l under the reference (nats per token)",
    "quality": "Response Quality (1 to 10)",
    "words": "length (words)",
}
_BINS = 24


def answer_side(report: Audit) -> str:
    """The measure to draw against Constraint Satisfaction: l, else RQ, else length."""
    return next(name for name in _ANSWER_SIDE if report.differences[name].n)


def arrow(report: Audit) -> Figure:
    """Constraint Satisfaction against the answer side: an arrow from base to trained.

    Bars are 95% intervals. Right and down is where hacking leads.
    """
    name = answer_side(report)
    across, up = report.differences["prompt_level_loose_acc"], report.differences[name]
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(5.0, 4.4))
        ax = figure.subplots()
        for side in ("base", "trained"):
            x, y = getattr(across, side), getattr(up, side)
            errors = {"xerr": _reach(across, side), "yerr": _reach(up, side)}
            style = {"fmt": _MARKERS[side], "ms": 9, "elinewidth": 1.4, "capsize": 3, "zorder": 3}
            ax.errorbar(x, y, **errors, color=_COLOURS[side], **style)
            words = {"color": _COLOURS[side], "weight": "bold", "textcoords": "offset points"}
            ax.annotate(side, (x, y), (8, 8), **words)
        start, end = (across.base, up.base), (across.trained, up.trained)
        if start != end:
            style = {"arrowstyle": "-|>", "color": GREY, "lw": 1.6, "shrinkB": 7}
            ax.annotate("", end, start, arrowprops=style)
        ax.margins(0.12)
        corner = {"transform": ax.transAxes, "ha": "right", "va": "bottom"}
        ax.text(0.99, 0.01, "passes more,\nanswers worse ↘", **corner, color=GREY, size=10)
        ax.set(xlabel="Constraint Satisfaction (prompts, loose, %)", ylabel=_ANSWER_SIDE[name])
    return figure


def _reach(d: Difference, side: str) -> np.ndarray:
    """Distances from the value to the ends of its interval, as matplotlib wants them."""
    low, high = getattr(d, f"{side}_95")
    value = getattr(d, side)
    return np.clip([[value - low], [high - value]], 0, None)


def distributions(report: Audit) -> Figure:
    """How l (if measured) and length are distributed over the answers of both policies."""
    names = ["loglik", "words"] if report.differences["loglik"].n else ["words"]
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(5.0, 2.5 * len(names) if len(names) > 1 else 3.2))
        axes = figure.subplots(len(names), 1, squeeze=False)[:, 0]
        for ax, name in zip(axes, names, strict=True):
            _histogram(ax, report, name)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=2)
    return figure


def _histogram(ax: Axes, report: Audit, name: str) -> None:
    values = {side: getattr(getattr(report, side), name) for side in ("base", "trained")}
    values = {side: v[~np.isnan(v)] for side, v in values.items()}
    both = np.concatenate(list(values.values()))
    if name == "words":
        # Lengths span powers of ten; a bin of its own holds the empty answers.
        edges = np.unique(np.geomspace(1, both.max() + 1, _BINS).round())
        edges = np.concatenate([[0], edges])
        ax.set_xscale("symlog", linthresh=1, linscale=0.3)
        ax.set_xlim(0, edges[-1])
        ticks = [t for t in (0, 1, 3, 10, 30, 100, 300, 1000, 3000) if t <= both.max()]
        ax.set_xticks(ticks, [str(t) for t in ticks], minor=False)
        ax.minorticks_off()
    else:
        edges = np.linspace(both.min(), both.max() + 1e-9, _BINS + 1)
    for side, v in values.items():
        shares = np.full(len(v), 100.0 / max(len(v), 1))
        ax.hist(v, edges, weights=shares, color=_COLOURS[side], alpha=0.25, lw=0)
        line = {"histtype": "step", "ls": "-" if side == "base" else "--", "lw": 1.8}
        ax.hist(v, edges, weights=shares, color=_COLOURS[side], label=side, **line)
    ax.set(xlabel=_ANSWER_SIDE[name], ylabel="% of answers")
