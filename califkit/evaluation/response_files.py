"""The one reader of response files: for the commands verify, score and audit.

A response file is JSONL. Each row has one of these layouts, told apart row by row:

* ``prompt, response`` (IFEval, IFBench) or ``key, response``: the constraints come from a prompt
  file, joined by the prompt's text or by the key;
* an evaluation or training row (see `califkit.data.load`) with a ``response`` (or ``prediction``)
  beside its own constraints;
* ``request, response``, with ``constraints`` (as `califkit.data.rows.constraints_json` writes them)
  or, where rows are only to be scored, without;
* a sample of ``lm-eval --log_samples``: ``doc`` with the evaluation row, ``filtered_resps`` or
  ``resps`` with the text. The answers of each ``filter`` are a result of their own.

``finish_reason`` (or ``stop_reason``) says which answers were cut at the token limit. For scoring,
these columns are used too: ``request`` (x without its constraints), ``token_ids`` (as generated),
``l0`` and ``l1`` (null: missing). Where a row has no ``request``, the constraints are cut off its
prompt (`califkit.data.split`); where that fails, the whole prompt stands in for the request.

A file is read twice: once to check every row and to see where the responses stand, and once, as a
stream, for their texts. So unusable input shows before anything expensive happens, and memory does
not grow with the length of the responses.
"""

from __future__ import annotations

import codecs
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from califkit.anchors.region import read_bound
from califkit.data.load import DataError, OnError, Quarantined, load_ifbench_wheel, numbered_lines
from califkit.data.rows import (
    UnusableRow,
    decode_line,
    prompt_and_constraints,
    read_constraints,
    row_key,
    short,
    to_instance,
    valid_text,
)
from califkit.data.split import split_request
from califkit.models.reasoning import Cuts
from califkit.verifiers import Constraint, ConstraintError

IFBENCH = "ifbench"
"""Name of the prompts that come with the IFBench wheel."""

_RESPONSE_FIELDS = ("response", "prediction")
_CUT = ("length", "max_tokens")
_MAX_NAMES = 1000


@dataclass(frozen=True)
class Prompt:
    """A prompt that wants a response, and what the response is checked against.

    A row of request and response has its request for a prompt, and no constraints (None) if it
    does not name any. ``request`` and ``request_source`` are there for scoring only; the source is
    ``column`` (given), ``split`` (cut off the prompt) or ``prompt`` (the whole one; ambiguity A14).
    """

    key: str | None
    prompt: str
    constraints: tuple[Constraint, ...] | None
    request: str | None = None
    request_source: str | None = None

    @property
    def name(self) -> str:
        """How a message calls it: by its key, else by how it starts."""
        return _name(self.key, self.prompt)


@dataclass(frozen=True)
class Row(Prompt):
    """A prompt with one response to it; the rest is None (bounds: NaN) where the row does not say.

    ``response`` is None, and ``line`` too, where there was no response. ``was_cut`` says whether
    generation ended at the token limit.
    """

    response: str | None = None
    line: int | None = None
    filter: str | None = None
    was_cut: bool | None = None
    token_ids: list[int] | None = None
    l0: float = math.nan
    l1: float = math.nan


@dataclass
class Named:
    """How many rows there are of some kind, and what the first of them are called."""

    n: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, name: str) -> None:
        self.n += 1
        if self.n <= _MAX_NAMES:
            self.first.append(name)


@dataclass(frozen=True)
class _Place:
    """Where a response stands in its file, and the prompt it answers; None: the row's own."""

    prompt: Prompt | None
    offset: int
    line: int
    is_exact: bool = True
    is_null: bool = False


