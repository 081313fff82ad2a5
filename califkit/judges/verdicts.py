"""What comes out of judging: a value with the answer it was read from, or the reason for none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from califkit.judges.client import Usage
from califkit.judges.parsing import Unscored
from califkit.judges.prompts import Question

Status = Literal["ok", "refused", "truncated", "unparsable", "out_of_range", "failed"]


@dataclass(frozen=True)
class Verdict:
    """What a judge said of one question.

    Attributes
    ----------
    status
        ``ok``, or why there is no value: ``refused`` (by the model or a filter), ``truncated``
        (token limit, also with double room), ``unparsable``, ``out_of_range``, ``failed`` (the
        endpoint, after all attempts).
    value
        The verdict if ``ok``, else None, or what could be read all the same.
    reason
        More about why it is unscored.
    text
        The judge's answer as it came.
    model
        The name of the model that the endpoint says has answered.
    prompt_version
        Hash of the prompt's wording and schema.
    usage
        What the answer took, from the cache too.
    cached
        Whether it was there before.
    """

    status: Status
    value: Any = None
    reason: str = ""
    text: str = ""
    model: str = ""
    prompt_version: str = ""
    usage: Usage = Usage()
    cached: bool = False


def unscored(verdicts: Sequence[Verdict]) -> Counter[str]:
    """How many verdicts have each status other than ``ok``."""
    return Counter(v.status for v in verdicts if v.status != "ok")


def read_answer(question: Question, text: str) -> Verdict:
    """The verdict in a judge's answer. The text is data: it is read, never run."""
    verdict = Verdict("ok", text=text, prompt_version=question.version)
    try:
        return replace(verdict, value=question.read(text))
    except Unscored as problem:
        return replace(verdict, status=problem.status, value=problem.value, reason=str(problem))
