"""The settings of a profile as a whole, the stages they make, and their file, ``params/*.yaml``.

A params file is an ordinary papermill parameters file with three keys::

    profile: cpu        # names the folder under runs/ and figures/
    submit: false       # whether a notebook may submit jobs to a cluster
    settings: {...}     # the tree typed by `Settings`

It may start from another one (``base: h100``) and change some of its settings. Two more keys make
it a study (`califkit.runs.arms`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError, field_validator, model_validator

from califkit.runs.judge_settings import JudgeModel
from califkit.runs.paths import project_file
from califkit.runs.settings import (
    JUDGE_METHODS,
    REGION_METHODS,
    RUBRICS,
    AnchorSettings,
    AnswerFiles,
    CheckpointPair,
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


class Settings(Frozen):
    """The ``settings`` tree of a params file."""

    model: str = "smollm2-135m-instruct"
    thinking: bool = False
    engine: Engine = None
    methods: tuple[Method, ...] = ("if_rlvr", "calif")
    alpha: Positive = 0.1
    reward: RewardOptions = RewardOptions()
    judge: str | tuple[str, ...] | None = None
    self_judge: str | None = None
    stronger_judge: str | None = None
    tau: float | None = None
    rubrics: tuple[str, ...] = ()
    checkpoints: tuple[CheckpointPair, ...] = ()
    answers: tuple[AnswerFiles, ...] = ()
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

    @field_validator("checkpoints")
    @classmethod
    def _distinct_pairs(cls, values: tuple[CheckpointPair, ...]) -> tuple[CheckpointPair, ...]:
        if len({pair.name for pair in values}) < len(values):
            raise ValueError("two pairs of one name")
        return values

    @field_validator("train_seeds", "eval_seeds")
    @classmethod
    def _some(cls, values: tuple[int, ...]) -> tuple[int, ...]:
        if not values:
            raise ValueError("needs at least one seed")
        return values

    @model_validator(mode="after")
    def _enough_prompts(self) -> Settings:
        asked = self.data.n_prompts
        if asked is not None and asked < self.training.prompts_per_step:
            # TRL would drop the incomplete batch and end without a single step.
            raise ValueError(
                f"data.n_prompts = {asked} is less than "
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

    @field_validator("judge")
    @classmethod
    def _distinct_judges(cls, value: Any) -> Any:
        if isinstance(value, tuple) and not 0 < len(set(value)) == len(value):
            raise ValueError("needs a name, a list of distinct names, or null")
        return value

    @model_validator(mode="after")
    def _policies_have_names_of_their_own(self) -> Settings:
        names = [policy.name for policy in (*self.execution.policies, *self.answers)]
        if len(set(names)) < len(names):
            raise ValueError(f"execution.policies, answers: a name twice: {', '.join(names)}")
        return self

    @model_validator(mode="after")
    def _judges_are_known(self) -> Settings:
        for judge in self.judges():
            self.execution.judge(judge)
        for key in JUDGE_METHODS:
            name = getattr(self, key)
            if name is not None:
                self.execution.judge(name)
            elif key in self.methods:
                raise ValueError(
                    f"methods has {key}, but the setting {key} names no judge of execution.judges"
                )
        return self

    def judges(self) -> tuple[str, ...]:
        """Names of the judges of response quality; the first also compares pairs and rubrics."""
        judges = () if self.judge is None else self.judge
        return (judges,) if isinstance(judges, str) else judges

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
            trainer=None if self.execution.trainer == "trl" else self.execution.trainer,
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
        return self.quality_of(self.generate_stages())

    def quality_of(self, responses: Sequence[GenerateStage]) -> list[QualityStage]:
        """Response quality of some responses, judge by judge."""
        return [
            QualityStage(responses=one, judge=self._judge(name))
            for name in self.judges()
            for one in responses
        ]

    def checkpoint_stages(self) -> list[ScoreStage]:
        """Both sides of every pair in ``checkpoints``, per seed, scored by the pair's reference."""
        how = self.generate_stages()[0].evaluation
        stages = []
        for pair in self.checkpoints:
            for model in (pair.before, pair.after):
                policy = self._model() | {"model": model, "policy": None, "evaluation": how}
                stages += [
                    ScoreStage(
                        responses=GenerateStage(**policy, seed=seed),
                        semantics=self.evaluation.semantics,
                        reference=pair.reference or pair.before,
                    )
                    for seed in self.eval_seeds
                ]
        return stages

    def pairwise_stages(self) -> list[PairwiseStage]:
        """CaLIF against IF-RLVR, first training and evaluation seed (A21); none without a judge."""
        judge = self._first_judge()
        if judge is None or not {"calif", "if_rlvr"} <= set(self.methods):
            return []
        first_of = {r.method: r for r in reversed(self.generate_stages())}
        return [PairwiseStage(first=first_of["calif"], second=first_of["if_rlvr"], judge=judge)]

    def rubric_stages(self) -> list[RubricStage]:
        """Every policy on every benchmark in ``rubrics``; none without a judge."""
        if (judge := self._first_judge()) is None:
            return []
        return [
            RubricStage(responses=responses, judge=judge)
            for benchmark in self.rubrics
            for responses in self.generate_stages(benchmark)
        ]

    def judge_stages(self) -> list[JudgeStage]:
        """All that the profile's judges are asked; nothing without a judge."""
        return [*self.quality_stages(), *self.pairwise_stages(), *self.rubric_stages()]

    def _first_judge(self) -> JudgeModel | None:
        return next(map(self._judge, self.judges()), None)

    def _judge(self, name: str) -> JudgeModel:
        return self.execution.judge(name).identity()


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
    params = _typed(raw, str(path))
    if settings is not None:
        try:
            check_size(settings)
        except YamlError as error:
            raise ParamsError(f"{path} with overrides: settings: {error}") from error
        params = _typed(merge(raw, {"settings": settings}), f"{path} with overrides")
    return params


