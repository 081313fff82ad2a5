"""Drawing responses: seeds, ends of turns, and the loop that appends units."""

import copy
import random

import numpy as np
import pytest
import torch

from califkit.generate import (
    Response,
    batches,
    progress,
    run_units,
    stop_token_ids,
    unit_seed,
)
from califkit.params import Sampling
from califkit.runs import RowLog

PROMPTS = ["Name a colour.", "Say why the sea is salt, in one sentence that a child can read."]
PLAIN = Sampling(max_tokens=12)


def ids(responses: list[Response]) -> list[list[int]]:
    return [response.token_ids for response in responses]


def test_the_same_seed_gives_the_same_responses(tiny):
    first = tiny.generate(PROMPTS, PLAIN, seed=3)
    torch.rand(1)  # whatever else is drawn in between
    assert tiny.generate(PROMPTS, PLAIN, seed=3) == first
    assert ids(tiny.generate(PROMPTS, PLAIN, seed=4)) != ids(first)
    assert first[0].token_ids != first[1].token_ids


def test_the_global_random_state_is_neither_read_nor_moved(tiny):
    states = torch.get_rng_state(), np.random.get_state()[1], random.getstate()  # noqa: NPY002
    first = tiny.generate(PROMPTS, PLAIN, seed=3)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (np.random.get_state()[1] == states[1]).all()  # noqa: NPY002
    assert random.getstate() == states[2]
    torch.manual_seed(99)
    assert tiny.generate(PROMPTS, PLAIN, seed=3) == first


def test_responses_to_short_and_long_prompts_do_not_mix(tiny):
    # With one candidate a token nothing is random: a response is the same alone and in a batch.
    greedy = Sampling(top_k=1, max_tokens=6)
    together = tiny.generate([*PROMPTS, PROMPTS[0]], greedy, seed=0)
    assert together[0] == together[2]
    for prompt, response in zip(PROMPTS, together, strict=False):
        assert tiny.generate([prompt], greedy, seed=1) == [response]


def test_settings_of_the_model_are_not_mixed_in(tiny, monkeypatch):
    greedy = Sampling(top_k=1, max_tokens=12)
    expected = [tiny.generate(PROMPTS, sampling, seed=3) for sampling in (PLAIN, greedy)]
    repeated = expected[1][0].token_ids
    assert len(set(repeated)) < len(repeated), "so that a penalty would show"
    for name, value in {
        "repetition_penalty": 50.0,
        "temperature": 0.01,
        "top_p": 0.01,
        "top_k": 1,
        "do_sample": False,
        "max_new_tokens": 2,
    }.items():
        monkeypatch.setattr(tiny.model.generation_config, name, value)
    assert [tiny.generate(PROMPTS, sampling, seed=3) for sampling in (PLAIN, greedy)] == expected


def test_the_sampling_is_applied(tiny):
    free = ids(tiny.generate(PROMPTS * 8, Sampling(max_tokens=4), seed=0))
    narrow = ids(tiny.generate(PROMPTS * 8, Sampling(max_tokens=4, top_k=2), seed=0))
    assert len({row[0] for row in free}) > 4
    assert len({row[0] for row in narrow[::2]}) <= 2, "two candidates for the first token"


def test_the_prompt_is_one_user_turn_with_thinking_off(tiny, monkeypatch):
    seen = []
    tokenizer = copy.deepcopy(tiny.tokenizer)
    tokenizer.chat_template = (
        "{{ messages | length }}|{{ messages[0]['role'] }}|{{ messages[0]['content'] }}"
        "|{{ add_generation_prompt }}|{{ enable_thinking }}"
    )
    monkeypatch.setattr(tiny, "tokenizer", tokenizer)
    hook = tiny.model.base_model.embed_tokens.register_forward_pre_hook(
        lambda module, inputs: seen.append(inputs[0])
    )
    try:
        tiny.generate(["Tea?"], Sampling(max_tokens=1), seed=0)
    finally:
        hook.remove()
    assert tokenizer.decode(seen[0][0]) == "1|user|Tea?|True|False"


