"""Tables 6 to 8: examples chosen by rule, side by side, with the paper's own.

Responses are data: they are shown as plain text that cannot act on a terminal, a page or a
spreadsheet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from califkit.exhibits import paper
from califkit.exhibits.methods import label
from califkit.exhibits.plaintext import block, code_span
from califkit.exhibits.summary import judges
from califkit.exhibits.types import measured
from califkit.verifiers.registry import asks_for_short_or_copied


def repetitions(responses: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Responses that repeat themselves, worst first, and the rule in words (Table 6).

    Taken from the direct bonus, which the paper shows; without a run of it, from the policies that
    there are (base only if it is the only one), and the rule says so. A response under two tokens
    has no distinct-2 and is left out.
    """
    methods = [m for m in responses["method"].unique() if m != "base"] or ["base"]
    order = "lowest distinct-2, then highest log-likelihood"
    if "direct_bonus" in methods:
        methods, rule = ["direct_bonus"], f"{order}, under the {label('direct_bonus')}"
    else:
        rule = (
            f"this profile has no run of the {label('direct_bonus')} (direct_bonus in "
            f"settings.methods), so: {order}, among {', '.join(map(label, methods))}"
        )
    found = responses[responses["method"].isin(methods)].dropna(subset=["distinct_2"])
    found = found.sort_values(["distinct_2", "loglik"], ascending=[True, False], kind="stable")
    return found.reset_index(drop=True), rule


def quality_gaps(responses: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Prompts where IF-RLVR passes, the largest gap first, and the rule in words (Tables 7, 8).

    The gap is response quality, base minus IF-RLVR, on the same prompt and evaluation seed.
    Without a judge it is the drop of the log-likelihood, then of the length. Prompts that ask for a
    short or copied answer are left out: there it is no hack. Each prompt comes once.
    Columns: those of ``responses`` (IF-RLVR's), ``quality_gap``, ``loglik_drop``, ``length_drop``.
    """
    table, reason = measured(responses)
    quantities = ["response_quality", "loglik", "tokens"]
    table = table[~table["ids"].map(asks_for_short_or_copied).astype(bool)]
    base = table.loc[table["method"] == "base", ["key", "eval_seed", *quantities]]
    passing = table[(table["method"] == "if_rlvr") & table["passes"].astype(bool)]
    pairs = passing.merge(base, on=["key", "eval_seed"], suffixes=("", "_base"))
    gaps = ("quality_gap", "loglik_drop", "length_drop")
    for gap, metric in zip(gaps, quantities, strict=True):
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
    rule += "; prompts that ask for a short or copied answer are left out"
    pairs = pairs.sort_values(order, ascending=False, kind="stable").drop_duplicates("key")
    return pairs[[*responses.columns, *gaps]].reset_index(drop=True), rule


def side_by_side(responses: pd.DataFrame, pick: pd.Series, methods: Sequence[str]) -> pd.DataFrame:
    """What each policy answers to the prompt of ``pick`` in its evaluation seed, a row a method.

    ``pick`` is a row of `repetitions` or `quality_gaps`. Of several trainings of a method, the one
    with the pick's training seed is taken, else the first. Columns: ``policy``, ``key``,
    ``eval_seed``, ``train_seed``, ``response_quality``, ``loglik``, ``tokens``, ``distinct_2``,
    ``information``, ``verdict``, ``response``, ``judge``, ``note``. A method without a run has a
    row that says so.
    """
    table, reason = measured(responses)
    same = table[(table["key"] == pick["key"]) & (table["eval_seed"] == pick["eval_seed"])]
    numbers = ["train_seed", "response_quality", "loglik", "tokens", "distinct_2", "information"]
    rows: list[dict[str, Any]] = []
    for method in methods:
        own = same[same["method"] == method]
        row = {"policy": label(method), "key": pick["key"], "eval_seed": pick["eval_seed"]}
        row |= dict.fromkeys(numbers, np.nan) | {"verdict": "", "response": "", "judge": ""}
        row["note"] = "not measured: this profile has no run with this reward"
        if len(own):
            twin = own[own["train_seed"] == pick["train_seed"]]
            answer = (own if twin.empty else twin).iloc[0]
            unscored = reason or ("unscored" if np.isnan(answer["response_quality"]) else "")
            row |= answer.reindex([*numbers, "response"]).to_dict()
            row["verdict"] = "pass" if answer["passes"] else "fail"
            row["judge"] = judges(own)
            row["note"] = f"response quality {unscored}" if unscored else ""
        rows.append(row)
    return pd.DataFrame(rows).astype(dict.fromkeys(numbers, float))


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
        if not np.isnan(row["information"]):
            scores += f", identification {row['information']:.1f} nats"
        parts.append(f"{row['policy']}: {scores}\n{block(row['response'], limit)}")
    return "\n\n".join(parts)


def _number(value: float) -> str:
    return "undefined" if np.isnan(value) else f"{value:.2f}"


def beside_example(rows: pd.DataFrame | None, table: int) -> pd.DataFrame:
    """A `side_by_side` with the paper's example in columns of its own (``paper: ...``).

    The prompts differ, so the numbers are not compared one by one. Responses become `code_span`.
    ``rows`` is None where the run has no example; then the notes say so.
    """
    printed = paper.example(table)
    if rows is None:
        note = "not measured: this profile has no such example"
        here = pd.DataFrame({"policy": printed["policy"], "note": note})
    else:
        here = rows.assign(response=[code_span(text) if text else "" for text in rows["response"]])
    return here.join(printed.set_index("policy").add_prefix("paper: "), on="policy")