def _typed(raw: dict[str, Any], source: str) -> Params:
    try:
        return Params.model_validate(raw)
    except ValidationError as error:
        raise ParamsError(_explain(source, error)) from error


def params_path(profile: str | Path) -> Path:
    """The YAML file behind a profile name or path; `ParamsError` lists the profiles there are."""
    if str(profile).endswith((".yaml", ".yml")):
        path = Path(profile)
        path = path if path.exists() or path.is_absolute() else project_file(str(path))
    else:
        path = project_file(f"params/{profile}.yaml")
    if not path.is_file():
        known = sorted(p.stem for p in project_file("params").glob("*.yaml"))
        raise ParamsError(f"no params file {path}; profiles: {', '.join(known) or 'none'}")
    return path


def read_params_file(path: Path) -> dict[str, Any]:
    """The profile, submit and settings of a YAML file and of what it starts from, untyped."""
    raw = _with_base(path, ())
    return {key: value for key, value in raw.items() if key not in _STUDY}


def read_study(path: Path) -> dict[str, dict[str, Any]]:
    """The configurations and groups of a params file, empty where it has none."""
    raw = _with_base(path, ())
    study = {key: raw.get(key) or {} for key in _STUDY}
    for key, value in study.items():
        if not isinstance(value, dict):
            raise ParamsError(f"{path}: {key} = {short(value)}: expected a mapping")
    return study


_STUDY = ("configurations", "groups")
FILE_KEYS = {"base", *_STUDY}
"""Keys of a params file that are no parameters of a notebook; papermill -f passes them too."""


def _with_base(path: Path, above: tuple[Path, ...]) -> dict[str, Any]:
    """The mapping in a file, laid over that of its base; a base's arms are not inherited."""
    try:
        raw = read_yaml(path)
    except YamlError as error:
        raise ParamsError(f"{path}: not readable as YAML: {error}") from error
    if not isinstance(raw, dict):
        raise ParamsError(f"{path}: expected a mapping with the key 'profile', got {short(raw)}")
    if (base := raw.pop("base", None)) is None:
        return raw
    if not isinstance(base, str) or params_path(base) in (path, *above):
        raise ParamsError(f"{path}: base = {short(base)}: expected the name of another params file")
    inherited = _with_base(params_path(base), (path, *above))
    return merge({k: v for k, v in inherited.items() if k not in _STUDY}, raw)


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
