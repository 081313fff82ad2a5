"""Stages that a judge computes: response quality, and pairs of policies judged in both orders.

The judge sees the request x alone, never the constraints, and the final answer without reasoning.
Where a prompt has no separate request (``request_is_flagged``) x is the whole prompt. An empty
answer is an answer: it is sent as an empty response, for the judge to grade.

Every usable verdict is kept at once in ``runs/<profile>/judges/<judge>.jsonl``, so a killed stage
asks only for what is missing. A response that stays unscored is a row with status and reason, and
a complete stage stays complete; to ask again, delete the folder of the stage: the scored ones come
from that file. A stage in which nothing was scored is not completed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from califkit import metrics
from califkit.data.load import DataError
from califkit.evaluation.judging import judge_facts, judge_of, run_judge
from califkit.generation import Answers, load_answers, whose
from califkit.judges.judge import Estimate, Judge
from califkit.judges.prompts import Question, pair_question, quality_question
from califkit.judges.verdicts import Verdict
from califkit.models.reasoning import final_answer
from califkit.runs.folders import Run, open_run
from califkit.runs.jsonl import read_jsonl
from califkit.runs.settings import Execution
from califkit.runs.stages import GenerateStage, PairwiseStage, QualityStage

QUALITY = "quality.jsonl"
PAIRS = "pairs.jsonl"
_MANY_UNSCORED = 0.01
_CONSISTENT = (("first", "second"), ("second", "first"), ("tie", "tie"))
"""Verdicts in the two orders that say the same of the responses."""


@dataclass(frozen=True)
class _Item:
    """One prompt as the judge sees it: the request and what each policy answers."""

    key: str
    x: str
    request_is_flagged: bool
    answers: tuple[str, ...]


def judge_quality(profile: str, stage: QualityStage, execution: Execution) -> Run:
    """Stage: response quality of every response of one policy (paper, section 1; A13).

    Writes `QUALITY`, a row a response:
    ``key``, ``status`` (of `califkit.judges.verdicts.Verdict`), ``value`` (1 to 10, None if
    unscored), ``reason`` (why it is unscored), ``model`` (as the endpoint names it),
    ``prompt_version``, ``usage``, ``request_is_flagged``.

    Raises
    ------
    ParamsError
        If ``execution`` has no such judge, or one of that name that would answer otherwise.
    JudgeError
        If the judge cannot be used, its limits are exceeded, or it has scored nothing.
    """
    return _judged(profile, stage, execution, QUALITY, _quality_row)


def judge_pairs(profile: str, stage: PairwiseStage, execution: Execution) -> Run:
    """Stage: which of two policies answers each prompt better (paper, Table 5; A21).

    Pairs answer the same prompt and
    are judged in both orders. Writes `PAIRS`, a row a pair: ``key``, ``outcome`` (``win``, ``tie``
    or ``loss`` of the first policy), ``first_order`` and ``second_order`` (``first``, ``second`` or
    ``tie``, which speak of what is shown: the first policy stands first, then second; None if
    unscored), ``consistent``, and of both orders ``statuses``, ``reasons``, ``models``;
    ``prompt_version``, ``usage`` of both together, ``request_is_flagged``.

    Raises as `judge_quality`, and `DataError` if the policies do not answer the same prompts.
    """
    return _judged(profile, stage, execution, PAIRS, _pair_row)


def quality_by_run(quality_runs: Iterable[Run]) -> pd.DataFrame:
    """One row a run of a judge: ``method``, ``train_seed``, ``eval_seed``, ``response_quality``
    (mean of the scored responses, NaN if there is none), ``n``, ``quality_unscored``, ``judge``.

    A run with more than one per cent unscored responses is warned of. Raises ValueError for runs
    of several judges or several wordings of the judge's prompt, whose numbers do not compare.
    """
    rows, versions = [], set()
    for run in quality_runs:
        graded = read_jsonl(run.folder / QUALITY)
        missing = sum(row["value"] is None for row in graded)
        if missing > _MANY_UNSCORED * len(graded):
            warnings.warn(
                f"{run.stage.name}: {missing} of {len(graded)} responses are unscored; the mean "
                "is over the others",
                stacklevel=2,
            )
        rows.append(
            {
                **whose(run.stage.responses),
                "response_quality": metrics.nan_mean(
                    [np.nan if row["value"] is None else row["value"] for row in graded]
                ),
                "n": len(graded),
                "quality_unscored": missing,
                "judge": run.stage.judge.name,
            }
        )
        versions |= {(run.stage.judge.name, row["prompt_version"]) for row in graded}
    if len(versions) > 1:
        named = ", ".join(f"{judge} with prompt {version}" for judge, version in sorted(versions))
        raise ValueError(f"response quality of different kinds in one table: {named}")
    columns = ["method", "train_seed", "eval_seed", "response_quality", "n", "quality_unscored"]
    return pd.DataFrame(rows, columns=[*columns, "judge"])


def estimates(
    profile: str, stages: Sequence[QualityStage | PairwiseStage], execution: Execution
) -> dict[str, Estimate]:
    """What the stages that are not complete would take, by the name of the judge.

    The responses have to be there.
    """
    questions: dict[str, list[Question]] = {}
    judges: dict[str, Judge] = {}
    for stage in stages:
        judges[stage.judge.name] = judge_of(profile, stage, execution)
        asked = questions.setdefault(stage.judge.name, [])
        if open_run(profile, stage).is_complete:
            continue
        items, _ = _items(profile, stage.needs)
        for item in items:
            asked += _questions(item)
    return {name: judges[name].estimate(asked) for name, asked in questions.items()}


def _judged(
    profile: str,
    stage: QualityStage | PairwiseStage,
    execution: Execution,
    file: str,
    row: Callable[[Sequence[Verdict]], dict[str, Any]],
) -> Run:
    def grade(judge: Judge) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        items, answers = _items(profile, stage.needs)
        questions = [_questions(item) for item in items]
        verdicts = judge.judge_all([question for asked in questions for question in asked])
        judge.check_some_are_scored(verdicts)
        following = iter(verdicts)
        rows = [
            {"key": item.key}
            | row([next(following) for _ in asked])
            | {"request_is_flagged": item.request_is_flagged}
            for item, asked in zip(items, questions, strict=True)
        ]
        return rows, {
            "data": answers.loaded.summary(),
            "data_sha256": answers.loaded.sha256,
            "flagged_requests": sum(item.request_is_flagged for item in items),
            "prompt_version": verdicts[0].prompt_version,
            **judge_facts(verdicts),
        }

    return run_judge(profile, stage, execution, file, grade)


def _questions(item: _Item) -> list[Question]:
    if len(item.answers) == 1:
        return [quality_question(item.x, *item.answers)]
    return [pair_question(item.x, *order) for order in (item.answers, item.answers[::-1])]


def _quality_row(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    (verdict,) = verdicts
    return {
        "status": verdict.status,
        "value": verdict.value,
        "reason": verdict.reason,
        "model": verdict.model,
        "prompt_version": verdict.prompt_version,
        "usage": asdict(verdict.usage),
    }


def _pair_row(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    first, second = verdicts
    return {
        "outcome": metrics.pair_outcome(first.value, second.value),
        "first_order": first.value,
        "second_order": second.value,
        "consistent": (first.value, second.value) in _CONSISTENT,
        "statuses": [verdict.status for verdict in verdicts],
        "reasons": [verdict.reason for verdict in verdicts],
        "models": [verdict.model for verdict in verdicts],
        "prompt_version": first.prompt_version,
        "usage": asdict(first.usage + second.usage),
    }


def _items(profile: str, stages: Sequence[GenerateStage]) -> tuple[list[_Item], Answers]:
    """The prompts with the final answers of every policy, in the order of the first."""
    several = [load_answers(profile, stage) for stage in stages]
    texts = [_texts(answers, stage) for answers, stage in zip(several, stages, strict=True)]
    for stage, found in zip(stages[1:], texts[1:], strict=True):
        if lonely := sorted(set(found) ^ set(texts[0])):
            raise DataError(
                f"{stages[0].name} and {stage.name} do not answer the same prompts: {len(lonely)} "
                f"have one response only, the first with key {lonely[0]!r}"
            )
    answers = several[0]
    items = []
    for key in texts[0]:
        instance = answers.instances[key]
        replies = tuple(found[key] for found in texts)
        items.append(_Item(key, instance.x, instance.request_is_flagged, replies))
    return items, answers


def _texts(answers: Answers, stage: GenerateStage) -> dict[str, str]:
    """Final answers by key; an empty one is an empty text."""
    from califkit.models.resolve import load_tokenizer, resolve

    tokenizer = load_tokenizer(resolve(stage.model))
    return {
        row["key"]: final_answer(row["token_ids"], tokenizer, thinking=stage.thinking).text
        for row in answers.rows
    }
