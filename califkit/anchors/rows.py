"""The reference answers behind the bounds, as rows on disk, and what can be wrong with one.

Answers are drawn in *units* (batches), numbered over the whole run. One process appends to
``draws.jsonl``; shard i of n appends to ``draws-<i>-of-<n>.jsonl`` and may run beside the others.
Every row carries its unit, so what is done is the union over all files, whoever wrote them, and a
run may be continued with another number of shards. A file is changed by the process that holds its
lock alone; everybody else passes over a torn end.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from califkit.data.load import DataError
from califkit.runs.jsonl import whole_lines

Shard = tuple[int, int]
"""Index and count: shard (1, 4) takes the units 1, 5, 9, ..."""

SIDES = ("constrained", "natural")

NEAR_EMPTY = 10  # tokens
LOOP_WORDS = 50
LOOP_DISTINCT = 0.15
LOOP_PHRASE = 8  # words


class AnchorError(DataError):
    """Bounds that cannot be used: damaged, of other settings, or of other prompts."""


def shard_name(shard: Shard) -> str:
    """File name of a shard's rows."""
    index, count = shard
    if not 0 <= index < count:
        raise AnchorError(f"shard {index} of {count}: the index runs from 0 to {count - 1}")
    return "draws.jsonl" if count == 1 else f"draws-{index}-of-{count}.jsonl"


def row_files(folder: Path) -> list[Path]:
    """All files with rows of a run, in a fixed order."""
    return sorted(folder.glob("draws*.jsonl"))


def read_draws(folder: Path) -> Iterator[dict[str, Any]]:
    """Every answer of a run once, as a stream; memory grows by a small key an answer."""
    seen = set()
    for path in row_files(folder):
        for row, _ in _rows(path):
            name = (row["key"], row["side"], row["draw"])
            if name not in seen:
                seen.add(name)
                yield row


def done_units(folder: Path, sizes: Sequence[int]) -> set[int]:
    """Numbers of the units that some file holds whole; ``sizes[i]`` is the rows of unit i."""
    done = set()
    for path in row_files(folder):
        counts = Counter(row["unit"] for row, _ in _rows(path))
        done |= {unit for unit, count in counts.items() if count == sizes[unit]}
    return done


def cut_torn_end(path: Path, sizes: Sequence[int]) -> None:
    """Cut what a kill left of a line and of a unit; only for the holder of the file's lock.

    Units are appended one at a time, so only the last can be torn.
    """
    if not path.exists():
        return
    unit, start, end, rows = None, 0, 0, 0
    for row, length in _rows(path):
        if row["unit"] != unit:
            unit, start, rows = row["unit"], end, 0
        rows += 1
        end += length
    if unit is not None and rows < sizes[unit]:
        end = start
    with path.open("rb+") as file:
        file.truncate(end)


def _rows(path: Path) -> Iterator[tuple[dict[str, Any], int]]:
    """Rows and their lengths in bytes, up to a torn last line."""
    for number, line in enumerate(whole_lines(path), start=1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise AnchorError(f"{path}, line {number}: not JSON: {error}") from error
        yield row, len(line)


def defect(answer: str, n_tokens: int) -> str:
    """What is wrong with an answer: ``empty`` (no visible text), ``one_token``, ``near_empty`` (two
    to nine tokens), ``loop``, the first that fits; else ``""``."""
    if not answer.strip():
        return "empty"
    if n_tokens == 1:
        return "one_token"
    if n_tokens < NEAR_EMPTY:
        return "near_empty"
    return "loop" if is_loop(answer) else ""


def is_loop(text: str) -> bool:
    """Whether a text of 50 words or more goes round in circles.

    Either fewer than 15 % of its words are distinct, or one phrase of eight words, counted without
    overlap, covers more than half of it.
    """
    words = text.split()
    if len(words) < LOOP_WORDS:
        return False
    if len(set(words)) / len(words) < LOOP_DISTINCT:
        return True
    counts: Counter[tuple[str, ...]] = Counter()
    free_from: dict[tuple[str, ...], int] = {}
    for start in range(len(words) - LOOP_PHRASE + 1):
        phrase = tuple(words[start : start + LOOP_PHRASE])
        if start >= free_from.get(phrase, 0):
            counts[phrase] += 1
            free_from[phrase] = start + LOOP_PHRASE
    return max(counts.values()) * LOOP_PHRASE > len(words) / 2
