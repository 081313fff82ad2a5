"""Pictures of what the policies answer: Figures 5, 6 and 7, Tables 2 and 5, single ids."""

from __future__ import annotations

import textwrap

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from califkit.exhibits.checkpoints import CLAIMS, LABELS, SIDES
from califkit.exhibits.methods import LOOKS, MAIN, label, look
from califkit.exhibits.plots import shared


def main_results(table: pd.DataFrame) -> np.ndarray:
    """Fig. 5: what training does to Constraint Satisfaction, and to what stands against it.

    ``table``: rows of `califkit.exhibits.summary.beside_paper` for the metrics
    ``prompt_level_loose_acc``, ``loglik`` and ``response_quality``. Three Axes: Constraint
    Satisfaction, base to trained; Constraint Satisfaction against reference log-likelihood; the
    paper's plane with response quality, where this run has a sentence instead of points until a
    judge has measured it.
    """
    rows, loglik, quality = axes = shared.panels(3, (13.2, 5.0), width_ratios=(1.25, 1, 1))
    _satisfaction_rows(rows, table)
    _plane(loglik, table, "loglik")
    loglik.set(xlabel=shared.SATISFACTION, ylabel="reference log-likelihood (nats per token)")
    loglik.set_title("against log-likelihood\n(not response quality)")
    _plane(quality, table, "response_quality")
    quality.set(xlabel=shared.SATISFACTION, ylabel=f"response quality (1 to 10)\n{_judges(table)}")
    quality.set_title("against response quality\n(the paper's plane)")
    for (source, _), group in shared.by_method(table, "response_quality", MAIN).items():
        if source == "this run" and (why := shared.why_empty(group)):
            place = {"transform": quality.transAxes, "ha": "center"}
            shared.note(quality, 0.5, 0.03, f"this run: {why}", **place)
    words = "filled: this run (± sample std over runs)"
    filled = shared.point_handle("D", shared.GREY, shared.GREY, words)
    shared.legend(rows, [*shared.point_handles(MAIN), filled, shared.hollow(points=True)])
    return axes


def _judges(table: pd.DataFrame) -> str:
    """Who gave the scores that are drawn, by source."""
    scored = table[(table["metric"] == "response_quality") & table["value"].notna()]
    names = scored.groupby("source", sort=False)["judge"].first()
    return "; ".join(f"{source}: {judge}" for source, judge in names.items())


def _satisfaction_rows(ax: Axes, table: pd.DataFrame) -> None:
    """A row a configuration: markers at base and each trained policy, arrows from the base."""
    groups, unprinted = _printed(shared.by_method(table, "prompt_level_loose_acc", MAIN))
    height = range(len(groups))[::-1]
    for y, ((source, _), group) in zip(height, groups.items(), strict=True):
        shared.note(ax, 0.03, y, shared.why_empty(group), transform=ax.get_yaxis_transform())
        base = group.at["base", "value"]
        for method, lift in zip(MAIN, (0.0, 0.14, -0.14), strict=True):
            x, std = group.at[method, "value"], group.at[method, "std"]
            _arrow(ax, (base, y + lift), (x, y + lift), method)
            shared.point(ax, x, y + lift, method, source, xerr=std)
    ax.set_yticks(height, [f"{name}\n({source})" for source, name in groups])
    ax.set(xlabel=shared.SATISFACTION + unprinted, ylim=(-0.6, len(groups) - 0.4))
    ax.set_title("Constraint Satisfaction\nbase → trained")


def _printed(
    groups: dict[tuple[str, str], pd.DataFrame],
) -> tuple[dict[tuple[str, str], pd.DataFrame], str]:
    """The groups without those of which the paper prints nothing, and the footnote about them."""
    empty = [key for key, rows in groups.items() if key[0] == "paper" and shared.why_empty(rows)]
    names = ", ".join(name for _, name in empty)
    note = textwrap.fill(f"(paper: not printed for {names})", 64)
    kept = {key: rows for key, rows in groups.items() if key not in empty}
    return kept, f"\n{note}" if empty else ""