def test_a_response_at_the_limit(tiny):
    (response,) = tiny.generate(PROMPTS[:1], Sampling(max_tokens=5), seed=0)
    assert response.finish_reason == "length"
    assert len(response.token_ids) == response.n_tokens == 5
    assert response.text == tiny.tokenizer.decode(response.token_ids)


def test_a_response_ends_with_its_first_end_of_turn(tiny, monkeypatch):
    # A tenth of the vocabulary ends a turn, so responses of all kinds come up.
    stops = list(range(0, len(tiny.tokenizer), 10))
    monkeypatch.setattr(tiny.model.generation_config, "eos_token_id", stops)
    stop = {*stops, tiny.tokenizer.eos_token_id}
    responses = tiny.generate(PROMPTS * 16, Sampling(max_tokens=8), seed=0)
    assert {response.finish_reason for response in responses} == {"stop", "length"}
    for response in responses:
        *body, last = response.token_ids
        assert not stop & set(body)
        if response.finish_reason == "stop":
            assert last in stop
            assert response.n_tokens == len(body)
        else:
            assert last not in stop
            assert response.n_tokens == len(response.token_ids) == 8


def test_the_end_of_turn_is_kept_and_padding_is_not(tiny):
    end = tiny.tokenizer.eos_token_id
    word = tiny.tokenizer("tea", add_special_tokens=False)["input_ids"]
    response = tiny._response([*word, end, end, end], {end})
    assert response == Response("tea", [*word, end], "stop")
    assert response.n_tokens == len(word)
    nothing = tiny._response([end, end], {end})
    assert (nothing.token_ids, nothing.n_tokens, nothing.is_empty) == ([end], 0, True)
    assert tiny._response(tiny.tokenizer("\n")["input_ids"], {end}).is_empty
    assert not response.is_empty


def test_stop_tokens_are_those_of_tokenizer_and_model(tiny, monkeypatch):
    end = tiny.tokenizer.eos_token_id
    for configured, expected in [(None, {end}), (7, {7, end}), ([7, 8], {7, 8, end})]:
        monkeypatch.setattr(tiny.model.generation_config, "eos_token_id", configured)
        assert stop_token_ids(tiny.model, tiny.tokenizer) == expected


def test_every_part_of_a_unit_seed_matters():
    seeds = {unit_seed(stage, number) for stage in range(30) for number in range(30)}
    assert len(seeds) == 900
    assert unit_seed(1, 2) == unit_seed(1, 2)
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_different_batch_numbers_give_different_responses(tiny):
    drawn = [tiny.generate(PROMPTS[:1], PLAIN, unit_seed(0, number)) for number in range(3)]
    assert len({tuple(response[0].token_ids) for response in drawn}) == 3


def test_batches_keep_order_and_lose_nothing():
    assert batches([1, 2, 3, 4, 5], 2) == [[1, 2], [3, 4], [5]]
    assert batches([], 2) == []


def test_units_that_are_there_are_not_computed_again(tmp_path, capsys):
    units = batches([{"n": n} for n in range(5)], 2)
    asked = []

    def compute(number, unit):
        asked.append(number)
        return list(unit)

    log = RowLog(tmp_path / "rows.jsonl")
    log.append([{"n": 0}, {"n": 1}, {"n": "half of the second unit"}])
    run_units(log, units, compute, "work")
    assert asked == [1, 2]
    assert log.rows() == [{"n": n} for n in range(5)]
    out = capsys.readouterr().out
    assert "work: 1 of 3 batches are there, continuing" in out
    assert "work: 3 of 3" in out
    run_units(log, units, compute, "work")
    assert asked == [1, 2]


def test_a_unit_that_fails_leaves_the_finished_ones(tmp_path):
    def compute(number, unit):
        if number == 1:
            raise RuntimeError("killed")
        return list(unit)

    log = RowLog(tmp_path / "rows.jsonl")
    with pytest.raises(RuntimeError):
        run_units(log, [[{"n": 0}], [{"n": 1}]], compute, "work")
    assert log.rows() == [{"n": 0}]


def test_progress_is_a_line_at_the_end_when_it_is_quick(capsys):
    assert list(progress(range(2, 5), "work", 5, 2)) == [2, 3, 4]
    assert capsys.readouterr().out == "work: 5 of 5\n"