@dataclass
class Responses:
    """A checked response file; iterating streams its `Row`.

    With a prompt file they come in the order of the prompts, one each (and each filter); with the
    rows' own constraints they come in the order of the file, every row.

    ``constraints`` is what `open_responses` was given, ``source`` what it took; ``scoring`` says
    whether rows come with what scoring needs. ``cuts`` counts the responses
    that have markup.
    """

    path: Path
    constraints: str | None
    source: str
    scoring: bool
    filters: list[str | None] = field(default_factory=list)  # of lm-eval; [None] in other layouts
    n_answered: int = 0
    says_cut: bool = False  # whether some row says how its response ended
    missing: Named = field(default_factory=Named)  # prompts without a response
    unmatched: Named = field(default_factory=Named)  # responses without a prompt
    identical: Named = field(default_factory=Named)  # responses that an earlier row gives, too
    replaced: int = 0  # responses that a later one to the same prompt replaced
    left_out: list[Quarantined] = field(default_factory=list)  # unusable rows of either file
    cuts: Cuts = field(default_factory=Cuts)
    largest_id: tuple[int, int] = (-1, 0)  # and its line
    _places: list[_Place | Row] = field(default_factory=list)  # a Row: without a response

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Row]:
        with self.path.open("rb") as file:
            for place in self._places:
                if isinstance(place, Row):
                    yield place
                    continue
                file.seek(place.offset)
                row = decode_line(file.readline().removeprefix(codecs.BOM_UTF8))
                yield _answered(row, place.line, place.prompt, self.scoring)

    def _add(self, row: Row) -> None:
        """Count a checked row."""
        self.n_answered += row.response is not None
        self.says_cut |= row.was_cut is not None
        self.cuts.add(row.response or "")
        self.largest_id = max(self.largest_id, (max(row.token_ids or [-1]), row.line))


def answered(rows: Iterable[Row]) -> Iterator[Row]:
    """The rows with a response."""
    return (row for row in rows if row.response is not None)


def open_responses(
    path: str | Path,
    constraints: str | Path | None = None,
    on_error: OnError = "raise",
    *,
    scoring: bool = False,
    filter: str | None = None,
) -> Responses:
    """Check a response file and join it with its prompts.

    Parameters
    ----------
    constraints
        What the responses answer: a prompt file, or ``ifbench``. None takes the rows' own
        constraints, if the first row has any (for scoring, a request of its own will do), else
        IFBench. A response belongs to the prompt with the same text, else with the same text but
        for outer whitespace; a row without prompt to the one with the same key. Of several
        responses to one prompt the last counts.
    on_error
        ``raise`` stops at the first unusable row, ``quarantine`` leaves it out and lists it.
    scoring
        Read and check also what scoring needs.
    filter
        Take only the samples of this filter of lm-eval.

    Raises
    ------
    DataError
        Naming file, line, key and value, for a file that cannot be read, holds no usable row, mixes
        rows with and without their own constraints, or has no response to any prompt.
    """
    path = _file(path)
    first = _first_row(path)
    given = None if constraints is None else str(constraints)
    if given is None and (_has_constraints(first) or (scoring and _has_request(first))):
        opened = Responses(path, given, str(path), scoring)
        _open_own(opened, _has_constraints(first), on_error, filter)
    else:
        prompts = load_prompts(given or IFBENCH, on_error, scoring)
        opened = Responses(path, given, prompts.source, scoring, left_out=prompts.left_out)
        _open_joined(opened, prompts.prompts, on_error, filter)
    if filter is not None:
        if filter not in opened.filters:
            known = ", ".join(map(str, opened.filters))
            raise DataError(f"{path}: has no samples of the filter {filter!r}; there are: {known}")
        opened.filters = [filter]
    if not opened.n_answered:
        if not opened.unmatched.n:
            raise DataError(f"{path}: holds no usable response, every one is null")
        raise DataError(
            f"{path}: none of its responses answers a prompt of {opened.source}; the first is "
            f"{opened.unmatched.first[0]}; name their prompts with --constraints"
        )
    return opened


