"""Tables that set two policies side by side, prompt by prompt: Tables 2 and 5 of the paper.

What a judge has to say stands beside what can be measured without one: verdicts, reference
log-likelihood and length. Those are not response quality, and the columns do not call them so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from califkit import metrics
from califkit.evaluation.quality import PAIRS
from califkit.exhibits import paper
from califkit.exhibits.summary import NO_JUDGE, judges, paired
from califkit.runs.folders import Run
from califkit.runs.jsonl import read_jsonl

EMPTY = "no prompt made this transition"


def transition_table(responses: pd.DataFrame, method: str) -> pd.DataFrame:
    """How responses changed where verdicts stayed or changed, a row a transition (Table 2; A20).

    Run k of the base policy is paired with run k of the trained one on the same prompts of a
    `califkit.exhibits.summary.response_table`; means are over all pairs of all runs. Columns:
    ``method``, ``transition`` (`califkit.metrics.TRANSITIONS`), ``pairs``, then means of trained
    minus base: ``quality_change`` over ``scored`` pairs (both responses have a score),
    ``loglik_change`` (nats per token) over ``with_loglik`` pairs, both with the ends of a 95 %
    interval over prompts (``_low``, ``_high``), ``tokens_change``; ``judge`` and
    ``note``, which says why there is no change of quality, or how many pairs lack one.
    """
    pairs = paired(responses, method)
    if pairs.empty:
        raise ValueError(f"no response of {method} answers a prompt that base answers, too")
    names, rng = ("quality", "loglik", "tokens"), np.random.default_rng(0)
    changes = {name: pairs[f"{name}_trained"] - pairs[f"{name}_base"] for name in names}
    transition = metrics.transitions(pairs["passes_base"], pairs["passes_trained"])
    groups = pd.DataFrame(changes).astype(float).groupby(transition)
    means = groups.mean().reindex(metrics.TRANSITIONS)
    known = groups.count().reindex(metrics.TRANSITIONS, fill_value=0)
    counts = groups.size().reindex(metrics.TRANSITIONS, fill_value=0)
    judge = judges(responses)
    table = pd.DataFrame(
        {
            "pairs": counts,
            "quality_change": means["quality"],
            **_ends("quality", changes["quality"], transition, pairs["key"], rng),
            "scored": known["quality"],
            "loglik_change": means["loglik"],
            **_ends("loglik", changes["loglik"], transition, pairs["key"], rng),
            "with_loglik": known["loglik"],
            "tokens_change": means["tokens"],
            "judge": judge,
            "note": [_why(*row, judge) for row in zip(counts, known["quality"], strict=True)],
        }
    )
    table = table.rename_axis("transition").reset_index()
    table.insert(0, "method", method)
    return table


def _ends(
    name: str, change: pd.Series, transition: np.ndarray, keys: pd.Series, rng: np.random.Generator
) -> dict[str, list[float]]:
    """Ends of the 95 % bootstrap intervals over prompts of the mean changes, transition by
    transition; NaN for less than two prompts."""
    ends = []
    for one in metrics.TRANSITIONS:
        inside = (transition == one) & change.notna().to_numpy()
        several = keys[inside].nunique() > 1
        values = (change[inside].to_numpy(dtype=float), keys[inside].tolist())
        ends.append(metrics.interval_by_prompt(*values, rng) if several else (np.nan, np.nan))
    low, high = zip(*ends, strict=True)
    return {f"{name}_low": list(low), f"{name}_high": list(high)}


def _why(count: int, scored: int, judge: str) -> str:
    """Why a change of quality is missing, or over fewer pairs than there are."""
    if not count:
        return EMPTY
    if not judge:
        return NO_JUDGE
    missing = f"{count - scored} of {count} pairs have no score on one side or both"
    return missing if scored < count else ""


def transitions_over_configurations(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Several `transition_table`, by configuration, as the paper's Table 2 averages them.

    The mean over configurations of each one's means, with the sample deviation over them in
    ``quality_std``; the ends of the intervals are mean and deviation, too. Numbers of pairs are
    summed. A configuration in which nobody made a transition,
    or whose changes are not scored, is left out there, and the note counts it (A20). Of one
    configuration the table itself, whose deviation is NaN.
    """
    if len(tables) == 1:
        (table,) = tables.values()
        return table.assign(quality_std=np.nan, configurations=1)
    rows = []
    for (method, transition), group in pd.concat(tables).groupby(
        ["method", "transition"], sort=False
    ):
        known = group["quality_change"].dropna()
        mean, std = metrics.mean_and_std(known) if len(known) else (np.nan, np.nan)
        row: dict[str, Any] = {"method": method, "transition": transition}
        row |= group[["pairs", "scored", "with_loglik"]].sum().to_dict()
        row |= {"quality_change": mean, "quality_std": std, "configurations": len(known)}
        row |= {"quality_low": mean - std, "quality_high": mean + std}
        row |= group[["loglik_change", "tokens_change"]].mean().to_dict()
        spread = group["loglik_change"].std()
        row |= {f"loglik_{end}": row["loglik_change"] + sign * spread for end, sign in _SIGNS}
        row["judge"] = ", ".join(dict.fromkeys(filter(None, group["judge"])))
        left_out = f"{len(group) - len(known)} of {len(group)} configurations have no number"
        rows.append(row | {"note": left_out if len(known) < len(group) else ""})
    return pd.DataFrame(rows)


