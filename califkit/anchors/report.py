"""The anchor health report: are the bounds worth training on?

The method's own authors found a list of weaknesses in their anchors, F1 to F16 here. What the
bounds can tell of them becomes lines:

====  =========================================  ====  ==========================================
F1    reversed bounds, and whether they persist  F8    answers that are no good anchors
F2    l and length                               F9    answers and bounds that are missing
F3    reversed bounds and the ratio of lengths   F10   answers cut at the token limit
F4    compliant answers that would be zeroed     F11   where further answers lie in the region
F6    anchors that break their own constraints   F16   what the reward does to further answers
F7    width of the region, scatter of the bounds
====  =========================================  ====  ==========================================

The others need rollouts and stand in the training log (`califkit.rewards.statistics`): sign flips
(F5), reward minus r_ver (F12), entropy (F13), shares of the zones (F14). Bounds of another request
(F15) are refused when they are joined and when training scores some answers again.

Pure functions of the table of `califkit.anchors.table`, the prompts and, if there are extra
samples, the table of `califkit.anchors.probe`; nothing is drawn or scored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from califkit.anchors.region import zones
from califkit.anchors.rows import LOOP_DISTINCT, LOOP_PHRASE, LOOP_WORDS, NEAR_EMPTY, SIDES
from califkit.anchors.table import degenerate, join_anchors, missing_answers, per_draw
from califkit.data.load import Instance
from califkit.metrics import nan_mean

ONE_DRAW = (
    "not measured, because one sample a side; `califkit anchors report --probe N` draws more for N "
    "prompts"
)
WIDE_ENOUGH = 2.0
"""So many times the spread of a constrained sample should the region be wide. Of normal samples
around l0, 2 % then lie above l1; in the paper's models it is 2.9 times (0.81 nats and 0.28)."""
COLUMNS = ["finding", "what", "value", "n", "comment"]


@dataclass(frozen=True)
class Health:
    """``summary`` has a row a fact (`COLUMNS`; ``value`` is NaN where the comment says why), and
    ``details`` the tables behind it by name."""

    summary: pd.DataFrame
    details: dict[str, pd.DataFrame]


def health_report(
    table: pd.DataFrame, instances: Sequence[Instance], probe: pd.DataFrame | None = None
) -> Health:
    """Everything that can be said of a table of bounds of at least these prompts.

    `AnchorError` if a prompt has no bounds, or those of another request. With a ``probe`` (extra
    samples, `califkit.anchors.probe.read_probe`) the probed prompts alone tell how samples differ
    (persistence in F1, spread in F7, F11, F16). Details: ``length_ratio``, ``n_constraints``,
    ``length``, ``type``, ``missing``. Shares lie in [0, 1], lengths are tokens of the answer, l is
    in nats per token.
    """
    table = join_anchors(instances, table)
    details = {
        "length_ratio": reversed_by_length_ratio(table),
        "n_constraints": reversed_by_n_constraints(table, instances),
        "length": l_by_length(table),
        "type": compliance_by_type(table, instances),
        "missing": missing_prompts(table),
    }
    repeated = table if probe is None else _with_probe(table, probe)
    lines = [
        *_reversal(table, repeated, details["length_ratio"]),
        *_length(table),
        *_zeroing(table),
        *_compliance(table),
        *_spread(table, repeated),
        *_defects(table),
        *_coverage(table),
        *_replay(repeated, _n_draws(table)),
    ]
    lines.sort(key=lambda line: int(line[0][1:]))
    return Health(pd.DataFrame(lines, columns=COLUMNS), details)


def answers(table: pd.DataFrame) -> pd.DataFrame:
    """One row an answer with an l: ``side``, ``key``, ``draw``, ``tokens``, ``l``, ``r_ver``."""
    frames = []
    for side in SIDES:
        l = per_draw(table, f"{side}_l")  # noqa: E741
        prompt, draw = np.nonzero(~np.isnan(l))
        frames.append(
            pd.DataFrame(
                {
                    "side": side,
                    "key": table["key"].to_numpy()[prompt],
                    "draw": draw,
                    "tokens": per_draw(table, f"{side}_tokens_each")[prompt, draw],
                    "l": l[prompt, draw],
                    "r_ver": per_draw(table, f"{side}_r_ver_each")[prompt, draw],
                }
            )
        )
    return pd.concat(frames, ignore_index=True)


