"""Verify many responses: over processes, as a stream, with totals and what the repairs change.

>>> from califkit.verifiers import Constraint
>>> no_comma = Constraint("punctuation:no_comma")
>>> [v.strict for v in verify_many([([no_comma], "Tea."), ([no_comma], "Tea, milk.")])]
[(True,), (False,)]

Memory stays flat however many responses there are: input and output are iterators, and only a few
chunks are under way at a time. Verdicts come in the order of the input and do not depend on the
number of processes.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice, tee
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from califkit.evaluation.responses import Answer, Responses
from califkit.metrics import bootstrap_interval
from califkit.verifiers import REGISTRY, Constraint, check, registry, strip_reasoning

PUBLISHED, REPAIRED = "published", "repaired"
_CHUNK = 32
_CHUNKS_PER_PROCESS = 4

Item = tuple[Sequence[Constraint], str | None]
"""Constraints, and the response to them; None where there was none."""


@dataclass(frozen=True)
class Verdicts:
    """Outcome of one response, one entry a constraint; `errors` tells of checks that failed."""

    strict: tuple[bool, ...]
    loose: tuple[bool, ...]
    errors: tuple[str, ...] = ()


def judge(constraints: Sequence[Constraint], response: str | None, semantics: str) -> Verdicts:
    """Strict and loose verdicts of one response; without a response nothing is followed."""
    if response is None:
        nothing = (False,) * len(constraints)
        return Verdicts(nothing, nothing)
    strict, loose, errors = [], [], []
    for constraint in constraints:
        verdict = check(constraint, response, "strict", semantics)
        strict.append(verdict.passed)
        if not verdict.passed:  # what passes strictly passes loosely
            verdict = check(constraint, response, "loose", semantics)
        loose.append(verdict.passed)
        if verdict.error:
            errors.append(verdict.error)
    return Verdicts(tuple(strict), tuple(loose), tuple(errors))


def verify_many(
    items: Iterable[Item],
    semantics: str = PUBLISHED,
    processes: int = 1,
    progress: bool = False,
    total: int | None = None,
) -> Iterator[Verdicts]:
    """Verdicts of many responses, in their order.

    Parameters
    ----------
    items
        Constraints and response each; read as far as needed to keep the processes busy.
    semantics
        ``published`` or ``repaired``.
    processes
        Worker processes; 1 works here. With more, a script needs the usual
        ``if __name__ == "__main__":`` guard, because workers are spawned (which is safe beside
        threads and CUDA).
    progress, total
        Show a progress bar on standard error; `total` is the number of items, if known.

    Raises
    ------
    ValueError
        Unknown semantics, or fewer than one process.
    concurrent.futures.process.BrokenProcessPool
        A worker was killed.
    """
    for (verdicts,) in _judge_many(items, (semantics,), processes, progress, total):
        yield verdicts


def _judge_many(
    items: Iterable[Item],
    semantics: Sequence[str],
    processes: int,
    progress: bool = False,
    total: int | None = None,
) -> Iterator[tuple[Verdicts, ...]]:
    """For each item its verdicts under each of the semantics."""
    for name in semantics:
        if name not in (PUBLISHED, REPAIRED):
            raise ValueError(f"semantics must be 'published' or 'repaired', not {name!r}")
    if processes < 1:
        raise ValueError(f"processes must be at least 1, not {processes}")
    chunks = _in_order(partial(_judge_chunk, semantics), _chunked(items), processes)
    judged = (verdicts for chunk in chunks for verdicts in chunk)
    yield from tqdm(judged, total=total, unit=" responses", disable=not progress)


def _judge_chunk(semantics: Sequence[str], chunk: list[Item]) -> list[tuple[Verdicts, ...]]:
    return [tuple(judge(*item, name) for name in semantics) for item in chunk]


def _chunked(items: Iterable[Item]) -> Iterator[list[Item]]:
    items = iter(items)
    while chunk := list(islice(items, _CHUNK)):
        yield chunk


def _in_order(
    function: Callable[[list], list], chunks: Iterator[list], processes: int
) -> Iterator[list]:
    """``map`` over processes with a bounded number of chunks under way; a lone chunk stays here."""
    start = list(islice(chunks, 2))
    chunks = chain(start, chunks)
    if processes == 1 or len(start) < 2:
        yield from map(function, chunks)
        return
    with ProcessPoolExecutor(
        processes, get_context("spawn"), initializer=_start_worker, initargs=(_nltk_path(),)
    ) as pool:
        waiting = deque()
        try:
            for chunk in chunks:
                waiting.append(pool.submit(function, chunk))
                if len(waiting) >= processes * _CHUNKS_PER_PROCESS:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _nltk_path() -> list[str] | None:
    """NLTK's data path, which a program may have changed; None if it is not loaded."""
    return sys.modules["nltk.data"].path if "nltk.data" in sys.modules else None