def _plane(ax: Axes, table: pd.DataFrame, metric: str) -> None:
    """The plane of Constraint Satisfaction and another metric, arrows from base to trained."""
    satisfaction = shared.by_method(table, "prompt_level_loose_acc", MAIN)
    for (source, name), group in shared.by_method(table, metric, MAIN).items():
        along = satisfaction[source, name]
        points = dict(zip(MAIN, zip(along["value"], group["value"], strict=True), strict=True))
        for method, (x, y) in points.items():
            _arrow(ax, points["base"], (x, y), method)
            errors = {"xerr": along.at[method, "std"], "yerr": group.at[method, "std"]}
            shared.point(ax, x, y, method, source, **errors)
        if source == "paper" and not np.isnan(points["calif"]).any():
            place = {"xytext": (0, 9), "textcoords": "offset points", "ha": "center"}
            ax.annotate(f"{name} (paper)", points["calif"], fontsize=7.5, **place)
    ax.margins(0.27, 0.18)


def _arrow(ax: Axes, start: tuple[float, float], end: tuple[float, float], method: str) -> None:
    """From the base to a trained policy, if both have numbers."""
    if method == "base" or np.isnan([start, end]).any():
        return
    style = {"arrowstyle": "->", "color": look(method).colour, "lw": 1.1}
    ax.annotate("", end, start, arrowprops=style | {"shrinkA": 4, "shrinkB": 5}, zorder=2)


def likelihood_bars(table: pd.DataFrame) -> Axes:
    """Fig. 6: reference log-likelihood of the responses, bars a method, groups a configuration.

    ``table``: rows of `califkit.exhibits.summary.beside_paper` for ``loglik``. A group without a
    value says why.
    """
    groups, unprinted = _printed(shared.by_method(table, "loglik", MAIN))
    table = table[
        [key in groups for key in zip(table["source"], table["configuration"], strict=True)]
    ]
    (ax,) = shared.panels(1, (max(5.5, 1.7 * len(groups) + 1.2), 4.4))
    name = table["configuration"] + "\n(" + table["source"] + ")"
    ends = {"low": table["value"] - table["std"], "high": table["value"] + table["std"]}
    shared.bars(ax, table.assign(name=name, **ends), "name", MAIN, ".2f")
    sources = [source for source, _ in groups]
    for method, drawn in zip(MAIN, ax.containers, strict=True):
        for bar in drawn:
            bar.set(edgecolor=look(method).colour, linewidth=1.4)
            if sources[round(bar.get_x())] == "paper":
                bar.set(facecolor="white", hatch=look(method).hatch)
    lowest = table["value"].min()
    for x, group in enumerate(groups.values()):
        why = shared.why_empty(group).replace(" in the", "\nin the")
        shared.note(ax, x, 0.03 * lowest, why, ha="center", va="top")
    ax.set(ylabel="reference log-likelihood (nats per token)", xlabel=unprinted.strip())
    ax.set(ylim=(1.14 * lowest, 0), xlim=(-0.6, len(groups) - 0.4))
    ax.spines[["bottom", "top"]].set_visible([False, True])  # the bars hang from the zero line
    ax.tick_params(axis="x", length=0)
    shared.legend(ax, [*shared.bar_handles(MAIN), shared.hollow(points=False)])
    return ax


def blind_spot(table: pd.DataFrame) -> np.ndarray:
    """Fig. 1: Constraint Satisfaction against quality, and quality with and without constraint.

    ``table`` is that of `califkit.exhibits.blind_spot.blind_spot_table`. The second Axes show the
    log-likelihood, and say so, where no judge has measured quality.
    """
    plane, paired = axes = shared.panels(2, (9.6, 4.4))
    scored = table.dropna(subset=["satisfaction", "quality"])
    plane.plot(scored["satisfaction"], scored["quality"], "o", color=shared.GREY)
    for row in scored.itertuples():
        place = {"xytext": (5, 4), "textcoords": "offset points"}
        plane.annotate(row.policy, (row.satisfaction, row.quality), fontsize=8, **place)
    if scored.empty:
        why = table["note"].iloc[0]
        shared.note(plane, 0.5, 0.5, why, transform=plane.transAxes, ha="center")
    plane.set(xlabel=shared.SATISFACTION, ylabel="response quality (1 to 10)", title="(a)")
    measured = table["quality_drop"].notna().any()
    name = "quality" if measured else "loglik"
    colours = {"request alone": look("base").colour, "with constraint": look("if_rlvr").colour}
    before, after = table[f"{name}_alone"], table[f"{name}_constrained"]
    for x, ends in enumerate(zip(before, after, strict=True)):
        for y, colour in zip(ends, colours.values(), strict=True):
            paired.plot(x, y, "o", color=colour)
        style = {"arrowstyle": "->", "color": shared.GREY, "shrinkA": 5, "shrinkB": 5}
        if np.isfinite(ends).all():
            paired.annotate("", (x, ends[1]), (x, ends[0]), arrowprops=style)
    paired.set_xticks(range(len(table)), table["policy"])
    paired.set(xlim=(-0.6, len(table) - 0.4), title="(b)" if measured else "(b) not quality")
    paired.set_ylabel("response quality (1 to 10)" if measured else shared.LOGLIK)
    paired.margins(y=0.2)
    shared.legend(plane, shared.patches(colours))
    return axes


