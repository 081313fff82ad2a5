"""From one row of a data set to one `Instance`, or the reason why not."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from califkit.data.split import Split, cut_suffix, split_request
from califkit.runs.text import short
from califkit.verifiers import Constraint, ConstraintError, UnknownConstraintError

# A record that swallowed its successors carries their id lists and parameters as text.
_RUN_TOGETHER = re.compile(r"\t\[['\"]\w+:[\w-]+['\"][^\]\n]*\]\t\[\{")
_SWALLOWED_KEY = re.compile(r"^(\d+)\t", re.MULTILINE)


@dataclass(frozen=True)
class Instance:
    """One prompt and the constraints its response is checked against.

    `prompt` is what the policy sees, exactly as in the data; `request` is x alone and
    `constraint_text` c alone, both None where the prompt has no separate request or it was not
    found. `request_is_flagged` where `x` has to stand in for a missing request; results should
    also be shown without these rows (paper, ambiguity A14).
    """

    key: str
    prompt: str
    constraints: tuple[Constraint, ...]
    request: str | None
    constraint_text: str | None
    source: str
    request_is_flagged: bool = False

    @property
    def x(self) -> str:
        """The text a likelihood is conditioned on: the request, or the whole prompt (A14)."""
        return self.prompt if self.request is None else self.request


class UnusableRow(Exception):
    """Why a row cannot be used: `kind` for counting, the message for reading."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON; which of two values of one name is meant, nobody knows."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the name {short(twice)} comes twice")
    return found


