"""What stages say of themselves: the graph, and the functions that they name."""

import inspect
from pathlib import Path
from pkgutil import resolve_name

import pytest
from tiny_runs import tiny_params
from typer.main import get_command

from califkit.cli.main import app
from califkit.runs.settings import Execution
from califkit.runs.stages import JudgeStage, Stage

KINDS = (
    "anchors",
    "training",
    "generation",
    "scores",
    "identification",
    "quality",
    "pairwise",
    "rubrics",
)


def stages(folder: Path) -> dict[str, Stage]:
    """One stage of each kind, the policies being trained ones."""
    judge = {"name": "grader", "model": "m", "base_url": "http://127.0.0.1:9/v1"}
    settings = tiny_params(
        folder,
        judge="grader",
        rubrics=["advancedif"],
        identification={},
        execution={"judges": [judge]},
    ).settings
    last = [
        settings.anchor_stage(),
        settings.train_stages()[-1],
        settings.generate_stages()[-1],
        settings.score_stages()[-1],
        settings.identification_stages()[-1],
        *settings.judge_stages(),
    ]
    return {stage.kind: stage for stage in last}


def test_every_kind_is_looked_at(tmp_path):
    classes = [*Stage.__subclasses__(), *JudgeStage.__subclasses__()]
    assert tuple(cls.kind for cls in classes if cls is not JudgeStage) == KINDS
    assert set(stages(tmp_path)) == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_the_functions_that_a_stage_names_are_there(tmp_path, kind):
    stage = stages(tmp_path)[kind]
    for name in (stage.function, *stage.checks):
        inspect.signature(resolve_name(name)).bind("tiny", stage, Execution())
    inspect.signature(resolve_name(stage.unchanged)).bind(None)
    program, command, *_ = stage.command.split()
    assert program == "califkit" and command in get_command(app).commands


def test_what_a_stage_needs(tmp_path):
    by_kind = stages(tmp_path)
    needs = {kind: [needed.kind for needed in stage.needs] for kind, stage in by_kind.items()}
    assert needs == {
        "anchors": [],
        "training": ["anchors"],
        "generation": ["training"],
        "scores": ["generation"],
        "identification": ["generation"],
        "quality": ["generation"],
        "pairwise": ["generation", "generation"],
        "rubrics": ["generation"],
    }
    base = tiny_params(tmp_path).settings.generate_stages()[0]
    assert base.needs == ()


def test_processes_of_a_job(tmp_path):
    counts = {kind: s.processes(Execution(processes=4)) for kind, s in stages(tmp_path).items()}
    assert counts == dict.fromkeys(KINDS, 1) | {"anchors": 4, "training": 4}
