"""What is the answer of a response, in text and in tokens."""

import copy

import pytest
import torch

from califkit.models.likelihood import ReferenceScorer
from califkit.models.reasoning import Answer, final_answer
from califkit.verifiers import strip_reasoning

NO_ANSWER = Answer("", [])

# A switch for thinking, as in Qwen3: switched off, the template writes an empty think block.
SWITCH = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
    "{% if enable_thinking is defined and not enable_thinking %}"
    "{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}{% endif %}"
)
# No switch: reasoning is always opened.
FORCED = SWITCH.partition("{% if enable_thinking")[0] + "{{ '<think>\\n' }}{% endif %}"
TULU = (
    "{% for m in messages %}{{ '<|' + m.role + '|>\\n' + m.content + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
)
NON_THINKING = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


def with_markers(tiny, special: bool, template: str = SWITCH):
    """The tokenizer with markers of one token each. It may have more ids than the tiny model."""
    from transformers import AddedToken

    tokenizer = copy.deepcopy(tiny.tokenizer)
    tokenizer.add_tokens(
        [AddedToken(m, special=special, normalized=False) for m in ("<think>", "</think>")],
        special_tokens=special,
    )
    tokenizer.chat_template = template
    assert len(tokenizer.encode("</think>")) == 1
    return tokenizer


@pytest.fixture(scope="module")
def tokenizers(tiny) -> dict:
    tulu = copy.deepcopy(tiny.tokenizer)
    tulu.chat_template = TULU
    assert len(tiny.tokenizer.encode("</think>")) == 3
    return {
        "one token": with_markers(tiny, special=False),
        "special token": with_markers(tiny, special=True),
        "several tokens": copy.deepcopy(tiny.tokenizer),
        "Tulu": tulu,
    }


@pytest.fixture(params=["one token", "special token", "several tokens", "Tulu"])
def tokenizer(request, tokenizers):
    return tokenizers[request.param]


def encode(tokenizer, *pieces: str) -> list[int]:
    """Ids of the pieces, each encoded for itself."""
    return [i for piece in pieces for i in tokenizer.encode(piece, add_special_tokens=False)]


# --- one test a rule ---------------------------------------------------------------------------
@pytest.mark.parametrize("opened", ["", "<think>", "<think>\n"], ids=["prefilled", "bare", "line"])
def test_the_answer_of_a_thinking_model_begins_after_the_end_marker(tokenizer, opened):
    answer = encode(tokenizer, "Green tea.")
    ids = encode(tokenizer, opened, "A, b.\n", "</think>") + answer
    assert final_answer(ids, tokenizer, thinking=True) == Answer("Green tea.", answer)


@pytest.mark.parametrize("space", ["\n\n", "\n", " \n\t ", "\n\n\n\n"])
def test_white_space_after_the_marker_is_dropped(tokenizer, space):
    answer = encode(tokenizer, "Tea.\n\nAnd", " rain. ")
    ids = encode(tokenizer, "hm", "</think>", space) + answer
    assert final_answer(ids, tokenizer, thinking=True) == Answer("Tea.\n\nAnd rain.", answer)


def test_white_space_inside_the_first_visible_token_stays_in_its_id(tokenizer):
    first = encode(tokenizer, " tea")
    assert len(first) == 1
    ids = encode(tokenizer, "hm", "</think>", "\n") + first
    assert final_answer(ids, tokenizer, thinking=True) == Answer("tea", first)


def test_the_end_of_turn_token_counts_and_is_not_text(tokenizer):
    answer = [*encode(tokenizer, "Tea."), tokenizer.eos_token_id]
    ids = encode(tokenizer, "hm", "</think>", "\n\n") + answer
    assert final_answer(ids, tokenizer, thinking=True) == Answer("Tea.", answer)
    assert final_answer(answer, tokenizer, thinking=False) == Answer("Tea.", answer)


def test_reasoning_that_was_cut_off_has_no_answer(tokenizer):
    for opened in ("", "<think>\n"):
        ids = encode(tokenizer, opened, "First I think of tea, then")
        assert final_answer(ids, tokenizer, thinking=True) == NO_ANSWER


def test_without_the_end_marker_a_thinking_response_has_no_answer(tokenizer):
    """The template may have opened the reasoning, so even a finished text is not an answer."""
    ids = [*encode(tokenizer, "Tea."), tokenizer.eos_token_id]
    assert final_answer(ids, tokenizer, thinking=True) == NO_ANSWER
    assert final_answer([], tokenizer, thinking=True) == NO_ANSWER


