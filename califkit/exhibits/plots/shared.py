"""What the pictures share: theme, colours of the zones, points, bars, legends and notes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from califkit.exhibits.methods import look, palette

ZONE_COLOURS = {
    "below": "#E69F00",
    "inside": "#009E73",
    "above": "#CC79A7",
    "reversed": "#999999",
    "unbounded": "#56B4E9",
}
ZONE_LABELS = {
    "below": "below l0: quality risk",
    "inside": "inside: desired",
    "above": "above l1: inflation risk",
    "reversed": "reversed bounds",
    "unbounded": "no bounds",
}

LOGLIK = "log-likelihood given the request (nats per token)"
SATISFACTION = "Constraint Satisfaction (%)"
GREY = "#555555"
INTERVAL = "#8c8c8c"

THEME: dict[str, Any] = {
    **sns.axes_style("ticks"),
    **sns.plotting_context("paper"),
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib, so every machine draws alike
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.constrained_layout.use": True,
    "legend.frameon": False,
    "lines.markersize": 7,
    "pdf.fonttype": 42,
}
"""Settings of matplotlib; `califkit.exhibits.open` applies them."""


def panels(columns: int, size: tuple[float, float], rows: int = 1, **options: Any) -> np.ndarray:
    """Axes of a new figure, shape (rows x columns,), with room for a legend outside of them."""
    _, axes = plt.subplots(
        rows, columns, figsize=size, squeeze=False, layout="constrained", **options
    )
    return axes.flatten()


def legend(ax: Axes, handles: Sequence[Artist], place: str = "lower center") -> None:
    """One legend for the figure, outside of its Axes: in one row, or a column at the right."""
    columns = 1 if "right" in place else len(handles)
    ax.figure.legend(handles=handles, loc=f"outside {place}", ncols=columns)


def patches(looks: dict[str, str], **options: Any) -> list[Patch]:
    """Legend entries of areas: label to colour."""
    return [Patch(color=colour, label=label, **options) for label, colour in looks.items()]


def zone_handles(zones: Iterable[str], alpha: float) -> list[Patch]:
    """Legend entries of zones of the likelihood axis."""
    return patches({ZONE_LABELS[zone]: ZONE_COLOURS[zone] for zone in zones}, alpha=alpha)


def bar_handles(methods: Iterable[str]) -> list[Patch]:
    """Legend entries of bars, one a method."""
    return patches({look(method).label: look(method).colour for method in methods})


def point_handles(methods: Iterable[str]) -> list[Line2D]:
    """Legend entries of points, one a method."""
    looks = [look(method) for method in methods]
    return [point_handle(one.marker, one.colour, one.colour, one.label) for one in looks]


def point_handle(marker: str, face: str, edge: str, label: str) -> Line2D:
    """Legend entry of a point."""
    return Line2D([], [], ls="", marker=marker, mfc=face, mec=edge, label=label)


def hollow(points: bool) -> Artist:
    """The legend entry of the paper's points or bars."""
    if points:
        return point_handle("D", "white", GREY, "hollow: paper")
    return Patch(facecolor="white", edgecolor=GREY, label="hollow: paper")


def point(ax: Axes, x: float, y: float, method: str, source: str, **errors: Any) -> None:
    """A method's marker with its error bars, hollow for the paper; nothing without a number."""
    if np.isnan([x, y]).any():
        return
    colour = look(method).colour
    given = {name: error for name, error in errors.items() if not np.isnan(error).any()}
    style = {"fmt": look(method).marker, "mec": colour, "ecolor": colour, "elinewidth": 0.9}
    style["mfc"] = colour if source == "this run" else "white"
    ax.errorbar(x, y, **given, **style, capsize=3, zorder=3)


def bars(ax: Axes, table: pd.DataFrame, group: str, methods: Sequence[str], digits: str) -> None:
    """Bars side by side, a group of ``table[group]`` each, with intervals and written values.

    ``table``: ``group``, ``method``, ``value``, ``low``, ``high`` (NaN: no bar, no interval).
    """
    # seaborn draws the interval of a sample. Ours are computed, so each bar gets a sample of three
    # whose median is the value and whose range is the interval.
    sample = table.melt([group, "method"], ["low", "value", "high"], value_name="number")
    groups = list(dict.fromkeys(table[group]))
    names = {"x": group, "y": "number", "hue": "method", "order": groups, "hue_order": methods}
    looks = {"palette": palette(methods), "saturation": 1, "gap": 0.08, "legend": False}
    interval = {"estimator": "median", "errorbar": ("pi", 100), "capsize": 0.3}
    interval["err_kws"] = {"color": INTERVAL, "linewidth": 1}
    sns.barplot(sample.dropna(), **names, **looks, **interval, ax=ax)
    for row in table.dropna(subset=["value"]).itertuples():
        x = groups.index(getattr(row, group)) + _shift(methods.index(row.method), len(methods))
        up = row.value >= 0
        end = np.nanmax([row.value, row.high]) if up else np.nanmin([row.value, row.low])
        offset = {"xytext": (0, 2 if up else -2), "textcoords": "offset points"}
        style = {"ha": "center", "va": "bottom" if up else "top", "fontsize": 7}
        text = f"{row.value:{digits}}" if abs(row.value) < 100 else f"{row.value:.0f}"
        ax.annotate(text, (x, end), **offset, **style, color=look(row.method).colour)
    ax.set(xlabel="", ylabel="")


def _shift(number: int, count: int, width: float = 0.8) -> float:
    """Where seaborn puts one of several bars, from the middle of their group."""
    return (number - (count - 1) / 2) * width / count


def note(ax: Axes, x: float, y: float, text: str, **options: Any) -> None:
    """A sentence in the place of what could not be drawn."""
    ax.text(x, y, text, style="italic", **options)


def why_empty(rows: pd.DataFrame) -> str:
    """The note of rows without any value, else an empty string."""
    notes = [note for note in rows["note"] if isinstance(note, str) and note]
    return notes[0] if notes and rows["value"].isna().all() else ""


def by_method(table: pd.DataFrame, metric: str, methods: Sequence[str]) -> dict[Any, pd.DataFrame]:
    """Rows of one metric by (source, configuration), each group indexed by method."""
    groups = table[table["metric"] == metric].groupby(["source", "configuration"], sort=False)
    return {key: group.set_index("method").reindex(methods) for key, group in groups}
