"""The tables behind Fig. 7: what responses are worth by constraint type.

Pure functions of the table that `califkit.exhibits.summary.response_table` gives. Without a judge's
scores in its column ``quality``, response quality says why it is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import pandas as pd

from califkit import metrics
from califkit.exhibits import paper
from califkit.exhibits.summary import NO_JUDGE, judges

TYPES = ("count", "ratio", "words", "sentence", "format")
"""Constraint types of IFBench that Fig. 7 compares: prefixes of the ids (A18)."""

RARE_TYPES = ("custom", "repeat")
"""The two with only 11 and 9 of the 300 prompts, shown on request."""

MEASURES = {
    "prompt_level_loose_acc": "Constraint Satisfaction (prompt-level loose, %)",
    "response_quality": "response quality (1 to 10, by a judge)",
    "tokens": "response length (tokens)",
    "loglik": "reference log-likelihood given the request (nats per token)",
}

_PerPrompt = tuple[pd.Series, pd.Series, int]
"""Sums and numbers of values by prompt, and how many values there would be if none was missing."""


def prompt_types(ids: Iterable[str]) -> tuple[str, ...]:
    """The types of one prompt: distinct prefixes of its constraint ids, in order.

    >>> prompt_types(["format:emoji", "words:vowel", "format:list"])
    ('format', 'words')
    """
    return tuple(dict.fromkeys(name.partition(":")[0] for name in ids))


def type_counts(responses: pd.DataFrame) -> pd.DataFrame:
    """How many prompts carry each type; ``alone`` counts those that carry no other.

    Columns: ``type``, ``prompts``, ``alone``; those of `TYPES` and `RARE_TYPES` first.
    """
    types = responses.drop_duplicates("key")["ids"].map(prompt_types)
    found = dict.fromkeys([*TYPES, *RARE_TYPES, *(name for row in types for name in row)])
    rows = [(n, sum(n in row for row in types), sum(row == (n,) for row in types)) for n in found]
    return pd.DataFrame(rows, columns=["type", "prompts", "alone"])


def type_table(
    responses: pd.DataFrame,
    rng: np.random.Generator,
    types: Sequence[str] = TYPES,
    mixed: bool = True,
) -> pd.DataFrame:
    """Means by constraint type, with 95 % bootstrap intervals over prompts.

    The paper's error bars are standard deviations over five configurations. One configuration has
    none, so the interval here says how far the mean would move with other prompts. Every response
    weighs the same (A25); all responses to a prompt are resampled together. A prompt with two types
    enters both with its prompt-level verdict (A18), or neither without ``mixed``.

    A row a type, method and name of `MEASURES`: ``type``, ``method``, ``metric``, ``value``,
    ``low``, ``high``, ``n`` (prompts that enter the mean), ``note`` (why something is NaN) and
    ``judge`` (of response quality, else empty).
    """

    def levels(group: pd.DataFrame, method: str, metric: str) -> _PerPrompt:
        part = group[group["method"] == method]
        by_prompt = part.dropna(subset=[metric]).groupby("key")[metric]
        return by_prompt.sum(), by_prompt.count(), len(part)

    return _by_type(responses, rng, types, mixed, responses["method"].unique(), levels)


def over_configurations(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Several `type_table`, by configuration, as Fig. 7 draws them: the mean over configurations,
    and one sample deviation over them to either side. Of one configuration the table itself.

    ``n`` is the number of configurations with a value; ``note`` counts the others.
    """
    if len(tables) == 1:
        (table,) = tables.values()
        return table
    rows = []
    keys = ["type", "method", "metric"]
    for key, group in pd.concat(tables).groupby(keys, sort=False):
        known = group["value"].dropna()
        mean, std = metrics.mean_and_std(known) if len(known) else (np.nan, np.nan)
        missing = len(group) - len(known)
        note = f"{missing} of {len(group)} configurations without a value" if missing else ""
        judge = ", ".join(dict.fromkeys(filter(None, group["judge"])))
        rows.append((*key, mean, mean - std, mean + std, len(known), note, judge))
    columns = [*keys, "value", "low", "high", "n", "note", "judge"]
    return pd.DataFrame(rows, columns=columns)