def reversed_by_length_ratio(table: pd.DataFrame, parts: int = 8) -> pd.DataFrame:
    """Share of reversed bounds by octile of the length ratio constrained / natural (F3).

    Columns ``octile``, ``ratio_from``, ``ratio_to``, ``n``, ``reversed``; prompts with both bounds
    only. Equal ratios stay together, so there are fewer rows where many are equal.
    """
    known = _bounded(table)
    ratio = (known["constrained_tokens"] / known["natural_tokens"]).to_numpy()
    edges = np.unique(np.quantile(ratio, np.arange(1, parts) / parts)) if len(ratio) else ratio
    octile = np.searchsorted(edges, ratio)
    rows = [
        (number, ratio[part].min(), ratio[part].max(), part.sum(), _is_reversed(known)[part].mean())
        for number, part in enumerate((octile == value for value in np.unique(octile)), start=1)
    ]
    return pd.DataFrame(rows, columns=["octile", "ratio_from", "ratio_to", "n", "reversed"])


def reversed_by_n_constraints(table: pd.DataFrame, instances: Sequence[Instance]) -> pd.DataFrame:
    """Share of reversed bounds by number of constraints: ``n_constraints``, ``n``, ``reversed``."""
    counts = pd.Series([len(i.constraints) for i in instances], index=table.index)
    known = _bounded(table)
    groups = pd.Series(_is_reversed(known), index=known.index).groupby(counts[known.index])
    rows = [(int(number), len(group), group.mean()) for number, group in groups]
    return pd.DataFrame(rows, columns=["n_constraints", "n", "reversed"])


def l_by_length(table: pd.DataFrame) -> pd.DataFrame:
    """l by length of the answer, in bins that double (F2).

    Columns ``side``, ``tokens_from`` (included), ``tokens_to`` (excluded), ``n``, ``median_l``,
    ``std_l`` (n - 1, NaN for one answer).
    """
    drawn = answers(table)
    drawn = drawn[drawn["tokens"] > 0]
    exponent = np.floor(np.log2(drawn["tokens"])).astype(int)
    rows = [
        (side, 2**power, 2 ** (power + 1), len(group), group.median(), group.std(ddof=1))
        for (side, power), group in drawn["l"].groupby([drawn["side"], exponent])
    ]
    columns = ["side", "tokens_from", "tokens_to", "n", "median_l", "std_l"]
    return pd.DataFrame(rows, columns=columns)


def compliance_by_type(table: pd.DataFrame, instances: Sequence[Instance]) -> pd.DataFrame:
    """How well constrained answers follow their own constraints, by type of the constraint (F6).

    The type is the id up to the colon; an empty answer follows nothing. Columns: ``type``, ``n``
    (constraints), ``followed`` (share of them, over all samples), ``prompts`` (with such a
    constraint), ``all_followed`` (share of their answers that follow all constraints of the
    prompt), ``mean_r_ver`` (of these answers).
    """
    r_ver = per_draw(table, "constrained_r_ver_each")
    constraints = pd.DataFrame(
        [
            (i, constraint.id.partition(":")[0], share)
            for i, instance in enumerate(instances)
            for constraint, share in zip(
                instance.constraints, table["constrained_followed"].iloc[i], strict=True
            )
        ],
        columns=["prompt", "type", "share"],
    )
    rows = []
    for name, group in constraints.groupby("type"):
        of_prompts = r_ver[group["prompt"].unique()]
        all_followed, mean = (of_prompts == 1).mean(), of_prompts.mean()
        row = (name, len(group), group["share"].mean(), len(of_prompts), all_followed, mean)
        rows.append(row)
    columns = ["type", "n", "followed", "prompts", "all_followed", "mean_r_ver"]
    return pd.DataFrame(rows, columns=columns)


