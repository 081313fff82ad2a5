"""Stages: the pure description of one run, and the hash that names its folder."""

from __future__ import annotations

import hashlib
import json
from typing import Any, ClassVar

from pydantic import model_validator

from califkit.runs.judge_settings import JudgeModel
from califkit.runs.settings import (
    AnchorSettings,
    DataSettings,
    Engine,
    Method,
    ResponseSettings,
    RewardOptions,
    Semantics,
    TrainingSettings,
    check_anchor_sampling,
)
from califkit.runs.types import Frozen, Positive, Seed


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
        check_anchor_sampling(self.anchors.anchors.sampling, self.training)
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
