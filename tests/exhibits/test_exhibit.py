"""What every notebook does around its claim: its parameters, its runs, what it saves."""

import json
import os
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import papermill
import pytest

from califkit import exhibits
from califkit.runs.dispatch import NotSubmittedError
from califkit.runs.settings import ParamsError

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
WITHOUT_RUNS = ("00_tour", "fig4_region")


@pytest.fixture(autouse=True)
def own_options():
    with pd.option_context("display.max_rows", 60), plt.rc_context():
        yield
    plt.close("all")


@pytest.mark.parametrize(
    ("profile", "settings", "submit", "message"),
    [
        ("ci", {}, "false", "submit = 'false' is of type str, expected bool"),
        ("ci", {}, 0, "submit = 0 is of type int, expected bool"),
        ("ci", "{}", False, "settings = '{}' is of type str, expected dict"),
        ("ci", None, False, "settings = None is of type NoneType, expected dict"),
        (4, {}, False, "profile = 4 is of type int, expected str"),
    ],
)
def test_a_parameter_of_another_type_is_refused_before_anything_else(
    profile, settings, submit, message
):
    with pytest.raises(ParamsError) as caught:
        exhibits.open(profile, settings, submit)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_overrides_reach_the_settings_and_one_line_says_what_is_open(capsys):
    exhibit = exhibits.open("ci", {"training": {"steps": 5}}, False)
    assert (exhibit.profile, exhibit.settings.training.steps) == ("ci", 5)
    assert capsys.readouterr().out == "profile ci, model tiny-random-llama, judge: none\n"


def cells(path: Path) -> list[str]:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    return ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code"]


@pytest.fixture
def cluster(tmp_path, monkeypatch) -> Path:
    """A Slurm whose commands write down that they were called; the folder of the runs is empty."""
    calls = tmp_path / "calls"
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("sbatch", "srun", "squeue", "sacct"):
        (programs / name).write_text(f"#!/bin/sh\necho {name} >> {calls}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CALIFKIT_RUNS", str(tmp_path / "runs"))
    return calls


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_without_submit_a_notebook_starts_nothing_on_a_cluster(path, cluster, tmp_path):
    if path.stem in WITHOUT_RUNS:
        assert not any("exhibit.runs" in cell for cell in cells(path))
        return
    judge = {"name": "j", "model": "m", "base_url": "http://127.0.0.1:9/v1"}
    settings = {"execution": {"cluster": "slurm", "judges": [judge]}, "judge": "j"}
    parameters, *rest = cells(path)
    namespace: dict[str, object] = {"display": print}
    exec(parameters, namespace)
    namespace |= {"profile": "ci", "settings": settings, "submit": False}
    with pytest.raises(NotSubmittedError, match="With submit = True these jobs go to slurm"):
        for source in rest:
            exec(source, namespace)
    assert not cluster.exists()
    assert not any(file.is_file() for file in (tmp_path / "runs").rglob("*"))


@pytest.mark.slow
@pytest.mark.notebook
def test_the_template_runs_and_saves_its_picture(tmp_path, monkeypatch):
    for name in ("params", "results"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.setenv("CALIFKIT_ROOT", str(tmp_path))
    papermill.execute_notebook(
        str(ROOT / "notebooks" / "_template.ipynb"),
        str(tmp_path / "out.ipynb"),
        {"profile": "laptop"},
        kernel_name="python3",
        progress_bar=False,
    )
    saved = sorted(path.name for path in (tmp_path / "figures" / "laptop").iterdir())
    assert saved == ["template.csv", "template.pdf", "template.png"]
