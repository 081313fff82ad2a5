"""One forward pass over prompts that several answers follow: log-probabilities of the answers.

A row of a pass is a prompt and its answers behind it, one after the other. Each answer sees the
prompt and itself: a block mask hides the other answers, and its positions continue from the
prompt's. So the prompt is computed once, forward and backward, and the numbers are those of one
row an answer, up to rounding.

A row: all tokens of the prompt but the last, then for each answer that last token and all tokens
of the answer but its last. Every token of the second part predicts one token of an answer; nothing
else goes through the language-model head. Rows are padded on the right, where causal attention does
not look.

While a pass runs, the ``forward`` of the head is replaced by one that turns hidden states into
log-probabilities, `CHUNK` positions at a time. The pass itself calls the root module, because
wrappers that keep the weights elsewhere (DDP, FSDP2, ZeRO-3, PEFT, accelerate) hang their hooks
there, and its result is the module's output, because some of them look there for the backward pass.
"""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

CHUNK = 256
"""Answer positions whose logits exist at the same time."""

_RESCALED_LOGITS = (
    "final_logit_softcapping",
    "logit_scale",
    "logits_scaling",
    "lm_head_multiplier",
    "output_multiplier",
)
# With these the rotation of a key depends on the length of the pass that made it.
_LENGTH_DEPENDENT_ROPE = {"dynamic", "longrope"}


@dataclass(frozen=True)
class Row:
    """A prompt of at least one token, and the answers behind it, as token ids.

    ``index`` are the numbers of the answers among those that the row was made from.
    """

    prompt: Sequence[int]
    answers: Sequence[Sequence[int]]
    index: Sequence[int] = ()

    def __len__(self) -> int:
        """Tokens that it adds to a pass, before padding."""
        return max(1, len(self.prompt) - 1 + sum(map(len, self.answers)))


def answer_log_probs(
    model: Any,
    head: torch.nn.Module,
    rows: Sequence[Row],
    device: torch.device,
    *,
    temperature: float = 1.0,
    with_entropy: bool = False,
) -> torch.Tensor:
    """Log-probabilities of all answer tokens, from one call of ``model``.

    Parameters
    ----------
    model
        What is called: a causal language model of transformers, in its wrappers if it has some.
    head
        Its language-model head, see `checked_head`.
    rows
        Several answers in a row only where `why_not_shared` finds no reason against it.
    device
        Where the inputs belong.
    temperature
        Logits are divided by it.
    with_entropy
        Whether the entropy of each prediction (nats, without gradient) is wanted as well.

    Returns
    -------
    torch.Tensor
        Shape (answer tokens, 1 or 2), float32, in the order of rows, answers and tokens: the
        log-probability and, if wanted, the entropy.
    """
    import torch

    batch = _Batch(rows)
    predicts = batch.predicts.to(device)
    targets = torch.tensor([t for row in rows for a in row.answers for t in a], dtype=torch.long)
    forward = _scoring(head.forward, predicts, targets.to(device), temperature, with_entropy)
    with replaced(head, forward):
        output = model(
            input_ids=batch.input_ids.to(device),
            attention_mask=batch.attention_mask().to(device),
            position_ids=batch.position_ids.to(device),
            use_cache=False,
        )
    return output.logits[predicts.to(output.logits.device)]


class _Batch:
    """The inputs of a pass, of shape (rows, longest row), and where answers are predicted."""

    def __init__(self, rows: Sequence[Row]) -> None:
        import torch

        shape = (len(rows), max(map(len, rows)))
        self.input_ids = torch.zeros(shape, dtype=torch.long)
        self.position_ids = torch.arange(shape[1]).repeat(shape[0], 1)
        self.answer_of = torch.zeros(shape, dtype=torch.long)  # 0: prompt, 1: the first answer, ...
        self.predicts = torch.zeros(shape, dtype=torch.bool)
        self.shared = any(len(row.answers) > 1 for row in rows)
        for i, row in enumerate(rows):
            at = len(row.prompt) - 1
            self.input_ids[i, :at] = torch.tensor(row.prompt[:-1], dtype=torch.long)
            for number, answer in enumerate(row.answers, start=1):
                part = slice(at, at + len(answer))
                inputs = [row.prompt[-1], *answer][: len(answer)]
                self.input_ids[i, part] = torch.tensor(inputs, dtype=torch.long)
                self.position_ids[i, part] = torch.arange(len(answer)) + len(row.prompt) - 1
                self.answer_of[i, part] = number
                self.predicts[i, part] = True
                at += len(answer)

    def attention_mask(self) -> torch.Tensor:
        """All ones, or who sees whom: (rows, 1, tokens, tokens), true where a key is seen."""
        import torch

        if not self.shared:
            return torch.ones_like(self.input_ids)
        query, key = self.answer_of[:, :, None], self.answer_of[:, None, :]
        return ((key == 0) | (key == query)).tril()[:, None]


