"""Pictures of the arms of a study: Figures 8 and 9."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from califkit.exhibits.arms import COEFFICIENTS, NO_KL, SWEPT
from califkit.exhibits.methods import LOOKS, arm_label, look
from califkit.exhibits.plots import shared
from califkit.exhibits.summary import METRICS

QUALITY = {
    "response_quality": "response quality (1 to 10)",
    "information": "request identification: information (nats an answer)\n(not response quality)",
}
_METHOD_OF = {"base": "base"} | {COEFFICIENTS[name]: SWEPT[name] for name in COEFFICIENTS}


def sweeps(points: pd.DataFrame, quality: str) -> np.ndarray:
    """Fig. 8: the curves over alpha and beta in the plane of Constraint Satisfaction and quality.

    ``points``: `califkit.exhibits.arms.sweep_points`. A panel a configuration of this run, and one
    with the points that the paper prints, whose quality is response quality in any case.
    """
    panels = list(points.groupby(["source", "configuration"], sort=False))
    panels.sort(key=lambda panel: panel[0][0] == "paper")
    axes = shared.panels(len(panels), (5.2 * len(panels), 4.4))
    for ax, ((source, configuration), rows) in zip(axes, panels, strict=True):
        for curve, line in rows.dropna(subset=["x", "y"]).groupby("curve", sort=False):
            one = look(_METHOD_OF[curve])
            face = one.colour if source == "this run" else "white"
            style = {"color": one.colour, "marker": one.marker, "mfc": face, "mec": one.colour}
            linestyle = "-" if source == "this run" else ""
            ax.plot(line["x"], line["y"], ls=linestyle, lw=1.2, label=curve, **style)
            for point in line.dropna(subset=["coefficient"]).itertuples():
                at = {"xytext": (4, 4), "textcoords": "offset points", "fontsize": 7}
                ax.annotate(f"{point.coefficient:g}", (point.x, point.y), **at)
        y = QUALITY[quality if source == "this run" else "response_quality"]
        title = f"{source}: {configuration}" if configuration else source
        ax.set(xlabel=shared.SATISFACTION, ylabel=y, title=title)
        if rows["x"].isna().all():
            shared.note(ax, 0.5, 0.5, "not run", transform=ax.transAxes, ha="center")
    shared.legend(axes[0], shared.point_handles(["base", "calif", "if_rlvr"]))
    return axes


def no_kl(table: pd.DataFrame, quality: str) -> np.ndarray:
    """Fig. 9: Constraint Satisfaction and quality of the arms with and without a KL term.

    ``table``: `califkit.exhibits.arms.with_differences` of `NO_KL`, error bars are sample
    deviations over runs. Two Axes.
    """
    axes = shared.panels(2, (9.0, 3.8))
    names = {"prompt_level_loose_acc": METRICS["prompt_level_loose_acc"], quality: QUALITY[quality]}
    for ax, (metric, title) in zip(axes, names.items(), strict=True):
        _arm_bars(ax, table[table["metric"] == metric], NO_KL)
        ax.set(ylabel=title.replace(": ", ":\n"))
    shared.legend(axes[0], axes[0].get_legend_handles_labels()[0])
    return axes


def _arm_bars(ax: Axes, rows: pd.DataFrame, arms: Sequence[str]) -> None:
    """A group of bars a configuration, one bar an arm, with the deviation over runs."""
    configurations = list(dict.fromkeys(rows["configuration"]))
    width = 0.8 / len(arms)
    for place, arm in enumerate(arms):
        own = rows[rows["arm"] == arm].set_index("configuration").reindex(configurations)
        x = np.arange(len(configurations)) + (place - (len(arms) - 1) / 2) * width
        method = max((name for name in LOOKS if arm.startswith(name)), key=len)
        bars = {"width": width * 0.92, "color": look(method).colour, "label": arm_label(arm)}
        if arm != method:  # another setting of a method that has a bar of its own
            bars |= {"hatch": "//", "edgecolor": "white"}
        ax.bar(x, own["mean"], yerr=own["std"].fillna(0), ecolor=shared.INTERVAL, **bars)
        for at in x[own["mean"].isna().to_numpy()]:
            shared.note(ax, at, 0, "not run", rotation=90, ha="center", va="bottom")
    ax.set_xticks(range(len(configurations)), [name or "this run" for name in configurations])
    ax.set_xlim(-0.6, len(configurations) - 0.4)
