"""Resumable units of work: seeds, batches, progress, and a loop that continues where it ended."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from tqdm import tqdm

from califkit.runs.jsonl import RowLog


def unit_seed(*parts: int) -> int:
    """A 31-bit seed that depends on every part, for instance (stage seed, batch number)."""
    return int(np.random.SeedSequence(parts).generate_state(1)[0]) & 0x7FFFFFFF


def batches(items: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [items[i : i + size] for i in range(0, len(items), size)]


def run_units(
    log: RowLog,
    units: Sequence[Sequence[Any]],
    compute: Callable[[int, Sequence[Any]], list[dict[str, Any]]],
    label: str,
) -> None:
    """Compute the units that a row log does not hold yet: ``compute(number, unit)`` returns one row
    an item of the unit."""
    done = resume_units(log, [len(unit) for unit in units])
    if done:
        print(f"{label}: {done} of {len(units)} batches are there, continuing", flush=True)
    for number in progress(range(done, len(units)), label, len(units), done):
        log.append(compute(number, units[number]))


def progress(items: Sequence[int], label: str, total: int, done: int = 0) -> Iterator[int]:
    """Progress on a terminal as a bar, elsewhere as a line every half minute."""
    if sys.stderr.isatty():
        yield from tqdm(items, desc=label, total=total, initial=done)
        return
    last = time.monotonic()
    for count, item in enumerate(items, start=done + 1):
        yield item
        if time.monotonic() - last > 30 or count == total:
            print(f"{label}: {count} of {total}", flush=True)
            last = time.monotonic()


def resume_units(log: RowLog, unit_sizes: list[int]) -> int:
    """How many whole units of so many rows each a row log holds, after cutting a torn one."""
    rows = log.rows()
    done = kept = 0
    for size in unit_sizes:
        if kept + size > len(rows):
            break
        done, kept = done + 1, kept + size
    if kept < len(rows):
        log.keep(rows[:kept])
    return done
