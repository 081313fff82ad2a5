"""What a notebook gets when it asks for runs: opened, computed, or a list of jobs."""

import pytest

from califkit.runs import dispatch
from califkit.runs.folders import MANIFEST, open_run
from califkit.runs.jsonl import write_json
from califkit.runs.params import load_params


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """Parameters on a cluster, their stages, and the calls that would compute them."""
    monkeypatch.setenv("CALIFKIT_RUNS", str(tmp_path))
    calls = []

    def compute_all(profile, stages, execution, on_tick=None):
        calls.append(execution.cluster)
        return [open_run(profile, stage) for stage in stages]

    monkeypatch.setattr(dispatch, "compute_all", compute_all)
    params = load_params("ci", {"execution": {"cluster": "slurm"}})
    return params, params.settings.train_stages(), calls


def complete(profile, stage):
    run = open_run(profile, stage)
    run.folder.mkdir(parents=True)
    write_json(run.folder / MANIFEST, {})


def test_the_job_list_tells_what_is_there_and_what_is_to_do(asked):
    params, stages, _ = asked
    complete(params.profile, stages[0])
    rows = dispatch.job_list(params.profile, stages)
    assert [row["state"] for row in rows] == ["complete", "to do"]
    assert [row["name"] for row in rows] == ["if_rlvr-seed0", "calif-seed0"]
    assert rows[1]["folder"].startswith("ci/training/calif-seed0-")


def test_nothing_goes_to_a_cluster_unless_submit_is_true(asked):
    params, stages, calls = asked
    complete(params.profile, stages[0])
    with pytest.raises(dispatch.NotSubmittedError, match="1 of 2 runs") as error:
        dispatch.ensure(params, stages)
    assert "calif-seed0" in str(error.value)
    assert "if_rlvr-seed0" not in str(error.value)
    assert calls == []
    dispatch.ensure(params, stages, submit=True)
    assert calls == ["slurm"]


def test_complete_runs_are_opened_without_submit(asked):
    params, stages, _ = asked
    for stage in stages:
        complete(params.profile, stage)
    assert [run.stage for run in dispatch.ensure(params, stages)] == stages


def test_a_local_profile_computes_what_is_missing(asked):
    _, stages, calls = asked
    dispatch.ensure(load_params("ci"), stages)
    assert calls == ["local"]
