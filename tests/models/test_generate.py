"""Drawing responses: seeds, ends of turns, and the loop that appends units."""

import copy
import json
import random
import sys

import numpy as np
import pytest
import torch
from helpers import OWN_SETTINGS
from tiny_thinker import save_thinker

from califkit.generation import RESPONSES, generate_responses
from califkit.models import engines
from califkit.models.engines import (
    EngineError,
    Response,
    TransformersEngine,
    chat_texts,
    check_engine,
    load_engine,
    read_response,
    stop_token_ids,
    to_response,
)
from califkit.models.reasoning import Answer
from califkit.models.resolve import load_tokenizer
from califkit.runs.dispatch import run_stage
from califkit.runs.folders import open_run
from califkit.runs.jsonl import RowLog, read_jsonl
from califkit.runs.params import load_params
from califkit.runs.settings import Execution, ParamsError, ResponseSettings, Sampling
from califkit.runs.stages import GenerateStage
from califkit.runs.units import batches, progress, run_units, unit_seed

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


def test_equal_prompts_are_run_through_the_model_once(tiny, monkeypatch):
    """And the draws are those of a model that runs each of them."""
    prompts = [PROMPTS[0], PROMPTS[1], *[PROMPTS[0]] * 3, PROMPTS[1]]
    shapes = []
    hook = tiny.model.register_forward_pre_hook(
        lambda module, args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)),
        with_kwargs=True,
    )
    try:
        drawn = tiny.generate(prompts, PLAIN, seed=3)
        longest = len(
            tiny.tokenizer(chat_texts(tiny.tokenizer, PROMPTS[1:], False))["input_ids"][0]
        )
        assert shapes[:2] == [(2, longest - 1), (6, 1)]
        shapes.clear()
        tiny.generate(PROMPTS, PLAIN, seed=3)
        assert shapes[0] == (2, longest), "nothing to share"
    finally:
        hook.remove()
    monkeypatch.setattr(engines, "has_recurrent_layers", lambda model: True)
    assert tiny.generate(prompts, PLAIN, seed=3) == drawn
    assert drawn[0] != drawn[2], "each with draws of its own"


def test_settings_of_the_model_are_not_mixed_in(tiny, monkeypatch):
    greedy = Sampling(top_k=1, max_tokens=12)
    expected = [tiny.generate(PROMPTS, sampling, seed=3) for sampling in (PLAIN, greedy)]
    repeated = expected[1][0].token_ids
    assert len(set(repeated)) < len(repeated), "so that a penalty would show"
    for name, value in OWN_SETTINGS.items():
        monkeypatch.setattr(tiny.model.generation_config, name, value)
    assert [tiny.generate(PROMPTS, sampling, seed=3) for sampling in (PLAIN, greedy)] == expected


def test_the_sampling_is_applied(tiny):
    free = ids(tiny.generate(PROMPTS * 8, Sampling(max_tokens=4), seed=0))
    narrow = ids(tiny.generate(PROMPTS * 8, Sampling(max_tokens=4, top_k=2), seed=0))
    assert len({row[0] for row in free}) > 4
    assert len({row[0] for row in narrow[::2]}) <= 2, "two candidates for the first token"


@pytest.mark.parametrize("thinking", [False, True])
def test_the_prompt_is_one_user_turn_with_thinking_as_asked(tiny, thinking):
    seen = []
    tokenizer = copy.deepcopy(tiny.tokenizer)
    tokenizer.chat_template = (
        "{{ messages | length }}|{{ messages[0]['role'] }}|{{ messages[0]['content'] }}"
        "|{{ add_generation_prompt }}|{{ enable_thinking }}"
    )
    engine = TransformersEngine(tiny.model, tokenizer, thinking)
    hook = tiny.model.base_model.embed_tokens.register_forward_pre_hook(
        lambda module, inputs: seen.append(inputs[0])
    )
    try:
        engine.generate(["Tea?"], Sampling(max_tokens=1), seed=0)
    finally:
        hook.remove()
    assert tokenizer.decode(seen[0][0]) == f"1|user|Tea?|True|{thinking}"


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
    response = to_response([*word, end, end, end], {end}, tiny.tokenizer, thinking=False)
    assert response == Response("tea", [*word, end], "stop", Answer("tea", [*word, end], True))
    assert response.n_tokens == len(word)
    assert not response.is_empty


