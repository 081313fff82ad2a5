"""One call to a judge over HTTP: attempts, waits, and what came of it.

Whatever an endpoint does, a call ends as a `Verdict`; what would go wrong with every call alike,
such as a wrong key or a field that the endpoint does not take, is a `JudgeError` instead.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import time
from dataclasses import replace
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import proxy_bypass

from pydantic import SecretStr

from califkit import CalifkitError
from califkit.judges.verdicts import Usage, Verdict
from califkit.runs.folders import open_run
from califkit.runs.judge_settings import JudgeSettings
from califkit.runs.settings import Execution
from califkit.runs.stages import JudgeStage
from califkit.runs.text import short

if TYPE_CHECKING:
    from collections.abc import Mapping

    from openai import APIStatusError


_SWITCHES = {
    "response_format": "structured: none",
    "json_schema": "structured: json_object or none",
    "temperature": "temperature: null",
    "max_completion_tokens": "max_tokens_field: max_tokens",
    "max_tokens": "max_tokens_field: max_completion_tokens",
}
"""Body field that an endpoint may refuse -> the setting that avoids it."""

_REFUSED_FIELD = re.compile(
    r"unsupported|not support|unrecogni[sz]ed|unexpected|unknown|not permitted|not allowed", re.I
)
_HOPELESS = {401: "the key is not accepted", 402: "no credit", 404: "no such address or model"}
_TEXT_PARTS = ("text", "output_text")
_PROXIES = ("ALL_PROXY", "HTTP_PROXY", "HTTPS_PROXY")
_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")
_SHORTEST_KEY = 8  # anything shorter is a placeholder, and could be part of an ordinary answer


class JudgeError(CalifkitError, RuntimeError):
    """A judge that cannot be used as it is set up, or a run that exceeds its limits."""


class _Trouble(Exception):
    """An attempt that may be repeated, at the earliest after ``wait`` seconds."""

    def __init__(self, reason: str, wait: float = 0.0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.wait = wait


class Endpoint:
    """An open client of one judge: ``async with Endpoint(settings) as endpoint``."""

    def __init__(self, settings: JudgeSettings) -> None:
        from openai import AsyncOpenAI

        self.settings = settings
        self._key = api_key(settings)
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._jitter = random.Random()
        try:
            self._client = AsyncOpenAI(
                base_url=settings.base_url,
                api_key=self._key.get_secret_value() or "none",  # local servers want some text
                max_retries=0,  # `_attempts` is the only retry layer, so they cannot multiply
                timeout=settings.timeout_s,
            )
        except Exception as error:  # whatever proxies and certificates of the environment cause
            found = _in_environment(*(_CERTIFICATES if isinstance(error, OSError) else _PROXIES))
            raise JudgeError(f"judge {settings.name}: cannot connect: {error}{found}") from error

    async def __aenter__(self) -> Endpoint:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    async def ask(self, body: Mapping[str, Any]) -> Verdict:
        """Send a request body, again if need be; a truncated answer once more with double room.

        The value of the verdict is still to be read: ``ok`` says that there is a whole answer.
        """
        limit = self.settings.max_tokens_field
        async with self._slots:
            reply = await self._attempts(body)
            if reply.status == "truncated":
                again = await self._attempts({**body, limit: 2 * body[limit]})
                reply = replace(again, usage=reply.usage + again.usage)
        return reply

    async def _attempts(self, body: Mapping[str, Any]) -> Verdict:
        settings = self.settings
        for attempt in range(settings.retries + 1):
            try:
                reply = await self._once(body)
                break
            except _Trouble as trouble:
                backoff = min(settings.backoff_s * 2**attempt, settings.max_wait_s)
                wait = max(trouble.wait, backoff * self._jitter.uniform(0.5, 1.0))
                reply = Verdict("failed", reason=f"{trouble.reason}, attempt {attempt + 1}")
                if trouble.wait > settings.max_wait_s:
                    reply = replace(reply, reason=f"asked to wait {wait:.0f} s: {reply.reason}")
                    break
                if attempt < settings.retries:
                    await asyncio.sleep(wait)
        return replace(
            reply,
            text=self._hide_key(reply.text),
            reason=self._hide_key(reply.reason),
            usage=replace(reply.usage, requests=attempt + 1),
        )

    async def _once(self, body: Mapping[str, Any]) -> Verdict:
        import openai

        try:
            # The client's own time-out is for each read, and a server may drip for ever.
            async with asyncio.timeout(self.settings.timeout_s):
                raw = await self._client.chat.completions.with_raw_response.create(**body)
        except (TimeoutError, openai.APITimeoutError) as error:
            raise _Trouble(f"no answer in {self.settings.timeout_s:g} s") from error
        except openai.APIConnectionError as error:
            url = self.settings.base_url
            reason = f"connection to {url} failed: {error.__cause__ or error!r}"
            raise _Trouble(reason + _in_environment(*_steering(url))) from error
        except openai.APIStatusError as error:
            reply, fatal = self._read_error(error)
        else:
            # The key is hidden before anything is shortened, or a part of it might be left.
            return _read_reply(self._hide_key(raw.http_response.text))
        if fatal:
            # Outside the handler, so that the traceback does not show what the endpoint sent.
            raise JudgeError(f"judge {self.settings.name}: {fatal}")
        return reply

    def _read_error(self, error: APIStatusError) -> tuple[Verdict, str]:
        """An HTTP error as a reply, and a message if every call would fail alike; `_Trouble` if the
        same request may succeed later."""
        status = error.status_code
        sent = error.body if isinstance(error.body, str) else json.dumps(error.body)
        body = self._hide_key(sent)
        shown = f"HTTP {status}: {body[:300]}"
        if status in _HOPELESS or error.code == "insufficient_quota":
            return Verdict("failed"), f"{_HOPELESS.get(status, 'no credit')} ({shown})"
        if status in (408, 409, 425, 429) or status >= 500:
            raise _Trouble(shown, _retry_after(error.response.headers))
        if error.code == "content_filter":
            return Verdict("refused", reason=shown), ""
        fatal = ""
        if status in (400, 422) and _REFUSED_FIELD.search(body):
            switches = _SWITCHES | {
                key: f"extra_body without {key}" for key in self.settings.extra_body
            }
            found = {name: re.search(rf"\b{re.escape(name)}\b", body) for name in switches}
            places = {name: match.start() for name, match in found.items() if match}
            if places:
                # "Use 'max_completion_tokens' instead": what is refused is named first.
                blamed = error.param if error.param in places else min(places, key=places.get)
                fatal = f"the endpoint does not take {blamed}; set {switches[blamed]} ({shown})"
        return Verdict("failed", reason=shown), fatal

    def _hide_key(self, text: str) -> str:
        key = self._key.get_secret_value()
        return text.replace(key, "[key]") if len(key) >= _SHORTEST_KEY else text


def check_judge(profile: str, stage: JudgeStage, execution: Execution) -> None:
    """Refuse a stage whose judge cannot be asked, before its responses are generated."""
    settings = execution.judge_like(stage.judge)
    # Where the responses are there the key may not be needed: all answers may be, too.
    if not all(open_run(profile, needed).is_complete for needed in stage.needs):
        api_key(settings)


def api_key(settings: JudgeSettings) -> SecretStr:
    """The key from the environment; empty for a judge that wants none."""
    name = settings.api_key_env
    if name is None:
        return SecretStr("")
    key = os.environ.get(name, "").strip()
    if not key:
        raise JudgeError(f"judge {settings.name}: environment variable {name} is not set")
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise JudgeError(
            f"judge {settings.name}: environment variable {name} holds characters that no key has"
        )
    return SecretStr(key)


def _steering(url: str) -> tuple[str, ...]:
    """Variables that may steer how an address is reached."""
    parts = urlsplit(url)
    proxies = () if proxy_bypass(parts.hostname) else (f"{parts.scheme.upper()}_PROXY", "ALL_PROXY")
    return proxies + (_CERTIFICATES if parts.scheme == "https" else ())


def _in_environment(*names: str) -> str:
    """Those of the variables that are set, as the end of a message; never their values."""
    found = [name for n in names for name in (n, n.lower()) if os.environ.get(name)]
    return f" (set in the environment: {', '.join(found)})" if found else ""


def _read_reply(content: str) -> Verdict:
    """A 200 as a reply; one that is no chat completion is trouble (proxies answer so)."""
    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise _Trouble(f"the endpoint's reply is not JSON: {short(content)}") from error
    data = _mapping(data)
    choices = data.get("choices")
    choice = _mapping(choices[0] if isinstance(choices, list) and choices else None)
    if not choice:
        raise _Trouble(f"no answer in the endpoint's reply: {short(data.get('error') or data)}")
    message = _mapping(choice.get("message"))
    reply = Verdict(
        "ok",
        text=_text(message.get("content")),
        model=str(data.get("model") or ""),
        fingerprint=data.get("system_fingerprint"),
        usage=_usage(_mapping(data.get("usage"))),
    )
    finish = choice.get("finish_reason")
    # Before any parsing: an answer that was cut off may still hold something that reads as one.
    if message.get("refusal") or finish in ("content_filter", "refusal"):
        return replace(reply, status="refused", reason=short(message.get("refusal") or finish))
    if finish == "length":
        return replace(reply, status="truncated", reason="token limit reached")
    return reply


def _text(content: Any) -> str:
    """The answer in a message: its text, or the texts of its parts, without those of reasoning."""
    if isinstance(content, list):
        parts = [_mapping(part) for part in content]
        content = "".join(_text(p.get("text")) for p in parts if p.get("type") in _TEXT_PARTS)
    return content if isinstance(content, str) else ""


def _usage(data: Mapping[str, Any]) -> Usage:
    details = _mapping(data.get("completion_tokens_details"))
    counts = [data.get("prompt_tokens"), data.get("completion_tokens")]
    counts.append(details.get("reasoning_tokens"))
    return Usage(*(count if isinstance(count, int) else 0 for count in counts))


def _retry_after(headers: Mapping[str, str]) -> float:
    """Seconds to wait as the endpoint asks for, as a number or a date; 0 if it does not."""
    value = headers.get("retry-after", "")
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time.time()
        except ValueError:
            seconds = 0.0
    return max(0.0, seconds)


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
