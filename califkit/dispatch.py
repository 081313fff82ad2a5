"""Jobs: submit stages to this machine or to Slurm, watch them, and find them again.

The only module that knows submitit. Whether a stage is done is told by its manifest, never by the
scheduler: a job that the scheduler calls completed but that left no manifest has failed.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import submitit

from califkit.params import Execution, Params, Stage
from califkit.runs import Run, open_run, runs_dir, write_json

JOB = "job.json"


class JobError(RuntimeError):
    """A job ended without completing its stage; the message holds the end of its output."""


class NotSubmittedError(RuntimeError):
    """Stages are missing and nobody allowed to submit them; the message lists the jobs."""


@dataclass(frozen=True)
class Job:
    """A submitted stage: its run folder and the scheduler's id (None if it was complete)."""

    run: Run
    cluster: str
    job_id: str | None

    @property
    def state(self) -> str:
        """``complete``, ``running`` (or waiting in a queue), or ``failed``."""
        if self.run.is_complete:
            return "complete"
        alive = self.job_id is not None and _is_alive(self.cluster, self.job_id, self._logs)
        # The manifest may have appeared between the two looks.
        return "running" if alive else "complete" if self.run.is_complete else "failed"

    @property
    def output(self) -> str:
        """What the job printed so far."""
        if self.job_id is None:
            return ""
        handle = submitit.Job(folder=self._logs, job_id=self.job_id)
        return "\n".join(part for part in (handle.stdout(), handle.stderr()) if part)

    @property
    def _logs(self) -> Path:
        return self.run.folder.parent.parent / "jobs"


def run_stage(profile: str, stage: Stage, execution: Execution) -> Run:
    """Compute a stage (and what it needs) in this process; a complete one is only opened."""
    run = open_run(profile, stage)
    if run.is_complete:
        return run
    match stage.kind:
        case "anchors":
            from califkit.anchors import compute_anchors as compute
        case "training":
            from califkit.training import train as compute
        case "generation":
            from califkit.generate import generate_responses as compute
        case "scores":
            from califkit.evaluation import score_responses as compute
    return compute(profile, stage, execution)


def job_list(profile: str, stages: Sequence[Stage]) -> list[dict[str, str]]:
    """What asking for these stages would mean: a row a stage, nothing started.

    Keys: ``stage``, ``name``, ``state`` (``complete``, ``running`` or ``to do``) and ``folder``
    below the runs folder.
    """
    rows = []
    for stage in stages:
        run = open_run(profile, stage)
        state = "complete" if run.is_complete else "running" if _find_job(run) else "to do"
        folder = str(run.folder.relative_to(runs_dir()))
        rows.append({"stage": stage.kind, "name": stage.name, "state": state, "folder": folder})
    return rows


def ensure(params: Params, stages: Sequence[Stage], submit: bool = False) -> list[Run]:
    """The runs of these stages, as a notebook asks for them.

    Complete runs are opened at once. The others are computed here, in child processes, when the
    profile runs locally; on a cluster they are submitted and watched only with ``submit``.

    Raises
    ------
    NotSubmittedError
        If stages are missing on a cluster and ``submit`` is False. The message is the job list.
    JobError
        If a job ends without completing its stage.
    """
    execution = params.settings.execution
    jobs = job_list(params.profile, stages)
    missing = [job for job in jobs if job["state"] == "to do"]
    if missing and execution.cluster != "local" and not submit:
        lines = "\n".join(f"  {job['folder']}" for job in missing)
        raise NotSubmittedError(
            f"{len(missing)} of {len(jobs)} runs are not there. With submit = True these jobs go "
            f"to {execution.cluster}:\n{lines}"
        )
    return compute_all(params.profile, stages, execution)


def submit(profile: str, stages: Sequence[Stage], execution: Execution) -> list[Job]:
    """Start a job for every stage that is not complete.

    Local jobs are separate processes that share the cores of the machine evenly; how many run at a
    time is `workers`. A stage whose job is still alive, perhaps from an earlier notebook session,
    is found again instead of being started twice.
    """
    runs = [open_run(profile, stage) for stage in stages]
    found = {run.folder: _find_job(run) for run in runs if not run.is_complete}
    todo = [run for run in runs if not run.is_complete and found[run.folder] is None]
    count = workers(execution, len(todo))
    jobs = []
    for run in runs:
        if run.is_complete:
            jobs.append(Job(run, execution.cluster, None))
        else:
            jobs.append(found[run.folder] or _start(profile, run, execution, count))
    return jobs


