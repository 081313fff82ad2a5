"""Jobs of one stage each, on this machine or on Slurm: start, find again, read, end.

The only module that knows submitit. Whether a stage is done is told by its manifest, never by the
scheduler.

A local job is a controller process of submitit with the stage in a child process, which ends
itself when the controller dies. A Slurm job that is preempted or runs out of time is put back into
the queue and goes on after its last finished unit.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import submitit
from submitit.core.utils import JobPaths, pickle_load
from submitit.helpers import Checkpointable

from califkit import SelfExplaining
from califkit.runs import slurm
from califkit.runs.compute import compute
from califkit.runs.folders import Run
from califkit.runs.jsonl import write_json
from califkit.runs.locks import locked
from califkit.runs.machine import Nodes, cores, end_with_parent, kill_tree
from califkit.runs.settings import Execution
from califkit.runs.stages import Stage

JOB = "job.json"

_SETTLE = 15
"""Seconds that a network file system may take to show what a job on another machine has written."""

_RAISED = re.compile(r"\b[A-Za-z_][\w.]*(Error|Exception): ")
_PLUMBING = re.compile(r"submitit (INFO|WARNING)|^srun: |^slurmstepd: ")


class JobError(SelfExplaining, RuntimeError):
    """A job ended without completing its stage; the message holds the end of its output."""


@dataclass(frozen=True)
class Job:
    """A submitted stage: its run folder, the scheduler's id, the GPUs of this machine that a local
    job was given, and when it was submitted (seconds since the epoch)."""

    run: Run
    cluster: str
    job_id: str
    gpus: tuple[str, ...] = ()
    submitted: float = 0.0

    @property
    def state(self) -> str:
        """``complete``, ``running`` (or waiting in a queue), or ``failed``."""
        if self.run.is_complete:
            return "complete"
        # The manifest may have appeared between the two looks.
        return "running" if is_alive(self) else "complete" if self.run.is_complete else "failed"

    @property
    def standing(self) -> str:
        """`state`, or Slurm's word where it says more: ``pending (Resources)``."""
        if self.cluster == "slurm" and not self.run.is_complete:
            if queued := slurm.find(self.job_id, self.submitted):
                return str(queued)
        return self.state

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
        options = {"timeout_min": 60 * 24 * 7} if local else None
        try:
            with slurm.clean_environment():
                executor = submitit.AutoExecutor(
                    folder=logs(run),
                    cluster=execution.cluster,
                    slurm_max_num_timeout=execution.requeues,
                )
                executor.update_parameters(
                    **(options or slurm.job_options(run.stage, execution, after))
                )
                handle = executor.submit(
                    _StageJob(),
                    profile,
                    run.stage,
                    execution,
                    max(1, cores() // count) if local else None,
                    ",".join(gpus) if gpus else os.environ.get("CUDA_VISIBLE_DEVICES"),
                )
        except (RuntimeError, NameError, AssertionError) as error:
            raise JobError(
                f"{run.folder}: {execution.cluster} did not take the job: {error}"
            ) from error
        job = Job(run, execution.cluster, handle.job_id, gpus, time.time())
        record = {"cluster": job.cluster, "id": job.job_id, "submitted": job.submitted}
        record |= {"gpus": gpus} if gpus else {}
        record |= {} if local else {"cluster_name": slurm.cluster_name(), "user": os.getuid()}
        write_json(run.folder / JOB, record)
    return job


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
        nodes = None
        if threads is None:
            nodes = _nodes()
        else:
            end_with_parent(int(submitit.JobEnvironment().job_id))
            # submitit hides all GPUs from a local job; show those that it was given.
            if gpus is None:
                os.environ.pop("CUDA_VISIBLE_DEVICES", None)
            else:
                os.environ["CUDA_VISIBLE_DEVICES"] = gpus
        return str(compute(profile, stage, execution, threads, nodes).folder)


def _nodes() -> Nodes:
    """The machines of this Slurm job, as the one that runs this sees them."""
    job = submitit.JobEnvironment()
    host = os.environ.get("SLURM_LAUNCH_NODE_IPADDR", job.hostnames[0])
    port = 15_000 + int(job.job_id.partition("_")[0]) % 16_000  # below what systems hand out
    name = f"{job.job_id}-{os.environ.get('SLURM_RESTART_COUNT', 0)}"
    return Nodes(job.num_nodes, job.node == 0, f"{host}:{port}", name)


def find_job(run: Run) -> Job | None:
    """The live job of a run folder, perhaps submitted by another process, or None.

    Raises
    ------
    JobError
        As `recorded_job` does.
    """
    job = None if run.is_complete else recorded_job(run)
    return job if job and job.state == "running" else None


def recorded_job(run: Run) -> Job | None:
    """The last job of a run folder, alive or not; None if it has had none.

    Raises
    ------
    JobError
        If the job went to a cluster of another name on the same file system, which this one cannot
        be asked about.
    """
    path = run.folder / JOB
    if not path.is_file():
        return None
    record = json.loads(path.read_text(encoding="utf-8"))
    theirs = record.get("cluster_name")
    if theirs and (ours := slurm.cluster_name()) and ours != theirs:
        raise JobError(
            f"{run.folder}: job {record['id']} of user {record['user']} was submitted to the "
            f"cluster {theirs}, and this is {ours}; if that job is over, delete {path}"
        )
    return Job(
        run,
        record["cluster"],
        record["id"],
        tuple(record.get("gpus", ())),
        record.get("submitted", 0.0),
    )


def is_alive(job: Job) -> bool:
    """Whether the scheduler, here the system, still has the job."""
    if job.cluster == "slurm":
        return slurm.find(job.job_id, job.submitted) is not None
    try:  # a local job's id is the process id of its controller, which names the log folder
        process = psutil.Process(int(job.job_id))
        # A process that ended and was not waited for is a zombie.
        return process.status() != psutil.STATUS_ZOMBIE and str(logs(job.run)) in process.cmdline()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


def cancel(jobs: Sequence[Job]) -> None:
    """End jobs that are still alive; what they have finished stays."""
    alive = [job for job in jobs if job.state == "running"]
    slurm.cancel([job.job_id for job in alive if job.cluster == "slurm"])
    for job in alive:
        if job.cluster != "slurm":
            kill_tree(int(job.job_id))
        (job.run.folder / JOB).unlink(missing_ok=True)


def wait_for_ends(jobs: Sequence[Job], seconds: float = 10) -> None:
    """Let the controllers of complete local jobs end: an interrupt, as a notebook's end sends one,
    would make them print a traceback."""
    deadline = time.monotonic() + seconds
    while any(is_alive(job) for job in jobs) and time.monotonic() < deadline:
        time.sleep(0.2)


def failure(job: Job) -> str | None:
    """Why a job ended without a manifest: how, its error, the end of its output and where that is;
    None if the manifest has come after all (a network file system shows it late)."""
    if job.cluster == "slurm":
        deadline = time.monotonic() + _SETTLE
        while not job.run.is_complete and time.monotonic() < deadline:
            time.sleep(1)
    if job.run.is_complete:
        return None
    how = f" ({slurm.ended(job.job_id)})" if job.cluster == "slurm" else ""
    paths = JobPaths(logs(job.run), job.job_id)
    error = ""
    if paths.result_pickle.is_file():
        outcome, found = pickle_load(paths.result_pickle)
        error = f"\n{found.strip().splitlines()[-1]}" if outcome == "error" else ""
    lines = [line for line in job.output.splitlines() if not _PLUMBING.search(line)]
    raised = [line for line in lines if _RAISED.search(line) and "RankError" not in line]
    if raised and (not error or "RankError" in error):  # what a process of several has died of
        error = f"\n{raised[-1]}"
    tail = "".join(f"\n  {line}" for line in lines[-12:])
    return (
        f"{job.run.stage.kind} {job.run.stage.name}: job {job.job_id}{how} has ended, and "
        f"{job.run.folder} has no manifest{error}\nthe end of {paths.stdout}:{tail}"
    )


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
        if state == "running" and job.cluster == "slurm":
            if (queued := slurm.find(job.job_id, job.submitted)) and queued.waits:
                newest = f"{job.run.stage.name}: job {job.job_id} is {queued}"
                if newest != line:
                    yield newest
                shown[job.run.folder] = (newest, time.monotonic(), count)
                continue
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