_SIGNS = (("low", -1), ("high", 1))


def transitions_beside_paper(table: pd.DataFrame) -> pd.DataFrame:
    """Change of response quality here and in the paper's Table 2, a row a method and transition.

    ``table``: one or more `transition_table`, or `transitions_over_configurations`. Columns:
    ``method``, ``transition``, ``pairs``, ``this_run`` (with ``this_std``, if it is over several
    configurations) and its ``judge``, ``paper`` and ``paper_std`` (mean and standard deviation over
    the paper's five configurations, NaN where it prints none), ``note``.
    """
    there = paper.transitions().rename(columns={"mean": "paper", "std": "paper_std"})
    both = table.merge(there, on=["method", "transition"], how="left")
    both = both.rename(columns={"quality_change": "this_run", "quality_std": "this_std"})
    columns = ["method", "transition", "pairs", "this_run", "this_std", "judge"]
    return both.reindex(columns=[*columns, "paper", "paper_std", "note"])


def pair_table(runs: Iterable[Run]) -> pd.DataFrame:
    """Outcomes of `califkit.evaluation.quality.judge_pairs`, a row a run (Table 5).

    Columns: ``first``, ``second`` (methods), ``judge``, ``pairs``; ``wins``, ``ties``, ``losses``
    of the first and its ``adjusted_win_rate`` in percent; ``consistent``, the percentage of pairs
    whose two orders say the same, of those with a verdict in both; ``first_position``, the
    percentage of verdicts other than ties for what is shown first (50 is no preference, since every
    pair is shown in both orders); ``unscored``, the number of verdicts that are missing, which make
    ties. A percentage of nothing is NaN.
    """
    rows = []
    for run in runs:
        pairs = pd.DataFrame(read_jsonl(run.folder / PAIRS))
        orders = pairs[["first_order", "second_order"]]
        whole = orders.notna().all(axis=1)
        verdicts = orders.stack().dropna()
        decided = verdicts[verdicts != "tie"]
        plural = {"win": "wins", "tie": "ties", "loss": "losses"}
        outcomes = {name: int((pairs["outcome"] == o).sum()) for o, name in plural.items()}
        rows.append(
            {
                "first": run.stage.first.method,
                "second": run.stage.second.method,
                "judge": run.stage.judge.name,
                "pairs": len(pairs),
                **outcomes,
                "adjusted_win_rate": metrics.adjusted_win_rate(**outcomes),
                "consistent": _percent(pairs.loc[whole, "consistent"]),
                "first_position": _percent(decided == "first"),
                "unscored": int(orders.isna().sum().sum()),
            }
        )
    columns = ["first", "second", "judge", "pairs", "wins", "ties", "losses", "adjusted_win_rate"]
    return pd.DataFrame(rows, columns=[*columns, "consistent", "first_position", "unscored"])