def missing_prompts(table: pd.DataFrame) -> pd.DataFrame:
    """Prompts without a bound (F9): ``key``, ``side``, ``reason``, and of the other side ``tokens``
    and ``r_ver``."""
    rows = []
    for side, other in (SIDES, SIDES[::-1]):
        empty = per_draw(table, f"{side}_defect_each") == "empty"
        for i in np.flatnonzero(empty.all(axis=1)):
            reason = " / ".join(missing_answers(table.iloc[[i]], side))
            row = table.iloc[i]
            rows.append((row["key"], side, reason, row[f"{other}_tokens"], row[f"{other}_r_ver"]))
    return pd.DataFrame(rows, columns=["key", "side", "reason", "tokens", "r_ver"])


# ---------------------------------------------------------------- lines of the summary

Line = tuple[str, str, float, int, str]


def _share(finding: str, what: str, mask: Any, comment: str = "") -> Line:
    mask = np.asarray(mask, dtype=float).ravel()
    if not mask.size:
        return (finding, what, np.nan, 0, "not measured, because there is nothing to count")
    return (finding, what, float(mask.mean()), mask.size, comment)


def _median(finding: str, what: str, values: Any, comment: str = "") -> Line:
    values = np.asarray(values, dtype=float)
    median = float(np.median(values)) if values.size else np.nan
    return (finding, what, median, values.size, comment)


def _bounded(table: pd.DataFrame) -> pd.DataFrame:
    return table.dropna(subset=["l0", "l1"])


def _is_reversed(table: pd.DataFrame) -> np.ndarray:
    return (table["l0"] > table["l1"]).to_numpy()


def _n_draws(table: pd.DataFrame) -> int:
    return per_draw(table, "constrained_l").shape[1]


def _with_probe(table: pd.DataFrame, probe: pd.DataFrame) -> pd.DataFrame:
    """The probed prompts with the samples behind their bounds and the extra ones after them; ``l0``
    and ``l1`` stay those of the table."""
    joined = table.set_index("key").loc[probe["key"]].reset_index()
    for side in SIDES:
        for column in (f"{side}_l", f"{side}_r_ver_each"):
            joined[column] = list(np.hstack([per_draw(joined, column), per_draw(probe, column)]))
    return joined


def _reversal(table: pd.DataFrame, repeated: pd.DataFrame, octiles: pd.DataFrame) -> list[Line]:
    known = _bounded(table)
    reverse, sound = _is_reversed(known), ~degenerate(known)
    longer = (known["constrained_tokens"] > known["natural_tokens"])[reverse]
    lines = [
        _share("F1", "reversed bounds (l0 > l1), share", reverse, "no bonus on these prompts"),
        _share("F1", "reversed bounds without degenerate prompts", reverse[sound]),
        _share("F3", "constrained answer is the longer, of reversed", longer),
    ]
    for name, octile in (("lowest", octiles.head(1)), ("highest", octiles.tail(1))):
        for row in octile.itertuples():
            what = f"reversed bounds in the {name} octile of length ratio"
            note = f"constrained / natural {row.ratio_from:.2f} to {row.ratio_to:.2f}"
            lines.append(("F3", what, row.reversed, row.n, note))
    if _n_draws(repeated) == 1:
        return [*lines, ("F1", "persistence of reversed bounds over samples", np.nan, 0, ONE_DRAW)]
    l0, l1 = (per_draw(repeated, f"{side}_l") for side in SIDES)
    each = (l0 > l1)[~np.isnan(l0 + l1).any(axis=1)]  # prompts complete in all samples
    first, further = each[:, 0], each[:, 1:]
    of = f"of {each.shape[1]} samples"
    note = "equal to the next line would be pure chance"
    return [
        *lines,
        _share("F1", "reversed in a further sample where sample 1 is", further[first], note),
        _share("F1", "reversed in a further sample where sample 1 is not", further[~first]),
        _share("F1", "reversed in at least one sample", each.any(axis=1), of),
        _share("F1", "reversed in every sample", each.all(axis=1), of),
    ]


def _length(table: pd.DataFrame) -> list[Line]:
    drawn = answers(table)
    sides = {side: drawn[drawn["side"] == side] for side in SIDES}
    lines = [
        _correlation(f"rank correlation of l with length, {side}", part, "tokens")
        for side, part in sides.items()
    ]
    what = "rank correlation of l with r_ver, constrained"
    lines.append(_correlation(what, sides["constrained"], "r_ver"))
    note = "rollouts whose length differs by a factor 2 are not comparable"
    for side, part in sides.items():
        lines.append(_median("F2", f"median length, {side} (tokens)", part["tokens"], note))
    return lines


