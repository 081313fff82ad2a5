"""Jobs: submit stages to this machine or to Slurm, watch them, and find them again.

The only module that knows submitit. Whether a stage is done is told by its manifest, never by the
scheduler: a job that the scheduler calls completed but that left no manifest has failed.

A local job is a controller process of submitit with the stage in a child process. Interrupting the
process that waits in `compute_all` (Ctrl-C, *interrupt kernel*) or shutting its kernel down ends
the local jobs it started. If it dies without warning (kill -9, out of memory), they go on, and the
next request for the stage finds them. A stage process whose controller dies ends itself.

With ``processes`` > 1 the job of a training run or of anchors starts that many ranks on its node.
A Slurm job that is preempted or runs out of time is put back into the queue (at most three times
when its time runs out) and continues after the last finished unit.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import submitit
from filelock import FileLock
from submitit.helpers import Checkpointable

from califkit.data.prompts import check_unchanged
from califkit.runs.folders import Run, open_run, own_run
from califkit.runs.jsonl import write_json
from califkit.runs.machine import (
    cores,
    end_with_parent,
    gpus_of_machine,
    in_slurm_queue,
    kill_tree,
    start_ranks,
    workers,
)
from califkit.runs.params import Params
from califkit.runs.settings import Execution, ParamsError
from califkit.runs.stages import Stage
from califkit.training.checkpoints import check_processes
from califkit.training.checks import check_settings, check_thinking

JOB = "job.json"

TICK = 3
"""Seconds between two calls of ``on_tick``."""


class JobError(RuntimeError):
    """A job ended without completing its stage; the message holds the end of its output."""


class NotSubmittedError(RuntimeError):
    """Stages are missing and nobody allowed to submit them; the message lists the jobs."""


@dataclass(frozen=True)
class Job:
    """A submitted stage: its run folder, the scheduler's id (None if it was complete), and the GPUs
    of this machine that a local job was given."""

    run: Run
    cluster: str
    job_id: str | None
    gpus: tuple[str, ...] = ()

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
    """Compute a stage (and what it needs) in this process; a complete one is only opened.

    Raises what `check_stages` does.
    """
    check_stages(profile, [stage], execution)
    run = open_run(profile, stage)
    return run if run.is_complete else compute(profile, stage, execution)


def compute(profile: str, stage: Stage, execution: Execution, threads: int | None = None) -> Run:
    """Compute a stage with as many processes as it takes, `run_stage` without its look at runs
    that ship with the repository: those hold no weights.

    ``threads`` limits those of torch; None leaves them alone.
    """
    count, gpus = processes_of(stage, execution), gpus_of_machine()
    if count == 1:
        if len(gpus) > 1:  # the trainer refuses several GPUs in one process
            os.environ["CUDA_VISIBLE_DEVICES"] = gpus[0]
        return _compute(profile, stage, execution, threads)
    # Shards of anchors know nothing of each other; the ranks of a training run choose their GPU.
    one_gpu = stage.kind == "anchors" and bool(gpus)
    each = threads and max(1, threads // count)
    start_ranks(count, _rank, profile, stage, execution, each, one_gpu=one_gpu)
    return open_run(profile, stage)


def _rank(profile: str, stage: Stage, execution: Execution, threads: int | None) -> None:
    """One of several processes of a job."""
    end_with_parent(os.getppid())
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # Slurm's warning; the job's process acts on it
    _compute(profile, stage, execution, threads)


def _compute(profile: str, stage: Stage, execution: Execution, threads: int | None) -> Run:
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
    match stage.kind:
        case "anchors":
            from califkit.anchors.measure import compute_anchors

            shard = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
            return compute_anchors(profile, stage, execution, shard)
        case "training":
            from califkit.training.grpo import train as function
        case "generation":
            from califkit.generation import generate_responses as function
        case "scores":
            from califkit.evaluation.scores import score_responses as function
        case "quality":
            from califkit.evaluation.quality import judge_quality as function
        case "pairwise":
            from califkit.evaluation.quality import judge_pairs as function
        case "rubrics":
            from califkit.evaluation.rubrics import judge_rubrics as function
    return function(profile, stage, execution)


def job_list(profile: str, stages: Sequence[Stage]) -> list[dict[str, str]]:
    """What asking for these stages would mean: a row a stage, nothing started.

    Keys: ``stage``, ``name``, ``state`` (``complete``, ``running`` or ``to do``) and ``folder``
    below the runs folder.
    """
    rows = []
    for stage in stages:
        run = open_run(profile, stage)
        state = "complete" if run.is_complete else "running" if _find_job(run) else "to do"
        row = {"stage": stage.kind, "name": stage.name, "state": state, "folder": _short(run)}
        rows.append(row)
    return rows


def _short(run: Run) -> str:
    return "/".join(run.folder.parts[-3:])


def ensure(
    params: Params,
    stages: Sequence[Stage],
    submit: bool = False,
    on_tick: Callable[[], None] | None = None,
) -> list[Run]:
    """The runs of these stages, as a notebook asks for them.

    Complete runs are opened at once. The others are computed here, in child processes, when the
    profile runs locally; on a cluster they are submitted and watched only with ``submit``. What
    they need and is not there (anchors, policies) comes first. ``on_tick`` as in `compute_all`.

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
        todo = [run for run in missing_runs(params.profile, stages) if not _find_job(run)]
        lines = "\n".join(f"  {_short(run)}" for run in todo)
        raise NotSubmittedError(
            f"{len(missing)} of {len(jobs)} runs are not there. With submit = True these jobs go "
            f"to {execution.cluster}:\n{lines}"
        )
    return compute_all(params.profile, stages, execution, on_tick=on_tick)