def pairs_beside_paper(table: pd.DataFrame, configurations: Sequence[str]) -> pd.DataFrame:
    """CaLIF against IF-RLVR in each configuration here, and in the paper's Table 5.

    ``table``: `pair_table` with a column ``configuration``; one without a row says that nothing was
    measured. Several have a row of their summed counts. Columns: ``source``, ``configuration``,
    ``judge``, ``pairs``, ``wins``, ``ties``, ``losses``, ``adjusted_win_rate``, ``note``.
    """
    here = table[(table["first"] == "calif") & (table["second"] == "if_rlvr")]
    missing = [name for name in configurations if name not in set(here["configuration"])]
    gaps = pd.DataFrame({"configuration": missing, "judge": "", "note": NO_JUDGE})
    rows = [here.assign(note=""), gaps]
    counts = ["pairs", "wins", "ties", "losses"]
    if len(here) > 1:
        sums = here[counts].sum()
        rate = metrics.adjusted_win_rate(*(int(sums[name]) for name in counts[1:]))
        judge = ", ".join(here["judge"].unique())
        overall = {"configuration": "overall", "judge": judge, "note": "", **sums}
        rows.append(pd.DataFrame([overall | {"adjusted_win_rate": rate}]))
    there = paper.pairwise()
    there = there.assign(
        configuration=there["configuration"],
        judge=paper.JUDGE,
        pairs=there[counts[1:]].sum(axis=1),
        note="",
    )
    columns = ["source", "configuration", "judge", *counts, "adjusted_win_rate", "note"]
    sides = {"this run": pd.concat(rows, ignore_index=True), "paper": there}
    both = pd.concat(
        [frame.assign(source=source).reindex(columns=columns) for source, frame in sides.items()],
        ignore_index=True,
    )
    both["configuration"] = both["configuration"].replace(paper.CONFIGURATIONS)
    return both.astype(dict.fromkeys(counts, "Int64"))


def head_to_head(responses: pd.DataFrame, first: str, second: str) -> pd.DataFrame:
    """Which of two policies has more of what is measured without a judge, prompt by prompt.

    The first training and evaluation seed of each, as in the paper's pairwise comparison (A21).
    Columns: ``quantity``, ``pairs`` (both sides defined), ``first_higher``, ``equal``,
    ``second_higher`` (numbers of prompts), ``mean_difference`` (first minus second).
    """
    sides = [_first_run(responses[responses["method"] == name]) for name in (first, second)]
    pairs = sides[0].merge(sides[1], on="key", suffixes=("_first", "_second"))
    if pairs.empty:
        raise ValueError(f"{first} and {second} have no prompt in common")
    quantities = {
        "passes": "passes all constraints (loose)",
        "loglik": "reference log-likelihood (nats per token)",
        "tokens": "length (tokens)",
    }
    rows = []
    for name, label in quantities.items():
        difference = pairs[f"{name}_first"].astype(float) - pairs[f"{name}_second"].astype(float)
        difference = difference.dropna()
        higher, equal = int((difference > 0).sum()), int((difference == 0).sum())
        lower = len(difference) - higher - equal
        mean = metrics.nan_mean(difference)
        rows.append((label, len(difference), higher, equal, lower, mean))
    columns = ["quantity", "pairs", "first_higher", "equal", "second_higher", "mean_difference"]
    return pd.DataFrame(rows, columns=columns)


def _first_run(responses: pd.DataFrame) -> pd.DataFrame:
    """Responses of the first training seed and the first evaluation seed in the table."""
    runs = responses.groupby(["train_seed", "eval_seed"], sort=False, dropna=False)
    return responses.loc[runs.ngroup() == 0, ["key", "passes", "loglik", "tokens"]]


def _percent(values: Sequence[bool] | pd.Series) -> float:
    return 100.0 * float(np.mean(values)) if len(values) else float("nan")
