"""Settings, group by group; `califkit.runs.params.Settings` is the whole tree."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from califkit import CalifkitError
from califkit.runs.judge_settings import JudgeModel, JudgeSettings
from califkit.runs.slurm_options import checked_slurm, gpus_of
from califkit.runs.types import Count, Frozen, Positive, Seed, Share

Method = Literal[
    "if_rlvr",
    "calif",
    "direct_bonus",
    "no_lower",
    "no_upper",
    "no_lower_dev",
    "no_upper_dev",
    "inner_region",
    "outer_region",
    "self_judge",
    "stronger_judge",
]
"""Reward of a training run; `califkit.rewards.rules.RewardRule` says what each one pays, and
`califkit.rewards.judge` what the last two do."""

JUDGE_METHODS = ("self_judge", "stronger_judge")
"""Methods whose bonus a judge gives (paper section 2.4)."""

REGION_METHODS = ("inner_region", "outer_region")
"""Methods whose bounds are ends of confidence intervals over several draws a side (section 6)."""

RUBRICS = ("advancedif", "followbench", "complexbench")
"""Rubric benchmarks; ``name`` is our own small set of it, ``name:source`` another."""

Engine = Literal["vllm"] | None
"""What draws responses; None is ``model.generate`` of transformers."""

StageKind = Literal["anchors", "training", "generation", "scores", "identification"]
"""Kinds of stages that are jobs on a cluster; what a judge does is none."""

Semantics = Literal["published", "repaired"]
"""Verdicts of the published code, or with its named defects repaired."""


class ParamsError(CalifkitError, ValueError):
    """A params file or an override that cannot be used; the message names file, key and value."""


class DataSettings(Frozen):
    """Training prompts.

    ``source`` is ``composer`` (prompts composed from the requests shipped with the package),
    ``hub:<name>`` (for instance ``hub:allenai/IF_multi_constraints_upto5``) or the path of a JSONL
    file in the hub's layout. ``n_prompts`` null takes all of them that are usable (the composer has
    no end). Prompts of more than ``max_prompt_tokens`` tokens in the chat template of the model
    ``tokenizer`` are left out. ``constraint_ids`` restricts the composer to these ids, ``part`` to
    a part of its requests (half of them for training, a quarter each for pilots and for tests);
    like the numbers of constraints they are refused with another source, which they would not
    change.
    """

    source: str = "composer"
    n_prompts: Count | None = 1024
    max_prompt_tokens: Count | None = None
    tokenizer: str | None = None
    min_constraints: Count = 1
    max_constraints: Annotated[int, Field(ge=1, le=5)] = 5
    constraint_ids: tuple[str, ...] | None = None
    part: Literal["train", "pilot", "test"] | None = None
    revision: str | None = None
    seed: Seed = 0

    @model_validator(mode="after")
    def _range(self) -> DataSettings:
        if self.min_constraints > self.max_constraints:
            raise ValueError(
                f"min_constraints ({self.min_constraints}) exceeds "
                f"max_constraints ({self.max_constraints})"
            )
        return self

    @model_validator(mode="after")
    def _tokens_are_those_of_a_tokenizer(self) -> DataSettings:
        if (self.max_prompt_tokens is None) != (self.tokenizer is None):
            raise ValueError(
                f"max_prompt_tokens = {self.max_prompt_tokens} and tokenizer = {self.tokenizer}: "
                "one says nothing without the other"
            )
        return self

    @model_validator(mode="after")
    def _only_the_composer_composes(self) -> DataSettings:
        if self.source == "composer":
            if self.n_prompts is None:
                raise ValueError("n_prompts = null is for a file or the hub; source = composer")
            return self
        for name in ("constraint_ids", "part", "min_constraints", "max_constraints"):
            value, default = getattr(self, name), type(self).model_fields[name].default
            if value != default:
                raise ValueError(
                    f"{name} = {value!r} is for source = composer and does nothing with "
                    f"source = {self.source}; set it to {'null' if default is None else default}"
                )
        return self


class VllmSettings(Frozen):
    """How vLLM uses a GPU that it shares.

    ``gpu_memory_utilization`` is its share of the memory while it draws rollouts beside the
    trainer, given back while the trainer computes if ``sleep``. ``max_model_len`` bounds prompt and
    answer together; null is the prompts' limit (`DataSettings.max_prompt_tokens`) plus the
    answers', and the model's own where that is not known.
    """

    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.6
    max_model_len: Count | None = None
    sleep: bool = True
    tensor_parallel_size: Count = 1


class Sampling(Frozen):
    """How responses are drawn from a policy. ``top_k = 0`` and ``top_p = 1`` mean no truncation."""

    temperature: Positive = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0
    max_tokens: Count = 2048
    batch_size: Count = 32


class AnchorSettings(Frozen):
    """Reference answers behind l0 and l1: one draw a side in the paper (section 2.2)."""

    sampling: Sampling = Sampling()
    draws: Count = 1
    retries: Annotated[int, Field(ge=0)] = 3
    seed: Seed = 0


class RewardOptions(Frozen):
    """Departures from the paper's rule that its authors' own findings suggest; all off by default.

    ``reversed_bounds = keep`` pays r_ver wherever l0 > l1, also above l1. ``ceiling_margin`` (nats)
    zeroes only above l1 + margin and lets the bonus region reach up to there; 0 is the same as off.
    ``bonus_requires_compliant_anchor`` pays no bonus where the constrained anchor violates its own
    constraints.
    """

    reversed_bounds: Literal["keep"] | None = None
    ceiling_margin: Annotated[float, Field(ge=0)] | None = None
    bonus_requires_compliant_anchor: bool = False

    @field_validator("ceiling_margin")
    @classmethod
    def _no_margin_is_off(cls, value: float | None) -> float | None:
        return value or None  # so that 0 in a sweep has the hash of the paper's rule


class LoraSettings(Frozen):
    """Low-rank adapters on the linear layers of the blocks, never on the language-model head."""

    r: Count = 16
    alpha: Count = 32
    dropout: Share = 0.0
    target_modules: tuple[str, ...] | Literal["all-linear"] = "all-linear"

    @field_validator("target_modules")
    @classmethod
    def _not_the_head(cls, value: Any) -> Any:
        if {"lm_head", "embed_tokens"} & set(value if isinstance(value, tuple) else ()):
            raise ValueError(
                "an adapter on the head or the embeddings cannot be scored through the frozen head"
            )
        return value


class TrainingSettings(Frozen):
    """GRPO. Defaults are the paper's where it states them (section 3) and its development code's
    where it does not; ``steps`` counts optimiser steps of ``prompts_per_step`` prompts each.

    ``temperature`` is that of the rollouts, and has to be that of the anchors; l is taken at
    temperature 1 whatever it is. ``lora`` None trains all weights. ``use_vllm`` draws the rollouts
    with vLLM inside the trainer (GPU). ``drop_degenerate`` leaves out prompts whose anchors are
    loops, nearly empty or missing. ``anchors_may_differ`` admits anchors that were drawn otherwise
    than the rollouts are.
    """

    steps: Count = 364
    prompts_per_step: Count = 1024
    rollouts_per_prompt: Annotated[int, Field(ge=2)] = 8
    max_completion_tokens: Count = 2048
    temperature: Positive = 1.0
    learning_rate: Positive = 5e-7
    lr_scheduler: Literal["constant", "linear", "cosine"] = "constant"
    adam_betas: tuple[Share, Share] = (0.9, 0.999)
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    max_grad_norm: Positive = 1.0
    beta: Annotated[float, Field(ge=0)] = 0.001
    epsilon: Positive = 0.2
    loss_type: Literal["grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "vespo"] = "dapo"
    scale_rewards: Literal["group", "batch", "none"] = "group"
    micro_batch_size: Count = 8
    gradient_checkpointing: bool = True
    lora: LoraSettings | None = None
    use_vllm: bool = False
    drop_degenerate: bool = False
    anchors_may_differ: bool = False
    precision: Literal["float32", "bfloat16"] | None = None

    @field_validator("precision", mode="before")
    @classmethod
    def _auto_is_none(cls, value: Any) -> Any:
        return None if value == "auto" else value  # so that it leaves the hash of a run alone

    @model_validator(mode="after")
    def _consistent(self) -> TrainingSettings:
        rollouts = self.prompts_per_step * self.rollouts_per_prompt
        if rollouts % self.micro_batch_size:
            raise ValueError(
                f"prompts_per_step x rollouts_per_prompt = {rollouts} rollouts do not divide into "
                f"micro-batches of micro_batch_size = {self.micro_batch_size}"
            )
        return self


class ResponseSettings(Frozen):
    """Responses on the test prompts (paper section 4; non-thinking sampling by default).

    ``benchmark`` is ``ifbench``, a rubric benchmark, ``hub:<name>``, the path of a JSONL file, or
    ``composer``: prompts composed as ``composed`` says, with the constraint types of training.
    """

    benchmark: str = "ifbench"
    composed: DataSettings | None = None
    n_prompts: Count | None = None
    prompt_seed: Seed = 0
    sampling: Sampling = Sampling(temperature=0.7, top_p=0.8, top_k=20, max_tokens=2048)

    @model_validator(mode="after")
    def _composed_prompts_say_how(self) -> ResponseSettings:
        composer = "composer"
        if (self.benchmark == composer) != (self.composed is not None):
            raise ValueError(
                f"benchmark = {self.benchmark}: the group composed says how prompts of benchmark = "
                "composer are made, and does nothing without it"
            )
        if self.composed is not None and self.composed.source != composer:
            raise ValueError(f"composed.source = {self.composed.source}: must be composer")
        return self


class CheckpointPair(Frozen):
    """Two checkpoints to compare (paper, Fig. 3): hub ids, names or paths.

    ``reference`` is the model under which l of both is taken; None is ``before``. All three must
    have one tokenizer.
    """

    name: Annotated[str, Field(min_length=1)]
    before: str
    after: str
    reference: str | None = None


class AnswerFiles(Frozen):
    """Response files of one policy (paper, Figs. 1 and 2), each row with ``key`` and ``response``:
    to the test prompts (``constrained``) and to their requests without constraints (``alone``)."""

    name: Annotated[str, Field(min_length=1)]
    constrained: str
    alone: str


class EvaluationSettings(ResponseSettings):
    """The responses and how they are judged."""

    semantics: Semantics = "published"


class IdentificationSettings(Frozen):
    """Request identification: each answer against so many ``requests``, its own among them.

    ``seed`` chooses the others. ``first_tokens`` cuts every answer to its first tokens before it is
    scored, for comparisons at equal length.
    """

    requests: Annotated[int, Field(ge=2)] = 6
    seed: Seed = 0
    first_tokens: Count | None = None


class Execution(Frozen):
    """How the work is carried out; nothing here changes what is asked for, so it is not hashed.

    ``processes`` share one job (ranks of a training run, shards of anchors); each
    draws from a seed of its own, so a training run cannot be continued with another number.
    ``gpu_memory_gb`` describes a GPU of the cluster: what cannot fit is refused before it is
    submitted (`califkit.training.plan`). ``workers`` is the number of local jobs at a time; 0
    computes everything in the process that asks, which suits small models. ``tokens_per_pass``
    bounds the memory of the scorer.
    ``trainer`` is TRL, or verl as in the paper (``docs/verl.md``): it does change a run, whose
    description then names it. ``deepspeed`` is the path of a DeepSpeed configuration, ``report_to``
    lists trackers beside the log that is always written. ``judges`` and ``policies`` (which answer,
    for Figs. 1 and 2) are reached behind endpoints.

    ``slurm`` holds options of submitit for a stage that all processes share: ``nodes``, over which
    they are spread evenly, ``gpus_per_node`` (8, or with a type h100:8), ``cpus_per_task`` and
    ``mem_gb`` of a node, ``slurm_setup`` (lines of shell before the work, as [module load cuda]),
    ``slurm_partition`` and others. Durations are numbers of the unit in their name, or texts as 36h
    (`califkit.runs.durations`). A stage of one process gets the share of one.
    ``slurm_stages`` changes options for a kind of stage: ``{scores: {slurm_partition: small}}``. A
    job whose time is over goes back into the queue at most ``requeues`` times.
    """

    cluster: Literal["local", "slurm"] = "local"
    trainer: Literal["trl", "verl"] = "trl"
    workers: Annotated[int, Field(ge=0)] | None = None
    processes: Count = 1
    memory_per_worker_gb: Positive = 6.0
    gpu_memory_gb: Positive | None = None
    save_every: Count = 10
    keep_checkpoints: Count = 1
    tokens_per_pass: Count = 2048
    deepspeed: str | None = None
    vllm: VllmSettings = VllmSettings()
    report_to: tuple[Literal["trackio", "wandb", "tensorboard"], ...] = ()
    slurm: dict[str, Any] = {}
    slurm_stages: dict[StageKind, dict[str, Any]] = {}
    requeues: Annotated[int, Field(ge=0)] = 30
    judges: tuple[JudgeSettings, ...] = ()
    policies: tuple[JudgeSettings, ...] = ()

    def longest(self, data: DataSettings, max_tokens: int) -> int | None:
        """Tokens of prompt and answer together that vLLM has to hold, as far as settings tell."""
        if self.vllm.max_model_len is not None or data.max_prompt_tokens is None:
            return self.vllm.max_model_len
        return data.max_prompt_tokens + max_tokens

    def judge(self, name: str) -> JudgeSettings:
        """The judge of this name; `ParamsError` lists those there are."""
        for settings in self.judges:
            if settings.name == name:
                return settings
        known = ", ".join(judge.name for judge in self.judges) or "none"
        raise ParamsError(f"no judge {name!r} in execution.judges; there are: {known}")

    def judge_like(self, model: JudgeModel) -> JudgeSettings:
        """The judge that a stage was described with; `ParamsError` if this one of its name would
        answer otherwise."""
        settings = self.judge(model.name)
        differences = ", ".join(
            f"{name} = {getattr(settings, name)!r}, not {value!r}"
            for name, value in model
            if getattr(settings, name) != value
        )
        if differences:
            raise ParamsError(
                f"execution.judges: {settings.name} is not the judge that was asked for: "
                f"{differences}"
            )
        return settings

    @field_validator("slurm")
    @classmethod
    def _options(cls, value: dict[str, Any]) -> dict[str, Any]:
        return checked_slurm(value)

    @field_validator("slurm_stages")
    @classmethod
    def _options_of_stages(cls, value: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        return {kind: checked_slurm(options) for kind, options in value.items()}

    @model_validator(mode="after")
    def _processes_fill_the_nodes(self) -> Execution:
        nodes, gpus = self.slurm.get("nodes", 1), gpus_of(self.slurm)
        if self.processes % nodes:
            raise ValueError(
                f"processes = {self.processes} do not divide evenly among slurm.nodes = {nodes}"
            )
        if gpus and gpus % (self.processes // nodes):
            raise ValueError(
                f"slurm.gpus_per_node = {self.slurm['gpus_per_node']} is no multiple of the "
                f"{self.processes // nodes} processes of a node"
            )
        return self

    @field_validator("judges", "policies")
    @classmethod
    def _names_differ(
        cls, value: tuple[JudgeSettings, ...], info: ValidationInfo
    ) -> tuple[JudgeSettings, ...]:
        names = [judge.name for judge in value]
        if len(set(names)) < len(names):
            raise ValueError(f"two {info.field_name} of one name: {', '.join(names)}")
        return value
