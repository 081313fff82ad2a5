"""What comes out of judging: a value with the answer it was read from, or the reason for none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any, Literal

from califkit.judges.parsing import Unscored
from califkit.judges.prompts import Question

Status = Literal["ok", "refused", "truncated", "unparsable", "out_of_range", "failed"]


@dataclass(frozen=True)
class Usage:
    """Tokens as the endpoint counted them (reasoning is part of the output), and HTTP requests."""

    input_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    requests: int = 0

    def __add__(self, other: Usage) -> Usage:
        mine, others = astuple(self), astuple(other)
        return Usage(*(a + b for a, b in zip(mine, others, strict=True)))


@dataclass(frozen=True)
class Verdict:
    """What a judge said of one question.

    ``status`` is ``ok``, or why there is no value: ``refused`` (by the model or a filter),
    ``truncated`` (token limit, also with double room), ``unparsable``, ``out_of_range``, ``failed``
    (the endpoint, after all attempts). ``value`` is then None, or what could be read all the same.
    ``model`` and ``fingerprint`` are the names that the endpoint gives of what has answered.
    """

    status: Status
    value: Any = None
    reason: str = ""
    text: str = ""
    model: str = ""
    fingerprint: str | None = None
    prompt_version: str = ""
    usage: Usage = Usage()
    cached: bool = False


def unscored(verdicts: Sequence[Verdict]) -> Counter[str]:
    """How many verdicts have each status other than ``ok``."""
    return Counter(v.status for v in verdicts if v.status != "ok")


def read_answer(question: Question, answer: Verdict) -> Verdict:
    """The verdict with the value that its text holds. The text is data: it is read, never run."""
    answer = replace(answer, prompt_version=question.version)
    try:
        return replace(answer, value=question.read(answer.text))
    except Unscored as problem:
        return replace(answer, status=problem.status, value=problem.value, reason=str(problem))
