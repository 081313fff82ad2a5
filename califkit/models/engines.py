"""Responses of a policy: an engine draws them, and a resumable loop appends them to a file.

The unit of work is a batch. Each batch is drawn from its own seed, derived from the stage's seed
and the batch number, so a run that was killed and continued gives the rows of an unbroken one.
Two engines draw: ``model.generate`` of transformers, and vLLM on a GPU (`load_engine`).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from califkit import CalifkitError
from califkit.models.chat import render
from califkit.models.passes import has_recurrent_layers
from califkit.models.reasoning import END, Answer, final_answer, turn_end_id
from califkit.models.resolve import load_model, load_tokenizer, resolve
from califkit.models.sampling import resolved, without_own_settings
from califkit.runs.settings import Engine, Sampling
from califkit.runs.units import unit_seed

if TYPE_CHECKING:
    import torch
    import vllm
    from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase


class EngineError(CalifkitError, RuntimeError):
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
        return len(self.answer.content_ids)

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
    model: str | Path,
    engine: Engine = None,
    thinking: bool = False,
    max_model_len: int | None = None,
) -> TransformersEngine | VllmEngine:
    """The engine for a model name or folder.

    Parameters
    ----------
    model
        Whatever `califkit.models.resolve.resolve` takes.
    engine
        ``vllm``, or None for transformers.
    thinking
        Whether the chat template asks for reasoning, which is then cut from the answers.
    max_model_len
        Tokens of prompt and answer for which vLLM keeps room; None is the model's own limit.

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
    if engine == "vllm":
        limit = {} if max_model_len is None else {"max_model_len": max_model_len}
        return VllmEngine.load(model, thinking, **limit)
    return TransformersEngine.load(model, thinking)


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
            **resolved(sampling),
            eos_token_id=sorted(stop),
            pad_token_id=self.tokenizer.pad_token_id,
        )
        devices = [self.model.device] if self.model.device.type == "cuda" else []
        with (
            torch.random.fork_rng(devices=devices),
            torch.inference_mode(),
            without_own_settings(self.model),
        ):
            torch.manual_seed(seed)
            output = generate_together(
                self.model.generate, self.model, **inputs, generation_config=config
            )
        rows = output[:, inputs["input_ids"].shape[1] :].tolist()
        return [to_response(ids, stop, self.tokenizer, self.thinking) for ids in rows]

    def close(self) -> None:
        """Nothing to do: the memory of the model is free when nobody holds it any more."""


def generate_together(
    generate: Callable[..., torch.Tensor],
    model: PreTrainedModel,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    generation_config: GenerationConfig,
) -> torch.Tensor:
    """What ``generate`` returns, with each of several equal prompts run through the model once.

    Draws are those of ``generate`` up to rounding, and depend on the same random state.

    Parameters
    ----------
    generate
        The model's method of that name.
    input_ids, attention_mask
        Prompts padded on the left.
    """
    import torch
    from transformers import DynamicCache

    inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
    rows, row_of = torch.unique(
        torch.stack([input_ids, attention_mask], 1), dim=0, return_inverse=True
    )
    if len(rows) < len(input_ids) and rows.shape[2] > 1 and not has_recurrent_layers(model):
        ids, mask = rows[:, 0, :-1], rows[:, 1, :-1]
        cache = DynamicCache(config=model.config.get_text_config())
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        cache.batch_select_indices(row_of)
        inputs["past_key_values"] = cache
    return generate(**inputs, generation_config=generation_config)


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
            generation_config="vllm",  # its own neutral values, not the model's file
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
                    **resolved(sampling, "vllm"),
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
        render(
            tokenizer,
            [{"role": "user", "content": prompt}],
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
        answer=final_answer(ids, tokenizer, thinking=thinking, stop=stop),
    )


def read_response(
    row: dict[str, Any], tokenizer: PreTrainedTokenizerBase, thinking: bool
) -> Response:
    """The response in a row of `RESPONSES`."""
    ids = row["token_ids"]
    stop = ids[-1:] if row["finish_reason"] == "stop" else ()
    answer = final_answer(ids, tokenizer, thinking=thinking, stop=stop)
    return Response(row["response"], ids, row["finish_reason"], answer)


def stop_token_ids(config: GenerationConfig, tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Tokens that end a turn: of tokenizer, chat template, and the model's generation settings."""
    configured = config.eos_token_id
    ids = configured if isinstance(configured, list) else [configured]
    ids = [*ids, tokenizer.eos_token_id, turn_end_id(tokenizer)]
    return {i for i in ids if i is not None}


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
