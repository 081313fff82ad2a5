"""Keyword arguments that upstream puts into a regular expression unescaped, run within bounds.

Several published checks search for a keyword as a pattern, so ``a.b`` finds ``axb`` and ``(``
raises ``re.error``; that has to stay. What must not stay is that ``(a+)+$`` hangs the process.
The number of steps a pattern can take is estimated from its quantifiers; within the budget it
runs on the standard ``re``, beyond it on ``regex`` with a time limit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from math import log2

# About 0.2 s of the standard engine. Plain words, the ordinary case, take one step a character.
_STEP_BUDGET_BITS = log2(2e7)
_TIME_LIMIT = 0.5

_TOKEN = re.compile(
    r"\\(?P<back>[1-9])|\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|(?P<group>\))?"
    r"(?:(?P<many>[*+]|\{\d*,\})|(?P<some>\{\d*,(?P<most>\d+)\})|(?P<fixed>\{\d+\})|(?P<maybe>\?))"
    r"\+?|(?P<branch>\|)|(?P<open>\(\?)|.",
    re.DOTALL,
)


_SPECIAL = re.compile(r"[\\^$.|?*+()\[{]|[^\x00-\x7f]")


class PatternTimeout(RuntimeError):
    """A pattern from a keyword argument ran into its time limit."""


@lru_cache(maxsize=1024)
def _growth(pattern: str) -> tuple[int, float] | None:
    """How the steps of `pattern` can grow: (unbounded repeats, bits of bounded choice).

    None when a group is repeated or referred back to: then the growth can be exponential. The
    estimate is on the high side; it decides which engine runs, never what matches.
    """
    unbounded, bits = 0, 0.0
    for token in _TOKEN.finditer(pattern):
        if token["back"] or (token["group"] and not token["maybe"]):
            return None
        if token["many"]:
            unbounded += 1
        elif token["some"]:
            bits += log2(int(token["most"]) + 1)
        elif token["maybe"] or token["branch"]:
            bits += 1
    return unbounded, bits


@lru_cache(maxsize=1024)
def _compiled(pattern: str, flags: int) -> re.Pattern[str]:
    return re.compile(pattern, flags)


@lru_cache(maxsize=256)
def _compiled_bounded(pattern: str, flags: int):
    import regex  # Only hostile or very long input comes here.

    return regex.compile(pattern, flags & (re.IGNORECASE | re.MULTILINE))


def _occurs(word: str, text: str, flags: int) -> bool:
    """Whether an ASCII word stands in an ASCII text: a quick no to most words."""
    return word in text or bool(flags & re.IGNORECASE) and word.lower() in text.lower()


def matches(
    before: str, raw: str, after: str, text: str, flags: int = 0
) -> Iterator[re.Match[str]]:
    """Non-overlapping matches in `text` of the pattern ``before + raw + after``.

    Parameters
    ----------
    before, after : str
        The checker's own parts of the pattern; they must be linear by themselves.
    raw : str
        The keyword argument, a pattern.
    flags : int
        ``re.IGNORECASE`` and ``re.MULTILINE`` are understood.

    Raises
    ------
    re.error
        The pattern is invalid.
    PatternTimeout
        It did not finish within half a second.
    """
    pattern = before + raw + after
    compiled = _compiled(pattern, flags)
    if text.isascii() and not _SPECIAL.search(raw) and not _occurs(raw, text, flags):
        return iter(())
    growth = _growth(raw)
    if growth is not None:
        unbounded, bits = growth
        if (1 + unbounded) * log2(len(text) + 1) + bits <= _STEP_BUDGET_BITS:
            return compiled.finditer(text)
    return _bounded(pattern, flags, text)


def _bounded(pattern: str, flags: int, text: str) -> Iterator[re.Match[str]]:
    try:
        yield from _compiled_bounded(pattern, flags).finditer(text, timeout=_TIME_LIMIT)
    except TimeoutError:
        raise PatternTimeout(
            f"pattern {pattern!r} took longer than {_TIME_LIMIT} s on {len(text)} characters"
        ) from None


def found(raw: str, text: str, flags: int = 0, before: str = "", after: str = "") -> bool:
    """Whether the pattern matches anywhere in `text`; see `matches`."""
    return next(matches(before, raw, after, text, flags), None) is not None


def count(raw: str, text: str, flags: int = 0) -> int:
    """Number of non-overlapping matches in `text`; see `matches`."""
    return sum(1 for _ in matches("", raw, "", text, flags))
