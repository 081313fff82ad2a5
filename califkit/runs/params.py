"""The settings of a profile as a whole, the stages they make, and their file, ``params/*.yaml``.

A params file is an ordinary papermill parameters file with three keys::

    profile: cpu        # names the folder under runs/ and figures/
    submit: false       # whether a notebook may submit jobs to a cluster
    settings: {...}     # the tree typed by `Settings`
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field, ValidationError, field_validator, model_validator

from califkit.runs.judge_settings import JudgeModel
from califkit.runs.paths import project_root
from califkit.runs.settings import (
    JUDGE_METHODS,
    REGION_METHODS,
    RUBRICS,
    AnchorSettings,
    DataSettings,
    Engine,
    EvaluationSettings,
    Execution,
    IdentificationSettings,
    Method,
    ParamsError,
    ResponseSettings,
    RewardOptions,
    TrainingSettings,
)
from califkit.runs.stages import (
    AnchorStage,
    GenerateStage,
    IdentificationStage,
    JudgeStage,
    PairwiseStage,
    QualityStage,
    RubricStage,
    ScoreStage,
    TrainStage,
)
from califkit.runs.text import short
from califkit.runs.types import Frozen, Positive, Seed
from califkit.runs.yaml_text import YamlError, check_size, read_yaml

T = TypeVar("T", bound=Frozen)


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
    identification: IdentificationSettings | None = None
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
        """Bounds from longer, colder, hotter or truncated draws would not bound the rollouts."""
        limit, temperature = self.training.max_completion_tokens, self.training.temperature
        rollouts = {"temperature": temperature, "top_p": 1.0, "top_k": 0, "max_tokens": limit}
        for name, value in rollouts.items():
            found = getattr(self.anchors.sampling, name)
            if found != value and not self.training.anchors_may_differ:
                raise ValueError(
                    f"anchors.sampling.{name} = {found}, but rollouts are drawn with {value}; make "
                    "them equal, or set training.anchors_may_differ: true, which is recorded with "
                    "the results"
                )
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
        return AnchorStage(data=self.data, anchors=anchors, **self._model())

    def _model(self) -> dict[str, Any]:
        return {"model": self.model, "thinking": self.thinking, "engine": self.engine}

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
            how = how.model_copy(update={"benchmark": benchmark, "composed": None})
        return [
            GenerateStage(policy=policy, evaluation=how, seed=seed, **self._model())
            for policy in [None, *self.train_stages()]
            for seed in self.eval_seeds
        ]

    def score_stages(self) -> list[ScoreStage]:
        """All evaluations of the profile, in the order of `generate_stages`."""
        semantics = self.evaluation.semantics
        return [ScoreStage(responses=r, semantics=semantics) for r in self.generate_stages()]

    def identification_stages(self) -> list[IdentificationStage]:
        """Request identification of the same responses; none unless it is asked for."""
        if (how := self.identification) is None:
            return []
        return [
            IdentificationStage(responses=r, identification=how) for r in self.generate_stages()
        ]

    def quality_stages(self) -> list[QualityStage]:
        """Response quality of the same responses; none without a judge."""
        if (judge := self._judge(self.judge)) is None:
            return []
        return [QualityStage(responses=r, judge=judge) for r in self.generate_stages()]

    def pairwise_stages(self) -> list[PairwiseStage]:
        """CaLIF against IF-RLVR, first training and evaluation seed (A21); none without a judge."""
        judge = self._judge(self.judge)
        if judge is None or not {"calif", "if_rlvr"} <= set(self.methods):
            return []
        first_of = {r.method: r for r in reversed(self.generate_stages())}
        return [PairwiseStage(first=first_of["calif"], second=first_of["if_rlvr"], judge=judge)]

    def rubric_stages(self) -> list[RubricStage]:
        """Every policy on every benchmark in ``rubrics``; none without a judge."""
        if (judge := self._judge(self.judge)) is None:
            return []
        return [
            RubricStage(responses=responses, judge=judge)
            for benchmark in self.rubrics
            for responses in self.generate_stages(benchmark)
        ]

    def judge_stages(self) -> list[JudgeStage]:
        """All that the profile's judge is asked; nothing without a judge."""
        return [*self.quality_stages(), *self.pairwise_stages(), *self.rubric_stages()]

    def _judge(self, name: str | None) -> JudgeModel | None:
        return None if name is None else self.execution.judge(name).identity()


class Params(Frozen):
    """A whole params file."""

    profile: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
    submit: bool = False
    settings: Settings = Settings()


def load_params(profile: str | Path = "cpu", settings: dict[str, Any] | None = None) -> Params:
    """Read and type a params file, with ``settings`` laid over its own key by key.

    ``profile`` is the name of a file in ``params/`` without its ending, or the path of a YAML file.
    `ParamsError` tells of a missing or malformed file, an unknown key, or a value that does not
    fit.
    """
    path = params_path(profile)
    raw = read_params_file(path)
    if "groups" in raw:
        raise ParamsError(f"{path}: holds the arms of a study (califkit.runs.arms), no profile")
    params = typed(Params, raw, str(path))
    if settings is not None:
        try:
            check_size(settings)
        except YamlError as error:
            raise ParamsError(f"{path} with overrides: settings: {error}") from error
        params = typed(Params, merge(raw, {"settings": settings}), f"{path} with overrides")
    return params


def typed(model: type[T], raw: dict[str, Any], source: str) -> T:
    """What a file holds, typed; `ParamsError` has a line a problem, with file, key and value."""
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        raise ParamsError(_explain(source, error)) from error


def params_path(profile: str | Path) -> Path:
    """The YAML file behind a profile name or path; `ParamsError` lists the profiles there are."""
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
        raw = read_yaml(path)
    except YamlError as error:
        raise ParamsError(f"{path}: not readable as YAML: {error}") from error
    if not isinstance(raw, dict):
        raise ParamsError(f"{path}: expected a mapping with the key 'profile', got {short(raw)}")
    return raw


def merge(base: dict[str, Any], override: dict[str, Any]) -> dict[str, Any]:
    """A tree of settings with another laid over it, key by key."""
    merged = dict(base)
    for key, value in override.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = merge(merged[key], value) if both else value
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
        got = "" if whole else f" (got {short(problem['input'])})"
        lines.append(f"{source}: {key}: {what}{got}")
    return "\n".join(lines)
