"""Constraints under which a short answer is no sign of anything."""

from __future__ import annotations

from collections.abc import Iterable

SHORT_OR_COPIED = frozenset(
    {
        *("format:options", "detectable_format:constrained_response", "combination:repeat_prompt"),
        *("repeat:repeat_change", "repeat:repeat_simple", "repeat:repeat_span"),
        *("copy:repeat_phrase", "copy:copying_simple", "copy:copy", "copy:copying_multiple"),
        "new:copy_span_idx",
    }
)
"""Ids that ask for a short, copied or repeated answer."""


def asks_for_short_or_copied(ids: Iterable[str]) -> bool:
    """Whether one of a prompt's constraint ids is among `SHORT_OR_COPIED`."""
    return not SHORT_OR_COPIED.isdisjoint(ids)
