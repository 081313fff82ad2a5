"""Typed settings of every stage, and the loader that reads them from ``params/<profile>.yaml``.

A params file is an ordinary papermill parameters file with three keys::

    profile: cpu        # names the folder under runs/ and figures/
    submit: false       # whether a notebook may submit jobs to a cluster
    settings: {...}     # the tree typed by `Settings` below

so ``papermill notebook.ipynb out.ipynb -f params/cpu.yaml`` works without califkit's help, and
everything inside ``settings`` is checked here: an unknown key, a wrong type or a value out of
range is a `ParamsError` that names file, key and value before anything runs.

A *stage* (`AnchorStage`, `TrainStage`, `GenerateStage`, `ScoreStage`) is the pure description of
one run. Its hash covers every setting that can change the result and nothing else; how the work
is executed (`Execution`: worker processes, save interval) is kept apart and never hashed.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from califkit.frozen import Count, Frozen, Positive, Seed, Share
from califkit.judge_settings import JudgeModel, JudgeSettings

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
"""Reward of a training run; `califkit.rewards.RewardRule` says what each one pays, and
`califkit.judge_reward` what the last two do."""

JUDGE_METHODS = ("self_judge", "stronger_judge")
"""Methods whose bonus a judge gives (paper section 2.4)."""

REGION_METHODS = ("inner_region", "outer_region")
"""Methods whose bounds are ends of confidence intervals over several draws a side (section 6)."""

RUBRICS = ("advancedif", "followbench", "complexbench")
"""Rubric benchmarks; ``name`` is our own small set of it, ``name:source`` another."""

Semantics = Literal["published", "repaired"]
"""Verdicts of the published code, or with its named defects repaired."""


class ParamsError(ValueError):
    """A params file or an override that cannot be used; the message names file, key and value."""


class DataSettings(Frozen):
    """Training prompts.

    ``source`` is ``composer`` (prompts composed from the requests shipped with the package),
    ``hub:<name>`` (for instance ``hub:allenai/IF_multi_constraints_upto5``) or the path of a JSONL
    file in the hub's layout. ``constraint_ids`` restricts the composer to these ids; like the
    numbers of constraints it is refused with another source, which it would not change.
    """

    source: str = "composer"
    n_prompts: Count = 1024
    min_constraints: Count = 1
    max_constraints: Annotated[int, Field(ge=1, le=5)] = 5
    constraint_ids: tuple[str, ...] | None = None
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
    def _only_the_composer_composes(self) -> DataSettings:
        if self.source == "composer":
            return self
        for name in ("constraint_ids", "min_constraints", "max_constraints"):
            value, default = getattr(self, name), type(self).model_fields[name].default
            if value != default:
                raise ValueError(
                    f"{name} = {value!r} is for source = composer and does nothing with "
                    f"source = {self.source}; set it to {'null' if default is None else default}"
                )
        return self


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

    ``lora`` None trains all weights. ``use_vllm`` draws the rollouts with vLLM inside the trainer
    (GPU). ``drop_degenerate`` leaves out prompts whose anchors are loops, nearly empty or missing.
    ``anchors_may_differ`` admits anchors that were drawn otherwise than the rollouts are.
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

    @model_validator(mode="after")
    def _consistent(self) -> TrainingSettings:
        rollouts = self.prompts_per_step * self.rollouts_per_prompt
        if rollouts % self.micro_batch_size:
            raise ValueError(
                f"prompts_per_step x rollouts_per_prompt = {rollouts} rollouts do not divide into "
                f"micro-batches of micro_batch_size = {self.micro_batch_size}"
            )
        if self.temperature != 1.0:
            raise ValueError(
                f"temperature = {self.temperature}: the bounds l0 and l1 are likelihoods at "
                "temperature 1, so rollouts must be drawn at 1.0"
            )
        return self


class ResponseSettings(Frozen):
    """Responses on the test prompts (paper section 4; non-thinking sampling by default)."""

    benchmark: str = "ifbench"
    n_prompts: Count | None = None
    prompt_seed: Seed = 0
    sampling: Sampling = Sampling(temperature=0.7, top_p=0.8, top_k=20, max_tokens=2048)


class EvaluationSettings(ResponseSettings):
    """The responses and how they are judged."""

    semantics: Semantics = "published"


Engine = Literal["vllm"] | None
"""What draws responses; None is ``model.generate`` of transformers."""


def _check_anchor_sampling(anchors: Sampling, training: TrainingSettings) -> None:
    """Bounds from longer, colder or truncated draws would not bound the rollouts."""
    if training.anchors_may_differ:
        return
    rollouts = {
        "temperature": training.temperature,
        "top_p": 1.0,
        "top_k": 0,
        "max_tokens": training.max_completion_tokens,
    }
    for name, value in rollouts.items():
        if getattr(anchors, name) != value:
            raise ValueError(
                f"anchors.sampling.{name} = {getattr(anchors, name)}, but rollouts are drawn with "
                f"{value}; make them equal, or set training.anchors_may_differ: true, which is "
                "recorded with the results"
            )


class AnchorStage(Frozen):
    """l0 and l1 of every training prompt under the frozen reference."""

    kind: ClassVar[str] = "anchors"
    model: str
    thinking: bool = False
    engine: Engine = None
    data: DataSettings
    anchors: AnchorSettings

    @property
    def name(self) -> str:
        return "reference"


class TrainStage(Frozen):
    """One GRPO run. What a method does not use (``alpha``, ``reward``, ``judge``) is None, so that
    it cannot split runs. ``tau`` None is measured: the judge's mean score of the reference answers
    (A5)."""

    kind: ClassVar[str] = "training"
    method: Method
    seed: Seed
    alpha: Positive | None
    reward: RewardOptions | None = None
    judge: JudgeModel | None = None
    tau: float | None = None
    anchors: AnchorStage
    training: TrainingSettings

    @model_validator(mode="after")
    def _anchors_are_drawn_like_rollouts(self) -> TrainStage:
        _check_anchor_sampling(self.anchors.anchors.sampling, self.training)
        return self

    @property
    def name(self) -> str:
        return f"{self.method}-seed{self.seed}"


class GenerateStage(Frozen):
    """Responses of one policy to the test prompts; ``policy`` None is the base model."""

    kind: ClassVar[str] = "generation"
    model: str
    thinking: bool = False
    engine: Engine = None
    policy: TrainStage | None
    evaluation: ResponseSettings
    seed: Seed

    @property
    def method(self) -> str:
        return self.policy.method if self.policy else "base"

    @property
    def name(self) -> str:
        trained = f"-trained{self.policy.seed}" if self.policy else ""
        return f"{self.method}{trained}-seed{self.seed}"


class ScoreStage(Frozen):
    """Verdicts, reference log-likelihood and text statistics of generated responses."""

    kind: ClassVar[str] = "scores"
    responses: GenerateStage
    semantics: Semantics = "published"

    @property
    def name(self) -> str:
        return self.responses.name


class QualityStage(Frozen):
    """Response quality of generated responses, scored by one judge."""

    kind: ClassVar[str] = "quality"
    responses: GenerateStage
    judge: JudgeModel

    @property
    def name(self) -> str:
        return f"{self.responses.name}-{self.judge.name}"


class PairwiseStage(Frozen):
    """Which of two policies answers each prompt better, judged in both orders."""

    kind: ClassVar[str] = "pairwise"
    first: GenerateStage
    second: GenerateStage
    judge: JudgeModel

    @property
    def name(self) -> str:
        return f"{self.first.name}-against-{self.second.name}-{self.judge.name}"


class RubricStage(Frozen):
    """Verdicts of a judge on the responses to a rubric benchmark."""

    kind: ClassVar[str] = "rubrics"
    responses: GenerateStage
    judge: JudgeModel

    @property
    def name(self) -> str:
        benchmark = self.responses.evaluation.benchmark.partition(":")[0]
        return f"{benchmark}-{self.responses.name}-{self.judge.name}"


Stage = (
    AnchorStage
    | TrainStage
    | GenerateStage
    | ScoreStage
    | QualityStage
    | PairwiseStage
    | RubricStage
)


class Execution(Frozen):
    """How the work is carried out; nothing here changes what is asked for, so it is not hashed.

    The number of ``processes`` does change the rollouts of a training run, as chance and other
    machines do: each process draws from a seed of its own. So it is noted in the run, which cannot
    be continued with another number.

    ``judges`` says how each judge that the settings name is reached. ``processes`` is their number
    in one job (ranks of a training run, shards of anchors), ``workers`` the number of local jobs
    at a time. ``tokens_per_pass`` bounds the memory of the
    scorer. ``deepspeed`` is the path of a DeepSpeed configuration, ``report_to`` lists trackers
    beside the log that is always written.
    """

    cluster: Literal["local", "slurm"] = "local"
    workers: Count | None = None
    processes: Count = 1
    memory_per_worker_gb: Positive = 6.0
    save_every: Count = 10
    keep_checkpoints: Count = 1
    tokens_per_pass: Count = 2048
    deepspeed: str | None = None
    report_to: tuple[Literal["trackio", "wandb", "tensorboard"], ...] = ()
    slurm: dict[str, Any] = {}
    judges: tuple[JudgeSettings, ...] = ()

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

    @field_validator("judges")
    @classmethod
    def _names_differ(cls, value: tuple[JudgeSettings, ...]) -> tuple[JudgeSettings, ...]:
        names = [judge.name for judge in value]
        if len(set(names)) < len(names):
            raise ValueError(f"two judges of one name: {', '.join(names)}")
        return value


class Settings(Frozen):
    """The ``settings`` tree of a params file."""

    model: str = "smollm2-135m-instruct"
    thinking: bool = False
    engine: Engine = None
    methods: tuple[Method, ...] = ("if_rlvr", "calif")
    alpha: Positive = 0.1
    reward: RewardOptions = RewardOptions()
    judge: str | None = None
    self_judge: str | None = None
    stronger_judge: str | None = None
    tau: float | None = None
    rubrics: tuple[str, ...] = ()
    region_draws: Annotated[int, Field(ge=2)] = 8
    train_seeds: tuple[Seed, ...] = (0,)
    eval_seeds: tuple[Seed, ...] = (0, 1, 2)
    data: DataSettings = DataSettings()
    anchors: AnchorSettings = AnchorSettings()
    training: TrainingSettings = TrainingSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    execution: Execution = Execution()

    @field_validator("methods", "train_seeds", "eval_seeds")
    @classmethod
    def _distinct(cls, values: tuple[Any, ...]) -> tuple[Any, ...]:
        if len(set(values)) < len(values):
            raise ValueError("the same value twice would count one run as two")
        return values

    @field_validator("rubrics")
    @classmethod
    def _known_rubrics(cls, values: tuple[str, ...]) -> tuple[str, ...]:
        names = [value.partition(":")[0] for value in values]
        if unknown := [name for name in names if name not in RUBRICS]:
            raise ValueError(f"{', '.join(unknown)}: rubric benchmarks are {', '.join(RUBRICS)}")
        if len(set(names)) < len(names):
            raise ValueError("a benchmark twice: two sources of one are not averaged")
        return values

    @field_validator("train_seeds", "eval_seeds")
    @classmethod
    def _some(cls, values: tuple[int, ...]) -> tuple[int, ...]:
        if not values:
            raise ValueError("needs at least one seed")
        return values

    @model_validator(mode="after")
    def _enough_prompts(self) -> Settings:
        if self.data.n_prompts < self.training.prompts_per_step:
            # TRL would drop the incomplete batch and end without a single step.
            raise ValueError(
                f"data.n_prompts = {self.data.n_prompts} is less than "
                f"training.prompts_per_step = {self.training.prompts_per_step}"
            )
        return self

    @model_validator(mode="after")
    def _anchors_are_drawn_like_rollouts(self) -> Settings:
        _check_anchor_sampling(self.anchors.sampling, self.training)
        return self

    @model_validator(mode="after")
    def _judges_are_known(self) -> Settings:
        for key in ("judge", *JUDGE_METHODS):
            name = getattr(self, key)
            if name is not None:
                self.execution.judge(name)
            elif key in self.methods:
                raise ValueError(
                    f"methods has {key}, but the setting {key} names no judge of execution.judges"
                )
        return self

    def anchor_stage(self, method: str = "calif") -> AnchorStage:
        """The bounds that a method needs: the region methods take `region_draws` draws a side."""
        anchors = self.anchors
        if method in REGION_METHODS:
            anchors = anchors.model_copy(update={"draws": self.region_draws})
        return AnchorStage(
            model=self.model,
            thinking=self.thinking,
            engine=self.engine,
            data=self.data,
            anchors=anchors,
        )

    def train_stage(self, method: str, seed: int) -> TrainStage:
        judged = method in JUDGE_METHODS
        return TrainStage(
            method=method,
            seed=seed,
            alpha=None if method in ("if_rlvr", "no_lower_dev") else self.alpha,
            reward=self.reward if method in ("calif", *REGION_METHODS) else None,
            judge=self._judge(getattr(self, method)) if judged else None,
            tau=self.tau if judged else None,
            anchors=self.anchor_stage(method),
            training=self.training,
        )

    def train_stages(self) -> list[TrainStage]:
        """All training runs of the profile, method by method."""
        return [self.train_stage(m, s) for m in self.methods for s in self.train_seeds]

    def generate_stages(self, benchmark: str | None = None) -> list[GenerateStage]:
        """Responses of the base model, then of every training run, per seed."""
        # Without the semantics: responses do not depend on how they are judged later.
        how = ResponseSettings(**self.evaluation.model_dump(exclude={"semantics"}))
        if benchmark is not None:
            how = how.model_copy(update={"benchmark": benchmark})
        return [
            GenerateStage(
                model=self.model,
                thinking=self.thinking,
                engine=self.engine,
                policy=policy,
                evaluation=how,
                seed=seed,
            )
            for policy in [None, *self.train_stages()]
            for seed in self.eval_seeds
        ]

    def score_stages(self) -> list[ScoreStage]:
        """All evaluations of the profile, in the order of `generate_stages`."""
        semantics = self.evaluation.semantics
        return [ScoreStage(responses=r, semantics=semantics) for r in self.generate_stages()]

    def quality_stages(self) -> list[QualityStage]:
        """Response quality of the same responses; none without a judge."""
        if self.judge is None:
            return []
        judge = self._judge(self.judge)
        return [QualityStage(responses=r, judge=judge) for r in self.generate_stages()]

    def pairwise_stages(self) -> list[PairwiseStage]:
        """CaLIF against IF-RLVR, first training and evaluation seed (A21); none without a judge."""
        if self.judge is None or not {"calif", "if_rlvr"} <= set(self.methods):
            return []
        first_of = {r.method: r for r in reversed(self.generate_stages())}
        judge = self._judge(self.judge)
        return [PairwiseStage(first=first_of["calif"], second=first_of["if_rlvr"], judge=judge)]

    def rubric_stages(self) -> list[RubricStage]:
        """Every policy on every benchmark in ``rubrics``; none without a judge."""
        if self.judge is None:
            return []
        judge = self._judge(self.judge)
        return [
            RubricStage(responses=responses, judge=judge)
            for benchmark in self.rubrics
            for responses in self.generate_stages(benchmark)
        ]

    def _judge(self, name: str) -> JudgeModel:
        return self.execution.judge(name).identity()


class Params(Frozen):
    """A whole params file."""

    profile: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
    submit: bool = False
    settings: Settings = Settings()


def stage_hash(stage: Stage) -> str:
    """Ten hexadecimal digits that identify a stage by all settings that can change its result.

    An option that is off (None or False) does not enter, so that a new option leaves the runs made
    before it valid.
    """
    settings = _without_off(stage.model_dump(mode="json"))
    canonical = json.dumps(settings, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(f"{stage.kind}:{canonical}".encode()).hexdigest()[:10]


def _without_off(settings: dict[str, Any]) -> dict[str, Any]:
    free = {"extra_body"}  # not ours: a judge's server may well tell False from nothing
    kept = {
        key: _without_off(value) if isinstance(value, dict) and key not in free else value
        for key, value in settings.items()
    }
    return {k: v for k, v in kept.items() if v is not None and v is not False and v != {}}


def load_params(profile: str | Path = "cpu", settings: dict[str, Any] | None = None) -> Params:
    """Read and type ``params/<profile>.yaml`` (or the given file), then apply overrides.

    Parameters
    ----------
    profile
        Name of a file in ``params/`` without its ending, or a path to a YAML file.
    settings
        Overrides merged into the file's ``settings`` tree key by key, for example
        ``{"training": {"steps": 5}}``. They are typed by the same schema.

    Raises
    ------
    ParamsError
        For a missing or malformed file, an unknown key, or a value of the wrong type or range.
    """
    path = params_path(profile)
    raw = read_params_file(path)
    params = _typed(raw, str(path))
    if settings is not None:
        params = _typed(_merge(raw, {"settings": settings}), f"{path} with overrides")
    return params


def _typed(raw: dict[str, Any], source: str) -> Params:
    try:
        return Params.model_validate(raw)
    except ValidationError as error:
        raise ParamsError(_explain(source, error)) from error


def params_path(profile: str | Path) -> Path:
    """The YAML file behind a profile name or path; `ParamsError` lists the profiles there are."""
    from califkit.runs import project_root

    if str(profile).endswith((".yaml", ".yml")):
        path = Path(profile)
        path = path if path.exists() or path.is_absolute() else project_root() / path
    else:
        path = project_root() / "params" / f"{profile}.yaml"
    if not path.is_file():
        known = sorted(p.stem for p in (project_root() / "params").glob("*.yaml"))
        raise ParamsError(f"no params file {path}; profiles: {', '.join(known) or 'none'}")
    return path


def read_params_file(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file, untyped."""
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError) as error:  # a ValueError: no UTF-8, no such date
        text = " ".join(str(error).split())
        raise ParamsError(f"{path}: not readable as YAML: {text}") from error
    if not isinstance(raw, dict):
        raise ParamsError(f"{path}: expected a mapping with the key 'profile', got {_short(raw)}")
    return raw


def _merge(base: dict[str, Any], override: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in override.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merge(merged[key], value) if both else value
    return merged


def _explain(source: str, error: ValidationError) -> str:
    """One line a problem: file, key, what is wrong, value."""
    lines = []
    for problem in error.errors():
        key = ".".join(map(str, problem["loc"])) or "file"
        unknown = problem["type"] == "extra_forbidden"
        what = "unknown key" if unknown else problem["msg"].removeprefix("Value error, ")
        # A check of several keys names those that contradict each other; the input is all of them.
        whole = problem["type"] == "value_error" and isinstance(problem["input"], dict)
        got = "" if whole else f" (got {_short(problem['input'])})"
        lines.append(f"{source}: {key}: {what}{got}")
    return "\n".join(lines)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else text[:97] + "..."
