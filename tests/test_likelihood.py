"""l(y; x) against a computation over whole logits, and what the scorer leaves as it was."""

import copy

import numpy as np
import pytest
import torch

from califkit import likelihood
from califkit.likelihood import CHUNK, ReferenceScorer

REQUESTS = [
    "Name a colour.",
    "Describe the way from the harbour to the old town, and say where to rest on the way. " * 4,
    "Où est le café ?",
    "Write two lines about rain.",
    "Why?",
]
# The template of SmolLM2, written out.
TEMPLATE = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
)


@pytest.fixture(scope="module")
def answers(tiny) -> list[list[int]]:
    """Answers of 1 to 300 tokens, two of them with the end-of-turn token."""
    rng = np.random.default_rng(0)
    end = tiny.tokenizer.eos_token_id
    drawn = [rng.integers(3, 40_000, size=n).tolist() for n in (7, 3, CHUNK + 44, 1, 20)]
    return [[*drawn[0], end], *drawn[1:4], [*drawn[4], end]]


@pytest.fixture(scope="module")
def expected(tiny, answers) -> list[float]:
    """One row at a time, no padding, log-softmax over the whole sequence, mean in float64."""
    return [whole_logits(tiny, x, y) for x, y in zip(REQUESTS, answers, strict=True)]


def whole_logits(tiny, request: str, answer: list[int]) -> float:
    prefix = tiny.tokenizer(TEMPLATE.format(request), add_special_tokens=False)["input_ids"]
    ids = torch.tensor([prefix + answer])
    with torch.no_grad():
        log_probs = torch.log_softmax(tiny.model(ids).logits[0].double(), dim=-1)
    terms = [
        log_probs[position - 1, token].item()
        for position, token in enumerate(ids[0].tolist())
        if position >= len(prefix)
    ]
    assert len(terms) == len(answer)
    return sum(terms) / len(terms)


def test_one_answer_alone(tiny, answers, expected):
    scorer = ReferenceScorer(tiny.model, tiny.tokenizer)
    for request, answer, value in zip(REQUESTS, answers, expected, strict=True):
        assert scorer.score([request], [answer]) == pytest.approx([value], abs=1e-5)
    assert np.std(expected) > 0.01, "the answers differ, so a mix-up would show"


@pytest.mark.parametrize("tokens_per_pass", [1, 60, 100, 150, 2048])
def test_answers_of_mixed_length_in_batches_of_any_size(tiny, answers, expected, tokens_per_pass):
    result = ReferenceScorer(tiny.model, tiny.tokenizer, tokens_per_pass).score(REQUESTS, answers)
    assert result.dtype == np.float64
    assert result == pytest.approx(expected, abs=1e-5)


def test_the_order_of_rows_is_kept(tiny, answers, expected):
    order = [3, 0, 4, 2, 1]
    result = ReferenceScorer(tiny.model, tiny.tokenizer, 2).score(
        [REQUESTS[i] for i in order], [answers[i] for i in order]
    )
    assert result == pytest.approx([expected[i] for i in order], abs=1e-5)


@pytest.mark.parametrize("chunk", [1, 3, 331, 1000])
def test_the_chunk_does_not_matter(tiny, answers, expected, monkeypatch, chunk):
    monkeypatch.setattr(likelihood, "CHUNK", chunk)
    result = ReferenceScorer(tiny.model, tiny.tokenizer).score(REQUESTS, answers)
    assert result == pytest.approx(expected, abs=1e-5)


def test_logits_exist_for_a_chunk_of_answer_positions_only(tiny, answers):
    rows = []
    head = tiny.model.get_output_embeddings()
    hook = head.register_forward_hook(lambda module, inputs, output: rows.append(len(output)))
    try:
        ReferenceScorer(tiny.model, tiny.tokenizer, 5).score(REQUESTS, answers)
    finally:
        hook.remove()
    assert max(rows) <= CHUNK
    assert sum(rows) == sum(map(len, answers)), "none for the request or the padding"


