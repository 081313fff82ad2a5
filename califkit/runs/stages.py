"""Stages: the pure description of one run, what it needs, and the hash that names its folder."""

from __future__ import annotations

import hashlib
import json
from typing import Any, ClassVar, Literal

from califkit.runs.judge_settings import JudgeModel
from califkit.runs.settings import (
    AnchorSettings,
    DataSettings,
    Engine,
    Execution,
    IdentificationSettings,
    Method,
    ResponseSettings,
    RewardOptions,
    Semantics,
    TrainingSettings,
)
from califkit.runs.types import Frozen, Positive, Seed


class Stage(Frozen):
    """What all stages share. The fields of a stage are all that can change its result.

    Functions are named ``module:name`` and looked up when they are called, so that a description
    imports nothing that computes.
    """

    kind: ClassVar[str]
    command: ClassVar[str]
    """The command that computes such stages, for messages."""
    function: ClassVar[str]
    """What computes it: called with profile, stage and execution, it returns the complete run. It
    opens what the stage `needs` and never computes that."""
    checks: ClassVar[tuple[str, ...]] = ()
    """Called like ``function`` before anything starts; each raises for what would end the stage."""
    unchanged: ClassVar[str] = "califkit.data.prompts:check_unchanged"
    """Called with a complete run; raises if its `prompts` were replaced since."""
    split: ClassVar[Literal["shards", "ranks"] | None] = None
    """How several processes share the work: shards know nothing of each other, ranks train
    together. None is one process."""
    judged: ClassVar[bool] = False
    """Whether a judge does the work, which wants a network and nothing else of a machine."""
    starts_its_own: ClassVar[bool] = False
    """Whether the function starts the processes that share the work."""
    holds_weights: ClassVar[bool] = False
    """Whether others need weights of it; a recorded run has none."""

    @property
    def name(self) -> str:
        raise NotImplementedError

    @property
    def needs(self) -> tuple[Stage, ...]:
        """The stages whose runs it opens: all those that its description holds."""
        return tuple(value for _, value in self if isinstance(value, Stage))

    @property
    def prompts(self) -> str | None:
        """Name or file of the prompts it is made of; None if only by way of what it needs."""
        return None

    def processes(self, execution: Execution) -> int:
        return execution.processes if self.split else 1


class AnchorStage(Stage):
    """l0 and l1 of every training prompt under the frozen reference."""

    kind = "anchors"
    command = "califkit anchors"
    function = "califkit.anchors.measure:compute_anchors"
    checks = ("califkit.models.checks:check_model", "califkit.data.prompts:check_prompts")
    split = "shards"

    model: str
    thinking: bool = False
    engine: Engine = None
    data: DataSettings
    anchors: AnchorSettings

    @property
    def name(self) -> str:
        return "reference"

    @property
    def prompts(self) -> str:
        return self.data.source


class TrainStage(Stage):
    """One GRPO run, by TRL unless another ``trainer`` is named. What a method does not use
    (``alpha``, ``reward``, ``judge``) is None, so that it cannot split runs. ``tau`` None is
    measured: the judge's mean score of the reference answers (A5)."""

    kind = "training"
    command = "califkit train"
    split = "ranks"
    holds_weights = True

    method: Method
    seed: Seed
    alpha: Positive | None
    reward: RewardOptions | None = None
    judge: JudgeModel | None = None
    tau: float | None = None
    trainer: Literal["verl"] | None = None
    anchors: AnchorStage
    training: TrainingSettings

    @property
    def function(self) -> str:
        return f"califkit.training.{self.trainer or 'grpo'}:train"

    @property
    def checks(self) -> tuple[str, ...]:
        prompts = "califkit.data.prompts:check_prompts"
        if self.trainer:
            return (prompts, f"califkit.training.{self.trainer}:check_settings")
        return (
            prompts,
            "califkit.training.checks:check_settings",
            "califkit.training.plan:check_memory",
        )

    @property
    def starts_its_own(self) -> bool:
        return self.trainer is not None

    @property
    def name(self) -> str:
        return f"{self.method}-seed{self.seed}"

    @property
    def data(self) -> DataSettings:
        return self.anchors.data

    @property
    def prompts(self) -> str:
        return self.data.source


class GenerateStage(Stage):
    """Responses of one policy to the test prompts; ``policy`` None is the base model."""

    kind = "generation"
    command = "califkit generate"
    function = "califkit.generation:generate_responses"
    checks = ("califkit.models.checks:check_model", "califkit.generation:check_benchmark")

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

    @property
    def prompts(self) -> str:
        return self.evaluation.benchmark


class ScoreStage(Stage):
    """Verdicts, reference log-likelihood and text statistics of generated responses.

    ``reference`` None is the base model of the policy.
    """

    kind = "scores"
    command = "califkit evaluate"
    function = "califkit.evaluation.scores:score_responses"
    checks = ("califkit.models.checks:check_reference",)

    responses: GenerateStage
    semantics: Semantics = "published"
    reference: str | None = None

    @property
    def name(self) -> str:
        return self.responses.name


class IdentificationStage(Stage):
    """Likelihood of generated responses given their own request and given others."""

    kind = "identification"
    command = "califkit evaluate"
    function = "califkit.evaluation.identification:identify_responses"

    responses: GenerateStage
    identification: IdentificationSettings

    @property
    def name(self) -> str:
        return self.responses.name


class JudgeStage(Stage):
    """What the stages share whose work a judge does."""

    command = "califkit judge"
    checks = ("califkit.judges.client:check_judge",)
    judged = True

    judge: JudgeModel


class QualityStage(JudgeStage):
    """Response quality of generated responses, scored by one judge."""

    kind = "quality"
    function = "califkit.evaluation.quality:judge_quality"

    responses: GenerateStage

    @property
    def name(self) -> str:
        return f"{self.responses.name}-{self.judge.name}"


class PairwiseStage(JudgeStage):
    """Which of two policies answers each prompt better, judged in both orders."""

    kind = "pairwise"
    function = "califkit.evaluation.quality:judge_pairs"

    first: GenerateStage
    second: GenerateStage

    @property
    def name(self) -> str:
        return f"{self.first.name}-against-{self.second.name}-{self.judge.name}"


class RubricStage(JudgeStage):
    """Verdicts of a judge on the responses to a rubric benchmark."""

    kind = "rubrics"
    function = "califkit.evaluation.rubrics:judge_rubrics"

    responses: GenerateStage

    @property
    def name(self) -> str:
        benchmark = self.responses.evaluation.benchmark.partition(":")[0]
        return f"{benchmark}-{self.responses.name}-{self.judge.name}"


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
