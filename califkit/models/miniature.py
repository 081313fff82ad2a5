"""Miniatures: models with random weights that have the architecture and the template of real ones.

What they say is noise. They are for rehearsals, in which everything but names and sizes is as it
will be: the layers, how queries share keys, whether embeddings are tied, how a turn is written and
ended, how thinking is switched off. The tokenizer is SmolLM2's with the marks of reasoning added.

The templates are written for this purpose, after what the families write for one user turn. They
know no tools and no system prompt of the user.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from califkit.models.reasoning import END, START
from califkit.models.resolve import ModelError, load_tokenizer, resolve

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

_CHATML = (
    "{% for turn in messages %}<|im_start|>{{ turn.role }}\n{{ turn.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
)
_QWEN3 = (
    _CHATML + "{% if enable_thinking is defined and not enable_thinking %}"
    "<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
_OLMO3 = "<|im_start|>system\nYou answer in words.<|im_end|>\n" + _CHATML + "{% endif %}"
_OLMO3_THINK = _OLMO3.replace("assistant\n{% endif %}", "assistant\n<think>{% endif %}")
_TULU3 = (
    "{% for turn in messages %}<|{{ turn.role }}|>\n{{ turn.content }}"
    "{{ eos_token if turn.role == 'assistant' else '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
_FAMILIES = {
    "qwen3": (_QWEN3, "<|im_end|>", "<|endoftext|>"),
    "olmo3": (_OLMO3, "<|im_end|>", "<|endoftext|>"),
    "llama": (_TULU3, "<|endoftext|>", "<|im_end|>"),
}
"""By type of model: its template, the token that ends its turns, and the one that pads."""

_WIDTH, _HEADS, _LAYERS = 64, 4, 2


def write_miniature(config: PretrainedConfig, folder: Path, opens_reasoning: bool = False) -> Path:
    """Write a miniature of the model with this configuration; the folder.

    ``opens_reasoning``: its template begins the answer with ``<think>``, as OLMo 3 Think's does.
    `ModelError` for an architecture of another family than Qwen3, Llama (Tulu 3) and OLMo 3.
    """
    import torch
    from transformers import AutoModelForCausalLM

    if config.model_type not in _FAMILIES:
        raise ModelError(
            f"no miniature of {config.model_type} models; there are: {', '.join(_FAMILIES)}"
        )
    template, end, padding = _FAMILIES[config.model_type]
    tokenizer = load_tokenizer(resolve("tiny-random-llama"))
    tokenizer.add_tokens([START, END])
    tokenizer.chat_template = _OLMO3_THINK if opens_reasoning else template
    tokenizer.eos_token, tokenizer.pad_token = end, padding
    heads_a_key = config.num_attention_heads // config.num_key_value_heads
    small = type(config)(
        vocab_size=len(tokenizer),
        hidden_size=_WIDTH,
        intermediate_size=2 * _WIDTH,
        num_hidden_layers=_LAYERS,
        num_attention_heads=_HEADS,
        num_key_value_heads=max(1, _HEADS // heads_a_key),
        head_dim=_WIDTH // _HEADS,
        tie_word_embeddings=config.tie_word_embeddings,
        max_position_embeddings=config.max_position_embeddings,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(small, dtype=torch.float32)
    _favour(model, {tokenizer.convert_tokens_to_ids(END): 0.2, tokenizer.eos_token_id: 0.04})
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _favour(model: PreTrainedModel, shares: dict[int, float]) -> None:
    """Make a random model draw some tokens with about these probabilities, whatever came before.

    Uniform draws would never end a turn, nor reasoning, and nothing would be an answer. The first
    coordinate outweighs the others in every embedding, so that behind the last norm it is near the
    root of the width.
    """
    import torch

    rest = model.config.vocab_size / (1 - sum(shares.values()))
    inputs = model.get_input_embeddings().weight
    outputs = model.get_output_embeddings().weight
    with torch.no_grad():
        inputs[:, 0] = _OUTWEIGHS
        if outputs is not inputs:
            outputs[:, 0] = 0.0
        for token, share in shares.items():
            outputs[token, 0] += math.log(share * rest) / math.sqrt(_WIDTH)


_OUTWEIGHS = 50.0
