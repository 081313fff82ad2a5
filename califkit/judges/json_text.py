"""JSON objects in a text around which a model wrote prose, code fences or more objects."""

from __future__ import annotations

import re

_MARKS = re.compile(r'\\.|["{}]', re.DOTALL)


def outermost_objects(text: str) -> tuple[list[str], bool]:
    """The outermost balanced ``{...}`` of a text in order, and whether the text ends inside one.

    Braces inside JSON strings do not count. What is between the braces need not be valid JSON.
    Takes linear time.
    """
    found = []
    start = depth = 0
    in_string = False
    for match in _MARKS.finditer(text):
        mark = match[0]
        if depth == 0:
            if mark == "{":
                start, depth, in_string = match.start(), 1, False
        elif mark == '"':
            in_string = not in_string
        elif not in_string:
            depth += (mark == "{") - (mark == "}")
            if depth == 0:
                found.append(text[start : match.end()])
    return found, depth > 0
