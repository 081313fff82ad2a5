"""Options of submitit in `execution.slurm`: what is wrong with one is said when it is read."""

from __future__ import annotations

import re
from typing import Any

from califkit.runs.durations import checked_durations

_GPUS = re.compile(r"([A-Za-z][\w.-]*:)?[1-9]\d*")


def checked_slurm(options: dict[str, Any]) -> dict[str, Any]:
    """The options, durations in their units.

    Raises
    ------
    ValueError
        For one of another type, with key and value, and for those that this package sets itself or
        that would hide how a job ended.
    """
    for key, value in options.items():
        name = key.removeprefix("slurm_")
        if name in _CHECKS and not _CHECKS[name][0](value):
            raise ValueError(f"{key} = {value!r:.80}: {_CHECKS[name][1]}")
    return checked_durations(options)


def gpus_of(options: dict[str, Any]) -> int:
    """GPUs of a node, whatever their type; 0 without."""
    return int(str(options.get("gpus_per_node") or 0).rpartition(":")[2])


def _is_count(value: Any) -> bool:
    return type(value) is int and value > 0


def _is_gpus(value: Any) -> bool:
    return value in (0, None) or (type(value) in (int, str) and bool(_GPUS.fullmatch(str(value))))


def _is_size(value: Any) -> bool:
    return type(value) in (int, float) and value > 0


def _is_lines(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(line, str) for line in value)


_CHECKS = {
    "nodes": (_is_count, "must be a whole number above 0"),
    "tasks_per_node": (
        lambda value: type(value) is int and value == 1,
        "must be 1: the one task of a node starts its processes",
    ),
    "gpus_per_node": (_is_gpus, "must be a number of GPUs, with or without a type, as in h100:8"),
    "cpus_per_task": (_is_count, "must be a whole number above 0"),
    "mem_gb": (_is_size, "must be a number of gigabytes above 0, without quotes"),
    "setup": (_is_lines, "must be a list of lines, as in [module load cuda]"),
    "teardown": (lambda value: False, "would hide whether a job failed from those that need it"),
    "array_parallelism": (lambda value: False, "jobs are no arrays here"),
}
