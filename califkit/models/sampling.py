"""Draws that depend on the settings alone.

Whatever a call of ``model.generate`` leaves unset, transformers takes from the model's own
``generation_config.json``: a ``min_p`` or a penalty there would change every draw. So our draws are
made without that file (`without_own_settings`), and a trainer whose draws it would change is
refused (`changed_by`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from califkit.runs.settings import Engine, Sampling

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PLAIN: dict[str, tuple[Any, ...]] = {
    "do_sample": (True,),
    "temperature": (1.0,),
    "top_k": (0,),
    "top_p": (1.0, None),
    "min_p": (None, 0),
    "top_h": (None,),
    "typical_p": (1.0, None),
    "epsilon_cutoff": (0.0, None),
    "eta_cutoff": (0.0, None),
    "repetition_penalty": (1.0, None),
    "encoder_repetition_penalty": (1.0, None),
    "no_repeat_ngram_size": (0, None),
    "encoder_no_repeat_ngram_size": (0, None),
    "min_length": (0, None),
    "min_new_tokens": (None, 0),
    "max_time": (None,),
    "stop_strings": (None, []),
    "bad_words_ids": (None, []),
    "suppress_tokens": (None, []),
    "begin_suppress_tokens": (None, []),
    "sequence_bias": (None, {}),
    "exponential_decay_length_penalty": (None,),
    "forced_bos_token_id": (None,),
    "forced_eos_token_id": (None,),
    "guidance_scale": (None, 1),
    "watermarking_config": (None,),
    "remove_invalid_values": (False, None),
    "token_healing": (False, None),
    "num_beams": (1, None),
    "num_return_sequences": (1, None),
    "constraints": (None,),
    "force_words_ids": (None,),
    "dola_layers": (None,),
    "use_mtp": (False, None),
    "prompt_lookup_num_tokens": (None,),
    "assistant_early_exit": (None,),
    "is_assistant": (False, None),
    "cache_implementation": (None, "dynamic", "static", "offloaded", "offloaded_static", "hybrid"),
}
"""Fields of a ``GenerationConfig`` that shape draws, and the values under which they do nothing
(``temperature``: divide by nothing), the one that our own draws have first.

``top_k`` None is no such value: transformers then takes the 50 likeliest tokens."""

NO_DRAWS = frozenset(
    # How long an answer may be, and which tokens end or pad it, is always given.
    "max_length max_new_tokens eos_token_id pad_token_id bos_token_id decoder_start_token_id"
    # Read where there are beams, or without sampling.
    " early_stopping length_penalty num_beam_groups diversity_penalty penalty_alpha low_memory"
    # Read where another model drafts.
    " num_assistant_tokens num_assistant_tokens_schedule assistant_confidence_threshold"
    " assistant_lookbehind target_lookbehind assistant_ensemble_weight max_matching_ngram_size"
    " speculation_type"
    # Scores of the same tokens up to a constant, memory, speed, and what is returned beside them.
    " renormalize_logits use_cache cache_config max_cache_len prefill_chunk_size compile_config"
    " disable_compile continuous_batching_config output_attentions output_hidden_states"
    " output_scores output_logits return_dict_in_generate"
    " transformers_version _from_model_config".split()
)
"""All other fields of a ``GenerationConfig``."""

VLLM_PLAIN: dict[str, tuple[Any, ...]] = {
    "temperature": (1.0,),
    "top_p": (1.0,),
    "top_k": (0, -1),
    "min_p": (0.0, None),
    "repetition_penalty": (1.0,),
    "presence_penalty": (0.0,),
    "frequency_penalty": (0.0,),
    "min_tokens": (0,),
}
"""The same for ``vllm.SamplingParams``."""

_VLLM_NO_DRAWS = frozenset(
    "max_tokens logprobs prompt_logprobs detokenize skip_special_tokens"
    " spaces_between_special_tokens output_kind".split()
)


def resolved(sampling: Sampling, engine: Engine = None) -> dict[str, Any]:
    """Every field that shapes our draws, with its value; the tokens that end them apart.

    Returns
    -------
    dict
        Keyword arguments of ``GenerationConfig``, or of ``vllm.SamplingParams``.
    """
    plain, limit = (VLLM_PLAIN, "max_tokens") if engine == "vllm" else (PLAIN, "max_new_tokens")
    return {name: values[0] for name, values in plain.items()} | {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        limit: sampling.max_tokens,
    }


@contextmanager
def without_own_settings(model: PreTrainedModel) -> Iterator[None]:
    """``model.generate`` without what the model's ``generation_config.json`` says.

    Parameters
    ----------
    model
        A model of transformers, with an adapter or not.
    """
    from transformers import GenerationConfig

    # An adapter's wrapper copies the settings of the model in it, before each call.
    model = model.get_base_model() if hasattr(model, "get_base_model") else model
    own, model.generation_config = model.generation_config, GenerationConfig()
    try:
        yield
    finally:
        model.generation_config = own


def changed_by(settings: Mapping[str, Any], vllm: bool = False) -> str | None:
    """The first setting under which draws are not plain ones, ``name=value``; None if all are.

    Parameters
    ----------
    settings
        Fields of a ``GenerationConfig``, or with ``vllm`` of ``SamplingParams``. One that is not
        known counts as changing the draws, unless it is None.
    """
    plain, others = (VLLM_PLAIN, _VLLM_NO_DRAWS) if vllm else (PLAIN, NO_DRAWS)
    for name, value in settings.items():
        if name not in others and value not in plain.get(name, (None,)):
            return f"{name}={value}"
    return None