def test_an_empty_answer_has_no_likelihood(tiny, answers, expected):
    scorer = ReferenceScorer(tiny.model, tiny.tokenizer)
    result = scorer.score([REQUESTS[0], "Hi", REQUESTS[3]], [answers[0], [], answers[3]])
    assert np.isnan(result).tolist() == [False, True, False]
    assert result[[0, 2]] == pytest.approx([expected[0], expected[3]], abs=1e-5)
    assert np.isnan(scorer.score(["Hi", "Ho"], [[], []])).all()
    assert scorer.score([], []).shape == (0,)


def test_the_end_of_turn_token_counts(tiny, answers):
    body, end = answers[0][:-1], tiny.tokenizer.eos_token_id
    scorer = ReferenceScorer(tiny.model, tiny.tokenizer)
    without, with_end = scorer.score([REQUESTS[0]] * 2, [body, [*body, end]])
    assert without == pytest.approx(whole_logits(tiny, REQUESTS[0], body), abs=1e-5)
    assert with_end == pytest.approx(whole_logits(tiny, REQUESTS[0], [*body, end]), abs=1e-5)
    assert abs(with_end - without) > 1e-4


def test_the_context_is_the_request_alone_in_the_template(tiny):
    request = "Write about tea."
    ids = ReferenceScorer(tiny.model, tiny.tokenizer).prefix_ids(request)
    assert tiny.tokenizer.decode(ids) == TEMPLATE.format(request)
    # Special tokens of the template are single ids, no second begin-of-text is added.
    special = [i for i in ids if i in tiny.tokenizer.all_special_ids]
    assert tiny.tokenizer.convert_ids_to_tokens(special) == [
        "<|im_start|>",
        "<|im_end|>",
        "<|im_start|>",
        "<|im_end|>",
        "<|im_start|>",
    ]


def test_thinking_is_switched_off(tiny):
    tokenizer = copy.deepcopy(tiny.tokenizer)
    tokenizer.chat_template = "{{ messages[0]['content'] }} {{ enable_thinking }}"
    ids = ReferenceScorer(tiny.model, tokenizer).prefix_ids("Tea?")
    assert tokenizer.decode(ids) == "Tea? False"


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_left_as_it_was_found(tiny, answers, training):
    seen = []
    hook = tiny.model.base_model.layers[0].register_forward_hook(
        lambda module, inputs, output: seen.append((module.training, torch.is_grad_enabled()))
    )
    tiny.model.train(training)
    try:
        ReferenceScorer(tiny.model, tiny.tokenizer).score(REQUESTS, answers)
        assert tiny.model.training is training
        assert all(module.training is training for module in tiny.model.modules())
    finally:
        hook.remove()
        tiny.model.eval()
    assert set(seen) == {(False, False)}, (
        "evaluation mode, no gradient, even inside a training step"
    )
    assert all(parameter.grad is None for parameter in tiny.model.parameters())


def test_the_training_mode_returns_after_a_failure(tiny):
    tiny.model.train()
    try:
        with pytest.raises(IndexError):
            ReferenceScorer(tiny.model, tiny.tokenizer).score(["Hi"], [[10**9]])
        assert tiny.model.training
    finally:
        tiny.model.eval()


def test_as_many_answers_as_requests(tiny):
    with pytest.raises(ValueError, match="2 requests, but 1 answers"):
        ReferenceScorer(tiny.model, tiny.tokenizer).score(["a", "b"], [[5]])


@pytest.mark.parametrize(
    "name", ["final_logit_softcapping", "logit_scale", "logits_scaling", "lm_head_multiplier"]
)
def test_a_model_that_rescales_its_logits_is_refused(tiny, monkeypatch, name):
    monkeypatch.setattr(tiny.model.config, name, 0.0625, raising=False)
    with pytest.raises(ValueError, match=rf"LlamaForCausalLM rescales its logits \({name}=0.0625"):
        ReferenceScorer(tiny.model, tiny.tokenizer)
    monkeypatch.setattr(tiny.model.config, name, 1.0)
    ReferenceScorer(tiny.model, tiny.tokenizer)