@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize("after", ["", "\n\n", " \n", "<answer></answer>", "\n<answer> "])
def test_an_answer_without_visible_text_is_none(tokenizer, after, thinking):
    ids = encode(tokenizer, "<think>", "hm", "</think>", after)
    assert final_answer(ids, tokenizer, thinking=thinking) == NO_ANSWER
    ids.append(tokenizer.eos_token_id)
    assert final_answer(ids, tokenizer, thinking=thinking) == NO_ANSWER
    alone = [*encode(tokenizer, after), tokenizer.eos_token_id]
    assert final_answer(alone, tokenizer, thinking=False) == NO_ANSWER


@pytest.mark.parametrize("thinking", [True, False])
def test_the_last_of_two_end_markers_counts(tokenizer, thinking):
    answer = encode(tokenizer, "Rain.")
    ids = encode(tokenizer, "a", "</think>", "Tea.", "</think>", "\n") + answer
    assert final_answer(ids, tokenizer, thinking=thinking) == Answer("Rain.", answer)
    ids = encode(tokenizer, "<think>", "a", "</think>", "b", "<think>", "c", "</think>") + answer
    assert final_answer(ids, tokenizer, thinking=thinking) == Answer("Rain.", answer)


def test_an_end_marker_in_a_non_thinking_response_cuts_too(tokenizer):
    answer = [*encode(tokenizer, "Rain."), tokenizer.eos_token_id]
    ids = encode(tokenizer, "Tea.\n", "</think>", "\n\n") + answer
    assert final_answer(ids, tokenizer, thinking=False) == Answer("Rain.", answer)


def test_without_any_marker_a_non_thinking_response_is_the_answer(tokenizer):
    for text in ("Tea.", "\n\nTea. ", "A < b, think> and </thin k>"):
        ids = encode(tokenizer, text)
        assert final_answer(ids, tokenizer, thinking=False) == Answer(text.strip(), ids)


@pytest.mark.parametrize("thinking", [True, False])
def test_reasoning_that_is_opened_and_never_closed_is_no_answer(tokenizer, thinking):
    ids = encode(tokenizer, "<think>", "\nTea.")
    assert final_answer(ids, tokenizer, thinking=thinking) == NO_ANSWER
    ids = encode(tokenizer, "<think>", "a", "</think>", "Tea.", "<think>", "b")
    assert final_answer(ids, tokenizer, thinking=thinking) == NO_ANSWER


def test_a_truncated_answer_is_kept_as_it_is(tokenizer):
    whole = encode(tokenizer, "Tea and rain, \N{HOT BEVERAGE}")
    cut = whole[:-1]  # ends inside a character
    assert tokenizer.decode(cut).endswith("\N{REPLACEMENT CHARACTER}")
    ids = encode(tokenizer, "hm", "</think>", "\n") + cut
    answer = final_answer(ids, tokenizer, thinking=True)
    assert answer.token_ids == cut
    assert answer.text.startswith("Tea and rain,")


# --- markers of several tokens -----------------------------------------------------------------
def test_a_token_that_ends_the_marker_and_goes_on_visibly_belongs_to_the_answer(tokenizers):
    tokenizer = tokenizers["several tokens"]
    ids = encode(tokenizer, "hm</think>'Tea' it is.")
    tokens = tokenizer.convert_ids_to_tokens(ids)
    assert tokens[1:5] == ["</", "think", ">'", "Te"], "the case that is meant"
    assert final_answer(ids, tokenizer, thinking=True) == Answer("'Tea' it is.", ids[3:])


def test_a_token_that_ends_the_marker_and_goes_on_blank_belongs_to_the_marker(tiny):
    tokenizer = copy.deepcopy(tiny.tokenizer)
    tokenizer.add_tokens([">\n\n"])
    ids = encode(tokenizer, "hm</think>\n\n Tea.")
    assert tokenizer.convert_ids_to_tokens(ids)[:4] == ["hm", "</", "think", ">\n\n"]
    assert final_answer(ids, tokenizer, thinking=True) == Answer("Tea.", ids[4:])