def missing_runs(profile: str, stages: Sequence[Stage]) -> list[Run]:
    """Runs that are not complete, each once, after all those that they need.

    So no job waits on the lock of another one, and a policy is trained with all processes of its
    own job, not inside the single process of an evaluation.
    """
    found: dict[Path, Run] = {}

    def add(run: Run) -> None:
        if run.is_complete or run.folder in found:
            return
        for needed in _needs(profile, run.stage):
            add(needed)
        found[run.folder] = run

    for stage in stages:
        add(open_run(profile, stage))
    return list(found.values())


def check_stages(profile: str, stages: Sequence[Stage], execution: Execution) -> None:
    """Refuse stages that cannot be computed, or opened, as they are asked for; nothing is started.

    Raises
    ------
    ParamsError
        If anchors or a training run, among them or needed by them, have settings that cannot work.
        The anchors, which come before training, may take a day.
    StaleRunError
        If one of them or of what they are made of is complete, but its file of prompts holds other
        rows by now; or if an unfinished training run was begun with another number of processes.
    """
    for stage in stages:
        for part in _parts(stage):
            check_unchanged(open_run(profile, part))
    here = execution.cluster == "local"
    for run in missing_runs(profile, stages):
        if run.stage.kind == "anchors" and run.stage.thinking:
            check_thinking(run.stage.model)
        if run.stage.kind == "training" and not _find_job(run):
            check_settings(run.stage, execution, execution.processes, trains_here=here)
            check_processes(run.folder, execution.processes)


def _parts(stage: Stage) -> Iterator[Stage]:
    """A stage and all those that its description names."""
    yield stage
    for _, value in stage:
        if isinstance(value, Stage):
            yield from _parts(value)


def _needs(profile: str, stage: Stage) -> list[Run]:
    """The runs that a stage takes its input from. Responses are drawn in the job of the stage that
    scores or judges them."""
    match stage.kind:
        case "training":
            return [open_run(profile, stage.anchors)]
        case "generation":
            return [own_run(profile, stage.policy)] if stage.policy else []  # own: with weights
        case "pairwise":
            responses = [stage.first, stage.second]
        case "scores" | "quality" | "rubrics":
            responses = [stage.responses]
        case _:
            return []
    missing = [drawn for drawn in responses if not open_run(profile, drawn).is_complete]
    return [needed for drawn in missing for needed in _needs(profile, drawn)]


def submit(profile: str, stages: Sequence[Stage], execution: Execution) -> list[Job]:
    """Start a job for every stage that is not complete, all at once.

    Local jobs are separate processes that share the cores of the machine evenly; `compute_all`
    starts no more of them at a time than `workers` allows. A stage whose job is still alive,
    perhaps from an earlier notebook session, is found again instead of being started twice.
    Raises what `check_stages` does, before any job starts.
    """
    check_stages(profile, stages, execution)
    runs = [open_run(profile, stage) for stage in stages]
    count = sum(not run.is_complete for run in runs)
    return [
        Job(run, execution.cluster, None)
        if run.is_complete
        else _find_job(run) or _start(profile, run, execution, count)
        for run in runs
    ]


