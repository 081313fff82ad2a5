"""The constraint ids in words, made from the registry.

``python -m califkit.verifiers.docs > docs/constraints.md`` writes the table of the documentation.
"""

from __future__ import annotations

import json
import string
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from califkit.verifiers.registry import REGISTRY, SUITES, Spec, spec, suite_ids

_MAX_SHOWN = 160

_INTRODUCTION = """\
# Constraints

Generated from the registry by `python -m califkit.verifiers.docs`; do not edit.

`published` verdicts are those of the published evaluation and reward code. Where that code decides
against what its instruction asks, `repaired` verdicts differ, and the row says how. Every row has
a response that passes and one that fails, under both semantics; a repaired row also has responses
on which the two disagree.
"""

_TITLES = {
    "ifeval": "IFEval",
    "iftrain": "Training constraints of IFBench",
    "ifbench": "IFBench test constraints",
}
_COLUMNS = (
    "id",
    "what the instruction asks",
    "passes",
    "fails",
    "what the published check does instead",
    "what the repair does",
    "published passes, repaired fails",
    "published fails, repaired passes",
)


def markdown() -> str:
    parts = [_INTRODUCTION]
    for suite, title in _TITLES.items():
        ids = suite_ids(suite)
        n_repaired = sum(REGISTRY[id].repaired is not None for id in ids)
        parts.append(f"## {title}: {len(ids)} ids, {n_repaired} repaired\n")
        parts.append(_row(_COLUMNS))
        parts.append(_row(["---"] * len(_COLUMNS)))
        parts.extend(_row(_cells(REGISTRY[id])) for id in ids)
        parts.append("")
    return "\n".join(parts)


def _cells(entry: Spec) -> list[str]:
    example, contrast = entry.example, entry.contrast
    cells = [
        f"`{entry.id}`",
        _text(_template(entry)),
        _example(example.kwargs, example.passes),
        _example({}, example.fails),
    ]
    if contrast is None:
        return [*cells, "", "", "", ""]
    kwargs = {} if contrast.kwargs == example.kwargs else contrast.kwargs
    shown = [_example(kwargs, r) if r is not None else "" for r in (contrast.lost, contrast.gained)]
    return [*cells, _text(entry.defect), _text(entry.repair), *shown]


def _template(entry: Spec) -> str:
    """The instruction with ``{name}`` where a keyword argument goes."""
    parts = string.Formatter().parse(entry.instruction)
    return "".join(text + (f"{{{name}}}" if name else "") for text, name, _, _ in parts)


def _example(kwargs: Mapping[str, Any], response: str) -> str:
    """A response as code, behind its keyword arguments if there are any."""
    shown = _code(response)
    return f"{_code(_json(kwargs))} {shown}" if kwargs else shown


def _code(text: str) -> str:
    """Inline code that stays in its table cell: line breaks as ``\\n``, long text cut."""
    text = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t")
    if len(text) > _MAX_SHOWN:
        text = text[: _MAX_SHOWN - 3] + "..."
    fence = "``" if "`" in text else "`"
    pad = " " if "`" in text or text != text.strip() else ""
    return f"{fence}{pad}{text.replace('|', chr(92) + '|')}{pad}{fence}"


def _text(text: str) -> str:
    """Prose in a table cell; angle brackets and stars outside code must not act as markup."""
    parts = text.split("`")
    for i in range(0, len(parts), 2):
        for mark in "*_<>[]~":
            parts[i] = parts[i].replace(mark, f"\\{mark}")
    return "`".join(parts).replace("|", "\\|").replace("\n", " ")


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def describe(id: str) -> str:
    """What there is to know of one id, as plain text; UnknownConstraintError lists near names."""
    entry = spec(id)
    lines = [
        entry.id,
        f"suite: {entry.suite}",
        f"instruction: {_template(entry)}",
        *(f"parameter {name}: {param.describe()}" for name, param in entry.params.items()),
        f"example: {_json(entry.example.kwargs)}",
        f"  passes: {_json(entry.example.passes)}",
        f"  fails:  {_json(entry.example.fails)}",
    ]
    if contrast := entry.contrast:
        lines += [f"published: {entry.defect}", f"repaired: {entry.repair}"]
        if contrast.lost is not None:
            lines.append(f"  passes published only: {_json(contrast.lost)}")
        if contrast.gained is not None:
            lines.append(f"  passes repaired only: {_json(contrast.gained)}")
        if contrast.kwargs != entry.example.kwargs:
            lines.append(f"  with: {_json(contrast.kwargs)}")
    return "\n".join(lines)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def listing() -> str:
    """All ids by suite; repaired ones are marked."""
    lines = []
    for suite in SUITES:
        if ids := suite_ids(suite):
            lines.append(f"{suite} ({len(ids)}; * = the repaired verdict can differ)")
        lines += [f"  {id}{' *' if REGISTRY[id].repaired else ''}" for id in ids]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(markdown())
