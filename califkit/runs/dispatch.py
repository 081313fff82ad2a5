"""The walker: what is missing for some stages, in which order, and one way to compute it.

Missing runs are computed after what they need: one after the other in this process, as jobs on
this machine, or as jobs of a cluster that is told which of them wait for which.

What a judge does wants a network and nothing else of a machine. So on this machine it is never a
job: it is done in this process when all else is there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from pkgutil import resolve_name

from califkit import SelfExplaining
from califkit.runs import jobs
from califkit.runs.compute import compute
from califkit.runs.folders import Run, open_run, own_run
from califkit.runs.jobs import Job, JobError, find_job
from califkit.runs.machine import gpus_of_machine, workers
from califkit.runs.params import Params
from califkit.runs.settings import Execution, ParamsError
from califkit.runs.stages import Stage
from califkit.runs.text import say

TICK = 3
"""Seconds between two calls of ``on_tick``."""


class NotSubmittedError(SelfExplaining, RuntimeError):
    """Stages are missing and nobody allowed to submit them; the message lists the jobs."""


def ensure(
    params: Params,
    stages: Sequence[Stage],
    submit: bool = False,
    on_tick: Callable[[], None] | None = None,
) -> list[Run]:
    """The runs of these stages, of whatever kind, as a notebook asks for them.

    Complete ones are opened at once, the others computed as `compute_all` does; on a cluster only
    with ``submit``, else `NotSubmittedError` lists the jobs.
    """
    execution = params.settings.execution
    rows = job_list(params.profile, stages)
    to_do = [row for row in rows if row["state"] == "to do"]
    if to_do and execution.cluster != "local" and not submit:
        missing = [run for run in missing_runs(params.profile, stages) if not find_job(run)]
        lines = "\n".join(f"  {_short(run)}" for run in missing)
        raise NotSubmittedError(
            f"{len(to_do)} of {len(rows)} runs are not there. With submit = True these jobs go "
            f"to {execution.cluster}:\n{lines}"
        )
    return compute_all(params.profile, stages, execution, on_tick=on_tick)


def job_list(profile: str, stages: Sequence[Stage]) -> list[dict[str, str]]:
    """A row a stage: ``stage``, ``name``, ``state``, ``job`` (its id, if one is alive) and
    ``folder`` below the runs folder.

    ``state`` is ``complete``, ``to do``, ``running``, or Slurm's word for a job that is neither, as
    ``pending (Resources)``.
    """
    rows = []
    for stage in stages:
        run = open_run(profile, stage)
        job = None if run.is_complete else find_job(run)
        state = job.standing if job else "complete" if run.is_complete else "to do"
        row = {"stage": stage.kind, "name": stage.name, "state": state}
        rows.append(row | {"job": job.job_id if job else "", "folder": _short(run)})
    return rows


def cancel_jobs(profile: str, stages: Sequence[Stage]) -> list[Job]:
    """End the jobs of these stages and of what they need that are alive; the jobs."""
    found = [job for run in missing_runs(profile, stages) if (job := find_job(run))]
    jobs.cancel(found)
    return found


def _short(run: Run) -> str:
    return "/".join(run.folder.parts[-3:])


def missing_runs(profile: str, stages: Sequence[Stage]) -> list[Run]:
    """Runs that are not complete, each once, after all those that they need; what a judge does
    comes last."""
    found: dict[Path, Run] = {}

    def add(run: Run) -> None:
        if run.is_complete or run.folder in found:
            return
        for needed in _needed_runs(profile, run.stage):
            add(needed)
        found[run.folder] = run

    for stage in stages:
        add(open_run(profile, stage))
    return sorted(found.values(), key=lambda run: run.stage.judged)


def _needed_runs(profile: str, stage: Stage) -> list[Run]:
    return [(own_run if s.holds_weights else open_run)(profile, s) for s in stage.needs]


def check_stages(profile: str, stages: Sequence[Stage], execution: Execution) -> None:
    """Refuse stages that cannot be computed, or opened, as they are asked for; nothing is started.

    Raises
    ------
    ParamsError, JudgeError, ModelError
        If a missing one, needed ones included, has settings that cannot work.
    StaleRunError
        If a complete one was made of other prompts than its file holds by now, or an unfinished
        training run was begun with another number of processes.
    """
    for part in with_needs(stages):
        if part.prompts is not None:
            resolve_name(part.unchanged)(open_run(profile, part))
    for run in missing_runs(profile, stages):
        if not find_job(run):
            for check in run.stage.checks:
                resolve_name(check)(profile, run.stage, execution)


def with_needs(stages: Sequence[Stage]) -> list[Stage]:
    """Stages and all those that they need, each once, after what it needs."""
    found: dict[Stage, None] = {}
    for stage in stages:
        found |= dict.fromkeys([*with_needs(stage.needs), stage])
    return list(found)


def run_stage(profile: str, stage: Stage, execution: Execution) -> Run:
    """Compute a stage and what it needs in this process, after `check_stages`."""
    check_stages(profile, [stage], execution)
    for run in missing_runs(profile, [stage]):
        compute(profile, run.stage, execution)
    return open_run(profile, stage)


def compute_all(
    profile: str,
    stages: Sequence[Stage],
    execution: Execution,
    interval: float = 20,
    on_tick: Callable[[], None] | None = None,
    before_judging: Callable[[], None] | None = None,
) -> list[Run]:
    """Submit stages and what they need, show their progress and wait.

    On this machine at most `workers` jobs run at a time, each on GPUs of its own where there are
    GPUs, and a job starts when what it needs is complete. A stage whose job is still alive,
    perhaps from an earlier notebook session, is found again instead of being started twice. What a
    judge does is done in this process, also where the rest goes to a cluster.

    Local jobs that this call started do not outlive it when it is interrupted or one of them
    fails. If this process dies without warning (kill -9, out of memory), they go on. Jobs of a
    cluster go on in any case, and those that do not need a failed one are waited for.

    Parameters
    ----------
    interval
        Seconds between two progress lines of a job.
    on_tick
        Called every `TICK` seconds or so while waiting, and once at the end.
    before_judging
        Called once, if anything is to be judged, when all else is there; it may raise.

    Raises
    ------
    JobError
        If jobs end without completing their stages, or are not taken; it tells each of them.
    ParamsError
        If one local job asks for more GPUs than there are, or as `check_stages` says.
    """
    check_stages(profile, stages, execution)
    waiting = missing_runs(profile, stages)
    local = execution.cluster == "local"
    if local and execution.workers == 0:
        for run in waiting:
            if run.stage.judged and before_judging:
                before_judging()
                before_judging = None
            compute(profile, run.stage, execution)
        if on_tick:
            on_tick()
        return [open_run(profile, stage) for stage in stages]
    gpus = gpus_of_machine() if local and waiting else ()
    _check_gpus(waiting, execution, gpus)
    count = workers(execution, sum(not run.stage.judged for run in waiting), len(gpus))
    watched: list[Job] = []
    started: list[Job] = []
    lost: dict[Path, str] = {}  # folders of what failed, was not taken or waits for such, and why
    shown: jobs.Shown = {}
    ticked, told = time.monotonic(), 0
    try:
        while True:
            states = [job.state for job in watched]
            for line in jobs.news(watched, states, shown, interval):
                say(line)
            for job, state in zip(watched, states, strict=True):
                if state != "failed" or job.run.folder in lost:
                    continue
                if why := jobs.failure(job):
                    if local:
                        raise JobError(why)
                    print(f"{why}\n", flush=True)
                    lost[job.run.folder] = why
            finished = states.count("complete")
            if finished > told and len(watched) + len(waiting) > 1:
                say(f"{finished} of {len(watched) + len(waiting)} runs are complete")
            told = finished
            running = [job for job, s in zip(watched, states, strict=True) if s == "running"]
            for run in list(waiting):
                needed = _needed_runs(profile, run.stage)
                if any(other.folder in lost for other in needed):
                    lost[run.folder] = ""
                    waiting.remove(run)
                    continue
                if found := find_job(run):
                    job = found
                elif run.stage.judged:
                    if running or run is not waiting[0]:
                        break
                    if before_judging:
                        before_judging()
                        before_judging = None
                    compute(profile, run.stage, execution)
                    waiting.remove(run)
                    continue
                elif local:
                    free = [gpu for gpu in gpus if all(gpu not in job.gpus for job in running)]
                    wanted = run.stage.processes(execution)
                    if len(running) >= count or (gpus and len(free) < wanted):
                        break
                    if not all(other.is_complete for other in needed):
                        continue
                    job = jobs.start(profile, run, execution, count, tuple(free[:wanted]))
                else:
                    folders = {other.folder for other in needed}
                    after = tuple(job.job_id for job in running if job.run.folder in folders)
                    try:
                        job = jobs.start(profile, run, execution, count, after=after)
                    except JobError as error:
                        lost[run.folder] = str(error)
                        waiting.remove(run)
                        continue
                started += [] if found else [job]
                watched.append(job)
                running.append(job)
                waiting.remove(run)
            if on_tick and (not running or time.monotonic() - ticked >= TICK):
                on_tick()
                ticked = time.monotonic()
            if not running:
                if lost:
                    raise JobError("\n".join(filter(None, lost.values())))
                if local:
                    jobs.wait_for_ends(started)
                return [open_run(profile, stage) for stage in stages]
            time.sleep(1)
    except BaseException:
        if local:
            jobs.cancel(started)
        elif alive := [job for job in watched if job.state == "running"]:
            say(
                f"jobs that go on: {', '.join(job.job_id for job in alive)}; "
                f"califkit jobs --profile {profile} shows them and can cancel them"
            )
        raise


def _check_gpus(waiting: Sequence[Run], execution: Execution, gpus: Sequence[str]) -> None:
    wanted = max((run.stage.processes(execution) for run in waiting), default=0)
    if 0 < len(gpus) < wanted:
        raise ParamsError(
            f"settings.execution.processes = {wanted}, but {len(gpus)} GPUs are visible here"
        )
