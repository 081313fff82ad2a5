"""FollowBench (English): 820 prompts in 164 groups, one constraint more at each of five levels.

HSR = share of items whose constraints all hold; SSR = mean share of constraints that hold; CSL =
levels passed in a row from level 1 (paper, Table 1). The released code prints them per category and
level. Our headline is, per level, the mean over the categories, then the mean over the levels (CSL:
over the categories): the paper's HSR cannot be pooled over 820 items.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from califkit.judges.parsing import Unparsable, find_object, without_reasoning
from califkit.judges.prompts import TEXT, Prompt, Question, answer_schema, tagged
from califkit.judges.rubrics import followbench_rules as rules
from califkit.judges.rubrics.base import DATA_NOTE, Scores, match_verdicts, status_counts
from califkit.judges.rubrics.files import Loaded, RubricError
from califkit.judges.rubrics.followbench_data import LEVELS, FollowItem, load_items
from califkit.judges.verdicts import Verdict

_KINDS = {
    "content": "Each one narrows what the text is about or what it must contain.",
    "situation": "Each one adds to the circumstances or the role in which the answer is given.",
    "style": "Each one asks for a tone or manner of writing.",
    "format": "Each one asks for a form: length, layout, markup, order.",
    "mixed": "They are of different kinds: content, situation, style or form.",
}

_TEXT = f"""\
Decide which of the constraints that were added to an instruction a response meets.

The instruction grew in $level steps. Below it stands at every step; each step added one \
constraint to the one before. $kind The response answers the last version.

{DATA_NOTE}

$history

$response

Find the $level added constraints, in the order in which they were added. Decide each on its own: \
YES only if the response meets it in full, else NO.

Reply with one JSON object and nothing else, with exactly $level entries in "verdicts":
{{"reason": "<the constraints and what speaks for or against each>", \
"verdicts": ["<YES or NO>", ...]}}"""

_WORDS = {"type": "array", "items": {"type": "string", "enum": ["YES", "NO"]}}
_PROMPT = Prompt(_TEXT, answer_schema(reason=TEXT, verdicts=_WORDS), (_KINDS,))

_HOLDS = {"YES": True} | dict.fromkeys(("NO", "PARTIAL", "MAYBE", "UNKNOWN", "N/A"), False)
_LONGEST_LIST = 1000  # characters that are handed to Python's literal parser


@dataclass(frozen=True)
class FollowBench:
    """The benchmark. The value of a verdict is a tuple of booleans: one a constraint from a judge,
    a single one from a rule."""

    name: str = "followbench"

    def load(self, source: str | Path | None = None) -> Loaded:
        return load_items(source)

    def units(self, item: FollowItem) -> list[str]:
        return [item.id]

    def nothing(self, item: FollowItem) -> tuple[bool, ...]:
        return (False,) * (1 if item.by_rule else item.level)

    def decide(self, item: FollowItem, answer: str) -> list[Question | Verdict]:
        """One question with all levels, or the verdict of the item's rule."""
        if item.by_rule:
            target = (item.category, item.source, item.example_id, item.level, item.target)
            return [Verdict("ok", (rules.follows(*target, answer),), reason="by rule")]
        first = item.level + 1 - len(item.history)
        history = "\n\n".join(
            tagged(f"instruction, step {step}", text or "(no instruction yet)")
            for step, text in enumerate(item.history, start=first)
        )
        question = _PROMPT.ask(
            partial(read_verdicts, level=item.level),
            level=item.level,
            kind=_KINDS[item.category],
            history=history,
            response=tagged("response", answer),
        )
        return [question]

    def score(self, items: Sequence[FollowItem], verdicts: Mapping[str, Verdict]) -> Scores:
        """The three metrics of Table 1; every group needs its five levels.

        `details` has them per category (with the five levels), pooled over groups (``micro``) and
        with levels weighted 1 to 5 over the categories other than ``example``.
        """
        matched = match_verdicts([item.id for item in items], verdicts)
        groups = _groups(items)
        for item in items:
            _check_length(item, matched[item.id])
        cells = {unit: _hard_soft(verdict, 0.0) for unit, verdict in matched.items()}
        by_category = {
            category: _category_scores([[cells[i.id] for i in group] for group in of_category])
            for category, of_category in groups.items()
        }
        macro = _macro(by_category)
        metrics = {f"followbench_{key}": macro[key] for key in ("hsr", "ssr", "csl")}
        counts = status_counts(matched.values()) | {
            "n_groups": sum(map(len, groups.values())),
            "n_by_rule": sum(item.by_rule for item in items),
        }
        details = {
            "per_category": by_category,
            "macro": macro,
            "micro": _means(by_category, [s["n_groups"] for s in by_category.values()]),
            "level_weighted": _level_weighted(by_category),
        }
        return Scores(metrics, counts, released_scores(groups, matched), details)


def read_verdicts(text: str, level: int) -> tuple[bool, ...]:
    """One boolean a constraint: our own format, else that of the released parser."""
    value = find_object(text, "verdicts")
    words = _last_line_words(text, level) if value is None else value["verdicts"]
    if not isinstance(words, list) or len(words) != level:
        raise Unparsable(f"no list of {level} verdicts")
    if not all(isinstance(word, str) and word in _HOLDS for word in words):
        raise Unparsable(f"a verdict is none of {', '.join(_HOLDS)}")
    return tuple(_HOLDS[word] for word in words)


