"""Data of the rubric benchmarks: what is loaded, what is checked, and the error of both."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from califkit import CalifkitError

SAMPLE = "built-in sample"


class RubricError(CalifkitError, ValueError):
    """Data, responses or verdicts that cannot be used; the message names the place and value."""


@dataclass(frozen=True)
class Loaded:
    """Items of a benchmark. `warnings` says, among others, that the data are not the full set."""

    items: tuple[Any, ...]
    source: str
    sha256: str
    warnings: tuple[str, ...] = ()


def sample_path(name: str) -> Path:
    """A file (or, with an empty name, the folder) of the items that come with the package."""
    return Path(str(resources.files("califkit.judges.rubrics") / "resources" / name))


def read_json(path: Path) -> Any:
    """The JSON in a file; RubricError if it cannot be had."""
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise RubricError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise RubricError(f"{path}: not JSON: {error}") from error


def require(row: Any, key: str, kind: type, where: str) -> Any:
    """``row[key]`` if it has the type; RubricError naming file, item, field and value if not."""
    if not isinstance(row, Mapping):
        raise RubricError(f"{where}: must be an object, not {row!r:.80}")
    if key not in row:
        raise RubricError(f"{where}: field {key!r} is missing")
    value = row[key]
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise RubricError(f"{where}: field {key!r} must be {kind.__name__}, not {value!r:.80}")
    return value


def repeated(values: Iterable[Hashable]) -> Any:
    """The first value that occurs twice, None if there is none."""
    return next((value for value, n in Counter(values).items() if n > 1), None)


def digest(value: Any) -> str:
    """SHA-256 of a value of plain types in canonical JSON."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()
