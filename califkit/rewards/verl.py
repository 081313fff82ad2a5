"""CaLIF as a reward function of verl, which is not imported here (see ``docs/verl.md``).

Options come as ``reward_kwargs``: those of `CalifVerlReward`. The first call of a process loads the
reference, and the process keeps it. Ground truth and text are read as in
`califkit.rewards.adapters`; ``extra_info`` gives ``request``, ``l0`` and ``l1``.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from califkit.data.rows import constraints_json
from califkit.models.likelihood import ReferenceScorer
from califkit.models.reasoning import text_answer
from califkit.models.resolve import load_model, load_tokenizer, resolve
from califkit.rewards.checks import check_row
from califkit.rewards.rules import RewardRule
from califkit.rewards.score import score_answers
from califkit.runs.jsonl import RowLog
from califkit.verifiers import Constraint

_LOADING = threading.Lock()


class CalifVerlReward:
    """The reward of rollouts of which only the text is known.

    Parameters
    ----------
    model
        The policy that training starts from: a name, a folder or a hub id.
    alpha, method, reversed_bounds, ceiling_margin
        As in `califkit.rewards.rules.RewardRule`.
    semantics, thinking, tokens_per_pass
        As in `califkit.rewards.trl.CalifReward`.
    end
        Whether every answer gets an end-of-turn token. verl strips special tokens, so one that was
        cut at the length limit cannot be told apart and gets one too.
    device
        Where the reference runs; None takes a GPU if the process sees one.
    rows
        A JSONL file that gets a row a rollout: ``index`` of its prompt, ``completion``, and what
        `califkit.rewards.score.score_answers` finds.
    """

    def __init__(
        self,
        model: str,
        alpha: float = 0.1,
        method: str = "calif",
        reversed_bounds: str | None = None,
        ceiling_margin: float | None = None,
        semantics: str = "published",
        thinking: bool = False,
        end: bool = True,
        device: str | None = None,
        tokens_per_pass: int = 2048,
        rows: str | None = None,
    ) -> None:
        self.rule = RewardRule(method, alpha, reversed_bounds, ceiling_margin)
        self.semantics = semantics
        self.thinking = thinking
        self.end = end
        folder = resolve(model)
        reference = load_model(folder)
        if device is not None:
            reference = reference.to(device)
        self._scorer = ReferenceScorer(reference, load_tokenizer(folder), tokens_per_pass)
        self._rows = RowLog(Path(rows)) if rows else None
        self._lock = threading.Lock()  # verl calls from several threads

    def __call__(
        self, texts: Sequence[str], ground_truths: Sequence[Any], infos: Sequence[Any]
    ) -> list[dict[str, float]]:
        """One dict a rollout, in the order given: ``score`` (the reward) and, for the logs,
        ``r_ver``, ``l`` (nats per token, NaN for an empty answer), and 1 or 0 for ``inside`` and
        ``above`` the region and for ``reversed`` bounds."""
        pairs = zip(infos, ground_truths, strict=True)
        rows = [_row(info, truth, self.rule.method) for info, truth in pairs]
        requests, constraints, l0, l1 = zip(*rows, strict=True) if rows else ((), (), (), ())
        answers = [
            text_answer(text, self._scorer.tokenizer, thinking=self.thinking, end=self.end)
            for text in texts
        ]
        with self._lock:
            scored = score_answers(
                self._scorer, self.rule, requests, answers, constraints, l0, l1, self.semantics
            )
            if self._rows:
                self._rows.append(
                    {"index": info["index"], "completion": text, **row}
                    for info, text, row in zip(infos, texts, scored, strict=True)
                )
        return [
            {
                "score": row["reward"],
                "r_ver": row["r_ver"],
                "l": math.nan if row["loglik"] is None else row["loglik"],
                **{name: float(row["zone"] == name) for name in ("inside", "above", "reversed")},
            }
            for row in scored
        ]


def _row(info: Any, truth: Any, method: str) -> tuple[str, tuple[Constraint, ...], float, float]:
    """Request, constraints, l0 and l1 of a rollout; a bound of None is missing."""
    if not isinstance(info, Mapping):
        raise ValueError(f"extra_info must be a mapping, not {info!r:.200}")
    where = f"extra_info of row {info.get('index')!r}"
    if missing := [name for name in ("request", "l0", "l1") if name not in info]:
        raise ValueError(f"{where} lacks {', '.join(missing)}; it has {', '.join(info)}")
    try:
        constraints, numbers = check_row({**info, "constraints": truth}, method)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    return info["request"], constraints, numbers["l0"], numbers["l1"]


def _reward(options: dict[str, Any]) -> CalifVerlReward:
    """The reward of this process for some options, made at the first call."""
    # What verl adds for reward functions that ask a reward model; not used here.
    own = {k: v for k, v in options.items() if not k.startswith("reward_")}
    if "model" not in own:
        raise ValueError("reward_kwargs needs 'model': the policy that training starts from")
    with _LOADING:
        return _loaded(**own)


_loaded = lru_cache(maxsize=1)(CalifVerlReward)


def compute_score(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None, **options: Any
) -> dict[str, float]:
    """One rollout; see `CalifVerlReward` for the options and the result."""
    return _reward(options)([solution_str], [ground_truth], [extra_info])[0]


def compute_score_batch(
    data_sources: Sequence[str],
    solution_strs: Sequence[str],
    ground_truths: Sequence[Any],
    extra_infos: Sequence[Any],
    **options: Any,
) -> list[dict[str, float]]:
    """A batch of rollouts, for the batch reward manager of older releases."""
    return _reward(options)(solution_strs, ground_truths, extra_infos)


async def compute_score_async(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None, **options: Any
) -> dict[str, float]:
    """One rollout, scored together with the others that wait; see `CalifVerlReward`."""
    queue = _queue(asyncio.get_running_loop(), tuple(sorted(options.items())))
    return await queue.score(solution_str, ground_truth, extra_info)


class _Queue:
    """Rollouts of one event loop: while one batch is scored in a thread, the next gathers."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.waiting: list[tuple[tuple[Any, ...], asyncio.Future]] = []
        self.worker: asyncio.Task | None = None

    async def score(self, *rollout: Any) -> dict[str, float]:
        future = asyncio.get_running_loop().create_future()
        self.waiting.append((rollout, future))
        if self.worker is None:
            self.worker = asyncio.create_task(self._work())
        return await future

    async def _work(self) -> None:
        while self.waiting:
            batch, self.waiting = self.waiting, []
            futures = [future for _, future in batch]
            columns = list(zip(*(rollout for rollout, _ in batch), strict=True))
            try:
                scores = await asyncio.to_thread(lambda c=columns: _reward(self.options)(*c))
            except Exception as error:  # goes to whoever waits for one of these rollouts
                for future in futures:
                    future.set_exception(error)
            else:
                for future, score in zip(futures, scores, strict=True):
                    future.set_result(score)
        self.worker = None


@lru_cache(maxsize=1)
def _queue(loop: asyncio.AbstractEventLoop, options: tuple[tuple[str, Any], ...]) -> _Queue:
    return _Queue(dict(options))


def verl_row(
    prompt: str,
    request: str,
    constraints: Sequence[Constraint],
    l0: float | None,
    l1: float | None,
    index: int = 0,
    split: str = "train",
    method: str = "calif",
) -> dict[str, Any]:
    """A prompt (request and constraints, one user turn) as a row of verl's Parquet files; bounds as
    `califkit.anchors.bounds.measure_bounds` gives them. ``index`` and ``split`` name it in logs.

    Raises
    ------
    ValueError
        For what the reward of `method` would refuse at its first call.
    """
    truth = constraints_json(constraints)
    info = {"index": index, "split": split, "request": request, "l0": l0, "l1": l1}
    _row(info, truth, method)
    return {
        "data_source": "califkit",
        "prompt": [{"role": "user", "content": prompt}],
        "ability": "instruction_following",
        "reward_model": {"style": "rule", "ground_truth": truth},
        "extra_info": info,
    }
