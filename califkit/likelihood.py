"""l(y; x): average log-likelihood of a response under the frozen reference, given x alone.

One scorer serves the bounds l0 and l1 (offline) and the rollouts (inside the trainer), so that
chat template, end-of-turn rule and precision are the same on both sides of every comparison.

- Context: the request as a single user turn in the model's chat template with the generation
  prompt, thinking switched off; no constraint, and no system prompt but the one that the template
  itself may bring (paper section 2.5).
- Answer: the token ids as generated, including the end-of-turn token when the model produced it.
- Temperature 1, no truncation, log-softmax in float32, mean over answer tokens, natural log.
- Rows are padded on the right with explicit position ids. Logits are made for answer positions
  only and a chunk at a time, so memory does not grow with length x vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

CHUNK = 256
"""Answer positions whose logits exist at the same time."""

_RESCALED_LOGITS = (
    "final_logit_softcapping",
    "logit_scale",
    "logits_scaling",
    "lm_head_multiplier",
)


class ReferenceScorer:
    """Average log-likelihood of answers given bare requests.

    Parameters
    ----------
    model
        A causal language model of transformers. It is put in evaluation mode around each call and
        left as it was found; no gradient is kept.
    tokenizer
        Its tokenizer, with a chat template.
    tokens_per_pass
        Padded tokens in one forward pass (one row at least). It bounds memory and does not change
        results beyond rounding.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        tokens_per_pass: int = 2048,
    ) -> None:
        for name in _RESCALED_LOGITS:
            factor = getattr(model.config.get_text_config(), name, None)
            if factor not in (None, 1):
                raise ValueError(
                    f"{type(model).__name__} rescales its logits ({name}={factor}); "
                    "the scorer would report a wrong likelihood"
                )
        self.model = model
        self.tokenizer = tokenizer
        self.tokens_per_pass = tokens_per_pass

    def prefix_ids(self, request: str) -> list[int]:
        """Token ids of the request in the chat template, up to where the answer begins."""
        text = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": request}],
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=False,
        )
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def score(self, requests: Sequence[str], answers: Sequence[Sequence[int]]) -> np.ndarray:
        """Average log-likelihood of each answer.

        Parameters
        ----------
        requests
            n requests without their constraints.
        answers
            n lists of token ids as generated.

        Returns
        -------
        numpy.ndarray
            Shape (n,), float64, nats per token; NaN where the answer has no tokens (undefined).
        """
        if len(requests) != len(answers):
            raise ValueError(f"{len(requests)} requests, but {len(answers)} answers")
        rows = [(self.prefix_ids(x), list(y)) for x, y in zip(requests, answers, strict=True)]
        result = np.full(len(rows), np.nan)
        scored = [i for i, (_, answer) in enumerate(rows) if answer]
        # Rows of like length share a micro-batch: less padding, same numbers.
        scored.sort(key=lambda i: len(rows[i][0]) + len(rows[i][1]))
        for index in self._passes(scored, rows):
            for i, log_probs in zip(index, self._log_probs([rows[i] for i in index]), strict=True):
                result[i] = log_probs.double().mean().item()
        return result

    def _passes(
        self, scored: list[int], rows: list[tuple[list[int], list[int]]]
    ) -> list[list[int]]:
        """Rows of one pass each, from rows in order of their length."""
        passes: list[list[int]] = []
        for i in scored:
            length = len(rows[i][0]) + len(rows[i][1])
            if passes and (len(passes[-1]) + 1) * length <= self.tokens_per_pass:
                passes[-1].append(i)
            else:
                passes.append([i])
        return passes

    def _log_probs(self, rows: list[tuple[list[int], list[int]]]) -> list[torch.Tensor]:
        """Log-probability of every answer token: one 1-D float32 tensor a row."""
        import torch

        device = self.model.device
        lengths = [len(prefix) + len(answer) for prefix, answer in rows]
        shape = (len(rows), max(lengths))
        input_ids = torch.full(shape, self.tokenizer.pad_token_id, dtype=torch.long)
        attention = torch.zeros(shape, dtype=torch.long)
        predicts_answer = torch.zeros(shape, dtype=torch.bool)
        for row, (prefix, answer) in enumerate(rows):
            input_ids[row, : lengths[row]] = torch.tensor(prefix + answer)
            attention[row, : lengths[row]] = 1
            predicts_answer[row, len(prefix) - 1 : lengths[row] - 1] = True
        targets = torch.tensor([token for _, answer in rows for token in answer], device=device)
        positions = torch.arange(shape[1]).expand(shape)

        was_training = self.model.training
        self.model.eval()
        try:
            with torch.no_grad():
                hidden = self.model.base_model(
                    input_ids=input_ids.to(device),
                    attention_mask=attention.to(device),
                    position_ids=positions.to(device),
                    use_cache=False,
                ).last_hidden_state[predicts_answer.to(device)]
                head = self.model.get_output_embeddings()
                parts = [
                    torch.log_softmax(head(hidden[i : i + CHUNK]).float(), dim=-1)
                    .gather(1, targets[i : i + CHUNK, None])
                    .squeeze(1)
                    for i in range(0, len(targets), CHUNK)
                ]
        finally:
            self.model.train(was_training)
        return list(torch.cat(parts).split([len(answer) for _, answer in rows]))
