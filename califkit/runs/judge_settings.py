"""Settings of one judge: an OpenAI-compatible endpoint, described by data.

The capability switches (``structured``, ``max_tokens_field``, ``temperature``, ``extra_body``) are
what endpoints differ in. A judge that refuses one of them stops the run with a message that names
the switch.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from califkit.runs.types import Count, Frozen, Positive

_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
_HIDDEN = "(not shown)"
_OURS = {
    "model",
    "messages",
    "response_format",
    "temperature",
    "max_tokens",
    "max_completion_tokens",
    "stream",
    "n",
}
"""Body fields that the client or another setting fills in."""


class JudgeModel(Frozen):
    """What can change a judge's answers. It enters cache keys; let it enter a stage's hash.

    ``name`` tells judges apart, in tables too. ``structured`` is what the endpoint takes as
    ``response_format`` (JSON is asked for in the prompt in any case). ``max_tokens`` has to cover
    hidden reasoning as well as the answer. ``temperature`` null sends none, for models that refuse
    it. ``extra_body`` holds further body fields, for instance
    ``{chat_template_kwargs: {enable_thinking: false}}``.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
    model: Annotated[str, Field(min_length=1)]
    structured: Literal["json_schema", "json_object", "none"] = "json_schema"
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    max_tokens: Count = 4096
    temperature: Annotated[float, Field(ge=0)] | None = 0.0
    extra_body: dict[str, Any] = {}

    @field_validator("extra_body")
    @classmethod
    def _not_ours(cls, value: dict[str, Any]) -> dict[str, Any]:
        if taken := sorted(_OURS & set(value)):
            raise ValueError(f"{', '.join(taken)}: not to be set here")
        return value


class JudgeSettings(JudgeModel):
    """A judge and how it is reached; nothing below changes what it answers.

    Attributes
    ----------
    base_url
        Where ``/chat/completions`` is, for instance ``http://localhost:8000/v1``.
    api_key_env
        Name of the environment variable that holds the key, never the key; null for a server that
        wants none.
    concurrency
        Calls under way at a time.
    timeout_s, retries, backoff_s, max_wait_s
        Seconds for one attempt; attempts after the first; first wait between attempts, which then
        doubles; longest wait. An endpoint that asks for a longer one is given up for this time.
    price_input, price_output
        Price of a million tokens, in any currency; hidden reasoning counts as output.
    answer_tokens
        Assumed length of an answer, for the estimate before a run only.
    max_calls, max_cost
        A run of more missing calls, or of a higher estimated cost, is refused before it starts.
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
        fits = dict.fromkeys(cls.model_fields, _anything)
        fits |= {"api_key_env": _is_variable, "base_url": _is_plain_url}
        return {k: v if fits.get(k, _nothing)(v) else _HIDDEN for k, v in data.items()}

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
        """The part that can change an answer."""
        return JudgeModel(**self.model_dump(include=set(JudgeModel.model_fields)))


def _anything(_: Any) -> bool:
    return True


def _nothing(_: Any) -> bool:
    return False


def _is_variable(value: Any) -> bool:
    return value is None or (isinstance(value, str) and _VARIABLE.fullmatch(value) is not None)


def _is_plain_url(value: Any) -> bool:
    try:
        url = urlsplit(value)
        has_host = url.scheme in ("http", "https") and bool(url.hostname)
    except (TypeError, ValueError, AttributeError):
        return False
    return has_host and "@" not in url.netloc and not url.query and not url.fragment
