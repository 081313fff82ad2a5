"""What a run will take, before anything is submitted: memory by part, disk, tokens, hours.

From the model's configuration alone; no weights are read. Bytes of weights, gradients, optimizer
and reference are counted. Those of activations are torch's own count of what one layer of that
width keeps for the backward pass (`activation_bytes`). Hours are an estimate, and `ASSUMPTIONS` is
what it rests on; nothing here has been compared with a GPU.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from califkit.models.resolve import resolve
from califkit.runs.settings import Execution, ParamsError, TrainingSettings
from califkit.runs.stages import AnchorStage, GenerateStage, ScoreStage, Stage, TrainStage
from califkit.training.checkpoints import checkpoint_bytes

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

GB = 1e9
_FLOAT32, _HALF = 4, 2  # bytes
_PROMPT = 300  # tokens of an average prompt
_LONGEST_PROMPT = 2048  # where no limit is set
_TEXT, _ROW = 5, 400  # bytes of a rollout's row: a token of text, and the rest

ASSUMPTIONS = {
    "share of the token limit that an average answer takes": 0.25,
    "floating-point operations a second and GPU, training and scoring": 350e12,
    "tokens a second and GPU that vLLM draws from a model of a billion parameters": 20_000,
    "share of a GPU's memory that can be used": 0.94,
}
"""For an H100 with bfloat16; none is measured here."""


@dataclass(frozen=True)
class Memory:
    """Bytes on one GPU of a training run, by part, and what its two phases come to.

    ``drawing`` is while vLLM holds its share, ``training`` while the loss is computed; without
    sleep vLLM's share is there in both.
    """

    parts: dict[str, float]
    drawing: float
    training: float

    @property
    def peak(self) -> float:
        return max(self.drawing, self.training)


def configuration(model: str) -> PreTrainedConfig:
    """The configuration of a model: of the paper's from the table shipped with the package, others
    from their folder or the hub. `ModelError` if it cannot be had."""
    import transformers

    path = resources.files("califkit.training").joinpath("resources/models.json")
    known = json.loads(path.read_text("utf-8"))
    if model not in known:
        return transformers.AutoConfig.from_pretrained(resolve(model))
    facts = dict(known[model])
    name = facts.pop("architecture").removesuffix("ForCausalLM")
    return getattr(transformers, f"{name}Config")(**facts)


def n_parameters(config: PreTrainedConfig) -> int:
    """Parameters of a causal language model; tied ones count once."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
        model.tie_weights()
    return sum(parameter.numel() for parameter in model.parameters())


def activation_bytes(config: PreTrainedConfig, mixed: bool = True) -> tuple[float, float]:
    """Bytes a token that one layer, and what comes before and behind the layers, keeps for the
    backward pass, as torch counts them.

    One and two layers of this width are built and run on the CPU. ``mixed`` is bfloat16 autocast
    with weights in float32, whose casts are not counted: they do not grow with the tokens.
    """
    import torch
    from transformers import AutoModelForCausalLM

    counted = []
    for layers in (1, 2):
        facts = config.to_dict() | {"vocab_size": 32, "pad_token_id": None}
        facts["num_hidden_layers"] = layers
        if facts.get("layer_types"):
            facts["layer_types"] = facts["layer_types"][:layers]
        few = type(config)(**facts)
        few._attn_implementation = "sdpa"
        model = AutoModelForCausalLM.from_config(few, dtype=torch.float32).model
        short, long = (kept_bytes(model, n, mixed) for n in (_SHORT, 2 * _SHORT))
        counted.append((long - short) / _SHORT)
    layer = counted[1] - counted[0]
    return layer, counted[0] - layer


_SHORT = 64  # tokens


def kept_bytes(model: Any, tokens: int, mixed: bool) -> int:
    """Bytes that one pass of so many tokens keeps for the backward pass, parameters left out."""
    import torch

    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    found: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            found[storage.data_ptr()] = storage
        return tensor

    ids = torch.zeros(1, tokens, dtype=torch.long)
    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, enabled=mixed),
    ):
        model(input_ids=ids, use_cache=False)
    return sum(storage.nbytes() for storage in found.values())


@lru_cache
def _facts(model: str) -> tuple[PreTrainedConfig, int, tuple[float, float]]:
    config = configuration(model)
    return config, n_parameters(config), activation_bytes(config)


