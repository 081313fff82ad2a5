"""Answers of judges on disk: append-only JSONL, safe to kill and to share between processes.

A row is appended under a file lock in a single write; a torn line that a dying process leaves is
passed over by readers and cut off by the next writer. Where the file system has no such locks, or
one is not given back, a process appends to a file of its own beside the shared one.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import json
import os
import platform
import time
from collections import Counter
from pathlib import Path
from typing import Any

from califkit.runs.jsonl import cut_torn_line, whole_lines
from califkit.runs.judge_settings import JudgeModel
from califkit.runs.locks import NO_LOCKS
from califkit.runs.paths import runs_dir

_PATIENCE_S = 5.0  # a lock is held for the writing of one row


class Cache:
    """Rows by their ``key``; the last row of a key counts. Without a path, kept in memory."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.rows: dict[str, dict[str, Any]] = {}
        self._read: Counter[Path] = Counter()  # bytes of whole lines read so far
        self._lines: Counter[Path] = Counter()
        self._shares = True
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)

    def refresh(self) -> None:
        """Read the lines that were appended since the last time, also by other processes."""
        if self.path is None:
            return
        beside = self.path.parent.glob(f"{glob.escape(self.path.name)}.*.jsonl")
        for path in (self.path, *sorted(beside)):
            if not path.exists():
                continue
            for line in whole_lines(path, self._read[path]):
                self._lines[path] += 1
                self._read[path] += len(line)
                row = _row(line, f"{path}: line {self._lines[path]}")
                self.rows[row["key"]] = row

    def add(self, row: dict[str, Any]) -> None:
        self.rows[row["key"]] = row
        if self.path is None:
            return
        line = json.dumps(row).encode("ascii") + b"\n"
        if self._shares:
            try:
                _append(self.path, line, locked=True)
                return
            except OSError as error:
                if error.errno not in NO_LOCKS:
                    raise
                self._shares = False
        own = f"{self.path.name}.{platform.node()}-{os.getpid()}.jsonl"
        _append(self.path.with_name(own), line, locked=False)


def _append(path: Path, line: bytes, locked: bool) -> None:
    file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        if locked:
            _lock(file)
        cut_torn_line(file)
        written = os.write(file, line)
        if written != len(line):  # a full disk: the rest would make a torn line in the middle
            os.ftruncate(file, os.fstat(file).st_size - written)
            raise OSError(f"{path}: wrote {written} of {len(line)} bytes")
        os.fsync(file)
    finally:
        os.close(file)  # also gives the lock back


def _lock(file: int) -> None:
    """Lock a file; an OSError of `NO_LOCKS` if its holder does not let go."""
    ends = time.monotonic() + _PATIENCE_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as error:
            if time.monotonic() > ends:
                raise OSError(errno.ENOLCK, "the lock is not given back") from error
            time.sleep(0.01)


def _row(line: bytes, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
        if isinstance(row["key"], str) and isinstance(row["text"], str):
            return row
    except (ValueError, KeyError, TypeError):
        pass  # reported below
    raise ValueError(f"{where} is no row of a judge cache: {line[:80]!r}")


def judge_cache(profile: str, judge: JudgeModel) -> Path:
    """Where the verdicts of a judge are kept, below the runs of the profile."""
    return runs_dir() / profile / "judges" / f"{judge.name}.jsonl"