def _correlation(what: str, drawn: pd.DataFrame, by: str) -> Line:
    if min(drawn["l"].nunique(), drawn[by].nunique()) < 2:
        return ("F2", what, np.nan, 0, "not measured, because all values are the same")
    value = float(stats.spearmanr(drawn["l"], drawn[by])[0])
    return ("F2", what, value, len(drawn), "near 0: l does not depend on it")


def _zeroing(table: pd.DataFrame) -> list[Line]:
    known = _bounded(table)
    l = per_draw(known, "constrained_l")  # noqa: E741
    compliant = (per_draw(known, "constrained_r_ver_each") == 1) & ~np.isnan(l)
    zeroed = l > known["l1"].to_numpy()[:, None]
    what = "the reference's own compliant constrained answers that would be zeroed"
    note = "answers with r_ver = 1 and l > l1"
    if _n_draws(table) == 1:
        note += "; circular with one sample, whose l is l0: see F16"
    return [_share("F4", what, zeroed[compliant], note)]


def _compliance(table: pd.DataFrame) -> list[Line]:
    known = _bounded(table)
    usual = known[~_is_reversed(known)]
    r_ver = per_draw(table, "constrained_r_ver_each")
    what = "prompts with a region whose constrained answers break a constraint"
    note = "a bonus earned there is for likelihood like that of a failed answer"
    return [
        _share("F6", "constrained answers that follow all their constraints", r_ver == 1),
        _share("F6", "constraints followed by constrained answers (mean r_ver)", r_ver),
        _share("F6", what, (per_draw(usual, "constrained_r_ver_each") < 1).any(axis=1), note),
    ]


def _spread(table: pd.DataFrame, repeated: pd.DataFrame) -> list[Line]:
    width = (_bounded(table)["l1"] - _bounded(table)["l0"]).to_numpy()
    n = len(width)
    middle, low = (float(np.quantile(width, q)) if n else np.nan for q in (0.5, 0.05))
    lines: list[Line] = [
        ("F7", "width l1 - l0, median (nats per token)", middle, n, "negative: reversed"),
        ("F7", "width l1 - l0, 5th percentile", low, n, ""),
    ]
    what = "spread over samples, median of the prompts' standard deviations"
    if _n_draws(repeated) == 1:
        return [*lines, ("F7", what, np.nan, 0, ONE_DRAW)]
    for side in SIDES:
        l = per_draw(repeated, f"{side}_l")  # noqa: E741
        line = _median("F7", f"{what}, {side}", l[~np.isnan(l).any(axis=1)].std(axis=1, ddof=1))
        spread, count, note = line[2], line[3], ""
        if n and spread > 0:
            ratio = middle / spread
            note = _narrow(ratio) if side == "constrained" else ""
        else:
            ratio, count, note = np.nan, 0, "not measured, because there is no spread"
        lines += [line, ("F7", f"median width / this spread, {side}", ratio, count, note)]
    return lines


def _narrow(ratio: float) -> str:
    """What a region means that is so many times as wide as a constrained sample spreads; nothing
    where the printed rule can work."""
    if ratio >= WIDE_ENOUGH:
        return ""
    above = stats.norm.sf(ratio)
    return (
        f"WARNING: below {WIDE_ENOUGH:g} the region is too narrow for the rule as printed, which "
        f"takes the whole reward above l1: of ordinary constrained answers about {above:.0%} lie "
        "there. More samples a side do not widen it; a lower temperature may, and "
        "reward.ceiling_margin lifts the ceiling"
    )


