"""The answer of a response: which text, and which of its tokens. Reasoning is cut here alone.

Verifier, judge and l look at the same part of a response (paper section 2.5; A1 and A7 of the
points it leaves open). It begins behind the reasoning and ends where the turn does:

- In thinking mode the answer begins after the last ``</think>``; a response without it has no
  answer, because the template may have opened the reasoning.
- Otherwise all of the response is the answer, unless it sets out with ``<think>`` of its own: then
  the answer begins after the last ``</think>``, and there is none if that is absent. A ``</think>``
  that nothing opened hides nothing.
- Reasoning that is opened again after the last ``</think>`` leaves no answer.
- A marker inside backticks is text, and so is one in a fenced block behind the first ``</think>``.
- Of a response in channels (``<|channel|>...<|message|>``) the answer is the last final channel.
- What follows the first end-of-turn token is not read; control tokens at the end are no text.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from califkit.models.chat import render

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


START, END = "<think>", "</think>"

_IN_BACKTICKS = re.compile(r"`[^`\n]+`")
_FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_IN_CHANNELS = re.compile(r"\s*(?:<\|start\|>\w*)?<\|channel\|>")
_FINAL_CHANNEL = re.compile(r"<\|channel\|>final\b[^\n]{0,80}?<\|message\|>")
_CONTROL_AT_END = re.compile(
    r"(?:<\|[\w-]{1,40}\|>|<\uff5c[^\n<>]{1,40}\uff5c>|</s>|<eos>|<pad>|<end_of_turn>)\Z"
)
_LONGEST_CONTROL_TOKEN = 44
_PUBLISHED_MARKS = re.compile(r"<\|assistant\|>|</?answer>")


@dataclass(frozen=True)
class Answer:
    """The part of a response that is judged and scored.

    ``text`` has no control tokens; ``token_ids`` are those that l is the mean over, with the
    end-of-turn token if it is there, as ``ends`` says. No answer: empty text and no ids.
    """

    text: str
    token_ids: list[int]
    ends: bool = False

    @property
    def content_ids(self) -> list[int]:
        """Without the end-of-turn token, which counts in l but not in a text (A19)."""
        return self.token_ids[:-1] if self.ends else self.token_ids


def answer_text(response: str, thinking: bool = False) -> str:
    """The answer in the text of a response; as it stands, white space included, if it is all of it.

    >>> answer_text("<think>a, b</think> It is `</think>`.<|im_end|>")
    'It is `</think>`.'
    >>> answer_text("a, b </think> ok"), answer_text("a, b </think> ok", thinking=True)
    ('a, b </think> ok', 'ok')
    """
    cut = _cut(response, thinking)
    if cut is None:
        return ""
    start, _ = cut
    return _without_control_tokens(response[start:].strip() if start else response)


def graded_text(response: str, thinking: bool = False) -> str:
    """The answer as the reward grades it: without ``<answer>`` tags and white space around it
    (open-instruct does the same)."""
    return _graded(answer_text(response, thinking))


def in_words(thinking: bool) -> str:
    """What `answer_text` takes for the answer, as one line for who reads its numbers."""
    where = (
        f"what follows the last {END} of a response (none without it)"
        if thinking
        else f"all of a response, but for reasoning that it sets out with ({START} ... {END})"
    )
    return f"answers: {where}; without control tokens at the end"


@dataclass
class Cuts:
    """How many of some responses were cut where a reader may not expect it, or were not.

    ``control`` end in control tokens, as in ``"Tea.<|im_end|>"``; ``opened`` set out with a
    ``<think>`` of their own and are cut in either mode; ``unopened`` have a ``</think>`` that only
    thinking mode takes for the end of reasoning.
    """

    control: int = 0
    opened: int = 0
    unopened: int = 0

    def add(self, response: str) -> None:
        self.control += _without_control_tokens(response) != response
        self.opened += _opens_reasoning(response)
        self.unopened += _cut(response, False) == (0, "") and END in _unquoted(response)

    def in_words(self, responses: str, thinking: bool) -> Iterator[str]:
        if self.control:
            yield f"{responses} that end in control tokens, which are left out: {self.control}"
        if self.opened and not thinking:
            yield f"{responses} that set out with {START}, reasoning left out: {self.opened}"
        if self.unopened and not thinking:
            yield (
                f"{responses} with a {END} that nothing opens, taken whole: {self.unopened}; "
                "where the chat template opens the reasoning, give --thinking"
            )


def final_answer(
    token_ids: Sequence[int],
    tokenizer: PreTrainedTokenizerBase,
    *,
    thinking: bool,
    stop: Collection[int] = (),
) -> Answer:
    """The answer in the token ids of a response, which are kept as generated.

    Tokens that follow the reasoning and hold white space only are dropped. Where the marker ends
    inside a token, the token belongs to the answer if visible text follows in it (no character of
    the answer is lost), else to the marker. A truncated answer is an answer; one without visible
    text is none.

    What follows the first token of ``stop`` is not read. The marker may be one token of the
    policy's tokenizer, special or not, or several.
    """
    ids = list(token_ids)
    end = next((i for i, token in enumerate(ids) if token in stop), None)
    ids = ids if end is None else ids[: end + 1]
    whole = tokenizer.decode(ids)
    cut = _cut(whole, thinking)
    if cut is None:
        return Answer("", [])
    start, marker = cut
    if not start:
        text = tokenizer.decode(ids, skip_special_tokens=True)
    else:
        first, begun = _first_token(ids, tokenizer, marker, whole[:start].count(marker))
        text = begun + tokenizer.decode(ids[first + bool(begun) :], skip_special_tokens=True)
        ids = ids[first:]
        while len(ids) > 1 and not tokenizer.decode(ids[:1]).strip():
            ids = ids[1:]
    return _answer(text, ids, end is not None)


def text_answer(
    response: str, tokenizer: PreTrainedTokenizerBase, *, thinking: bool = False, end: bool = True
) -> Answer:
    """The answer of a response of which only the text is there.

    Its token ids may differ from those that were generated: the same text can be cut into other
    tokens. With `end` it gets the token that ends a turn (`turn_end_id`).
    """
    answer = answer_text(response, thinking)
    ids = tokenizer(answer, add_special_tokens=False)["input_ids"]
    return _answer(answer, [*ids, turn_end_id(tokenizer)] if end else ids, end)


def turn_end_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """The token that ends a turn: what the chat template writes behind an answer.

    It need not be the tokenizer's end-of-sequence token (Gemma, base checkpoints), which is taken
    where the template writes no special token.
    """
    turns = [{"role": "user", "content": "Tea?"}, {"role": "assistant", "content": "Green."}]
    rendered = render(tokenizer, turns)
    _, found, behind = rendered.rpartition("Green.")
    ids = tokenizer(behind, add_special_tokens=False)["input_ids"] if found else []
    added = tokenizer.added_tokens_decoder
    special = (i for i in ids if i in added and added[i].special)
    return next(special, tokenizer.eos_token_id)


def _cut(response: str, thinking: bool) -> tuple[int, str] | None:
    """Where the answer begins, and the marker before it; None if there is no answer."""
    if _IN_CHANNELS.match(response):
        final = list(_FINAL_CHANNEL.finditer(response))
        return (final[-1].end(), final[-1].group()) if final else None
    if not (thinking or _opens_reasoning(response)):
        return 0, ""
    unquoted = _unquoted(response)
    start = unquoted.rfind(END) + len(END)
    if start < len(END) or START in unquoted[start:]:
        return None
    return start, END


def _opens_reasoning(response: str) -> bool:
    return response.lstrip().removeprefix("<|assistant|>").lstrip().startswith(START)


def _unquoted(response: str) -> str:
    """A text of the same length without what it quotes.

    Fenced blocks are looked for behind the first ``</think>`` only: reasoning may leave one open.
    """
    text = _IN_BACKTICKS.sub(_blank, response)
    before, end, behind = text.partition(END)
    return before + end + _FENCED.sub(_blank, behind)


def _blank(quoted: re.Match[str]) -> str:
    return " " * len(quoted.group())


def _first_token(
    ids: list[int], tokenizer: PreTrainedTokenizerBase, marker: str, n_markers: int
) -> tuple[int, str]:
    """Index of the first token of an answer behind the last of the markers, and the visible text
    that stands in it behind the marker's end, if any.

    The number of markers in ``ids[:k]`` never falls with k: bisection.
    """
    end = bisect_left(
        range(len(ids)), n_markers, key=lambda k: tokenizer.decode(ids[:k]).count(marker)
    )
    begun = tokenizer.decode(ids[:end]).rpartition(marker)[2]
    return (end - 1, begun) if begun.strip() else (end, "")


def _answer(text: str, ids: list[int], ends: bool) -> Answer:
    text = _graded(text)
    return Answer(text, ids, ends) if text else Answer("", [])


def _graded(text: str) -> str:
    return _without_control_tokens(_PUBLISHED_MARKS.sub("", text)).strip()


def _without_control_tokens(text: str) -> str:
    """A text up to the control tokens at its end; without them unchanged, white space included."""
    bare = text.rstrip()
    found = False
    while token := _CONTROL_AT_END.search(bare, max(len(bare) - _LONGEST_CONTROL_TOKEN, 0)):
        bare, found = bare[: token.start()].rstrip(), True
    return bare if found else text
