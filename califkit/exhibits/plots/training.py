"""Pictures of training runs: curves over the step, and where the rollouts lie."""

from __future__ import annotations

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from califkit.exhibits.methods import LOOKS, label, look, palette
from califkit.exhibits.plots import shared

_CURVES = {
    "r_ver": "r_ver (share of constraints followed)",
    "loglik": "l given the request (nats per token)",
    "tokens": "answer length (tokens)",
    "distinct_2": "distinct-2",
}


def training_curves(steps: pd.DataFrame, smooth: pd.DataFrame) -> np.ndarray:
    """Training: four curves over the step, and l against r_ver.

    ``steps`` (drawn faintly) and ``smooth`` (drawn strongly) have the columns of
    `califkit.exhibits.training.training_table`. Returns six Axes; the last holds the legend.
    """
    axes = shared.panels(3, (11.5, 6.2), rows=2)
    for ax, (column, title) in zip(axes, _CURVES.items(), strict=False):
        _curves(ax, steps, "step", column, alpha=0.25)
        _curves(ax, smooth, "step", column)
        ax.set(xlabel="step", ylabel="", title=title)
        ax.xaxis.get_major_locator().set_params(integer=True)
    _curves(axes[4], smooth, "r_ver", "loglik")
    axes[4].set(xlabel="r_ver", ylabel="", title="l at equal r_ver (marker: last step)")
    axes[5].axis("off")
    handles = [
        Line2D([], [], color=one.colour, dashes=one.dashes, marker=one.marker, label=one.label)
        for method, one in LOOKS.items()
        if method in set(steps["method"])
    ]
    handles.append(Line2D([], [], color=shared.GREY, alpha=0.3, label="single steps"))
    handles.append(Line2D([], [], color=shared.GREY, label="running mean"))
    axes[5].legend(handles=handles, loc="center left", fontsize=10)
    return axes


def _curves(ax: Axes, table: pd.DataFrame, x: str, y: str, alpha: float = 1.0) -> None:
    """A line a training run; strong ones have the method's marker at their last step."""
    methods = list(dict.fromkeys(table["method"]))
    looks = {"hue": "method", "palette": palette(methods), "style": "method", "legend": False}
    dashes = {method: look(method).dashes for method in methods}
    runs = {"units": "train_seed", "estimator": None, "sort": False, "alpha": alpha}
    sns.lineplot(table, x=x, y=y, **looks, dashes=dashes, **runs, ax=ax)
    if alpha == 1.0:
        last = table.groupby(["method", "train_seed"], sort=False).tail(1)
        markers = {method: look(method).marker for method in methods}
        sns.scatterplot(last, x=x, y=y, **looks, markers=markers, s=50, ax=ax)


def zone_shares(steps: pd.DataFrame, steps_a_pass: int = 1) -> np.ndarray:
    """Share of rollouts in each zone in each pass over the prompts, stacked, a panel a method.

    A step sees few prompts, and other ones than the next: only whole passes compare. Shares are
    means over the steps of a pass and over training seeds; the last pass may be cut.
    """
    shown = [zone for zone in shared.ZONE_COLOURS if steps[zone].max() > 0]
    number = np.ceil(steps["step"] / steps_a_pass).astype(int).rename("pass")
    means = steps.groupby(["method", number], sort=False)[shown].mean().reset_index()
    methods = list(dict.fromkeys(means["method"]))
    axes = shared.panels(len(methods), (3.6 * len(methods) + 1.8, 3.6), sharey=True)
    for ax, method in zip(axes, methods, strict=True):
        own = means[means["method"] == method].sort_values("pass")
        bottom = np.zeros(len(own))
        for zone in shown:
            ax.bar(own["pass"], own[zone], 0.9, bottom, color=shared.ZONE_COLOURS[zone], alpha=0.85)
            bottom += own[zone].to_numpy()
        ax.set(xlabel="pass over the prompts" if steps_a_pass > 1 else "step", ylim=(0, 1))
        ax.set_title(label(method))
        ax.margins(x=0.02)
        ax.xaxis.get_major_locator().set_params(integer=True)
    axes[0].set_ylabel("share of rollouts")
    shared.legend(axes[0], shared.zone_handles(shown[::-1], 0.85), "right center")
    return axes
