"""l0 and l1 for a data set of one's own, in one call.

`califkit.anchors.measure` does the same for the prompts of a profile, with files, resume and a
report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from califkit.metrics import nan_mean, none_if_nan
from califkit.models.engines import TransformersEngine, load_engine
from califkit.models.likelihood import ReferenceScorer
from califkit.runs.settings import Sampling
from califkit.runs.units import batches, progress, unit_seed

RETRIES = 3
"""How often an empty answer is drawn again."""


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
    thinking off. Several draws are averaged.

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
    max_tokens
        Limit of an answer; that of the rollouts, since l depends on length.
    temperature
        At which answers are drawn; that of the rollouts, and 1 in the paper.
    draws
        Answers a side and prompt.
    seed
        Same seed and batches, same bounds.
    batch_size
        Answers that are drawn together.

    Returns
    -------
    tuple of list
        l0 and l1, in nats per token, in the order given. None where every answer stayed empty after
        `RETRIES` more attempts; such a prompt is rewarded with r_ver alone.

    Raises
    ------
    ValueError
        If the counts differ, a prompt is no single user turn, or a number is out of range.
    """
    if len(prompts) != len(requests):
        raise ValueError(f"{len(prompts)} prompts, but {len(requests)} requests")
    if draws < 1:
        raise ValueError(f"draws must be at least 1, not {draws}")
    sampling = Sampling(temperature=temperature, max_tokens=max_tokens, batch_size=batch_size)
    sides = [_text(prompt) for prompt in prompts], list(requests)
    engine = load_engine(model)
    scorer = ReferenceScorer(engine.model, engine.tokenizer)
    todo = [
        (side, i)
        for side in (0, 1)
        for i in sorted(range(len(requests)), key=lambda i: len(sides[side][i]))
        for _ in range(draws)
    ]
    units = batches(todo, batch_size)
    found: dict[tuple[int, int], list[float]] = {item: [] for item in todo}
    for number in progress(range(len(units)), "bounds", len(units)):
        unit = units[number]
        answers = _draw(engine, [sides[side][i] for side, i in unit], sampling, seed, number)
        scores = scorer.score([requests[i] for _, i in unit], answers)
        for item, score in zip(unit, scores, strict=True):
            found[item].append(score)
    l0, l1 = (
        [none_if_nan(nan_mean(found[side, i])) for i in range(len(requests))] for side in (0, 1)
    )
    return l0, l1


def _draw(
    engine: TransformersEngine, texts: list[str], sampling: Sampling, seed: int, number: int
) -> list[list[int]]:
    """Token ids of an answer to each text, drawn again while it is empty."""
    answers: list[list[int]] = [[] for _ in texts]
    for attempt in range(RETRIES + 1):
        empty = [i for i, answer in enumerate(answers) if not answer]
        if not empty:
            break
        sent = [texts[i] for i in empty]
        drawn = engine.generate(sent, sampling, unit_seed(seed, number, attempt))
        for i, response in zip(empty, drawn, strict=True):
            answers[i] = response.answer.token_ids
    return answers


def _text(prompt: str | Sequence[Mapping[str, Any]]) -> str:
    if isinstance(prompt, str):
        return prompt
    if len(prompt) != 1 or prompt[0].get("role") != "user":
        raise ValueError(f"a prompt must be a text or one user turn, not {prompt!r:.200}")
    return prompt[0]["content"]
