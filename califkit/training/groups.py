"""TRL's trainer, with the rollouts of a prompt computed together.

GRPO draws several rollouts of each prompt. TRL carries the prompt through the model once for each
of them, forward and backward, and pads every micro-batch to the longest prompt and answer of the
whole step. Here the prompt is run once, in front of all its answers, and nothing is padded that
need not be (`califkit.models.passes`). Loss and gradients are TRL's up to rounding. The same holds
for the reference of the KL term, and prompts are prefilled once where transformers draws.

This is the only module that knows methods inside TRL's trainer, as of version 1.16:
``_prepare_inputs`` makes micro-batches out of the rollouts of a step,
``_get_per_token_logps_and_entropies`` computes what the loss is made of, and
``_generate_single_turn`` draws rollouts.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence
from trl import GRPOTrainer

from califkit.models.engines import generate_together
from califkit.models.passes import Row, Sharing, answer_log_probs, checked_head, replaced
from califkit.models.sampling import without_own_settings


class GroupTrainer(GRPOTrainer):
    """``GRPOTrainer`` whose micro-batches hold whole groups, each with its prompt once.

    ``sharing`` says which models and lengths that is done for (`califkit.models.passes.Sharing`).
    Where it is not, every answer has a row of its own without needless padding.

    Rollouts are drawn as the arguments say, whatever the model's ``generation_config.json`` does.
    """

    draws_without_own_settings = True
    """Tells `CalifReward.bind` so."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        model = self.accelerator.unwrap_model(self.model)
        checked_head(model)
        self.sharing = Sharing(model)

    def _prepare_inputs(self, generation_batch: Any) -> dict[str, Any]:
        """A micro-batch; those of a new step are made of whole groups first."""
        before = self._buffered_inputs
        inputs = super()._prepare_inputs(generation_batch)
        if self._buffered_inputs is before:
            return inputs
        self._buffered_inputs = in_whole_groups(self._buffered_inputs)
        return self._buffered_inputs[self._step % self.args.steps_per_generation]

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
        """Rollouts of the prompts, each run once where transformers draws in a plain model."""
        if self.use_vllm:
            return super()._generate_single_turn(*args, **kwargs)
        model = self.accelerator.unwrap_model(self.model)
        with without_own_settings(model):
            if self.is_deepspeed_enabled or self.is_fsdp_enabled:
                return super()._generate_single_turn(*args, **kwargs)
            together = partial(generate_together, model.generate, model)
            # One autocast for all tokens casts the weights once.
            with self.accelerator.autocast(), replaced(model, together, "generate"):
                return super()._generate_single_turn(*args, **kwargs)

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        compute_aux_loss: bool = False,
        **other_inputs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """Log-probabilities and entropies of the last ``logits_to_keep`` tokens of each row.

        TRL's own computes the losses of a mixture's router, gradients of entropies and images.
        """
        images = any(value is not None for value in other_inputs.values())
        if images or compute_aux_loss or self._entropy_bonus_enabled:
            return super()._get_per_token_logps_and_entropies(
                model,
                input_ids,
                attention_mask,
                logits_to_keep,
                batch_size,
                compute_entropy,
                compute_aux_loss,
                **other_inputs,
            )
        prompts = _unpadded(input_ids[:, :-logits_to_keep], attention_mask[:, :-logits_to_keep])
        answers = _unpadded(input_ids[:, -logits_to_keep:], attention_mask[:, -logits_to_keep:])
        head = self.accelerator.unwrap_model(model).get_output_embeddings()
        scored: list[torch.Tensor] = []
        for start in range(0, len(prompts), batch_size or len(prompts)):
            part = slice(start, start + (batch_size or len(prompts)))
            rows = self.sharing.rows(prompts[part], answers[part])
            with self.accelerator.autocast():
                found = answer_log_probs(
                    model,
                    head,
                    rows or [Row(prompts[start], [])],  # a pass in any case: others may wait for it
                    input_ids.device,
                    temperature=self.temperature,
                    with_entropy=compute_entropy,
                )
            scored += _in_order(found, rows, answers[part])
        padded = pad_sequence(scored, batch_first=True)
        padded = pad(padded, (0, 0, 0, logits_to_keep - padded.shape[1]))
        return padded[..., 0], padded[..., 1] if compute_entropy else None, None


def in_whole_groups(micro_batches: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same rollouts in micro-batches of the same size that split as few groups as possible.

    Groups follow each other by the length of their prompts, and the answers of a group by theirs,
    so that rows of like length meet in a micro-batch.

    Parameters
    ----------
    micro_batches
        As TRL makes them: tensors whose first dimension are rollouts, and numbers for all of them.
    """
    size = len(micro_batches[0]["prompt_ids"])
    step = {
        key: torch.cat([batch[key] for batch in micro_batches]) if _per_rollout(value) else value
        for key, value in micro_batches[0].items()
    }
    prompts = _unpadded(step["prompt_ids"], step["prompt_mask"])
    lengths = step["completion_mask"].sum(1).tolist()
    order = sorted(range(len(prompts)), key=lambda i: (len(prompts[i]), prompts[i], lengths[i]))
    return [
        {
            key: value[order[start : start + size]] if _per_rollout(value) else value
            for key, value in step.items()
        }
        for start in range(0, len(order), size)
    ]


def _per_rollout(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > 0


def _unpadded(ids: torch.Tensor, mask: torch.Tensor) -> list[list[int]]:
    return [row[kept].tolist() for row, kept in zip(ids.cpu(), mask.bool().cpu(), strict=True)]


def _in_order(found: torch.Tensor, rows: list[Row], answers: list[list[int]]) -> list[torch.Tensor]:
    """What was found for each answer, of shape (tokens, columns)."""
    index = [i for row in rows for i in row.index]
    parts = dict(zip(index, found.split([len(answers[i]) for i in index]), strict=True))
    return [parts.get(i, found[:0]) for i in range(len(answers))]