def type_changes(
    responses: pd.DataFrame,
    rng: np.random.Generator,
    types: Sequence[str] = TYPES,
    mixed: bool = True,
) -> pd.DataFrame:
    """What training changed by type: trained minus base on the same prompts, per method.

    Parameters and columns as in `type_table`; ``value`` is the mean over prompts of the difference
    of a prompt's means, and prompts are resampled in pairs.
    """

    def changes(group: pd.DataFrame, method: str, metric: str) -> _PerPrompt:
        part = group[group["method"].isin(["base", method])]
        means = part.pivot_table(index="key", columns="method", values=metric, dropna=False)
        means = means.reindex(columns=["base", method])
        change = (means[method] - means["base"]).dropna()
        return change, pd.Series(1, index=change.index), len(means)

    trained = [method for method in responses["method"].unique() if method != "base"]
    return _by_type(responses, rng, types, mixed, trained, changes, levels=False)


def _by_type(
    responses: pd.DataFrame,
    rng: np.random.Generator,
    types: Sequence[str],
    mixed: bool,
    methods: Iterable[str],
    per_prompt: Callable[[pd.DataFrame, str, str], _PerPrompt],
    levels: bool = True,
) -> pd.DataFrame:
    """``levels``: of the quantities themselves, not of their changes."""
    table, reason = measured(responses)
    judge = judges(responses)
    rows = []
    for name in types:
        inside = [name in found and (mixed or len(found) == 1) for found in table["types"]]
        group = table[np.array(inside, dtype=bool)]
        for method in methods:
            for metric in MEASURES:
                sums, counts, total = per_prompt(group, method, metric)
                quality = metric == "response_quality"
                note = _why(total, total - int(counts.sum()), reason if quality else "")
                is_share = levels and metric == "prompt_level_loose_acc"
                numbers = _interval(sums, counts, rng, note, is_share)
                rows.append((name, method, metric, *numbers, judge if quality else ""))
    columns = ["type", "method", "metric", "value", "low", "high", "n", "note", "judge"]
    return pd.DataFrame(rows, columns=columns)


