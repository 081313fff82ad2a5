"""The tables behind Figures 8 and 9 and Tables 3 and 4: what the arms of a study come to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from califkit.exhibits import paper, rubrics
from califkit.exhibits.summary import metrics_by_run, summary_table
from califkit.runs.arms import Arm
from califkit.runs.folders import Run, open_run
from califkit.runs.stages import Stage, TrainStage

NOT_RUN = "not run"

ABLATIONS = (
    *("base", "if_rlvr", "calif", "direct_bonus", "no_lower", "no_upper"),
    *("inner_region", "outer_region"),
)
"""Rows of Table 4, in its order."""

JUDGE_REWARDS = ("calif", "self_judge", "stronger_judge")
"""Rows of Table 3, in its order."""

JUDGED_METRICS = ("prompt_level_loose_acc", "response_quality", *paper.RUBRIC_METRICS)
"""The eleven metrics of Table 3."""

NO_KL = ("base", "if_rlvr", "calif", "calif_beta_0")
"""Bars of Figure 9, in its order."""

COEFFICIENTS = {"alpha": "CaLIF, alpha", "beta": "IF-RLVR, beta"}
"""The curves of Figure 8."""

SWEPT = {"alpha": "calif", "beta": "if_rlvr"}
"""The method whose coefficient each curve changes."""

_COLUMNS = ["configuration", "arm", "method", "metric", "mean", "std", "runs", "judge", "note"]


def arm_results(arms: Iterable[Arm]) -> pd.DataFrame:
    """Every arm on its main test prompts, as far as its runs are complete, and the base policies.

    Columns: ``configuration``, ``arm`` (``base`` for the untrained policy), ``method``, ``metric``
    (those of `summary_table` and of Table 1), ``mean`` and sample ``std`` over ``runs``, ``judge``,
    ``note`` (why there is no number). An arm without a complete run has no rows.
    """
    frames = []
    for arm in arms:
        settings = arm.params.settings
        scores = _complete(arm, settings.score_stages())
        if not scores:
            continue
        quality = _complete(arm, settings.quality_stages())
        identified = _complete(arm, settings.identification_stages())
        judged = rubrics.by_run(_complete(arm, settings.rubric_stages()))
        table = summary_table(metrics_by_run(scores, quality, identified))
        table = pd.concat([table, rubrics.rubric_table(judged, settings)], ignore_index=True)
        name = np.where(table["method"] == "base", "base", arm.name)
        frames.append(table.assign(configuration=arm.configuration, arm=name))
    if not frames:
        return pd.DataFrame(columns=_COLUMNS)
    results = pd.concat(frames, ignore_index=True)[_COLUMNS]
    measured = results["mean"].notna() | ~results["metric"].isin(paper.RUBRIC_METRICS)
    return results[measured].drop_duplicates(_COLUMNS[:4], ignore_index=True)


def beside_main(arms: Sequence[Arm], names: Iterable[str]) -> list[Arm]:
    """The arms of these names and the main ones, of the configurations that have one of the former
    (all of them, if none has)."""
    where = {arm.configuration for arm in arms if arm.name in names and arm.group != "main"}
    return [
        arm
        for arm in arms
        if (arm.group == "main" or arm.name in names) and (arm.configuration in where or not where)
    ]


def _complete(arm: Arm, stages: Iterable[Stage]) -> list[Run]:
    runs = [open_run(arm.params.profile, stage) for stage in stages]
    return [run for run in runs if run.is_complete]


def quality_metric(results: pd.DataFrame) -> str:
    """What stands for quality: response quality where a judge has measured it, else information of
    request identification, which is not response quality and is not called so."""
    measured = results[results["metric"] == "response_quality"]["mean"].notna().any()
    return "response_quality" if measured else "information"


# --- Figure 8 ------------------------------------------------------------------------------------
def sweep_points(results: pd.DataFrame, arms: Sequence[Arm]) -> pd.DataFrame:
    """The points of Figure 8: Constraint Satisfaction against quality along alpha and along beta.

    A curve has the arms of the group of its name, and the main arms that differ from those in the
    coefficient alone; without such a group, the main arm of its method. Columns: ``source``,
    ``configuration``, ``curve``, ``coefficient``, ``x``, ``y``, ``note``; `quality_metric` names y.
    The base policy is a curve of one point. The paper's points are those that it prints, with
    response quality.
    """
    quality = quality_metric(results)
    wide = results.pivot_table(index=["configuration", "arm"], columns="metric", values="mean")
    wide = wide.reindex(columns=["prompt_level_loose_acc", quality])
    rows: list[tuple[Any, ...]] = []
    for coefficient, curve in COEFFICIENTS.items():
        for arm in _along(arms, coefficient):
            key = (arm.configuration, arm.name)
            value = _value(_run_of(arm), coefficient)
            x, y = wide.loc[key] if key in wide.index else (np.nan, np.nan)
            note = "" if key in wide.index else NOT_RUN
            rows.append(("this run", arm.configuration, curve, value, x, y, note))
    for (configuration, arm), (x, y) in wide.iterrows():
        if arm == "base":
            rows.append(("this run", configuration, "base", np.nan, x, y, ""))
    for curve, method, value in (
        ("base", "base", np.nan),
        (COEFFICIENTS["alpha"], SWEPT["alpha"], paper.ALPHA),
        (COEFFICIENTS["beta"], SWEPT["beta"], paper.TRAINING["beta"]),
    ):
        x, y = (paper.value("qwen3-1.7b", method, m) for m in JUDGED_METRICS[:2])
        rows.append(("paper", paper.CONFIGURATIONS["qwen3-1.7b"], curve, value, x, y, ""))
    x, y = paper.BETA_0_05
    rows.append(("paper", paper.CONFIGURATIONS["qwen3-1.7b"], COEFFICIENTS["beta"], 0.05, x, y, ""))
    columns = ["source", "configuration", "curve", "coefficient", "x", "y", "note"]
    table = pd.DataFrame(rows, columns=columns)
    return table.sort_values(["source", "configuration", "curve", "coefficient"], ignore_index=True)


def _along(arms: Sequence[Arm], coefficient: str) -> list[Arm]:
    swept = [arm for arm in arms if arm.group == coefficient]
    swept = [arm for arm in swept if _run_of(arm).method == SWEPT[coefficient]]
    rest = [_without(_run_of(arm), coefficient) for arm in swept]
    main = [arm for arm in arms if arm.group == "main"]
    if not swept:
        return [arm for arm in main if arm.name == SWEPT[coefficient]]
    return [*(arm for arm in main if _without(_run_of(arm), coefficient) in rest), *swept]


def _run_of(arm: Arm) -> TrainStage:
    return arm.params.settings.train_stages()[0]


def _value(run: TrainStage, coefficient: str) -> float | None:
    return run.alpha if coefficient == "alpha" else run.training.beta


def _without(run: TrainStage, coefficient: str) -> TrainStage:
    """A training run whose coefficient is that of all others."""
    if coefficient == "alpha":
        return run.model_copy(update={"alpha": None, "seed": 0})
    training = run.training.model_copy(update={"beta": 0.0})
    return run.model_copy(update={"training": training, "seed": 0})


# --- Figure 9 and Table 4 ------------------------------------------------------------------------
def with_differences(
    results: pd.DataFrame, names: Sequence[str], columns: Sequence[str]
) -> pd.DataFrame:
    """Some arms and their differences from the base policy, a row a configuration, arm and metric.

    Columns: ``configuration``, ``arm``, ``metric``, ``mean``, ``std``, ``runs``, ``difference``,
    ``note``. An arm that was not run has rows that say so.
    """
    rows = []
    for configuration, found in results.groupby("configuration", sort=False):
        cells = found.drop_duplicates(["arm", "metric"]).set_index(["arm", "metric"])
        for name in names:
            for metric in columns:
                row = {"configuration": configuration, "arm": name, "metric": metric}
                if (name, metric) in cells.index:
                    cell = cells.loc[(name, metric)]
                    base = cells["mean"].get(("base", metric), np.nan)
                    row |= {key: cell[key] for key in ("mean", "std", "runs", "note")}
                    row["difference"] = cell["mean"] - base if name != "base" else np.nan
                else:
                    row |= dict.fromkeys(("mean", "std", "difference"), np.nan)
                    row |= {"runs": 0, "note": NOT_RUN}
                rows.append(row)
    order = ["configuration", "arm", "metric", "mean", "std", "runs", "difference", "note"]
    return pd.DataFrame(rows, columns=order)


def ablations_beside_paper(results: pd.DataFrame) -> pd.DataFrame:
    """Table 4: `with_differences` of its arms, with ``paper`` and ``paper_difference`` as printed
    (Qwen3-1.7B; NaN where it prints none)."""
    columns = ["prompt_level_loose_acc", "response_quality", "loglik", "tokens", "distinct_2"]
    columns += ["information"] if "information" in set(results["metric"]) else []
    table = with_differences(results, ABLATIONS, columns)
    known = [name for name in columns if name in paper.METRICS]
    printed = paper.table(["qwen3-1.7b"], ABLATIONS, known)
    printed = printed.rename(
        columns={"method": "arm", "value": "paper", "delta": "paper_difference"}
    )
    keep = ["arm", "metric", "paper", "paper_difference"]
    return table.merge(printed[keep], on=["arm", "metric"], how="left")


# --- Table 3 -------------------------------------------------------------------------------------
def judge_rewards(results: pd.DataFrame) -> pd.DataFrame:
    """Table 3: CaLIF against rewards with a judge on eleven metrics, here and in the paper.

    Columns: ``source``, ``configuration``, ``reward``, ``metric``, ``value``, ``std``, ``note``.
    """
    here = with_differences(results, JUDGE_REWARDS, JUDGED_METRICS).rename(
        columns={"arm": "reward", "mean": "value"}
    )
    printed = paper.table(["tulu3-8b-dpo", "qwen3-4b-thinking"], JUDGE_REWARDS, JUDGED_METRICS)
    printed = printed.rename(columns={"method": "reward"})
    printed["configuration"] = printed["configuration"].map(paper.CONFIGURATIONS)
    both = [here.assign(source="this run"), printed.assign(source="paper")]
    columns = ["source", "configuration", "reward", "metric", "value", "std", "note"]
    return pd.concat(both, ignore_index=True)[columns]


def metrics_won(table: pd.DataFrame) -> pd.DataFrame:
    """On how many metrics CaLIF lies above both judge rewards: ``won`` of ``compared`` (those with
    a number for all three), by ``source`` and ``configuration`` of a `judge_rewards` table."""
    keys = ["source", "configuration"]
    wide = table.pivot(index=[*keys, "metric"], columns="reward", values="value").dropna()
    best = wide[list(JUDGE_REWARDS[1:])].max(axis="columns")
    won = (wide["calif"] > best).groupby(level=keys).agg(["sum", "count"])
    index = pd.MultiIndex.from_frame(table[keys].drop_duplicates())
    won = won.reindex(index, fill_value=0).astype(int)
    return won.set_axis(["won", "compared"], axis="columns").reset_index()
