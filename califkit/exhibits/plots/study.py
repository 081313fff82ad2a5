"""Pictures of a study: arms over the steps, in the plane, and against one another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.lines import Line2D

from califkit.exhibits.methods import LOOKS, arm_label
from califkit.exhibits.plots import shared
from califkit.exhibits.study import BASE
from califkit.exhibits.training import WINDOW

_CURVES = {
    "r_ver": "r_ver (share of constraints followed)",
    "loglik": "l given the request (nats per token)",
    "tokens": "answer length (tokens)",
    "distinct_2": "distinct-2",
}
MEASURE_LABELS = {
    "passes": "prompts with all constraints followed (share)",
    "share": "share of constraints followed",
    "information": "request identification: information (nats an answer)",
    "loglik": "l given the request (nats per token)",
    "tokens": "answer length (tokens)",
    "distinct_2": "distinct-2",
}


def colours(arms: Iterable[str]) -> dict[str, tuple[float, float, float] | str]:
    """Arms named like a method are drawn like it; the others have colours of their own."""
    others = iter(sns.color_palette("husl", 16))
    return {arm: LOOKS[arm].colour if arm in LOOKS else next(others) for arm in arms}


def arm_curves(training: pd.DataFrame, window: int = WINDOW) -> np.ndarray:
    """Four quantities over the steps: an arm's mean over seeds, in a band from lowest to highest.

    ``training`` is `califkit.exhibits.study.training_logs`; every run is smoothed by a running mean
    over ``window`` steps first. Four Axes.
    """
    runs = training.sort_values("step").groupby(["arm", "seed"], sort=False)
    smooth = runs[list(_CURVES)].rolling(window, min_periods=1).mean().droplevel([0, 1])
    table = training[["arm", "seed", "step"]].join(smooth)
    arms = list(dict.fromkeys(table["arm"]))
    axes = shared.panels(2, (9.5, 6.4), rows=2)
    for ax, (column, title) in zip(axes, _CURVES.items(), strict=True):
        looks = {"hue": "arm", "palette": colours(arms), "hue_order": arms, "legend": False}
        sns.lineplot(table, x="step", y=column, **looks, errorbar=("pi", 100), ax=ax)
        ax.set(xlabel="step", ylabel="", title=title)
    handles = [
        Line2D([], [], color=colour, label=arm_label(arm)) for arm, colour in colours(arms).items()
    ]
    shared.legend(axes[0], handles)
    return axes


def campaign_curves(steps: pd.DataFrame, window: int = WINDOW) -> np.ndarray:
    """r_ver and l over the steps so far, a line an arm, two Axes a configuration.

    ``steps``: ``configuration``, ``arm``, ``step``, ``r_ver``, ``loglik``. Lines are running means
    over ``window`` steps.
    """
    palette = colours(dict.fromkeys(steps["arm"]))
    groups = list(steps.groupby("configuration", sort=False))
    axes = shared.panels(2, (9.5, 2.6 * len(groups) + 0.8), rows=len(groups))
    for row, (configuration, found) in enumerate(groups):
        for ax, column in zip(axes[2 * row : 2 * row + 2], ("r_ver", "loglik"), strict=True):
            for arm, run in found.groupby("arm", sort=False):
                smooth = run[column].rolling(window, min_periods=1).mean()
                ax.plot(run["step"], smooth, color=palette[arm])
            ax.set(xlabel="step", ylabel="", title=f"{configuration} {_CURVES[column]}".strip())
            ax.xaxis.get_major_locator().set_params(integer=True)
    handles = [Line2D([], [], color=c, label=arm_label(arm)) for arm, c in palette.items()]
    shared.legend(axes[0], handles, "center right")
    return axes


def arm_plane(levels: pd.DataFrame, x: str = "share", y: str = "information") -> np.ndarray:
    """Arms in the plane of what the verifier sees and what it does not, with 95 % intervals.

    ``levels`` is `califkit.exhibits.study.levels`. Up and to the right is better. One Axes.
    """
    axes = shared.panels(1, (7.6, 5.2))
    wide = levels.pivot(index="arm", columns="measure", values=["value", "low", "high"])
    arms = list(dict.fromkeys(levels["arm"]))
    for arm, colour in colours(arms).items():
        at, low, high = (wide.loc[arm, part] for part in ("value", "low", "high"))
        errors = [[[at[name] - low[name]], [high[name] - at[name]]] for name in (x, y)]
        style = {"fmt": "o" if arm != BASE else "D", "color": colour, "elinewidth": 0.9}
        axes[0].errorbar(
            at[x], at[y], xerr=errors[0], yerr=errors[1], **style, label=arm_label(arm)
        )
    axes[0].set(xlabel=MEASURE_LABELS[x], ylabel=MEASURE_LABELS[y])
    shared.legend(axes[0], axes[0].get_legend_handles_labels()[0], "right center")
    return axes


def arm_differences(
    differences: pd.DataFrame, measures: Sequence[str] = ("information", "loglik", "tokens")
) -> np.ndarray:
    """Differences from one arm at equal share of followed constraints, with 95 % intervals.

    ``differences`` is the table of `califkit.exhibits.study.differences`. Small points: single
    seeds. An Axes a measure.
    """
    arms = list(dict.fromkeys(differences["arm"]))[::-1]
    size = (4.2 * len(measures), 1.5 + 0.4 * len(arms))
    axes = shared.panels(len(measures), size, sharey=True)
    for ax, measure in zip(axes, measures, strict=True):
        ax.axvline(0, color=shared.GREY, lw=0.8)
        for row in differences[differences["measure"] == measure].itertuples():
            y, colour = arms.index(row.arm), colours([row.arm])[row.arm]
            errors = [[row.value - row.low], [row.high - row.value]]
            ax.errorbar(row.value, y, xerr=errors, fmt="o", color=colour, capsize=3)
            ax.plot(list(row.by_seed.values()), [y] * len(row.by_seed), "|", color=colour, ms=9)
        ax.set(
            yticks=range(len(arms)),
            yticklabels=map(arm_label, arms),
            xlabel=MEASURE_LABELS[measure],
        )
    against = differences["against"].iloc[0]
    what = f"difference from {arm_label(against)} at equal share of followed constraints"
    axes[0].set_title(what, loc="left")
    return axes
