"""The tables behind Figures 5 and 6: every policy's scores, and the paper's numbers beside them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from califkit import metrics
from califkit.evaluation.identification import identification_of, identified_answers
from califkit.evaluation.quality import mean_quality, quality_by_run
from califkit.evaluation.scores import SCORES
from califkit.exhibits import paper
from califkit.exhibits.methods import MAIN, arm_names, label
from califkit.generation import RESPONSES, whose
from califkit.runs.folders import Run, open_run
from califkit.runs.jsonl import read_jsonl
from califkit.runs.stages import TrainStage, stage_hash

NO_JUDGE = "not measured: no judge configured"

METRICS = {
    "prompt_level_loose_acc": "Constraint Satisfaction (prompt-level loose, %)",
    "prompt_level_strict_acc": "prompt-level strict (%)",
    "inst_level_loose_acc": "instruction-level loose (%)",
    "inst_level_strict_acc": "instruction-level strict (%)",
    "loglik": "reference log-likelihood given the request (nats per token)",
    "tokens": "response length (tokens)",
    "distinct_2": "distinct-2",
    "cut": "answers cut at the token limit (%)",
    "finished_prompt_level_loose_acc": "Constraint Satisfaction of the answers not cut (%)",
}
"""Run-level metrics in the order tables show them, with their labels."""

IDENTIFICATION = {
    "top_1": "request identification, likeliest given its own request (%)",
    "information": "request identification, information (nats an answer)",
}
"""A measure of quality without a judge, where the settings ask for it; it is no response quality
(`califkit.evaluation.identification`)."""


def run_metrics(scores: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Run-level value of every metric in `METRICS`, from the rows of one `SCORES` file."""
    strict = [row["strict"] for row in scores]
    loose = [row["loose"] for row in scores]
    finished = [row["loose"] for row in scores if row["finish_reason"] != "length"]
    of_finished = metrics.prompt_accuracy(finished) if finished else np.nan
    means = pd.DataFrame(scores)[["loglik", "tokens", "distinct_2"]].astype(float)
    return {
        "prompt_level_loose_acc": metrics.prompt_accuracy(loose),
        "prompt_level_strict_acc": metrics.prompt_accuracy(strict),
        "inst_level_loose_acc": metrics.instruction_accuracy(loose),
        "inst_level_strict_acc": metrics.instruction_accuracy(strict),
        **{name: metrics.nan_mean(means[name]) for name in means},
        "cut": 100.0 * (1 - len(finished) / len(scores)),
        "finished_prompt_level_loose_acc": of_finished,
    }


def metrics_by_run(
    runs: Iterable[Run], quality_runs: Sequence[Run] = (), identification_runs: Sequence[Run] = ()
) -> pd.DataFrame:
    """One row a scored run: ``method`` (as `arm_names` has it, so that runs with another alpha are
    no further seeds), ``train_seed``, ``eval_seed``, the metrics, and counts.

    ``empty`` counts answers without text, which have no likelihood; ``left_out`` counts rows of
    the benchmark that could not be used. ``response_quality`` is a number where ``quality_runs``
    hold the same responses, else `NO_JUDGE`; with them come ``quality_unscored`` and ``judge``.
    With ``identification_runs`` come the columns of `IDENTIFICATION` and ``requests`` (K).
    Warns and raises as `califkit.evaluation.quality.quality_by_run`.
    """
    responses = dict.fromkeys(map(_responses_of, quality_runs))
    graded = dict(zip(responses, quality_by_run(quality_runs).to_dict("records"), strict=True))
    identified = {_responses_of(run): run for run in identification_runs}
    runs = list(runs)
    names = _names(runs)
    rows = []
    for run in runs:
        scores = read_jsonl(run.folder / SCORES)
        row = {
            **whose(run.stage.responses),
            "method": names[run.stage.responses.policy],
            **run_metrics(scores),
            "response_quality": NO_JUDGE,
            "n": len(scores),
            "empty": sum(row["loglik"] is None for row in scores),
            "left_out": run.manifest()["left_out"],
        }
        if found := graded.get(_responses_of(run)):
            row |= {k: found[k] for k in ("response_quality", "quality_unscored", "judge")}
        if same := identified.get(_responses_of(run)):
            found = identification_of([same])
            row |= {"top_1": 100 * found.top_1, "information": found.information}
            row["requests"] = found.requests
        rows.append(row)
    return pd.DataFrame(rows)


def _names(runs: Sequence[Run]) -> dict[TrainStage | None, str]:
    return arm_names(run.stage.responses.policy for run in runs)


def _responses_of(run: Run) -> str:
    return stage_hash(run.stage.responses)


