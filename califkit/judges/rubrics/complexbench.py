"""ComplexBench: 1,150 instructions with composed constraints, asked about by scoring questions.

A question is decided by a judge, or by a rule over the spans that a judge extracts. It counts as
satisfied if its own verdict and the raw verdicts of all questions it depends on are true; raw, so
that a failure does not travel along a chain. Lexical, Semantic, Utility and Format are the shares
of satisfied pairs of question and dimension (paper, Table 1); DRFR is that of questions.

Data and questions exist in Chinese and English. The paper does not say which it used.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from califkit.judges.parsing import Unparsable, find_object, without_reasoning
from califkit.judges.prompts import BOOLEAN, TEXT, Prompt, Question, answer_schema, tagged
from califkit.judges.rubrics.base import DATA_NOTE, Scores, match_verdicts, percent, status_counts
from califkit.judges.rubrics.complexbench_data import (
    DIMENSIONS,
    ComplexItem,
    Language,
    ScoringQuestion,
    count_pairs,
    load_items,
)
from califkit.judges.rubrics.complexbench_rules import follows, read_spans
from califkit.judges.rubrics.files import Loaded, RubricError
from califkit.judges.verdicts import Verdict

INSTRUCTION_CHARACTERS, RESPONSE_CHARACTERS = 6000, 4000
"""What the judge is shown of either, as in the released code."""

_ANSWER_TEXT = f"""\
Answer one yes-or-no question about a response to an instruction.

{DATA_NOTE}

$instruction

$response

$question

How to decide:
- Answer this question only, whatever else is good or bad about the response.
- What holds for the most part does not hold: the answer is no. So it is if the response gives no \
evidence either way.
- A question about each or all of several things is answered yes only if every one of them complies.
- Bullet points need visible markers; sentences in a row are none.
- If the question asks for a language, a response that mixes languages fails.
- If the question asks whether a condition was judged correctly, look at the branch that the \
response took.

Reply with one JSON object and nothing else:
{{"analysis": "<at most three sentences>", "answer": <true for yes, false for no>}}"""

_ANSWER = Prompt(_ANSWER_TEXT, answer_schema(analysis=TEXT, answer=BOOLEAN))

_EXTRACT_TEXT = f"""\
Find the part of a response that a question is about. Do not answer the question: a program will, \
on the text that you copy.

{DATA_NOTE}

$instruction

$response

$question

Choose the scope:
- "all" if the question is about the response as a whole;
- "spans" if it is about parts of it: $how_many Copy every part word for word, with its \
punctuation, and leave out what the question is not about, such as headings and introductions;
- "none" if the response has no such part.

