"""From what a judge wrote to a verdict, or the reason why there is none.

Tolerant of form (code fences, prose around the JSON, reasoning before it), strict in substance:
only the labelled field of the last object counts, and a value that does not fit is never bent until
it does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from califkit.judges.json_text import outermost_objects

_DIGITS = re.compile(r"[0-9]{1,3}")
_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "boolean": (bool,),
}


class Unscored(Exception):
    """An answer without a usable verdict; the message is the reason."""

    status: ClassVar[str]


class Unparsable(Unscored):
    """No JSON object, or not with the fields that were asked for."""

    status = "unparsable"


class OutOfRange(Unscored):
    """The field is there, but its value is none of those allowed."""

    status = "out_of_range"


def read_object(text: str) -> dict[str, Any]:
    """The last balanced ``{...}`` of an answer as JSON.

    Raises
    ------
    Unparsable
        If there is none, if it is not JSON, or if the text ends inside an object.
    """
    objects, cut_off = outermost_objects(_after_thinking(text))
    if cut_off or not objects:
        what = "the JSON object is cut off" if cut_off else "no JSON object"
        raise Unparsable(f"{what} in {brief(text)}" if text.strip() else "the answer is empty")
    try:
        return json.loads(objects[-1], strict=False)  # line breaks inside strings are common
    except (ValueError, RecursionError) as error:
        raise Unparsable(f"no valid JSON ({error}): {brief(objects[-1])}") from error


def read_score(text: str) -> int:
    """The integer 1 to 10 in the field ``score``: a number or a string of digits.

    Only this labelled field counts, never a number in prose, and nothing is rounded or clamped.

    Raises
    ------
    Unparsable
        If there is no such field.
    OutOfRange
        For any other value: 0, 11, 7.5, 7.0, "8/10", NaN, true, null.
    """
    value = field(read_object(text), "score")
    number = int(value) if isinstance(value, str) and _DIGITS.fullmatch(value.strip()) else value
    if type(number) is not int or not 1 <= number <= 10:
        raise OutOfRange(f"score {brief(value)} is no integer from 1 to 10")
    return number


def read_choice(text: str, key: str, choices: Sequence[str]) -> str:
    """The word in field ``key``, in lower case.

    Raises
    ------
    Unparsable, OutOfRange
    """
    value = field(read_object(text), key)
    word = value.strip().lower() if isinstance(value, str) else value
    if word not in choices:
        raise OutOfRange(f"{key} {brief(value)} is none of {', '.join(choices)}")
    return word


def read_fields(text: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """The object, checked against a schema of types, enum, required, properties and items.

    Raises
    ------
    Unparsable
        For a missing field or a wrong type.
    OutOfRange
        For a value that is not in its enum.
    """
    value = read_object(text)
    _check(value, schema, "the answer")
    return value


def check_schema(schema: Mapping[str, Any]) -> None:
    """ValueError for a schema that not every endpoint takes, or that `read_fields` cannot check."""
    unknown = set(schema) - {"type", "enum", "required", "properties", "items"}
    if unknown or schema.get("type", "object") not in _TYPES:
        raise ValueError(
            f"judge schema {brief(schema)}: only the types {', '.join(_TYPES)} and the keywords "
            "type, enum, required, properties and items are understood everywhere"
        )
    for inner in schema.get("properties", {}).values():
        check_schema(inner)
    if "items" in schema:
        check_schema(schema["items"])


def field(value: Mapping[str, Any], key: str) -> Any:
    """``value[key]``; Unparsable if it is missing."""
    if key not in value:
        raise Unparsable(f"no field {key!r} in {brief(value)}")
    return value[key]


def brief(value: Any) -> str:
    """A value as one short piece of a message."""
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."


def _check(value: Any, schema: Mapping[str, Any], where: str) -> None:
    if "enum" in schema and value not in schema["enum"]:
        raise OutOfRange(f"{where}: {brief(value)} is none of {brief(schema['enum'])}")
    wanted = schema.get("type")
    if wanted is not None:
        fits = isinstance(value, _TYPES[wanted])
        if not fits or (isinstance(value, bool) and wanted != "boolean"):
            raise Unparsable(f"{where}: {brief(value)} is no {wanted}")
    for key in schema.get("required", ()):
        field(value, key)
    for key, inner in schema.get("properties", {}).items():
        if key in value:
            _check(value[key], inner, key)
    if "items" in schema:
        for number, item in enumerate(value):
            _check(item, schema["items"], f"{where}[{number}]")


def _after_thinking(text: str) -> str:
    """What follows a think block at the start; nothing, if the block does not end."""
    if not text.lstrip().startswith("<think>"):
        return text
    return text.partition("</think>")[2]
