"""Tables of the rubric benchmarks (paper, Table 1): runs in, data frames out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from califkit import metrics
from califkit.exhibits import paper
from califkit.exhibits.methods import label
from califkit.exhibits.summary import NO_JUDGE
from califkit.generation import whose
from califkit.judges.rubrics import BENCHMARKS, RubricError
from califkit.judges.rubrics.base import STATUSES
from califkit.judges.rubrics.files import SAMPLE
from califkit.runs.folders import Run
from califkit.runs.params import Settings

PAIRS = (("calif", "base"), ("if_rlvr", "base"), ("calif", "if_rlvr"))
"""Comparisons whose cells the text counts: the first method above the second one."""

SMALL_SET = "our own small set, not the benchmark"

_DATA = (
    *("benchmark", "data", "items", "language", "sha256", "judge", "answered_by"),
    *("runs", "units", "asked", "unjudged", "warnings"),
)
_BY_RUN = (
    *("benchmark", "source", "judge", "method", "train_seed", "eval_seed"),
    *("metric", "value", "released", "units", "unjudged"),
)
_COLUMNS = (
    *("benchmark", "method", "metric", "mean", "std"),
    *("runs", "released", "units", "unjudged", "judge", "note"),
)


def data_table(runs: Iterable[Run]) -> pd.DataFrame:
    """What was judged, and by whom: a row for every benchmark and judge.

    Columns: ``benchmark``, ``data`` (the source; our own small sets are called so), ``items``,
    ``language``, ``sha256`` (its beginning), ``judge``, ``answered_by`` (the models that the
    endpoint names), ``runs``, sums over them of ``units``, ``asked`` (those that a judge decides)
    and ``unjudged`` (those without a usable verdict), and ``warnings``.
    """
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for run in runs:
        facts = run.manifest()
        groups.setdefault((facts["benchmark"], facts["source"], facts["judge"]), []).append(facts)
    rows = []
    for (benchmark, source, judge), group in groups.items():
        rows.append(
            {
                "benchmark": benchmark,
                "data": SMALL_SET if source == SAMPLE else source,
                "items": group[0]["items"],
                "language": group[0]["language"],
                "sha256": group[0]["data_sha256"][:12],
                "judge": judge,
                "answered_by": ", ".join(_distinct(group, "judge_models")),
                "runs": len(group),
                "units": sum(facts["counts"]["n"] for facts in group),
                "asked": sum(facts["asked"] for facts in group),
                "unjudged": sum(_unjudged(facts["counts"]) for facts in group),
                "warnings": "; ".join(_distinct(group, "warnings")),
            }
        )
    return pd.DataFrame(rows, columns=_DATA)


def by_run(runs: Iterable[Run]) -> pd.DataFrame:
    """A row for every judged run and metric.

    Columns: ``benchmark``, ``source``, ``judge``, ``method``, ``train_seed``, ``eval_seed``,
    ``metric`` (of `califkit.exhibits.paper.RUBRIC_METRICS`), ``value`` (NaN where no unit enters
    the metric), ``released`` (what the released scorer makes of the same verdicts, NaN where it has
    no such number or fails on them), ``units`` and ``unjudged`` (units without a usable verdict,
    which count as not satisfied).
    """
    rows = []
    for run in runs:
        facts = run.manifest()
        counts = facts["counts"]
        for metric, value in facts["metrics"].items():
            rows.append(
                {
                    "benchmark": facts["benchmark"],
                    "source": facts["source"],
                    "judge": facts["judge"],
                    **whose(run.stage.responses),
                    "metric": metric,
                    "value": value,
                    "released": _released(facts["released"], metric),
                    "units": counts["n"],
                    "unjudged": _unjudged(counts),
                }
            )
    return pd.DataFrame(rows, columns=_BY_RUN).astype({"value": float, "released": float})


def rubric_table(runs: pd.DataFrame, settings: Settings) -> pd.DataFrame:
    """Mean and sample standard deviation over runs, a row a method and metric of Table 1.

    ``runs`` are as `by_run` gives them, and may be empty. Columns: ``benchmark``, ``method``,
    ``metric``, ``mean``, ``std`` (NaN for one run), ``runs``, ``released`` (mean), ``units`` and
    ``unjudged`` (sums over the runs), ``judge``, and ``note``, which says why there is no number,
    or that it is of our own small set and compares with nothing. `RubricError` if a benchmark was
    measured on two sources or by two judges, which must not be averaged.
    """
    for column in ("source", "judge"):
        for benchmark, found in runs.groupby("benchmark")[column].unique().items():
            if len(found) > 1:
                raise RubricError(f"{benchmark}: more than one {column}: {', '.join(found)}")
    groups = dict(list(runs.groupby(["method", "metric"])))
    rows: list[tuple[Any, ...]] = []
    for method in ("base", *settings.methods):
        for metric in paper.RUBRIC_METRICS:
            benchmark = next(name for name in BENCHMARKS if metric.startswith(name))
            head = (benchmark, method, metric)
            if (group := groups.get((method, metric))) is None:
                note = _why_not(benchmark, settings)
                rows.append((*head, np.nan, np.nan, 0, np.nan, 0, 0, "", note))
                continue
            mean, std, note = _mean_and_std(group)
            released = metrics.nan_mean(group["released"])
            totals = int(group["units"].sum()), int(group["unjudged"].sum())
            judge = group["judge"].iloc[0]
            rows.append((*head, mean, std, len(group), released, *totals, judge, note))
    return pd.DataFrame(rows, columns=_COLUMNS)


def by_configuration(runs: Sequence[Run], configurations: Mapping[str, Settings]) -> pd.DataFrame:
    """A `rubric_table` of every configuration, with its name in ``configuration``."""
    tables = []
    for name, settings in configurations.items():
        stages = settings.rubric_stages()
        own = by_run(run for run in runs if run.stage in stages)
        tables.append(rubric_table(own, settings).assign(configuration=name))
    return pd.concat(tables, ignore_index=True)


def beside_paper(
    table: pd.DataFrame, configurations: Sequence[str] = tuple(paper.CONFIGURATIONS)[:5]
) -> pd.DataFrame:
    """A `rubric_table` with a column ``paper: <configuration>`` for each configuration of the
    paper's Table 1 (NaN where it prints no number)."""
    key = ["method", "metric"]
    for name in configurations:
        printed = paper.table([name], paper.METHODS, list(paper.RUBRIC_METRICS))
        column = printed.set_index(key)["value"].rename(f"paper: {paper.CONFIGURATIONS[name]}")
        table = table.join(column, on=key)
    return table


