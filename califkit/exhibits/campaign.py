"""A whole study at a glance: what each arm has done, is doing and will take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from califkit.exhibits.live import image, show_in_place
from califkit.exhibits.plots.study import campaign_curves
from califkit.runs.arms import Arm
from califkit.runs.dispatch import missing_runs, with_needs
from califkit.runs.folders import LOG, Run, open_run
from califkit.runs.jobs import recorded_job
from califkit.runs.jsonl import finished_rows
from califkit.runs.stages import Stage, TrainStage
from califkit.training.plan import plan_rows, work

_COLUMNS = [
    *("group", "configuration", "arm", "runs", "state", "job", "step", "hours left"),
    *("GPU hours used", "GPU hours planned"),
]


def campaign_table(arms: Sequence[Arm]) -> pd.DataFrame:
    """A row an arm.

    ``runs`` says how many are complete, ``state`` what the arm's first incomplete run does
    (``complete``, ``to do``, ``running``, ``failed``, or Slurm's word), ``job`` its id. ``step``,
    ``hours left`` and ``GPU hours used`` are of its training runs, by the logs; ``GPU hours
    planned`` is the estimate of `califkit.training.plan` for all of the arm's runs.
    """
    rows = []
    for arm in arms:
        profile, execution = arm.params.profile, arm.params.settings.execution
        wanted = with_needs(arm.stages)
        missing = missing_runs(profile, wanted)
        state, job = _standing(missing)
        training = [stage for stage in wanted if isinstance(stage, TrainStage)]
        logs = [(stage, finished_rows(open_run(profile, stage).folder / LOG)) for stage in training]
        seconds = [row["seconds"] for _, log in logs for row in log]
        steps, all_steps = len(seconds), sum(stage.training.steps for stage in training)
        each = float(np.median(seconds)) / 3600 if seconds else np.nan
        took = [work(stage, execution) for stage in wanted]
        row: dict[str, Any] = {"group": arm.group, "configuration": arm.configuration}
        row |= {"arm": arm.name, "runs": f"{len(wanted) - len(missing)} of {len(wanted)}"}
        row |= {"state": state, "job": job, "step": f"{steps} of {all_steps}"}
        row["hours left"] = (all_steps - steps) * each if steps < all_steps else 0.0
        row["GPU hours used"] = sum(seconds) / 3600 * execution.processes
        row["GPU hours planned"] = sum(found.gpu_hours for found in took if found)
        rows.append(row)
    return pd.DataFrame(rows, columns=_COLUMNS)


def _standing(missing: Sequence[Run]) -> tuple[str, str]:
    """State and job of the first missing run that has or had one; else of nothing begun."""
    for run in missing:
        if job := recorded_job(run):
            return job.standing, job.job_id
    return ("to do" if missing else "complete"), ""


def plan_table(arms: Sequence[Arm]) -> pd.DataFrame:
    """What the runs that are missing will take, a row a kind of stage: `califkit.training.plan`."""
    stages: dict[Stage, Any] = {}
    for arm in arms:
        for run in missing_runs(arm.params.profile, arm.stages):
            stages.setdefault(run.stage, arm.params.settings.execution)
    columns = ["GPU hours", "M tokens drawn", "GB of disk"]
    rows = plan_rows([(stage, execution, "to do") for stage, execution in stages.items()])
    if not rows:
        return pd.DataFrame(columns=["stage", "runs", *columns])
    table = pd.DataFrame(rows)
    sums = table.groupby("stage", sort=False)[columns].sum()
    sums.insert(0, "runs", table.groupby("stage", sort=False).size())
    return sums.reset_index()


def log_of(arms: Sequence[Arm], name: str, lines: int = 40) -> str:
    """The end of what the last job of the runs of an arm printed."""
    chosen = [arm for arm in arms if arm.name == name]
    if not chosen:
        return f"no arm {name!r}; there are: {', '.join(arm.name for arm in arms)}"
    parts = []
    for arm in chosen:
        for run in missing_runs(arm.params.profile, arm.stages):
            if job := recorded_job(run):
                end = "\n".join(job.output.splitlines()[-lines:])
                parts.append(f"{run.stage.kind} {run.stage.name}, job {job.job_id}:\n{end}")
    return "\n\n".join(parts) or f"{name}: none of its unfinished runs has had a job"


def training_steps(arms: Sequence[Arm]) -> pd.DataFrame:
    """The steps so far of all arms: ``configuration``, ``arm``, ``step``, ``r_ver``, ``loglik``."""
    columns = ("step", "r_ver", "loglik")
    rows = [
        {"configuration": arm.configuration, "arm": arm.name}
        | {name: row[name] for name in columns}
        for arm in arms
        for stage in arm.params.settings.train_stages()
        for row in finished_rows(open_run(arm.params.profile, stage).folder / LOG)
    ]
    return pd.DataFrame(rows, columns=["configuration", "arm", *columns])


class LiveCampaign:
    """`campaign_table` and `campaign_curves` in outputs that are redrawn while jobs are waited
    for::

        exhibit.runs(stages, on_tick=LiveCampaign(arms))
    """

    def __init__(self, arms: Sequence[Arm]) -> None:
        self.arms = arms
        self._table: list[Any] = []
        self._curves: list[Any] = []
        self._shown: pd.DataFrame | None = None

    def __call__(self) -> None:
        table = campaign_table(self.arms)
        if self._shown is not None and table.equals(self._shown):
            return
        self._shown = table
        show_in_place(self._table, [table])
        steps = training_steps(self.arms)
        if len(steps):
            show_in_place(self._curves, [image(campaign_curves(steps)[0].figure)])
