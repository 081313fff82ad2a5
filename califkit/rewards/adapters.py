"""The verifier fraction as a reward for other trainers; none of them is imported here.

* TRL: ``GRPOTrainer(reward_funcs=verifier_reward, ...)``, or a `VerifierReward` of your own;
* verl: ``custom_reward_function.path=<this file> .name=compute_score`` (CaLIF itself:
  `califkit.rewards.verl`);
* the ``verifiers`` library: ``Rubric(funcs=[constraints_followed])``;
* NeMo Gym: `gym_row` writes a row of a data set, `gym_verify` scores a response to one.

All of them grade the answer (`califkit.models.reasoning`; ``thinking`` says whether responses were
drawn in thinking mode), check strictly and give the share of constraints followed. They keep no
state and can be pickled, so threads, forks and spawned workers may call them. Data that cannot be
used is an error, never a reward of 0.

The constraints come as *ground truth*: what the training set calls so (the text of a Python
literal or of JSON, with ``instruction_id`` and ``kwargs``), or JSON as `constraints_json` writes it
(a list of ``{"id", "kwargs"}``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from califkit.data.rows import Instance, read_constraints
from califkit.models.reasoning import graded_text
from califkit.verifiers import ConstraintError, verify_all

GRADING_MODES = ("binary", "fraction")


def completion_text(completion: Any) -> str:
    """The text of a completion: a string, or the last assistant message of a conversation."""
    if isinstance(completion, str):
        return completion
    for message in reversed(list(completion)):
        if message["role"] == "assistant":
            return _content(message["content"])
    raise ValueError(f"a completion without an assistant message: {completion!r:.200}")


def _content(content: Any) -> str:
    """Text of a message, which may come in parts; a message of tool calls alone has none."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.get("text") or "" for part in content)


class VerifierReward:
    """TRL reward function: the share of constraints followed, without a reference model.

    The data set has, beside ``prompt``, a column ``constraints`` (as `constraints_json` writes it)
    or ``ground_truth`` (as in the training set).
    """

    def __init__(self, semantics: str = "published", thinking: bool = False) -> None:
        if semantics not in ("published", "repaired"):
            raise ValueError(f"semantics must be 'published' or 'repaired', not {semantics!r}")
        self.semantics = semantics
        self.thinking = thinking
        self.__name__ = "verifier" if semantics == "published" else f"verifier_{semantics}"

    def bind(self, trainer: Any) -> None:
        """Read the constraints of all rows of a trainer's data, so that one which cannot be used is
        named now, not at the first step that comes to it; nothing else needs this.

        Raises
        ------
        ConstraintError
            With data set and row; or if the column is not there or would not reach the reward. Rows
            of an ``IterableDataset`` cannot be read before.
        """
        from datasets import Dataset

        if trainer.args.remove_unused_columns:
            raise ConstraintError(
                "remove_unused_columns=True would keep the constraints from the reward: set it to "
                "False in the GRPOConfig"
            )
        evaluated = trainer.eval_dataset
        evaluated = evaluated if isinstance(evaluated, Mapping) else {"": evaluated}
        for dataset, name in (
            (trainer.train_dataset, "training set"),
            *((part, f"evaluation set {key}".rstrip()) for key, part in evaluated.items()),
        ):
            if not isinstance(dataset, Dataset):
                continue
            columns = [c for c in ("constraints", "ground_truth") if c in dataset.column_names]
            if not columns:
                raise ConstraintError(f"the {name} has no column 'constraints' or 'ground_truth'")
            for i, truth in enumerate(dataset.with_format(None)[columns[0]]):
                try:
                    read_constraints(truth)
                except ValueError as error:
                    raise ConstraintError(
                        f"row {i} of the {name}, {columns[0]}: {error}"
                    ) from error

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        *,
        constraints: Sequence[Any] | None = None,
        ground_truth: Sequence[Any] | None = None,
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Any,
    ) -> list[float]:
        """Rewards of a batch, in its order."""
        truths = ground_truth if constraints is None else constraints
        if truths is None:
            raise ValueError(
                "the data set needs a column 'constraints' or 'ground_truth'; "
                f"columns found: {', '.join(columns) or 'none'}"
            )
        rewards = [
            _share(truth, completion_text(completion), self.thinking, self.semantics)
            for truth, completion in zip(truths, completions, strict=True)
        ]
        if log_metric is not None and rewards:
            log_metric("all_followed", sum(r == 1.0 for r in rewards) / len(rewards))
        return rewards


verifier_reward = VerifierReward()
"""`VerifierReward` with the published verdicts."""


def _share(ground_truth: Any, response: str, thinking: bool, semantics: str = "published") -> float:
    constraints = read_constraints(ground_truth)
    followed = verify_all(constraints, graded_text(response, thinking), "strict", semantics)
    return sum(followed) / max(len(followed), 1)


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Any = None,
    thinking: bool = False,
) -> float:
    """verl's reward function; `ground_truth` is that of the row's ``reward_model``."""
    return _share(ground_truth, solution_str, thinking)


def constraints_followed(
    completion: Any, answer: Any = "", info: Any = None, thinking: bool = False, **kwargs: Any
) -> float:
    """Rubric function: the ground truth is in `answer`, or in ``info["ground_truth"]``."""
    if isinstance(info, str) and info:
        info = json.loads(info)
    truth = answer or (info or {}).get("ground_truth")
    if not truth:
        raise ValueError("no ground truth: neither 'answer' nor info['ground_truth'] is there")
    return _share(truth, completion_text(completion), thinking)


def gym_row(instance: Instance, grading_mode: str = "fraction") -> dict[str, Any]:
    """A prompt as a row of a NeMo Gym data set for instruction following."""
    _check_grading(grading_mode)
    return {
        "responses_create_params": {"input": [{"role": "user", "content": instance.prompt}]},
        "verifier_metadata": {
            "instruction_id_list": [c.id for c in instance.constraints],
            "prompt": instance.prompt,
            "kwargs": [dict(c.kwargs) for c in instance.constraints],
            "grading_mode": grading_mode,
        },
    }


def gym_verify(
    row: Mapping[str, Any], response: Any, semantics: str = "published", thinking: bool = False
) -> dict[str, Any]:
    """Score a response to a NeMo Gym row.

    The response is text, or one of the Responses API (its ``output`` holds messages and other
    items). Returns ``reward``, ``follow_all_instructions`` and ``follow_instruction_list``.
    """
    metadata = row["verifier_metadata"]
    grading_mode = metadata.get("grading_mode", "fraction")
    _check_grading(grading_mode)
    constraints = read_constraints(metadata)
    text = response
    if not isinstance(response, str):
        items = response["output"]
        messages = [i for i in items if i.get("type", "message") == "message"]
        text = completion_text(messages) if messages else ""
    followed = verify_all(constraints, graded_text(text, thinking), "strict", semantics)
    share = sum(followed) / len(followed)
    return {
        "reward": share if grading_mode == "fraction" else float(all(followed)),
        "follow_all_instructions": all(followed),
        "follow_instruction_list": followed,
    }


def _check_grading(mode: Any) -> None:
    if mode not in GRADING_MODES:
        raise ValueError(f"grading_mode must be one of {', '.join(GRADING_MODES)}, not {mode!r}")