def checkpoint_bars(table: pd.DataFrame) -> np.ndarray:
    """Fig. 3: a panel a metric, a group of two bars a pair: before and after.

    ``table`` is that of `califkit.exhibits.checkpoints.checkpoint_table`. A panel without values
    says why.
    """
    axes = shared.panels(len(CLAIMS), (4.0 * len(CLAIMS), 4.2))
    ends = {"low": table["mean"] - table["std"], "high": table["mean"] + table["std"]}
    table = table.assign(value=table["mean"], **ends)
    for ax, metric in zip(axes, CLAIMS, strict=True):
        rows = table[table["metric"] == metric]
        ax.set_title(LABELS[metric].replace(" (", "\n("))
        if why := shared.why_empty(rows):
            ax.set(xticks=[], yticks=[])
            shared.note(ax, 0.5, 0.5, why, transform=ax.transAxes, ha="center")
        else:
            shared.bars(ax, rows, "pair", list(SIDES), ".2f")
            ax.margins(y=0.12)
    colours = {name: look(method).colour for method, name in SIDES.items()}
    shared.legend(axes[0], shared.patches(colours))
    return axes


def id_shares(table: pd.DataFrame) -> Axes:
    """Share of responses that follow each constraint id, a row an id, a marker a method.

    ``table`` is that of `califkit.exhibits.summary.id_table`: index the id, ``n``, a column a
    method.
    """
    (ax,) = shared.panels(1, (7.6, 1.5 + 0.24 * len(table)))
    height = np.arange(len(table))[::-1]
    methods = [method for method in LOOKS if method in table]
    ax.hlines(height, table[methods].min(axis=1), table[methods].max(axis=1), color="#bbbbbb", lw=1)
    for method in methods:
        # Open markers: policies that agree lie on top of each other and all stay visible.
        style = {"mfc": "none", "mec": look(method).colour, "mew": 1.6, "label": label(method)}
        ax.plot(table[method], height, look(method).marker, ls="", **style)
    ax.set_yticks(height, [f"{name}  (n = {n})" for name, n in table["n"].items()])
    ax.set(xlabel="responses that follow it, loose (%)", xlim=(-3, 103))
    ax.set_ylim(-0.7, len(table) - 0.3)
    shared.legend(ax, ax.get_legend_handles_labels()[0])
    return ax


def constraint_types(
    table: pd.DataFrame, ends: str = "95 % interval over prompts (Wilson, others bootstrap)"
) -> np.ndarray:
    """Fig. 7: Constraint Satisfaction, response quality and length by constraint type.

    ``table``: a `califkit.exhibits.types.type_table`; groups are its types, bars its methods, error
    bars its intervals, which ``ends`` names. A panel or a group without a value says why.
    """
    labels = {
        "prompt_level_loose_acc": shared.SATISFACTION,
        "response_quality": "response quality (1 to 10)",
        "tokens": "response length (tokens)",
    }
    methods = [method for method in MAIN if method in set(table["method"])]
    counts = (
        table[table["metric"] == "prompt_level_loose_acc"].groupby("type", sort=False)["n"].max()
    )
    axes = shared.panels(3, (0.78 * (3 * len(counts) + 1) + 1.2, 3.9))
    for ax, (metric, title) in zip(axes, labels.items(), strict=True):
        part = table[table["metric"] == metric]
        judge = next((f"\njudge: {name}" for name in part["judge"] if name), "")
        if why := shared.why_empty(part):
            middle = {"transform": ax.transAxes, "ha": "center", "va": "center"}
            shared.note(ax, 0.5, 0.5, why.replace(": ", ":\n"), **middle)
            ax.set_yticks([])
        else:
            shared.bars(ax, part, "type", methods, ".3g")
            for x in np.flatnonzero(counts == 0):
                shared.note(ax, x, 0, " no prompt", rotation=90, ha="center", va="bottom")
        ax.set_xticks(range(len(counts)), [f"{name}\nn = {n}" for name, n in counts.items()])
        ax.set(xlim=(-0.6, len(counts) - 0.4), ylim=(0, None), title=title + judge)
    interval = Line2D([], [], color=shared.INTERVAL, label=ends)
    shared.legend(axes[0], [*shared.bar_handles(methods), interval])
    return axes


