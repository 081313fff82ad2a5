"""Text of unknown origin as plain text: it cannot act on a terminal, a page or a spreadsheet."""

from __future__ import annotations

import textwrap
import unicodedata


def plain(text: str) -> str:
    """A response as harmless text: control characters and those that turn the writing direction
    become visible escapes; line breaks stay.

    >>> plain("red \\x1b[31m text")
    'red \\\\x1b[31m text'
    """
    return "".join(map(_visible, text.replace("\r\n", "\n").expandtabs(4)))


_TURNING = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


def _visible(character: str) -> str:
    hidden = unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp")
    if character == "\n" or not (hidden or unicodedata.bidirectional(character) in _TURNING):
        return character
    return character.encode("unicode_escape").decode("ascii")


def cut(text: str, limit: int) -> str:
    """The first ``limit`` characters, and how many more there are.

    >>> cut("abcdef", 4)
    'abcd [... 2 more characters]'
    """
    rest = len(text) - limit
    return text if rest <= 0 else f"{text[:limit]} [... {rest} more characters]"


def block(text: str, limit: int = 1400, width: int = 92) -> str:
    """A response cut, made plain, wrapped, and set off by a bar in front of every line."""
    lines: list[str] = []
    for line in plain(cut(text, limit)).split("\n"):
        lines += textwrap.wrap(line, width) or [""]
    return "\n".join(f"    | {line}".rstrip() for line in lines) if text else "    (empty)"


def code_span(text: str, limit: int = 600) -> str:
    """A response for a cell of a Markdown table: one line, cut, and no markup can act in it.

    The backticks also keep a spreadsheet from reading it as a formula.
    """
    line = plain(cut(text, limit)).replace("\n", " ⏎ ")
    longest = max((len(run) for run in _backticks(line)), default=0)
    fence = "`" * (longest + 1)
    return f"{fence} {line} {fence}"


def _backticks(line: str) -> list[str]:
    return "".join(c if c == "`" else " " for c in line).split()