Reply with one JSON object and nothing else:
{{"scope": "<all, spans or none>", "spans": ["<verbatim text>", ...]}}
"spans" is empty unless the scope is "spans"."""

_ONE = "give the one part that it asks about."
_EACH = "give each object that it asks about as an entry of its own, in their order."
_EXTRACT = Prompt(
    _EXTRACT_TEXT,
    answer_schema(
        scope={"type": "string", "enum": ["all", "spans", "none"]},
        spans={"type": "array", "items": TEXT},
    ),
    (_ONE, _EACH),
)

_CHINESE_ANSWER = re.compile(r"答案：\s*([是否])")


@dataclass(frozen=True)
class ComplexBench:
    """The benchmark in one language. The value of a verdict is a boolean; units are questions,
    named ``main_id/position``."""

    language: Language = "en"
    name: str = "complexbench"

    def __post_init__(self) -> None:
        if self.language not in ("en", "zh"):
            raise RubricError(f"language {self.language!r} must be 'en' or 'zh'")

    def load(self, source: str | Path | None = None) -> Loaded:
        return load_items(source, self.language)

    def units(self, item: ComplexItem) -> list[str]:
        return [_unit(item, position) for position in range(len(item.questions))]

    def nothing(self, item: ComplexItem) -> bool:
        return False

    def decide(self, item: ComplexItem, answer: str) -> list[Question | Verdict]:
        """For each scoring question one for a verdict, or for the spans that its rule decides."""
        return [self._ask(item, question, answer) for question in item.questions]

    def _ask(self, item: ComplexItem, question: ScoringQuestion, answer: str) -> Question:
        material = {
            "instruction": tagged("instruction", item.instruction[:INSTRUCTION_CHARACTERS]),
            "response": tagged("response", answer[:RESPONSE_CHARACTERS]),
            "question": tagged("question", question.text),
        }
        if question.rules is None:
            return _ANSWER.ask(read_answer, **material)
        how_many = _EACH if any(rule.each for rule in question.rules) else _ONE

        def read(text: str) -> bool:
            return follows(question.rules, read_spans(text, answer))

        return _EXTRACT.ask(read, how_many=how_many, **material)

    def score(self, items: Sequence[ComplexItem], verdicts: Mapping[str, Verdict]) -> Scores:
        """The four metrics of Table 1.

        `details` has DRFR, the shares by dimension, composition type, category and task, and in
        ``after_dependencies`` every question.
        """
        units = [unit for item in items for unit in self.units(item)]
        matched = match_verdicts(units, verdicts)
        raw = {unit: _is_true(unit, verdict) for unit, verdict in matched.items()}
        satisfied = after_dependencies(items, raw)
        tallies = _tally(items, satisfied)
        metrics = {
            f"complexbench_{group}": percent(
                sum(sum(tallies["dimension"][name]) for name in names),
                sum(len(tallies["dimension"][name]) for name in names),
            )
            for group, names in DIMENSIONS.items()
        }
        drfr = percent(sum(satisfied.values()), len(satisfied))
        counts = status_counts(matched.values()) | {
            "n_instances": len(items),
            "n_by_rule": sum(q.rules is not None for item in items for q in item.questions),
            **{f"n_{group}": n for group, n in count_pairs(items).items()},
        }
        details = {"drfr": drfr, "after_dependencies": satisfied} | {
            f"per_{kind}": {n: percent(sum(hits), len(hits)) for n, hits in tally.items() if hits}
            for kind, tally in tallies.items()
        }
        # Any other verdict that is not usable is false in the released code as well.
        released: dict[str, Any] = metrics | {"drfr": drfr}
        if counts["n_missing"]:
            released = {"error": "KeyError (a verdict is missing)"}
        return Scores(metrics, counts, released, details)


def read_answer(text: str) -> bool:
    """Yes or no: our own format, else the one of the released Chinese prompt.

    There, one answer after the Chinese marker decides; otherwise the answer is yes if the character
    for yes occurs and that for no does not. The released code takes anything undecided for no.
    """
    value = find_object(text, "answer")
    if value is not None:
        if not isinstance(value["answer"], bool):
            raise Unparsable(f"'answer' must be true or false, not {value['answer']!r:.40}")
        return value["answer"]
    text = without_reasoning(text)
    marked = _CHINESE_ANSWER.findall(text)
    words = set(marked) if len(marked) == 1 else {word for word in "是否" if word in text}
    if len(words) != 1:
        raise Unparsable("neither yes nor no, or both")
    return words == {"是"}


def after_dependencies(items: Sequence[ComplexItem], raw: Mapping[str, bool]) -> dict[str, bool]:
    """Whether questions are satisfied: their own raw verdict and those they depend on are true."""
    return {
        _unit(item, position): all(raw[_unit(item, p)] for p in (position, *question.dep))
        for item in items
        for position, question in enumerate(item.questions)
    }


def _unit(item: ComplexItem, position: int) -> str:
    return f"{item.id}/{position}"


def _is_true(unit: str, verdict: Verdict) -> bool:
    if verdict.status != "ok":
        return False
    if not isinstance(verdict.value, bool):
        raise RubricError(f"{unit}: the verdict must be a boolean, not {verdict.value!r}")
    return verdict.value


def _tally(
    items: Sequence[ComplexItem], satisfied: Mapping[str, bool]
) -> dict[str, dict[str, list[bool]]]:
    """Outcomes of questions by dimension, composition type, category and task.

    A question with several dimensions counts once for each. As released, the dimensions hold the
    composition types too, but for Selection.
    """
    tallies: dict[str, dict[str, list[bool]]] = {
        kind: defaultdict(list) for kind in ("dimension", "composition", "category", "task")
    }
    for item in items:
        for position, question in enumerate(item.questions):
            hit = satisfied[_unit(item, position)]
            tallies["category"][item.category].append(hit)
            tallies["task"][item.task].append(hit)
            for name in question.dimensions:
                tallies["dimension"][name].append(hit)
            for name in question.compositions:
                tallies["composition"][name].append(hit)
                if name != "Selection":
                    tallies["dimension"][name].append(hit)
    return tallies
