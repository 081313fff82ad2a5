"""What a training run writes while it goes on: a row a step, a row a rollout, lines and alarms."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
from transformers import TrainerCallback

from califkit.rewards.statistics import alarms
from califkit.runs.folders import LOG, ROLLOUTS
from califkit.runs.jsonl import RowLog, whole_lines
from califkit.runs.text import say, short_time

N_SAMPLES = 3
SAMPLE_LENGTH = 400
"""Characters of a completion in the log; `ROLLOUTS` has all of it."""

_SHOWN = ("key", "completion", "r_ver", "loglik", "reward", "zone")


class TrainingLog(TrainerCallback):
    """Keeps `LOG` and `ROLLOUTS` in step with the trainer, and says how training goes.

    For the main process alone. A row of `LOG` has what the trainer logs, ``seconds``, three
    ``samples`` of the step's rollouts, and the ``alarms`` that hold. An alarm is printed when it
    begins to hold.
    """

    def __init__(self, folder: Path, steps: int, label: str) -> None:
        self.steps = RowLog(folder / LOG)
        self.rollouts = RowLog(folder / ROLLOUTS)
        self.total = steps
        self.label = label
        self._history: list[dict[str, Any]] = []
        self._pending: list[dict[str, Any]] = []
        self._clock = time.monotonic()

    def resume_at(self, step: int) -> None:
        """Cut the rows of steps after the checkpoint that training continues from."""
        for log in (self.steps, self.rollouts):
            if log.path.exists():
                _cut_after(step, log.path)
        self._history = self.steps.rows()
        if step:
            say(f"{self.label}: continuing after step {step} of {self.total}")

    def add_rollouts(self, step: int, rows: list[dict[str, Any]]) -> None:
        """Take the rollouts of the step that is being computed (``step`` counts finished ones)."""
        self._pending += [{"step": step + 1, **row} for row in rows]

    def _left(self, step: int) -> str:
        """The time that is left, by the median of the last steps; nothing behind the last step."""
        if step >= self.total:
            return ""
        each = np.median([row["seconds"] for row in self._history[-20:]])
        return f", {short_time(each * (self.total - step))} left"

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._clock = time.monotonic()

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        if not logs or "loss" not in logs:
            return
        row = {"step": state.global_step} | {k: v for k, v in logs.items() if k != "step_time"}
        row["seconds"] = round(time.monotonic() - self._clock, 2)
        row["samples"] = samples(self._pending, state.global_step)
        held = {_kind(alarm) for alarm in self._history[-1]["alarms"]} if self._history else set()
        row["alarms"] = alarms([*self._history, row])
        self.rollouts.append(self._pending)
        self.steps.append([row])
        self._pending = []
        self._history.append(row)
        say(
            f"{self.label}: step {state.global_step} of {self.total}: "
            f"r_ver {row['r_ver']:.2f}, l {_number(row['loglik'])}, {row['tokens']:.0f} tokens, "
            f"{row['seconds']:.0f} s{self._left(state.global_step)}"
        )
        for alarm in row["alarms"]:
            if _kind(alarm) not in held:
                say(f"{self.label}: alarm: {alarm}")


def _cut_after(step: int, path: Path) -> None:
    """Cut the rows of later steps, which follow each other. The file may be far larger than memory,
    so it is read line by line and ends where the first of them began."""
    end = 0
    for line in whole_lines(path):
        if json.loads(line)["step"] > step:
            break
        end += len(line)
    os.truncate(path, end)


def samples(rollouts: list[dict[str, Any]], seed: int) -> list[dict[str, Any]]:
    """A few rollouts of a step, the same ones whenever the step is computed."""
    count = min(N_SAMPLES, len(rollouts))
    chosen = np.random.default_rng(seed).choice(len(rollouts), count, replace=False)
    shown = [{name: rollouts[i][name] for name in _SHOWN} for i in sorted(chosen)]
    return [row | {"completion": row["completion"][:SAMPLE_LENGTH]} for row in shown]


def _kind(alarm: str) -> str:
    """An alarm without its numbers, which move from step to step while it holds."""
    return re.sub(r"\d+(\.\d+)?", "", alarm)


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f}"
