"""Slurm as its user meets it: what a job asks for, the queue, the cluster's name.

Everything is asked of Slurm's own programs. They may be missing (a run folder looked at elsewhere)
or not answer (the controller restarts), and neither is taken for the end of a job.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import Any

from califkit.runs.settings import Execution
from califkit.runs.stages import Stage, stage_hash

_PERIOD = 10
"""Seconds for which one answer of the queue serves all who ask."""

_ANSWER = 60
"""Seconds to wait for an answer."""


@dataclass(frozen=True)
class Queued:
    """A job in the queue: Slurm's word for its state, and why it waits."""

    state: str
    reason: str

    def __str__(self) -> str:
        return f"{self.state.lower()} ({self.reason})" if self.waits else self.state.lower()

    @property
    def waits(self) -> bool:
        return self.state == "PENDING"


def job_options(stage: Stage, execution: Execution, after: Sequence[str]) -> dict[str, Any]:
    """What submitit is told about a job.

    `Execution.slurm` describes the node of a stage that all processes share. A stage of one process
    gets the share of one of them, on one node; `Execution.slurm_stages` changes that for a kind.
    """
    options = dict(execution.slurm)
    nodes = options.pop("nodes", 1)
    if stage.processes(execution) == 1:
        each = max(1, execution.processes // nodes)
        nodes = 1
        for name in ("cpus_per_task", "mem_gb", "gpus_per_node"):
            if options.get(name):
                options[name] = _share(options[name], each)
    options |= execution.slurm_stages.get(stage.kind, {})
    if gpus := options.pop("gpus_per_node", None):
        options["slurm_gpus_per_node"] = gpus  # submitit's own takes no type, as in h100:8
    extra = dict(options.pop("slurm_additional_parameters", {}))
    extra.setdefault("requeue", True)  # clusters may have it off; every stage goes on where it was
    if after:
        extra |= {"dependency": f"afterok:{':'.join(after)}", "kill_on_invalid_dep": "yes"}
    name = f"califkit-{stage.name}-{stage.kind}-{stage_hash(stage)[:6]}"
    given = {"timeout_min": 60 * 24 * 7, "name": name, "nodes": nodes, "tasks_per_node": 1}
    return given | options | {"slurm_additional_parameters": extra}


def _share(value: int | float | str, parts: int) -> int | str:
    """One of so many equal parts, rounded up; ``h100:8`` keeps its type."""
    kind, colon, count = str(value).rpartition(":")
    part = ceil(float(count) / parts)
    return f"{kind}{colon}{part}" if kind else part


@contextmanager
def clean_environment() -> Iterator[None]:
    """Without what Slurm has told this process about its own allocation.

    A job that is submitted from inside of another would inherit it: a notebook's one core, its
    partition. Where the cluster's configuration is (``SLURM_CONF``) stays.
    """
    inherited = {
        name: os.environ.pop(name)
        for name in list(os.environ)
        if name.startswith(("SLURM_", "SBATCH_", "SRUN_")) and name != "SLURM_CONF"
    }
    try:
        yield
    finally:
        os.environ.update(inherited)


def find(job_id: str, submitted: float = 0.0) -> Queued | None:
    """A job in the queue, or None if it has left it; a job that Slurm does not answer about counts
    as running.

    ``submitted`` is when (seconds since the epoch): the queue is asked again for a job that is
    younger than the last answer, and for no other.
    """
    asked, queue = _queue(int(time.monotonic() / _PERIOD))
    if queue is not None and job_id not in queue and submitted >= asked:
        _queue.cache_clear()
        asked, queue = _queue(int(time.monotonic() / _PERIOD))
    return Queued("RUNNING", "Slurm does not answer") if queue is None else queue.get(job_id)


@lru_cache(maxsize=1)
def _queue(period: int) -> tuple[float, dict[str, Queued] | None]:
    """When Slurm was asked, and this user's jobs; None if it gives no answer."""
    asked = time.time()
    try:
        text = _ask("squeue", f"--user={os.getuid()}", "--noheader", "--format=%i|%T|%r")
    except FileNotFoundError:  # a run folder from a cluster, looked at elsewhere
        return asked, {}
    rows = [line.split("|") for line in (text or "").splitlines()]
    known = {row[0].strip(): Queued(row[1], row[2].strip()) for row in rows if len(row) == 3}
    return asked, None if text is None else known


def ended(job_id: str) -> str:
    """How a job that left the queue has ended, as far as Slurm still knows."""
    try:
        text = _ask("scontrol", "--oneliner", "show", "job", job_id) or ""
    except FileNotFoundError:
        text = ""
    facts = dict(field.split("=", 1) for field in text.split() if "=" in field)
    if "JobState" not in facts:
        return "Slurm knows it no more"
    told = [facts["JobState"], f"exit code {facts.get('ExitCode', '?')}"]
    if facts.get("Reason", "None") != "None":
        told.append(facts["Reason"])
    return ", ".join(told)


@lru_cache(maxsize=1)
def cluster_name() -> str | None:
    """The name of the cluster that jobs go to; None where there is none, or it gives no answer."""
    try:
        text = _ask("scontrol", "show", "config") or ""
    except FileNotFoundError:
        return None
    lines = (line.partition("=") for line in text.splitlines())
    return next((value.strip() for key, _, value in lines if key.strip() == "ClusterName"), None)


def forget() -> None:
    """Ask anew, for instance after changing to another cluster."""
    _queue.cache_clear()
    cluster_name.cache_clear()


def cancel(job_ids: Sequence[str]) -> None:
    """End jobs; those that have ended already are no error."""
    if job_ids:
        subprocess.run(["scancel", *job_ids], check=True, timeout=_ANSWER)


def _ask(*command: str) -> str | None:
    """What a program of Slurm prints; None if it fails or hangs."""
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER)
    except subprocess.TimeoutExpired:
        return None
    return None if answer.returncode else answer.stdout
