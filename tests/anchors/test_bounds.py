"""l0 and l1 for a data set of one's own."""

import pytest

from califkit.anchors.bounds import measure_bounds
from califkit.models.engines import TransformersEngine, to_response
from califkit.models.likelihood import ReferenceScorer

REQUESTS = ["Describe the sea.", "Name a drink.", "Explain how bread is made at home."]
PROMPTS = [f"{request} Use no comma." for request in REQUESTS]
MODEL = "tiny-random-llama"


@pytest.fixture(params=[1.0, 0.6])
def temperature(request) -> float:
    return request.param


@pytest.fixture
def drawn(monkeypatch, temperature) -> list:
    """Every text sent to the model with the response to it."""
    found = []
    real = TransformersEngine.generate

    def generate(self, prompts, sampling, seed):
        responses = real(self, prompts, sampling, seed)
        assert (sampling.temperature, sampling.top_p, sampling.top_k) == (temperature, 1.0, 0)
        assert sampling.max_tokens == 6
        found.extend(zip(prompts, responses, strict=True))
        return responses

    monkeypatch.setattr(TransformersEngine, "generate", generate)
    return found


def test_answers_to_the_prompt_give_l0_and_to_the_request_l1_both_given_the_request(
    tiny, drawn, temperature
):
    options = {"max_tokens": 6, "draws": 2, "batch_size": 5}
    if temperature != 1.0:
        options["temperature"] = temperature  # 1 is the default
    l0, l1 = measure_bounds(MODEL, PROMPTS, REQUESTS, **options)
    scorer = ReferenceScorer(tiny.model, tiny.tokenizer)
    for sent, found in ((PROMPTS, l0), (REQUESTS, l1)):
        for text, request, bound in zip(sent, REQUESTS, found, strict=True):
            answers = [response.token_ids for prompt, response in drawn if prompt == text]
            assert len(answers) == 2
            expected = scorer.score([request] * 2, answers).mean()
            assert bound == pytest.approx(expected, abs=1e-5)
    assert len(drawn) == 12


def test_conversations_and_seeds():
    turns = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]
    first = measure_bounds(MODEL, PROMPTS, REQUESTS, max_tokens=6)
    assert measure_bounds(MODEL, turns, REQUESTS, max_tokens=6) == first
    assert measure_bounds(MODEL, turns, REQUESTS, max_tokens=6, seed=1) != first


def test_an_empty_answer_is_drawn_again_and_stays_missing_in_the_end(monkeypatch, tiny):
    end = tiny.tokenizer.eos_token_id
    empty = to_response([end], {end}, tiny.tokenizer, thinking=False)
    sent = []
    real = TransformersEngine.generate

    def generate(self, prompts, sampling, seed):
        """As the engine, but every answer about drinks is empty, and at first every one."""
        sent.append(list(prompts))
        responses = real(self, prompts, sampling, seed)
        return [
            response if len(sent) > 1 and "drink" not in prompt else empty
            for prompt, response in zip(prompts, responses, strict=True)
        ]

    monkeypatch.setattr(TransformersEngine, "generate", generate)
    l0, l1 = measure_bounds(MODEL, PROMPTS, REQUESTS, max_tokens=6)
    assert [value is None for value in l0] == [value is None for value in l1]
    assert [value is None for value in l0] == [False, True, False]
    assert [len(texts) for texts in sent] == [6, 6, 2, 2]


def test_input_that_cannot_be_used():
    with pytest.raises(ValueError, match="3 prompts, but 2 requests"):
        measure_bounds(MODEL, PROMPTS, REQUESTS[:2], max_tokens=6)
    with pytest.raises(ValueError, match="draws must be at least 1, not 0"):
        measure_bounds(MODEL, PROMPTS, REQUESTS, max_tokens=6, draws=0)
    with pytest.raises(ValueError, match="max_tokens"):
        measure_bounds(MODEL, PROMPTS, REQUESTS, max_tokens=0)
    turns = [[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi."}]]
    with pytest.raises(ValueError, match="one user turn, not .*Be brief"):
        measure_bounds(MODEL, turns, ["Hi."], max_tokens=6)
