"""CaLIF as verl calls it: as its documentation says, with stand-in data (verl is not installed)."""

import asyncio
import functools
import inspect
import math
import threading

import numpy as np
import pytest

from califkit.data.rows import constraints_json, read_constraints
from califkit.models.likelihood import ReferenceScorer
from califkit.rewards import verl
from califkit.rewards.verl import compute_score, compute_score_async, compute_score_batch, verl_row
from califkit.verifiers import Constraint

MODEL = {"model": "tiny-random-llama", "device": "cpu"}
NO_COMMA = constraints_json([Constraint("punctuation:no_comma")])
REQUEST = "Describe the sea."
TEXTS = ["Blue and wide.", "Blue, wide.", "", "Deep."]


@pytest.fixture(scope="module")
def likelihoods(tiny) -> list[float]:
    """l of the texts with the end-of-turn token; the third has none."""
    end = tiny.tokenizer.eos_token_id
    ids = [[*tiny.tokenizer(t, add_special_tokens=False)["input_ids"], end] for t in TEXTS]
    ids[2] = []
    return ReferenceScorer(tiny.model, tiny.tokenizer).score([REQUEST] * 4, ids).tolist()


def info(index: int = 0, l0: float | None = -50.0, l1: float | None = 0.0) -> dict:
    return {"index": index, "split": "train", "request": REQUEST, "l0": l0, "l1": l1}


def batch(infos: list[dict], **options) -> list[dict]:
    """As the batch reward manager: keywords, lists, data sources in an array."""
    return compute_score_batch(
        data_sources=np.array(["califkit"] * len(infos)),
        solution_strs=TEXTS[: len(infos)],
        ground_truths=[NO_COMMA] * len(infos),
        extra_infos=np.array(infos),
        **MODEL,
        **options,
    )


def test_a_batch_of_lists(likelihoods):
    last = likelihoods[3]
    infos = [info(), info(), info(), info(l0=last - 2, l1=last - 1) | {"rollout_reward_scores": {}}]
    scores = batch(infos)
    # Inside with all followed; inside with nothing followed; empty; above.
    assert [s["score"] for s in scores] == pytest.approx([1.1, 0.0, 0.0, 0.0])
    assert [s["r_ver"] for s in scores] == [1.0, 0.0, 0.0, 1.0]
    found = [s["l"] for s in scores]
    assert found[:2] + found[3:] == pytest.approx(likelihoods[:2] + [last], abs=1e-5)
    assert math.isnan(found[2])
    assert [s["inside"] for s in scores] == [1.0, 1.0, 0.0, 0.0]
    assert [s["above"] for s in scores] == [0.0, 0.0, 0.0, 1.0]
    # verl makes an array of every key, which needs the same keys and numbers in all rows.
    for key in scores[0]:
        assert np.array([s[key] for s in scores]).dtype == np.float64


def test_one_rollout_a_call_gives_the_same(likelihoods):
    expected = batch([info()] * 4, alpha=0.5)
    single = [
        compute_score(
            data_source="califkit",
            solution_str=text,
            ground_truth=NO_COMMA,
            extra_info=info(i) | {"num_turns": None, "rollout_reward_scores": {}},
            **MODEL,
            alpha=0.5,
        )
        for i, text in enumerate(TEXTS)
    ]
    for one, other in zip(single, expected, strict=True):
        assert one == pytest.approx(other, abs=1e-5, nan_ok=True)
    assert single[0]["score"] == 1.5


def test_bounds_that_are_missing_or_reversed_pay_r_ver(likelihoods):
    first = likelihoods[0]
    for bounds in [{"l0": None}, {"l1": None}, {"l0": first + 2, "l1": first + 1}]:
        [score] = batch([info(**bounds)])
        assert score["score"] == 1.0
        assert score["reversed"] == float(None not in bounds.values())


def test_reasoning_and_the_end_of_turn(tiny, likelihoods):
    reasoned = compute_score("califkit", "<think>a, b</think>Deep.", NO_COMMA, info(), **MODEL)
    assert reasoned["l"] == pytest.approx(likelihoods[3], abs=1e-5)
    assert reasoned["r_ver"] == 1.0
    hidden = compute_score("califkit", "Deep, a, b. </think> ok", NO_COMMA, info(), **MODEL)
    assert (hidden["r_ver"], hidden["score"]) == (0.0, 0.0), "nothing opened what this closes"
    thinking = compute_score("califkit", "Deep.", NO_COMMA, info(), **MODEL, thinking=True)
    assert (thinking["r_ver"], math.isnan(thinking["l"])) == (0.0, True)
    ids = tiny.tokenizer("Deep.", add_special_tokens=False)["input_ids"]
    bare = compute_score("califkit", "Deep.", NO_COMMA, info(), **MODEL, end=False)
    expected = ReferenceScorer(tiny.model, tiny.tokenizer).score([REQUEST], [ids])[0]
    assert bare["l"] == pytest.approx(expected, abs=1e-5)