def marked_table(cells: pd.DataFrame) -> pd.DataFrame:
    """Table 1 in the paper's shape: a row a configuration and method, mean ± std.

    ``cells``: ``configuration``, ``method``, ``metric``, ``value``, ``std``. In each configuration
    the best of a column is bold and the second underlined (Markdown); equal ones share a mark.
    """
    ranks = cells.groupby(["configuration", "metric"])["value"].rank("dense", ascending=False)
    texts = cells["value"].map("{:.2f}".format)
    texts += cells["std"].map(lambda std: "" if np.isnan(std) else f" ± {std:.2f}")
    marks = [
        "-" if np.isnan(value) else {1: f"**{text}**", 2: f"<u>{text}</u>"}.get(rank, text)
        for value, text, rank in zip(cells["value"], texts, ranks, strict=True)
    ]
    named = cells.assign(
        cell=marks,
        configuration=cells["configuration"].replace(paper.CONFIGURATIONS),
        method=cells["method"].map(label),
        metric=cells["metric"].map(paper.RUBRIC_METRICS),
    )
    wide = named.set_index(["configuration", "method", "metric"])["cell"].unstack(sort=False)
    return wide[list(paper.RUBRIC_METRICS.values())].rename_axis(columns=None)


def cells_above(cells: pd.DataFrame) -> pd.DataFrame:
    """In how many cells one method lies strictly above another: a row for each of `PAIRS`.

    ``cells``: ``configuration``, ``method``, ``metric``, ``value``. A cell of which one side has no
    value is not counted. Columns: ``comparison``, ``above``, ``cells``.
    """
    wide = cells.pivot(index=["configuration", "metric"], columns="method", values="value")
    rows = []
    for first, second in PAIRS:
        both = wide.reindex(columns=[first, second]).dropna()
        name = f"{label(first)} above {label(second)}"
        rows.append((name, int((both[first] > both[second]).sum()), len(both)))
    return pd.DataFrame(rows, columns=["comparison", "above", "cells"])


def _unjudged(counts: dict[str, int]) -> int:
    return sum(counts[f"n_{status}"] for status in STATUSES if status != "ok")


def _distinct(group: Sequence[dict[str, Any]], key: str) -> list[str]:
    return list(dict.fromkeys(entry for facts in group for entry in facts[key]))


def _released(released: dict[str, Any], metric: str) -> float | None:
    """FollowBench's released code prints no headline; a separate script weights the levels."""
    if "level_weighted" in released:
        return (released["level_weighted"] or {}).get(metric.removeprefix("followbench_"))
    return released.get(metric)


def _mean_and_std(group: pd.DataFrame) -> tuple[float, float, str]:
    if undefined := int(group["value"].isna().sum()):
        note = f"not measured: no unit enters it in {undefined} of {len(group)} runs"
        return float("nan"), float("nan"), note
    note = SMALL_SET if group["source"].eq(SAMPLE).all() else ""
    return *metrics.mean_and_std(group["value"]), note


def _why_not(benchmark: str, settings: Settings) -> str:
    if settings.judge is None:
        return NO_JUDGE
    if not settings.rubrics:
        return "not measured: the setting rubrics names no benchmark"
    return f"not measured: {benchmark} is not among the setting rubrics"
