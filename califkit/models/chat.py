"""Chats in the model's template, the same on every day and in every time zone.

Some templates print today's date (``strftime_now``: Llama 3, Granite). Then l would depend on when
and where it was computed, and the bounds would be those of another prompt than the rollouts. So
the date is pinned, for every text that is rendered here and, by `pin_date`, inside TRL.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

DATE = "2024-07-26"
"""The day that is always today: the one that Llama 3.1's template prints where it has no clock."""

_CLOCK = "strftime_now"
_DIRECTIVES = {
    "%Y": "2024",
    "%y": "24",
    "%C": "20",
    "%m": "07",
    "%-m": "7",
    "%B": "July",
    "%b": "Jul",
    "%h": "Jul",
    "%d": "26",
    "%-d": "26",
    "%e": "26",
    "%j": "208",
    "%A": "Friday",
    "%a": "Fri",
    "%u": "5",
    "%w": "5",
    "%U": "29",
    "%W": "30",
    "%V": "30",
    "%G": "2024",
    "%F": "2024-07-26",
    "%D": "07/26/24",
    "%x": "07/26/24",
    "%c": "Fri Jul 26 00:00:00 2024",
    "%X": "00:00:00",
    "%T": "00:00:00",
    "%R": "00:00",
    "%H": "00",
    "%-H": "0",
    "%I": "12",
    "%-I": "12",
    "%p": "AM",
    "%M": "00",
    "%-M": "0",
    "%S": "00",
    "%-S": "0",
    "%f": "000000",
    "%s": "1721952000",
    "%z": "",
    "%Z": "",
}
"""What ``strftime`` makes of each at midnight of `DATE`; written out, as the system's own depends
on time zone and language."""

_FORMATTED = (
    r"format.replace('%%', '\x00')"
    + "".join(f".replace('{name}', '{text}')" for name, text in _DIRECTIVES.items())
    + r".replace('\x00', '%')"
)
"""The same as an expression of the template language."""
_PINNED = re.compile(r"\{# the date is pinned: (\S+) #\}")


def render(
    tokenizer: PreTrainedTokenizerBase, turns: Sequence[Mapping[str, Any]], **options: Any
) -> str:
    """A conversation in the chat template, on `DATE`.

    Parameters
    ----------
    options
        As for ``apply_chat_template``.
    """
    template = pinned(tokenizer.get_chat_template())
    return tokenizer.apply_chat_template(turns, chat_template=template, tokenize=False, **options)


def pin_date(renderer: Any) -> None:
    """Let a tokenizer, or what else has a ``chat_template``, render on `DATE` whoever calls it.

    A policy that is saved with it keeps the date that it was trained with.
    """
    template = renderer.chat_template
    if isinstance(template, str):
        renderer.chat_template = pinned(template)
    elif isinstance(template, dict):  # several of them, by name
        renderer.chat_template = {name: pinned(text) for name, text in template.items()}


def pinned(template: str) -> str:
    """A template in which ``strftime_now`` knows `DATE` only; one that does not ask, or that has a
    date pinned already, is left as it is."""
    if _CLOCK not in template or _PINNED.match(template):
        return template
    # Behind the last tag one line break is dropped, so the template begins as it did.
    return (
        f"{{# the date is pinned: {DATE} #}}"
        f"{{% macro {_CLOCK}(format) %}}{{{{ {_FORMATTED} }}}}{{% endmacro %}}\n{template}"
    )


def template_date(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """The date on which chats are rendered, or None if the template asks for none."""
    found = _PINNED.match(pinned(tokenizer.get_chat_template()))
    return found[1] if found else None
