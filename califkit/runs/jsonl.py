"""Files that survive a kill: JSON lines appended a unit at a time, JSON replaced as a whole."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO


class RowLog:
    """An append-only JSONL file; opening it cuts a torn last line, so every row is whole."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.exists():
            with path.open("rb+") as file:
                cut_torn_line(file.fileno())

    def rows(self) -> list[dict[str, Any]]:
        return read_jsonl(self.path) if self.path.exists() else []

    def append(self, rows: Iterable[dict[str, Any]]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(_lines(rows))
            file.flush()
            os.fsync(file.fileno())

    def keep(self, rows: list[dict[str, Any]]) -> None:
        """Replace the content atomically, for cutting rows of an unfinished unit."""
        replace_file(self.path, _lines(rows))


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """All rows of a JSONL file."""
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]


def finished_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSONL file that may be growing: all whole lines, none if there is no file."""
    lines = whole_lines(path) if path.exists() else ()
    return [json.loads(line) for line in lines if line.strip()]


def whole_lines(path: Path, start: int = 0) -> Iterator[bytes]:
    """Lines of a file that may be growing, from a byte on; a last line without its end is torn, by
    a kill or because it is just being written, and left out."""
    with path.open("rb") as file:
        file.seek(start)
        for line in file:
            if not line.endswith(b"\n"):
                return
            yield line


def lines_from_end(path: Path, block: int = 1 << 16) -> Iterator[bytes]:
    """Whole lines of a file, the last one first; reads no more than is asked for."""
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        rest = b""
        while end:
            start = max(0, end - block)
            file.seek(start)
            rest, *lines = (file.read(end - start) + rest).split(b"\n")
            if lines:
                lines.pop()  # what is behind the last end of a line: torn, or nothing
                rest += b"\n"
            yield from reversed(lines)
            end = start
        if rest.endswith(b"\n"):
            yield rest[:-1]


def cut_torn_line(file: int, block: int = 1 << 16) -> None:
    """Cut what a kill left of a last line; for whoever alone writes the file, by its descriptor.

    The end of the last whole line is looked for from the end: files may be large.
    """
    size = end = os.fstat(file).st_size
    while end:
        start = max(0, end - block)
        newline = os.pread(file, end - start, start).rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    if end != size:
        os.ftruncate(file, end)


def write_json(path: Path, value: Any) -> None:
    """Write JSON so that a reader sees the old file or the new one, never half of it."""
    replace_file(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def _lines(rows: Iterable[dict[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def replace_file(path: Path, text: str, errors: str = "strict") -> None:
    """Write a text as `replacing` does; ``errors`` as in `open`."""
    with replacing(path, errors) as file:
        file.write(text)


@contextmanager
def replacing(path: Path, errors: str = "strict") -> Iterator[TextIO]:
    """A text file that appears, or replaces the old one, when the block ends without an error."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8", errors=errors) as file:
            yield file
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
