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
    """Items of a benchmark; `warnings` says that the data are not the full set."""

    items: tuple[Any, ...]
    source: str
    sha256: str
    warnings: tuple[str, ...] = ()


def locate(source: str | Path | None, sample: str) -> tuple[Path, str]:
    """The path of a source and its name for messages; None is our own sample of this name (the
    folder for an empty one)."""
    if source is not None:
        return Path(source), str(source)
    folder = resources.files("califkit.judges.rubrics") / "resources"
    return Path(str(folder / sample)), SAMPLE


def read_list(path: Path) -> list[Any]:
    """The JSON list in a file."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise RubricError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise RubricError(f"{path}: not JSON: {error}") from error
    if not isinstance(rows, list) or not rows:
        raise RubricError(f"{path}: must be a list with entries")
    return rows


def require(row: Any, key: str, kind: type, where: str) -> Any:
    """``row[key]`` if it has the type."""
    if not isinstance(row, Mapping):
        raise RubricError(f"{where}: must be an object, not {row!r:.80}")
    if key not in row:
        raise RubricError(f"{where}: field {key!r} is missing")
    value = row[key]
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise RubricError(f"{where}: field {key!r} must be {kind.__name__}, not {value!r:.80}")
    return value


def require_text(row: Any, key: str, where: str) -> str:
    """``row[key]`` if it is text that is not blank."""
    text = require(row, key, str, where)
    if not text.strip():
        raise RubricError(f"{where}: field {key!r} is empty")
    return text


def repeated(values: Iterable[Hashable]) -> Any:
    """The first value that occurs twice, None if there is none."""
    return next((value for value, n in Counter(values).items() if n > 1), None)


def digest(value: Any) -> str:
    """SHA-256 of a value of plain types in canonical JSON."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()
