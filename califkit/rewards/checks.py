"""What `CalifReward` refuses of a trainer's settings and data, before anything expensive starts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from califkit import CalifkitError
from califkit.anchors.region import finite_or_nan, read_bound
from califkit.data.rows import read_constraints
from califkit.models.sampling import PLAIN, changed_by
from califkit.rewards.reference import check_adapter
from califkit.runs.settings import REGION_METHODS
from califkit.verifiers import Constraint

COLUMNS = ("request", "constraints", "l0", "l1")
"""Columns that the data set needs beside ``prompt``."""
OPTIONAL_COLUMNS = ("key", "anchor_r_ver", "anchor_tokens")
"""Columns that are read if the data set has them."""

_TRAINER_SAMPLING = ("top_p", "top_k", "min_p", "repetition_penalty")
"""Settings of a ``GRPOConfig`` that shape draws, beside the temperature."""


class RewardError(CalifkitError, ValueError):
    """Settings or data that `CalifReward` cannot score; the message says which and why."""


def check_config(args: Any, peft_config: Any = None, *, bounds_temperature: float = 1.0) -> None:
    """Refuse settings of a ``GRPOConfig`` and an adapter under which l and the bounds could not be
    compared; needs no model. The answers behind these were drawn at ``bounds_temperature``."""
    if args.sync_ref_model:
        raise RewardError(
            "sync_ref_model=True moves the reference that l0 and l1 were measured under"
        )
    if args.remove_unused_columns:
        raise RewardError(
            "remove_unused_columns=True would keep request, constraints and bounds from the "
            "reward: set it to False in the GRPOConfig"
        )
    override = args.generation_kwargs or {}
    if "temperature" in override:
        raise RewardError(
            f"generation_kwargs has temperature={override['temperature']}: set it as temperature "
            "of the GRPOConfig, by which the loss divides too"
        )
    if args.temperature != bounds_temperature:
        raise RewardError(
            f"temperature={args.temperature}, but the answers behind l0 and l1 were drawn at "
            f"{bounds_temperature}: draw both alike, and say at which temperature with "
            "CalifReward(bounds_temperature=...)"
        )
    own = {name: getattr(args, name) for name in _TRAINER_SAMPLING if name not in override}
    if changed := changed_by(own):
        raise RewardError(_not_plain(changed))
    # A limit of time is the user's own, as one of tokens is.
    override = {name: value for name, value in override.items() if name != "max_time"}
    if changed := changed_by(override, vllm=args.use_vllm):
        raise RewardError(f"generation_kwargs has {_not_plain(changed)}")
    if args.vllm_structured_outputs_regex is not None:
        raise RewardError(
            _not_plain(f"vllm_structured_outputs_regex={args.vllm_structured_outputs_regex}")
        )
    if peft_config is not None:
        check_adapter(peft_config)


def _not_plain(changed: str) -> str:
    name = changed.partition("=")[0]
    plain = f"with {name}={PLAIN[name][0]}" if name in PLAIN else f"without {name}"
    return f"{changed}: rollouts must be drawn {plain}, as the answers behind l0 and l1 were"


def check_generation_config(trainer: Any) -> None:
    """Refuse a model whose own ``generation_config.json`` would change the rollouts.

    vLLM inside TRL reads no more of it than the tokens that end an answer, and
    `califkit.training.groups.GroupTrainer` nothing.
    """
    if trainer.use_vllm or getattr(trainer, "draws_without_own_settings", False):
        return
    model = trainer.accelerator.unwrap_model(trainer.model)
    filled_in = {
        name: value
        for name, value in model.generation_config.to_dict().items()
        if name in PLAIN and value is not None and getattr(trainer.generation_config, name) is None
    }
    if changed := changed_by(filled_in):
        name = changed.partition("=")[0]
        raise RewardError(
            f"the model's generation_config.json has {_not_plain(changed)}; before training, set "
            f"trainer.model.generation_config.{name} = {PLAIN[name][0]}"
        )


def check_template(trainer: Any, *, thinking: bool) -> None:
    """Refuse prompts that are rendered for another mode than the rewards are made for."""
    given = trainer.args.chat_template_kwargs or {}
    asked = given.get("enable_thinking", thinking)
    if bool(asked) != thinking:
        raise RewardError(
            f"chat_template_kwargs has enable_thinking={asked}, but CalifReward has "
            f"thinking={thinking}: reasoning and answer would not be told apart"
        )

    def rendered(**options: Any) -> str:
        return trainer.processing_class.apply_chat_template(
            [{"role": "user", "content": "Name a drink."}],
            chat_template=trainer.chat_template,
            tokenize=False,
            add_generation_prompt=True,
            **options,
        )

    sent = rendered(**given)
    if sent != rendered(**given | {"enable_thinking": thinking}):
        raise RewardError(
            "chat_template_kwargs does not say enable_thinking, and the chat template renders "
            f"prompts otherwise than for thinking={thinking} of CalifReward: set "
            f'chat_template_kwargs={{"enable_thinking": {thinking}}} in the GRPOConfig'
        )
    if not thinking and sent.rstrip().endswith("<think>"):
        raise RewardError(
            "the chat template opens a think block in every prompt, so rollouts start with "
            "reasoning: use CalifReward(thinking=True)"
        )


def check_step(trainer: Any) -> None:
    """Refuse a training set that does not fill one step: TRL leaves out what does not fill one, so
    it would end at once, without an error."""
    from datasets import IterableDataset

    if isinstance(trainer.train_dataset, IterableDataset):
        return
    # The batch is that of all processes.
    batch, rollouts = trainer.args.generation_batch_size, trainer.args.num_generations
    n_rows, n_prompts = len(trainer.train_dataset), batch // rollouts
    if n_rows < n_prompts:
        raise RewardError(
            f"the training set has {n_rows} rows, but a step takes {n_prompts} prompts "
            f"(generation_batch_size {batch} / num_generations {rollouts}): training would end "
            "after zero steps; give more rows, or lower per_device_train_batch_size or "
            "gradient_accumulation_steps"
        )


def check_columns(columns: Iterable[str], needed: Sequence[str]) -> None:
    """Refuse data that lack a column; the message names those that are there."""
    if missing := [name for name in needed if name not in columns]:
        raise RewardError(
            f"the data set lacks the columns {', '.join(missing)}; it has {', '.join(columns)}"
        )


def check_dataset(dataset: Any, name: str, needed: Sequence[str], method: str) -> list[str]:
    """Read every row of a data set; what looks like a mistake, but is possible, is returned.

    Of an ``IterableDataset`` only the columns are checked, if it knows them. ``name`` is what
    messages call it; ``needed`` are the columns that it has to have beside ``prompt``.
    """
    from datasets import IterableDataset

    if dataset.column_names is not None:
        check_columns(dataset.column_names, needed)
    if isinstance(dataset, IterableDataset):
        return []
    names = ("prompt", *COLUMNS, *OPTIONAL_COLUMNS)
    names = [name for name in names if name in dataset.column_names]
    bounds, same, with_system = [], 0, 0
    for i, row in enumerate(dataset.select_columns(names).with_format(None)):
        try:
            check_prompt(row.get("prompt"))
            _, numbers = check_row(row, method)
        except ValueError as error:
            raise RewardError(f"row {i} of the {name}, key {row.get('key')!r}: {error}") from error
        bounds.append((numbers["l0"], numbers["l1"]))
        same += row["prompt"][-1]["content"] == row["request"]
        with_system += any(turn["role"] == "system" for turn in row["prompt"])
    l0, l1 = np.array(bounds).reshape(-1, 2).T
    for bound, values in {"l0": l0, "l1": l1}.items():
        if np.isnan(values).all():
            raise RewardError(
                f"no row of the {name} has {bound}: the anchors are not loaded, and rollouts would "
                "be rewarded without bounds"
            )
    reversed_bounds, both = int((l0 > l1).sum()), int((~np.isnan(l0 - l1)).sum())
    doubts = []
    # Intervals of few samples cross often (paper section 6); there it says nothing.
    if 2 * reversed_bounds > both and method not in REGION_METHODS:
        doubts.append(f"{reversed_bounds} of {both} rows have l0 > l1; are the columns swapped?")
    if same == len(bounds):
        doubts.append(
            "every request is the same as its prompt; request is the text without its constraints"
        )
    if with_system:
        doubts.append(
            f"{with_system} prompts have a system turn, but l and the bounds are taken given the "
            "request alone"
        )
    return [f"{name}: {doubt}" for doubt in doubts]


def check_prompt(prompt: Any) -> None:
    """Refuse a prompt that is no conversation."""
    turns = prompt if isinstance(prompt, list | tuple) else ()
    if not turns or not all(
        isinstance(t, Mapping) and {"role", "content"} <= set(t) for t in turns
    ):
        raise ValueError(
            'prompt must be a conversation, as [{"role": "user", "content": ...}], since TRL puts '
            f"only those in the chat template; got {prompt!r:.200}"
        )


def check_row(
    row: Mapping[str, Any], method: str
) -> tuple[tuple[Constraint, ...], dict[str, float]]:
    """The constraints of a row with `COLUMNS`, and its numbers, NaN where they are missing.

    ValueError names the column and a value that cannot be used for rewards of ``method``.
    """
    request = row["request"]
    if not isinstance(request, str) or not request.strip():
        raise ValueError(f"request must be text, got {request!r}")
    try:
        constraints = read_constraints(row["constraints"])
    except (TypeError, ValueError) as error:
        raise ValueError(f"constraints {row['constraints']!r:.200}: {error}") from error
    if not constraints:
        raise ValueError("constraints is empty: there is nothing to verify")
    numbers = {name: read_bound(row[name], name, method) for name in ("l0", "l1")}
    for name in ("anchor_r_ver", "anchor_tokens"):
        if name in row:
            numbers[name] = finite_or_nan(row[name], name)
    compliance = numbers.get("anchor_r_ver", math.nan)
    if compliance < 0 or compliance > 1:
        raise ValueError(f"anchor_r_ver must lie in [0, 1], got {compliance}")
    return constraints, numbers