def measured(responses: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """The responses with a column for each of `MEASURES`, and why quality is missing (or "")."""
    table = responses.assign(
        prompt_level_loose_acc=responses["passes"].astype(float) * 100,
        response_quality=responses["quality"],
        types=responses["ids"].map(prompt_types),
    ).astype({"response_quality": float, "loglik": float, "tokens": float})
    if table["response_quality"].notna().any():
        return table, ""
    return table, "not measured: the judge gave no score" if judges(responses) else NO_JUDGE


def _why(total: int, missing: int, reason: str) -> str:
    if reason:
        return reason
    if total == 0:
        return "no prompt of this type"
    return f"{missing} of {total} without a value" if missing else ""


def _interval(
    sums: pd.Series, counts: pd.Series, rng: np.random.Generator, note: str, is_share: bool
) -> tuple[float, float, float, int, str]:
    """Mean, ends, number of prompts and note; one prompt has a mean and no interval.

    The ends of a share (in percent) are Wilson's over the prompts, whose repeats add nothing.
    """
    if not len(sums):
        return np.nan, np.nan, np.nan, 0, note or "not measured"
    value = float(sums.sum() / counts.sum())
    if len(sums) == 1:
        return value, np.nan, np.nan, 1, "; ".join(filter(None, [note, "one prompt: no interval"]))
    if is_share:
        low, high = metrics.wilson_interval(value / 100 * len(sums), len(sums))
        return value, 100 * low, 100 * high, len(sums), note
    return value, *metrics.bootstrap_interval(sums, counts, rng), len(sums), note


def type_claims(levels: pd.DataFrame, changes: pd.DataFrame) -> pd.DataFrame:
    """What the paper says about Fig. 7 (in words, it prints no numbers) beside this run.

    ``levels`` is a `type_table`, ``changes`` a `type_changes`. Columns: ``claim``, ``paper``,
    ``this run``, ``verdict``. A leading type whose interval overlaps the next one's is not told
    apart from it, and the verdict says so.
    """
    base = levels[levels["method"] == "base"].set_index("metric")
    rlvr = changes[changes["method"] == "if_rlvr"].set_index("metric")
    calif = changes[changes["method"] == "calif"].set_index("metric")
    satisfaction = "prompt_level_loose_acc"
    rows = [
        ("hardest for base: lowest Constraint Satisfaction", *_leader(base, satisfaction, -1, 0)),
        ("IF-RLVR gains most Constraint Satisfaction", *_leader(rlvr, satisfaction, 1, 1)),
        ("IF-RLVR loses most response quality", *_leader(rlvr, "response_quality", -1, -1)),
        ("IF-RLVR shortens most", *_leader(rlvr, "tokens", -1, -1)),
    ]
    table = [(claim, paper.LEADING_TYPE, here, verdict) for claim, here, verdict in rows]
    table.append(("CaLIF shortens", "no type", *_shortened(calif)))
    return pd.DataFrame(table, columns=["claim", "paper", "this run", "verdict"])


def _leader(table: pd.DataFrame, metric: str, end: int, sign: int) -> tuple[str, str]:
    """The type at one end of a metric, and whether it is `paper.LEADING_TYPE`.

    ``end`` is 1 for the highest, -1 for the lowest; with ``sign`` the value must have that sign.
    """
    rows, why = _known(table, metric)
    if why:
        return "", why
    rows = rows.assign(rank=end * rows["value"]).sort_values("rank", ascending=False, kind="stable")
    first = rows[rows["rank"] == rows["rank"].iloc[0]]
    if sign and first["value"].iloc[0] * sign <= 0:
        return _shown(first.iloc[0], signed=True), "no type moves that way"
    here = ", ".join(_shown(row, signed=bool(sign)) for _, row in first.iterrows())
    if len(first) > 1:
        return here, "a tie"
    top, rest = rows.iloc[0], rows.iloc[1:]
    if rest.empty:
        return here, "only one type was measured"
    apart = ((rest["high"] < top["low"]) | (rest["low"] > top["high"])).all()
    verdict = (
        "as in the paper" if top["type"] == paper.LEADING_TYPE else "another type than in the paper"
    )
    return here, verdict + ("" if apart else ", but not told apart from the next")


def _shortened(table: pd.DataFrame) -> tuple[str, str]:
    rows, why = _known(table, "tokens")
    if why:
        return "", why
    lowest = rows.sort_values("value", kind="stable").iloc[0]
    shorter = rows.loc[rows["high"] < 0, "type"]
    if len(shorter):
        verdict = f"opposite to the paper: {', '.join(shorter)}"
    elif rows["high"].isna().all():
        verdict = "one prompt a type: no interval"
    else:
        verdict = "as in the paper: no interval lies below 0"
    return _shown(lowest, signed=True), verdict


def _known(table: pd.DataFrame, metric: str) -> tuple[pd.DataFrame, str]:
    rows = table.loc[table.index == metric]
    known = rows.dropna(subset=["value"])
    if not len(rows):
        return known, "not measured: this profile has no such run"
    return known, "" if len(known) else rows["note"].iloc[0]


def _shown(row: pd.Series, signed: bool) -> str:
    form = "+.1f" if signed else ".1f"
    ends = f"[{row['low']:{form}}, {row['high']:{form}}]" if row["n"] > 1 else "(one prompt)"
    return f"{row['type']} {row['value']:{form}} {ends}"
