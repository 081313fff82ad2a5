"""Generated responses beside the prompts that they answer, for the stages that grade them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from califkit.data import DataError, Instance, Loaded
from califkit.generate import RESPONSES, generate_responses
from califkit.params import Execution, GenerateStage
from califkit.prompts import benchmark_prompts
from califkit.runs import read_jsonl


@dataclass(frozen=True)
class Answers:
    """The rows of `RESPONSES` in their order, and the prompts by key."""

    rows: list[dict[str, Any]]
    instances: dict[str, Instance]
    loaded: Loaded


def load_answers(profile: str, stage: GenerateStage, execution: Execution) -> Answers:
    """The responses of one policy, generated first if need be, with their prompts.

    Raises
    ------
    DataError
        If the prompts are not those that the responses answer.
    """
    responses = generate_responses(profile, stage, execution)
    rows = read_jsonl(responses.folder / RESPONSES)
    loaded = benchmark_prompts(stage.evaluation)
    answered = responses.manifest()["data_sha256"]
    if answered != loaded.sha256:
        raise DataError(
            f"{loaded.source}: sha256 {loaded.sha256[:12]}, but the responses in "
            f"{responses.folder} answer prompts with sha256 {answered[:12]}"
        )
    instances = {instance.key: instance for instance in loaded.instances}
    if unknown := [row["key"] for row in rows if row["key"] not in instances]:
        raise DataError(
            f"{responses.folder}: {len(unknown)} of {len(rows)} responses answer prompts that "
            f"are not among those usable here, the first with key {unknown[0]!r}"
        )
    return Answers(rows, instances, loaded)


def whose(stage: GenerateStage) -> dict[str, Any]:
    """The columns that say in every table whose responses these are."""
    return {
        "method": stage.method,
        "train_seed": stage.policy.seed if stage.policy else None,
        "eval_seed": stage.seed,
    }
