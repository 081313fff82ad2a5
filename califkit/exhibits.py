"""Tables behind Fig. 7 and Tables 6 to 8: by constraint type, and single responses side by side.

Pure functions of the table that `califkit.evaluation.response_table` gives. Without a judge's
scores in its column ``quality``, response quality says why it is missing. Responses are data: they
are shown as plain text that cannot act on a terminal, a page or a spreadsheet.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from califkit import metrics, paper
from califkit.evaluation import NO_JUDGE
from califkit.plaintext import block, code_span

TYPES = ("count", "ratio", "words", "sentence", "format")
"""Constraint types of IFBench that Fig. 7 compares: prefixes of the ids (A18)."""

RARE_TYPES = ("custom", "repeat")
"""The two with only 11 and 9 of the 300 prompts, shown on request."""

MEASURES = {
    "prompt_loose": "Constraint Satisfaction (prompt-level loose, %)",
    "response_quality": "response quality (1 to 10, by a judge)",
    "tokens": "response length (tokens)",
    "loglik": "reference log-likelihood given the request (nats per token)",
}

# ------------------------------------------------------------------ constraint types (Fig. 7)


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
    none, so the interval here says how far the mean would move with other prompts.

    Parameters
    ----------
    responses
        Every response weighs the same (A25); all responses to a prompt are resampled together.
    rng
        Source of the resamples.
    types
        Groups. A prompt with two types enters both with its prompt-level verdict (A18).
    mixed
        False leaves prompts with more than one type out.

    Returns
    -------
    pandas.DataFrame
        A row a type, method and name of `MEASURES`: ``type``, ``method``, ``metric``, ``value``,
        ``low``, ``high``, ``n`` (prompts that enter the mean), ``note`` (why something is NaN) and
        ``judge`` (of response quality, else empty).
    """
    table, reason = _measured(responses)
    rows = []
    for name in types:
        group = _of_type(table, name, mixed)
        for method in table["method"].unique():
            part = group[group["method"] == method]
            for metric in MEASURES:
                by_prompt = part.dropna(subset=[metric]).groupby("key")[metric]
                sums, counts = by_prompt.sum(), by_prompt.count()
                missing = len(part) - int(counts.sum())
                note = _why(len(part), missing, metric, reason)
                rows.append((name, method, metric, *_interval(sums, counts, rng, note)))
    return _with_judge(rows, responses)


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
    table, reason = _measured(responses)
    rows = []
    for name in types:
        group = _of_type(table, name, mixed)
        for method in [m for m in table["method"].unique() if m != "base"]:
            part = group[group["method"].isin(["base", method])]
            for metric in MEASURES:
                means = part.pivot_table(index="key", columns="method", values=metric, dropna=False)
                means = means.reindex(columns=["base", method])
                change = (means[method] - means["base"]).dropna()
                note = _why(len(means), len(means) - len(change), metric, reason)
                ones = pd.Series(1, index=change.index)
                rows.append((name, method, metric, *_interval(change, ones, rng, note)))
    return _with_judge(rows, responses)


def _with_judge(rows: list[tuple[Any, ...]], responses: pd.DataFrame) -> pd.DataFrame:
    columns = ["type", "method", "metric", "value", "low", "high", "n", "note"]
    table = pd.DataFrame(rows, columns=columns)
    quality = table["metric"] == "response_quality"
    return table.assign(judge=np.where(quality, judges(responses), ""))


def judges(responses: pd.DataFrame) -> str:
    """Who scored the response quality; empty without a judge."""
    return ", ".join(responses["judge"].dropna().unique()) if "judge" in responses else ""


