"""l(y; x): average log-likelihood of a response under the frozen reference, given x alone.

One scorer serves the bounds l0 and l1 (offline) and the rollouts (inside the trainer), so that
chat template, end-of-turn rule and precision are the same on both sides of every comparison.

- Context: the request as a single user turn in the model's chat template with the generation
  prompt, in non-thinking mode; no constraint, and no system prompt but the one that the template
  itself may bring (paper section 2.5).
- Answer: the token ids as generated, including the end-of-turn token when the model produced it.
- Temperature 1, no truncation, log-softmax in float32, mean over answer tokens, natural log.
- The precision of a pass follows from the device alone (`scoring_precision`): the scorer runs under
  its own autocast, past the one that a trainer wraps around its models.
- Answers to one request share its pass, and logits are made for a chunk of answer positions at a
  time (`califkit.models.passes`), so memory does not grow with length x vocabulary.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from califkit.models.chat import render
from califkit.models.passes import Row, Sharing, answer_log_probs, checked_head, replaced

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase
_EMPTY_THINK = "\n\n</think>\n\n"


class ReferenceScorer:
    """Average log-likelihood of answers given bare requests.

    Parameters
    ----------
    model
        A causal language model of transformers: plain, sharded with ``fully_shard`` or by ZeRO-3,
        or a ``PeftModel``; without DDP's or DeepSpeed's outer wrapper. It is put in evaluation
        mode around each call and left as it was found; no gradient is kept.
    tokenizer
        Its tokenizer, with a chat template.
    tokens_per_pass
        Padded tokens in one forward pass (one row at least). It bounds memory and does not change
        results beyond rounding.
    active
        Called around every forward pass for a context in which the model is the reference, for
        instance ``peft_model.disable_adapter``.
    lockstep
        Every forward pass is a collective of all processes (FSDP, ZeRO-3). All of them have to
        call `score` together; those with less to score make passes over a dummy row.

    Raises
    ------
    ValueError
        If the model rescales its logits, has no language-model head or has an adapter on it.
    RuntimeError
        If `lockstep` is asked for outside an initialised ``torch.distributed``.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        tokens_per_pass: int = 2048,
        *,
        active: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
        lockstep: bool = False,
    ) -> None:
        checked_head(model)
        if lockstep and not _distributed():
            raise RuntimeError("lockstep=True needs torch.distributed to be initialised")
        self.model = model
        self.tokenizer = tokenizer
        self.tokens_per_pass = tokens_per_pass
        self.active = active
        self.lockstep = lockstep
        self._sharing = Sharing(model)

    def prefix_ids(self, request: str) -> list[int]:
        """Token ids of the request in the chat template, up to where the answer begins.

        Thinking is off: with the template's own switch, and by an empty think block where the
        template opens one whatever the switch says.
        """
        text = render(
            self.tokenizer,
            [{"role": "user", "content": request}],
            add_generation_prompt=True,
            enable_thinking=False,
        )
        if text.rstrip().endswith("<think>"):
            text = text.rstrip() + _EMPTY_THINK
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

        Raises
        ------
        ValueError
            If the counts differ or a token id is not in the model's vocabulary.
        """
        if len(requests) != len(answers):
            raise ValueError(f"{len(requests)} requests, but {len(answers)} answers")
        prefixes = {request: self.prefix_ids(request) for request in dict.fromkeys(requests)}
        self._check_ids(answers)
        passes = self._passes([prefixes[request] for request in requests], answers)
        missing = self._longest(len(passes)) - len(passes)

        result = np.full(len(answers), np.nan)
        with self._evaluating():
            for rows in passes:
                index = [i for row in rows for i in row.index]
                result[index] = self._mean_log_probs(rows)
            for _ in range(missing):
                self._mean_log_probs([Row([0], [[0]])])
        return result

    def _check_ids(self, answers: Sequence[Sequence[int]]) -> None:
        size = self.model.config.get_text_config().vocab_size
        for i, answer in enumerate(answers):
            for token in (min(answer), max(answer)) if len(answer) else ():
                if not 0 <= token < size:
                    raise ValueError(
                        f"answer {i}: token id {token} is not in the vocabulary of {size}"
                    )

    def _passes(
        self, prefixes: Sequence[list[int]], answers: Sequence[Sequence[int]]
    ) -> list[list[Row]]:
        """The rows of each pass. Rows of like length go together: less padding, same numbers."""
        passes: list[list[Row]] = []
        for row in sorted(self._sharing.rows(prefixes, answers, self.tokens_per_pass), key=len):
            if passes and (len(passes[-1]) + 1) * len(row) <= self.tokens_per_pass:
                passes[-1].append(row)
            else:
                passes.append([row])
        return passes

    def _longest(self, n_passes: int) -> int:
        """The largest number of passes over all processes; in lockstep a collective."""
        if not self.lockstep:
            return n_passes
        import torch
        import torch.distributed as dist

        largest = torch.tensor(n_passes, device=self._device())
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        return int(largest.item())

    def _device(self) -> torch.device:
        """Where the inputs of a pass belong."""
        import torch

        # Offloaded weights rest on the CPU but are used where the collectives run.
        if (
            self.lockstep
            and torch.cuda.is_available()
            and "nccl" in torch.distributed.get_backend()
        ):
            return torch.device("cuda", torch.cuda.current_device())
        return self.model.device

    @property
    def precision(self) -> str:
        """What passes of this scorer compute in; see `scoring_precision`."""
        return scoring_precision(self._device())

    @contextlib.contextmanager
    def _evaluating(self) -> Iterator[None]:
        """Evaluation mode without gradients; the mode of every module returns."""
        import torch

        training = [module for module in self.model.modules() if module.training]
        self.model.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            for module in training:
                module.training = True

    def _mean_log_probs(self, rows: list[Row]) -> list[float]:
        """Average log-probability of each answer, from one pass."""
        device = self._device()
        with self.active(), _without_autocast(self.model), _own_autocast(device):
            head = self.model.get_output_embeddings()
            log_probs = answer_log_probs(self.model, head, rows, device)
        parts = log_probs[:, 0].double().cpu().split([len(a) for row in rows for a in row.answers])
        return [part.mean().item() for part in parts]


def scoring_precision(device: torch.device | None = None) -> str:
    """What a scorer computes in on a device: "bfloat16 autocast" on CUDA, else "float32".

    That is the precision of the matrix products, for weights in float32 as `load_model` and a
    trainer hold them; the softmax is always taken in float32. Bounds are compared with rollouts, so
    both have to be scored in one precision.

    Parameters
    ----------
    device
        Where the model is; by default where `califkit.models.resolve.load_model` puts one.
    """
    import torch

    on_gpu = torch.cuda.is_available() if device is None else device.type == "cuda"
    return "bfloat16 autocast" if on_gpu else "float32"


def _own_autocast(device: torch.device) -> torch.autocast:
    """The scorer's precision, whatever the caller's autocast context."""
    import torch

    enabled = scoring_precision(device) != "float32"
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=enabled)


def _without_autocast(model: torch.nn.Module) -> contextlib.AbstractContextManager[None]:
    """The model with the ``forward`` it had before accelerate wrapped that in autocast."""
    plain = vars(model).get("_original_forward")  # vars: a PeftModel passes on its base's names
    return replaced(model, plain) if plain else contextlib.nullcontext()


def _distributed() -> bool:
    import torch.distributed as dist

    return dist.is_available() and dist.is_initialized()
