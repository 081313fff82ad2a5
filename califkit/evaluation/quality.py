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
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd

from califkit import metrics
from califkit.data.load import DataError, Instance, Loaded
from califkit.evaluation.judging import judge_facts, judge_of, run_judge
from califkit.generation import Answers, load_answers, whose
from califkit.judges.judge import Estimate, Judge
from califkit.judges.prompts import Question, pair_question, quality_question
from califkit.judges.verdicts import Verdict
from califkit.models.reasoning import final_answer
from califkit.models.resolve import load_tokenizer, resolve
from califkit.runs.folders import Run, open_run
from califkit.runs.jsonl import read_jsonl
from califkit.runs.settings import Execution
from califkit.runs.stages import GenerateStage, PairwiseStage, QualityStage

QUALITY = "quality.jsonl"
PAIRS = "pairs.jsonl"
_MANY_UNSCORED = 0.01
_CONSISTENT = (("first", "second"), ("second", "first"), ("tie", "tie"))
"""Verdicts in the two orders that say the same of the responses."""


def judge_quality(profile: str, stage: QualityStage, execution: Execution) -> Run:
    """Stage: response quality of every response of one policy (paper, section 1; A13).

    Writes `QUALITY`, a row a response: ``key``, ``status`` (of
    `califkit.judges.verdicts.Verdict`), ``value`` (1 to 10, None if unscored), ``reason`` (why it
    is unscored), ``model`` (as the endpoint names it), ``prompt_version``, ``usage``,
    ``request_is_flagged``. Raises as `califkit.evaluation.judging.run_judge`.
    """
    return _judged(profile, stage, execution, QUALITY, _quality_row)


def judge_pairs(profile: str, stage: PairwiseStage, execution: Execution) -> Run:
    """Stage: which of two policies answers each prompt better (paper, Table 5; A21).

    Pairs answer the same prompt and are judged in both orders. Writes `PAIRS`, a row a pair:
    ``key``, ``outcome`` (``win``, ``tie`` or ``loss`` of the first policy), ``first_order`` and
    ``second_order`` (``first``, ``second`` or ``tie``, which speak of what is shown: the first
    policy stands first, then second; None if unscored), ``consistent``, and of both orders
    ``statuses``, ``reasons``, ``models``; ``prompt_version``, ``usage`` of both together,
    ``request_is_flagged``. Raises as `judge_quality`, and `DataError` if the policies do not answer
    the same prompts.
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
    """What the incomplete stages would take, by name of the judge; the responses must be there."""
    questions: dict[str, list[Question]] = {}
    judges: dict[str, Judge] = {}
    for stage in stages:
        judges[stage.judge.name] = judge_of(profile, stage, execution)
        asked = questions.setdefault(stage.judge.name, [])
        if not open_run(profile, stage).is_complete:
            asked += [one for _, several in _questions(profile, stage)[0] for one in several]
    return {name: judges[name].estimate(asked) for name, asked in questions.items()}


def _judged(
    profile: str,
    stage: QualityStage | PairwiseStage,
    execution: Execution,
    file: str,
    row: Callable[[Sequence[Verdict]], dict[str, Any]],
) -> Run:
    def grade(judge: Judge) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        asked, loaded = _questions(profile, stage)
        verdicts = judge.judge_all([question for _, several in asked for question in several])
        judge.check_some_are_scored(verdicts)
        following = iter(verdicts)
        rows = [
            {"key": instance.key}
            | row([next(following) for _ in several])
            | {"request_is_flagged": instance.request_is_flagged}
            for instance, several in asked
        ]
        return rows, {
            "data": loaded.summary(),
            "data_sha256": loaded.sha256,
            "flagged_requests": sum(instance.request_is_flagged for instance, _ in asked),
            "prompt_version": verdicts[0].prompt_version,
            **judge_facts(verdicts),
        }

    return run_judge(profile, stage, execution, file, grade)


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


def _questions(
    profile: str, stage: QualityStage | PairwiseStage
) -> tuple[list[tuple[Instance, list[Question]]], Loaded]:
    """What is asked about each prompt: one policy's answer, or two policies' in both orders."""
    stages = stage.needs
    several = [load_answers(profile, stage) for stage in stages]
    texts = [_texts(answers, one) for answers, one in zip(several, stages, strict=True)]
    if lonely := sorted(set(texts[0]) ^ set(texts[-1])):
        raise DataError(
            f"{stages[0].name} and {stages[-1].name} do not answer the same prompts: {len(lonely)} "
            f"have one response only, the first with key {lonely[0]!r}"
        )
    asked = []
    for key in texts[0]:
        instance = several[0].instances[key]
        first, second = texts[0][key], texts[-1][key]
        if len(stages) == 1:
            questions = [quality_question(instance.x, first, stage.judge.prompt)]
        else:
            orders = [(first, second), (second, first)]
            questions = [pair_question(instance.x, *order) for order in orders]
        asked.append((instance, questions))
    return asked, several[0].loaded


def _texts(answers: Answers, stage: GenerateStage) -> dict[str, str]:
    """Final answers by key; an empty one is an empty text."""
    tokenizer = load_tokenizer(resolve(stage.model))
    return {
        row["key"]: final_answer(row["token_ids"], tokenizer, thinking=stage.thinking).text
        for row in answers.rows
    }