def _start_worker(nltk_path: list[str] | None) -> None:
    if nltk_path is not None:
        import nltk

        nltk.data.path[:] = nltk_path


# --- totals --------------------------------------------------------------------------------------


@dataclass
class Count:
    """How many verdicts there were, and how many of them said yes."""

    n: int = 0
    strict: int = 0
    loose: int = 0

    def add(self, strict: bool, loose: bool) -> None:
        self.n += 1
        self.strict += strict
        self.loose += loose


@dataclass(frozen=True)
class Accuracy:
    """A share with its confidence interval."""

    value: float
    low: float
    high: float


@dataclass
class Summary:
    """Totals over responses, kept in memory that does not grow with them.

    Attributes
    ----------
    by_id
        Verdicts per constraint id.
    errors
        How often a check failed, by the first line of its message.
    """

    by_id: dict[str, Count] = field(default_factory=dict)
    errors: Counter[str] = field(default_factory=Counter)
    # Prompts with the same numbers of constraints, followed strictly, followed loosely.
    _outcomes: Counter[tuple[int, int, int]] = field(default_factory=Counter)

    def add(self, constraints: Sequence[Constraint], verdicts: Verdicts) -> None:
        """Count the verdicts of one response."""
        for constraint, *passed in zip(constraints, verdicts.strict, verdicts.loose, strict=True):
            self.by_id.setdefault(constraint.id, Count()).add(*passed)
        self.errors.update(error.split("\n", 1)[0][:200] for error in verdicts.errors)
        self._outcomes[len(constraints), sum(verdicts.strict), sum(verdicts.loose)] += 1

    @property
    def n_prompts(self) -> int:
        return self._outcomes.total()

    @property
    def n_instructions(self) -> int:
        return sum(count.n for count in self.by_id.values())

    def by_family(self) -> dict[str, Count]:
        """Verdicts per family of constraints."""
        families: dict[str, Count] = {}
        for id, count in self.by_id.items():
            family = families.setdefault(REGISTRY[id].family, Count())
            family.n += count.n
            family.strict += count.strict
            family.loose += count.loose
        return {name: families[name] for name in registry.FAMILIES if name in families}

    def accuracies(self, level: float = 0.95, seed: int = 0) -> dict[str, Accuracy]:
        """The four accuracies as shares, by the names lm-eval gives them.

        The intervals are bootstrapped over prompts (`califkit.metrics.bootstrap_interval`).
        """
        n, strict, loose = np.array(sorted(self._outcomes)).T
        counts = np.array([self._outcomes[o] for o in sorted(self._outcomes)])
        one = np.ones_like(n)
        wanted = {
            "prompt_level_strict_acc": (strict == n, one),
            "inst_level_strict_acc": (strict, n),
            "prompt_level_loose_acc": (loose == n, one),
            "inst_level_loose_acc": (loose, n),
        }
        found = {}
        for name, (hits, totals) in wanted.items():
            rng = np.random.default_rng(seed)
            low, high = bootstrap_interval(hits, totals, rng, counts, level)
            found[name] = Accuracy(
                float((hits * counts).sum() / (totals * counts).sum()), low, high
            )
        return found


@dataclass
class Change:
    """What the repair of one id does to its verdicts.

    ``lost``: passed the published check only. ``gained``: passes the repaired one only.
    """

    n: int = 0
    strict_lost: int = 0
    strict_gained: int = 0
    loose_lost: int = 0
    loose_gained: int = 0

    def add(self, strict: tuple[bool, bool], loose: tuple[bool, bool]) -> None:
        """Count one pair of verdicts, published and repaired, in each mode."""
        self.n += 1
        self.strict_lost += strict == (True, False)
        self.strict_gained += strict == (False, True)
        self.loose_lost += loose == (True, False)
        self.loose_gained += loose == (False, True)

    @property
    def total(self) -> int:
        """Number of changed verdicts."""
        return self.strict_lost + self.strict_gained + self.loose_lost + self.loose_gained


