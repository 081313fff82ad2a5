"""What every stage of a judge does: ask, refuse to go on if nothing was scored, write rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from califkit.judges.cache import judge_cache
from califkit.judges.judge import Judge
from califkit.judges.verdicts import Usage, Verdict, unscored
from califkit.runs.folders import Run, open_run
from califkit.runs.jsonl import RowLog
from califkit.runs.settings import Execution
from califkit.runs.stages import PairwiseStage, QualityStage, RubricStage

JudgeStage = QualityStage | PairwiseStage | RubricStage
Rows = list[dict[str, Any]]


def run_judge(
    profile: str,
    stage: JudgeStage,
    execution: Execution,
    file: str,
    grade: Callable[[Judge], tuple[Rows, dict[str, Any]]],
) -> Run:
    """Compute a stage, unless it is complete: rows and facts of the manifest come from ``grade``.

    Raises `ParamsError` if ``execution`` has no such judge, or one that would answer otherwise, and
    `JudgeError` if the judge cannot be used, exceeds its limits or has scored nothing.
    """
    started = time.monotonic()
    run = open_run(profile, stage)
    with run.computing() as needed:
        if needed:
            rows, facts = grade(judge_of(profile, stage, execution))
            RowLog(run.folder / file).keep(rows)
            run.finish(started, rows=len(rows), **facts)
    return run


def judge_of(profile: str, stage: JudgeStage, execution: Execution) -> Judge:
    """The judge of a stage, with the answers that it has given in this profile."""
    return Judge(execution.judge_like(stage.judge), judge_cache(profile, stage.judge))


def judge_facts(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """What the manifest says of the judge; ``usage`` counts answers from the cache too."""
    return {
        "judge_models": sorted({verdict.model for verdict in verdicts if verdict.model}),
        "unscored": dict(unscored(verdicts)),
        "usage": asdict(sum((verdict.usage for verdict in verdicts), Usage())),
    }
