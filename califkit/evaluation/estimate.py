"""What judges are going to be asked, counted before the first call: quality, pairs and rubrics."""

from __future__ import annotations

from collections.abc import Sequence

from califkit.evaluation.judging import JudgeStage, judge_of
from califkit.evaluation.quality import quality_questions
from califkit.evaluation.rubrics import rubric_questions
from califkit.judges.judge import Estimate, Judge
from califkit.judges.prompts import Question
from califkit.runs.folders import open_run
from califkit.runs.settings import Execution
from califkit.runs.stages import RubricStage


def estimates(
    profile: str, stages: Sequence[JudgeStage], execution: Execution
) -> dict[str, Estimate]:
    """What the incomplete stages would take, by name of the judge; the responses must be there."""
    questions: dict[str, list[Question]] = {}
    judges: dict[str, Judge] = {}
    for stage in stages:
        judges[stage.judge.name] = judge_of(profile, stage, execution)
        asked = questions.setdefault(stage.judge.name, [])
        if open_run(profile, stage).is_complete:
            continue
        if isinstance(stage, RubricStage):
            asked += rubric_questions(profile, stage)
        else:
            asked += [one for _, several in quality_questions(profile, stage)[0] for one in several]
    return {name: judges[name].estimate(asked) for name, asked in questions.items()}