def _open_own(
    opened: Responses, is_constrained: bool, on_error: OnError, filter: str | None
) -> None:
    seen: dict[tuple[str | None, str], dict[int, int]] = {}

    def take(raw: Mapping[str, Any], line: int, offset: int) -> None:
        if not _has_constraints(raw) and not (opened.scoring and _has_request(raw)):
            raise UnusableRow(
                "missing field",
                "has no constraints of its own, unlike the first row; name a prompt file"
                if is_constrained
                else "field 'request' is missing",
            )
        row = _answered(raw, line, None, opened.scoring)
        if row.filter not in opened.filters:
            opened.filters.append(row.filter)
        if filter not in (None, row.filter):
            return
        opened._places.append(_Place(None, offset, line))
        opened._add(row)
        if row.response is None:
            opened.missing.add(f"line {line}, {row.name}")
            return
        answers = seen.setdefault((row.filter, row.prompt.strip()), {})
        if (earlier := answers.setdefault(hash(row.response), line)) != line:
            opened.identical.add(f"line {line}, {row.name}: as line {earlier}")

    opened.left_out = _read(opened.path, take, on_error)


def _open_joined(
    opened: Responses, prompts: list[Prompt], on_error: OnError, filter: str | None
) -> None:
    index = _Index(prompts)
    places: dict[str | None, list[_Place | Row]] = {}
    n_matched = 0

    def take(raw: Mapping[str, Any], line: int, offset: int) -> None:
        nonlocal n_matched
        key, text, response = _key(raw), _prompt_text(raw), _response(raw)
        if key is None and text is None:
            raise UnusableRow("missing field", "neither 'prompt' nor 'key' is there")
        name = _filter(raw)
        if name not in opened.filters:
            opened.filters.append(name)
        if filter not in (None, name):
            return
        found, is_exact = index.find(key, text)
        if not found:
            opened.unmatched.add(f"line {line}, {_name(key, text)}")
            return
        n_matched += 1
        opened._add(_answered(raw, line, prompts[found[0]], opened.scoring))
        if name not in places:
            places[name] = [Row(**vars(prompt), filter=name) for prompt in prompts]
        known = places[name]
        for i in found:
            before = known[i]
            if is_exact or isinstance(before, Row) or not before.is_exact:
                known[i] = _Place(prompts[i], offset, line, is_exact, response is None)

    opened.left_out = [*opened.left_out, *_read(opened.path, take, on_error)]
    opened._places = [place for name in opened.filters for place in places.get(name, [])]
    lines = {place.line for place in opened._places if isinstance(place, _Place)}
    opened.replaced = n_matched - len(lines)
    for place in opened._places:
        if isinstance(place, Row):
            opened.missing.add(place.name)
        elif place.is_null:
            opened.missing.add(place.prompt.name)


class _Index:
    """Positions of prompts by text, by text without outer whitespace, and by key."""

    def __init__(self, prompts: Sequence[Prompt]) -> None:
        self.by_text: dict[str, list[int]] = {}
        self.by_stripped: dict[str, list[int]] = {}
        self.by_key: dict[str, list[int]] = {}
        for i, prompt in enumerate(prompts):
            self.by_text.setdefault(prompt.prompt, []).append(i)
            self.by_stripped.setdefault(prompt.prompt.strip(), []).append(i)
            if prompt.key is not None:
                self.by_key.setdefault(prompt.key, []).append(i)

    def find(self, key: str | None, text: str | None) -> tuple[list[int], bool]:
        """Positions of what a row answers, and whether it names them exactly."""
        if text is None:
            return self.by_key.get(key, []), True
        if text in self.by_text:
            return self.by_text[text], True
        return self.by_stripped.get(text.strip(), []), False


# --- prompt files ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Prompts:
    """The usable prompts of a source."""

    source: str
    prompts: list[Prompt]
    left_out: list[Quarantined]


