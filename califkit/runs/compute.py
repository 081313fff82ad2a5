"""Compute one stage, in this process or in as many as its work is split into."""

from __future__ import annotations

import atexit
import os
import signal
from pkgutil import resolve_name

from califkit.runs.folders import Run, open_run
from califkit.runs.machine import Nodes, end_with_parent, gpus_of_machine, start_ranks
from califkit.runs.settings import Execution
from califkit.runs.stages import Stage


def compute(
    profile: str,
    stage: Stage,
    execution: Execution,
    threads: int | None = None,
    nodes: Nodes | None = None,
) -> Run:
    """Compute a stage whose needs are complete, with as many processes as it takes.

    A recorded run is computed anew: it holds no weights. ``threads`` limits those of torch. In a
    job of a cluster each of its ``nodes`` calls this.
    """
    count = stage.processes(execution)
    if stage.starts_its_own:
        return _compute(profile, stage, execution, threads)
    if count == 1:
        if not stage.judged and len(gpus := gpus_of_machine()) > 1:
            os.environ["CUDA_VISIBLE_DEVICES"] = gpus[0]  # the trainer refuses several in a process
        return _compute(profile, stage, execution, threads)
    one_gpu = stage.split == "shards" and bool(gpus_of_machine())  # ranks choose theirs
    each = threads and max(1, threads // count)
    start_ranks(count, _rank, profile, stage, execution, each, one_gpu=one_gpu, nodes=nodes)
    return open_run(profile, stage)


def _rank(profile: str, stage: Stage, execution: Execution, threads: int | None) -> None:
    """One of several processes of a job."""
    end_with_parent(os.getppid())
    # Slurm's warnings, of a time limit or of a preemption; the job's process acts on them.
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    if "SLURM_JOB_ID" in os.environ:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _compute(profile, stage, execution, threads)
    # Everything is written. Threads of torch and gloo that meet the end of the interpreter may
    # abort the process, and a finished stage would count as failed.
    atexit.register(os._exit, 0)


def _compute(profile: str, stage: Stage, execution: Execution, threads: int | None) -> Run:
    if threads is not None and not stage.judged:
        import torch

        torch.set_num_threads(threads)
    return resolve_name(stage.function)(profile, stage, execution)
