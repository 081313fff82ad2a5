"""Examples in docstrings as code in the API reference of the site: an extension of griffe."""

from __future__ import annotations

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"(?m)^>>> .*(?:\n(?!\s*$).*)*")


class FencedExamples(griffe.Extension):
    """Puts lines that begin with ``>>>``, and what they print, into a fenced block."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring:
            obj.docstring.value = _EXAMPLE.sub(_fenced, obj.docstring.value)


def _fenced(example: re.Match[str]) -> str:
    return f"\n```pycon\n{example[0]}\n```\n"