@pytest.mark.parametrize("text", ["", "\n"])
def test_a_response_without_visible_text_is_empty(tiny, text):
    end = tiny.tokenizer.eos_token_id
    ids = [*tiny.tokenizer(text, add_special_tokens=False)["input_ids"], end]
    response = to_response(ids, {end}, tiny.tokenizer, thinking=False)
    assert (response.token_ids, response.n_tokens, response.is_empty) == (ids, 0, True)


def test_stop_tokens_are_those_of_tokenizer_and_model(tiny, monkeypatch):
    end = tiny.tokenizer.eos_token_id
    config = copy.deepcopy(tiny.model.generation_config)
    for configured, expected in [(None, {end}), (7, {7, end}), ([7, 8], {7, 8, end})]:
        config.eos_token_id = configured
        assert stop_token_ids(config, tiny.tokenizer) == expected


def test_stop_tokens_are_known_without_loading_the_model(tmp_path):
    # As `from_pretrained` of a model does: its generation settings, else those in its config.
    (tmp_path / "config.json").write_text('{"model_type": "llama", "eos_token_id": 5}')
    assert engines._generation_config(tmp_path).eos_token_id == 5
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [6, 7]}')
    assert engines._generation_config(tmp_path).eos_token_id == [6, 7]


# ------------------------------------------------------------------ thinking models


@pytest.fixture(scope="module")
def thinker(tiny, tmp_path_factory):
    return save_thinker(tiny, tmp_path_factory.mktemp("thinker"))


