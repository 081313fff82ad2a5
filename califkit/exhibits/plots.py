"""One function per figure: a table in, matplotlib Axes out.

Nothing here computes a statistic; tables come from `califkit.evaluation.scores` and
`califkit.exhibits.paper`. Methods keep one colour and one marker everywhere (Okabe and Ito's
palette, told apart without colour by the marker), our numbers are filled, the paper's are hollow
and say "paper".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from califkit.exhibits.methods import LOOKS, MAIN
from califkit.runs.paths import project_root

METHODS = MAIN
LABELS = {method: look.label for method, look in LOOKS.items()}
COLOURS = {method: look.colour for method, look in LOOKS.items()}
MARKERS = {method: look.marker for method, look in LOOKS.items()}
LINES = {method: look.line for method, look in LOOKS.items()}
HATCHES = {method: look.hatch for method, look in LOOKS.items()}

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

_STYLE = {
    "figure.constrained_layout.use": True,
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "lines.markersize": 7,
    "pdf.fonttype": 42,
    "savefig.dpi": 200,
}


def _styled(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def drawn(*args: Any, **kwargs: Any) -> Any:
        with plt.rc_context(_STYLE):
            axes = function(*args, **kwargs)
            interactive = plt.isinteractive()
        # The first figure of a notebook loads its backend, which turns interactive drawing on;
        # leaving the context would turn it off again and later figures would not be shown.
        if interactive:
            plt.ion()
        return axes

    return drawn


@_styled
def region(curves: pd.DataFrame) -> np.ndarray:
    """Fig. 4: the CaLIF reward over l, a panel each for usual and reversed bounds.

    Parameters
    ----------
    curves
        Rows on a grid of l that contains the bounds: ``l0``, ``l1`` (they name the panel),
        ``r_ver``, ``l``, ``reward``.

    Returns
    -------
    numpy.ndarray
        The Axes, in order of first appearance of the bounds.
    """
    panels = list(curves.groupby(["l0", "l1"], sort=False))
    _, axes = plt.subplots(
        1, len(panels), figsize=(5.2 * len(panels), 3.9), sharey=True, squeeze=False
    )
    for ax, ((l0, l1), panel) in zip(axes[0], panels, strict=True):
        ends = (panel["l"].min(), panel["l"].max())
        # Where the lines coincide, a thinner one lies on a thicker one and all stay visible.
        levels = sorted(panel["r_ver"].unique(), reverse=True)
        for width, r_ver in zip((5.0, 3.0, 1.2), levels, strict=False):
            curve = panel[panel["r_ver"] == r_ver]
            colour = {0.0: "black", 0.5: "#56B4E9"}.get(r_ver, COLOURS["calif"])
            ax.plot(curve["l"], curve["reward"], color=colour, lw=width, clip_on=False)
            at_bounds = curve[curve["l"].isin([l0, l1] if l0 <= l1 else [l1])]
            ax.plot(at_bounds["l"], at_bounds["reward"], "o", color=colour, ms=width + 3)
            start = (curve["l"].iloc[0], curve["reward"].iloc[0])
            ax.annotate(f"$r_{{ver}}$ = {r_ver:g}", start, (4, 6), textcoords="offset points")
        _shade_zones(ax, ends, l0, l1, names=True)
        ax.set(xlabel=f"l, {LOGLIK}", ylim=(-0.04, 1.42), yticks=[0, 0.5, 1])
        ax.set_title(_bounds_title(l0, l1))
    axes[0, 0].set_ylabel("CaLIF reward")
    return axes[0]


def _bounds_title(l0: float, l1: float) -> str:
    if l0 <= l1:
        return f"usual bounds: l0 = {l0:g} ≤ l1 = {l1:g}"
    return f"reversed bounds: l0 = {l0:g} > l1 = {l1:g}"


def _shade_zones(ax: Axes, ends: tuple[float, float], l0: float, l1: float, names: bool) -> None:
    """Colour the zones of an l axis and mark l0 and l1; ``names`` writes zone names on top."""
    low, high = ends
    if l0 <= l1:
        spans = {"below": (low, l0), "inside": (l0, l1), "above": (l1, high)}
        words = {"below": "quality\nrisk", "inside": "desired", "above": "inflation\nrisk"}
    else:
        spans = {"reversed": (low, l1), "above": (l1, high)}
        words = {"reversed": "no bonus anywhere", "above": "inflation\nrisk"}
    top = ax.get_xaxis_transform()
    for zone, (start, end) in spans.items():
        ax.axvspan(start, end, color=ZONE_COLOURS[zone], alpha=0.16, lw=0)
        if names:
            ax.text((start + end) / 2, 0.97, words[zone], transform=top, ha="center", va="top")
    height = 0.83 if names else 1.0
    for name, bound in (("l0", l0), ("l1", l1)):
        ax.axvline(bound, ymax=height, color="black", lw=1, ls=":" if name == "l0" else "-.")
        ax.text(bound, height + 0.01, name, transform=top, va="bottom", ha="center")
    ax.set_xlim(low, high)


@_styled
def likelihood_axis(points: pd.DataFrame, l0: float, l1: float) -> Axes:
    """Answers on the likelihood axis, with the zones that l0 and l1 make.

    ``points``: a row an answer, from top to bottom; the index names it, columns ``l``, ``r_ver``
    and ``CaLIF`` (the reward), both written at the right.
    """
    _, ax = plt.subplots(figsize=(8.6, 1.5 + 0.38 * len(points)))
    values = [*points["l"].dropna(), l0, l1]
    margin = 0.12 * (max(values) - min(values))
    ends = (min(values) - margin, min(max(values) + margin, max(0.0, max(values))))
    height = np.arange(len(points))[::-1]
    for y, (_, row) in zip(height, points.iterrows(), strict=True):
        ax.plot([ends[0], row["l"]], [y, y], color="#bbbbbb", lw=0.8, zorder=1)
        face = COLOURS["calif"] if row["r_ver"] > 0 else "white"
        ax.plot(row["l"], y, "o", mfc=face, mec=COLOURS["calif"], ms=8, zorder=3)
        ax.text(
            1.02,
            y,
            f"r_ver {row['r_ver']:.2f}   reward {row['CaLIF']:.2f}",
            transform=ax.get_yaxis_transform(),
            va="center",
        )
    ax.set_yticks(height, points.index)
    ax.set_ylim(-0.7, len(points) - 0.3)
    _shade_zones(ax, ends, l0, l1, names=False)
    ax.set_xlabel(f"l, {LOGLIK}")
    shown = ("below", "inside", "above") if l0 <= l1 else ("reversed", "above")
    handles = [Patch(color=ZONE_COLOURS[z], alpha=0.3, label=ZONE_LABELS[z]) for z in shown]
    handles.append(_handle("o", "white", COLOURS["calif"], "follows no constraint"))
    ax.figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
    return ax


def _handle(marker: str, face: str, edge: str, label: str) -> Line2D:
    return Line2D([], [], ls="", marker=marker, mfc=face, mec=edge, label=label)


@_styled
def anchor_bounds(anchors: pd.DataFrame) -> np.ndarray:
    """The bounds of the training prompts: l1 against l0, and how both are spread.

    ``anchors``: a row a prompt with ``l0`` and ``l1``; below the diagonal the bounds are reversed.
    """
    _, axes = plt.subplots(1, 2, figsize=(9.6, 4.2))
    known = anchors.dropna(subset=["l0", "l1"])
    values = known[["l0", "l1"]].to_numpy()
    ends = (values.min(), values.max()) if len(known) else (-1.0, 0.0)
    margin = 0.05 * (ends[1] - ends[0]) or 0.1
    ends = (ends[0] - margin, ends[1] + margin)
    ax = axes[0]
    reverse = known["l0"] > known["l1"]
    for mask, marker, colour, name in (
        (~reverse, "o", ZONE_COLOURS["inside"], "l0 ≤ l1: a region"),
        (reverse, "x", "#333333", "l0 > l1: reversed"),
    ):
        part = known[mask]
        ax.scatter(
            part["l0"], part["l1"], marker=marker, c=colour, s=26, label=f"{name} ({len(part)})"
        )
    ax.plot(ends, ends, color="black", lw=0.8, ls="--")
    ax.set(xlim=ends, ylim=ends, aspect="equal", title="a point a prompt")
    ax.set(xlabel="l0, from the answer to request and constraints", ylabel="l1, request alone")
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2)
    bins = np.linspace(*ends, 25)
    for name, face, edge in (("l0", "#56B4E9", "#56B4E9"), ("l1", "none", "black")):
        style = {"histtype": "stepfilled", "facecolor": face, "edgecolor": edge, "lw": 1.5}
        axes[1].hist(anchors[name].dropna(), bins, label=name, **style)
    axes[1].set(xlabel=LOGLIK, ylabel="prompts", title="how the bounds are spread")
    axes[1].legend()
    return axes


@_styled
def training_curves(steps: pd.DataFrame, smooth: pd.DataFrame) -> np.ndarray:
    """Training: four curves over the step, and l against r_ver.

    ``steps`` (drawn faintly) and ``smooth`` (drawn strongly) have the columns of
    `califkit.exhibits.training.training_table`.
    """
    _, axes = plt.subplots(2, 3, figsize=(11.5, 6.2))
    panels = {
        "r_ver": "r_ver (share of constraints followed)",
        "loglik": "l given the request (nats per token)",
        "tokens": "answer length (tokens)",
        "distinct_2": "distinct-2",
    }
    flat = axes.flatten()
    for ax, (column, label) in zip(flat, panels.items(), strict=False):
        for table, strength in ((steps, 0.25), (smooth, 1.0)):
            for (method, _), run in table.groupby(["method", "train_seed"], sort=False):
                style = {"color": COLOURS[method], "alpha": strength}
                ax.plot(run["step"], run[column], LINES[method], **style)
                if strength == 1.0:
                    last = run.iloc[-1]
                    ax.plot(last["step"], last[column], MARKERS[method], color=COLOURS[method])
        ax.set(xlabel="step", title=label)
        ax.xaxis.get_major_locator().set_params(integer=True)
    ax = flat[4]
    for (method, _), run in smooth.groupby(["method", "train_seed"], sort=False):
        ax.plot(run["r_ver"], run["loglik"], LINES[method], color=COLOURS[method])
        ax.plot(
            run["r_ver"].iloc[-1:], run["loglik"].iloc[-1:], MARKERS[method], color=COLOURS[method]
        )
    ax.set(xlabel="r_ver", title="l at equal r_ver (marker: last step)")
    flat[5].axis("off")
    present = [m for m in LABELS if m in set(steps["method"])]
    handles = [
        Line2D([], [], color=COLOURS[m], ls=LINES[m], marker=MARKERS[m], label=LABELS[m])
        for m in present
    ]
    handles.append(Line2D([], [], color="#555555", alpha=0.3, label="single steps"))
    handles.append(Line2D([], [], color="#555555", label="running mean"))
    flat[5].legend(handles=handles, loc="center left", fontsize=10)
    return axes


@_styled
def zone_shares(steps: pd.DataFrame) -> np.ndarray:
    """Share of rollouts in each zone over the step, stacked, a panel a training run."""
    runs = list(steps.groupby(["method", "train_seed"], sort=False))
    _, axes = plt.subplots(
        1, len(runs), figsize=(4.4 * len(runs) + 0.6, 3.6), sharey=True, squeeze=False
    )
    shown = [zone for zone in ZONE_COLOURS if steps[zone].max() > 0]
    several = steps["train_seed"].nunique() > 1
    for ax, ((method, seed), run) in zip(axes[0], runs, strict=True):
        ax.stackplot(
            run["step"],
            [run[zone] for zone in shown],
            colors=[ZONE_COLOURS[zone] for zone in shown],
            edgecolor="white",
            lw=0.6,
            alpha=0.85,
        )
        ax.set(xlabel="step", ylim=(0, 1), xlim=(run["step"].min(), run["step"].max()))
        ax.set_title(LABELS[method] + (f", seed {seed}" if several else ""))
        ax.xaxis.get_major_locator().set_params(integer=True)
    axes[0, 0].set_ylabel("share of rollouts")
    handles = [Patch(color=ZONE_COLOURS[z], alpha=0.85, label=ZONE_LABELS[z]) for z in shown[::-1]]
    axes[0, 0].figure.legend(handles=handles, loc="outside right center")
    return axes[0]


@_styled
def main_results(table: pd.DataFrame) -> np.ndarray:
    """Fig. 5: what training does to Constraint Satisfaction, and to what stands against it.

    Parameters
    ----------
    table
        Rows of `califkit.exhibits.summary.beside_paper` for the metrics ``prompt_level_loose_acc``,
        ``loglik`` and ``response_quality``.

    Returns
    -------
    numpy.ndarray
        Three Axes: Constraint Satisfaction, base to trained; Constraint Satisfaction against
        reference log-likelihood; the paper's plane with response quality, where this run has a
        sentence instead of points until a judge has measured it.
    """
    _, axes = plt.subplots(1, 3, figsize=(13.2, 5.0), width_ratios=(1.25, 1, 1))
    _satisfaction_rows(axes[0], table)
    _arrows(axes[1], table, "loglik")
    axes[1].set(xlabel=SATISFACTION, ylabel="reference log-likelihood (nats per token)")
    axes[1].set_title("against log-likelihood\n(not response quality)")
    _arrows(axes[2], table, "response_quality")
    axes[2].set(xlabel=SATISFACTION, ylabel=f"response quality (1 to 10)\n{_judges(table)}")
    axes[2].set_title("against response quality\n(the paper's plane)")
    for (source, _), group in _wide(table, "response_quality").items():
        if source == "this run" and (why := _why_empty(group)):
            where = {"transform": axes[2].transAxes, "ha": "center", "style": "italic"}
            axes[2].text(0.5, 0.03, f"this run: {why}", **where)
    handles = [_handle(MARKERS[m], COLOURS[m], COLOURS[m], LABELS[m]) for m in METHODS]
    handles += [
        _handle("D", "#555555", "#555555", "filled: this run (± sample std over runs)"),
        _handle("D", "white", "#555555", "hollow: paper"),
    ]
    axes[0].figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return axes


def _judges(table: pd.DataFrame) -> str:
    """Who gave the scores that are drawn, by source."""
    scored = table[(table["metric"] == "response_quality") & table["value"].notna()]
    names = scored.groupby("source", sort=False)["judge"].first()
    return "; ".join(f"{source}: {judge}" for source, judge in names.items())


def _wide(table: pd.DataFrame, metric: str) -> dict[tuple[str, str], pd.DataFrame]:
    """Rows of one metric by (source, configuration), each group indexed by method."""
    groups = table[table["metric"] == metric].groupby(["source", "configuration"], sort=False)
    return {key: group.set_index("method").reindex(METHODS) for key, group in groups}


def _why_empty(group: pd.DataFrame) -> str:
    """The note of a group without any value, else an empty string."""
    notes = [note for note in group["note"] if isinstance(note, str) and note]
    return notes[0] if notes and group["value"].isna().all() else ""


def _satisfaction_rows(ax: Axes, table: pd.DataFrame) -> None:
    """A row a configuration: markers at base and each trained policy, arrows from the base."""
    groups = _wide(table, "prompt_level_loose_acc")
    names = []
    for y, ((source, name), group) in zip(range(len(groups))[::-1], groups.items(), strict=True):
        names.append(f"{name}\n({source})")
        ax.text(0.03, y, _why_empty(group), transform=ax.get_yaxis_transform(), style="italic")
        base = group.at["base", "value"]
        for method, lift in zip(METHODS, (0.0, 0.14, -0.14), strict=True):
            x, std = group.at[method, "value"], group.at[method, "std"]
            if np.isnan(x):
                continue
            if method != "base" and not np.isnan(base):
                _arrow(ax, (base, y + lift), (x, y + lift), COLOURS[method])
            _point(ax, x, y + lift, method, source, xerr=std)
    ax.set_yticks(range(len(groups))[::-1], names)
    ax.set(xlabel=SATISFACTION, ylim=(-0.6, len(groups) - 0.4))
    ax.set_title("Constraint Satisfaction\nbase → trained")


def _arrows(ax: Axes, table: pd.DataFrame, metric: str) -> None:
    """The plane of Constraint Satisfaction and another metric, arrows from base to trained."""
    satisfaction = _wide(table, "prompt_level_loose_acc")
    for (source, name), group in _wide(table, metric).items():
        along = satisfaction[source, name]
        points = {
            m: (along.at[m, "value"], group.at[m, "value"])
            for m in METHODS
            if not np.isnan([along.at[m, "value"], group.at[m, "value"]]).any()
        }
        for method, (x, y) in points.items():
            if method != "base" and "base" in points:
                _arrow(ax, points["base"], (x, y), COLOURS[method])
            errors = {"xerr": along.at[method, "std"], "yerr": group.at[method, "std"]}
            _point(ax, x, y, method, source, **errors)
        if points and source == "paper":
            anchor = points.get("calif") or next(iter(points.values()))
            place = {"xytext": (0, 9), "textcoords": "offset points", "ha": "center"}
            ax.annotate(f"{name} (paper)", anchor, fontsize=7.5, **place)
    ax.margins(0.27, 0.18)


def _point(ax: Axes, x: float, y: float, method: str, source: str, **errors: float) -> None:
    face = COLOURS[method] if source == "this run" else "white"
    given = {name: error for name, error in errors.items() if not np.isnan(error)}
    ax.errorbar(
        x,
        y,
        **given,
        fmt=MARKERS[method],
        mfc=face,
        mec=COLOURS[method],
        ecolor=COLOURS[method],
        elinewidth=0.9,
        capsize=3,
        zorder=3,
    )


def _arrow(ax: Axes, start: tuple[float, float], end: tuple[float, float], colour: str) -> None:
    style = {"arrowstyle": "->", "color": colour, "lw": 1.1, "shrinkA": 4, "shrinkB": 5}
    ax.annotate("", end, start, arrowprops=style, zorder=2)


@_styled
def likelihood_bars(table: pd.DataFrame) -> Axes:
    """Fig. 6: reference log-likelihood of the responses, bars a method, groups a configuration.

    ``table``: rows of `califkit.exhibits.summary.beside_paper` for ``loglik``. A group without a
    value says why.
    """
    groups = _wide(table, "loglik")
    _, ax = plt.subplots(figsize=(1.7 * len(groups) + 1.2, 4.4))
    lowest = min(group["value"].min() for group in groups.values() if group["value"].notna().any())
    for x, ((source, _), group) in enumerate(groups.items()):
        for method, shift in zip(METHODS, (-0.27, 0.0, 0.27), strict=True):
            value, std = group.at[method, "value"], group.at[method, "std"]
            if np.isnan(value):
                continue
            error = 0.0 if np.isnan(std) else std
            style = {"facecolor": COLOURS[method], "edgecolor": COLOURS[method], "lw": 1.4}
            if source == "paper":
                style |= {"facecolor": "white", "hatch": HATCHES[method]}
            ax.bar(x + shift, value, 0.24, yerr=error or None, ecolor="#8c8c8c", capsize=3, **style)
            low = value - error + 0.02 * lowest
            ax.text(x + shift, low, f"{value:.2f}", ha="center", va="top")
        why = _why_empty(group).replace(" in the", "\nin the")
        ax.text(x, 0.03 * lowest, why, ha="center", va="top", style="italic")
    ax.set_xticks(range(len(groups)), [f"{name}\n({source})" for source, name in groups])
    ax.set(ylabel="reference log-likelihood (nats per token)")
    ax.set(ylim=(1.14 * lowest, 0), xlim=(-0.6, len(groups) - 0.4))
    ax.spines["bottom"].set_visible(False)
    ax.spines["top"].set_visible(True)  # the zero line, from which the bars hang
    ax.tick_params(axis="x", length=0)
    handles = [Patch(color=COLOURS[m], label=LABELS[m]) for m in METHODS]
    handles.append(Patch(facecolor="white", edgecolor="#555555", label="hollow: paper"))
    ax.figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
    return ax


@_styled
def id_shares(table: pd.DataFrame) -> Axes:
    """Share of responses that follow each constraint id, a row an id, a marker a method.

    ``table`` is that of `califkit.exhibits.summary.id_table`: index the id, ``n``, a column a
    method.
    """
    _, ax = plt.subplots(figsize=(7.6, 1.5 + 0.24 * len(table)))
    height = np.arange(len(table))[::-1]
    methods = [method for method in LABELS if method in table]
    ax.hlines(height, table[methods].min(axis=1), table[methods].max(axis=1), color="#bbbbbb", lw=1)
    for method in methods:
        # Open markers: policies that agree lie on top of each other and all stay visible.
        style = {"mfc": "none", "mec": COLOURS[method], "mew": 1.6, "label": LABELS[method]}
        ax.plot(table[method], height, MARKERS[method], **style)
    ax.set_yticks(height, [f"{name}  (n = {n})" for name, n in table["n"].items()])
    ax.set(xlabel="responses that follow it, loose (%)", xlim=(-3, 103))
    ax.set_ylim(-0.7, len(table) - 0.3)
    ax.figure.legend(loc="outside upper center", ncols=len(methods))
    return ax


@_styled
def constraint_types(table: pd.DataFrame) -> np.ndarray:
    """Fig. 7: Constraint Satisfaction, response quality and length by constraint type.

    Parameters
    ----------
    table
        A `califkit.exhibits.types.type_table`: groups are its types, bars its methods, error bars
        its intervals. A panel or a group without a value says why.

    Returns
    -------
    numpy.ndarray
        The three Axes.
    """
    labels = {
        "prompt_level_loose_acc": SATISFACTION,
        "response_quality": "response quality (1 to 10)",
        "tokens": "response length (tokens)",
    }
    types = list(dict.fromkeys(table["type"]))
    methods = [method for method in METHODS if method in set(table["method"])]
    counts = table[table["metric"] == "prompt_level_loose_acc"].groupby("type")["n"].max()
    width = 0.84 / len(methods)
    _, axes = plt.subplots(1, 3, figsize=(0.78 * (3 * len(types) + 1) + 1.2, 3.9))
    for ax, (metric, label) in zip(axes, labels.items(), strict=True):
        part = table[table["metric"] == metric]
        judge = next((f"\njudge: {name}" for name in part["judge"] if name), "")
        for number, method in enumerate(methods):
            bars = part[part["method"] == method].set_index("type").reindex(types)
            x = np.arange(len(types)) + (number - (len(methods) - 1) / 2) * width
            _bars_with_intervals(ax, x, bars, 0.92 * width, method)
        if part["value"].isna().all():
            where = {"transform": ax.transAxes, "ha": "center", "va": "center", "style": "italic"}
            ax.text(0.5, 0.5, part["note"].iloc[0].replace(": ", ":\n"), **where)
            ax.set_yticks([])
        else:
            for x, name in enumerate(types):
                if counts[name] == 0:
                    where = {"rotation": 90, "ha": "center", "va": "bottom", "style": "italic"}
                    ax.text(x, 0, " no prompt", **where)
        ax.set_xticks(range(len(types)), [f"{name}\nn = {counts[name]}" for name in types])
        ax.set(xlim=(-0.6, len(types) - 0.4), ylim=(0, None), title=label + judge)
    handles = [Patch(color=COLOURS[m], label=LABELS[m]) for m in methods]
    handles.append(Line2D([], [], color="#8c8c8c", label="95 % bootstrap interval over prompts"))
    axes[0].figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
    return axes


def _bars_with_intervals(
    ax: Axes, x: np.ndarray, bars: pd.DataFrame, width: float, method: str
) -> None:
    """Bars of one method with their values on top; a bar of zero shows by its number."""
    ax.bar(x, bars["value"], width, color=COLOURS[method])
    ends = np.nan_to_num([bars["value"] - bars["low"], bars["high"] - bars["value"]])
    ends = ends.clip(min=0)  # rounding can leave an end a hair inside
    ax.errorbar(x, bars["value"], ends, fmt="none", ecolor="#8c8c8c", capsize=2)
    for place, (_, bar) in zip(x, bars.iterrows(), strict=True):
        if not np.isnan(bar["value"]):
            top = np.nanmax([bar["value"], bar["high"]])
            style = {"ha": "center", "va": "bottom", "fontsize": 7, "color": COLOURS[method]}
            offset = {"xytext": (0, 2), "textcoords": "offset points"}
            text = f"{bar['value']:.3g}" if bar["value"] < 100 else f"{bar['value']:.0f}"
            ax.annotate(text, (place, top), **offset, **style)


@_styled
def anchor_health(
    answers: pd.DataFrame, by_length: pd.DataFrame, octiles: pd.DataFrame
) -> np.ndarray:
    """How l depends on the length of an answer, and where bounds are reversed.

    Parameters
    ----------
    answers
        A row an answer: ``side``, ``tokens``, ``l`` (`califkit.anchors.report.answers`).
    by_length
        ``side``, ``tokens_from``, ``tokens_to``, ``median_l``: drawn as steps.
    octiles
        ``octile``, ``ratio_from``, ``ratio_to``, ``n``, ``reversed`` (a share).

    Returns
    -------
    numpy.ndarray
        The two Axes.
    """
    _, axes = plt.subplots(1, 2, figsize=(9.6, 4.0))
    looks = {"constrained": ("x", "#D55E00"), "natural": ("o", "#0072B2")}
    for side, (marker, colour) in looks.items():
        part = answers[(answers["side"] == side) & (answers["tokens"] > 0)]
        face = {"facecolors": "none", "edgecolors": colour} if marker == "o" else {"c": colour}
        style = {"marker": marker, "s": 16, "lw": 0.8, "alpha": 0.6, "rasterized": True}
        axes[0].scatter(part["tokens"], part["l"], label=f"{side} ({len(part)})", **style, **face)
        medians = by_length[by_length["side"] == side]
        ends = medians["tokens_from"], medians["tokens_to"]
        axes[0].hlines(medians["median_l"], *ends, color=colour, lw=2.5)
    axes[0].set_xscale("log", base=2)
    axes[0].xaxis.set_major_formatter("{x:g}")
    axes[0].set(xlabel="length of the answer (tokens)", ylabel="l given the request (nats / token)")
    axes[0].set_title("an answer each; bars: medians by length")
    axes[0].legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)
    bars = axes[1].bar(octiles["octile"], 100 * octiles["reversed"], color="#999999")
    axes[1].bar_label(bars, [f"n = {n}" for n in octiles["n"]], padding=2, fontsize=8)
    names = [
        f"{a:.2f}\nto {b:.2f}"
        for a, b in zip(octiles["ratio_from"], octiles["ratio_to"], strict=True)
    ]
    axes[1].set_xticks(octiles["octile"], names, fontsize=8)
    axes[1].set(xlabel="length ratio constrained / natural", ylabel="reversed bounds (%)")
    axes[1].set(ylim=(0, 109), title="reversed bounds by octile of length ratio")
    return axes


@_styled
def transition_changes(table: pd.DataFrame, beside: pd.DataFrame) -> np.ndarray:
    """Table 2 drawn: what changes where the verdict stayed or changed, a panel a quantity.

    Parameters
    ----------
    table
        `califkit.exhibits.pairs.transition_table` of one or more methods.
    beside
        `califkit.exhibits.pairs.transitions_beside_paper` of the same table.

    Returns
    -------
    numpy.ndarray
        Two Axes: response quality (this run filled, the paper hollow) and reference
        log-likelihood.
    """
    _, axes = plt.subplots(1, 2, figsize=(10.4, 3.8), sharey=True)
    names = list(dict.fromkeys(table["transition"]))
    height = {name: y for y, name in enumerate(reversed(names))}
    methods = list(dict.fromkeys(table["method"]))
    lift = dict(zip(methods, np.linspace(0.18, -0.18, len(methods)), strict=True))
    for row in beside.itertuples():
        y = height[row.transition] + lift[row.method]
        _change(axes[0], row.this_run, y, row.method, "this run", np.nan)
        _change(axes[0], row.paper, y, row.method, "paper", row.paper_std)
    for row in table.itertuples():
        y = height[row.transition] + lift[row.method]
        _change(axes[1], row.loglik_change, y, row.method, "this run", np.nan)
    for ax in axes:
        ax.axvline(0, color="black", lw=0.8)
        ax.margins(x=0.1)
    axes[0].set_yticks(list(height.values()), [name.replace("_", " ") for name in height])
    axes[0].set_ylim(-0.5, len(names) - 0.5)
    judges = ", ".join(sorted({judge for judge in table["judge"] if judge}))
    source = f"this run: {judges}" if judges else "this run: not measured"
    axes[0].set(xlabel="change of response quality", title=f"response quality\n({source})")
    axes[1].set(xlabel="change of log-likelihood (nats per token)")
    axes[1].set_title("reference log-likelihood\n(not response quality)")
    handles = [_handle(MARKERS[m], COLOURS[m], COLOURS[m], LABELS[m]) for m in methods]
    handles.append(_handle("D", "white", "#555555", "hollow: paper"))
    axes[0].figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return axes


def _change(ax: Axes, x: float, y: float, method: str, source: str, std: float) -> None:
    if not np.isnan(x):
        _point(ax, x, y, method, source, xerr=std)


@_styled
def pair_outcomes(table: pd.DataFrame) -> Axes:
    """Table 5 drawn: wins, ties and losses of CaLIF against IF-RLVR as shares, a bar a row.

    ``table`` is that of `califkit.exhibits.pairs.pairs_beside_paper`; a row without counts says
    why.
    """
    _, ax = plt.subplots(figsize=(8.2, 1.4 + 0.42 * len(table)))
    looks = {"wins": COLOURS["calif"], "ties": "#bbbbbb", "losses": COLOURS["if_rlvr"]}
    height = range(len(table))[::-1]
    for y, (_, row) in zip(height, table.iterrows(), strict=True):
        if pd.isna(row["pairs"]):
            ax.text(1, y, row["note"], va="center", style="italic")
            continue
        left = 0.0
        for outcome, colour in looks.items():
            share = 100 * row[outcome] / row["pairs"]
            style = {"facecolor": colour, "edgecolor": colour}
            if row["source"] == "paper":
                style["facecolor"] = "white"
            ax.barh(y, share, 0.62, left, lw=1.4, **style)
            if share > 5:
                ax.text(left + share / 2, y, row[outcome], ha="center", va="center", fontsize=8)
            left += share
    names = [f"{row.configuration} ({row.source})" for row in table.itertuples()]
    ax.set_yticks(height, names)
    ax.set(xlabel="pairs (%)", xlim=(0, 100), ylim=(-0.6, len(table) - 0.4))
    words = {"wins": "CaLIF wins", "ties": "tie", "losses": "IF-RLVR wins"}
    handles = [Patch(color=colour, label=words[name]) for name, colour in looks.items()]
    handles.append(Patch(facecolor="white", edgecolor="#555555", label="hollow: paper"))
    ax.figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return ax


def save_figure(profile: str, name: str, figure: Figure, table: pd.DataFrame) -> list[Path]:
    """Write ``figures/<profile>/<name>.png``, ``.pdf`` and ``.csv`` (the table that was drawn).

    The same table gives the same bytes: no date goes into the files.
    """
    folder = _folder(profile)
    png, pdf, csv = (folder / f"{name}.{ending}" for ending in ("png", "pdf", "csv"))
    with plt.rc_context(_STYLE):
        figure.savefig(png, dpi=200, metadata={"Software": None})
        figure.savefig(pdf, metadata={"CreationDate": None})
    table.to_csv(csv, index=False)
    return [png, pdf, csv]


def save_table(profile: str, name: str, table: pd.DataFrame) -> list[Path]:
    """Write ``figures/<profile>/<name>.csv`` (full precision) and ``.md`` (four digits)."""
    return write_table(_folder(profile), name, table)


def write_table(folder: Path, name: str, table: pd.DataFrame) -> list[Path]:
    """Write ``<name>.csv`` (full precision) and ``<name>.md`` (four digits) in a folder."""
    csv, markdown = folder / f"{name}.csv", folder / f"{name}.md"
    table.to_csv(csv, index=False)
    lines = [_markdown_row(table.columns), _markdown_row(["---"] * len(table.columns))]
    lines += [_markdown_row(row) for row in table.itertuples(index=False)]
    markdown.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return [csv, markdown]


def _folder(profile: str) -> Path:
    folder = project_root() / "figures" / profile
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _markdown_row(cells: Sequence[Any]) -> str:
    return "| " + " | ".join(_markdown_cell(cell) for cell in cells) + " |"


def _markdown_cell(cell: Any) -> str:
    if isinstance(cell, float):
        return "" if np.isnan(cell) else f"{cell:.4g}"
    return str(cell).replace("|", "\\|").replace("\n", " ")
