"""The vLLM engine against the transformers engine, with the real thing where it is installed."""

import importlib.util

import pytest

from califkit.models.engines import TransformersEngine, VllmEngine
from califkit.runs.settings import Sampling

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("vllm") is None, reason="vllm is not installed (extra gpu)"
    ),
]

MODEL = "smollm2-135m-instruct"  # vLLM has no kernels for the head size of the tiny model
PROMPTS = ["Name a colour.", "Say why the sea is salt, in one sentence.", "Say hi."]
GREEDY = Sampling(top_k=1, max_tokens=24)
PLAIN = Sampling(max_tokens=12)


@pytest.fixture(scope="module")
def engine():
    engine = VllmEngine.load(
        MODEL,
        gpu_memory_utilization=0.2,
        dtype="float32",
        enforce_eager=True,
        max_model_len=512,
    )
    yield engine
    engine.close()


def test_greedy_responses_are_those_of_transformers(engine):
    expected = TransformersEngine.load(MODEL).generate(PROMPTS, GREEDY, seed=0)
    assert {response.finish_reason for response in expected} == {"stop", "length"}
    assert engine.generate(PROMPTS, GREEDY, seed=1) == expected


def test_the_end_of_turn_is_kept(engine):
    response = engine.generate(PROMPTS[2:], GREEDY, seed=0)[0]
    assert response.finish_reason == "stop"
    assert response.token_ids[-1] == engine.tokenizer.eos_token_id
    assert response.n_tokens == len(response.token_ids) - 1


def test_a_response_ends_with_the_first_of_several_stop_tokens(engine, monkeypatch):
    stop = {*range(0, len(engine.tokenizer), 10)}
    monkeypatch.setattr(engine, "stop", stop)
    responses = engine.generate(PROMPTS * 8, Sampling(max_tokens=8), seed=0)
    assert {response.finish_reason for response in responses} == {"stop", "length"}
    for response in responses:
        *body, last = response.token_ids
        assert not stop & set(body)
        assert (last in stop) == (response.finish_reason == "stop")
        assert last in stop or len(response.token_ids) == 8


def test_a_draw_depends_on_the_seed_and_its_place_alone(engine):
    first = engine.generate(PROMPTS, PLAIN, seed=3)
    assert engine.generate(PROMPTS, PLAIN, seed=3) == first
    assert engine.generate(PROMPTS, PLAIN, seed=4) != first
    assert engine.generate(PROMPTS[:1], PLAIN, seed=3) == first[:1]
    same, other = engine.generate(PROMPTS[:1] * 2, PLAIN, seed=3)
    assert same == first[0]
    assert other != same


def test_the_sampling_is_applied(engine):
    hot = {"temperature": 2.0, "max_tokens": 1}  # at 1.0 most answers begin with the same word
    free = engine.generate(PROMPTS[1:2] * 32, Sampling(**hot), seed=0)
    narrow = engine.generate(PROMPTS[1:2] * 32, Sampling(**hot, top_k=2), seed=0)
    assert len({response.token_ids[0] for response in free}) > 8
    assert len({response.token_ids[0] for response in narrow}) == 2
    greedy = engine.generate(PROMPTS, GREEDY, seed=0)
    for truncated in ({"top_p": 1e-6}, {"temperature": 0.01}):
        assert engine.generate(PROMPTS, Sampling(max_tokens=24, **truncated), seed=0) == greedy


def test_nothing_of_a_closed_engine_is_left(engine):
    # The last test here: it closes the engine of the others.
    import psutil

    processes = [
        process
        for process in psutil.Process().children(recursive=True)
        if process.name().startswith("VLLM")
    ]
    assert processes
    engine.close()
    _, living = psutil.wait_procs(processes, timeout=30)
    assert not [process for process in living if process.status() != psutil.STATUS_ZOMBIE]
