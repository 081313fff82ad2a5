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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd

from califkit import metrics
from califkit.data.load import DataError, Instance, Loaded
from califkit.evaluation.judging import judge_facts, run_judge
from califkit.generation import Answers, load_answers, whose
from califkit.judges.judge import Judge
from califkit.judges.prompts import Question, pair_question, quality_question
from califkit.judges.verdicts import Verdict
from califkit.models.reasoning import final_answer
from califkit.models.resolve import load_tokenizer, resolve
from califkit.runs.folders import Run
from califkit.runs.jsonl import read_jsonl
from califkit.runs.settings import Execution
from califkit.runs.stages import GenerateStage, PairwiseStage, QualityStage, stage_hash

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


def quality_by_run(quality_runs: Sequence[Run]) -> pd.DataFrame:
    """One row for the responses of a run: ``method``, ``train_seed``, ``eval_seed``,
    ``response_quality`` (mean of the scored responses, NaN if there is none), ``n``,
    ``quality_unscored`` (by every judge), ``judge`` (as `mean_quality` names them).

    A run of a judge with more than one per cent unscored responses is warned of. Raises as
    `mean_quality`.
    """
    graded, judge = mean_quality(quality_runs)
    stages = {stage_hash(run.stage.responses): run.stage.responses for run in quality_runs}
    rows = []
    for name, stage in stages.items():
        scores = list(graded[name].values())
        rows.append(
            {
                **whose(stage),
                "response_quality": metrics.nan_mean(scores),
                "n": len(scores),
                "quality_unscored": int(np.isnan(scores).sum()),
                "judge": judge,
            }
        )
    columns = ["method", "train_seed", "eval_seed", "response_quality", "n", "quality_unscored"]
    return pd.DataFrame(rows, columns=[*columns, "judge"])


def mean_quality(quality_runs: Sequence[Run]) -> tuple[dict[str, dict[str, float]], str]:
    """Response quality by the hash of the responses' stage and by key, and who gave it.

    The quality of a response is the mean over the judges that have scored it (paper, section 1),
    NaN if none has. One judge is called by its name; of several it is also said how many of the
    responses each has scored. Raises ValueError if not all responses were put to the same judges,
    or to one of them in several wordings: such numbers do not compare.
    """
    verdicts: dict[str, dict[str, list[float]]] = {}
    asked: dict[str, set[tuple[str, str]]] = {}
    of_judge: dict[str, list[float]] = {}
    for run in quality_runs:
        name, responses = run.stage.judge.name, stage_hash(run.stage.responses)
        rows = read_jsonl(run.folder / QUALITY)
        values = [np.nan if row["value"] is None else float(row["value"]) for row in rows]
        missing = int(np.isnan(values).sum())
        if missing > _MANY_UNSCORED * len(values):
            warnings.warn(
                f"{run.stage.name}: {missing} of {len(values)} responses are unscored; the mean "
                "is over the others",
                stacklevel=3,
            )
        of_judge.setdefault(name, []).extend(values)
        asked.setdefault(responses, set()).update((name, row["prompt_version"]) for row in rows)
        by_key = verdicts.setdefault(responses, {})
        for row, value in zip(rows, values, strict=True):
            by_key.setdefault(row["key"], []).append(value)
    kinds = sorted(set().union(*asked.values()))
    if any(len(of) < len(kinds) for of in asked.values()) or len(kinds) > len(of_judge):
        named = ", ".join(f"{judge} with prompt {version}" for judge, version in kinds)
        raise ValueError(f"response quality of different kinds in one table: {named}")
    means = {
        responses: {key: metrics.nan_mean(values) for key, values in by_key.items()}
        for responses, by_key in verdicts.items()
    }
    return means, name_judges(of_judge)


def name_judges(scores: Mapping[str, Sequence[float]]) -> str:
    """How tables call the judges: one by its name, of several also how many responses each has
    scored (not NaN); empty without a judge."""
    if len(scores) == 1:
        return next(iter(scores))
    scored = {judge: len(values) - int(np.isnan(values).sum()) for judge, values in scores.items()}
    return ", ".join(f"{judge} ({n} of {len(scores[judge])})" for judge, n in scored.items())


def _judged(
    profile: str,
    stage: QualityStage | PairwiseStage,
    execution: Execution,
    file: str,
    row: Callable[[Sequence[Verdict]], dict[str, Any]],
) -> Run:
    def grade(judge: Judge) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        asked, loaded = quality_questions(profile, stage)
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


def quality_questions(
    profile: str, stage: QualityStage | PairwiseStage
) -> tuple[list[tuple[Instance, list[Question]]], Loaded]:
    """What is asked about each prompt: one policy's answer, or two policies' in both orders."""
    stages = stage.needs
    several = [load_answers(profile, stage) for stage in stages]
    texts = [_texts(answers, stage) for answers, stage in zip(several, stages, strict=True)]
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
