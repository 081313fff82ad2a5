"""Response files -> rows whose likelihood can be scored.

Rows have the layouts of `califkit.evaluation.responses`, or simply ``request`` and ``response``. Of
a row that has them, these columns are used too: ``request`` (x without its constraints),
``token_ids`` (as generated), ``constraints`` (as `califkit.data.rows.constraints_json` writes it;
only in rows that bring their own request), ``l0`` and ``l1`` (null: missing), ``finish_reason``.

Where a row has no ``request``, the constraints are cut off its prompt (`califkit.data.split`);
where that fails, the whole prompt stands in for the request. Every row says which.
"""

from __future__ import annotations

import codecs
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from califkit.data.load import DataError
from califkit.data.rows import (
    UnusableRow,
    decode_line,
    read_constraints,
    row_key,
    short,
    to_instance,
)
from califkit.data.split import split_request
from califkit.evaluation.responses import (
    IFBENCH,
    Prompt,
    Responses,
    load_prompts,
    numbered_lines,
    open_responses,
)
from califkit.verifiers import Constraint

REQUEST_SOURCES = ("column", "split", "prompt")
"""Where a request came from: given, cut off the prompt, or the whole prompt (ambiguity A14)."""


@dataclass(frozen=True)
class Scorable:
    """One response, checked, and what it is scored against; None where it is not known."""

    line: int
    key: str | None
    request: str
    request_source: str
    response: str
    token_ids: list[int] | None
    was_cut: bool
    constraints: tuple[Constraint, ...] | None
    l0: float
    l1: float


class ScorableFile:
    """The responses of a file that can be scored; iterating streams them in a fixed order.

    Parameters
    ----------
    path
        JSONL file of responses.
    constraints
        JSONL file of prompts with their constraints, or ``ifbench``. None takes the rows' own
        constraints; rows with neither a request nor constraints of their own belong to IFBench.

    Raises
    ------
    DataError
        For a file that cannot be used, when opened; for a row that cannot be, when iterated. The
        message names file, line, key and value.
    """

    def __init__(self, path: Path, constraints: str | None = None) -> None:
        self.path = path
        self.constraints = constraints
        self.joined: Responses | None = None
        self._requests: dict[str, tuple[str, str]] = {}
        if not path.is_file():
            raise DataError(f"{path}: {'is not a file' if path.exists() else 'no such file'}")
        if constraints is not None or not self._brings_requests_only():
            prompts = None if constraints is None else load_prompts(constraints)
            self.joined = open_responses(path, prompts)
        if constraints not in (None, IFBENCH):
            self._requests = _requests(Path(constraints))

    def _brings_requests_only(self) -> bool:
        first = next(numbered_lines(self.path), None)
        if first is None:
            raise DataError(f"{self.path}: holds no rows")
        line, _, raw = first
        try:
            row = decode_line(raw)
        except UnusableRow as problem:
            raise DataError(f"{self.path}, line {line}: {problem}") from problem
        own = {"instruction_id_list", "ground_truth"} & {*row, *_data(row)}
        return _column(row, "request") is not None and not own

    def check(self, vocabulary: int) -> int:
        """Read every row once, with its token ids held against the vocabulary; their number."""
        n = 0
        for row in self:
            n += 1
            if row.token_ids is not None and max(row.token_ids, default=0) >= vocabulary:
                raise DataError(
                    f"{self.path}, line {row.line}: 'token_ids' holds {max(row.token_ids)}, but "
                    f"the reference has {vocabulary} tokens; were they made by another model?"
                )
        if n == 0:
            raise DataError(
                f"{self.path}: no row can be scored; "
                "give the rows a 'request' column, or name their prompts with --constraints"
            )
        return n

    def __iter__(self) -> Iterator[Scorable]:
        line = 0
        try:
            if self.joined is None:
                for line, _, raw in numbered_lines(self.path):
                    row = decode_line(raw)
                    if _column(row, "response", required=True) is not None:
                        yield self._scorable(row, line, None, row["response"])
                return
            offsets = {number: offset for number, offset, _ in numbered_lines(self.path)}
            with self.path.open("rb") as file:
                for answer in self.joined:
                    if answer.response is None:
                        continue
                    line = answer.line
                    file.seek(offsets[line])
                    row = decode_line(file.readline().removeprefix(codecs.BOM_UTF8))
                    yield self._scorable(row, line, answer.prompt, answer.response)
        except UnusableRow as problem:
            raise DataError(f"{self.path}, line {line}: {problem}") from problem

    def _scorable(
        self, row: Mapping[str, Any], line: int, prompt: Prompt | None, response: Any
    ) -> Scorable:
        constraints = _own_constraints(row) if prompt is None else prompt.constraints
        request, source = _request(row, prompt, self._requests)
        return Scorable(
            line=line,
            key=row_key(_data(row)) if _data(row).get("key") is not None else None,
            request=request,
            request_source=source,
            response=_text(response, "response"),
            token_ids=_token_ids(_column(row, "token_ids")),
            was_cut=_column(row, "finish_reason") == "length",
            constraints=constraints,
            l0=_bound(row, "l0"),
            l1=_bound(row, "l1"),
        )


