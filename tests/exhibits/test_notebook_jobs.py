"""What each notebook asks of a cluster, whose scheduler is a script: nothing unless it is told to.

The cells of a notebook are executed here up to the one that asks for runs.
"""

import json
import subprocess
import time
from pathlib import Path

import pytest
import yaml

from califkit.exhibits.checkpoints import pair_stages
from califkit.runs import compute, dispatch, jobs, slurm
from califkit.runs.dispatch import NotSubmittedError
from califkit.runs.folders import MANIFEST, open_run
from califkit.runs.jsonl import write_json
from califkit.runs.params import Settings, load_params

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
WITHOUT_RUNS = {"00_tour", "fig4_region"}
"""Notebooks that need no run."""

ANCHORS_ALONE = {"01_anchors", "fig1_blind_spot", "fig2_example"}
"""Notebooks that need no training."""

ASKED_FOR = {
    "01_anchors": lambda settings: [settings.anchor_stage()],
    "02_train": Settings.train_stages,
    "tab1_rubrics": Settings.rubric_stages,
    "fig3_pairs": pair_stages,
    "fig1_blind_spot": lambda settings: [settings.anchor_stage()],
    "fig2_example": lambda settings: [settings.anchor_stage()],
}
"""What a notebook asks for first, if not the scores of all policies."""

JUDGED = {
    "fig3_pairs": lambda settings: settings.quality_of(
        [stage.responses for stage in pair_stages(settings)]
    ),
    "03_evaluate": Settings.quality_stages,
    "fig5_main_results": Settings.quality_stages,
    "tab2_transitions": Settings.quality_stages,
    "tab5_pairwise": Settings.pairwise_stages,
    "fig7_constraint_types": Settings.quality_stages,
    "tab1_rubrics": Settings.rubric_stages,
    "tab6_inflation": Settings.quality_stages,
    "tab7_tab8_examples": Settings.quality_stages,
}


class Left(BaseException):
    """Instead of waiting for the cluster."""


@pytest.fixture
def project(tmp_path, monkeypatch, fake_slurm):
    """A project with the ci profile on a cluster, with a judge that nobody reaches."""
    (tmp_path / "params").mkdir()
    profile = yaml.safe_load((ROOT / "params" / "ci.yaml").read_text())
    judge = {"name": "grader", "model": "m", "base_url": "http://127.0.0.1:9/v1"}
    profile["settings"] |= {"judge": "grader", "rubrics": ["advancedif"]}
    profile["settings"]["execution"] |= {"cluster": "slurm", "judges": [judge]}
    (tmp_path / "params" / "ci.yaml").write_text(yaml.safe_dump(profile))
    monkeypatch.setenv("CALIFKIT_ROOT", str(tmp_path))
    monkeypatch.setenv("CALIFKIT_RUNS", str(tmp_path / "runs"))
    monkeypatch.setattr(dispatch, "compute", forbidden)
    monkeypatch.setattr(compute, "_compute", forbidden)
    return tmp_path


def forbidden(*arguments: object, **options: object) -> None:
    raise AssertionError("a notebook computes a stage by itself, or calls something")


def leave(seconds: float, sleep=time.sleep) -> None:
    if seconds >= 1:  # shorter ones are those of `subprocess`
        raise Left
    sleep(seconds)


def cells_of(path: Path) -> list[str]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def execute(path: Path, submit: bool) -> None:
    """Run the cells with these parameters, until one raises."""
    parameters, *cells = cells_of(path)
    names: dict[str, object] = {}
    exec(parameters, names)
    names |= {"profile": "ci", "submit": submit}
    for cell in cells:
        exec(compile(cell, path.name, "exec"), names)
    raise AssertionError("the notebook asked for nothing")


def listed(error: pytest.ExceptionInfo) -> list[str]:
    """The folders that the message says will be computed."""
    return [line.strip() for line in str(error.value).splitlines()[1:]]


def submitted(project: Path) -> list[str]:
    """The folders that hold a job, below the runs folder."""
    found = (project / "runs").rglob(jobs.JOB)
    return ["/".join(path.parent.parts[-3:]) for path in found]


def complete(stages: list, profile: str = "ci") -> None:
    for stage in stages:
        run = open_run(profile, stage)
        run.folder.mkdir(parents=True, exist_ok=True)
        write_json(run.folder / MANIFEST, {})
        complete(stage.needs, profile)


with_runs = pytest.mark.parametrize(
    "path",
    [path for path in NOTEBOOKS if path.stem not in WITHOUT_RUNS],
    ids=lambda path: path.stem,
)


@pytest.mark.parametrize("name", sorted(WITHOUT_RUNS))
def test_a_notebook_without_runs_asks_for_none(name):
    text = "\n".join(cells_of(ROOT / "notebooks" / f"{name}.ipynb"))
    assert not any(word in text for word in ("dispatch", "_stage", ".runs("))


@with_runs
def test_it_starts_nothing_unless_submit_is_true(project, fake_slurm, monkeypatch, path):
    before = sorted(fake_slurm.iterdir())
    with monkeypatch.context() as patch:
        for place, name in ((subprocess, "Popen"), (jobs, "start"), (dispatch, "check_stages")):
            patch.setattr(place, name, forbidden)
        with pytest.raises(NotSubmittedError) as error:
            execute(path, submit=False)
    assert not (project / "runs").exists() and sorted(fake_slurm.iterdir()) == before
    stages = ASKED_FOR.get(path.stem, Settings.score_stages)(load_params("ci").settings)
    folders = listed(error)
    assert {"/".join(open_run("ci", s).folder.parts[-3:]) for s in stages} <= set(folders)
    kinds = {folder.split("/")[1] for folder in folders}
    assert ("training" in kinds) == (path.stem not in ANCHORS_ALONE), "with what they need"

    monkeypatch.setattr(dispatch.time, "sleep", leave)
    slurm.forget()
    with pytest.raises(Left):
        execute(path, submit=True)
    judged = {folder for folder in folders if folder.split("/")[1] in ("quality", "rubrics")}
    assert set(submitted(project)) == set(folders) - judged, "what was said is submitted"


@pytest.mark.parametrize("name", JUDGED)
def test_judging_waits_for_submit_too(project, fake_slurm, monkeypatch, name):
    """Everything is there but what a judge has to do."""
    settings = load_params("ci").settings
    complete([*settings.score_stages(), *(s for j in settings.judge_stages() for s in j.needs)])
    path = ROOT / "notebooks" / f"{name}.ipynb"
    with monkeypatch.context() as patch:
        patch.setattr(jobs, "start", forbidden)
        with pytest.raises(NotSubmittedError) as error:
            execute(path, submit=False)
    expected = ["/".join(open_run("ci", s).folder.parts[-3:]) for s in JUDGED[name](settings)]
    assert listed(error) == expected and not submitted(project)
    judged = []

    def judge_here(profile, stage, execution):
        """What a judge does is no job: it wants a network and nothing of a node."""
        complete([stage])
        judged.append("/".join(open_run(profile, stage).folder.parts[-3:]))
        if len(judged) == len(expected):
            raise Left

    monkeypatch.setattr(dispatch, "compute", judge_here)
    with pytest.raises(Left):
        execute(path, submit=True)
    assert sorted(judged) == sorted(expected) and not submitted(project)


def test_every_notebook_is_looked_at():
    names = {path.stem for path in NOTEBOOKS}
    assert WITHOUT_RUNS | set(ASKED_FOR) | set(JUDGED) <= names
