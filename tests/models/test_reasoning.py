"""What is the answer of a response, in text and in tokens."""

import copy

import pytest
import torch
from transformers import GenerationConfig

from califkit.models.engines import stop_token_ids
from califkit.models.likelihood import ReferenceScorer
from califkit.models.reasoning import (
    Answer,
    Cuts,
    answer_text,
    final_answer,
    text_answer,
    turn_end_id,
)
from califkit.verifiers import Constraint, verify

NO_ANSWER = Answer("", [])


def ends_in_control_tokens(response: str) -> bool:
    cuts = Cuts()
    cuts.add(response)
    return cuts.control == 1


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


def test_the_last_of_two_end_markers_counts(tokenizer):
    answer = encode(tokenizer, "Rain.")
    ids = encode(tokenizer, "a", "</think>", "Tea.", "</think>", "\n") + answer
    assert final_answer(ids, tokenizer, thinking=True) == Answer("Rain.", answer)
    ids = encode(tokenizer, "<think>", "a", "</think>", "b", "<think>", "c", "</think>") + answer
    for thinking in (True, False):
        assert final_answer(ids, tokenizer, thinking=thinking) == Answer("Rain.", answer)


def test_with_thinking_off_an_end_marker_that_nothing_opened_hides_nothing(tokenizer):
    hidden = encode(tokenizer, "Tea, milk, cake and much more, honestly.", " </think>", " ok")
    answer = final_answer(hidden, tokenizer, thinking=False)
    assert answer.token_ids == hidden
    assert "Tea, milk, cake" in answer.text
    assert not verify(Constraint("punctuation:no_comma"), answer.text)
    # Nor does reasoning that is opened in the middle.
    ids = encode(tokenizer, "Tea, milk. ", "<think>", "a", "</think>", " ok")
    assert final_answer(ids, tokenizer, thinking=False).token_ids == ids


def test_a_tag_named_in_backticks_is_text(tokenizer):
    named = encode(tokenizer, "It is `", "<think>", "`, ended by `", "</think>", "`.")
    assert final_answer(named, tokenizer, thinking=False).token_ids == named
    assert final_answer(named, tokenizer, thinking=True) == NO_ANSWER
    for thinking in (True, False):
        ids = encode(tokenizer, "<think>", "`", "</think>", "` ends it", "</think>") + named
        answer = final_answer(ids, tokenizer, thinking=thinking)
        assert answer.token_ids == named


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        (
            "<think>a</think>It is\n```xml\n<think>b</think>\n```\nhere.",
            "It is\n```xml\n<think>b</think>\n```\nhere.",
        ),
        ("a\n```\nb </think>c\n```\nd\n```\ne", "c\n```\nd\n```\ne"),
        ("a</think>b\n```\nc\n```\n</think>d", "d"),
        ("a</think>b\n```\nnot closed </think>d", "d"),
    ],
    ids=["in the answer", "left open in the reasoning", "before the marker", "never closed"],
)
def test_a_tag_in_a_fenced_block_of_the_answer_is_text(response, answer):
    assert answer_text(response, thinking=True) == answer


def test_what_is_cut_or_not_is_counted_and_told():
    cuts = Cuts()
    for response in (
        "Tea.",
        "Tea.</s>",
        "<think>a</think>b",
        " <think>a",
        "a</think>b",
        "`</think>`",
    ):
        cuts.add(response)
    assert cuts == Cuts(control=1, opened=2, unopened=1)
    control, opened, unopened = cuts.in_words("rows", thinking=False)
    assert control.endswith("which are left out: 1")
    assert opened.endswith("reasoning left out: 2")
    assert "taken whole: 1; " in unopened
    assert list(cuts.in_words("rows", thinking=True)) == [control]
    assert list(Cuts().in_words("rows", thinking=False)) == []


def test_what_follows_the_first_end_of_turn_is_not_read(tokenizer):
    end = tokenizer.eos_token_id
    tea = [*encode(tokenizer, "Tea."), end]
    ids = [*tea, end, *encode(tokenizer, "A, b."), end]
    assert final_answer(ids, tokenizer, thinking=False, stop={end}) == Answer("Tea.", tea, True)
    assert Answer("Tea.", tea, True).content_ids == tea[:-1]
    reasoned = [*encode(tokenizer, "a", "</think>"), *tea, *encode(tokenizer, "</think>", "b")]
    found = final_answer(reasoned, tokenizer, thinking=True, stop={end})
    assert found == Answer("Tea.", tea, True)
    assert final_answer(tea[:-1], tokenizer, thinking=False, stop={end}).ends is False


CHANNELS = (
    "<|channel|>analysis<|message|>Plan, then write.<|end|>"
    "<|start|>assistant<|channel|>final<|message|>Tea is warm."
)


def test_of_a_response_in_channels_the_final_one_is_the_answer(tokenizers):
    tokenizer = copy.deepcopy(tokenizers["several tokens"])
    for thinking in (True, False):
        for _ in ("spelled out", "as special tokens"):
            ids = encode(tokenizer, CHANNELS)
            answer = final_answer(ids, tokenizer, thinking=thinking)
            assert answer == Answer("Tea is warm.", encode(tokenizer, "Tea is warm."))
            unfinished = encode(tokenizer, CHANNELS.partition("<|end|>")[0])
            assert final_answer(unfinished, tokenizer, thinking=thinking) == NO_ANSWER
            marks = ["<|channel|>", "<|message|>", "<|start|>", "<|end|>"]
            tokenizer.add_tokens(marks, special_tokens=True)
        assert answer_text(CHANNELS, thinking) == "Tea is warm."
        assert answer_text(CHANNELS.partition("<|end|>")[0], thinking) == ""


