"""Rows, samples, lines and alarms of a training run, without training."""

import tracemalloc
from types import SimpleNamespace

import pytest

from califkit.runs.folders import LOG, ROLLOUTS
from califkit.runs.jsonl import read_jsonl
from califkit.training.log import SAMPLE_LENGTH, TrainingLog, samples


def rollout(number: int) -> dict:
    return {
        "key": f"k{number % 4}",
        "completion": f"{number}" * 1000,
        "r_ver": 0.5,
        "loglik": -float(number),
        "l0": -3.0,
        "reward": 0.6,
        "zone": "inside",
        "tokens": 8,
    }


def step(log: TrainingLog, number: int, **logged: float) -> dict:
    """What the trainer does in a step; the row that comes out."""
    log.on_step_begin(None, None, None)
    log.add_rollouts(number - 1, [rollout(i) for i in range(8)])
    means = {"loss": 0.1, "step_time": 9.0, "r_ver": 0.5, "loglik": -2.0, "tokens": 8.0}
    log.on_log(None, SimpleNamespace(global_step=number), None, means | logged)
    return read_jsonl(log.steps.path)[-1]


@pytest.fixture
def log(tmp_path) -> TrainingLog:
    log = TrainingLog(tmp_path, 9, "train x")
    log.resume_at(0)
    return log


def test_a_step_writes_its_row_and_its_rollouts(log, tmp_path):
    row = step(log, 1, entropy=2.0)
    assert row["step"] == 1 and row["entropy"] == 2.0 and row["alarms"] == []
    assert 0 <= row["seconds"] < 5 and "step_time" not in row
    step(log, 2)
    assert [r["step"] for r in read_jsonl(tmp_path / LOG)] == [1, 2]
    assert [r["step"] for r in read_jsonl(tmp_path / ROLLOUTS)] == [1] * 8 + [2] * 8


def test_what_is_logged_at_the_end_of_training_is_no_step(log, tmp_path):
    step(log, 1)
    log.on_log(None, SimpleNamespace(global_step=1), None, {"train_runtime": 3.0})
    assert len(read_jsonl(tmp_path / LOG)) == 1


def test_samples_are_three_rollouts_cut_short_and_chosen_by_the_step():
    rows = [rollout(i) for i in range(8)]
    chosen = samples(rows, 1)
    assert chosen == samples(rows, 1)
    assert len(chosen) == 3 and len({row["loglik"] for row in chosen}) == 3
    for row in chosen:
        assert list(row) == ["key", "completion", "r_ver", "loglik", "reward", "zone"]
        whole = rows[int(-row["loglik"])]
        assert row["completion"] == whole["completion"][:SAMPLE_LENGTH]
    assert len({str(samples(rows, step)) for step in range(20)}) > 5
    assert len(samples(rows[:2], 1)) == 2


def test_an_alarm_is_printed_when_it_begins_and_kept_while_it_holds(log, capsys):
    """20 steps in which the likelihood term takes more than it gives (their numbers move on)."""
    for number in range(1, 20):
        assert step(log, number, reward_minus_r_ver=-0.1)["alarms"] == []
    for number in (20, 21, 22):
        (alarm,) = step(log, number, reward_minus_r_ver=-0.1)["alarms"]
        assert f"steps 1 to {number}" in alarm
    printed = [line for line in capsys.readouterr().out.splitlines() if ": alarm: " in line]
    assert len(printed) == 1 and printed[0].startswith("train x: alarm: steps 1 to 20")


def test_an_alarm_that_held_at_the_checkpoint_is_not_printed_again(log, tmp_path, capsys):
    step(log, 1, entropy=0.2)
    assert "alarm" in capsys.readouterr().out
    again = TrainingLog(tmp_path, 9, "train x")
    again.resume_at(1)
    row = step(again, 2, entropy=0.2)
    assert len(row["alarms"]) == 1
    assert "alarm" not in capsys.readouterr().out


def test_a_resume_cuts_later_steps_without_reading_all_rollouts_into_memory(log, tmp_path):
    """What is kept stays byte by byte; the rows of step 3 alone are 20 MB."""
    large = {"completion": "é" * 10_000_000}
    log.rollouts.append([{"step": 1, "key": "a"}, {"step": 2, "key": "b"}])
    kept = (tmp_path / ROLLOUTS).read_bytes()
    log.rollouts.append([{"step": 2} | large])
    whole = (tmp_path / ROLLOUTS).stat().st_size
    for step in range(3, 7):
        log.rollouts.append([{"step": step} | large])
    log.steps.append([{"step": step, "alarms": []} for step in (1, 2, 3)])
    tracemalloc.start()
    log.resume_at(2)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (tmp_path / ROLLOUTS).stat().st_size == whole
    assert (tmp_path / ROLLOUTS).read_bytes().startswith(kept)
    assert [row["step"] for row in read_jsonl(tmp_path / LOG)] == [1, 2]
    assert peak < 4 * whole  # some copies of one row, not of five
