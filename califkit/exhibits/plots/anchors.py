"""Pictures of the bounds l0 and l1, and of what the reward makes of them (Fig. 4)."""

from __future__ import annotations

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes

from califkit import metrics
from califkit.exhibits.methods import look
from califkit.exhibits.plots import shared

_BLUE = look("calif").colour
_SIDES = {"constrained": "#7B3294", "natural": "#8C6D31"}  # no policy has these


def region(curves: pd.DataFrame) -> np.ndarray:
    """Fig. 4: the CaLIF reward over l, a panel each for usual and reversed bounds.

    ``curves``: rows on a grid of l that contains the bounds: ``l0``, ``l1`` (they name the panel),
    ``r_ver``, ``l``, ``reward``. The Axes come in order of first appearance of the bounds.
    """
    cases = list(curves.groupby(["l0", "l1"], sort=False))
    axes = shared.panels(len(cases), (5.2 * len(cases), 3.9), sharey=True)
    for ax, ((l0, l1), case) in zip(axes, cases, strict=True):
        # Where the lines coincide, a thinner one lies on a thicker one and all stay visible.
        levels = sorted(case["r_ver"].unique(), reverse=True)
        for width, r_ver in zip((5.0, 3.0, 1.2), levels, strict=False):
            curve = case[case["r_ver"] == r_ver]
            colour = {0.0: "black", 0.5: "#56B4E9"}.get(r_ver, _BLUE)
            ax.plot(curve["l"], curve["reward"], color=colour, lw=width, clip_on=False)
            at_bounds = curve[curve["l"].isin([l0, l1] if l0 <= l1 else [l1])]
            ax.plot(at_bounds["l"], at_bounds["reward"], "o", color=colour, ms=width + 3)
            start = (curve["l"].iloc[0], curve["reward"].iloc[0])
            ax.annotate(f"$r_{{ver}}$ = {r_ver:g}", start, (4, 6), textcoords="offset points")
        _shade_zones(ax, (case["l"].min(), case["l"].max()), l0, l1, names=True)
        ax.set(xlabel=f"l, {shared.LOGLIK}", ylim=(-0.04, 1.42), yticks=[0, 0.5, 1])
        order = (
            "usual bounds: l0 = {:g} ≤ l1 = {:g}" if l0 <= l1 else "reversed: l0 = {:g} > l1 = {:g}"
        )
        ax.set_title(order.format(l0, l1))
    axes[0].set_ylabel("CaLIF reward")
    return axes


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
        ax.axvspan(start, end, color=shared.ZONE_COLOURS[zone], alpha=0.16, lw=0)
        if names:
            ax.text((start + end) / 2, 0.97, words[zone], transform=top, ha="center", va="top")
    height = 0.83 if names else 1.0
    for name, bound in (("l0", l0), ("l1", l1)):
        ax.axvline(bound, ymax=height, color="black", lw=1, ls=":" if name == "l0" else "-.")
        ax.text(bound, height + 0.01, name, transform=top, va="bottom", ha="center")
    ax.set_xlim(low, high)


def likelihood_axis(points: pd.DataFrame, l0: float, l1: float) -> Axes:
    """Answers on the likelihood axis, with the zones that l0 and l1 make.

    ``points``: a row an answer, from top to bottom; the index names it, columns ``l``, ``r_ver``
    and ``CaLIF`` (the reward), both written at the right.
    """
    (ax,) = shared.panels(1, (8.6, 1.5 + 0.38 * len(points)))
    values = [*points["l"].dropna(), l0, l1]
    margin = 0.12 * (max(values) - min(values))
    ends = (min(values) - margin, min(max(values) + margin, max(0.0, max(values))))
    height = np.arange(len(points))[::-1]
    for y, row in zip(height, points.itertuples(), strict=True):
        ax.plot([ends[0], row.l], [y, y], color="#bbbbbb", lw=0.8, zorder=1)
        ax.plot(row.l, y, "o", mfc=_BLUE if row.r_ver > 0 else "white", mec=_BLUE, ms=8, zorder=3)
        text = f"r_ver {row.r_ver:.2f}   reward {row.CaLIF:.2f}"
        ax.text(1.02, y, text, transform=ax.get_yaxis_transform(), va="center")
    ax.set_yticks(height, points.index)
    ax.set_ylim(-0.7, len(points) - 0.3)
    _shade_zones(ax, ends, l0, l1, names=False)
    ax.set_xlabel(f"l, {shared.LOGLIK}")
    shown = ("below", "inside", "above") if l0 <= l1 else ("reversed", "above")
    none = shared.point_handle("o", "white", _BLUE, "follows no constraint")
    shared.legend(ax, [*shared.zone_handles(shown, 0.3), none])
    return ax