def _measured(responses: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """The responses with a column for each of `MEASURES`, and why quality is missing (or "")."""
    quality = responses["quality"] if "quality" in responses else np.nan
    table = responses.assign(
        prompt_loose=responses["passes"].astype(float) * 100,
        response_quality=quality,
        types=responses["ids"].map(prompt_types),
    ).astype({"response_quality": float, "loglik": float, "tokens": float})
    if table["response_quality"].notna().any():
        return table, ""
    return table, "not measured: the judge gave no score" if judges(responses) else NO_JUDGE


def _of_type(table: pd.DataFrame, name: str, mixed: bool) -> pd.DataFrame:
    inside = [name in types and (mixed or len(types) == 1) for types in table["types"]]
    return table[np.array(inside, dtype=bool)]


def _why(total: int, missing: int, metric: str, reason: str) -> str:
    if metric == "response_quality" and reason:
        return reason
    if total == 0:
        return "no prompt of this type"
    return f"{missing} of {total} without a value" if missing else ""


def _interval(
    sums: pd.Series, counts: pd.Series, rng: np.random.Generator, note: str
) -> tuple[float, float, float, int, str]:
    """Mean, ends, number of prompts and note; one prompt has a mean and no interval."""
    if not len(sums):
        return np.nan, np.nan, np.nan, 0, note or "not measured"
    value = float(sums.sum() / counts.sum())
    if len(sums) == 1:
        return value, np.nan, np.nan, 1, "; ".join(filter(None, [note, "one prompt: no interval"]))
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
    rows = [
        ("hardest for base: lowest Constraint Satisfaction", *_leader(base, "prompt_loose", -1, 0)),
        ("IF-RLVR gains most Constraint Satisfaction", *_leader(rlvr, "prompt_loose", 1, 1)),
        ("IF-RLVR loses most response quality", *_leader(rlvr, "response_quality", -1, -1)),
        ("IF-RLVR shortens most", *_leader(rlvr, "tokens", -1, -1)),
    ]
    table = [(claim, "words", here, verdict) for claim, here, verdict in rows]
    table.append(("CaLIF shortens", "no type", *_shortened(calif)))
    return pd.DataFrame(table, columns=["claim", "paper", "this run", "verdict"])


def _leader(table: pd.DataFrame, metric: str, end: int, sign: int) -> tuple[str, str]:
    """The type at one end of a metric, and whether it is the paper's ``words``.

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
    verdict = "as in the paper" if top["type"] == "words" else "another type than in the paper"
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


# ------------------------------------------------------------------ which responses to show


def repetitions(responses: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Responses that repeat themselves, worst first, and the rule in words (Table 6).

    Taken from the direct bonus, which the paper shows; without a run of it, from the policies that
    there are (base only if it is the only one), and the rule says so. A response under two tokens
    has no distinct-2 and is left out.
    """
    methods = [m for m in responses["method"].unique() if m != "base"] or ["base"]
    order = "lowest distinct-2, then highest log-likelihood"
    if "direct_bonus" in methods:
        methods, rule = ["direct_bonus"], f"{order}, under the {paper.METHODS['direct_bonus']}"
    else:
        rule = (
            f"this profile has no run of the {paper.METHODS['direct_bonus']} (direct_bonus in "
            f"settings.methods), so: {order}, among {', '.join(map(_label, methods))}"
        )
    found = responses[responses["method"].isin(methods)].dropna(subset=["distinct_2"])
    found = found.sort_values(["distinct_2", "loglik"], ascending=[True, False], kind="stable")
    return found.reset_index(drop=True), rule


def quality_gaps(responses: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Prompts where IF-RLVR passes, the largest gap first, and the rule in words (Tables 7, 8).

    The gap is response quality, base minus IF-RLVR, on the same prompt and evaluation seed.
    Without a judge it is the drop of the log-likelihood, then of the length. Each prompt comes
    once. Columns: those of ``responses`` (IF-RLVR's), and ``quality_gap``, ``loglik_drop``,
    ``length_drop``.
    """
    table, reason = _measured(responses)
    measured = ["response_quality", "loglik", "tokens"]
    base = table.loc[table["method"] == "base", ["key", "eval_seed", *measured]]
    passing = table[(table["method"] == "if_rlvr") & table["passes"].astype(bool)]
    pairs = passing.merge(base, on=["key", "eval_seed"], suffixes=("", "_base"))
    gaps = ("quality_gap", "loglik_drop", "length_drop")
    for gap, metric in zip(gaps, measured, strict=True):
        pairs[gap] = pairs[f"{metric}_base"] - pairs[metric]
    if reason:
        order = ["loglik_drop", "length_drop"]
        rule = (
            f"response quality {reason}, so: largest drop of the log-likelihood from base to "
            "IF-RLVR, then of the length, where IF-RLVR passes"
        )
    else:
        order = list(gaps)
        pairs = pairs.dropna(subset=["quality_gap"])
        rule = "largest gap of response quality, base minus IF-RLVR, where IF-RLVR passes"
    pairs = pairs.sort_values(order, ascending=False, kind="stable").drop_duplicates("key")
    return pairs[[*responses.columns, *gaps]].reset_index(drop=True), rule


def side_by_side(responses: pd.DataFrame, pick: pd.Series, methods: Sequence[str]) -> pd.DataFrame:
    """What each policy answers to the prompt of ``pick`` in its evaluation seed, a row a method.

    ``pick`` is a row of `repetitions` or `quality_gaps`. Of several trainings of a method, the one
    with the pick's training seed is taken, else the first. Columns: ``policy``, ``key``,
    ``eval_seed``, ``train_seed``, ``response_quality``, ``loglik``, ``tokens``, ``distinct_2``,
    ``verdict``, ``response``, ``judge``, ``note``. A method without a run has a row that says so.
    """
    table, reason = _measured(responses)
    same = table[(table["key"] == pick["key"]) & (table["eval_seed"] == pick["eval_seed"])]
    rows: list[dict[str, Any]] = []
    for method in methods:
        own = same[same["method"] == method]
        row = {"policy": _label(method), "key": pick["key"], "eval_seed": pick["eval_seed"]}
        if own.empty:
            note = "not measured: this profile has no run with this reward"
            rows.append(row | {"verdict": "", "response": "", "judge": "", "note": note})
            continue
        twin = own[own["train_seed"] == pick["train_seed"]]
        answer = (own if twin.empty else twin).iloc[0]
        unscored = reason or ("unscored" if np.isnan(answer["response_quality"]) else "")
        columns = ["train_seed", "response_quality", "loglik", "tokens", "distinct_2", "response"]
        row |= answer[columns].to_dict()
        row["verdict"] = "pass" if answer["passes"] else "fail"
        row["judge"] = judges(own)
        row["note"] = f"response quality {unscored}" if unscored else ""
        rows.append(row)
    columns = ["train_seed", "response_quality", "loglik", "tokens", "distinct_2"]
    table = pd.DataFrame(
        rows,
        columns=["policy", "key", "eval_seed", *columns, "verdict", "response", "judge", "note"],
    )
    return table.astype(dict.fromkeys(columns, float))


def _label(method: str) -> str:
    return paper.METHODS.get(method, method)


def as_text(prompt: str, ids: Sequence[str], rows: pd.DataFrame, limit: int = 1400) -> str:
    """The query, then each policy's scores and response, as the paper lays Tables 6 to 8 out.

    ``rows`` is a `side_by_side`. The scores stand before the response and never inside it.
    """
    first = rows.iloc[0]
    head = f"query (key {first['key']}; {', '.join(ids)}; evaluation seed {first['eval_seed']})"
    parts = [f"{head}\n{block(prompt, limit)}"]
    for _, row in rows.iterrows():
        if not row["verdict"]:
            parts.append(f"{row['policy']}: {row['note']}")
            continue
        score = f"RQ {row['response_quality']:g} ({row['judge']})"
        quality = row["note"].replace("response quality", "RQ") or score
        scores = (
            f"{row['verdict']}, {quality}, log-likelihood {_number(row['loglik'])}, "
            f"{row['tokens']:.0f} tokens, distinct-2 {_number(row['distinct_2'])}"
        )
        parts.append(f"{row['policy']}: {scores}\n{block(row['response'], limit)}")
    return "\n\n".join(parts)


def _number(value: float) -> str:
    return "undefined" if np.isnan(value) else f"{value:.2f}"


# ------------------------------------------------------------------ the paper's examples

_PAPER = {
    6: (
        ("base", 5, -1.25, None, "about ten facts"),
        ("if_rlvr", 2, -5.05, None, "one sentence on the topic, then one about emoji"),
        ("calif", 7, -0.84, None, "about nine fuller sentences"),
        ("direct_bonus", 1, -0.04, None, "several hundred copies of one emoji"),
    ),
    7: (
        ("base", 5, np.nan, "fail", "plain paragraphs without the required bullets"),
        ("if_rlvr", 1, np.nan, "pass", "only the four names, no definition"),
        ("calif", 6, np.nan, "pass", "one line of definition for each name"),
    ),
    8: (
        ("base", 7, np.nan, "pass", "an explanation"),
        ("if_rlvr", 1, np.nan, "pass", "a single word, config"),
        ("calif", 7, np.nan, "pass", "an explanation"),
    ),
}

PAPER_QUERIES = {
    6: "IFBench key 70 (format:emoji): relativistic speed, an emoji after every sentence",
    7: "IFBench key 83 (format:list): define four kinds of music, with !?!? as the bullet",
    8: "IFBench key 255 (words:repeats): explain a function, no word more than five times",
}
"""The prompts of the paper's Tables 6 to 8 (Qwen3-1.7B), in our words."""


def paper_example(table: int) -> pd.DataFrame:
    """The paper's Table 6, 7 or 8: a row a policy, scores as printed, responses in our words.

    Columns: ``policy``, ``response_quality``, ``loglik`` (Table 6 only), ``verdict`` (Tables 7 and
    8 only), ``response (described)``.
    """
    columns = ["policy", "response_quality", "loglik", "verdict", "response (described)"]
    frame = pd.DataFrame(_PAPER[table], columns=columns)
    return frame.assign(policy=frame["policy"].map(_label)).dropna(axis="columns", how="all")


def beside_example(rows: pd.DataFrame | None, table: int) -> pd.DataFrame:
    """A `side_by_side` with the paper's example in columns of its own (``paper: ...``).

    The prompts differ, so the numbers are not compared one by one. Responses become `code_span`.
    ``rows`` is None where the run has no example; then the notes say so.
    """
    printed = paper_example(table)
    if rows is None:
        note = "not measured: this profile has no such example"
        here = pd.DataFrame({"policy": printed["policy"], "note": note})
    else:
        here = rows.assign(response=[code_span(text) if text else "" for text in rows["response"]])
    return here.join(printed.set_index("policy").add_prefix("paper: "), on="policy")
