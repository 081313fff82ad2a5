"""What tests of several rooms do alike: JSONL files, and l computed in another way."""

import json
from pathlib import Path

import torch

TEMPLATE = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
)
"""What the tiny model's chat template makes of a request."""


def write_rows(path: Path, *rows: dict | str) -> Path:
    """A line a row; a text is written as it is."""
    lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def read_rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def whole_logits(tiny, request: str, ids: list[int]) -> float:
    """l from the logits of the whole sequence, one row at a time, in double precision."""
    prefix = tiny.tokenizer(TEMPLATE.format(request), add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        logits = tiny.model(torch.tensor([prefix + ids])).logits[0].double()
    log_probs = torch.log_softmax(logits, dim=-1)
    return sum(log_probs[len(prefix) + t - 1, ids[t]].item() for t in range(len(ids))) / len(ids)


def ids_of(tiny, text: str, end: bool = True) -> list[int]:
    """Token ids of a text, with the end-of-turn token or not."""
    ids = tiny.tokenizer(text, add_special_tokens=False)["input_ids"]
    return [*ids, tiny.tokenizer.eos_token_id] if end else ids