def memory(stage: TrainStage, execution: Execution) -> Memory:
    """Memory of one GPU while a stage trains all weights in mixed precision.

    The longest micro-batch is reckoned: every prompt and every answer at its limit.
    """
    from califkit.models.passes import CHUNK  # positions of which logits exist at a time

    settings = stage.training
    config, count, (layer, ends) = _facts(stage.anchors.model)
    shards = execution.processes if execution.deepspeed else 1
    trained = count if settings.lora is None else 0
    if execution.deepspeed:  # in bfloat16, and the optimizer has float32 weights beside its moments
        size, moments = _HALF, 3 * _FLOAT32
    else:
        size, moments = _FLOAT32, 2 * _FLOAT32
    parts: dict[str, float] = {
        "weights": count * size / shards,
        "gradients": trained * size / shards,
        "optimizer": trained * moments / shards,
        # Of adapters there is none: they are switched off.
        "reference": (count if trained else 0) * size / shards,
    }
    if not execution.deepspeed:
        parts["casts of weights"] = count * _HALF
        if execution.processes > 1:
            parts["buckets of gradients"] = trained * _FLOAT32
    resting = sum(parts.values()) - parts["gradients"] - parts.get("casts of weights", 0)
    tokens = settings.micro_batch_size * _longest(stage)
    layers = config.num_hidden_layers
    if settings.gradient_checkpointing:
        inputs = layers * config.hidden_size * _FLOAT32
        parts["activations"] = tokens * (inputs + layer + ends)
    else:
        parts["activations"] = tokens * (layers * layer + ends)
    parts["logits"] = 4 * CHUNK * config.vocab_size * _FLOAT32
    computed = sum(parts.values())
    if not settings.use_vllm:
        return Memory(parts, resting, computed)
    share = execution.vllm.gpu_memory_utilization * (execution.gpu_memory_gb or 80) * GB
    parts["vLLM"] = share
    return Memory(parts, resting + share, computed + (0 if execution.vllm.sleep else share))


def _longest(stage: TrainStage) -> int:
    limit = stage.data.max_prompt_tokens or _LONGEST_PROMPT
    return limit + stage.training.max_completion_tokens


def cache_tokens(stage: TrainStage, execution: Execution) -> int:
    """Tokens of prompt and answer that vLLM's share of a GPU has room for beside its weights."""
    config, count, _ = _facts(stage.anchors.model)
    tensor_parallel = execution.vllm.tensor_parallel_size
    heads = getattr(config, "num_key_value_heads", config.num_attention_heads)
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    each = 2 * config.num_hidden_layers * heads * head * _HALF / tensor_parallel
    share = execution.vllm.gpu_memory_utilization * (execution.gpu_memory_gb or 80) * GB
    return int((share - count * _HALF / tensor_parallel) / each)


def check_memory(profile: str, stage: TrainStage, execution: Execution) -> None:
    """Refuse a training run that does not fit the GPU that `Execution.gpu_memory_gb` describes.

    Raises
    ------
    ParamsError
        With the bytes of each phase and the settings that would make it fit, the first of them
        that does.
    """
    if execution.gpu_memory_gb is None:
        return
    if problem := _problem(stage, execution):
        ways = [name for name, *changed in _ways(stage, execution) if not _problem(*changed)]
        hint = f"; it fits with {ways[0]}" if ways else "; no single setting makes it fit"
        raise ParamsError(f"training {stage.name} of {stage.anchors.model}: {problem}{hint}")


def _problem(stage: TrainStage, execution: Execution) -> str:
    room = ASSUMPTIONS["share of a GPU's memory that can be used"] * execution.gpu_memory_gb
    found = memory(stage, execution)
    for phase, size in (("drawing", found.drawing), ("training", found.training)):
        if size / GB > room:
            return f"{phase} takes {size / GB:.0f} GB of {room:.0f} GB that can be used on a GPU"
    if stage.training.use_vllm:
        wanted = execution.longest(stage.data, stage.training.max_completion_tokens)
        wanted = wanted or _facts(stage.anchors.model)[0].max_position_embeddings
        if (tokens := cache_tokens(stage, execution)) < wanted:
            return f"vLLM has room for {tokens} tokens, and one sequence may have {wanted}"
    return ""


def _ways(stage: TrainStage, execution: Execution) -> Iterator[tuple[str, TrainStage, Execution]]:
    """Single settings that take less memory, the cheapest first."""
    settings = stage.training
    if settings.use_vllm:
        if not execution.vllm.sleep:
            yield _with_vllm(stage, execution, sleep=True)
        for share in (0.5, 0.4, 0.3):
            if share < execution.vllm.gpu_memory_utilization:
                yield _with_vllm(stage, execution, gpu_memory_utilization=share)
    if not settings.gradient_checkpointing:
        yield _with_training(stage, execution, gradient_checkpointing=True)
    size = settings.micro_batch_size // 2
    while size:
        yield _with_training(stage, execution, micro_batch_size=size)
        size //= 2
    if execution.processes > 1 and not execution.deepspeed:
        sharded = execution.model_copy(update={"deepspeed": "params/zero3.json"})
        yield "execution.deepspeed = params/zero3.json", stage, sharded


