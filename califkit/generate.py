"""Responses of a policy: an engine draws them, and a resumable loop appends them to a file.

The unit of work is a batch. Each batch is drawn from its own seed, derived from the stage's seed
and the batch number, so a run that was killed and continued gives the rows of an unbroken one.
Two engines draw: ``model.generate`` of transformers, and vLLM on a GPU (`load_engine`).
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm import tqdm

from califkit.data import Instance
from califkit.models import load_model, load_tokenizer, resolve
from califkit.params import Engine, Execution, GenerateStage, Sampling
from califkit.prompts import benchmark_prompts
from califkit.reasoning import END, Answer, final_answer
from califkit.runs import RowLog, Run, open_run, resume_units

if TYPE_CHECKING:
    import vllm
    from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

RESPONSES = "responses.jsonl"


class EngineError(RuntimeError):
    """An engine that cannot be used here."""


@dataclass(frozen=True)
class Response:
    """What a model wrote, and the answer in it.

    ``text`` is all of it without special tokens, reasoning included, and ``token_ids`` are its ids
    as generated, with the end-of-turn token when it was produced. ``finish_reason`` says whether
    it ended by itself (``stop``) or at the token limit (``length``). ``answer`` is what constraints
    and likelihood are about: the part after the reasoning, or everything if there is none.
    """

    text: str
    token_ids: list[int]
    finish_reason: str
    answer: Answer

    @property
    def n_tokens(self) -> int:
        """Tokens of the answer without the end-of-turn token (A19)."""
        return len(self.answer.token_ids) - (self.finish_reason == "stop" and not self.is_empty)

    @property
    def is_empty(self) -> bool:
        """Whether the answer has no visible text; such an answer has no log-likelihood (A2)."""
        return not self.answer.text


def check_engine(engine: Engine) -> None:
    """Raise `EngineError` if an engine is not installed; costs nothing, imports nothing."""
    if engine == "vllm" and importlib.util.find_spec("vllm") is None:
        raise EngineError(
            "engine: vllm is not installed; run: "
            "python -m pip install -c constraints/gpu.txt -e '.[gpu]'"
        )


def load_engine(
    model: str | Path, engine: Engine = None, thinking: bool = False
) -> TransformersEngine | VllmEngine:
    """The engine for a model name or folder.

    Parameters
    ----------
    model
        Whatever `califkit.models.resolve` takes.
    engine
        ``vllm``, or None for transformers.
    thinking
        Whether the chat template asks for reasoning, which is then cut from the answers.

    Returns
    -------
    TransformersEngine or VllmEngine
        ``tokenizer``, ``generate(prompts, sampling, seed)`` and ``close()``; the former also holds
        the ``model``. Use it under `contextlib.closing`: vLLM keeps its memory until it is closed.

    Raises
    ------
    EngineError
        If the engine is not installed, or the model does not reason.
    """
    check_engine(engine)
    kind = VllmEngine if engine == "vllm" else TransformersEngine
    return kind.load(model, thinking)


class TransformersEngine:
    """Sampling with ``model.generate``."""

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, thinking: bool = False
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.thinking = thinking

    @classmethod
    def load(cls, model: str | Path, thinking: bool = False) -> TransformersEngine:
        """The engine for a model name or folder, see `load_engine`."""
        folder = resolve(str(model))
        tokenizer = _load_tokenizer(folder, thinking)
        return cls(load_model(folder), tokenizer, thinking)

    def generate(self, prompts: Sequence[str], sampling: Sampling, seed: int) -> list[Response]:
        """One response to each prompt (a single user turn in the chat template).

        Draws depend on the seed and on the batch as a whole; the global random state is restored.
        """
        import torch
        from transformers import GenerationConfig

        inputs = self.tokenizer(
            chat_texts(self.tokenizer, prompts, self.thinking),
            return_tensors="pt",
            padding=True,
            padding_side="left",
            add_special_tokens=False,
        ).to(self.model.device)
        stop = stop_token_ids(self.model.generation_config, self.tokenizer)
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
        rows = output[:, inputs["input_ids"].shape[1] :].tolist()
        return [to_response(ids, stop, self.tokenizer, self.thinking) for ids in rows]

    def close(self) -> None:
        """Nothing to do: the memory of the model is free when nobody holds it any more."""


class VllmEngine:
    """Sampling with vLLM's offline interface (the extra ``gpu``).

    Every request has a seed of its own, so a draw depends neither on the rest of the batch nor on
    earlier ones, up to rounding: vLLM computes logits that differ in the last bits with the
    composition of a batch, which can tip a draw between two tokens.
    """

    def __init__(
        self,
        llm: vllm.LLM,
        tokenizer: PreTrainedTokenizerBase,
        stop: set[int],
        thinking: bool = False,
    ) -> None:
        self.llm = llm
        self.tokenizer = tokenizer
        self.stop = stop
        self.thinking = thinking

    @classmethod
    def load(
        cls,
        model: str | Path,
        thinking: bool = False,
        gpu_memory_utilization: float = 0.5,
        **options: Any,
    ) -> VllmEngine:
        """The engine for a model name or folder.

        Parameters
        ----------
        model, thinking
            As for `load_engine`.
        gpu_memory_utilization
            Share of the GPU's memory for vLLM. What is left is for the likelihood scorer, which
            holds the reference in float32 on the same GPU.
        options
            Further arguments of ``vllm.LLM``, for instance ``dtype``. By default weights are used
            in the precision of the checkpoint; vLLM narrows float32 to 16 bits.
        """
        from vllm import LLM

        folder = resolve(str(model))
        tokenizer = _load_tokenizer(folder, thinking)
        stop = stop_token_ids(_generation_config(folder), tokenizer)
        llm = LLM(
            model=str(folder),
            gpu_memory_utilization=gpu_memory_utilization,
            # What earlier batches left in the cache would change the rounding of later ones.
            enable_prefix_caching=False,
            **options,
        )
        return cls(llm, tokenizer, stop, thinking)

    def generate(self, prompts: Sequence[str], sampling: Sampling, seed: int) -> list[Response]:
        """One response to each prompt (a single user turn in the chat template).

        The draw of a prompt depends on the seed and its place in ``prompts``.
        """
        from vllm import SamplingParams
        from vllm.inputs import TokensPrompt

        texts = chat_texts(self.tokenizer, prompts, self.thinking)
        inputs = self.tokenizer(texts, add_special_tokens=False)["input_ids"]
        outputs = self.llm.generate(
            [TokensPrompt(prompt_token_ids=ids) for ids in inputs],
            [
                SamplingParams(
                    temperature=sampling.temperature,
                    top_p=sampling.top_p,
                    top_k=sampling.top_k,  # 0 is off there too
                    max_tokens=sampling.max_tokens,
                    stop_token_ids=sorted(self.stop),
                    seed=unit_seed(seed, index),
                    detokenize=False,
                )
                for index in range(len(prompts))
            ],
            use_tqdm=False,
        )
        return [
            to_response(list(o.outputs[0].token_ids), self.stop, self.tokenizer, self.thinking)
            for o in outputs
        ]

    def close(self) -> None:
        """Free the memory, which vLLM holds in processes of its own, even without this object."""
        self.llm.llm_engine.engine_core.shutdown()


def chat_texts(
    tokenizer: PreTrainedTokenizerBase, prompts: Sequence[str], thinking: bool
) -> list[str]:
    """Each prompt as a single user turn in the chat template, up to where the answer begins."""
    return [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}],
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=thinking,
        )
        for prompt in prompts
    ]


def to_response(
    ids: list[int], stop: set[int], tokenizer: PreTrainedTokenizerBase, thinking: bool
) -> Response:
    """The response in generated ids; what follows the first end-of-turn token is padding."""
    end = next((i for i, token in enumerate(ids) if token in stop), None)
    ids = ids if end is None else ids[: end + 1]
    return Response(
        text=tokenizer.decode(ids, skip_special_tokens=True),
        token_ids=ids,
        finish_reason="length" if end is None else "stop",
        answer=final_answer(ids, tokenizer, thinking=thinking),
    )


def read_response(
    row: dict[str, Any], tokenizer: PreTrainedTokenizerBase, thinking: bool
) -> Response:
    """The response in a row of `RESPONSES`."""
    ids = row["token_ids"]
    answer = final_answer(ids, tokenizer, thinking=thinking)
    return Response(row["response"], ids, row["finish_reason"], answer)


def stop_token_ids(config: GenerationConfig, tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Tokens that end a turn: the tokenizer's and those of the model's generation settings."""
    configured = config.eos_token_id
    ids = configured if isinstance(configured, list) else [configured]
    return {i for i in [*ids, tokenizer.eos_token_id] if i is not None}