def transition_changes(table: pd.DataFrame, beside: pd.DataFrame) -> np.ndarray:
    """Table 2 drawn: what changes where the verdict stayed or changed, a panel a quantity.

    ``table``: `califkit.exhibits.pairs.transition_table` of one or more methods; ``beside``:
    `califkit.exhibits.pairs.transitions_beside_paper` of it. Two Axes: response quality (this run
    filled, the paper hollow) and reference log-likelihood.
    """
    quality, loglik = axes = shared.panels(2, (10.4, 3.8), sharey=True)
    names = list(dict.fromkeys(table["transition"]))
    methods = list(dict.fromkeys(table["method"]))
    lift = dict(zip(methods, np.linspace(0.18, -0.18, len(methods)), strict=True))
    height = {name: y for y, name in enumerate(reversed(names))}
    above = {"xytext": (0, 4), "textcoords": "offset points", "ha": "center"}
    for row in beside.itertuples():
        y = height[row.transition] + lift[row.method]
        shared.point(quality, row.paper, y, row.method, "paper", xerr=row.paper_std)
    for row in table.itertuples():
        y = height[row.transition] + lift[row.method]
        for ax, name, n in ((quality, "quality", row.scored), (loglik, "loglik", row.with_loglik)):
            change, *ends = (getattr(row, f"{name}_{end}") for end in ("change", "low", "high"))
            span = np.abs(np.array(ends) - change)[:, None]
            shared.point(ax, change, y, row.method, "this run", xerr=span)
            if n and not np.isnan(change):
                ax.annotate(f"n = {n}", (change, y), **above, fontsize=6.5)
    for ax in axes:
        ax.axvline(0, color="black", lw=0.8)
        ax.margins(x=0.1)
    quality.set_yticks(list(height.values()), [name.replace("_", " ") for name in height])
    quality.set_ylim(-0.5, len(names) - 0.5)
    judges = ", ".join(sorted({judge for judge in table["judge"] if judge}))
    quality.set(xlabel="change of response quality")
    quality.set_title(f"response quality\n(this run: {judges or 'not measured'})")
    loglik.set(xlabel="change of log-likelihood (nats per token)")
    loglik.set_title("reference log-likelihood\n(not response quality)")
    several = "configurations" in table and table["configurations"].max() > 1
    spread = "± std over configurations" if several else "95 % over prompts"
    words = f"filled: this run, {spread}"
    filled = shared.point_handle("D", shared.GREY, shared.GREY, words)
    handles = [*shared.point_handles(methods), filled, shared.hollow(points=True)]
    shared.legend(quality, handles)
    return axes


def pair_outcomes(table: pd.DataFrame) -> Axes:
    """Table 5 drawn: wins, ties and losses of CaLIF against IF-RLVR as shares, a bar a row.

    ``table`` is that of `califkit.exhibits.pairs.pairs_beside_paper`; a row without counts says
    why.
    """
    (ax,) = shared.panels(1, (8.2, 1.4 + 0.42 * len(table)))
    colours = {"wins": look("calif").colour, "ties": "#bbbbbb", "losses": look("if_rlvr").colour}
    height = range(len(table))[::-1]
    for y, (_, row) in zip(height, table.iterrows(), strict=True):
        if pd.isna(row["pairs"]):
            shared.note(ax, 1, y, row["note"], va="center")
            continue
        left = 0.0
        for outcome, colour in colours.items():
            share = 100 * row[outcome] / row["pairs"]
            face = "white" if row["source"] == "paper" else colour
            ax.barh(y, share, 0.62, left, facecolor=face, edgecolor=colour, lw=1.4)
            if share > 5:
                ax.text(left + share / 2, y, row[outcome], ha="center", va="center", fontsize=8)
            left += share
        rate = f"{row['adjusted_win_rate']:.1f} %"
        ax.text(101.5, y, rate, va="center", fontsize=8, color=colours["wins"])
    ax.text(101.5, len(table) - 0.45, "win rate", fontsize=8, color=colours["wins"])
    ax.set_yticks(height, [f"{row.configuration} ({row.source})" for row in table.itertuples()])
    ax.set(xlabel="pairs (%)", xlim=(0, 100), ylim=(-0.6, len(table) - 0.4))
    words = ("CaLIF wins", "tie", "IF-RLVR wins")
    handles = shared.patches(dict(zip(words, colours.values(), strict=True)))
    shared.legend(ax, [*handles, shared.hollow(points=False)])
    return ax
