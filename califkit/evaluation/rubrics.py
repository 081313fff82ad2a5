"""The rubric benchmarks as a stage: the answers of one policy, judged unit by unit.

FollowBench and AdvancedIF have a unit an item, ComplexBench one a scoring question. A judge is
asked about all units that no rule decides; its answers are kept in the judge's cache, so a stage
that was killed asks only for what is missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from califkit.generation import load_answers, rubric_items
from califkit.judges.cache import judge_cache
from califkit.judges.judge import Judge, JudgeError, Question, Usage, Verdict, unscored
from califkit.judges.parsing import Unparsable
from califkit.judges.rubrics import Reply, Request, Unreadable, judge_responses
from califkit.judges.rubrics.judge_text import without_reasoning
from califkit.models.engines import read_response
from califkit.models.resolve import load_tokenizer, resolve
from califkit.runs.folders import Run, open_run
from califkit.runs.jsonl import RowLog
from califkit.runs.judge_settings import JudgeSettings
from califkit.runs.settings import Execution
from califkit.runs.stages import GenerateStage, RubricStage

RUBRICS = "rubrics.jsonl"

# A judge's status -> that of the reply. A text that could not be read is read again, for what can
# be used of it all the same.
_STATUS = {"unparsable": "ok", "failed": "missing"}


def judge_rubrics(profile: str, stage: RubricStage, execution: Execution) -> Run:
    """Stage: judge the responses of one policy on a rubric benchmark.

    Writes `RUBRICS`, the rows of `califkit.judges.rubrics.Record` (``benchmark``, ``item``,
    ``prompt``, ``response``, ``request_sha256``, ``text``, ``verdict``), one a unit. The manifest
    has ``metrics``, ``counts`` and ``released`` of `califkit.judges.rubrics.Scores`, and what they
    depend on: source, language and hash of the data, judge and the model that answered, its usage
    (answers from the cache too), versions of the prompts, warnings. Only the answer after the
    reasoning is judged.

    Raises
    ------
    JudgeError
        If the judge cannot be used as it is set up, exceeds its limits, or gave no usable answer
        at all. Some failed calls are counted as missing verdicts, with a warning.
    DataError, RubricError
        If the benchmark cannot be used, or is not the one that the responses answer.
    ParamsError
        If the judge of ``execution`` is another one than that of the stage.
    """
    started = time.monotonic()
    run = open_run(profile, stage)
    with run.computing() as needed:
        if not needed:
            return run
        judge = Judge(execution.judge_like(stage.judge), judge_cache(profile, stage.judge))
        benchmark, loaded = rubric_items(stage.responses.evaluation)
        verdicts: list[Verdict] = []
        requests: list[Request] = []

        def ask(asked: Sequence[Request]) -> list[Reply]:
            requests.extend(asked)
            verdicts.extend(judge.judge_all([_question(request) for request in asked]))
            return [Reply(v.text, _STATUS.get(v.status, v.status)) for v in verdicts]

        answers = _answers(profile, stage.responses)
        records = judge_responses(benchmark, loaded.items, answers, ask)
        failed = _check_verdicts(judge.settings, verdicts)
        scores = benchmark.score(loaded.items, [record.verdict for record in records])
        RowLog(run.folder / RUBRICS).keep([record.as_row() for record in records])
        run.finish(
            started,
            rows=len(records),
            benchmark=benchmark.name,
            source=loaded.source,
            items=len(loaded.items),
            language=getattr(benchmark, "language", "en"),  # a choice in ComplexBench only
            data_sha256=loaded.sha256,
            warnings=[*loaded.warnings, *failed],
            judge=stage.judge.name,
            judge_models=sorted({verdict.model for verdict in verdicts if verdict.model}),
            prompt_versions=sorted({request.version for request in requests}),
            asked=len(requests),
            unscored=dict(unscored(verdicts)),
            usage=asdict(sum((verdict.usage for verdict in verdicts), Usage())),
            metrics=scores.metrics,
            counts=scores.counts,
            released=scores.released,
        )
    return run


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


def _question(request: Request) -> Question:
    return Question(request.messages, request.schema, _reader(request), request.version)


def _reader(request: Request) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            return request.read(without_reasoning(text))
        except Unreadable as problem:
            raise Unparsable(str(problem)) from problem

    return read


def _check_verdicts(settings: JudgeSettings, verdicts: Sequence[Verdict]) -> list[str]:
    """A warning if calls failed; JudgeError if no answer is usable, which says nothing of the
    policy."""
    if verdicts and not any(verdict.status == "ok" for verdict in verdicts):
        raise JudgeError(
            f"judge {settings.name}: none of {len(verdicts)} questions was answered; the first is "
            f"{verdicts[0].status} ({verdicts[0].reason})"
        )
    failed = sum(verdict.status == "failed" for verdict in verdicts)
    if not failed:
        return []
    return [
        f"judge {settings.name}: {failed} of {len(verdicts)} calls failed and count as not "
        "satisfied; to repeat them alone, delete the run folder and ask for the stage again"
    ]
