"""Jobs of one stage each, on this machine or on Slurm: start, find again, read, end.

The only module that knows submitit. Whether a stage is done is told by its manifest, never by the
scheduler.

A local job is a controller process of submitit with the stage in a child process, which ends
itself when the controller dies. A Slurm job that is preempted or runs out of time is put back into
the queue (at most three times when its time runs out).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import submitit
from submitit.helpers import Checkpointable

from califkit.runs.compute import compute
from califkit.runs.folders import Run
from califkit.runs.jsonl import write_json
from califkit.runs.locks import locked
from califkit.runs.machine import cores, end_with_parent, in_slurm_queue, kill_tree
from califkit.runs.settings import Execution
from califkit.runs.stages import Stage

JOB = "job.json"


class JobError(RuntimeError):
    """A job ended without completing its stage; the message holds the end of its output."""


@dataclass(frozen=True)
class Job:
    """A submitted stage: its run folder, the scheduler's id, and the GPUs of this machine that a
    local job was given."""

    run: Run
    cluster: str
    job_id: str
    gpus: tuple[str, ...] = ()

    @property
    def state(self) -> str:
        """``complete``, ``running`` (or waiting in a queue), or ``failed``."""
        if self.run.is_complete:
            return "complete"
        # The manifest may have appeared between the two looks.
        return "running" if is_alive(self) else "complete" if self.run.is_complete else "failed"

    @property
    def output(self) -> str:
        """What the job printed so far."""
        handle = submitit.Job(folder=logs(self.run), job_id=self.job_id)
        return "\n".join(part for part in (handle.stdout(), handle.stderr()) if part)


def logs(run: Run) -> Path:
    """Where submitit keeps pickles and output; one folder a run, which tells its jobs apart."""
    return run.folder.absolute() / "jobs"


def start(
    profile: str,
    run: Run,
    execution: Execution,
    count: int,
    gpus: tuple[str, ...] = (),
    after: tuple[str, ...] = (),
) -> Job:
    """Submit a stage, unless another process was faster.

    A local job is given ``gpus`` and one of ``count`` equal shares of the cores; a Slurm job waits
    for the success of the jobs ``after``.
    """
    local = execution.cluster == "local"
    run.folder.mkdir(parents=True, exist_ok=True)
    with locked(run.folder / ".submit.lock"):
        if job := find_job(run):
            return job
        try:
            executor = submitit.AutoExecutor(folder=logs(run), cluster=execution.cluster)
            executor.update_parameters(**_options(run.stage, execution, after))
            handle = executor.submit(
                _StageJob(),
                profile,
                run.stage,
                execution,
                max(1, cores() // count) if local else None,
                ",".join(gpus) if gpus else os.environ.get("CUDA_VISIBLE_DEVICES"),
            )
        except (RuntimeError, NameError) as error:
            raise JobError(
                f"{run.folder}: {execution.cluster} did not take the job: {error}"
            ) from error
        record = {"cluster": execution.cluster, "id": handle.job_id}
        write_json(run.folder / JOB, record | ({"gpus": gpus} if gpus else {}))
    return Job(run, execution.cluster, handle.job_id, gpus)


def _options(stage: Stage, execution: Execution, after: Sequence[str]) -> dict[str, Any]:
    """What submitit is told about a job: `Execution.slurm`, but with as many GPUs for a stage that
    one process computes as each process of the others has, and none for one that a judge does."""
    options = {"timeout_min": 60 * 24 * 7, "name": f"califkit-{stage.name}-{stage.kind}"}
    options |= execution.slurm
    if stage.judged:
        options.pop("gpus_per_node", None)
    elif "gpus_per_node" in options:
        each = max(1, options["gpus_per_node"] // execution.processes)
        options["gpus_per_node"] = each * stage.processes(execution)
    if after:
        options["slurm_additional_parameters"] = {
            **options.get("slurm_additional_parameters", {}),
            "dependency": f"afterok:{':'.join(after)}",
            "kill_on_invalid_dep": "yes",
        }
    return options


class _StageJob(Checkpointable):
    """What runs in the job; submitit puts it back into Slurm's queue when its time runs out."""

    def __call__(
        self,
        profile: str,
        stage: Stage,
        execution: Execution,
        threads: int | None,
        gpus: str | None,
    ) -> str:
        """``threads`` is None on a cluster, which sets its own limits."""
        if threads is not None:
            end_with_parent(int(submitit.JobEnvironment().job_id))
            # submitit hides all GPUs from a local job; show those that it was given.
            if gpus is None:
                os.environ.pop("CUDA_VISIBLE_DEVICES", None)
            else:
                os.environ["CUDA_VISIBLE_DEVICES"] = gpus
        return str(compute(profile, stage, execution, threads).folder)


def find_job(run: Run) -> Job | None:
    """The live job of a run folder, perhaps submitted by another process, or None."""
    path = run.folder / JOB
    if not path.is_file():
        return None
    record = json.loads(path.read_text(encoding="utf-8"))
    job = Job(run, record["cluster"], record["id"], tuple(record.get("gpus", ())))
    return job if job.state == "running" else None


def is_alive(job: Job) -> bool:
    """Whether the scheduler, here the system, still has the job."""
    if job.cluster == "slurm":
        return in_slurm_queue(job.job_id)
    try:  # a local job's id is the process id of its controller, which names the log folder
        process = psutil.Process(int(job.job_id))
        # A process that ended and was not waited for is a zombie.
        return process.status() != psutil.STATUS_ZOMBIE and str(logs(job.run)) in process.cmdline()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


def cancel(jobs: Sequence[Job]) -> None:
    """End local jobs that are still alive."""
    for job in jobs:
        if job.state == "running":
            kill_tree(int(job.job_id))
            (job.run.folder / JOB).unlink(missing_ok=True)


def wait_for_ends(jobs: Sequence[Job], seconds: float = 10) -> None:
    """Let the controllers of complete local jobs end: an interrupt, as a notebook's end sends one,
    would make them print a traceback."""
    deadline = time.monotonic() + seconds
    while any(is_alive(job) for job in jobs) and time.monotonic() < deadline:
        time.sleep(0.2)


def raise_failed(jobs: Sequence[Job], states: Sequence[str]) -> None:
    """`JobError` with the end of the output of the first job that left no manifest."""
    for job, state in zip(jobs, states, strict=True):
        if state == "failed":
            tail = "\n".join(job.output.splitlines()[-30:])
            raise JobError(f"{job.run.folder} has no manifest after its job ended:\n{tail}")


Shown = dict[Path, tuple[str, float, int]]
"""Of each run folder the progress line last shown, when, and the number of alarms shown."""

_PROGRESS = ("anchors", "train ", "responses ", "scores ", "identification ", "judge ")


def news(
    jobs: Sequence[Job], states: Sequence[str], shown: Shown, interval: float
) -> Iterator[str]:
    """New alarms and progress lines; ``states`` were read before, so the output of an ended job is
    whole."""
    for job, state in zip(jobs, states, strict=True):
        line, since, count = shown.get(job.run.folder, ("", -interval, 0))
        output = job.output.splitlines()
        alarms = [line for line in output if line.startswith("train ") and ": alarm: " in line]
        yield from alarms[count:]
        told = [line for line in output if line.startswith(_PROGRESS) and line not in alarms]
        newest = told[-1] if told else ""
        now = time.monotonic()
        if newest != line and (state != "running" or now - since >= interval):
            line, since = newest, now
            yield newest
        shown[job.run.folder] = (line, since, len(alarms))