def compute_all(
    profile: str,
    stages: Sequence[Stage],
    execution: Execution,
    interval: float = 20,
    on_tick: Callable[[], None] | None = None,
) -> list[Run]:
    """Submit stages and what they need, show their progress and wait.

    On this machine at most `workers` jobs run at a time, each on GPUs of its own where there are
    GPUs, and a job starts when what it needs is complete. A cluster gets all jobs at once and is
    told which of them wait for which.

    Local jobs that this call started do not outlive it when it is interrupted or one of them fails;
    their stages continue from the last finished unit when they are asked for again.

    Parameters
    ----------
    interval
        Seconds between two progress lines of a job.
    on_tick
        Called every `TICK` seconds or so while waiting, and once at the end.

    Raises
    ------
    JobError
        If a job ends without completing its stage.
    ParamsError
        If one local job asks for more GPUs than there are, or as `check_stages` says.
    StaleRunError
        As `check_stages` says.
    """
    check_stages(profile, stages, execution)
    waiting = missing_runs(profile, stages)
    local = execution.cluster == "local"
    gpus = gpus_of_machine() if local else ()
    _check_gpus(execution, gpus)
    count = workers(execution, len(waiting), len(gpus))
    jobs: list[Job] = []
    started: list[Job] = []
    shown: Shown = {}
    ticked = time.monotonic()
    try:
        while True:
            states = [job.state for job in jobs]
            for line in _news(jobs, states, shown, interval):
                print(line, flush=True)
            _raise_failed(jobs, states)
            running = [job for job, state in zip(jobs, states, strict=True) if state == "running"]
            for run in list(waiting):
                if found := _find_job(run):
                    job = found
                elif local:
                    free = [gpu for gpu in gpus if all(gpu not in job.gpus for job in running)]
                    wanted = processes_of(run.stage, execution)
                    if len(running) >= count or (gpus and len(free) < wanted):
                        break
                    if any(not needed.is_complete for needed in _needs(profile, run.stage)):
                        continue
                    job = _start(profile, run, execution, count, tuple(free[:wanted]))
                else:
                    needed = {needed.folder for needed in _needs(profile, run.stage)}
                    after = tuple(job.job_id for job in running if job.run.folder in needed)
                    job = _start(profile, run, execution, count, after=after)
                started += [] if found else [job]
                jobs.append(job)
                running.append(job)
                waiting.remove(run)
            if on_tick and (not running or time.monotonic() - ticked >= TICK):
                on_tick()
                ticked = time.monotonic()
            if not running:
                if local:
                    _wait_for_ends(started)
                return [open_run(profile, stage) for stage in stages]
            time.sleep(1)
    except BaseException:
        if local:
            cancel(started)
        raise


def _wait_for_ends(jobs: Sequence[Job], seconds: float = 10) -> None:
    """Let the controllers of complete local jobs end: an interrupt, as a notebook's end sends one,
    would make them print a traceback."""
    deadline = time.monotonic() + seconds
    while any(_is_alive(job) for job in jobs) and time.monotonic() < deadline:
        time.sleep(0.2)


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
            kill_tree(int(job.job_id))
        (job.run.folder / JOB).unlink(missing_ok=True)


def processes_of(stage: Stage, execution: Execution) -> int:
    """Processes in the job of a stage; responses and scores are computed by one."""
    return execution.processes if stage.kind in ("anchors", "training") else 1


def _check_gpus(execution: Execution, gpus: Sequence[str]) -> None:
    if 0 < len(gpus) < execution.processes:
        raise ParamsError(
            f"settings.execution.processes = {execution.processes}, but {len(gpus)} GPUs are "
            "visible here"
        )


Shown = dict[Path, tuple[str, float, int]]
"""Of each run folder the progress line last shown, when, and the number of alarms shown."""