def decode_line(line: bytes) -> Mapping[str, Any]:
    """The JSON object on one line of a file."""
    try:
        row = json.loads(line.decode("utf-8"), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise UnusableRow("bad JSON", f"not a line of JSON in UTF-8: {error}") from error
    if not isinstance(row, Mapping):
        raise UnusableRow("bad JSON", f"expected a JSON object, found {short(row)}")
    return row


def canonical_bytes(row: Mapping[str, Any]) -> bytes:
    """The row as one line of JSON: keys sorted, nulls dropped, 5.0 written as 5."""
    try:
        text = json.dumps(_canonical(row), sort_keys=True, ensure_ascii=False, default=str)
    except RecursionError as error:
        raise UnusableRow("bad field", "nested too deeply for a row of either layout") from error
    return text.encode("utf-8", "surrogatepass") + b"\n"


def _canonical(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _canonical(v) for k, v in value.items() if v is not None}
    if isinstance(value, list | tuple):
        return [_canonical(v) for v in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def row_key(row: Mapping[str, Any]) -> str:
    key = _required(row, "key")
    if not isinstance(key, str | int) or isinstance(key, bool):
        raise UnusableRow("bad field", f"field 'key' must be text or a number, not {short(key)}")
    return valid_text(str(key), "field 'key'", may_be_blank=True)


def to_instance(row: Mapping[str, Any], key: str, source: str) -> Instance:
    """Check a row of either layout and cut its prompt.

    A training row whose request cannot be cut off exactly is unusable. An evaluation row keeps
    its place in the benchmark: it is usable without a request, and flagged.
    """
    prompt, constraints = prompt_and_constraints(row)
    if _is_training(row):
        cut = _cut_training(row, prompt)
    else:
        cut = split_request(prompt, constraints)
    return Instance(
        key=key,
        prompt=prompt,
        constraints=constraints,
        request=cut.request,
        constraint_text=cut.constraint_text,
        source=source,
        request_is_flagged=cut.request is None,
    )


def _is_training(row: Mapping[str, Any]) -> bool:
    return "messages" in row or "ground_truth" in row


def prompt_and_constraints(row: Mapping[str, Any]) -> tuple[str, tuple[Constraint, ...]]:
    """What the policy sees and what its response is checked against, for a row of either layout."""
    if _is_training(row):
        prompt, ids, kwargs = _training_fields(row)
    elif "prompt" in row or "instruction_id_list" in row:
        prompt, ids, kwargs = _evaluation_fields(row)
    else:
        raise UnusableRow(
            "missing field",
            "neither the evaluation layout (prompt, instruction_id_list, kwargs) nor the training "
            "layout (messages, ground_truth, constraint); fields found: "
            + (", ".join(row) or "none"),
        )
    return prompt, _constraints(ids, kwargs)


def _evaluation_fields(row: Mapping[str, Any]) -> tuple[str, Any, Any]:
    prompt = valid_text(_required(row, "prompt"), "field 'prompt'")
    if _RUN_TOGETHER.search(prompt):
        swallowed = ", ".join(_SWALLOWED_KEY.findall(prompt)) or "unknown"
        raise UnusableRow(
            "run-together record",
            f"the prompt holds further records as text (keys {swallowed}): the row is broken",
        )
    return prompt, _required(row, "instruction_id_list"), _required(row, "kwargs")


def _training_fields(row: Mapping[str, Any]) -> tuple[str, Any, Any]:
    messages = _required(row, "messages")
    turns = messages if isinstance(messages, list) else []
    if len(turns) != 1 or not isinstance(turns[0], Mapping) or turns[0].get("role") != "user":
        found = short(messages)
        raise UnusableRow("bad field", f"field 'messages' must be one user turn, not {found}")
    prompt = valid_text(turns[0].get("content"), "the user turn's content")

    truth, verifier = _required(row, "ground_truth"), row.get("dataset", "ifeval")
    # Several verifiers per row come as parallel lists; only a single one is the layout we know.
    if isinstance(verifier, list) and len(verifier) == 1:
        verifier = verifier[0]
        truth = truth[0] if isinstance(truth, list) and len(truth) == 1 else truth
    if not isinstance(verifier, str) or verifier.lower() != "ifeval":
        raise UnusableRow("bad field", f"field 'dataset' must be 'ifeval', not {short(verifier)}")

    return prompt, *_ground_truth_fields(truth)


def _ground_truth_fields(truth: Any) -> tuple[Any, Any]:
    """Ids and parameters in a ``ground_truth``: a dict of both, or a list of one, or their text."""
    label = _literal(truth)
    if isinstance(label, list):
        if len(label) != 1:
            found = len(label)
            raise UnusableRow("bad field", f"field 'ground_truth' must hold one entry, not {found}")
        label = _literal(label[0])
    if not isinstance(label, Mapping):
        raise UnusableRow("bad field", f"field 'ground_truth' must hold a dict, not {short(label)}")
    ids = label.get("instruction_id", label.get("instruction_id_list"))
    if ids is None:
        raise UnusableRow("missing field", "'ground_truth' has no 'instruction_id'")
    return ids, _required(label, "kwargs")


def _literal(value: Any) -> Any:
    """The value behind the text of a Python literal or of JSON (never evaluated as code)."""
    if not isinstance(value, str):
        return value
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        pass
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        what = f"field 'ground_truth' is neither a Python literal nor JSON: {short(value)}"
        raise UnusableRow("bad field", what) from error


def _constraints(ids: Any, kwargs: Any) -> tuple[Constraint, ...]:
    if not isinstance(ids, list) or not ids:
        raise UnusableRow(
            "bad field", f"constraint ids: need a list of at least one, not {short(ids)}"
        )
    if not isinstance(kwargs, list) or len(kwargs) != len(ids):
        found = f"{len(kwargs)} entries" if isinstance(kwargs, list) else short(kwargs)
        raise UnusableRow("bad field", f"{len(ids)} constraint ids, but kwargs is {found}")
    built = []
    for position, (name, given) in enumerate(zip(ids, kwargs, strict=True), start=1):
        where = f"constraint {position} of {len(ids)}"
        if not isinstance(name, str):
            raise UnusableRow("bad field", f"{where}: the id must be text, not {short(name)}")
        if not isinstance(given, Mapping | None):
            raise UnusableRow("bad field", f"{where}: kwargs must be a dict, not {short(given)}")
        # Only null means "not given": 0, False and "" are values.
        present = {k: v for k, v in (given or {}).items() if v is not None}
        try:
            built.append(Constraint(name, present))
        except UnknownConstraintError as error:
            raise UnusableRow("unknown id", f"{where}: {error}") from error
        except ConstraintError as error:
            # A subclass says that data the checker itself needs is not installed.
            kind = "bad parameter" if type(error) is ConstraintError else "checker data missing"
            raise UnusableRow(kind, f"{where}: {error}") from error
    return tuple(built)


def _cut_training(row: Mapping[str, Any], prompt: str) -> Split:
    text = _required(row, "constraint")
    cut = cut_suffix(prompt, text.split("\t")) if isinstance(text, str) else None
    if cut is None or cut.request is None:
        what = "the texts of field 'constraint' are not exactly the end of the user turn"
        raise UnusableRow("request not recovered", f"{what}: {short(text)}")
    return cut


def valid_text(value: Any, what: str, may_be_blank: bool = False) -> str:
    """`value` if it is text that a tokenizer takes: not blank, no lone surrogates."""
    if not isinstance(value, str) or not (may_be_blank or value.strip()):
        raise UnusableRow("bad field", f"{what} must be text, not {short(value)}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise UnusableRow("bad field", f"{what} is not valid Unicode: {error}") from error
    return value


def _required(row: Mapping[str, Any], field: str) -> Any:
    if row.get(field) is None:
        raise UnusableRow("missing field", f"field {field!r} is missing")
    return row[field]


def constraints_json(constraints: Sequence[Constraint]) -> str:
    """Constraints as text that every adapter reads."""
    return json.dumps([{"id": c.id, "kwargs": dict(c.kwargs)} for c in constraints])


def read_constraints(ground_truth: Any) -> tuple[Constraint, ...]:
    """The constraints in a ground truth, as `constraints_json` writes it or as in training rows;
    `ConstraintError` says why it cannot be used."""
    if isinstance(ground_truth, str):
        return _read_text(ground_truth)
    return _read_value(ground_truth)


# A prompt comes once per rollout, so the same text comes many times.
@lru_cache(maxsize=4096)
def _read_text(text: str) -> tuple[Constraint, ...]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text  # a Python literal
    return _read_value(value)


def _read_value(value: Any) -> tuple[Constraint, ...]:
    try:
        pairs = value if isinstance(value, list) else []
        if pairs and all(isinstance(item, Mapping) and "id" in item for item in pairs):
            return _constraints([p["id"] for p in pairs], [p.get("kwargs") for p in pairs])
        return _constraints(*_ground_truth_fields(value))
    except UnusableRow as error:
        raise ConstraintError(f"ground truth that cannot be used: {error}") from error