def load_prompts(source: str | Path, on_error: OnError = "raise", scoring: bool = False) -> Prompts:
    """Prompts and constraints of a JSONL file of evaluation or training rows, or of ``ifbench``.

    Unlike `califkit.data.load.load_jsonl` it does not need to find the request inside the prompt,
    nor keys. ``ifbench`` is the installed wheel, whose broken record is always left out. Raises as
    `open_responses`.
    """
    if str(source) == IFBENCH:
        loaded = load_ifbench_wheel()
        prompts = [
            Prompt(i.key, i.prompt, i.constraints, i.x, "prompt" if i.request is None else "split")
            for i in loaded.instances
        ]
        return Prompts(loaded.source, prompts, loaded.quarantined)
    path = _file(source)
    prompts: list[Prompt] = []
    line_of: dict[str, int] = {}

    def take(row: Mapping[str, Any], line: int, offset: int) -> None:
        prompt = _prompt(row, scoring)
        if prompt.key is not None and (first := line_of.setdefault(prompt.key, line)) != line:
            raise UnusableRow("duplicate key", f"key was already used in line {first}")
        prompts.append(prompt)

    return Prompts(str(path), prompts, _read(path, take, on_error))


# --- rows -----------------------------------------------------------------------------------------


def _file(path: str | Path) -> Path:
    path = Path(path)
    if not path.is_file():
        raise DataError(f"{path}: {'is not a file' if path.exists() else 'no such file'}")
    return path


def _read(
    path: Path, take: Callable[[Mapping[str, Any], int, int], None], on_error: OnError
) -> list[Quarantined]:
    """Give every row to `take` with its line and offset; returns the rows that it refuses."""
    if on_error not in ("raise", "quarantine"):
        raise DataError(f"on_error={on_error!r}: must be 'raise' or 'quarantine'")
    left_out: list[Quarantined] = []
    n_rows = 0
    for line, offset, raw in numbered_lines(path):
        n_rows += 1
        key = None
        try:
            row = decode_line(raw)
            key = _key(row)
            take(row, line, offset)
        except UnusableRow as problem:
            if on_error == "raise":
                where = f"{path}, line {line}" + (f", key {key!r}" if key is not None else "")
                raise DataError(f"{where}: {problem}") from problem
            left_out.append(Quarantined(line, key, str(problem), problem.kind))
    if n_rows == len(left_out):
        raise DataError(f"{path}: holds no {'usable ' if left_out else ''}rows")
    return left_out


def _first_row(path: Path) -> Mapping[str, Any]:
    """The first row that can be told apart; the others are reported when the file is read."""
    for _, _, raw in numbered_lines(path):
        try:
            row = decode_line(raw)
            _data(row)
        except UnusableRow:
            continue
        return row
    return {}


def _answered(row: Mapping[str, Any], line: int, prompt: Prompt | None, scoring: bool) -> Row:
    """A row's answer to a prompt, or to the prompt that the row itself brings."""
    fields = vars(prompt or _prompt(row, scoring)) | {
        "response": _response(row),
        "line": line,
        "filter": _filter(row),
        "was_cut": _was_cut(row),
    }
    if scoring:
        if fields["response"] is not None:
            valid_text(fields["response"], "field 'response'", may_be_blank=True)
        if (request := _request(row)) is not None:
            fields |= {"request": request, "request_source": "column"}
        fields |= {name: _bound(row, name) for name in ("l0", "l1")}
        fields["token_ids"] = _token_ids(row)
    return Row(**fields)


def _prompt(row: Mapping[str, Any], scoring: bool) -> Prompt:
    """The prompt that a row brings; for scoring with its request."""
    data, key = _data(row), _key(row)
    if not _is_benchmark_row(data) and (request := _request(row)) is not None:
        return Prompt(key, request, _own_constraints(row), request, "column")
    text, constraints = prompt_and_constraints(data)
    if not scoring:
        return Prompt(key, text, constraints)
    request = _request(row)
    source = "column"
    if request is None:
        source = "split"
        if "constraint" in data:  # a training row, which brings the texts to cut off
            request = to_instance(data, key or "", "").request
        else:
            request = split_request(text, constraints).request
    if request is None:
        request, source = text, "prompt"
    return Prompt(key, text, constraints, request, source)


# --- fields of a row ------------------------------------------------------------------------------


def _is_sample(row: Mapping[str, Any]) -> bool:
    """Whether lm-eval logged it."""
    return "doc" in row and ("resps" in row or "filtered_resps" in row)


