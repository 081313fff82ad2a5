"""A judge with its cache: questions in, verdicts out, asked over the endpoint only where missing.

>>> judge = Judge(settings, "runs/judge.jsonl")  # doctest: +SKIP
>>> verdicts = judge.quality([("Name a prime.", "Seven is a prime.")])  # doctest: +SKIP
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from califkit.judges.cache import Cache
from califkit.judges.client import Endpoint, JudgeError
from califkit.judges.prompts import Question, quality_question
from califkit.judges.verdicts import Usage, Verdict, read_answer, unscored
from califkit.runs.judge_settings import JudgeSettings
from califkit.runs.text import say
from califkit.runs.units import progress

_KEPT = ("model", "fingerprint", "prompt_version", "text", "usage")
"""Fields of a verdict that are written down, and found again."""

_BYTES_PER_TOKEN = 4  # of UTF-8; a rough mean over languages, for estimates only


@dataclass(frozen=True)
class Estimate:
    """What a run would take: calls that are not in the cache, about how many tokens, the price.

    ``cost`` is None without prices. Repeated attempts are not foreseen.
    """

    calls: int
    cached: int
    input_tokens: int
    output_tokens: int
    cost: float | None

    def __add__(self, other: Estimate) -> Estimate:
        """Both together; no cost unless both have one (in one currency)."""
        costs = (self.cost, other.cost)
        return Estimate(
            self.calls + other.calls,
            self.cached + other.cached,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            None if None in costs else sum(costs),
        )

    def __str__(self) -> str:
        price = "price not known" if self.cost is None else f"about {self.cost:.2f} in all"
        return (
            f"{self.calls} calls ({self.cached} more are in the cache), about "
            f"{self.input_tokens:,} input and {self.output_tokens:,} output tokens, {price}"
        )


@dataclass(frozen=True)
class _Plan:
    """The key of every question, the verdicts that are there, the questions that are not."""

    keys: list[str]
    verdicts: dict[str, Verdict]
    missing: dict[str, Question]
    estimate: Estimate


class Judge:
    """One judge with its cache.

    An answer without a usable verdict is *unscored*: it has a status and a reason, never a number,
    and it is not kept, so that the same run started again repeats exactly what is missing. Every
    method keeps the order of its items, one verdict each.

    Several judges and processes may share the JSONL file at ``cache_path``; None keeps the answers
    in memory only. ``show_progress`` prints the estimate too, and what stayed unscored.
    """

    role = "judge"
    """What it is called in messages."""

    def __init__(
        self,
        settings: JudgeSettings,
        cache_path: str | Path | None = None,
        show_progress: bool = True,
    ) -> None:
        self.settings = settings
        self.show_progress = show_progress
        self._cache = Cache(None if cache_path is None else Path(cache_path))

    def quality(self, items: Sequence[tuple[str, str]]) -> list[Verdict]:
        """Response Quality of every (x, y): an integer from 1 to 10 (paper, section 1)."""
        prompt = self.settings.prompt
        return self.judge_all([quality_question(x, y, prompt) for x, y in items])

    def judge_all(self, questions: Sequence[Question]) -> list[Verdict]:
        """`judge_all_async` for callers that do not await, inside a running event loop or not."""
        return _run(self.judge_all_async(questions))

    async def judge_all_async(self, questions: Sequence[Question]) -> list[Verdict]:
        """A verdict for every question, from the cache or the endpoint.

        Equal questions are asked once. Each answer is written down as it arrives, if it is ``ok``.
        `JudgeError` before any call if there are more than ``max_calls`` or ``max_cost`` allows, or
        the key is missing; later if the endpoint would refuse every call alike.
        """
        plan = self._plan(questions)
        verdicts = plan.verdicts
        if plan.missing:
            self._check_limits(plan.estimate)
            verdicts = verdicts | await self._ask_all(plan.missing, plan.estimate)
        result = [verdicts[key] for key in plan.keys]
        if self.show_progress and (counts := unscored(result)):
            listed = ", ".join(f"{n} {status}" for status, n in counts.most_common())
            say(f"{self._label}: unscored of {len(result)}: {listed}")
        return result

    def estimate(self, questions: Sequence[Question]) -> Estimate:
        """What `judge_all` would take for these questions."""
        return self._plan(questions).estimate

    def check_some_are_scored(self, verdicts: Sequence[Verdict]) -> None:
        """JudgeError if no answer is usable, which says nothing of the responses."""
        if verdicts and not any(verdict.status == "ok" for verdict in verdicts):
            first = verdicts[0]
            raise JudgeError(
                f"{self._label}: none of {len(verdicts)} questions was answered; the first is "
                f"{first.status} ({first.reason})"
            )

    @property
    def _label(self) -> str:
        return f"{self.role} {self.settings.name}"

    def _plan(self, questions: Sequence[Question]) -> _Plan:
        self._cache.refresh()
        keys = [self._key(question) for question in questions]
        distinct = dict(zip(keys, questions, strict=True))
        verdicts = {}
        for key, question in distinct.items():
            row = self._cache.rows.get(key)
            # An answer that today's reader does not accept is asked for again.
            if row and (verdict := read_answer(question, _kept(row))).status == "ok":
                verdicts[key] = verdict
        missing = {key: q for key, q in distinct.items() if key not in verdicts}
        return _Plan(keys, verdicts, missing, self._estimate(missing, len(verdicts)))

    def _estimate(self, missing: Mapping[str, Question], cached: int) -> Estimate:
        settings = self.settings
        size = sum(len(m["content"].encode()) for q in missing.values() for m in _messages(q))
        n_input, n_output = size // _BYTES_PER_TOKEN, len(missing) * settings.answer_tokens
        cost = None
        if settings.price_input is not None and settings.price_output is not None:
            cost = (n_input * settings.price_input + n_output * settings.price_output) / 1e6
        return Estimate(len(missing), cached, n_input, n_output, cost)

    def _check_limits(self, estimate: Estimate) -> None:
        for name, value in (("max_calls", estimate.calls), ("max_cost", estimate.cost)):
            limit = getattr(self.settings, name)
            if limit is not None and value is not None and value > limit:
                raise JudgeError(f"{self._label}: {estimate}; {name} is {limit}, nothing was sent")

    async def _ask_all(
        self, missing: Mapping[str, Question], estimate: Estimate
    ) -> dict[str, Verdict]:
        verdicts = {}
        if self.show_progress:
            say(f"{self._label}: {estimate}")
            ticks = progress(range(len(missing)), self._label, len(missing))
        else:
            ticks = iter(())
        next(ticks, None)  # opens the bar; each further one says that a call has ended

        async def ask(key: str, question: Question) -> None:
            verdicts[key] = self._settle(key, question, await endpoint.ask(self._body(question)))
            next(ticks, None)

        try:
            async with Endpoint(self.settings) as endpoint, asyncio.TaskGroup() as group:
                for key, question in missing.items():
                    group.create_task(ask(key, question))
        except ExceptionGroup as errors:  # the first one has stopped the others
            error = errors.exceptions[0]
        else:
            return verdicts
        raise error

    def _settle(self, key: str, question: Question, answer: Verdict) -> Verdict:
        """The verdict in a fresh answer, written down if there is one."""
        if answer.status != "ok":
            return replace(answer, prompt_version=question.version)
        verdict = read_answer(question, answer)
        if verdict.status == "ok":
            row = {
                "key": key,
                "judge": self.settings.name,
                "requested_model": self.settings.model,
                "date": datetime.now(UTC).isoformat(timespec="seconds"),
            }
            fields = asdict(replace(verdict, value=None))
            self._cache.add(row | {name: fields[name] for name in _KEPT})
        return verdict

    def _key(self, question: Question) -> str:
        content = [self.settings.name, question.version, question.schema, self._body(question)]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def _body(self, question: Question) -> dict[str, Any]:
        settings = self.settings
        body = {
            "model": settings.model,
            "messages": _messages(question),
            settings.max_tokens_field: settings.max_tokens,
        }
        if settings.temperature is not None:
            body["temperature"] = settings.temperature
        if settings.structured == "json_schema":
            # Not "strict", which would want keywords in the schema that other endpoints refuse.
            schema = {"name": "verdict", "schema": question.schema}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        elif settings.structured == "json_object":
            body["response_format"] = {"type": "json_object"}
        if settings.extra_body:
            body["extra_body"] = settings.extra_body
        return body


def _kept(row: Mapping[str, Any]) -> Verdict:
    """The answer in a row of the cache."""
    fields = {name: row[name] for name in _KEPT}
    return Verdict("ok", cached=True, **fields | {"usage": Usage(**row["usage"])})


def _messages(question: Question) -> list[dict[str, str]]:
    """The messages as they are sent: what is no valid Unicode becomes a question mark."""
    return [
        {**message, "content": message["content"].encode("utf-8", "replace").decode()}
        for message in question.messages
    ]


def _run(coroutine: Coroutine[Any, Any, list[Verdict]]) -> list[Verdict]:
    """Run to the end in a thread of its own: in a notebook this one has a running event loop."""
    loop = asyncio.new_event_loop()
    task = loop.create_task(coroutine)
    try:
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(loop.run_until_complete, task)
            try:
                return future.result()
            except BaseException:  # an interrupt ends the calls too
                loop.call_soon_threadsafe(task.cancel)
                raise
    finally:
        loop.close()