def _scoring(
    logits_of: Callable[[torch.Tensor], torch.Tensor],
    predicts: torch.Tensor,
    targets: torch.Tensor,
    temperature: float,
    with_entropy: bool,
) -> Callable[[torch.Tensor], torch.Tensor]:
    """A head that returns log-probabilities (and entropies) in place of logits, 0 elsewhere."""
    import torch
    from torch.utils.checkpoint import checkpoint

    def score(hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        logits = logits_of(hidden).float()
        if temperature != 1:  # else a division of every logit, there and back
            logits = logits / temperature
        log_probs = torch.log_softmax(logits, dim=-1)
        columns = [log_probs.gather(1, targets[:, None])]
        if with_entropy:
            with torch.no_grad():
                columns.append(-(log_probs.exp() * log_probs).sum(-1, keepdim=True))
        return torch.cat(columns, dim=1)

    def forward(hidden: torch.Tensor) -> torch.Tensor:
        at = predicts.to(hidden.device)
        parts = hidden[at].split(CHUNK), targets.to(hidden.device).split(CHUNK)
        *chunks, last = zip(*parts, strict=True)
        # The backward pass makes logits again, a chunk at a time, but for the chunk it begins with.
        again = {"use_reentrant": False, "preserve_rng_state": False}
        scored = [checkpoint(score, *chunk, **again) for chunk in chunks]
        scored.append(score(*last))
        result = hidden.new_zeros((*at.shape, 1 + with_entropy), dtype=torch.float32)
        return result.masked_scatter(at[:, :, None], torch.cat(scored))

    return forward


@contextlib.contextmanager
def replaced(
    module: torch.nn.Module, function: Callable[..., Any], name: str = "forward"
) -> Iterator[None]:
    """`module` with another ``forward``, or method of that name; its hooks still run around it."""
    own = vars(module).get(name)  # accelerate's hooks set one on the instance
    setattr(module, name, function)
    try:
        yield
    finally:
        if own is None:
            delattr(module, name)
        else:
            setattr(module, name, own)


def checked_head(model: Any) -> torch.nn.Module:
    """The language-model head of a model out of its wrappers.

    Raises
    ------
    ValueError
        If the model rescales its logits, has no head or has an adapter on it.
    """
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
    return head


# --- which answers share a row -------------------------------------------------------------------


def why_not_shared(model: Any) -> str | None:
    """Why answers of this model must not stand in one row, or None if they may."""
    config = model.config.get_text_config()
    if config._attn_implementation != "sdpa":
        return f"attention {config._attn_implementation} takes no block mask, sdpa does"
    if _LENGTH_DEPENDENT_ROPE & _rope_types(config):
        return "its rotary embedding depends on the length of a pass"
    return "it has recurrent layers" if has_recurrent_layers(model) else None


def has_recurrent_layers(model: Any) -> bool:
    """Whether some layer keeps a state instead of a key and a value of each token."""
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

    layers = DynamicCache(config=model.config.get_text_config()).layers
    return any(type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer) for layer in layers)


def _rope_types(config: Any) -> set[str]:
    rope = getattr(config, "rope_parameters", None) or {}
    parts = [rope, *(part for part in rope.values() if isinstance(part, dict))]
    return {part["rope_type"] for part in parts if "rope_type" in part}


def sliding_window(model: Any) -> int | None:
    """Tokens that the narrowest layer of a model looks back, or None if all see everything."""
    from transformers import DynamicCache

    layers = DynamicCache(config=model.config.get_text_config()).layers
    windows = [layer.sliding_window for layer in layers if hasattr(layer, "sliding_window")]
    return min(windows, default=None)


class Sharing:
    """Which answers of one prompt stand in one row under a model.

    They do where the mask can say everything that attention has to know, and where it is less
    work: a row of all answers saves the prompt, but its attention grows with the square of its
    length.
    """

    def __init__(self, model: Any) -> None:
        self.obstacle = why_not_shared(model)
        self.window = None if self.obstacle else sliding_window(model)
        self._hidden = model.config.get_text_config().hidden_size

    def __str__(self) -> str:
        if self.obstacle:
            return f"no prompt is shared: {self.obstacle}"
        if self.window:
            return f"prompts are shared by answers that end within {self.window} tokens"
        return "prompts are shared by their answers"

    def rows(
        self,
        prompts: Sequence[Sequence[int]],
        answers: Sequence[Sequence[int]],
        longest: float = math.inf,
    ) -> list[Row]:
        """Answers with their prompts in rows of at most ``longest`` tokens, or of one answer.

        Answers without a token are left out.
        """
        by_prompt = defaultdict(list)
        for i, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
            if len(answer):
                by_prompt[tuple(prompt)].append(i)
        rows = []
        for prompt, index in by_prompt.items():
            for part in self._parts(len(prompt) - 1, {i: len(answers[i]) for i in index}, longest):
                rows.append(Row(prompt, [answers[i] for i in part], part))
        return rows

    def _parts(self, before: int, tokens: dict[int, int], longest: float) -> list[list[int]]:
        """Answers of a prompt row by row.

        Parameters
        ----------
        before
            Tokens of the prompt but the last.
        tokens
            Length of each answer by its number.
        """
        if self.obstacle or (self.window and before + max(tokens.values()) > self.window):
            return [[i] for i in tokens]
        parts: list[list[int]] = []
        length = 0
        for i, own in tokens.items():
            joined = length + own
            apart = self._work(length) + self._work(before + own)
            if parts and joined <= longest and self._work(joined) <= apart:
                parts[-1].append(i)
                length = joined
            else:
                parts.append([i])
                length = before + own
        return parts

    def _work(self, tokens: int) -> float:
        """Of a row, in tokens: a layer takes about 12 hidden^2 products for a token, and 2 hidden
        for each token that it may look at."""
        return tokens * (1 + tokens / (6 * self._hidden))
