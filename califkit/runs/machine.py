"""This machine and its neighbours: cores, GPUs, process trees, ranks of one job."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psutil

from califkit.runs.settings import Execution


class RankError(RuntimeError):
    """One of several processes of a job failed; the others were ended."""


def workers(execution: Execution, jobs: int, gpus: int = 0) -> int:
    """How many local jobs run at a time: as configured, else as cores and free memory allow; never
    two on one GPU."""
    if jobs <= 1:
        return 1
    limit = min(jobs, max(1, gpus // execution.processes)) if gpus else jobs
    if execution.workers:
        return min(execution.workers, limit)
    fit = int(psutil.virtual_memory().available / 1e9 / execution.memory_per_worker_gb)
    return max(1, min(limit, cores(), fit))


def cores() -> int:
    """Cores that this process may use, where the system tells; else those of the machine."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def gpus_of_machine() -> tuple[str, ...]:
    """Names of the GPUs that this process may use, found without starting CUDA in it."""
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True)
    except FileNotFoundError:
        return ()
    numbers = [str(i) for i, line in enumerate(listed.stdout.splitlines()) if line[:4] == "GPU "]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None or not numbers:
        return tuple(numbers)
    return tuple(name.strip() for name in visible.split(",") if name.strip())


@dataclass(frozen=True)
class Nodes:
    """The machines that a job of a cluster has, as seen from one of them.

    All meet at ``address`` (host:port), where the first one, with ``is_first``, listens. ``name``
    is the same on all, and no other job's.
    """

    count: int
    is_first: bool
    address: str
    name: str


def start_ranks(
    count: int,
    function: Callable[..., None],
    *arguments: Any,
    one_gpu: bool,
    nodes: Nodes | None = None,
) -> None:
    """Run ``function(*arguments)`` in ``count`` processes and wait for them.

    Each has the environment that torchrun makes, and with ``one_gpu`` sees only the GPU of its own
    rank. If one fails or is killed, the others are ended and `RankError` is raised. In a job of a
    cluster each of its ``nodes`` calls this and starts an equal share of the processes.
    """
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    machines = nodes.count if nodes else 1
    config = LaunchConfig(
        min_nodes=machines,
        max_nodes=machines,
        nproc_per_node=count // machines,
        rdzv_backend="c10d",
        max_restarts=0,
        virtual_local_rank=one_gpu,
        **_meeting(nodes),
    )
    try:
        elastic_launch(config, function)(*arguments)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        ended = f"signal {-failure.exitcode}" if failure.exitcode < 0 else "an error"
        raise RankError(f"process {rank} of {count} ended with {ended}") from None


def _meeting(nodes: Nodes | None) -> dict[str, Any]:
    """Where processes meet, and who answers signals."""
    if nodes is None:
        return _ON_ONE_MACHINE
    # Slurm's signals are answered by submitit, whose handlers must stay.
    if nodes.count == 1:
        return _ON_ONE_MACHINE | {"signals_to_handle": ""}
    return {
        "rdzv_endpoint": nodes.address,
        "rdzv_configs": {"is_host": str(nodes.is_first)},
        "run_id": nodes.name,
        "signals_to_handle": "",
    }


_ON_ONE_MACHINE = {"rdzv_endpoint": "localhost:0", "local_addr": "localhost"}
"""A free port: several jobs may share the machine."""


def end_with_parent(parent: int) -> None:
    """End this process when the one that started it is gone: nobody would find it again."""

    def wait() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def kill_tree(pid: int) -> None:
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
