"""Checkpoints of a training run: the newest whole one, who may go on, and the room they take.

The trainer writes the state of its own (``trainer_state.json``) into a checkpoint last, and deletes
an older checkpoint only after that, so a kill never leaves a run without a whole one.
"""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

from califkit.runs.folders import ROLLOUTS, StaleRunError
from califkit.runs.settings import Execution
from califkit.runs.stages import TrainStage

CHECKPOINTS = "checkpoints"
FACTS = "facts.json"
"""What the manifest will say of how the run trains, noted among the checkpoints at the start."""

_STATE = "trainer_state.json"
_FLOAT32 = 4  # bytes
_TOKEN = 5  # bytes of text a token, roughly that of English
_ROW = 400  # bytes of a rollout's row without its text


def last_checkpoint(folder: Path) -> Path | None:
    """The newest whole checkpoint in a folder; newer ones that a kill tore are removed."""
    for checkpoint in sorted(folder.glob("checkpoint-*"), key=step_of, reverse=True):
        if is_whole(checkpoint):
            return checkpoint
        shutil.rmtree(checkpoint)
    return None


def is_whole(checkpoint: Path) -> bool:
    """Whether the trainer's own state is there, the last file to be written."""
    try:
        json.loads((checkpoint / _STATE).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return False
    return True


def step_of(checkpoint: Path | None) -> int:
    """Steps that a checkpoint has behind it; 0 for none."""
    return int(checkpoint.name.rsplit("-", 1)[1]) if checkpoint else 0


def begun(run: Path) -> dict[str, Any] | None:
    """The `FACTS` that a training run was begun with, or None if it has to begin (again).

    Parameters
    ----------
    run
        Folder of an unfinished run.
    """
    checkpoints = run / CHECKPOINTS
    if not any(is_whole(path) for path in checkpoints.glob("checkpoint-*")):
        return None
    return json.loads((checkpoints / FACTS).read_text(encoding="utf-8"))


def check_processes(run: Path, processes: int) -> None:
    """Refuse to continue a training run with another number of processes than it was begun with.

    Each process draws its rollouts from a seed of its own, so the steps before and after would be
    those of two different runs.

    Raises
    ------
    StaleRunError
        Naming both numbers.
    """
    facts = begun(run)
    if facts is not None and facts["processes"] != processes:
        raise StaleRunError(
            f"{run}: was begun with {facts['processes']} processes and cannot go on with "
            f"{processes}, because rollouts depend on their number; set execution.processes = "
            f"{facts['processes']} to continue, or delete the folder to begin again"
        )


def copy_policy(checkpoint: Path, folder: Path) -> None:
    """Copy the model and its tokenizer from a checkpoint, without the state of the training."""
    ignored = shutil.ignore_patterns(
        _STATE, "*.pt", "*.pth", "*.bin", "global_step*", "latest", "zero_to_fp32.py"
    )
    shutil.copytree(checkpoint, folder, ignore=ignored)


def bytes_needed(stage: TrainStage, execution: Execution, model: Path, run: Path) -> int:
    """Room that a run still needs: its checkpoints and the policy in float32, and its rollouts.

    A checkpoint holds what is trained and the two moments of Adam; one more than
    ``keep_checkpoints`` is on the disk while a new one is written. Rollouts are reckoned at their
    longest, with about 5 bytes of text a token. The row a step of the log is not counted.

    Parameters
    ----------
    model
        Folder of the starting policy.
    run
        Folder of the run; what is there already is not needed again.
    """
    settings = stage.training
    weights = _FLOAT32 * n_parameters(model)
    lora = settings.lora
    trained = weights if lora is None else _FLOAT32 * n_adapter_parameters(model, lora.r)
    checkpoints = checkpoint_bytes(trained // _FLOAT32, execution)
    rows = settings.steps * settings.prompts_per_step * settings.rollouts_per_prompt
    rollouts = rows * (settings.max_completion_tokens * _TOKEN + _ROW)
    files = [run / ROLLOUTS, *(run / CHECKPOINTS).rglob("*")]
    there = sum(path.stat().st_size for path in files if path.is_file())
    return max(0, checkpoints + weights + rollouts - there)


def checkpoint_bytes(n_trained: int, execution: Execution) -> int:
    """Room for the checkpoints of so many trained parameters, the one being written included."""
    each = 3 * _FLOAT32 * n_trained  # weights and both moments
    if execution.deepspeed:  # and weights that were gathered, of half the size
        each += _FLOAT32 // 2 * n_trained
    return each * (execution.keep_checkpoints + 1)


def n_parameters(model: Path) -> int:
    """Parameters in the safetensors files of a model folder; 0 if it has none."""
    return sum(math.prod(shape) for shape in _shapes(model))


def n_adapter_parameters(model: Path, r: int) -> int:
    """Parameters of LoRA adapters of rank r on every matrix of a model, hence an upper bound."""
    return sum(r * sum(shape) for shape in _shapes(model) if len(shape) == 2)


def _shapes(model: Path) -> list[list[int]]:
    """Shapes of all stored tensors, read from the headers of the files."""
    shapes = []
    for path in sorted(model.glob("*.safetensors")):
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        shapes += [entry["shape"] for name, entry in header.items() if name != "__metadata__"]
    return shapes