def thought(tokenizer, text: str, thinking: bool = True) -> Response:
    """The response in generated text with an end of turn."""
    ids = [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    return to_response(ids, {tokenizer.eos_token_id}, tokenizer, thinking)


def test_the_answer_of_a_thinking_model_begins_after_its_reasoning(thinker):
    tokenizer = load_tokenizer(thinker)
    response = thought(tokenizer, "<think>Tea, or coffee?</think>\n\nTea")
    word = tokenizer("Tea", add_special_tokens=False)["input_ids"]
    assert response.text == "<think>Tea, or coffee?</think>\n\nTea"
    assert response.answer == Answer("Tea", [*word, tokenizer.eos_token_id], True)
    assert (response.n_tokens, response.is_empty) == (len(word), False)
    assert len(response.token_ids) > len(word) + 8


@pytest.mark.parametrize("text", ["<think>Tea, or", "Tea", "<think>Tea</think>\n"])
def test_a_thinking_model_may_leave_no_answer(thinker, text):
    tokenizer = load_tokenizer(thinker)
    response = thought(tokenizer, text)
    assert (response.answer, response.n_tokens, response.is_empty) == (Answer("", []), 0, True)
    assert response.finish_reason == "stop"
    assert response.text == text


def test_the_mode_decides_what_a_response_without_marks_is(thinker):
    tokenizer = load_tokenizer(thinker)
    assert thought(tokenizer, "Tea", thinking=False).answer.text == "Tea"
    assert thought(tokenizer, "Tea", thinking=True).is_empty


def test_thinking_is_refused_where_no_answer_could_follow(tiny_folder):
    with pytest.raises(EngineError, match=r"chat template of .*tiny.* knows no </think>"):
        load_engine(tiny_folder, thinking=True)


# ------------------------------------------------------------------ the choice of engine


@pytest.fixture
def no_vllm(monkeypatch):
    monkeypatch.setattr(engines.importlib.util, "find_spec", lambda name: None)


def test_an_engine_that_is_not_installed_is_told_with_the_command(no_vllm):
    check_engine(None)
    with pytest.raises(EngineError, match=r"vllm is not installed; run: .*\[gpu\]"):
        check_engine("vllm")
    with pytest.raises(EngineError, match="vllm is not installed"):
        load_engine("no-such-model", "vllm")


def test_a_missing_engine_is_found_before_the_policy_is_trained(no_vllm, tmp_path, monkeypatch):
    monkeypatch.setenv("CALIFKIT_RUNS", str(tmp_path))
    settings = load_params("ci", {"engine": "vllm"}).settings
    stage = next(s.responses for s in settings.score_stages() if s.responses.policy)
    with pytest.raises(ParamsError, match="settings.engine: vllm is not installed"):
        run_stage("test", stage, Execution())
    assert not list(tmp_path.iterdir())


# ------------------------------------------------------------------ the stage


@pytest.fixture
def benchmark(tmp_path, monkeypatch):
    monkeypatch.setenv("CALIFKIT_RUNS", str(tmp_path / "runs"))
    path = tmp_path / "prompts.jsonl"
    rows = [
        {"key": key, "prompt": text, "instruction_id_list": ["punctuation:no_comma"]}
        for key, text in [("long", PROMPTS[1]), ("short", PROMPTS[0])]
    ]
    path.write_text("".join(json.dumps(row | {"kwargs": [{}]}) + "\n" for row in rows))
    return ResponseSettings(benchmark=str(path), sampling=Sampling(max_tokens=6, batch_size=1))


def test_responses_are_written_as_rows(tiny, tiny_folder, benchmark):
    stage = GenerateStage(model=str(tiny_folder), policy=None, evaluation=benchmark, seed=5)
    run = generate_responses("test", stage, Execution())
    rows = read_jsonl(run.folder / RESPONSES)
    # A batch each, the shorter prompt first, drawn from the seed of stage and batch.
    expected = [
        tiny.generate([prompt], benchmark.sampling, unit_seed(5, number))[0]
        for number, prompt in enumerate(PROMPTS)
    ]
    assert rows == [
        {
            "key": key,
            "prompt": prompt,
            "response": response.text,
            "token_ids": response.token_ids,
            "n_tokens": 6,
            "finish_reason": "length",
        }
        for key, prompt, response in zip(["short", "long"], PROMPTS, expected, strict=True)
    ]
    assert [read_response(row, tiny.tokenizer, thinking=False) for row in rows] == expected
    manifest = open_run("test", stage).manifest()
    assert manifest["rows"] == 2
    asked = stage.evaluation.sampling
    assert manifest["sampling"]["top_p"] == asked.top_p
    assert manifest["sampling"]["max_new_tokens"] == asked.max_tokens
    assert manifest["sampling"]["repetition_penalty"] == 1.0
    assert manifest["sampling"]["min_p"] is None


def test_reasoning_is_kept_in_rows_but_not_counted(thinker, benchmark):
    stage = GenerateStage(
        model=str(thinker), thinking=True, policy=None, evaluation=benchmark, seed=0
    )
    rows = read_jsonl(generate_responses("test", stage, Execution()).folder / RESPONSES)
    # Six tokens of a random model do not end any reasoning.
    assert [len(row["token_ids"]) for row in rows] == [6, 6]
    assert [row["n_tokens"] for row in rows] == [0, 0]
    assert all(row["response"].strip() for row in rows)


# ------------------------------------------------------------------ units


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


def test_progress_says_how_many_are_done_and_what_time_is_left(capsys, monkeypatch):
    clock = iter(range(0, 1000, 6))  # six seconds an item
    monkeypatch.setattr("califkit.runs.units.time.monotonic", lambda: next(clock))
    assert list(progress(iter("abcd"), "work", 4, to=sys.stderr)) == list("abcd")
    shown = capsys.readouterr()
    assert shown.err.splitlines() == ["work: 2 of 4, 12 s left", "work: 4 of 4"]
    assert shown.out == ""


def test_progress_of_a_command_that_is_quick_is_silent(capsys):
    assert list(progress(range(3), "work", 3, to=sys.stderr)) == [0, 1, 2]
    assert list(progress(range(3), "work", None, to=sys.stderr)) == [0, 1, 2]
    assert capsys.readouterr() == ("", "")
