"""l0 and l1 for a data set of one's own, in one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from califkit.anchors.measure import draw_and_score, draw_units
from califkit.anchors.table import anchor_table
from califkit.data.rows import Instance
from califkit.metrics import none_if_nan
from califkit.models.engines import load_engine
from califkit.models.likelihood import ReferenceScorer
from califkit.runs.settings import AnchorSettings, Sampling
from califkit.runs.units import progress


def measure_bounds(
    model: str | Path,
    prompts: Sequence[str | Sequence[Mapping[str, Any]]],
    requests: Sequence[str],
    *,
    max_tokens: int,
    temperature: float = 1.0,
    draws: int = 1,
    seed: int = 0,
    batch_size: int = 32,
) -> tuple[list[float | None], list[float | None]]:
    """The bounds of every prompt under the starting policy (paper section 2.2).

    An answer to the prompt gives l0, one to the request alone gives l1. Both are drawn without
    truncation and scored at temperature 1 given the request alone, in the chat template with
    thinking off. Several samples are averaged.

    Parameters
    ----------
    model
        The policy that training starts from: a name, a folder or a hub id. Its weights are in
        float32, on a GPU if there is one; measure where you train, as a GPU scores in bfloat16
        autocast (`califkit.models.likelihood.scoring_precision`).
    prompts
        n prompts, request and constraints: texts, or conversations of one user turn as TRL takes
        them.
    requests
        n requests without their constraints.
    max_tokens, temperature
        Those of the rollouts, since l depends on length; the paper's temperature is 1.
    draws
        Answers a side and prompt.
    seed, batch_size
        The same ones give the same bounds.

    Returns
    -------
    tuple of list
        l0 and l1, in nats per token, in the order given. None where every answer stayed empty,
        however often it was drawn again; such a prompt is rewarded with r_ver alone.
    """
    if len(prompts) != len(requests):
        raise ValueError(f"{len(prompts)} prompts, but {len(requests)} requests")
    if draws < 1:
        raise ValueError(f"draws must be at least 1, not {draws}")
    settings = AnchorSettings(
        sampling=Sampling(temperature=temperature, max_tokens=max_tokens, batch_size=batch_size),
        draws=draws,
        seed=seed,
    )
    instances = [
        Instance(f"{i:09}", _text(prompt), (), request, None, "")
        for i, (prompt, request) in enumerate(zip(prompts, requests, strict=True))
    ]
    units = draw_units(instances, draws, batch_size)
    engine = load_engine(model)
    scorer = ReferenceScorer(engine.model, engine.tokenizer)
    rows = [
        row
        for number in progress(range(len(units)), "bounds", len(units))
        for row in draw_and_score(engine, scorer, number, units[number], settings)
    ]
    table = anchor_table(instances, rows, draws)
    l0, l1 = ([none_if_nan(value) for value in table[bound]] for bound in ("l0", "l1"))
    return l0, l1


def _text(prompt: str | Sequence[Mapping[str, Any]]) -> str:
    if isinstance(prompt, str):
        return prompt
    if len(prompt) != 1 or prompt[0].get("role") != "user":
        raise ValueError(f"a prompt must be a text or one user turn, not {prompt!r:.200}")
    return prompt[0]["content"]