def summary_table(by_run: pd.DataFrame) -> pd.DataFrame:
    """Mean and sample standard deviation over runs, a row a configuration, method and metric.

    Columns: ``configuration`` (that of ``by_run``, else empty), ``method``, ``metric``, ``mean``,
    ``std`` (NaN for one run), ``runs``, ``judge`` and ``unscored`` (whose response quality this is,
    and how many responses have none; empty for the other metrics), ``note``. A metric without
    numbers says why in its note: response quality
    without a judge, and a metric that a run leaves undefined because all its answers are empty.
    """
    shown = [*METRICS, *(name for name in IDENTIFICATION if name in by_run), "response_quality"]
    rows = []
    for key, group in _configured(by_run).groupby(["configuration", "method"], sort=False):
        for metric in shown:
            values = pd.to_numeric(group[metric], errors="coerce")  # NO_JUDGE is no number
            undefined = int(values.isna().sum())
            mean, std, note, judge, unscored = np.nan, np.nan, "", "", np.nan
            if undefined == 0:
                mean, std = metrics.mean_and_std(values)
            elif group[metric].eq(NO_JUDGE).all():
                note = NO_JUDGE
            else:
                note = f"not measured: undefined in {undefined} of {len(group)} runs"
            if metric == "response_quality" and note != NO_JUDGE:
                judge = ", ".join(group["judge"].dropna().unique())
                unscored = group["quality_unscored"].sum()
            runs = len(group) - undefined
            rows.append((*key, metric, mean, std, runs, judge, unscored, note))
    columns = ["configuration", "method", "metric", "mean", "std", "runs", "judge"]
    return pd.DataFrame(rows, columns=[*columns, "unscored", "note"])


def _configured(table: pd.DataFrame) -> pd.DataFrame:
    return table if "configuration" in table else table.assign(configuration="")


def over_configurations(summary: pd.DataFrame) -> pd.DataFrame:
    """A `summary_table` with the averages over its configurations below, as the paper averages: the
    mean of their means, and the sample deviation over them. A single one is returned as it is.

    A metric that a configuration lacks has no average; its note says so.
    """
    if (count := summary["configuration"].nunique()) < 2:
        return summary
    rows = []
    for (method, metric), group in summary.groupby(["method", "metric"], sort=False):
        row = {"configuration": f"average of the {count}", "method": method, "metric": metric}
        missing = group["mean"].isna().sum() + count - len(group)
        mean, std = (np.nan, np.nan) if missing else metrics.mean_and_std(group["mean"])
        note = f"not measured: {missing} of {count} configurations have no number"
        row |= {"mean": mean, "std": std, "runs": count - missing, "note": note if missing else ""}
        rows.append(row | {"judge": ", ".join(dict.fromkeys(filter(None, group["judge"])))})
    return pd.concat([summary, pd.DataFrame(rows)], ignore_index=True)


def judges(responses: pd.DataFrame) -> str:
    """Who scored the quality of the responses of a `response_table`; empty without a judge."""
    return ", ".join(filter(None, responses["judge"].unique()))


def response_table(
    profile: str,
    runs: Iterable[Run],
    quality_runs: Sequence[Run] = (),
    identification_runs: Sequence[Run] = (),
) -> pd.DataFrame:
    """Every scored response with its text, a row each.

    Columns: ``method`` (as in `metrics_by_run`), ``train_seed``, ``eval_seed``, ``prompt``,
    ``response``, ``passes`` (all constraints hold, loosely), those of `SCORES`, ``quality`` (mean
    over the judges; NaN where not measured or unscored), ``judge`` (empty where not measured) and
    ``information`` (of request identification, in nats; NaN where not measured).
    """
    graded, judge = mean_quality(quality_runs)
    identified = {_responses_of(run): run for run in identification_runs}
    runs = list(runs)
    names = _names(runs)
    rows = []
    for run in runs:
        stage = run.stage.responses
        folder = open_run(profile, stage).folder
        texts = {row["key"]: row for row in read_jsonl(folder / RESPONSES)}
        quality = graded.get(_responses_of(run), {})
        same = identified.get(_responses_of(run))
        told = identified_answers(same).set_index("key")["information"] if same else {}
        for score in read_jsonl(run.folder / SCORES):
            rows.append(
                {
                    **whose(stage),
                    "method": names[stage.policy],
                    "prompt": texts[score["key"]]["prompt"],
                    "response": texts[score["key"]]["response"],
                    "passes": all(score["loose"]),
                    **score,
                    "quality": quality.get(score["key"]),
                    "judge": judge if quality else "",
                    "information": told.get(score["key"]),
                }
            )
    numbers = ("loglik", "distinct_2", "quality", "information")
    return pd.DataFrame(rows).astype(dict.fromkeys(numbers, float))