def released_scores(
    groups: Mapping[str, Sequence[Sequence[FollowItem]]], verdicts: Mapping[str, Verdict]
) -> dict[str, Any]:
    """What the released code prints: per category percentages as text and CSL with one decimal.

    An unreadable verdict is *added* as -1 there, for HSR and SSR; one that is missing ends the
    scoring of its category. ``level_weighted`` is that of the separate script, from the printed
    numbers of all categories but ``example``; None if there is none or one has an error.
    """
    printed: dict[str, Any] = {}
    rounded = {}
    for category, of_category in groups.items():
        found = [[verdicts[item.id] for item in group] for group in of_category]
        if any(verdict.status == "missing" for row in found for verdict in row):
            printed[category] = {"error": "KeyError (a verdict is missing)"}
            continue
        scores = _category_scores([[_hard_soft(verdict, -1.0) for verdict in row] for row in found])
        printed[category] = {
            "hsr": [f"{value:.2f}" for value in scores["hsr_by_level"]],
            "ssr": [f"{value:.2f}" for value in scores["ssr_by_level"]],
            "csl": round(scores["csl"], 1),
        }
        rounded[category] = {
            f"{key}_by_level": list(map(float, printed[category][key])) for key in ("hsr", "ssr")
        }
    weighted = _level_weighted(rounded) if len(rounded) == len(groups) else None
    return {"per_category": printed, "level_weighted": weighted}


def _last_line_words(text: str, level: int) -> list[Any]:
    line = without_reasoning(text).strip("` \t\r\n").rpartition("\n")[2]
    if level == 1:
        found = next((word for word in ("YES", "NO") if word in line), None)
        return [] if found is None else [found]
    start, end = line.find("["), line.rfind("]")
    if not 0 <= start < end or end - start > _LONGEST_LIST:
        raise Unparsable("no list in the last line")
    try:
        return ast.literal_eval(line[start : end + 1])
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise Unparsable("the list in the last line is not a literal") from error


def _check_length(item: FollowItem, verdict: Verdict) -> None:
    expected, value = 1 if item.by_rule else item.level, verdict.value
    fits = isinstance(value, tuple | list) and len(value) == expected
    if verdict.status == "ok" and not fits:
        raise RubricError(f"{item.id}: the verdict must have {expected} booleans, not {value!r}")


def _hard_soft(verdict: Verdict, unusable: float) -> tuple[float, float]:
    """Whether all constraints hold, and the share that does."""
    if verdict.status != "ok":
        return unusable, unusable
    return float(all(verdict.value)), sum(verdict.value) / len(verdict.value)


def _groups(items: Sequence[FollowItem]) -> dict[str, list[list[FollowItem]]]:
    """Groups by category, each in the order of its levels."""
    groups: dict[str, dict[int, list[FollowItem]]] = {}
    for item in items:
        groups.setdefault(item.category, {}).setdefault(item.example_id, []).append(item)
    for category, of_category in groups.items():
        for example_id, group in of_category.items():
            group.sort(key=lambda item: item.level)
            if tuple(item.level for item in group) != LEVELS:
                levels = [item.level for item in group]
                raise RubricError(f"group {category}/{example_id} has the levels {levels}, not 1-5")
    return {category: list(of_category.values()) for category, of_category in groups.items()}


def _category_scores(groups: Sequence[Sequence[tuple[float, float]]]) -> dict[str, Any]:
    """Percentages by level and CSL of groups of five (hard, soft)."""
    n = len(groups)
    by_level = list(zip(*groups, strict=True))
    return {
        "n_groups": n,
        "hsr_by_level": [100.0 * sum(hard for hard, _ in level) / n for level in by_level],
        "ssr_by_level": [100.0 * sum(soft for _, soft in level) / n for level in by_level],
        "csl": sum(_levels_in_a_row(group) for group in groups) / n,
    }


def _levels_in_a_row(group: Sequence[tuple[float, float]]) -> int:
    hards = [hard == 1 for hard, _ in group]
    return hards.index(False) if False in hards else len(hards)


def _macro(by_category: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    by_level = {}
    for key in ("hsr_by_level", "ssr_by_level"):
        rows = [scores[key] for scores in by_category.values()]
        by_level[key] = [_mean(level) for level in zip(*rows, strict=True)]
    return by_level | _means(by_category, [1] * len(by_category))


def _means(
    by_category: Mapping[str, Mapping[str, Any]], weights: Sequence[int]
) -> dict[str, float]:
    """Weighted means over the categories."""
    columns = {
        "hsr": [_mean(scores["hsr_by_level"]) for scores in by_category.values()],
        "ssr": [_mean(scores["ssr_by_level"]) for scores in by_category.values()],
        "csl": [scores["csl"] for scores in by_category.values()],
    }
    return {key: _mean(values, weights) for key, values in columns.items()}


def _level_weighted(by_category: Mapping[str, Mapping[str, Any]]) -> dict[str, float] | None:
    chosen = [scores for category, scores in by_category.items() if category != "example"]
    if not chosen:
        return None
    return {
        key: _mean([_mean(scores[f"{key}_by_level"], LEVELS) for scores in chosen])
        for key in ("hsr", "ssr")
    }


def _mean(values: Sequence[float], weights: Sequence[int] | None = None) -> float:
    weights = weights or [1] * len(values)
    return sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)
