"""Text for messages: in one line, and no longer than anybody reads."""

from __future__ import annotations

import os
from typing import TextIO

QUIET = "CALIFKIT_QUIET"
"""Name of the environment variable that silences `say`, also in jobs and worker processes."""


def say(line: str, to: TextIO | None = None) -> None:
    """Print a line of progress, at once, unless `QUIET` is set."""
    if not os.environ.get(QUIET):
        print(line, file=to, flush=True)


def one_line(value: object, limit: int = 300) -> str:
    """What ``str`` makes of a value, without line breaks."""
    return _cut(" ".join(str(value).split()), limit)


def short(value: object, limit: int = 100) -> str:
    """What ``repr`` makes of a value."""
    return _cut(repr(value), limit)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."


def short_time(seconds: float) -> str:
    """A time in one or two units: ``40 s``, ``3 min``, ``2 h 5 min``.

    >>> short_time(40.4), short_time(179), short_time(7500)
    ('40 s', '3 min', '2 h 5 min')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
