"""The native file of ComplexBench: instances, scoring questions, counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from califkit.judges.prompts import Messages, user_turn
from califkit.judges.rubrics import files
from califkit.judges.rubrics.complexbench_rules import Rule, parse_rules
from califkit.judges.rubrics.files import Loaded, RubricError

Language = Literal["en", "zh"]

DIMENSIONS = {
    "lexical": ("Word Matching", "Keywords"),
    "semantic": ("Language Style", "Personalization", "Topic", "Sentiment"),
    "utility": ("Helpfulness", "Target Language", "Supportiveness", "Consistency", "Factuality"),
    "format": (
        *("JSON Format", "Markdown Format", "Bullets Format", "Length"),
        *("Start with", "End with", "Punctuation", "Template"),
    ),
}
"""The four groups of Table 1; the released code calls the last one Structure."""

N_INSTANCES = 1150
N_PAIRS = {"lexical": 467, "semantic": 733, "format": 954}
"""Pairs of question and dimension that the paper's printed means imply."""


@dataclass(frozen=True)
class ScoringQuestion:
    """A scoring question. `dep` are positions of questions whose raw verdicts it needs;
    `rules` is None where the judge decides."""

    text: str
    rules: tuple[Rule, ...] | None
    dimensions: tuple[str, ...]
    compositions: tuple[str, ...]
    dep: tuple[int, ...]


@dataclass(frozen=True)
class ComplexItem:
    """An instance in one language; `id` is its ``main_id`` as text."""

    id: str
    instruction: str
    task: str
    category: str
    questions: tuple[ScoringQuestion, ...]

    @property
    def messages(self) -> Messages:
        return user_turn(self.instruction)


def load_items(source: str | Path | None, language: Language) -> Loaded:
    """Instances of the native JSON file; `RubricError` if one does not fit."""
    path, shown = files.locate(source, "complexbench.json")
    rows = files.read_list(path)
    items = tuple(
        to_item(row, language, f"{path.name}, instance {i}") for i, row in enumerate(rows)
    )
    if twice := files.repeated(item.id for item in items):
        raise RubricError(f"{path.name}: field 'main_id' has {twice} twice")
    sha256 = files.digest([language, [{k: row[k] for k in sorted(row)} for row in rows]])
    return Loaded(items, shown, sha256, _warnings(items, shown))


def to_item(row: Mapping[str, Any], language: Language, where: str) -> ComplexItem:
    """An instance of the native schema, checked."""
    main_id = files.require(row, "main_id", int, where)
    where = f"{where}, main_id {main_id}"
    suffix = "_en" if language == "en" else ""
    questions = files.require(row, "scoring_questions", list, where)
    if not questions:
        raise RubricError(f"{where}: field 'scoring_questions' is empty")
    return ComplexItem(
        id=str(main_id),
        instruction=files.require_text(row, f"instruction{suffix}", where),
        task=files.require(row, "task_types", str, where),
        category=files.require(row, "category", str, where),
        questions=tuple(
            _question(question, position, len(questions), suffix, f"{where}, question {position}")
            for position, question in enumerate(questions)
        ),
    )


def count_pairs(items: Sequence[ComplexItem]) -> dict[str, int]:
    """Pairs of question and dimension in each group."""
    found = [name for item in items for question in item.questions for name in question.dimensions]
    return {group: sum(map(found.count, names)) for group, names in DIMENSIONS.items()}


def _question(
    row: Mapping[str, Any], position: int, n_questions: int, suffix: str, where: str
) -> ScoringQuestion:
    if (point := files.require(row, "point_id", int, where)) != position:
        raise RubricError(f"{where}: field 'point_id' is {point}, not the position {position}")
    dep = files.require(row, "dep", list, where)
    others = [p for p in range(n_questions) if p != position]
    if not all(isinstance(p, int) and p in others for p in dep):
        raise RubricError(f"{where}: field 'dep' must hold positions of other questions: {dep!r}")
    return ScoringQuestion(
        text=files.require_text(row, f"question{suffix}", where),
        rules=_rules(row, where),
        dimensions=_names(row, "constraint_dimensions", where),
        compositions=_names(row, "composition_types", where),
        dep=tuple(dep),
    )


def _rules(row: Mapping[str, Any], where: str) -> tuple[Rule, ...] | None:
    if "rule" not in row:
        raise RubricError(f"{where}: field 'rule' is missing")
    if row["rule"] is None:
        return None
    try:
        return parse_rules(files.require(row, "rule", str, where))
    except ValueError as error:
        raise RubricError(f"{where}: field 'rule': {error}") from error


def _names(row: Mapping[str, Any], field: str, where: str) -> tuple[str, ...]:
    names = files.require(row, field, list, where)
    if not all(isinstance(name, str) for name in names):
        raise RubricError(f"{where}: field {field!r} must be a list of texts, not {names!r:.80}")
    return tuple(names)


def _warnings(items: Sequence[ComplexItem], shown: str) -> tuple[str, ...]:
    warnings = []
    pairs = count_pairs(items)
    if len(items) != N_INSTANCES or any(pairs[group] != n for group, n in N_PAIRS.items()):
        found = ", ".join(f"{group} {pairs[group]}" for group in N_PAIRS)
        full = ", ".join(f"{group} {n}" for group, n in N_PAIRS.items())
        warnings.append(
            f"{shown}: {len(items)} instances with {found} pairs of question and dimension where "
            f"the full data have {N_INSTANCES} with {full}; numbers do not compare with published "
            "ones"
        )
    moved = [item.id for position, item in enumerate(items) if item.id != str(position)]
    if moved:
        warnings.append(
            f"{shown}: {len(moved)} instances do not stand at the position that their main_id "
            f"names, the first main_id {moved[0]}; responses are joined by main_id"
        )
    return tuple(warnings)