def _news(
    jobs: Sequence[Job], states: Sequence[str], shown: Shown, interval: float
) -> Iterator[str]:
    """New alarms and progress lines; ``states`` were read before, so the output of an ended job is
    whole."""
    for job, state in zip(jobs, states, strict=True):
        line, since, count = shown.get(job.run.folder, ("", -interval, 0))
        output = job.output.splitlines()
        alarms = [line for line in output if line.startswith("train ") and ": alarm: " in line]
        yield from alarms[count:]
        newest = _newest_progress(output)
        now = time.monotonic()
        if newest != line and (state != "running" or now - since >= interval):
            line, since = newest, now
            yield newest
        shown[job.run.folder] = (line, since, len(alarms))


def _raise_failed(jobs: Sequence[Job], states: Sequence[str]) -> None:
    for job, state in zip(jobs, states, strict=True):
        if state == "failed":
            tail = "\n".join(job.output.splitlines()[-30:])
            raise JobError(f"{job.run.folder} has no manifest after its job ended:\n{tail}")


_PROGRESS = ("anchors", "train ", "responses ", "scores ", "judge ")


def _newest_progress(output: Sequence[str]) -> str:
    lines = [line for line in output if line.startswith(_PROGRESS) and ": alarm: " not in line]
    return lines[-1] if lines else ""


def _logs(run: Run) -> Path:
    """Where submitit keeps pickles and output; one folder a run, which tells its jobs apart."""
    return run.folder.absolute() / "jobs"


def _start(
    profile: str,
    run: Run,
    execution: Execution,
    count: int,
    gpus: tuple[str, ...] = (),
    after: tuple[str, ...] = (),
) -> Job:
    """Submit a stage as one of ``count`` jobs, unless another process was faster.

    A local job is given ``gpus``; a Slurm job waits for the success of the jobs ``after``.
    """
    local = execution.cluster == "local"
    run.folder.mkdir(parents=True, exist_ok=True)
    with FileLock(run.folder / ".submit.lock"):
        if job := _find_job(run):
            return job
        try:
            executor = submitit.AutoExecutor(folder=_logs(run), cluster=execution.cluster)
            executor.update_parameters(**_job_options(run.stage, execution, after))
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


def _job_options(stage: Stage, execution: Execution, after: Sequence[str]) -> dict[str, Any]:
    """What submitit is told about a job: the settings of `Execution.slurm`, and

    - as many GPUs for a stage that one process computes as each process of the others has;
    - which jobs have to succeed first.
    """
    options = {"timeout_min": 60 * 24 * 7, "name": f"califkit-{stage.name}"} | execution.slurm
    if "gpus_per_node" in options:
        each = max(1, options["gpus_per_node"] // execution.processes)
        options["gpus_per_node"] = each * processes_of(stage, execution)
    if after:
        options["slurm_additional_parameters"] = {
            **options.get("slurm_additional_parameters", {}),
            "dependency": f"afterok:{':'.join(after)}",
            "kill_on_invalid_dep": "yes",
        }
    return options


class _StageJob(Checkpointable):
    """`_job` for submitit, which puts it back into Slurm's queue when its time runs out: every
    stage continues after its last finished unit."""

    def __call__(self, *arguments: Any) -> str:
        return _job(*arguments)


def _job(
    profile: str, stage: Stage, execution: Execution, threads: int | None, gpus: str | None
) -> str:
    """What runs in the job; ``threads`` is None on a cluster, which sets its own limits."""
    if threads is not None:
        end_with_parent(int(submitit.JobEnvironment().job_id))
        # submitit hides all GPUs from a local job; show those that it was given.
        if gpus is None:
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        else:
            os.environ["CUDA_VISIBLE_DEVICES"] = gpus
    return str(compute(profile, stage, execution, threads).folder)


def _find_job(run: Run) -> Job | None:
    """The live job of a run folder, perhaps submitted by another process, or None."""
    path = run.folder / JOB
    if not path.is_file():
        return None
    record = json.loads(path.read_text(encoding="utf-8"))
    job = Job(run, record["cluster"], record["id"], tuple(record.get("gpus", ())))
    return job if job.state == "running" else None


def _is_alive(job: Job) -> bool:
    if job.cluster == "slurm":
        return in_slurm_queue(job.job_id)
    try:  # a local job's id is the process id of its controller, which names the log folder
        process = psutil.Process(int(job.job_id))
        # A process that ended and was not waited for is a zombie.
        return process.status() != psutil.STATUS_ZOMBIE and str(job._logs) in process.cmdline()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False