# --- fields of a row ------------------------------------------------------------------------------


def _data(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a row says of its prompt: an lm-eval sample keeps it in ``doc``."""
    doc = row.get("doc")
    return doc if isinstance(doc, Mapping) else row


def _column(row: Mapping[str, Any], name: str, required: bool = False) -> Any:
    if name in row:
        return row[name]
    if required:
        raise UnusableRow("missing field", f"field {name!r} is missing")
    return _data(row).get(name)


def _request(
    row: Mapping[str, Any], prompt: Prompt | None, known: Mapping[str, tuple[str, str]]
) -> tuple[str, str]:
    """The request, and which of `REQUEST_SOURCES` it came from."""
    given = _column(row, "request", required=prompt is None)
    if given is not None:
        return _text(given, "request", may_be_blank=False), "column"
    if prompt.prompt in known:
        return known[prompt.prompt]
    return _cut(_data(row), prompt)


def _cut(row: Mapping[str, Any], prompt: Prompt) -> tuple[str, str]:
    if "constraint" in row:  # a training row, which brings the texts to cut off
        request = to_instance(row, prompt.key or "", "").request
    else:
        request = split_request(prompt.prompt, prompt.constraints).request
    return (prompt.prompt, "prompt") if request is None else (request, "split")


def _requests(path: Path) -> dict[str, tuple[str, str]]:
    """Request and source of every prompt in a prompt file, by the prompt's text."""
    found = {}
    prompts = load_prompts(path).prompts
    for prompt, (line, _, raw) in zip(prompts, numbered_lines(path), strict=True):
        try:
            found[prompt.prompt] = _request(decode_line(raw), prompt, {})
        except UnusableRow as problem:
            raise DataError(f"{path}, line {line}: {problem}") from problem
    return found


def _own_constraints(row: Mapping[str, Any]) -> tuple[Constraint, ...] | None:
    value = row.get("constraints")
    if value is None:
        return None
    try:
        return read_constraints(value)
    except ValueError as error:  # an unusable constraint is one too
        raise UnusableRow("bad field", f"field 'constraints': {error}") from error


def _text(value: Any, name: str, may_be_blank: bool = True) -> str:
    if not isinstance(value, str) or not (may_be_blank or value.strip()):
        raise UnusableRow("bad field", f"field {name!r} must be text, not {short(value)}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise UnusableRow("bad field", f"field {name!r} is not valid Unicode: {error}") from error
    return value


def _token_ids(value: Any) -> list[int] | None:
    if value is None:
        return None
    if not isinstance(value, list) or any(type(i) is not int or i < 0 for i in value):
        raise UnusableRow("bad field", f"field 'token_ids' must list ids, not {short(value)}")
    return value


def _bound(row: Mapping[str, Any], name: str) -> float:
    """A bound in nats per token; NaN where it is missing."""
    value = _column(row, name)
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isinf(value):
        raise UnusableRow(
            "bad field", f"field {name!r} must be a number or null, not {short(value)}"
        )
    return float(value)
