"""Checkpoints of a training run: the newest whole one, and how much room they take.

The trainer writes the state of its own (``trainer_state.json``) into a checkpoint last, and deletes
an older checkpoint only after that, so a kill never leaves a run without a whole one.
"""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

from califkit.params import Execution, TrainStage

CHECKPOINTS = "checkpoints"

_STATE = "trainer_state.json"
_FLOAT32 = 4  # bytes


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


def copy_policy(checkpoint: Path, folder: Path) -> None:
    """Copy the model and its tokenizer from a checkpoint, without the state of the training."""
    ignored = shutil.ignore_patterns(
        _STATE, "*.pt", "*.pth", "*.bin", "global_step*", "latest", "zero_to_fp32.py"
    )
    shutil.copytree(checkpoint, folder, ignore=ignored)


def bytes_needed(stage: TrainStage, execution: Execution, model: Path, done: Path) -> int:
    """Room that a run still needs: its checkpoints, and the policy, in float32.

    A checkpoint holds what is trained and the two moments of Adam; one more than
    ``keep_checkpoints`` is on the disk while a new one is written. Rows of logs are not counted.

    Parameters
    ----------
    model
        Folder of the starting policy.
    done
        Folder of checkpoints that are there already.
    """
    weights = _FLOAT32 * n_parameters(model)
    lora = stage.training.lora
    trained = weights if lora is None else _FLOAT32 * n_adapter_parameters(model, lora.r)
    there = sum(path.stat().st_size for path in done.rglob("*") if path.is_file())
    return max(0, 3 * trained * (execution.keep_checkpoints + 1) + weights - there)


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
