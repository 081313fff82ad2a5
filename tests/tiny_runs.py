"""Tiny experiments for tests: a params file, and stages run in processes that can be killed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from califkit.runs.params import Params, load_params

SETTINGS: dict[str, Any] = {
    "model": "tiny-random-llama",
    "eval_seeds": [0],
    # Constraints that random tokens satisfy now and then, so that rewards differ within a group.
    "data": {
        "n_prompts": 6,
        "min_constraints": 2,
        "max_constraints": 2,
        "constraint_ids": [
            "keywords:no_adjacent_consecutive",
            "keywords:letter_frequency",
            "letters:letter_counting2",
        ],
    },
    "anchors": {"sampling": {"max_tokens": 8, "batch_size": 4}},
    "training": {
        "steps": 3,
        "prompts_per_step": 2,
        "rollouts_per_prompt": 4,
        "max_completion_tokens": 8,
        "anchors_may_differ": True,  # tests vary the one without the other
        "learning_rate": 1e-3,
        "micro_batch_size": 4,
        "gradient_checkpointing": False,
        "precision": "float32",  # whatever is faster here
    },
    "evaluation": {"n_prompts": 6, "sampling": {"max_tokens": 8, "batch_size": 4}},
    "execution": {"save_every": 2},
}


def params_file(folder: Path, **changes: dict[str, Any]) -> Path:
    """Write the tiny profile, with whole or partial groups of settings changed."""
    settings = {
        key: value | changes.get(key, {}) if isinstance(value, dict) else changes.get(key, value)
        for key, value in SETTINGS.items()
    }
    settings |= {key: value for key, value in changes.items() if key not in settings}
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump({"profile": "tiny", "settings": settings}))
    return path


def tiny_params(folder: Path, **changes: dict[str, Any]) -> Params:
    return load_params(params_file(folder, **changes))


def environment(runs: Path) -> dict[str, str]:
    """One thread a process; runs in a folder of the test."""
    return os.environ | {
        "CALIFKIT_RUNS": str(runs),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


def start(arguments: list[str], runs: Path, log: Path) -> subprocess.Popen:
    """Start ``python <arguments>`` as the leader of its own process group."""
    with log.open("w") as output:
        return subprocess.Popen(
            [sys.executable, *arguments],
            env=environment(runs),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def wait_for(condition: Callable[[], Any], what: str, seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(0.01)


def kill_when(process: subprocess.Popen, condition: Callable[[], Any], log: Path) -> None:
    """SIGKILL the whole process group as soon as the condition holds."""
    try:
        wait_for(lambda: condition() or process.poll() is not None, "some finished units")
        assert process.poll() is None, f"ended before it could be killed:\n{log.read_text()}"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL


def n_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0