@pytest.mark.parametrize(
    "end", ["<|im_end|>", "<|eot_id|>\n", "</s>", "<end_of_turn>\n<eos>", "<|end|>" * 30]
)
def test_control_tokens_at_the_end_of_a_text_are_left_out_and_told(tiny, end):
    assert answer_text(f"Bye. That is all.{end}") == "Bye. That is all."
    assert ends_in_control_tokens(f"Bye. That is all.{end}")
    ids = encode(tiny.tokenizer, "Bye. That is all.")
    found = text_answer(f"Bye. That is all.{end}", tiny.tokenizer)
    assert found == Answer("Bye. That is all.", [*ids, tiny.tokenizer.eos_token_id], True)
    assert text_answer("Bye. That is all.", tiny.tokenizer, end=False).token_ids == ids
    for text in ("Bye.\n\n", "It ends in `<|im_end|>`", "a <| b |>", " "):
        assert answer_text(text) == text
        assert not ends_in_control_tokens(text)


# Templates that end a turn with another token than the tokenizer's own end.
GEMMA = (
    "{% for m in messages %}{{ '<start_of_turn>' + m.role + '\n' + m.content + '<end_of_turn>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)


def test_a_turn_ends_with_the_token_that_the_template_writes(tiny, tokenizers):
    assert turn_end_id(tiny.tokenizer) == tiny.tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert turn_end_id(tokenizers["Tulu"]) == tiny.tokenizer.eos_token_id, "it writes none"
    base = copy.deepcopy(tiny.tokenizer)  # a base checkpoint with a template
    base.eos_token = "<|endoftext|>"
    end = base.convert_tokens_to_ids("<|im_end|>")
    assert base.eos_token_id != end == turn_end_id(base)
    assert text_answer("Tea.", base).token_ids[-1] == end
    assert end in stop_token_ids(GenerationConfig(eos_token_id=base.eos_token_id), base)
    gemma = copy.deepcopy(tiny.tokenizer)
    gemma.add_tokens(["<start_of_turn>", "<end_of_turn>"], special_tokens=True)
    gemma.chat_template = GEMMA
    assert turn_end_id(gemma) == gemma.convert_tokens_to_ids("<end_of_turn>")


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
# A response, and the answer in it with thinking off and on.
RESPONSES = {
    "Tea.": ("Tea.", ""),
    "": ("", ""),
    " \n ": ("", ""),
    "\nTea. ": ("Tea.", ""),
    "<think>\nA, b\n</think>\n\nTea.": ("Tea.", "Tea."),
    "reasoning</think>Tea, rain": ("reasoning</think>Tea, rain", "Tea, rain"),
    "<think>a</think>b<think>c</think> d ": ("d", "d"),
    "<think>never closed": ("", ""),
    "<think>a</think><think>b": ("", ""),
    "a</think>b</think>": ("a</think>b</think>", ""),
    "</think></think>'Tea'": ("</think></think>'Tea'", "'Tea'"),
    "<|assistant|>\n<answer>Tea</answer>": ("Tea", ""),
    "hm</think>\n<answer>\n'x'</answer>": ("hm</think>\n\n'x'", "'x'"),
    "hm</think>.": ("hm</think>.", "."),
    "hm</think>) and": ("hm</think>) and", ") and"),
    "<think>hm</think>\N{NO-BREAK SPACE}\N{HOT BEVERAGE}": ("\N{HOT BEVERAGE}",) * 2,
    "<think></think>": ("", ""),
    "a < b </thin> k": ("a < b </thin> k", ""),
    "It is `<think>` in most models.": ("It is `<think>` in most models.", ""),
    "<think>easy, short</think>It is `<think>`.": ("It is `<think>`.",) * 2,
    "<think>easy</think>First, a comma. Then `</think>`.": ("First, a comma. Then `</think>`.",)
    * 2,
}


@pytest.mark.parametrize("thinking", [False, True])
@pytest.mark.parametrize("response", RESPONSES)
def test_text_and_tokens_agree(tokenizers, tokenizer, response, thinking):
    expected = RESPONSES[response][thinking]
    of_text = text_answer(response, tokenizer, thinking=thinking, end=False)
    assert of_text.text == expected
    ids = encode(tokenizer, response)
    answer = final_answer(ids, tokenizer, thinking=thinking)
    if tokenizer is tokenizers["special token"]:  # a special token is no text
        expected = expected.replace("<think>", "").replace("</think>", "")
    assert answer.text == expected
    # The ids are the end of the response, and what they hold is that text, but for what stands in
    # the token that ends the marker.
    n = len(answer.token_ids)
    assert answer.token_ids == (ids[-n:] if n else [])
    if n:
        decoded = tokenizer.decode(answer.token_ids, skip_special_tokens=True)
        for mark in ("<answer>", "</answer>", "<|assistant|>"):
            decoded = decoded.replace(mark, "")
        assert decoded.strip().removeprefix(">") == answer.text


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