def id_table(responses: pd.DataFrame) -> pd.DataFrame:
    """Share of responses (in percent, loose) that follow each constraint id, a column a method.

    Index: the id; ``n`` counts the prompts with it, an id that a prompt has twice counts twice.
    """
    columns = ["method", "train_seed", "eval_seed", "ids", "loose"]
    single = responses[columns].explode(["ids", "loose"])
    table = (
        single.assign(loose=single["loose"].astype(float) * 100)
        .pivot_table(index="ids", columns="method", values="loose", aggfunc="mean", sort=False)
        .reindex(columns=single["method"].unique())
    )
    runs = len(single[["method", "train_seed", "eval_seed"]].drop_duplicates())
    table.insert(0, "n", single.groupby("ids").size() // runs)
    return table.sort_index()


def paired(responses: pd.DataFrame, method: str) -> pd.DataFrame:
    """Responses of a trained policy beside the base policy's to the same prompt and seed.

    Columns of both sides end in ``_base`` and ``_trained``, among them ``quality``; ``change`` is
    the difference of the log-likelihoods (trained minus base), NaN where either answer is empty.
    The lowest changes come first: with ``passes_trained`` that is where to look for an answer that
    pleases the verifier.
    """
    keep = ["key", "prompt", "eval_seed", "response", "passes", "loglik", "tokens", "quality"]
    base = responses.loc[responses["method"] == "base", keep]
    trained = responses.loc[responses["method"] == method, keep]
    pairs = base.merge(trained, on=["key", "prompt", "eval_seed"], suffixes=("_base", "_trained"))
    pairs["change"] = pairs["loglik_trained"] - pairs["loglik_base"]
    return pairs.sort_values("change", ignore_index=True)


def beside_paper(
    summary: pd.DataFrame,
    here_name: str,
    metric_names: Sequence[str],
    configurations: Sequence[str] = tuple(paper.CONFIGURATIONS),
) -> pd.DataFrame:
    """The numbers of this run and the paper's, one row each; what figures 5 and 6 draw.

    Columns: ``source`` (``this run`` or ``paper``), ``configuration`` (``here_name`` for this run),
    ``method``, ``metric``, ``value``, ``std``, ``judge`` (of response quality), ``note`` (why there
    is no value).
    """
    here = summary[summary["metric"].isin(metric_names)].rename(columns={"mean": "value"})
    names = _configured(here)["configuration"].replace({"": here_name} | paper.CONFIGURATIONS)
    here = here.assign(source="this run", configuration=names)
    there = paper.table(configurations, MAIN, metric_names)
    there["configuration"] = there["configuration"].map(paper.CONFIGURATIONS)
    there["judge"] = np.where(there["metric"] == "response_quality", paper.JUDGE, "")
    both = pd.concat([here, there.assign(source="paper")], ignore_index=True)
    columns = ["source", "configuration", "method", "metric", "value", "std", "judge", "note"]
    return both[columns]


def against_paper(summary: pd.DataFrame) -> pd.DataFrame:
    """Do two policies differ the way they do in the paper? A row a comparison and metric.

    Models and scales differ, so only directions are compared. ``difference`` is first minus second;
    ``spread`` is the standard deviation of a difference of two runs, sqrt(std_1^2 + std_2^2);
    ``paper`` is the paper's difference on ``paper_configuration``: the same configuration if it is
    one of the paper's, else Qwen3-1.7B. ``judge`` names the judge of response quality here (the
    paper's is `califkit.exhibits.paper.JUDGE`). ``verdict`` is a sentence; a difference that does
    not exceed the spread is not called a direction.
    """
    rows = []
    for configuration, group in _configured(summary).groupby("configuration", sort=False):
        known = configuration if configuration in paper.CONFIGURATIONS else "qwen3-1.7b"
        cells = group.set_index(["method", "metric"])
        methods = [method for method in MAIN if method in cells.index.levels[0]]
        for second, first in combinations(methods, 2):
            for metric in group["metric"].unique():
                a, b = cells.loc[(first, metric)], cells.loc[(second, metric)]
                difference = a["mean"] - b["mean"]
                spread = float(np.hypot(a["std"], b["std"]))
                there = _paper_difference(known, first, second, metric)
                verdict = a["note"] or b["note"] or _direction(difference, spread, there)
                name = f"{label(first)} minus {label(second)}"
                rows.append(
                    {
                        "configuration": configuration,
                        "comparison": name,
                        "metric": metric,
                        "first": a["mean"],
                        "second": b["mean"],
                        "difference": difference,
                        "spread": spread,
                        "paper": there,
                        "paper_configuration": paper.CONFIGURATIONS[known],
                        "judge": a["judge"],
                        "verdict": verdict,
                    }
                )
    return pd.DataFrame(rows)


def _paper_difference(configuration: str, first: str, second: str, metric: str) -> float:
    """As printed where the paper prints a difference; NaN without numbers."""
    if metric not in paper.METRICS:
        return float("nan")
    a, b = paper.table([configuration], [first, second], [metric]).to_dict("records")
    difference = a["value"] - b["value"]
    return difference if second != "base" or np.isnan(a["delta"]) else a["delta"]


def _direction(difference: float, spread: float, there: float) -> str:
    if np.isnan(there):
        return "the paper prints no number"
    if np.isnan(spread):
        return "one run: no spread to compare with"
    if abs(difference) <= spread:
        return "within the spread"
    return "as in the paper" if difference * there > 0 else "opposite to the paper"


def in_words(verdicts: pd.Series) -> str:
    """How often each verdict was given, as ``2 as in the paper, 1 within the spread``."""
    return ", ".join(f"{count} {verdict}" for verdict, count in verdicts.value_counts().items())
