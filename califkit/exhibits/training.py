"""The tables behind the training curves: steps, rollouts, running means, equal r_ver."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import takewhile
from typing import Any

import pandas as pd

from califkit.anchors.region import ZONES
from califkit.exhibits.methods import arm_names
from califkit.runs.folders import LOG, ROLLOUTS, Run, open_run
from califkit.runs.jsonl import finished_rows, lines_from_end, whole_lines
from califkit.runs.stages import TrainStage

WINDOW = 5
"""Steps in a running mean, in every picture of training and wherever arms are compared by one."""


def training_table(runs: Iterable[Run]) -> pd.DataFrame:
    """The training logs, a row a step: ``method`` (`arm_names`), ``train_seed``, ``step``, the
    step's means over its rollouts (``r_ver``, ``reward``, ``loglik``, ``tokens``, ``distinct_2``)
    and the share of rollouts in each of `ZONES`.

    A run may still be going on: its finished steps are taken. ValueError if no run has one."""
    columns = ["step", "r_ver", "reward", "loglik", "tokens", "distinct_2", "seconds"]
    runs = list(runs)
    names = arm_names(run.stage for run in runs)
    frames = []
    for run in runs:
        if not (rows := finished_rows(run.folder / LOG)):
            continue
        log = pd.DataFrame(rows)
        shares = log[[f"zone/{zone}" for zone in ZONES]].set_axis(ZONES, axis="columns")
        table = log[columns].astype(float).join(shares)
        table.insert(0, "method", names[run.stage])
        table.insert(1, "train_seed", run.stage.seed)
        frames.append(table.astype({"step": int}))
    return pd.concat(frames, ignore_index=True)


def steps_a_pass(profile: str, stage: TrainStage) -> int:
    """Steps in which a training run sees each prompt once; 1 until its anchors are there."""
    anchors = open_run(profile, stage.anchors)
    prompts = anchors.manifest()["rows"] if anchors.is_complete else 0
    return max(1, prompts // stage.training.prompts_per_step)


def rollout_table(runs: Iterable[Run]) -> pd.DataFrame:
    """The rollouts of the first and the last step of complete training runs: ``method``,
    ``train_seed``, and the rows of `ROLLOUTS`.

    Read from both ends of the file: at full scale it has millions of rows.
    """
    runs = list(runs)
    names = arm_names(run.stage for run in runs)
    frames = []
    for run in runs:
        path, last = run.folder / ROLLOUTS, run.stage.training.steps
        rows = _rows_of_step(1, whole_lines(path))
        if last > 1:
            rows += reversed(_rows_of_step(last, lines_from_end(path)))
        table = pd.DataFrame(rows)
        frames.append(table.assign(method=names[run.stage], train_seed=run.stage.seed))
    return pd.concat(frames, ignore_index=True)


def _rows_of_step(step: int, lines: Iterable[bytes]) -> list[dict[str, Any]]:
    """The rows at the beginning of some lines that are of one step."""
    return list(takewhile(lambda row: row["step"] == step, map(json.loads, lines)))


def smoothed(training: pd.DataFrame, window: int = WINDOW) -> pd.DataFrame:
    """Running means of a `training_table` over ``window`` steps up to each step, run by run.

    The first steps average over what is there, so every step keeps its row.
    """
    fixed = ["method", "train_seed", "step"]
    frames = [
        run[fixed].join(run.drop(columns=fixed).rolling(window, min_periods=1).mean())
        for _, run in training.groupby(fixed[:2], sort=False)
    ]
    return pd.concat(frames, ignore_index=True)


def at_equal_r_ver(training: pd.DataFrame) -> pd.DataFrame:
    """The methods compared where they satisfy the same share of constraints.

    An arm that merely learns more slowly keeps its likelihood too; it has not been protected. The
    level is the highest r_ver that every run of a `training_table` reaches; each run enters with
    the first step at or above it.
    """
    runs = training.groupby(["method", "train_seed"], sort=False)
    level = runs["r_ver"].max().min()
    first = (
        training[training["r_ver"] >= level].groupby(["method", "train_seed"], sort=False).head(1)
    )
    table = first[["method", "train_seed", "step", "r_ver", "loglik", "tokens", "distinct_2"]]
    return table.assign(level=level).reset_index(drop=True)
