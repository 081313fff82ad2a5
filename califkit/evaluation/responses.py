"""Response files, and the prompts and constraints that their rows answer.

A response file is JSONL. Each row has one of these layouts, told apart row by row:

* ``prompt, response`` (IFEval, IFBench) or ``key, response``: the constraints come from a prompt
  file, joined by the prompt's text or by the key;
* an evaluation or training row (see `califkit.data.load`) with a ``response`` (or ``prediction``)
  beside its own constraints;
* a sample of ``lm-eval --log_samples``: ``doc`` with the evaluation row, ``filtered_resps`` or
  ``resps`` with the text.

A file is read twice: once to check every row and to see where the responses stand, and once, as a
stream, for their texts. So unusable input shows before anything expensive happens, and memory does
not grow with the responses.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from califkit.data.load import DataError, OnError, Quarantined, load_ifbench_wheel
from califkit.data.rows import UnusableRow, decode_line, prompt_and_constraints, row_key, short
from califkit.verifiers import Constraint

IFBENCH = "ifbench"
"""Name of the prompts that come with the IFBench wheel."""

_RESPONSE_FIELDS = ("response", "prediction")
_MAX_NAMES = 1000


@dataclass(frozen=True)
class Prompt:
    """A prompt that wants a response, and what the response is checked against."""

    key: str | None
    prompt: str
    constraints: tuple[Constraint, ...]


@dataclass(frozen=True)
class Answer:
    """A prompt with its response (None: there was none) and the line this came from."""

    prompt: Prompt
    response: str | None
    line: int | None


@dataclass(frozen=True)
class Prompts:
    """The usable prompts of a source, and the rows that were left out."""

    source: str
    prompts: list[Prompt]
    left_out: list[Quarantined]


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
    """Where a response stands in its file."""

    offset: int
    line: int
    is_exact: bool
    is_null: bool


@dataclass
class Responses:
    """A checked response file; iterating streams its `Answer` rows.

    With a prompt file they come in the order of the prompts, one each; with the rows' own
    constraints they come in the order of the file, every row.

    Attributes
    ----------
    n_prompts
        Number of answers that iterating gives.
    missing
        The prompts without a response; none of their constraints is followed.
    unmatched
        The responses without a prompt.
    replaced
        Number of responses that a later one to the same prompt replaced.
    left_out
        Unusable rows of either file, if they were to be skipped.
    """

    path: Path
    source: str
    n_prompts: int = 0
    missing: Named = field(default_factory=Named)
    unmatched: Named = field(default_factory=Named)
    replaced: int = 0
    left_out: list[Quarantined] = field(default_factory=list)
    _prompts: list[Prompt] | None = None
    _places: list[_Place | None] = field(default_factory=list)

    def __len__(self) -> int:
        return self.n_prompts

    def __iter__(self) -> Iterator[Answer]:
        return self._own() if self._prompts is None else self._joined(self._prompts)

    def _own(self) -> Iterator[Answer]:
        skipped = {row.row for row in self.left_out}
        for line, _, raw in numbered_lines(self.path):
            if line not in skipped:
                row = decode_line(raw)
                yield Answer(_own_prompt(row), _response(row), line)

    def _joined(self, prompts: list[Prompt]) -> Iterator[Answer]:
        with self.path.open("rb") as file:
            for prompt, place in zip(prompts, self._places, strict=True):
                if place is None:
                    yield Answer(prompt, None, None)
                    continue
                file.seek(place.offset)
                row = decode_line(file.readline().removeprefix(codecs.BOM_UTF8))
                yield Answer(prompt, _response(row), place.line)


def load_prompts(source: str | Path, on_error: OnError = "raise") -> Prompts:
    """Prompts and constraints of a JSONL file of evaluation or training rows, or of ``ifbench``.

    Unlike `califkit.data.load.load_jsonl` it does not need to find the request inside the prompt,
    nor keys. ``ifbench`` is the installed wheel, whose broken record is always left out.

    Raises
    ------
    DataError
        If the source cannot be had or is empty; with ``raise`` also for an unusable row. The
        message names file, line, key and value.
    """
    if str(source) == IFBENCH:
        loaded = load_ifbench_wheel()
        prompts = [Prompt(i.key, i.prompt, i.constraints) for i in loaded.instances]
        return Prompts(loaded.source, prompts, loaded.quarantined)
    path = _file(source)
    prompts: list[Prompt] = []
    line_of: dict[str, int] = {}

    def take(row: Mapping[str, Any], line: int, offset: int) -> None:
        prompt = _own_prompt(row)
        if prompt.key is not None and (first := line_of.setdefault(prompt.key, line)) != line:
            raise UnusableRow("duplicate key", f"key was already used in line {first}")
        prompts.append(prompt)

    return Prompts(str(path), prompts, _read(path, take, on_error))


def open_responses(
    path: str | Path, prompts: Prompts | None = None, on_error: OnError = "raise"
) -> Responses:
    """Check a response file and join it with its prompts.

    Parameters
    ----------
    path
        The response file.
    prompts
        What the responses answer. None takes the rows' own constraints, if the first row has any,
        else IFBench. A response belongs to the prompt with the same text, else with the same text
        but for outer whitespace; a row without prompt to the one with the same key. Of several
        responses to one prompt the last counts.
    on_error
        ``raise`` stops at the first unusable row, ``quarantine`` leaves it out and lists it.

    Raises
    ------
    DataError
        If the file cannot be read, holds no usable row, or mixes rows with and without their own
        constraints; with ``raise`` also for an unusable row.
    """
    path = _file(path)
    if prompts is None and _first_row_has_constraints(path):
        return _open_own(path, on_error)
    return _open_joined(path, prompts or load_prompts(IFBENCH), on_error)


def _open_own(path: Path, on_error: OnError) -> Responses:
    opened = Responses(path, str(path))

    def take(row: Mapping[str, Any], line: int, offset: int) -> None:
        if not _has_constraints(row):
            raise UnusableRow(
                "missing field",
                "has no constraints of its own, unlike the first row; name a prompt file",
            )
        prompt, response = _own_prompt(row), _response(row)
        opened.n_prompts += 1
        if response is None:
            opened.missing.add(f"line {line}, {_name(prompt.key, prompt.prompt)}")

    opened.left_out = _read(path, take, on_error)
    return opened


def _open_joined(path: Path, prompts: Prompts, on_error: OnError) -> Responses:
    index = _Index(prompts.prompts)
    places: list[_Place | None] = [None] * len(prompts.prompts)
    opened = Responses(
        path,
        prompts.source,
        n_prompts=len(prompts.prompts),
        _prompts=prompts.prompts,
        _places=places,
    )
    n_matched = 0

    def take(row: Mapping[str, Any], line: int, offset: int) -> None:
        nonlocal n_matched
        key, text, response = _key(row), _prompt_text(row), _response(row)
        if key is None and text is None:
            raise UnusableRow("missing field", "neither 'prompt' nor 'key' is there")
        found, is_exact = index.find(key, text)
        if not found:
            opened.unmatched.add(f"line {line}, {_name(key, text)}")
            return
        n_matched += 1
        for i in found:
            known = places[i]
            if known is None or is_exact or not known.is_exact:
                places[i] = _Place(offset, line, is_exact, response is None)

    opened.left_out = [*prompts.left_out, *_read(path, take, on_error)]
    opened.replaced = n_matched - len({place.line for place in places if place})
    for prompt, place in zip(prompts.prompts, places, strict=True):
        if place is None or place.is_null:
            opened.missing.add(_name(prompt.key, prompt.prompt))
    return opened


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


def _file(path: str | Path) -> Path:
    path = Path(path)
    if not path.is_file():
        raise DataError(f"{path}: {'is not a file' if path.exists() else 'no such file'}")
    return path


def numbered_lines(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """Number (from 1), offset and bytes of each line that is not blank."""
    offset = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            text = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
            if text.strip():
                yield number, offset, text
            offset += len(line)


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


# --- fields of a row ------------------------------------------------------------------------------


def _first_row_has_constraints(path: Path) -> bool:
    for _, _, raw in numbered_lines(path):
        try:
            return _has_constraints(decode_line(raw))
        except UnusableRow:
            continue  # reported when the file is read
    return False


def _has_constraints(row: Mapping[str, Any]) -> bool:
    data = _data(row)
    return "instruction_id_list" in data or "ground_truth" in data


def _data(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a row that tells of the prompt: an lm-eval sample keeps it in ``doc``."""
    doc = row.get("doc", row)
    if not isinstance(doc, Mapping):
        raise UnusableRow("bad field", f"field 'doc' must be an object, not {short(doc)}")
    return doc


def _key(row: Mapping[str, Any]) -> str | None:
    data = _data(row)
    return None if data.get("key") is None else row_key(data)


def _own_prompt(row: Mapping[str, Any]) -> Prompt:
    return Prompt(_key(row), *prompt_and_constraints(_data(row)))


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
    if "doc" in row:
        name = "filtered_resps" if "filtered_resps" in row else "resps"
        value = row.get(name)
        # lm-eval keeps a list an LM request, and resps a list an attempt inside it.
        while isinstance(value, list) and len(value) == 1:
            value = value[0]
    else:
        name = next((field for field in _RESPONSE_FIELDS if field in row), "response")
        if name not in row:
            raise UnusableRow(
                "missing field",
                f"field 'response' is missing; fields found: {', '.join(row) or 'none'}",
            )
        value = row[name]
    if value is not None and not isinstance(value, str):
        raise UnusableRow("bad field", f"field {name!r} must be one text, not {short(value)}")
    return value


def _name(key: str | None, text: str | None) -> str:
    """How a message calls a row: by its key, else by how its prompt starts."""
    return f"key {key!r}" if key is not None else f"prompt {short(text)}"
