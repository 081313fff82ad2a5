"""Keywords in a text: as the patterns they are upstream, run within bounds, and taken literally.

Several published checks put a keyword into a regular expression unescaped, so ``a.b`` finds
``axb`` and ``(`` raises ``re.error``; that has to stay. What must not stay is that ``(a+)+$`` hangs
the process. The number of steps a pattern can take is estimated from its quantifiers; within the
budget it runs on the standard ``re``, beyond it on ``regex`` with a time limit. Most keywords are
plain words, and those are looked up, so that long lists of them cost little.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from math import log2

from califkit.verifiers.text import Text, fold

# About 0.2 s of the standard engine. Plain words, the ordinary case, take one step a character.
_STEP_BUDGET_BITS = log2(2e7)
_TIME_LIMIT = 0.5

_TOKEN = re.compile(
    r"\\(?P<back>[1-9])|\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|(?P<group>\))?"
    r"(?:(?P<many>[*+]|\{\d*,\})|(?P<some>\{\d*,(?P<most>\d+)\})|(?P<fixed>\{\d+\})|(?P<maybe>\?))"
    r"\+?|(?P<branch>\|)|(?P<open>\(\?)|.",
    re.DOTALL,
)
_SPECIAL = re.compile(r"[\\^$.|?*+()\[{]")
_WORD = re.compile(r"\w+")


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


def matches(
    before: str, raw: str, after: str, text: Text, flags: int = re.IGNORECASE
) -> Iterator[re.Match[str]]:
    """Non-overlapping matches in `text` of the pattern ``before + raw + after``.

    `raw` is the keyword argument; `before` and `after` are the checker's own parts and must be
    linear by themselves. Of `flags`, ``re.IGNORECASE`` and ``re.MULTILINE`` are understood. Raises
    `re.error` for an invalid pattern, `PatternTimeout` for one that takes over half a second.
    """
    if not _SPECIAL.search(raw) and fold(raw) not in text.folded:
        return iter(())  # a quick no to most plain words, before anything is compiled
    pattern = before + raw + after
    compiled = _compiled(pattern, flags)
    growth = _growth(raw)
    if growth is not None:
        unbounded, bits = growth
        if (1 + unbounded) * log2(len(text.raw) + 1) + bits <= _STEP_BUDGET_BITS:
            return compiled.finditer(text.raw)
    return _bounded(pattern, flags, text.raw)


def _bounded(pattern: str, flags: int, text: str) -> Iterator[re.Match[str]]:
    try:
        yield from _compiled_bounded(pattern, flags).finditer(text, timeout=_TIME_LIMIT)
    except TimeoutError:
        raise PatternTimeout(
            f"pattern {pattern!r} took longer than {_TIME_LIMIT} s on {len(text)} characters"
        ) from None


def found(raw: str, text: Text) -> bool:
    """Whether the pattern matches anywhere, ignoring case; see `matches`."""
    if raw in text.raw and not _SPECIAL.search(raw):
        return True
    return next(matches("", raw, "", text), None) is not None


def found_word(raw: str, text: Text) -> bool:
    """Whether the pattern matches between two word boundaries, ignoring case; see `matches`."""
    known = _is_run(raw, text)
    return next(matches(r"\b", raw, r"\b", text), None) is not None if known is None else known


def count(raw: str, text: Text) -> int:
    """Number of non-overlapping matches, ignoring case; see `matches`."""
    return sum(1 for _ in matches("", raw, "", text))


def found_literal(word: str, text: Text) -> bool:
    """Whether a word or phrase occurs, ignoring case and not inside a longer word."""
    known = _is_run(word, text)
    return count_literal(word, text) > 0 if known is None else known


def count_literal(word: str, text: Text) -> int:
    """Occurrences of a word or phrase, ignoring case and not inside a longer word."""
    literal = rf"(?<!\w){re.escape(word)}(?!\w)"
    return sum(1 for _ in re.finditer(literal, text.raw, re.IGNORECASE))


def _is_run(word: str, text: Text) -> bool | None:
    r"""Whether the word is one of the text's ``\w+`` runs, ignoring case.

    None where only a pattern can tell: the word has other characters, or what folds alike is not
    ASCII (the pattern ``ss`` does not match ``ß``).
    """
    if not _WORD.fullmatch(word):
        return None
    run = text.folded_words.get(fold(word))
    if run is None:
        # The one character that is in no run and matches a letter, iota, all the same.
        return None if "\u0345" in text.raw else False
    return True if (word + run).isascii() else None
