"""A study at a glance, from what is in its run folders."""

import json

import pytest
import yaml
from tiny_runs import SETTINGS

from califkit.exhibits.campaign import (
    LiveCampaign,
    campaign_table,
    log_of,
    plan_table,
    training_steps,
)
from califkit.exhibits.plots.study import campaign_curves
from califkit.runs import jobs
from califkit.runs.arms import load_arms
from califkit.runs.folders import LOG, MANIFEST, open_run


@pytest.fixture
def arms(tmp_path, monkeypatch):
    """Two arms: one complete, one killed in its second of three steps."""
    monkeypatch.setenv("CALIFKIT_RUNS", str(tmp_path / "runs"))
    groups = {"main": {"arms": {m: {"methods": [m]} for m in ("if_rlvr", "calif")}}}
    study = {"profile": "tiny", "settings": SETTINGS, "groups": groups}
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(study, sort_keys=False))
    done, killed = load_arms(tmp_path / "tiny.yaml")
    for stage in _with_all_needs(done.stages):
        folder = open_run("tiny", stage).folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MANIFEST).write_text("{}")
    log(done, 3)
    run = log(killed, 2)
    (run.folder / jobs.JOB).write_text(json.dumps({"cluster": "local", "id": "999999999"}))
    logs = run.folder / "jobs"
    logs.mkdir()
    (logs / "999999999_0_log.out").write_text("".join(f"line {i}\n" for i in range(100)))
    return done, killed


def _with_all_needs(stages):
    return [s for stage in stages for s in (*_with_all_needs(stage.needs), stage)]


def log(arm, steps: int):
    run = open_run("tiny", arm.params.settings.train_stages()[0])
    run.folder.mkdir(parents=True, exist_ok=True)
    rows = [
        json.dumps({"step": i + 1, "seconds": 36.0 * (i + 1), "r_ver": 0.5, "loglik": -2.0})
        for i in range(steps)
    ]
    (run.folder / LOG).write_text("\n".join(rows) + "\n")
    return run


def test_a_row_an_arm_says_what_it_has_done_and_what_is_left(arms):
    done, killed = campaign_table(arms).to_dict("records")
    assert (done["state"], done["runs"], done["step"]) == ("complete", "6 of 6", "3 of 3")
    assert done["hours left"] == 0
    assert done["GPU hours used"] == pytest.approx(36 * (1 + 2 + 3) / 3600)
    # Anchors and the base policy are shared with the other arm.
    assert (killed["state"], killed["runs"], killed["job"]) == ("failed", "3 of 6", "999999999")
    assert killed["step"] == "2 of 3"
    assert killed["hours left"] == pytest.approx(54 / 3600), "the median of 36 and 72 seconds"
    assert killed["GPU hours planned"] > 0


def test_the_plan_has_what_is_missing(arms):
    table = plan_table(arms).set_index("stage")["runs"]
    assert table.to_dict() == {"training": 1, "generation": 1, "scores": 1}
    assert plan_table(arms[:1]).empty


def test_the_log_of_an_arm(arms):
    text = log_of(arms, "calif", lines=3)
    assert text == "training calif-seed0, job 999999999:\nline 97\nline 98\nline 99"
    assert "none of its unfinished runs" in log_of(arms, "if_rlvr")
    assert log_of(arms, "other") == "no arm 'other'; there are: if_rlvr, calif"


def test_the_table_and_the_curves_are_shown_in_place(arms, monkeypatch):
    shown = []

    class Shown:
        def __init__(self, content):
            shown.append(content)

        def update(self, content):
            shown.append(content)

    monkeypatch.setattr("califkit.exhibits.live.display", lambda one, display_id: Shown(one))
    live = LiveCampaign(arms)
    live()
    table, picture = shown
    assert table.equals(campaign_table(arms)) and picture.data.startswith(b"\x89PNG")
    live()
    assert len(shown) == 2, "nothing has changed"
    log(arms[1], 3)
    live()
    assert len(shown) == 4 and shown[2]["step"].tolist() == ["3 of 3", "3 of 3"]
    (open_run("tiny", arms[0].params.settings.train_stages()[0]).folder / LOG).unlink()
    (open_run("tiny", arms[1].params.settings.train_stages()[0]).folder / LOG).unlink()
    LiveCampaign(arms)()
    assert len(shown) == 5 and "state" in shown[4], "the table alone, before the first step"
    log(arms[0], 3)
    log(arms[1], 3)
    steps = training_steps(arms)
    assert steps["arm"].tolist() == ["if_rlvr"] * 3 + ["calif"] * 3
    assert len(campaign_curves(steps)[0].lines) == 2
