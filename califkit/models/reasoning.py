"""The answer of a response that may hold reasoning: which text and which of its tokens.

Verifier, judge and l look at the same part of a response (paper section 2.5; A1 and A7 of the
points it leaves open). The cut is that of `califkit.verifiers.strip_reasoning`, made in token ids.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from califkit.verifiers import strip_reasoning

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


START, END = "<think>", "</think>"


@dataclass(frozen=True)
class Answer:
    """The part of a response that is judged and scored.

    ``text`` has no special tokens; ``token_ids`` are those that were generated, with the
    end-of-turn token if it was. No answer: empty text and no ids.
    """

    text: str
    token_ids: list[int]


def final_answer(
    token_ids: Sequence[int], tokenizer: PreTrainedTokenizerBase, *, thinking: bool
) -> Answer:
    """The answer in the token ids of a response.

    - It begins after the last ``</think>``. Tokens that follow the marker and hold white space
      only are dropped. Where the marker ends inside a token, the token belongs to the answer if
      visible text follows in it (no character of the answer is lost), else to the marker.
    - Ids are kept as generated, with the end-of-turn token; a truncated answer is an answer.
    - With `thinking`, a response without the marker has no answer: the template may have opened
      the reasoning. Without, all of it is the answer, unless it opens reasoning and never ends it.
    - An answer without visible text is none.

    Parameters
    ----------
    token_ids
        The response as generated, without the prompt.
    tokenizer
        The policy's. The marker may be one token, special or not, or several.
    thinking
        Whether the response was drawn in thinking mode.
    """
    ids = list(token_ids)
    marker = tokenizer.encode(END, add_special_tokens=False)
    marked = len(marker) == 1 and marker[0] in ids
    if marked:
        ids = ids[len(ids) - ids[::-1].index(marker[0]) :]
    # A marker may also be spelled out in ordinary tokens.
    before, spelled, after = tokenizer.decode(ids).rpartition(END)
    text = strip_reasoning(tokenizer.decode(ids, skip_special_tokens=True))
    if not text or START in after or (thinking and not marked and not spelled):
        return Answer("", [])
    if spelled:
        ids = ids[_start_after_spelled(ids, tokenizer, before.count(END) + 1) :]
    if marked or spelled:
        while len(ids) > 1 and not tokenizer.decode(ids[:1]).strip():
            ids = ids[1:]
    return Answer(text, ids)


def _start_after_spelled(ids: list[int], tokenizer: PreTrainedTokenizerBase, n_markers: int) -> int:
    """Index of the first token with visible text after the last of the markers, or of the token
    after the marker. The number of markers in ``ids[:k]`` never falls with k: bisection."""
    end = bisect_left(
        range(len(ids)), n_markers, key=lambda k: tokenizer.decode(ids[:k]).count(END)
    )
    goes_on = tokenizer.decode(ids[:end]).rpartition(END)[2].strip()
    return end - 1 if goes_on else end


def answer_text(response: str, thinking: bool) -> str:
    """The answer in the text of a response, as `califkit.models.reasoning.final_answer` finds it in
    ids.

    What stands before the last ``</think>`` is dropped; a response without that marker has no
    answer if it was drawn in thinking mode or opens reasoning, else it is the answer as it stands.
    """
    if END in response:
        return strip_reasoning(response)
    return "" if thinking or START in response else response


def text_ids(answer: str, tokenizer: PreTrainedTokenizerBase, end: bool) -> list[int]:
    """Token ids of an answer of which only the text is there; with the end-of-turn token or not.

    They may differ from those that were generated: the same text can be cut into other tokens.
    """
    if not answer.strip():
        return []
    ids = tokenizer(answer, add_special_tokens=False)["input_ids"]
    return [*ids, tokenizer.eos_token_id] if end else ids
