"""The tiny model as one that reasons, for tests of more than one module."""

import copy
from pathlib import Path

from califkit.models.engines import TransformersEngine

TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}{{ eos_token }}{% endfor %}"
    "assistant: {% if not enable_thinking %}<think></think>{% endif %}"
)


def save_thinker(tiny: TransformersEngine, folder: Path) -> Path:
    """Save the tiny model with the marks of reasoning as tokens and in its chat template."""
    tokenizer, model = copy.deepcopy(tiny.tokenizer), copy.deepcopy(tiny.model)
    tokenizer.add_tokens(["<think>", "</think>"])
    tokenizer.chat_template = TEMPLATE
    model.resize_token_embeddings(len(tokenizer))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
