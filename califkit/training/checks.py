"""What can be told of a training run before anything is computed for it.

Anchors are measured before the first step and may take a day, so settings that would end training
are refused before them. Torch is loaded for the few settings that need it, never to import this
module.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

from califkit.models.checks import check_thinking
from califkit.models.resolve import resolve
from califkit.rewards.judge import reward_rule
from califkit.runs.folders import own_run
from califkit.runs.paths import project_file
from califkit.runs.settings import JUDGE_METHODS, Execution, ParamsError
from califkit.runs.stages import TrainStage
from califkit.training.checkpoints import check_processes
from califkit.training.tau import judge_settings


def check_settings(profile: str, stage: TrainStage, execution: Execution) -> None:
    """Refuse what cannot work, before a model, a data set or a process group is there.

    Raises
    ------
    ParamsError
        Names the setting, its value and what is wrong.
    StaleRunError
        If the run was begun with another number of processes.
    """
    settings, processes = stage.training, execution.processes
    rollouts = settings.prompts_per_step * settings.rollouts_per_prompt
    if rollouts % (settings.micro_batch_size * processes):
        raise ParamsError(
            f"training: {rollouts} rollouts a step do not divide among {processes} processes in "
            f"micro-batches of micro_batch_size = {settings.micro_batch_size}"
        )
    asked = stage.anchors.data.n_prompts
    if asked is not None and asked < settings.prompts_per_step:
        raise ParamsError(
            f"data.n_prompts = {asked} is less than "
            f"training.prompts_per_step = {settings.prompts_per_step}"
        )
    if stage.method in JUDGE_METHODS:
        judge_settings(stage, execution)
    else:
        _check_rule(stage)
    for tracker in execution.report_to:
        _require(tracker, f"execution.report_to = {tracker}")
    if settings.use_vllm:
        _require("vllm", "training.use_vllm = true")
    if execution.deepspeed is not None:
        _check_deepspeed(execution.deepspeed)
        if execution.cluster == "local":
            check_gpu(execution)
    if stage.anchors.thinking:
        check_thinking(stage.anchors.model)
    if settings.lora is not None and not isinstance(settings.lora.target_modules, str):
        _check_target_modules(stage.anchors.model, settings.lora.target_modules)
    check_processes(own_run(profile, stage).folder, processes)


def _check_rule(stage: TrainStage) -> None:
    """The rule refuses what its method cannot use."""
    options = stage.reward.model_dump() if stage.reward else {}
    try:
        reward_rule(stage.method, stage.alpha, None, None, **options)
    except ValueError as error:
        raise ParamsError(f"reward of method {stage.method}: {error}") from error


def _require(package: str, setting: str) -> None:
    if find_spec(package) is None:
        raise ParamsError(f"{setting}: the package {package} is not installed")


def _check_deepspeed(setting: str) -> None:
    _require("deepspeed", f"execution.deepspeed = {setting}")
    path = project_file(setting)
    try:
        zero = json.loads(path.read_text(encoding="utf-8")).get("zero_optimization", {})
    except (OSError, ValueError) as error:
        raise ParamsError(f"execution.deepspeed = {path}: cannot be read: {error}") from error
    gathers = "stage3_gather_16bit_weights_on_model_save"
    if zero.get("stage") == 3 and not zero.get(gathers):
        raise ParamsError(
            f"execution.deepspeed = {path}: zero_optimization.{gathers} must be true, or "
            "checkpoints hold no weights that a policy can be made of"
        )


def check_gpu(execution: Execution) -> None:
    """Refuse DeepSpeed on a machine without a GPU, where a run trains or will train."""
    import torch

    if execution.deepspeed is not None and not torch.cuda.is_available():
        raise ParamsError(
            f"execution.deepspeed = {execution.deepspeed}: there is no GPU, and the trainer "
            "ignores DeepSpeed on a CPU"
        )


def _check_target_modules(model: str, names: tuple[str, ...]) -> None:
    """Each name is the end of the name of a linear layer, as PEFT wants it; no weights are read."""
    layers = _linear_layers(resolve(model))
    unknown = [n for n in names if not any(f".{layer}".endswith(f".{n}") for layer in layers)]
    if unknown:
        known = sorted({layer.rpartition(".")[2] for layer in layers})
        raise ParamsError(
            f"training.lora.target_modules: no linear layer of model {model} is named "
            f"{', '.join(map(repr, unknown))}; there are: {', '.join(known)}"
        )


def _linear_layers(folder: Path) -> list[str]:
    """Names of the linear layers of a model that adapters may lie on: all but the head."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.pytorch_utils import Conv1D

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    head = model.get_output_embeddings()
    kinds = (torch.nn.Linear, Conv1D)
    return [n for n, m in model.named_modules() if isinstance(m, kinds) and m is not head]
