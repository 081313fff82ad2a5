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
- Rows are padded on the right with explicit position ids. Logits are made for answer positions
  only and a chunk at a time, so memory does not grow with length x vocabulary.

Every forward pass calls the root module, because wrappers that keep the weights elsewhere (FSDP2,
ZeRO-3, PEFT, accelerate) hang their hooks there. While a pass runs, the ``forward`` of the
language-model head is replaced by one that turns hidden states into log-probabilities.
"""

from __future__ import annotations

import contextlib
import copy
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch
    from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase


CHUNK = 256
"""Answer positions whose logits exist at the same time."""

SHARING_PAYS = 128
"""Tokens that the pass over a shared prefix has to save.

It brings up to two passes more. On a CPU a pass costs about 35 tokens beside its own (SmolLM2: four
requests of 40 tokens with two answers each, 39 tokens saved a request, took 1.24 times as long).
"""

Row = tuple[list[int], list[int]]  # context, answer

_RESCALED_LOGITS = (
    "final_logit_softcapping",
    "logit_scale",
    "logits_scaling",
    "lm_head_multiplier",
    "output_multiplier",
)
# With these the rotation of a key depends on the length of the pass that made it.
_LENGTH_DEPENDENT_ROPE = {"dynamic", "longrope"}
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
    shared_prefix
        Run a request that several answers share through the model once, where that is exact and
        pays. Never done in lockstep.

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
        shared_prefix: bool = True,
    ) -> None:
        config = model.config.get_text_config()
        for name in _RESCALED_LOGITS:
            factor = getattr(config, name, None)
            if factor not in (None, 1):
                raise ValueError(
                    f"{type(model).__name__} rescales its logits ({name}={factor}); "
                    "the scorer would report a wrong likelihood"
                )
        head = model.get_output_embeddings()
        if head is None:
            raise ValueError(f"{type(model).__name__} has no language-model head to score with")
        if hasattr(head, "base_layer"):
            raise ValueError(
                "the language-model head carries an adapter (LoRA); likelihoods are taken from the "
                "frozen head, so leave it out of the adapter's target_modules"
            )
        if lockstep and not _distributed():
            raise RuntimeError("lockstep=True needs torch.distributed to be initialised")
        self.model = model
        self.tokenizer = tokenizer
        self.tokens_per_pass = tokens_per_pass
        self.active = active
        self.lockstep = lockstep
        self.shared_prefix = shared_prefix and not lockstep and _cache_is_exact(config)

    def prefix_ids(self, request: str) -> list[int]:
        """Token ids of the request in the chat template, up to where the answer begins.

        Thinking is off: with the template's own switch, and by an empty think block where the
        template opens one whatever the switch says.
        """
        text = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": request}],
            tokenize=False,
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
        rows = [(prefixes[x], list(y)) for x, y in zip(requests, answers, strict=True)]
        self._check_ids(rows)
        scored = [i for i, (_, answer) in enumerate(rows) if answer]
        groups, plain = self._split(rows, scored)
        passes = self._passes(plain, rows)
        missing = self._longest(len(passes)) - len(passes)

        result = np.full(len(rows), np.nan)
        with self._evaluating():
            for group in groups:
                prefix = rows[group[0]][0]
                cache = self._cache_of(prefix[:-1])
                for index in self._passes(group, rows):
                    tails = [(prefix[-1:], rows[i][1]) for i in index]
                    result[index] = self._mean_log_probs(tails, cache)
            for index in passes:
                result[index] = self._mean_log_probs([rows[i] for i in index])
            for _ in range(missing):
                self._mean_log_probs([([0], [0])])
        return result

    def _check_ids(self, rows: list[Row]) -> None:
        size = self.model.config.get_text_config().vocab_size
        for i, (_, answer) in enumerate(rows):
            for token in (min(answer), max(answer)) if answer else ():
                if not 0 <= token < size:
                    raise ValueError(
                        f"answer {i}: token id {token} is not in the vocabulary of {size}"
                    )

    def _split(self, rows: list[Row], scored: list[int]) -> tuple[list[list[int]], list[int]]:
        """Groups of rows that share the pass over their prefix, and the rows that do not."""
        by_prefix = defaultdict(list)
        for i in scored:
            by_prefix[tuple(rows[i][0])].append(i)
        groups, plain = [], []
        for prefix, index in by_prefix.items():
            saved = (len(index) - 1) * (len(prefix) - 1)
            if self.shared_prefix and saved >= SHARING_PAYS:
                groups.append(index)
            else:
                plain += index
        return groups, plain

    def _passes(self, index: list[int], rows: list[Row]) -> list[list[int]]:
        """Rows of one pass each. Rows of like length go together: less padding, same numbers."""
        passes: list[list[int]] = []
        for i in sorted(index, key=lambda i: len(rows[i][0]) + len(rows[i][1])):
            length = len(rows[i][0]) + len(rows[i][1])
            if passes and (len(passes[-1]) + 1) * length <= self.tokens_per_pass:
                passes[-1].append(i)
            else:
                passes.append([i])
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

    def _cache_of(self, prefix: list[int]) -> DynamicCache:
        """Keys and values of one prefix."""
        from transformers import DynamicCache

        cache = DynamicCache(config=self.model.config.get_text_config())
        self._forward([(prefix, [])], cache)
        return cache

    def _mean_log_probs(self, rows: list[Row], prefix: DynamicCache | None = None) -> list[float]:
        """Average log-probability of each answer, after a shared prefix if there is one."""
        if prefix is not None:
            # A pass appends to its cache.
            prefix = copy.deepcopy(prefix)
            prefix.batch_repeat_interleave(len(rows))
        log_probs = self._forward(rows, prefix).double().cpu()
        parts = log_probs.split([len(answer) for _, answer in rows])
        return [part.mean().item() for part in parts]

    def _forward(self, rows: list[Row], past: DynamicCache | None = None) -> torch.Tensor:
        """One pass of the root module: log-probabilities of all answer tokens, 1-D float32.

        The last token of a row predicts nothing that is asked for, so it is left out.
        """
        import torch

        device = self._device()
        start = past.get_seq_length() if past is not None else 0
        inputs = [(context + answer)[:-1] if answer else context for context, answer in rows]
        shape = (len(rows), max(map(len, inputs)))
        input_ids = torch.zeros(shape, dtype=torch.long)
        predicts = torch.zeros(shape, dtype=torch.bool)
        for row, ids in enumerate(inputs):
            input_ids[row, : len(ids)] = torch.tensor(ids)
            answer = rows[row][1]
            predicts[row, len(ids) - len(answer) : len(ids)] = True
        targets = torch.tensor([t for _, answer in rows for t in answer], dtype=torch.long)

        head = self.model.get_output_embeddings()
        logits_of = head.forward
        found: list[torch.Tensor] = []

        def log_probs_of(hidden: torch.Tensor) -> torch.Tensor:
            chosen = hidden[predicts.to(hidden.device)]
            wanted = targets.to(hidden.device)
            for i in range(0, len(wanted), CHUNK):
                logits = logits_of(chosen[i : i + CHUNK]).float()
                log_probs = torch.log_softmax(logits, dim=-1)
                found.append(log_probs.gather(1, wanted[i : i + CHUNK, None]).squeeze(1))
            return hidden.new_zeros((*hidden.shape[:-1], 1))  # stands for the logits

        with (
            self.active(),
            _without_autocast(self.model),
            _own_autocast(device),
            _replaced_forward(head, log_probs_of),
        ):
            self.model(
                input_ids=input_ids.to(device),
                # The padding stands on the right, where causal attention does not look.
                attention_mask=torch.ones((shape[0], start + shape[1]), dtype=torch.long).to(
                    device
                ),
                position_ids=torch.arange(start, start + shape[1]).expand(shape).to(device),
                past_key_values=past,
                use_cache=past is not None,
            )
        return torch.cat(found) if found else torch.empty(0)


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
    return _replaced_forward(model, plain) if plain else contextlib.nullcontext()


@contextlib.contextmanager
def _replaced_forward(module: torch.nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """`module` with another ``forward``; hooks of the module still run around it."""
    own = vars(module).get("forward")  # accelerate's hooks set one on the instance
    module.forward = forward
    try:
        yield
    finally:
        if own is None:
            del module.forward
        else:
            module.forward = own


def _cache_is_exact(config: Any) -> bool:
    """Whether keys and values of a prefix are those of the whole sequence."""
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer

    rope = getattr(config, "rope_parameters", None) or {}
    parts = [rope, *(part for part in rope.values() if isinstance(part, dict))]
    if _LENGTH_DEPENDENT_ROPE & {part.get("rope_type") for part in parts}:
        return False
    return all(type(layer) is DynamicLayer for layer in DynamicCache(config=config).layers)


def _distributed() -> bool:
    import torch.distributed as dist

    return dist.is_available() and dist.is_initialized()
