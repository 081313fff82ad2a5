"""The rubric benchmarks as a stage: the answers of one policy, judged unit by unit.

FollowBench and AdvancedIF have a unit an item, ComplexBench one a scoring question. A judge is
asked about all units that no rule decides; its answers are kept in the judge's cache, so a stage
that was killed asks only for what is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from califkit.evaluation.judging import judge_facts, run_judge
from califkit.generation import load_answers, rubric_items
from califkit.judges.judge import Judge
from califkit.judges.prompts import Question
from califkit.judges.rubrics import judge_responses
from califkit.judges.verdicts import Verdict
from califkit.models.engines import read_response
from califkit.models.resolve import load_tokenizer, resolve
from califkit.runs.folders import Run
from califkit.runs.settings import Execution
from califkit.runs.stages import GenerateStage, RubricStage

RUBRICS = "rubrics.jsonl"


def judge_rubrics(profile: str, stage: RubricStage, execution: Execution) -> Run:
    """Stage: judge the responses of one policy on a rubric benchmark.

    Writes `RUBRICS`, a row of `califkit.judges.rubrics.base.Judged` a unit. The manifest has
    ``metrics``, ``counts`` and ``released`` of `califkit.judges.rubrics.base.Scores`, and what they
    depend on: source, language and hash of the data, judge and the model that answered, its usage
    (answers from the cache too), versions of the prompts, warnings. Only the answer after the
    reasoning is judged. Some failed calls are missing verdicts, with a warning.

    Raises as `califkit.evaluation.judging.run_judge`, and `DataError` or `RubricError` if the
    benchmark cannot be used, or is not the one that the responses answer.
    """

    def grade(judge: Judge) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        benchmark, loaded = rubric_items(stage.responses.evaluation)
        verdicts: list[Verdict] = []

        def ask(questions: Sequence[Question]) -> list[Verdict]:
            verdicts.extend(judge.judge_all(questions))
            judge.check_some_are_scored(verdicts)
            return verdicts

        answers = _answers(profile, stage.responses)
        judged = judge_responses(benchmark, loaded.items, answers, ask)
        scores = benchmark.score(loaded.items, {entry.unit: entry.verdict for entry in judged})
        return [entry.as_row() for entry in judged], {
            "benchmark": benchmark.name,
            "source": loaded.source,
            "items": len(loaded.items),
            "language": getattr(benchmark, "language", "en"),  # a choice in ComplexBench only
            "data_sha256": loaded.sha256,
            "warnings": [*loaded.warnings, *_failed_calls(judge, verdicts)],
            "judge": stage.judge.name,
            "prompt_versions": sorted({verdict.prompt_version for verdict in verdicts}),
            "asked": len(verdicts),
            "metrics": scores.metrics,
            "counts": scores.counts,
            "released": scores.released,
            **judge_facts(verdicts),
        }

    return run_judge(profile, stage, execution, RUBRICS, grade)


def rubric_questions(profile: str, stage: RubricStage) -> list[Question]:
    """What `judge_rubrics` asks about the responses, which must be there."""
    asked: list[Question] = []

    def note(questions: Sequence[Question]) -> list[Verdict]:
        asked.extend(questions)
        return [Verdict("missing")] * len(questions)

    benchmark, loaded = rubric_items(stage.responses.evaluation)
    judge_responses(benchmark, loaded.items, _answers(profile, stage.responses), note)
    return asked


def _answers(profile: str, stage: GenerateStage) -> dict[str, str]:
    """What is judged, by item: the answer after the reasoning, else the response as it stands (the
    rules compare whole texts, white space included)."""
    tokenizer = load_tokenizer(resolve(stage.model))
    answers = {}
    for row in load_answers(profile, stage).rows:
        whole = row["response"]
        answer = read_response(row, tokenizer, stage.thinking).answer.text
        answers[row["key"]] = whole if whole.strip() == answer else answer
    return answers


def _failed_calls(judge: Judge, verdicts: Sequence[Verdict]) -> list[str]:
    failed = sum(verdict.status == "failed" for verdict in verdicts)
    if not failed:
        return []
    return [
        f"judge {judge.settings.name}: {failed} of {len(verdicts)} calls failed and count as not "
        "satisfied; to repeat them alone, delete the run folder and ask for the stage again"
    ]