def _with_training(
    stage: TrainStage, execution: Execution, **change: Any
) -> tuple[str, TrainStage, Execution]:
    training = TrainingSettings(**stage.training.model_dump() | change)
    ((name, value),) = change.items()
    changed = stage.model_copy(update={"training": training})
    return f"training.{name} = {value}", changed, execution


def _with_vllm(
    stage: TrainStage, execution: Execution, **change: Any
) -> tuple[str, TrainStage, Execution]:
    vllm = execution.vllm.model_copy(update=change)
    ((name, value),) = change.items()
    return f"execution.vllm.{name} = {value}", stage, execution.model_copy(update={"vllm": vllm})


@dataclass(frozen=True)
class Work:
    """What one stage takes: tokens that are drawn and that pass through a model, hours of its job
    and of all its GPUs, bytes on the disk. None where nothing is known."""

    drawn: float
    computed: float
    hours: float
    gpu_hours: float
    disk: float


def work(stage: Stage, execution: Execution) -> Work | None:
    """An estimate for anchors, training, responses and scores, by `ASSUMPTIONS`."""
    gpus = stage.processes(execution)
    if isinstance(stage, AnchorStage):
        rows = 2 * stage.anchors.draws * (stage.data.n_prompts or _ALL_PROMPTS)
        return _work(stage.model, rows, stage.anchors.sampling.max_tokens, 1, gpus)
    if isinstance(stage, TrainStage):
        settings = stage.training
        rows = settings.steps * settings.prompts_per_step * settings.rollouts_per_prompt
        # A forward and a backward pass (three of one), the KL term's and l's reference.
        passes = 3 + (settings.beta > 0) + 1
        found = _work(stage.anchors.model, rows, settings.max_completion_tokens, passes, gpus)
        count = _facts(stage.anchors.model)[1]
        disk = found.disk + checkpoint_bytes(count, execution) + count * _FLOAT32
        return Work(found.drawn, found.computed, found.hours, found.gpu_hours, disk)
    if isinstance(stage, GenerateStage):
        rows = stage.evaluation.n_prompts or _BENCHMARK
        return _work(stage.model, rows, stage.evaluation.sampling.max_tokens, 0, gpus)
    if isinstance(stage, ScoreStage):
        asked = stage.responses.evaluation
        rows, model = asked.n_prompts or _BENCHMARK, stage.responses.model
        scored = _work(model, rows, asked.sampling.max_tokens, 1, gpus)
        hours = scored.computed * 2 * _facts(model)[1] / _flops(gpus) / 3600
        return Work(0.0, scored.computed, hours, hours * gpus, rows * _ROW)
    return None


_ALL_PROMPTS = 93_882  # of the paper's data, those of at most 2,048 tokens (its authors' count)
_BENCHMARK = 300


def _work(model: str, rows: int, limit: int, passes: int, gpus: int) -> Work:
    count = _facts(model)[1]
    answer = ASSUMPTIONS["share of the token limit that an average answer takes"] * limit
    drawn, computed = rows * answer, rows * (answer + _PROMPT)
    rate = ASSUMPTIONS[
        "tokens a second and GPU that vLLM draws from a model of a billion parameters"
    ]
    seconds = drawn / (gpus * rate / (count / 1e9)) + passes * computed * 2 * count / _flops(gpus)
    disk = rows * (answer * _TEXT + _ROW)
    return Work(drawn, computed, seconds / 3600, seconds / 3600 * gpus, disk)


def _flops(gpus: int) -> float:
    return gpus * ASSUMPTIONS["floating-point operations a second and GPU, training and scoring"]


def plan_rows(stages: Sequence[tuple[Stage, Execution, str]]) -> list[dict[str, Any]]:
    """A row a stage (given with how it is carried out, and the state it is in): what it takes.

    Columns: ``stage``, ``name``, ``model``, ``state``, ``GPUs``, ``GB a GPU`` (training only),
    ``fits``, ``M tokens drawn``, ``hours``, ``GPU hours``, ``GB of disk``.
    """
    rows = []
    for stage, execution, state in stages:
        if stage.judged:
            continue
        took = work(stage, execution)
        row: dict[str, Any] = {"stage": stage.kind, "name": stage.name, "state": state}
        row |= {"GPUs": stage.processes(execution), "GB a GPU": None, "fits": ""}
        if isinstance(stage, TrainStage):
            row["GB a GPU"] = memory(stage, execution).peak / GB
            if execution.gpu_memory_gb is not None:
                row["fits"] = "no" if _problem(stage, execution) else "yes"
        row["M tokens drawn"] = took and took.drawn / 1e6
        row["hours"], row["GPU hours"] = took and took.hours, took and took.gpu_hours
        row["GB of disk"] = took and took.disk / GB
        rows.append(row)
    return rows
