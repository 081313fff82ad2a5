"""What tests of several rooms do alike: JSONL files, and l computed in another way."""

import json
from pathlib import Path

import torch

TEMPLATE = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
)
"""What the tiny model's chat template makes of a request."""


OWN_SETTINGS = {
    "temperature": 0.6,
    "do_sample": False,
    "top_p": 0.9,
    "top_k": 20,
    "min_p": 0.95,
    "top_h": 0.1,
    "typical_p": 0.2,
    "epsilon_cutoff": 0.1,
    "eta_cutoff": 0.1,
    "repetition_penalty": 50.0,
    "no_repeat_ngram_size": 1,
    "min_length": 100,
    "min_new_tokens": 100,
    "max_new_tokens": 2,
    "max_time": 1e-9,
    "bad_words_ids": [[28]],
    "suppress_tokens": [*range(20_000)],
    "begin_suppress_tokens": [*range(20_000)],
    "exponential_decay_length_penalty": (1, 10.0),
    "forced_eos_token_id": 7,
    "sequence_bias": {(9,): 100.0},
    "num_beams": 3,
    "num_return_sequences": 2,
    "watermarking_config": {"bias": 30.0},
    "stop_strings": ["e"],
}
"""What a model's generation_config.json may say; each of them would change a draw."""


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