def _defects(table: pd.DataFrame) -> list[Line]:
    rule = (
        f"{LOOP_WORDS} words or more, with under {LOOP_DISTINCT:.0%} distinct words or with one "
        f"phrase of {LOOP_PHRASE} words over more than half"
    )
    lines = []
    for side in SIDES:
        defects = per_draw(table, f"{side}_defect_each")
        short = np.isin(defects, ("one_token", "near_empty"))
        lines += [
            _share("F8", f"repetition loops, {side}", defects == "loop", rule),
            _share("F8", f"fewer than {NEAR_EMPTY} tokens, {side}", short),
            _share("F8", f"one token, {side}", defects == "one_token"),
        ]
    loops = per_draw(table, "constrained_defect_each") == "loop"
    asked_for = per_draw(table, "constrained_r_ver_each")[loops] == 1
    what, note = "constrained loops that follow all their constraints", "no defect: asked for"
    lines.append(_share("F8", what, asked_for, note))
    known = _bounded(table)
    lines.append(_share("F8", "prompts with the same answer on both sides", table["identical"]))
    lines.append(_share("F8", "prompts with width 0", known["l0"] == known["l1"]))
    what = "degenerate prompts (any defect, or a bound missing)"
    note = "training.drop_degenerate leaves them out"
    return [*lines, _share("F8", what, degenerate(table), note)]


def _coverage(table: pd.DataFrame) -> list[Line]:
    lines = []
    for side in SIDES:
        there = per_draw(table, f"{side}_defect_each") != "empty"
        reasons = missing_answers(table, side)
        note = ", ".join(f"{reason}: {count}" for reason, count in reasons.items())
        lines.append(_share("F9", f"answers that are there, {side}", there, note))
        cut = per_draw(table, f"{side}_finish_each") == "length"
        note = "rollouts must have the same limit and sampling"
        lines.append(_share("F10", f"answers cut at the token limit, {side}", cut, note))
    lost = table[["l0", "l1"]].isna().any(axis=1).to_numpy()
    note = "they keep r_ver; the table 'missing' names them"
    lines.append(_share("F9", "prompts without a bound", lost, note))
    if lost.any() and not lost.all():
        for name, part in (("with both bounds", table[~lost]), ("without a bound", table[lost])):
            # Of the answers that are there: a missing one has no length.
            drawn = answers(part)
            for column, what in (("tokens", "mean length"), ("r_ver", "mean r_ver")):
                line = f"{what} of answers to prompts {name}"
                lines.append(("F9", line, nan_mean(drawn[column]), len(drawn), ""))
    return lines


def _replay(repeated: pd.DataFrame, behind_bounds: int) -> list[Line]:
    """Constrained samples as rollouts of the policy at step 0, against bounds they had no part in.

    With a probe these are the extra samples and the bounds that training uses (``behind_bounds`` is
    the number of samples behind them), without one samples 2 and on and the bounds of sample 1.
    """
    draws = _n_draws(repeated)
    if draws == 1:
        what = "further constrained samples as rollouts of step 0"
        return [(finding, what, np.nan, 0, ONE_DRAW) for finding in ("F11", "F16")]
    if draws > behind_bounds:
        first, origin = behind_bounds, f"probe of {len(repeated)} prompts"
        l0, l1 = (repeated[bound].to_numpy()[:, None] for bound in ("l0", "l1"))
    else:
        first, origin = 1, "bounds of sample 1"
        l0, l1 = (per_draw(repeated, f"{side}_l")[:, :1] for side in SIDES)
    l = per_draw(repeated, "constrained_l")[:, first:]  # noqa: E741
    l, l0, l1 = np.broadcast_arrays(l, l0, l1)  # noqa: E741
    usable = ~np.isnan(l0 + l1 + l)
    region = usable & (l0 < l1)
    paid = usable & (per_draw(repeated, "constrained_r_ver_each")[:, first:] > 0)
    position = (l1[region] - l[region]) / (l1[region] - l0[region])
    what = "position (l1 - l) / (l1 - l0) of a further constrained sample, median"
    note = f"0 at l1, 1 at l0; below 0.5 at step 0 is close to the ceiling; {origin}"
    zeroed, inside = (l > l1)[paid], (zones(l, l0, l1) == "inside")[paid]
    expected = f"of those with r_ver > 0; expected at step 0; {origin}"
    return [
        _median("F11", what, position, note),
        _share("F16", "further constrained samples that would be zeroed", zeroed, expected),
        _share("F16", "further constrained samples inside the region", inside, expected),
    ]
