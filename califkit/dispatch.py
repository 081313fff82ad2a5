"""Jobs: submit stages to this machine or to Slurm, watch them, and find them again.

The only module that knows submitit. Whether a stage is done is told by its manifest, never by the
scheduler: a job that the scheduler calls completed but that left no manifest has failed.

A local job is a controller process of submitit with the stage in a child process. Interrupting the
process that waits in `compute_all` (Ctrl-C, *interrupt kernel*) or shutting its kernel down ends
the local jobs it started. If it dies without warning (kill -9, out of memory), they go on, and the
next request for the stage finds them. A stage process whose controller dies ends itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import psutil
import submitit
from filelock import FileLock

from califkit.params import Execution, Params, Stage
from califkit.runs import Run, open_run, write_json

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
        alive = self.job_id is not None and _is_alive(self)
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
        return _logs(self.run)


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
        folder = "/".join(run.folder.parts[-3:])
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
    """Start a job for every stage that is not complete, all at once.

    Local jobs are separate processes that share the cores of the machine evenly; `compute_all`
    starts no more of them at a time than `workers` allows. A stage whose job is still alive,
    perhaps from an earlier notebook session, is found again instead of being started twice.
    """
    runs = [open_run(profile, stage) for stage in stages]
    count = sum(not run.is_complete for run in runs)
    return [
        Job(run, execution.cluster, None)
        if run.is_complete
        else _find_job(run) or _start(profile, run, execution, count)
        for run in runs
    ]


def compute_all(
    profile: str, stages: Sequence[Stage], execution: Execution, interval: float = 20
) -> list[Run]:
    """Submit stages, show their progress and wait; at most `workers` local jobs at a time.

    Local jobs that this call started do not outlive it when it is interrupted or one of them fails;
    their stages continue from the last finished unit when they are asked for again.

    Raises
    ------
    JobError
        If a job ends without completing its stage.
    """
    runs = [open_run(profile, stage) for stage in stages]
    waiting = [run for run in runs if not run.is_complete]
    count = workers(execution, len(waiting))
    slots = count if execution.cluster == "local" else len(waiting)
    jobs: list[Job] = []
    started: list[Job] = []
    shown: Shown = {}
    try:
        while True:
            states = [job.state for job in jobs]
            for line in _news(jobs, states, shown, interval):
                print(line, flush=True)
            _raise_failed(jobs, states)
            running = states.count("running")
            while waiting and running < slots:
                run = waiting.pop(0)
                found = _find_job(run)
                jobs.append(found or _start(profile, run, execution, count))
                started += [] if found else [jobs[-1]]
                running += 1
            if not running:
                return runs
            time.sleep(1)
    except BaseException:
        if execution.cluster == "local":
            cancel(started)
        raise


def watch(jobs: Sequence[Job], interval: float = 20) -> Iterator[str]:
    """The newest progress line of each job, at most one per ``interval`` seconds, until all ended.

    Raises `JobError` with the end of the output of a job that left no manifest.
    """
    shown: Shown = {}
    while True:
        states = [job.state for job in jobs]
        yield from _news(jobs, states, shown, interval)
        _raise_failed(jobs, states)
        if "running" not in states:
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
            _kill_tree(int(job.job_id))
        (job.run.folder / JOB).unlink(missing_ok=True)


def workers(execution: Execution, jobs: int) -> int:
    """How many local jobs run at a time: as configured, else as cores and free memory allow."""
    if jobs <= 1:
        return 1
    if execution.workers:
        return min(execution.workers, jobs)
    fit = int(psutil.virtual_memory().available / 1e9 / execution.memory_per_worker_gb)
    return max(1, min(jobs, _cores(), fit))


def _cores() -> int:
    """Cores that this process may use, where the system tells; else those of the machine."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


Shown = dict[Path, tuple[str, float]]
"""The line last shown of each run folder, and when."""


def _news(
    jobs: Sequence[Job], states: Sequence[str], shown: Shown, interval: float
) -> Iterator[str]:
    """New progress lines; ``states`` were read before, so the output of an ended job is whole."""
    for job, state in zip(jobs, states, strict=True):
        line, since = shown.get(job.run.folder, ("", -interval))
        newest = _newest_progress(job.output)
        now = time.monotonic()
        if newest != line and (state != "running" or now - since >= interval):
            shown[job.run.folder] = (newest, now)
            yield newest


