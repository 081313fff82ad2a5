"""Responses of a policy: an engine draws them, and a resumable loop appends them to a file.

The unit of work is a batch. Each batch is drawn from its own seed, derived from the stage's seed
and the batch number, so a run that was killed and continued gives the rows of an unbroken one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm import tqdm

from califkit.models import load_model, load_tokenizer, resolve
from califkit.params import Execution, GenerateStage, Sampling
from califkit.prompts import benchmark_prompts
from califkit.runs import RowLog, Run, open_run, resume_units

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

RESPONSES = "responses.jsonl"


@dataclass(frozen=True)
class Response:
    """One answer: text without special tokens, ids as generated (with the end-of-turn token when it
    was produced), and whether it ended by itself (``stop``) or at the token limit (``length``)."""

    text: str
    token_ids: list[int]
    finish_reason: str

    @property
    def n_tokens(self) -> int:
        """Answer tokens without the end-of-turn token."""
        return len(self.token_ids) - (self.finish_reason == "stop")

    @property
    def is_empty(self) -> bool:
        """Whether there is no visible text; such an answer has no log-likelihood (A2)."""
        return not self.text.strip()


class TransformersEngine:
    """Sampling with ``model.generate``."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        self.model = model
        self.tokenizer = tokenizer

    @classmethod
    def load(cls, model: str | Path) -> TransformersEngine:
        """The engine for a model name or folder."""
        folder = resolve(str(model))
        return cls(load_model(folder), load_tokenizer(folder))

    def generate(self, prompts: Sequence[str], sampling: Sampling, seed: int) -> list[Response]:
        """One response to each prompt (a single user turn in the chat template, thinking off).

        Draws depend on the seed and on the batch as a whole; the global random state is restored.
        """
        import torch
        from transformers import GenerationConfig

        texts = [
            self.tokenizer.apply_chat_template(
                [{"role": "user", "content": prompt}],
                tokenize=False,
                add_generation_prompt=True,
                enable_thinking=False,
            )
            for prompt in prompts
        ]
        inputs = self.tokenizer(
            texts,
            return_tensors="pt",
            padding=True,
            padding_side="left",
            add_special_tokens=False,
        ).to(self.model.device)
        stop = stop_token_ids(self.model, self.tokenizer)
        config = GenerationConfig(
            do_sample=True,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            repetition_penalty=1.0,  # else the model's own setting would be filled in
            max_new_tokens=sampling.max_tokens,
            eos_token_id=sorted(stop),
            pad_token_id=self.tokenizer.pad_token_id,
        )
        devices = [self.model.device] if self.model.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices), torch.inference_mode():
            torch.manual_seed(seed)
            output = self.model.generate(**inputs, generation_config=config)
        return [
            self._response(row, stop) for row in output[:, inputs["input_ids"].shape[1] :].tolist()
        ]

    def _response(self, ids: list[int], stop: set[int]) -> Response:
        end = next((i for i, token in enumerate(ids) if token in stop), None)
        ids = ids if end is None else ids[: end + 1]
        text = self.tokenizer.decode(ids, skip_special_tokens=True)
        return Response(text, ids, "length" if end is None else "stop")


def stop_token_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Tokens that end a turn: the tokenizer's and those of the model's generation settings."""
    configured = model.generation_config.eos_token_id
    ids = configured if isinstance(configured, list) else [configured]
    return {i for i in [*ids, tokenizer.eos_token_id] if i is not None}


def unit_seed(*parts: int) -> int:
    """A 31-bit seed that depends on every part, for instance (stage seed, batch number)."""
    return int(np.random.SeedSequence(parts).generate_state(1)[0]) & 0x7FFFFFFF


def batches(items: Sequence[Any], size: int) -> list[Sequence[Any]]:
    """Consecutive slices of at most ``size`` items."""
    return [items[i : i + size] for i in range(0, len(items), size)]


def run_units(
    log: RowLog,
    units: Sequence[Sequence[Any]],
    compute: Callable[[int, Sequence[Any]], list[dict[str, Any]]],
    label: str,
) -> None:
    """Compute the units that a row log does not hold yet, appending each as it is done.

    ``compute(number, unit)`` returns one row an item of the unit.
    """
    done = resume_units(log, [len(unit) for unit in units])
    if done:
        print(f"{label}: {done} of {len(units)} batches are there, continuing", flush=True)
    for number in progress(range(done, len(units)), label, len(units), done):
        log.append(compute(number, units[number]))


def progress(items: Sequence[int], label: str, total: int, done: int = 0) -> Iterator[int]:
    """Progress on a terminal as a bar, elsewhere as a line every half minute."""
    if _is_terminal():
        yield from tqdm(items, desc=label, total=total, initial=done)
        return
    last = time.monotonic()
    for count, item in enumerate(items, start=done + 1):
        yield item
        if time.monotonic() - last > 30 or count == total:
            print(f"{label}: {count} of {total}", flush=True)
            last = time.monotonic()


def _is_terminal() -> bool:
    import sys

    return sys.stderr.isatty()


def generate_responses(profile: str, stage: GenerateStage, execution: Execution) -> Run:
    """Stage: the responses of one policy to the test prompts, one row each in `RESPONSES`.

    Rows: ``key``, ``prompt``, ``response``, ``token_ids``, ``n_tokens``, ``finish_reason``.
    A policy that is not trained yet is trained first.
    """
    started = time.monotonic()
    run = open_run(profile, stage)
    with run.computing() as needed:
        if not needed:
            return run
        loaded = benchmark_prompts(stage.evaluation)
        run.pin_data(loaded.sha256)
        folder = _policy_folder(profile, stage, execution)
        engine = TransformersEngine.load(folder)
        # Prompts of like length share a batch, which saves padding.
        instances = sorted(loaded.instances, key=lambda i: (len(i.prompt), i.key))
        sampling = stage.evaluation.sampling

        def compute(number: int, unit: Sequence[Any]) -> list[dict[str, Any]]:
            responses = engine.generate(
                [i.prompt for i in unit], sampling, unit_seed(stage.seed, number)
            )
            return [
                {
                    "key": instance.key,
                    "prompt": instance.prompt,
                    "response": response.text,
                    "token_ids": response.token_ids,
                    "n_tokens": response.n_tokens,
                    "finish_reason": response.finish_reason,
                }
                for instance, response in zip(unit, responses, strict=True)
            ]

        units = batches(instances, sampling.batch_size)
        run_units(RowLog(run.folder / RESPONSES), units, compute, f"responses {stage.name}")
        run.finish(started, rows=len(instances), data=loaded.summary(), data_sha256=loaded.sha256)
    return run


def _policy_folder(profile: str, stage: GenerateStage, execution: Execution) -> Path:
    if stage.policy is None:
        return resolve(stage.model)
    from califkit.training import POLICY, train

    return train(profile, stage.policy, execution).folder / POLICY
