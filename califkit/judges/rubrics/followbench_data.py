"""The native files of FollowBench: records, groups, counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from califkit.judges.prompts import Messages, user_turn
from califkit.judges.rubrics import files
from califkit.judges.rubrics import followbench_rules as rules
from califkit.judges.rubrics.files import Loaded, RubricError

CATEGORIES = ("content", "situation", "style", "format", "mixed", "example")
LEVELS = (1, 2, 3, 4, 5)
N_RECORDS, N_ITEMS = 944, 820

_FIELDS = {"example_id": int, "level": int}
_FIELDS |= dict.fromkeys(("category", "source", "instruction", "target"), str)


@dataclass(frozen=True)
class FollowItem:
    """A prompt of level 1 to 5.

    `category` is the file it stands in; `history` has the instruction at the levels up to its own;
    `target` is what the rule compares with.
    """

    category: str
    example_id: int
    level: int
    source: str
    history: tuple[str, ...]
    target: str

    @property
    def id(self) -> str:
        return f"{self.category}/{self.example_id}/{self.level}"

    @property
    def messages(self) -> Messages:
        return user_turn(self.history[-1])

    @property
    def by_rule(self) -> bool:
        return rules.is_rule_judged(self.category, self.source, self.example_id)


def load_items(source: str | Path | None) -> Loaded:
    """Items of level 1 to 5; `source` is the folder with the native ``<category>_constraints.json``
    files, or one of them."""
    folder, shown = files.locate(source, "")
    items: list[FollowItem] = []
    n_records = 0
    for category, path in _files(folder, shown):
        records = _read_records(path)
        items += _items(records, category, path.name)
        n_records += len(records)
    sha256 = files.digest([[item.id, item.source, item.history, item.target] for item in items])
    return Loaded(tuple(items), shown, sha256, _warnings(items, n_records, shown))


def _files(path: Path, shown: str) -> list[tuple[str, Path]]:
    names = {f"{category}_constraints.json": category for category in CATEGORIES}
    paths = [path / name for name in names] if path.is_dir() else [path]
    found = [(names[p.name], p) for p in paths if p.name in names and p.is_file()]
    if not found:
        raise RubricError(f"{shown}: no file {' or '.join(names)}")
    return found


def _read_records(path: Path) -> list[Mapping[str, Any]]:
    records = files.read_list(path)
    for number, record in enumerate(records, start=1):
        where = f"{path.name}, record {number}"
        for field, kind in _FIELDS.items():
            files.require(record, field, kind, where)
        if record["level"] not in (0, *LEVELS):
            raise RubricError(f"{where}: field 'level' must be 0 to 5, not {record['level']}")
        if record["level"]:
            files.require_text(record, "instruction", where)
    return records


def _items(records: Iterable[Mapping[str, Any]], category: str, name: str) -> Iterable[FollowItem]:
    groups: dict[int, dict[int, Mapping[str, Any]]] = {}
    for record in records:
        group = groups.setdefault(record["example_id"], {})
        where = f"{name}, example_id {record['example_id']}"
        if record["level"] in group:
            raise RubricError(f"{where}: field 'level' has {record['level']} twice")
        group[record["level"]] = record
    for example_id, group in groups.items():
        where = f"{name}, example_id {example_id}"
        if missing := [level for level in LEVELS if level not in group]:
            raise RubricError(f"{where}: the levels {missing} are missing")
        steps = [group[level]["instruction"] for level in sorted(group)]
        for level in LEVELS:
            record = group[level]
            _check_target(record, f"{where}, level {level}")
            yield FollowItem(
                category,
                example_id,
                level,
                record["source"],
                tuple(steps[: level + len(group) - len(LEVELS)]),
                record["target"],
            )


def _check_target(record: Mapping[str, Any], where: str) -> None:
    if record["source"] == "CONLL2003":
        try:
            rules.entity_list(record["target"])
        except ValueError as error:
            raise RubricError(f"{where}: field 'target': {error}") from error


def _warnings(items: Sequence[FollowItem], n_records: int, shown: str) -> tuple[str, ...]:
    if (n_records, len(items)) == (N_RECORDS, N_ITEMS):
        return ()
    return (
        f"{shown}: {n_records} records and {len(items)} items of level 1 to 5 where the full data "
        f"have {N_RECORDS} and {N_ITEMS}; numbers do not compare with published ones",
    )