def _data(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a row that tells of the prompt: an lm-eval sample keeps it in ``doc``."""
    if not _is_sample(row):
        return row
    doc = row["doc"]
    if not isinstance(doc, Mapping):
        raise UnusableRow("bad field", f"field 'doc' must be an object, not {short(doc)}")
    return doc


def _column(row: Mapping[str, Any], name: str) -> Any:
    return row[name] if name in row else _data(row).get(name)


def _is_benchmark_row(data: Mapping[str, Any]) -> bool:
    return "instruction_id_list" in data or "ground_truth" in data


def _has_constraints(row: Mapping[str, Any]) -> bool:
    if _is_benchmark_row(_data(row)):
        return True
    return row.get("constraints") is not None and _has_request(row)


def _has_request(row: Mapping[str, Any]) -> bool:
    """Whether a row brings a request, be it one that can be used or not."""
    return _column(row, "request") is not None


def _key(row: Mapping[str, Any]) -> str | None:
    data = _data(row)
    return None if data.get("key") is None else row_key(data)


def _prompt_text(row: Mapping[str, Any]) -> str | None:
    data = _data(row)
    if "messages" in data:
        turns = data["messages"]
        user = turns[0] if isinstance(turns, list) and turns else None
        text = user.get("content") if isinstance(user, Mapping) else None
    else:
        text = data.get("prompt")
        if text is None:
            return None
    if not isinstance(text, str):
        raise UnusableRow("bad field", f"the prompt must be text, not {short(text)}")
    return text


def _response(row: Mapping[str, Any]) -> str | None:
    """The text of the response; None where the row says that there was none."""
    if _is_sample(row):
        name = "filtered_resps" if "filtered_resps" in row else "resps"
        value = row[name]
        # lm-eval keeps a list an LM request, and resps a list an attempt inside it.
        while isinstance(value, list) and len(value) == 1:
            value = value[0]
    else:
        name = next((field for field in _RESPONSE_FIELDS if field in row), "response")
        if name not in row:
            found = ", ".join(map(repr, row)) or "none"
            raise UnusableRow(
                "missing field", f"field 'response' is missing; fields found: {found}"
            )
        value = row[name]
    if value is not None and not isinstance(value, str):
        raise UnusableRow("bad field", f"field {name!r} must be one text, not {short(value)}")
    return value


def _filter(row: Mapping[str, Any]) -> str | None:
    if not _is_sample(row) or row.get("filter") is None:
        return None
    return valid_text(row["filter"], "field 'filter'")


def _was_cut(row: Mapping[str, Any]) -> bool | None:
    reason = row.get("finish_reason", row.get("stop_reason"))
    return reason.lower() in _CUT if isinstance(reason, str) else None


def _request(row: Mapping[str, Any]) -> str | None:
    value = _column(row, "request")
    return None if value is None else valid_text(value, "field 'request'")


def _own_constraints(row: Mapping[str, Any]) -> tuple[Constraint, ...] | None:
    value = row.get("constraints")
    if value is None:
        return None
    try:
        return read_constraints(value)
    except ConstraintError as error:
        raise UnusableRow("bad field", f"field 'constraints': {error}") from error


def _token_ids(row: Mapping[str, Any]) -> list[int] | None:
    value = _column(row, "token_ids")
    if value is None:
        return None
    if not isinstance(value, list) or any(type(i) is not int or i < 0 for i in value):
        raise UnusableRow("bad field", f"field 'token_ids' must list ids, not {short(value)}")
    return value


def _bound(row: Mapping[str, Any], name: str) -> float:
    """A bound in nats per token; NaN where it is missing."""
    try:
        return read_bound(_column(row, name), name)
    except ValueError as error:
        raise UnusableRow("bad field", f"field {error}") from error


def _name(key: str | None, text: str | None) -> str:
    """How a message calls a row: by its key, else by how its prompt starts."""
    return f"key {key!r}" if key is not None else f"prompt {short(text)}"
