"""From what a judge wrote to a verdict, or the reason why there is none.

Tolerant of form (code fences, prose around the JSON, reasoning before it), strict in substance:
only the labelled field of the last object counts, no verdict is chosen from several, and a value
that does not fit is never bent until it does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, ClassVar

from califkit.runs.text import short

_MARKS = re.compile(r'\\.|["{}]', re.DOTALL)
_DIGITS = re.compile(r"[0-9]{1,3}")
_JSON_START = re.compile(r"\s*(?:```\w*\s*)?\{")


class Unscored(Exception):
    """An answer without a usable verdict, and what could be read all the same."""

    status: ClassVar[str]

    def __init__(self, reason: str, value: Any = None) -> None:
        super().__init__(reason)
        self.value = value


class Unparsable(Unscored):
    """No JSON object, or not with the fields that were asked for."""

    status = "unparsable"


class OutOfRange(Unscored):
    """The field is there, but its value is none of those allowed."""

    status = "out_of_range"


def without_reasoning(text: str) -> str:
    """The answer part of what a judge wrote."""
    return _split(text)[1]


def outermost_objects(text: str) -> tuple[list[str], bool]:
    """The outermost balanced ``{...}`` of a text in order, and whether the text ends inside one.

    Braces inside JSON strings do not count. What is between the braces need not be valid JSON.
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


def find_object(text: str, *labels: str) -> dict[str, Any] | None:
    """The last JSON object of an answer if it has one of the labelled fields; None for prose.

    `Unparsable` if the answer sets out to be such an object and is broken, cut off or another one:
    it must not be searched for words. Also if a verdict before it differs from it, or stands in
    front of a ``</think>`` that nothing has opened: which one is meant would be a guess.
    """
    draft, answer = _split(text)
    drafted, _ = _labelled(draft, labels)
    if drafted:
        raise Unparsable(f"a verdict in front of </think>: {short(drafted[-1])}")
    verdicts, is_last = _labelled(answer, labels)
    if is_last:
        last = verdicts[-1]
        for other in verdicts[:-1]:
            if any(other.get(label) != last.get(label) for label in labels):
                raise Unparsable(f"two verdicts that differ: {short(other)} and {short(last)}")
        return last
    if _JSON_START.match(answer) or any(f'"{label}"' in answer for label in labels):
        named = " or ".join(map(repr, labels))
        raise Unparsable(f"no complete JSON object with {named} in {short(answer)}")
    return None


def read_object(text: str, *labels: str) -> dict[str, Any]:
    """As `find_object`; Unparsable for prose too."""
    value = find_object(text, *labels)
    if value is None:
        raise Unparsable(f"no JSON object in {short(text)}" if text.strip() else "empty answer")
    return value


def read_score(text: str) -> int:
    """The integer 1 to 10 in the field ``score``: a number or a string of digits.

    Nothing is rounded or clamped: 0, 11, 7.5, 7.0, "8/10", NaN, true, null are `OutOfRange`.
    """
    value = read_object(text, "score")["score"]
    number = int(value) if isinstance(value, str) and _DIGITS.fullmatch(value.strip()) else value
    if type(number) is not int or not 1 <= number <= 10:
        raise OutOfRange(f"score {short(value)} is no integer from 1 to 10")
    return number


def read_choice(text: str, key: str, choices: Sequence[str]) -> str:
    """The word in field ``key``, in lower case."""
    value = read_object(text, key)[key]
    word = value.strip().lower() if isinstance(value, str) else value
    if word not in choices:
        raise OutOfRange(f"{key} {short(value)} is none of {', '.join(choices)}")
    return word


def _split(text: str) -> tuple[str, str]:
    """Reasoning whose opening tag is not there (templates may write it), and the answer.

    A whole think block at the start is left out; one that does not end leaves nothing. A tag
    inside an object is part of a text there.
    """
    if text.lstrip().startswith("<think>"):
        text = text.partition("</think>")[2]
    draft, tag, answer = text.rpartition("</think>")
    if tag and not outermost_objects(draft)[1]:
        return draft, answer
    return "", text


def _labelled(text: str, labels: Sequence[str]) -> tuple[list[dict[str, Any]], bool]:
    """The objects of a text with one of the fields, and whether it ends with such a one."""
    objects, cut_off = outermost_objects(text)
    values = [_value(written) for written in objects]
    found = [v for v in values if isinstance(v, dict) and any(label in v for label in labels)]
    return found, bool(found) and not cut_off and found[-1] is values[-1]


def _value(text: str) -> Any:
    """The JSON value of a text, None if it is none. Line breaks inside strings are common."""
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return None
