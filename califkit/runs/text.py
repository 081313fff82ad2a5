"""Text for messages: in one line, and no longer than anybody reads."""

from __future__ import annotations


def one_line(value: object, limit: int = 300) -> str:
    """What ``str`` makes of a value, without line breaks."""
    return _cut(" ".join(str(value).split()), limit)


def short(value: object, limit: int = 100) -> str:
    """What ``repr`` makes of a value."""
    return _cut(repr(value), limit)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."
