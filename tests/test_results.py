"""The runs recorded in results/ belong to the profile and the data of this version."""

from califkit.data.prompts import training_prompts
from califkit.runs.arms import load_arms
from califkit.runs.folders import ROLLOUTS, open_run, own_run, record_runs
from califkit.runs.jsonl import read_jsonl
from califkit.runs.params import load_params
from califkit.runs.paths import results_dir
from califkit.runs.stages import stage_hash


def test_every_recorded_run_is_opened_by_the_stage_of_its_hash(tmp_path, monkeypatch):
    """Profile, kind, name and hash of every folder are those of the profile's stages today."""
    monkeypatch.setenv("CALIFKIT_RUNS", str(tmp_path))
    opened = set()
    for profile in results_dir().iterdir():
        settings = load_params(profile.name).settings
        own = [
            *settings.train_stages(),
            *settings.score_stages(),
            *settings.identification_stages(),
            *settings.judge_stages(),
        ]
        assert all(open_run(profile.name, stage).is_complete for stage in own)
        assert not own_run(profile.name, own[0]).is_complete
        stages = own + [stage for arm in load_arms(profile.name) for stage in arm.stages]
        for stage in stages:
            stages += stage.needs  # also of what is appended here
        runs = {run.folder: run for run in (open_run(profile.name, stage) for stage in stages)}
        for run in (run for run in runs.values() if run.is_complete):
            manifest = run.manifest()
            assert manifest["stage"] == run.stage.kind
            recorded = type(run.stage).model_validate(manifest["settings"])
            assert manifest["hash"] == stage_hash(run.stage) == stage_hash(recorded)
            opened.add(run.folder)
    assert opened == set(results_dir().glob("*/*/*"))


def test_recorded_training_used_the_prompts_that_are_composed_today():
    settings = load_params("laptop").settings
    loaded = training_prompts(settings.data)
    for stage in [settings.anchor_stage(), *settings.train_stages()]:
        assert open_run("laptop", stage).manifest()["data_sha256"] == loaded.sha256


def test_recorded_rollouts_have_one_row_a_rollout():
    settings = load_params("laptop").settings
    rollouts = settings.training.prompts_per_step * settings.training.rollouts_per_prompt
    for stage in settings.train_stages():
        rows = read_jsonl(open_run("laptop", stage).folder / ROLLOUTS)
        assert len(rows) == settings.training.steps * rollouts


def test_recording_copies_rows_and_manifest_but_no_weights(tmp_path, monkeypatch):
    monkeypatch.setenv("CALIFKIT_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("CALIFKIT_ROOT", str(tmp_path))
    run = tmp_path / "runs" / "tiny" / "training" / "calif-seed0-0123456789"
    (run / "policy").mkdir(parents=True)
    (run / "policy" / "model.safetensors").write_bytes(b"weights")
    (run / "log.jsonl").write_text('{"step": 1}\n')
    unfinished = run.with_name("calif-seed1-0123456789")
    unfinished.mkdir()
    (unfinished / "log.jsonl").write_text('{"step": 1}\n')
    (run / "manifest.json").write_text("{}")
    (folder,) = record_runs("tiny")
    assert sorted(path.name for path in folder.iterdir()) == ["log.jsonl", "manifest.json"]
    assert folder.is_relative_to(tmp_path / "results")