def _raise_failed(jobs: Sequence[Job], states: Sequence[str]) -> None:
    for job, state in zip(jobs, states, strict=True):
        if state == "failed":
            tail = "\n".join(job.output.splitlines()[-30:])
            raise JobError(f"{job.run.folder} has no manifest after its job ended:\n{tail}")


_PROGRESS = ("anchors", "train ", "responses ", "scores ")


def _newest_progress(output: str) -> str:
    lines = [line for line in output.splitlines() if line.startswith(_PROGRESS)]
    return lines[-1] if lines else ""


def _logs(run: Run) -> Path:
    """Where submitit keeps pickles and output; one folder a run, which tells its jobs apart."""
    return run.folder.absolute() / "jobs"


def _start(profile: str, run: Run, execution: Execution, count: int) -> Job:
    """Submit a stage as one of ``count`` jobs, unless another process was faster."""
    local = execution.cluster == "local"
    run.folder.mkdir(parents=True, exist_ok=True)
    with FileLock(run.folder / ".submit.lock"):
        if job := _find_job(run):
            return job
        options = {"timeout_min": 60 * 24 * 7, "name": f"califkit-{run.stage.name}"}
        try:
            executor = submitit.AutoExecutor(folder=_logs(run), cluster=execution.cluster)
            executor.update_parameters(**options | execution.slurm)
            handle = executor.submit(
                _job,
                profile,
                run.stage,
                execution,
                max(1, _cores() // count) if local else None,
                os.environ.get("CUDA_VISIBLE_DEVICES"),
            )
        except (RuntimeError, NameError) as error:
            raise JobError(
                f"{run.folder}: {execution.cluster} did not take the job: {error}"
            ) from error
        write_json(run.folder / JOB, {"cluster": execution.cluster, "id": handle.job_id})
    return Job(run, execution.cluster, handle.job_id)


def _job(
    profile: str, stage: Stage, execution: Execution, threads: int | None, gpus: str | None
) -> str:
    """What runs in the job; ``threads`` is None on a cluster, which sets its own limits."""
    if threads is not None:
        _end_with_parent()
        # submitit hides all GPUs from a local job; show what the submitting process saw.
        if gpus is None:
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        else:
            os.environ["CUDA_VISIBLE_DEVICES"] = gpus
        import torch

        torch.set_num_threads(threads)
    return str(run_stage(profile, stage, execution).folder)


def _end_with_parent() -> None:
    """End this process when its controller is gone: nobody would find it again."""
    controller = int(submitit.JobEnvironment().job_id)

    def wait() -> None:
        while os.getppid() == controller:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _find_job(run: Run) -> Job | None:
    """The live job of a run folder, perhaps submitted by another process, or None."""
    path = run.folder / JOB
    if not path.is_file():
        return None
    record = json.loads(path.read_text(encoding="utf-8"))
    job = Job(run, record["cluster"], record["id"])
    return job if job.state == "running" else None


def _is_alive(job: Job) -> bool:
    if job.cluster == "slurm":
        return _in_slurm_queue(job.job_id)
    try:  # a local job's id is the process id of its controller, which names the log folder
        process = psutil.Process(int(job.job_id))
        # A process that ended and was not waited for is a zombie.
        return process.status() != psutil.STATUS_ZOMBIE and str(job._logs) in process.cmdline()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


def _in_slurm_queue(job_id: str) -> bool:
    """Whether Slurm still has a job waiting or running; True while Slurm does not answer."""
    period = int(time.monotonic() / 10)
    queue = _slurm_queue(period)
    if queue is not None and job_id not in queue:
        _slurm_queue.cache_clear()  # the job may be younger than the list
        queue = _slurm_queue(period)
    return queue is None or job_id in queue


@lru_cache(maxsize=1)
def _slurm_queue(period: int) -> frozenset[str] | None:
    """Ids of this user's jobs in the queue, asked once a ``period``; None if Slurm fails.

    ``squeue`` needs no accounting database, and one call serves all jobs.
    """
    command = ["squeue", f"--user={os.getuid()}", "--noheader", "--format=%i"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:  # a run folder from a cluster, looked at elsewhere
        return frozenset()
    return None if answer.returncode else frozenset(answer.stdout.split())


def _kill_tree(pid: int) -> None:
    """Kill a local controller with its stage. Only SIGKILL is sure: submitit's stage processes
    ignore SIGTERM, and every stage survives a kill."""
    try:
        controller = psutil.Process(pid)
        family = [controller, *controller.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for process in family:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            pass
    psutil.wait_procs(family, timeout=10)