def _load_tokenizer(folder: Path, thinking: bool) -> PreTrainedTokenizerBase:
    tokenizer = load_tokenizer(folder)
    if thinking and END not in str(tokenizer.chat_template):
        # Its responses would hold no end of reasoning, so every answer would count as empty.
        raise EngineError(f"thinking = true, but the chat template of {folder} knows no {END}")
    return tokenizer


def _generation_config(folder: Path) -> GenerationConfig:
    """The generation settings that a loaded model of the folder would have."""
    from transformers import AutoConfig, GenerationConfig

    if (folder / "generation_config.json").is_file():
        return GenerationConfig.from_pretrained(folder)
    return GenerationConfig.from_model_config(AutoConfig.from_pretrained(folder))


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

    Rows: ``key``, ``prompt``, ``response`` and ``token_ids`` (with the reasoning, if any),
    ``n_tokens`` (of the answer), ``finish_reason``. A policy that is not trained yet is trained
    first.
    """
    started = time.monotonic()
    run = open_run(profile, stage)
    with run.computing() as needed:
        if not needed:
            return run
        check_engine(stage.engine)
        loaded = benchmark_prompts(stage.evaluation)
        run.pin_data(loaded.sha256)
        folder = _policy_folder(profile, stage, execution)
        # Prompts of like length share a batch, which saves padding.
        instances = sorted(loaded.instances, key=lambda i: (len(i.prompt), i.key))
        sampling = stage.evaluation.sampling
        units = batches(instances, sampling.batch_size)
        log = RowLog(run.folder / RESPONSES)
        with closing(load_engine(folder, stage.engine, stage.thinking)) as engine:

            def compute(number: int, unit: Sequence[Any]) -> list[dict[str, Any]]:
                prompts = [instance.prompt for instance in unit]
                responses = engine.generate(prompts, sampling, unit_seed(stage.seed, number))
                return [_row(i, r) for i, r in zip(unit, responses, strict=True)]

            run_units(log, units, compute, f"responses {stage.name}")
        run.finish(started, rows=len(instances), data=loaded.summary(), data_sha256=loaded.sha256)
    return run


def _row(instance: Instance, response: Response) -> dict[str, Any]:
    return {
        "key": instance.key,
        "prompt": instance.prompt,
        "response": response.text,
        "token_ids": response.token_ids,
        "n_tokens": response.n_tokens,
        "finish_reason": response.finish_reason,
    }


def _policy_folder(profile: str, stage: GenerateStage, execution: Execution) -> Path:
    if stage.policy is None:
        return resolve(stage.model)
    from califkit.training import POLICY, train

    return train(profile, stage.policy, execution).folder / POLICY
