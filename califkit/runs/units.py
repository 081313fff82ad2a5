"""Resumable units of work: seeds, batches, progress, and a loop that continues where it ended."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TextIO, TypeVar

import numpy as np
from tqdm import tqdm

from califkit.runs.jsonl import RowLog
from califkit.runs.text import QUIET, say, short_time

_T = TypeVar("_T")


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
        say(f"{label}: {done} of {len(units)} batches are there, continuing")
    for number in progress(range(done, len(units)), label, len(units), done):
        log.append(compute(number, units[number]))


def progress(
    items: Iterable[_T], label: str, total: int | None, done: int = 0, to: TextIO | None = None
) -> Iterator[_T]:
    """The items, with progress on a terminal as a bar, elsewhere as a line every ten seconds: how
    many are done, of how many, and the time that is left at this pace.

    The last line comes in any case, on standard output. ``to`` standard error, for commands whose
    output is read by programs, it comes only where there were others.
    """
    if sys.stderr.isatty():
        quiet = bool(os.environ.get(QUIET))
        yield from tqdm(items, desc=label, total=total, initial=done, disable=quiet)
        return
    begin = last = time.monotonic()
    for count, item in enumerate(items, start=done + 1):
        yield item
        now = time.monotonic()
        if count == total and (to is None or last > begin):
            say(f"{label}: {count} of {total}", to)
        elif now - last > _EVERY:
            last = now
            of = ""
            if total is not None:
                left = (now - begin) / (count - done) * (total - count)
                of = f" of {total}, {short_time(left)} left"
            say(f"{label}: {count}{of}", to)


_EVERY = 10  # seconds


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
