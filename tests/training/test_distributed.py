"""Training in two processes: the same rewards as in one, and no process waits for ever."""

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed_worker import DEALT, PROBE, batches, score_dealt
from tiny_trainer import (
    likelihood,
    load,
    make_config,
    make_trainer,
    save_trained_adapter,
    with_adapter,
)

from califkit.rewards.statistics import step_statistics
from califkit.rewards.trl import CalifReward

pytestmark = pytest.mark.slow

WORKER = Path(__file__).with_name("distributed_worker.py")
LIMIT = 600
"""Seconds; DeepSpeed builds its communication operator in the first run on a machine."""

RUNS = [
    pytest.param(("full", 0.01, False), id="all weights"),
    pytest.param(("full", 0.0, False), id="all weights, beta 0"),
    pytest.param(("lora", 0.01, False), id="LoRA"),
    pytest.param(("trained adapter", 0.0, False), id="a trained adapter, beta 0"),
    pytest.param(("full", 0.01, True), id="ZeRO-3, all weights"),
    pytest.param(("full", 0.0, True), id="ZeRO-3, all weights, beta 0"),
    pytest.param(("lora", 0.01, True), id="ZeRO-3, LoRA"),
    pytest.param(("trained adapter", 0.0, True), id="ZeRO-3, a trained adapter, beta 0"),
]


def two_processes(folder: Path, spec: dict[str, Any]) -> subprocess.CompletedProcess:
    """Run the worker in two processes that talk through gloo."""
    if spec["deepspeed"] and importlib.util.find_spec("deepspeed") is None:
        pytest.skip("deepspeed is not installed (the extra califkit[deepspeed])")
    path = folder / "spec.json"
    path.write_text(json.dumps(spec))
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
        + [str(WORKER), str(path)],
        env=os.environ
        | {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
        | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )


@pytest.fixture(scope="module")
def trained_adapter(tiny_folder, tmp_path_factory) -> Path:
    return save_trained_adapter(tiny_folder, tmp_path_factory.mktemp("adapter"))


@pytest.fixture(scope="module", params=RUNS)
def run(request, tiny_folder, trained_adapter, tmp_path_factory):
    """Results of both processes, and what they were asked to do."""
    case, beta, deepspeed = request.param
    folder = tmp_path_factory.mktemp("run")
    spec = {
        "scenario": "train",
        "case": case,
        "beta": beta,
        "deepspeed": deepspeed,
        "model": str(tiny_folder),
        "adapter": str(trained_adapter),
    }
    done = two_processes(folder, spec)
    assert done.returncode == 0, done.stderr[-4000:]
    return spec, [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]


@pytest.fixture(scope="module")
def alone(tiny, tiny_folder, trained_adapter, tmp_path_factory):
    """The fixed rollouts scored in this one process, by the starting policy."""

    def scored(case: str) -> dict[str, Any]:
        trained = case == "trained adapter"
        model = (
            with_adapter(tiny_folder, trained_adapter, is_trainable=True)
            if trained
            else tiny_folder
        )
        reward = CalifReward()
        config = make_config(tmp_path_factory.mktemp("alone"))
        reward.bind(make_trainer(model, config, reward, tiny.tokenizer))
        return score_dealt(reward, tiny.tokenizer, rank=0, world=1)

    return {case: scored(case) for case in ("full", "trained adapter")}


def test_l_is_that_of_the_starting_policy_after_training(
    run,
    tiny,
    tiny_folder,
    trained_adapter,
):
    spec, results = run
    start = load(tiny_folder)
    if spec["case"] == "trained adapter":
        start = with_adapter(tiny_folder, trained_adapter)
    ids = tiny.tokenizer(PROBE[1], add_special_tokens=False)["input_ids"]
    expected = likelihood(start, tiny.tokenizer, PROBE[0], ids)
    for result in results:
        assert result["reference"] == pytest.approx(expected, abs=1e-5)
        assert abs(result["policy"] - expected) > 1e-3, "the policy moved"
        assert result["lockstep"] == spec["deepspeed"], "only with ZeRO-3 a pass is a collective"
    assert results[0]["policy"] == results[1]["policy"]


@pytest.mark.parametrize("dealt", DEALT)
@pytest.mark.parametrize("name", ["texts", "some empty"])
def test_rewards_are_those_of_one_process(run, alone, name, dealt):
    spec, results = run
    expected = alone[spec["case"] if spec["case"] == "trained adapter" else "full"]
    expected = expected[f"{name}, {dealt}"]
    parts = [result["scored"][f"{name}, {dealt}"] for result in results]
    assert [len(part["rewards"]) for part in parts] == list(DEALT[dealt])
    assert sum((part["rewards"] for part in parts), []) == expected["rewards"]
    assert len(set(expected["rewards"])) > 1
    for part in parts:
        assert len(part["rows"]) == 16
        for row, other in zip(part["rows"], expected["rows"], strict=True):
            assert row.keys() == other.keys()
            assert row["loglik"] == (other["loglik"] and pytest.approx(other["loglik"], abs=1e-5))
            assert row | {"loglik": 0} == other | {"loglik": 0}
        assert part["metrics"].keys() == expected["metrics"].keys()
        for metric, value in expected["metrics"].items():
            assert part["metrics"][metric] == pytest.approx(value, abs=1e-5, nan_ok=True), metric


def test_the_log_describes_the_rollouts_of_both_processes(run):
    _, (first, second) = run
    assert first["steps"][:2] == second["steps"][:2]
    assert len(first["log"]) == 2
    for log, step in zip(first["log"], first["steps"], strict=False):
        assert len(step) == 4
        assert len({row["key"] for row in step}) == 1, "both processes hold rollouts of one prompt"
        assert {row["group"] for row in step} == {0}
        mean = np.mean([row["reward"] for row in step])
        assert log["rewards/calif/mean"] == pytest.approx(mean, abs=1e-6)
        for name, value in step_statistics(step).items():
            assert log[name] == pytest.approx(value, abs=1e-5), name


def test_an_error_in_the_data_of_one_process_is_raised_by_both(run):
    _, results = run
    for result in results:
        assert result["error"].startswith("process 1: rollout 0, key 'prompt-2': constraints '['")


@pytest.mark.parametrize(
    ("scenario", "deepspeed", "message"),
    [
        ("broken data", False, "process 1: rollout 0, key 'prompt-2': constraints"),
        ("broken pass", False, "process 1: answer 0: token id 1000000000"),
        ("broken data", True, "process 1: rollout 0, key 'prompt-2': constraints"),
        ("broken pass", True, "answer 0: token id 1000000000"),
    ],
)
def test_an_error_in_one_process_ends_the_job(tmp_path, tiny_folder, scenario, deepspeed, message):
    spec = {
        "scenario": scenario,
        "case": "full",
        "beta": 0.01,
        "deepspeed": deepspeed,
        "model": str(tiny_folder),
    }
    started = time.monotonic()
    done = two_processes(tmp_path, spec)
    assert done.returncode != 0
    assert message in done.stderr
    assert time.monotonic() - started < LIMIT / 2
    assert not list(tmp_path.glob("[01].json"))


def test_the_same_rollouts_are_scored_in_both_settings(tiny):
    for batch in batches(tiny.tokenizer).values():
        assert len(batch["completions"]) == sum(DEALT["even"]) == sum(DEALT["uneven"]) == 16