def compute_all(
    profile: str, stages: Sequence[Stage], execution: Execution, interval: float = 20
) -> list[Run]:
    """Submit stages, show their progress and wait; at most `workers` local jobs at a time.

    Raises
    ------
    JobError
        If a job ends without completing its stage.
    """
    pending = [s for s in stages if not open_run(profile, s).is_complete]
    width = workers(execution, len(pending)) if execution.cluster == "local" else len(pending)
    while pending:
        wave, pending = pending[:width], pending[width:]
        for line in watch(submit(profile, wave, execution), interval):
            print(line, flush=True)
    return [open_run(profile, stage) for stage in stages]


def watch(jobs: Sequence[Job], interval: float = 20) -> Iterator[str]:
    """The newest progress line of each job, at most one per ``interval`` seconds, until all ended.

    Raises `JobError` with the end of the output of a job that left no manifest.
    """
    shown = {job.run.folder: ("", 0.0) for job in jobs}
    while True:
        states = {job.run.folder: job.state for job in jobs}
        for job in jobs:
            line, since = shown[job.run.folder]
            newest = _newest_progress(job.output)
            ended = states[job.run.folder] != "running"
            if newest != line and (ended or time.monotonic() - since >= interval):
                shown[job.run.folder] = (newest, time.monotonic())
                yield newest
        for job in jobs:
            if states[job.run.folder] == "failed":
                tail = "\n".join(job.output.splitlines()[-30:])
                raise JobError(f"{job.run.folder} has no manifest after its job ended:\n{tail}")
        if all(state == "complete" for state in states.values()):
            return
        time.sleep(1)


def cancel(jobs: Sequence[Job]) -> None:
    """Stop jobs that are still alive; their stages continue from the last finished unit later."""
    for job in jobs:
        if job.state != "running":
            continue
        if job.cluster == "slurm":
            submitit.SlurmJob(folder=job._logs, job_id=job.job_id).cancel()
        else:
            os.kill(int(job.job_id), signal.SIGTERM)


def workers(execution: Execution, jobs: int) -> int:
    """How many local jobs run at a time: as configured, else as cores and free memory allow."""
    if jobs <= 1:
        return 1
    if execution.workers:
        return min(execution.workers, jobs)
    fit = int(psutil.virtual_memory().available / 1e9 / execution.memory_per_worker_gb)
    return max(1, min(jobs, os.cpu_count() or 1, fit))


_PROGRESS = ("anchors", "train ", "responses ", "scores ")


def _newest_progress(output: str) -> str:
    lines = [line for line in output.splitlines() if line.startswith(_PROGRESS)]
    return lines[-1] if lines else ""


def _start(profile: str, run: Run, execution: Execution, count: int) -> Job:
    logs = runs_dir() / profile / "jobs"
    logs.mkdir(parents=True, exist_ok=True)
    run.folder.mkdir(parents=True, exist_ok=True)
    executor = submitit.AutoExecutor(folder=logs, cluster=execution.cluster)
    executor.update_parameters(
        timeout_min=60 * 24 * 7, name=f"califkit-{run.stage.name}", **execution.slurm
    )
    threads = max(1, (os.cpu_count() or 1) // count) if execution.cluster == "local" else None
    handle = executor.submit(_job, profile, run.stage, execution, threads)
    write_json(run.folder / JOB, {"cluster": execution.cluster, "id": handle.job_id})
    return Job(run, execution.cluster, handle.job_id)


def _job(profile: str, stage: Stage, execution: Execution, threads: int | None) -> str:
    import torch

    if threads:
        torch.set_num_threads(threads)
    return str(run_stage(profile, stage, execution).folder)


def _find_job(run: Run) -> Job | None:
    """The live job of a run folder, perhaps submitted by another process, or None."""
    path = run.folder / JOB
    if not path.is_file():
        return None
    record = json.loads(path.read_text(encoding="utf-8"))
    job = Job(run, record["cluster"], record["id"])
    return job if job.state == "running" else None


def _is_alive(cluster: str, job_id: str, logs: Path) -> bool:
    if cluster == "slurm":
        return not submitit.SlurmJob(folder=logs, job_id=job_id).done()
    try:  # a local job's id is its process id; a process that ended unawaited is a zombie
        process = psutil.Process(int(job_id))
        return process.status() != psutil.STATUS_ZOMBIE and "submitit" in " ".join(
            process.cmdline()
        )
    except psutil.NoSuchProcess:
        return False
