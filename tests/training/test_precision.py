"""What a run computes in: as it was begun, as asked for, or what is faster."""

import json
from pathlib import Path

import pytest
import torch

from califkit.runs.folders import StaleRunError
from califkit.runs.settings import TrainingSettings
from califkit.training import precision
from califkit.training.precision import bfloat16_speed, training_precision


def begin(run: Path, bf16: bool) -> None:
    """What a killed run leaves: the facts of its start and a whole checkpoint."""
    checkpoint = run / "checkpoints" / "checkpoint-2"
    checkpoint.mkdir(parents=True)
    (run / "checkpoints" / "facts.json").write_text(json.dumps({"trl_config": {"bf16": bf16}}))
    (checkpoint / "trainer_state.json").write_text("{}")


@pytest.mark.parametrize(
    ("speed", "processes", "expected"),
    [(1.29, 1, "float32"), (1.3, 1, "bfloat16"), (9.0, 2, "float32")],
)
def test_a_cpu_takes_bfloat16_where_it_pays(tmp_path, monkeypatch, speed, processes, expected):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(precision, "bfloat16_speed", lambda: speed)
    assert training_precision(None, tmp_path, processes) == expected


def test_a_gpu_takes_bfloat16(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert training_precision(None, tmp_path, processes=8) == "bfloat16"


@pytest.mark.parametrize("asked", ["float32", "bfloat16"])
def test_what_is_asked_for_is_taken(tmp_path, asked):
    assert training_precision(asked, tmp_path) == asked


@pytest.mark.parametrize(("bf16", "before"), [(True, "bfloat16"), (False, "float32")])
def test_a_run_goes_on_as_it_was_begun(tmp_path, monkeypatch, bf16, before):
    begin(tmp_path, bf16)
    for speed in (0.1, 9.0):
        monkeypatch.setattr(precision, "bfloat16_speed", lambda speed=speed: speed)
        assert training_precision(None, tmp_path) == before
    assert training_precision(before, tmp_path) == before
    other = "float32" if bf16 else "bfloat16"
    with pytest.raises(StaleRunError, match=f"begun in {before} and cannot go on in {other}"):
        training_precision(other, tmp_path)


def test_a_run_without_a_checkpoint_begins_again(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "facts.json").write_text('{"trl_config": {"bf16": true}}')
    assert training_precision("float32", tmp_path) == "float32"


def test_the_measurement_leaves_the_random_state_alone():
    state = torch.get_rng_state()
    assert bfloat16_speed() > 0
    assert torch.equal(torch.get_rng_state(), state)


def test_auto_is_stored_as_nothing():
    assert TrainingSettings(precision="auto") == TrainingSettings()
    assert TrainingSettings(precision="auto").precision is None
    assert TrainingSettings(precision="bfloat16").precision == "bfloat16"
    with pytest.raises(ValueError, match="precision"):
        TrainingSettings(precision="float16")
