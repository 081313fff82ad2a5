"""Settings of one judge: an OpenAI-compatible endpoint, described by data."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from califkit.runs.types import Count, Frozen, Positive

_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
_HIDDEN = "(not shown)"
_OURS = {
    *("model", "messages", "response_format", "temperature", "max_tokens"),
    *("max_completion_tokens", "stream", "n"),
}
"""Body fields that the client or another setting fills in."""


QualityPrompt = Literal["paper", "strict"]
"""Wording in which a judge is asked for response quality (`califkit.judges.prompts`)."""


class JudgeModel(Frozen):
    """What can change a judge's answers: it enters cache keys and the hashes of stages.

    ``prompt`` is the wording in which response quality is asked for, in tables and in rewards.
    ``structured`` is what the endpoint takes as ``response_format`` (JSON is asked for in the
    prompt in any case). ``max_tokens`` has to cover hidden reasoning as well as the answer.
    ``temperature`` null sends none, for models that refuse it. ``extra_body`` holds further body
    fields, for instance ``{chat_template_kwargs: {enable_thinking: false}}``.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
    model: Annotated[str, Field(min_length=1)]
    prompt: QualityPrompt = "paper"
    structured: Literal["json_schema", "json_object", "none"] = "json_schema"
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    max_tokens: Count = 4096
    temperature: Annotated[float, Field(ge=0)] | None = 0.0
    extra_body: dict[str, Any] = {}

    def __hash__(self) -> int:
        return hash(self.model_dump_json())  # `extra_body` has no hash of its own

    @field_validator("extra_body")
    @classmethod
    def _not_ours(cls, value: dict[str, Any]) -> dict[str, Any]:
        if taken := sorted(_OURS & set(value)):
            raise ValueError(f"{', '.join(taken)}: not to be set here")
        return value


class JudgeSettings(JudgeModel):
    """A judge and how it is reached; nothing below changes what it answers.

    ``api_key_env`` names the environment variable that holds the key; null for a server that wants
    none. ``timeout_s`` is for one attempt, ``retries`` counts those after the first, ``backoff_s``
    is the first wait between them, which then doubles up to ``max_wait_s``; an endpoint that asks
    for a longer one is given up for this time. Prices are of a million tokens, in any currency;
    hidden reasoning counts as output. ``answer_tokens`` is the length of an answer that the
    estimate before a run assumes. A run of more than ``max_calls`` missing calls, or of a higher
    estimated cost than ``max_cost``, is refused before it starts.
    """

    base_url: str
    api_key_env: str | None = None
    concurrency: Count = 8
    timeout_s: Positive = 120.0
    retries: Annotated[int, Field(ge=0)] = 5
    backoff_s: Positive = 1.0
    max_wait_s: Positive = 120.0
    price_input: Annotated[float, Field(ge=0)] | None = None
    price_output: Annotated[float, Field(ge=0)] | None = None
    answer_tokens: Count = 200
    max_calls: Annotated[int, Field(ge=0)] | None = None
    max_cost: Annotated[float, Field(ge=0)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _hide(cls, data: Any) -> Any:
        """Replace what will be refused: an error quotes the value, which may be or hold a key."""
        if not isinstance(data, dict):
            return data
        checks = {"api_key_env": _is_variable, "base_url": _is_plain_url}
        return {
            key: value if key in cls.model_fields and checks.get(key, _anything)(value) else _HIDDEN
            for key, value in data.items()
        }

    @field_validator("api_key_env")
    @classmethod
    def _a_variable(cls, value: str | None) -> str | None:
        if value == _HIDDEN:
            raise ValueError(
                "needs the name of an environment variable (capitals, digits and _) that holds "
                "the key, not the key itself"
            )
        return value

    @field_validator("base_url")
    @classmethod
    def _a_url(cls, value: str) -> str:
        if value == _HIDDEN:
            raise ValueError(
                "needs an address such as http://localhost:8000/v1, without user, password or query"
            )
        return value

    @model_validator(mode="after")
    def _a_cost_needs_prices(self) -> JudgeSettings:
        if self.max_cost is not None and None in (self.price_input, self.price_output):
            raise ValueError("max_cost needs price_input and price_output")
        return self

    def identity(self) -> JudgeModel:
        return JudgeModel(**self.model_dump(include=set(JudgeModel.model_fields)))


def _anything(_: Any) -> bool:
    return True


def _is_variable(value: Any) -> bool:
    return value is None or (isinstance(value, str) and _VARIABLE.fullmatch(value) is not None)


def _is_plain_url(value: Any) -> bool:
    try:
        url = urlsplit(value)
        has_host = url.scheme in ("http", "https") and bool(url.hostname)
    except (TypeError, ValueError, AttributeError):
        return False
    return has_host and "@" not in url.netloc and not url.query and not url.fragment
