"""The prompts a stage asks for: settings -> instances, through the loaders of `califkit.data.load`
and `califkit.judges.rubrics`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from califkit.data import composer, load
from califkit.data.load import load_source
from califkit.models.chat import render
from califkit.models.resolve import load_tokenizer, resolve
from califkit.runs.folders import Run, StaleRunError
from califkit.runs.settings import DataSettings, Execution, ParamsError
from califkit.runs.stages import AnchorStage, TrainStage


def training_prompts(settings: DataSettings) -> load.Loaded:
    """Training prompts, of which only those with a request of their own can be scored."""
    if settings.source == "composer":
        rows = composer.compose(
            settings.n_prompts,
            settings.seed,
            constraint_ids=settings.constraint_ids,
            min_constraints=settings.min_constraints,
            max_constraints=settings.max_constraints,
            part=settings.part,
        )
        return load.load_rows(rows, source="composer")
    loaded = load_source(settings.source, settings.revision, split="train")
    known = replace(loaded, instances=[i for i in loaded.instances if i.request is not None])
    if settings.max_prompt_tokens is not None:
        known = _without_long(known, settings.tokenizer, settings.max_prompt_tokens)
    if settings.n_prompts is None:
        return known
    return replace(known, instances=load.select(known.instances, settings.n_prompts, settings.seed))


def _without_long(loaded: load.Loaded, model: str, limit: int) -> load.Loaded:
    """Without prompts of more tokens in the model's chat template; they count as quarantined."""
    lengths = prompt_lengths([i.prompt for i in loaded.instances], model)
    kept, left_out = [], [*loaded.quarantined]
    for instance, length in zip(loaded.instances, lengths, strict=True):
        if length <= limit:
            kept.append(instance)
        else:
            reason = f"{length} tokens, max_prompt_tokens = {limit}"
            left_out.append(load.Quarantined(0, instance.key, reason, "too long"))
    return replace(loaded, instances=kept, quarantined=left_out)


def prompt_lengths(prompts: Sequence[str], model: str) -> list[int]:
    """Tokens of each prompt as a single user turn, up to where the answer begins."""
    tokenizer = load_tokenizer(resolve(model))
    texts = [
        render(tokenizer, [{"role": "user", "content": prompt}], add_generation_prompt=True)
        for prompt in prompts
    ]
    return [len(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]


def check_prompts(profile: str, stage: AnchorStage | TrainStage, execution: Execution) -> None:
    """Refuse a stage whose training prompts cannot be had; `ParamsError` says why."""
    _load_once(stage.data)


@lru_cache  # for all the stages that use the same prompts
def _load_once(settings: DataSettings) -> None:
    try:
        training_prompts(settings)
    except ValueError as error:  # of the loaders and of the composer
        raise ParamsError(f"settings.data: {error}") from error


def check_unchanged(run: Run) -> None:
    """Refuse a complete run whose file of prompts was replaced (`StaleRunError`).

    The hash of a run covers the name of the file and not its rows. Nothing is compared where the
    file is gone, or the prompts came from the hub: pin a revision there.
    """
    name = run.stage.prompts
    path = Path(name).absolute()
    if name in ("composer", "ifbench") or not run.is_complete or not path.is_file():
        return
    known, status = run.manifest()["data_sha256"], path.stat()
    if known != _file_sha256(path, status.st_mtime_ns, status.st_size):
        raise StaleRunError(
            f"{run.folder}: was computed from other prompts than {name} holds now; delete the "
            "folder to compute it again"
        )


@lru_cache  # for all the stages that use one file
def _file_sha256(path: Path, mtime_ns: int, size: int) -> str:
    return load.load_jsonl(path, on_error="quarantine").sha256