def test_a_marker_spelled_out_cuts_even_if_there_is_a_token_for_it(tokenizers):
    tokenizer = tokenizers["one token"]
    spelled = encode(tokenizer, "</", "think", ">")
    answer = encode(tokenizer, "Tea.")
    for before in (encode(tokenizer, "hm"), encode(tokenizer, "hm", "</think>", "Rain.")):
        ids = before + spelled + encode(tokenizer, "\n") + answer
        assert final_answer(ids, tokenizer, thinking=True) == Answer("Tea.", answer)


def test_a_marker_after_many_characters_of_several_tokens_is_found(tokenizers):
    tokenizer = tokenizers["several tokens"]
    reasoning = encode(
        tokenizer, "\N{HOT BEVERAGE}\N{CLOUD WITH RAIN}e\N{COMBINING ACUTE ACCENT} " * 200
    )
    answer = encode(tokenizer, "\N{HOT BEVERAGE}!")
    ids = reasoning + encode(tokenizer, "</think>", "\n\n") + answer
    assert final_answer(ids, tokenizer, thinking=True) == Answer("\N{HOT BEVERAGE}!", answer)


# --- text and tokens agree ---------------------------------------------------------------------
RESPONSES = [
    "Tea.",
    "",
    " \n ",
    "\nTea. ",
    "<think>\nA, b\n</think>\n\nTea.",
    "reasoning</think>Tea, rain",
    "<think>a</think>b<think>c</think> d ",
    "<think>never closed",
    "<think>a</think><think>b",
    "a</think>b</think>",
    "</think></think>'Tea'",
    "<|assistant|>\n<answer>Tea</answer>",
    "hm</think>\n<answer>\n'x'</answer>",
    "hm</think>.",
    "hm</think>) and",
    "hm</think>\N{NO-BREAK SPACE}\N{HOT BEVERAGE}",
    "<think></think>",
    "a < b </thin> k",
]


@pytest.mark.parametrize("response", RESPONSES)
def test_text_and_tokens_agree(tokenizer, response):
    ids = encode(tokenizer, response)
    answer = final_answer(ids, tokenizer, thinking=False)
    assert answer.text == strip_reasoning(response), "the cut made on text"
    # The ids are the end of the response, and what they hold is that text, but for what stands in
    # the token that ends the marker.
    n = len(answer.token_ids)
    assert answer.token_ids == (ids[-n:] if n else [])
    if n:
        decoded = tokenizer.decode(answer.token_ids, skip_special_tokens=True)
        assert strip_reasoning(decoded).removeprefix(">") == answer.text
    thinking = final_answer(ids, tokenizer, thinking=True)
    assert thinking == (answer if "</think>" in response else NO_ANSWER)


# --- scoring -----------------------------------------------------------------------------------
@pytest.mark.parametrize("template", [SWITCH, FORCED], ids=["switch", "forced"])
@pytest.mark.parametrize("thinking", [True, False])
def test_the_answer_of_a_rollout_is_scored_in_the_non_thinking_template(tiny, template, thinking):
    tokenizer = with_markers(tiny, special=False, template=template)
    model = copy.deepcopy(tiny.model)
    with torch.random.fork_rng():
        torch.manual_seed(2)
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    answer = [*encode(tokenizer, "Green tea."), tokenizer.eos_token_id]
    reasoning = encode(tokenizer, "<think>", "\nA, b.\n", "</think>", "\n\n") if thinking else []
    found = final_answer(reasoning + answer, tokenizer, thinking=thinking)
    value = ReferenceScorer(model, tokenizer).score(["Name a drink."], [found.token_ids])

    prefix = encode(tokenizer, NON_THINKING.format("Name a drink."))
    ids = torch.tensor([prefix + answer])
    with torch.no_grad():
        log_probs = model(ids).logits[0].double().log_softmax(-1)
    terms = [log_probs[len(prefix) - 1 + i, token].item() for i, token in enumerate(answer)]
    assert value == pytest.approx([sum(terms) / len(answer)], abs=1e-5)


def test_the_templates_without_reasoning_are_scored_as_they_are(tiny, tokenizers):
    tulu = ReferenceScorer(tiny.model, tokenizers["Tulu"]).prefix_ids("Tea?")
    assert tulu == encode(tokenizers["Tulu"], "<|user|>\nTea?\n<|assistant|>\n")
    own = ReferenceScorer(tiny.model, tiny.tokenizer).prefix_ids("Tea?")
    assert tiny.tokenizer.decode(own).endswith(
        "<|im_start|>user\nTea?<|im_end|>\n<|im_start|>assistant\n"
    )