def test_waiting_rollouts_are_scored_together(monkeypatch):
    sizes = []
    real = ReferenceScorer.score

    def score(self, requests, answers):
        sizes.append(len(requests))
        return real(self, requests, answers)

    monkeypatch.setattr(ReferenceScorer, "score", score)
    # verl wraps the function like this and asks whether it is to be awaited.
    wrapped = functools.partial(compute_score_async, **MODEL)
    assert inspect.iscoroutinefunction(wrapped)

    async def step() -> list[dict]:
        tasks = [
            asyncio.create_task(
                wrapped(
                    data_source="califkit",
                    solution_str=text,
                    ground_truth=NO_COMMA,
                    extra_info=info(i),
                )
            )
            for i, text in enumerate(TEXTS * 4)
        ]
        return await asyncio.gather(*tasks)

    found = asyncio.run(step())
    assert sum(sizes) == 16 and len(sizes) <= 2
    expected = batch([info()] * 4)
    for one, other in zip(found, expected * 4, strict=True):
        assert one == pytest.approx(other, abs=1e-5, nan_ok=True)
    assert asyncio.run(step())[0] == pytest.approx(found[0], abs=1e-5), "in another event loop"


def test_an_error_reaches_everyone_who_waits():
    async def step() -> list:
        good, bad = info(0), info(1) | {"request": " "}
        calls = [compute_score_async("c", "Deep.", NO_COMMA, i, **MODEL) for i in (good, bad)]
        found = await asyncio.gather(*calls, return_exceptions=True)
        return [*found, await compute_score_async("c", "Deep.", NO_COMMA, good, **MODEL)]

    *failed, after = asyncio.run(step())
    assert any("extra_info of row 1: request must be text" in str(error) for error in failed)
    assert after["score"] == pytest.approx(1.1), "the next rollout is scored"


def test_the_reference_is_loaded_once_a_process(monkeypatch):
    verl._loaded.cache_clear()
    loaded = []
    real = verl.CalifVerlReward.__init__

    def init(self, *args, **kwargs):
        loaded.append(kwargs)
        real(self, *args, **kwargs)

    monkeypatch.setattr(verl.CalifVerlReward, "__init__", init)
    threads = [threading.Thread(target=batch, args=([info()] * 2,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert loaded == [MODEL]


@pytest.mark.parametrize(
    ("truth", "extra", "options", "message"),
    [
        (NO_COMMA, {"request": REQUEST, "l0": 0.0, "index": 3}, {}, "row 3 lacks l1; it has"),
        (NO_COMMA, None, {}, "extra_info must be a mapping, not None"),
        (NO_COMMA, info(l0="low"), {}, "l0 must be a finite number or None, not 'low'"),
        (NO_COMMA, info(l1=math.inf), {}, "l1 must be a finite number or None, not inf"),
        (NO_COMMA, info(l0=0.1), {}, "row 0: l0 must be at most 0, as a log-likelihood"),
        (NO_COMMA, info(l1=0.1), {"method": "inner_region"}, "row 0: l1 must be at most 0"),
        ("no data", info(), {}, "ground truth that cannot be used"),
        (NO_COMMA, info(), {"alpha": -1.0}, "alpha must be positive"),
        (NO_COMMA, info(), {"method": "calf"}, "unknown method 'calf'"),
    ],
)
def test_data_and_options_that_cannot_be_used(truth, extra, options, message):
    with pytest.raises(ValueError, match=message):
        compute_score("califkit", "Deep.", truth, extra, **MODEL, **options)


def test_an_end_of_an_interval_may_exceed_0():
    found = compute_score("c", "Deep.", NO_COMMA, info(l1=0.1), **MODEL, method="outer_region")
    assert found["score"] == pytest.approx(1.1)


def test_a_misspelt_option_is_an_error_and_what_verl_adds_is_not():
    with pytest.raises(TypeError, match="alhpa"):
        compute_score("califkit", "Deep.", NO_COMMA, info(), **MODEL, alhpa=0.1)
    with pytest.raises(ValueError, match="needs 'model'"):
        compute_score("califkit", "Deep.", NO_COMMA, info())
    added = {"reward_router_address": "127.0.0.1:1", "reward_model_tokenizer": None}
    score = compute_score("califkit", "Deep.", NO_COMMA, info(), **MODEL, **added)
    assert score["score"] == pytest.approx(1.1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"l0": float("inf")}, "extra_info of row 7: l0 must be a finite number"),
        ({"l1": 0.5}, "l1 must be at most 0"),
        ({"constraints": []}, "constraints"),
        ({"request": " "}, "request must be text"),
    ],
)
def test_a_row_that_the_reward_would_refuse_is_not_written(changes, message):
    row = {
        "prompt": f"{REQUEST} No comma.",
        "request": REQUEST,
        "constraints": [Constraint("punctuation:no_comma")],
        "l0": -2.5,
        "l1": -1.5,
    }
    assert verl_row(**row, index=7)["extra_info"]["l0"] == -2.5
    with pytest.raises(ValueError, match=message):
        verl_row(**row | changes, index=7)


def test_a_row_survives_the_parquet_file(tmp_path):
    import pandas as pd
    from datasets import Dataset

    constraint = Constraint("punctuation:no_comma")
    rows = [
        verl_row(f"{REQUEST} No comma.", REQUEST, [constraint], l0, -1.5, index=i)
        for i, l0 in enumerate([-2.5, None])
    ]
    pd.DataFrame(rows).to_parquet(tmp_path / "train.parquet")
    for i, row in enumerate(Dataset.from_parquet(str(tmp_path / "train.parquet"))):
        assert row["prompt"] == [{"role": "user", "content": "Describe the sea. No comma."}]
        assert read_constraints(row["reward_model"]["ground_truth"]) == (constraint,)
        extra = row["extra_info"]
        assert (extra["request"], extra["l1"]) == (REQUEST, -1.5)
        assert extra["l0"] == (None if i else -2.5)
        score = compute_score(
            row["data_source"], "Deep.", row["reward_model"]["ground_truth"], extra, **MODEL
        )
        assert score["r_ver"] == 1.0
