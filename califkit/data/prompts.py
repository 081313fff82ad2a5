"""The prompts a stage asks for: settings -> instances, through the loaders of `califkit.data.load`
and `califkit.judges.rubrics`."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from califkit.data import composer, load
from califkit.data.load import load_source
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
    return replace(known, instances=load.select(known.instances, settings.n_prompts, settings.seed))


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