def anchor_bounds(anchors: pd.DataFrame) -> np.ndarray:
    """The bounds of the training prompts: l1 against l0, and how both are spread.

    ``anchors``: a row a prompt with ``l0`` and ``l1``; below the diagonal the bounds are reversed.
    """
    scatter, spread = axes = shared.panels(2, (9.6, 4.2))
    known = anchors.dropna(subset=["l0", "l1"])
    values = known[["l0", "l1"]].to_numpy()
    ends = (values.min(), values.max()) if len(known) else (-1.0, 0.0)
    margin = 0.05 * (ends[1] - ends[0]) or 0.1
    ends = (ends[0] - margin, ends[1] + margin)
    reverse = (known["l0"] > known["l1"]).to_numpy()
    names = (f"l0 ≤ l1: a region ({sum(~reverse)})", f"l0 > l1: reversed ({sum(reverse)})")
    kind = np.where(reverse, *names[::-1])
    looks = {"palette": [shared.ZONE_COLOURS["inside"], "#333333"], "markers": ["o", "X"], "s": 30}
    order = {"hue_order": names, "style_order": names}
    sns.scatterplot(known, x="l0", y="l1", hue=kind, style=kind, **order, **looks, ax=scatter)
    scatter.plot(ends, ends, color="black", lw=0.8, ls="--")
    scatter.set(xlim=ends, ylim=ends, aspect="equal", title="a point a prompt")
    scatter.set(xlabel="l0, from the answer to request and constraints", ylabel="l1, request alone")
    sns.move_legend(scatter, "upper center", bbox_to_anchor=(0.5, -0.14), ncols=2)
    colours = dict(zip(("l0", "l1"), _SIDES.values(), strict=True))
    bins = {"bins": 24, "binrange": ends, "element": "step"}
    sns.histplot(anchors[["l0", "l1"]], palette=colours, alpha=0.3, **bins, ax=spread)
    spread.set(xlabel=shared.LOGLIK, ylabel="prompts", title="how the bounds are spread")
    sns.move_legend(spread, "upper center", bbox_to_anchor=(0.5, -0.14), ncols=2)
    spread.yaxis.get_major_locator().set_params(integer=True)
    return axes


def anchor_health(
    answers: pd.DataFrame, by_length: pd.DataFrame, octiles: pd.DataFrame
) -> np.ndarray:
    """How l depends on the length of an answer, and where bounds are reversed: tables of
    `califkit.anchors.report` (`answers`, `l_by_length`, `reversed_by_length_ratio`)."""
    length, share = axes = shared.panels(2, (9.6, 4.0))
    some = answers[answers["tokens"] > 0]
    counts = some["side"].value_counts()
    side = some["side"].map(lambda name: f"{name} ({counts[name]})")
    order = [f"{name} ({counts.get(name, 0)})" for name in _SIDES]
    looks = {"palette": list(_SIDES.values()), "markers": ["X", "o"], "alpha": 0.5, "s": 20}
    looks |= {"hue_order": order, "style_order": order, "rasterized": True}
    sns.scatterplot(some, x="tokens", y="l", hue=side, style=side, **looks, ax=length)
    longest = some["tokens"].max()  # the token limit, where answers reach it
    for row in by_length.itertuples():
        end = min(row.tokens_to, longest)
        length.hlines(row.median_l, row.tokens_from, end, _SIDES[row.side], lw=2.5)
    length.set_xscale("log", base=2)
    length.xaxis.set_major_formatter("{x:g}")
    length.set(xlabel="length of the answer (tokens)", ylabel="l given the request (nats / token)")
    length.set_title("an answer each; bars: medians by length")
    sns.move_legend(length, "upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, title=None)
    reversed_share = 100 * octiles["reversed"].to_numpy()
    hits = (octiles["reversed"] * octiles["n"]).round()
    intervals = [metrics.wilson_interval(*pair) for pair in zip(hits, octiles["n"], strict=True)]
    spans = np.abs(100 * np.array(intervals).T - reversed_share)
    bars = {"color": "#999999", "ecolor": shared.INTERVAL, "capsize": 2}
    drawn = share.bar(octiles["octile"], reversed_share, yerr=spans, **bars)
    share.bar_label(drawn, [f"n = {n}" for n in octiles["n"]], padding=2, fontsize=8)
    ratios = zip(octiles["ratio_from"], octiles["ratio_to"], strict=True)
    share.set_xticks(octiles["octile"], [f"{a:.2f}\nto {b:.2f}" for a, b in ratios], fontsize=8)
    share.set(xlabel="length ratio constrained / natural", ylabel="reversed bounds (%)")
    share.set(
        ylim=(0, 109), title="reversed bounds by octile of length ratio\n(95 % Wilson intervals)"
    )
    return axes