def repair_changes(items: Iterable[Item], processes: int = 1) -> dict[str, Change]:
    """For each id with a repair that occurs: how many verdicts the repair changes.

    Parameters are those of `verify_many`.
    """
    changes: dict[str, Change] = {}
    items, again = tee(items)
    judged = _judge_many(items, (PUBLISHED, REPAIRED), processes)
    for (constraints, _), (published, repaired) in zip(again, judged, strict=True):
        _count_changes(changes, constraints, published, repaired)
    return changes


def _count_changes(
    changes: dict[str, Change],
    constraints: Sequence[Constraint],
    published: Verdicts,
    repaired: Verdicts,
) -> None:
    for i, constraint in enumerate(constraints):
        if REGISTRY[constraint.id].repaired is not None:
            changes.setdefault(constraint.id, Change()).add(
                (published.strict[i], repaired.strict[i]), (published.loose[i], repaired.loose[i])
            )


# --- response files ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Report:
    """Totals of a response file by semantics, and what the repairs change if both were asked."""

    summaries: dict[str, Summary]
    changes: dict[str, Change] | None


def verify_responses(
    responses: Responses,
    output: Path | None = None,
    semantics: Sequence[str] = (PUBLISHED,),
    processes: int = 1,
    without_reasoning: bool = False,
    progress: bool = False,
) -> Report:
    """Verify a response file and write the verdicts.

    Parameters
    ----------
    responses
        From `califkit.evaluation.responses.open_responses`.
    output
        JSONL file to write, one row an answer: ``key, line, prompt, instruction_id_list`` and, for
        each of the semantics, ``strict`` and ``loose`` lists and ``errors``; ``missing`` where
        there was no response. It appears whole, at the end, or not at all.
    semantics
        One or both of ``published`` and ``repaired``.
    processes, progress
        As in `verify_many`.
    without_reasoning
        Judge what `califkit.verifiers.strip_reasoning` leaves of each response.
    """
    summaries = {name: Summary() for name in semantics}
    changes: dict[str, Change] = {}
    answers, again = tee(responses)
    items = ((a.prompt.constraints, _text(a.response, without_reasoning)) for a in answers)
    judged = _judge_many(items, tuple(semantics), processes, progress, len(responses))
    temporary = None if output is None else output.with_name(f".{output.name}.{os.getpid()}.tmp")
    try:
        with open(temporary or os.devnull, "w", encoding="utf-8") as file:
            for answer, verdicts in zip(again, judged, strict=True):
                by_name = dict(zip(semantics, verdicts, strict=True))
                for name, outcome in by_name.items():
                    summaries[name].add(answer.prompt.constraints, outcome)
                if PUBLISHED in by_name and REPAIRED in by_name:
                    both = by_name[PUBLISHED], by_name[REPAIRED]
                    _count_changes(changes, answer.prompt.constraints, *both)
                if temporary is not None:
                    file.write(json.dumps(_verdict_row(answer, by_name)) + "\n")
        if temporary is not None:
            os.replace(temporary, output)
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
    return Report(summaries, changes if len(summaries) > 1 else None)


def _text(response: str | None, without_reasoning: bool) -> str | None:
    return strip_reasoning(response) if without_reasoning and response is not None else response


def _verdict_row(answer: Answer, verdicts: Mapping[str, Verdicts]) -> dict[str, Any]:
    prompt = answer.prompt
    row: dict[str, Any] = {
        "key": prompt.key,
        "line": answer.line,
        "prompt": prompt.prompt,
        "instruction_id_list": [constraint.id for constraint in prompt.constraints],
    }
    for name, outcome in verdicts.items():
        lists = {
            "strict": list(outcome.strict),
            "loose": list(outcome.loose),
            "errors": list(outcome.errors),
        }
        if len(verdicts) == 1:
            row |= {"semantics": name} | lists
        else:
            row[name] = lists
    return row | {"missing": answer.response is None}
