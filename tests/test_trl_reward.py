"""CaLIF as TRL calls it."""

import json
import math
import pickle
from types import SimpleNamespace

import pytest

from califkit.adapters import constraints_json
from califkit.evaluation import training_table
from califkit.likelihood import ReferenceScorer
from califkit.rewards import ZONES
from califkit.trl_reward import CalifReward
from califkit.verifiers import Constraint

NAN = math.nan

NO_COMMA = constraints_json([Constraint("punctuation:no_comma")])
FOUR_WORDS_NO_COMMA = constraints_json(
    [
        Constraint("punctuation:no_comma"),
        Constraint("length_constraints:number_words", {"num_words": 4, "relation": "at least"}),
    ]
)
TEXTS = ["Tea and rain today", "Tea, rain", "Tea and rain", ""]


def trainer(tiny, **changes):
    """What `CalifReward.bind` reads of a trainer."""
    parts = {
        "ref_model": tiny.model,
        "processing_class": tiny.tokenizer,
        "accelerator": SimpleNamespace(unwrap_model=lambda model: model),
        "args": SimpleNamespace(sync_ref_model=False, temperature=1.0),
    }
    return SimpleNamespace(**(parts | changes))


@pytest.fixture
def batch(tiny) -> dict:
    """Four rollouts of two prompts, as TRL hands them over: ids with the end-of-turn token."""
    end = tiny.tokenizer.eos_token_id
    ids = [[*tiny.tokenizer(t, add_special_tokens=False)["input_ids"], end] for t in TEXTS]
    return {
        "prompts": [[{"role": "user", "content": f"prompt {i // 2}"}] for i in range(4)],
        "completions": list(TEXTS),
        "completion_ids": ids,
        "request": ["Name a drink."] * 2 + ["Describe the weather at the sea."] * 2,
        "constraints": [FOUR_WORDS_NO_COMMA] * 4,
        "l0": [-100.0] * 4,
        "l1": [0.0] * 4,
    }


def expected_likelihoods(tiny, batch) -> list[float]:
    """The last answer has no text, so no likelihood."""
    scorer = ReferenceScorer(tiny.model, tiny.tokenizer)
    return scorer.score(batch["request"][:3], batch["completion_ids"][:3]).tolist()


def test_rewards_come_in_the_order_of_the_rollouts(tiny, batch):
    reward = CalifReward(alpha=0.1)
    reward.bind(trainer(tiny))
    # r_ver: both; none of two; no comma only; an empty answer follows nothing.
    assert reward(**batch) == pytest.approx([1.1, 0.0, 0.6, 0.0])
    turned = {name: values[::-1] for name, values in batch.items()}
    assert reward(**turned) == pytest.approx([0.0, 0.6, 0.0, 1.1])


def test_each_rollout_is_held_against_its_own_bounds(tiny, batch):
    first, _, third = expected_likelihoods(tiny, batch)
    reward = CalifReward(alpha=0.1)
    reward.bind(trainer(tiny))
    assert reward(**batch | {"l0": [first] * 4, "l1": [first] * 4}, log_metric=None)[0] == (
        pytest.approx(1.1)
    ), "the likelihood is that of the reference given the request"
    above = batch | {"l1": [first - 0.01, 0.0, third - 0.01, 0.0]}
    assert reward(**above) == [0.0, 0.0, 0.0, 0.0]
    reversed_bounds = batch | {"l0": [0.0] * 4, "l1": [first + 0.01, -50.0, third - 0.01, -50.0]}
    assert reward(**reversed_bounds) == pytest.approx([1.0, 0.0, 0.0, 0.0])
    missing = batch | {"l0": [None] * 4, "l1": [NAN, None, -50.0, -50.0]}
    assert reward(**missing) == pytest.approx([1.0, 0.0, 0.5, 0.0])


def test_conversations_are_scored_like_strings(tiny, batch):
    reward = CalifReward()
    reward.bind(trainer(tiny))
    conversations = [[{"role": "assistant", "content": text}] for text in TEXTS]
    assert reward(**batch | {"completions": conversations}) == reward(**batch)


def test_reasoning_is_not_verified(tiny, batch):
    reward = CalifReward(alpha=None)
    reward.bind(trainer(tiny))
    texts = ["<think>A, b</think>tea", "<think>a</think>tea, b", "<think>not closed", "tea"]
    changes = {"completions": texts, "constraints": [NO_COMMA] * 4}
    assert reward(**batch | changes) == [1.0, 0.0, 0.0, 1.0]


def test_if_rlvr_is_the_verifier_fraction_whatever_the_likelihood(tiny, batch):
    reward = CalifReward(alpha=None)
    reward.bind(trainer(tiny))
    logged = {}
    rewards = reward(**batch | {"l1": [-50.0] * 4}, log_metric=logged.__setitem__)
    assert rewards == [1.0, 0.0, 0.5, 0.0]
    assert logged["zone/above"] == 0.75, "zones are logged all the same"
    assert logged["above_ceiling"] == 0.5, "of them two have something to lose"
    assert logged["reward_minus_r_ver"] == 0.0


def test_metrics_of_a_step(tiny, batch):
    first, second, third = expected_likelihoods(tiny, batch)
    reward = CalifReward(alpha=0.1)
    reward.bind(trainer(tiny))
    logged = {}
    bounds = {"l0": [-100.0, -100.0, 0.0, -100.0], "l1": [0.0, -50.0, -1.0, 0.0]}
    reward(**batch | bounds, log_metric=logged.__setitem__)
    lengths = [len(ids) - 1 for ids in batch["completion_ids"]]
    assert logged["r_ver"] == pytest.approx((1 + 0 + 0.5 + 0) / 4)
    assert logged["loglik"] == pytest.approx((first + second + third) / 3, abs=1e-5)
    assert logged["tokens"] == sum(lengths) / 4, "without the end-of-turn token"
    assert logged["distinct_2"] == 1.0, "nothing repeats; the empty answer is left out"
    assert {zone: logged[f"zone/{zone}"] for zone in ZONES} == {
        "inside": 0.25,
        "above": 0.25,
        "reversed": 0.25,
        "unbounded": 0.25,
        "below": 0.0,
    }
    assert third < -1.0
    assert logged["above_ceiling"] == 0.0, "the second is above, but its r_ver is 0 anyway"
    assert logged["reward_minus_r_ver"] == pytest.approx(0.1 / 4)


def test_the_training_table_reads_the_names_that_are_logged(tiny, batch, tmp_path):
    reward = CalifReward()
    reward.bind(trainer(tiny))
    logged = {"step": 1, "reward": 0.5, "seconds": 1.0}
    reward(**batch, log_metric=logged.__setitem__)
    (tmp_path / "log.jsonl").write_text(json.dumps(logged) + "\n")
    run = SimpleNamespace(folder=tmp_path, stage=SimpleNamespace(method="calif", seed=3))
    row = training_table([run]).iloc[0]
    assert (row["method"], row["train_seed"], row["step"]) == ("calif", 3, 1)
    assert row["r_ver"] == logged["r_ver"]
    assert row["inside"] == 0.75
    assert row["unbounded"] == 0.25


def test_rows_of_the_rollout_log(tiny, batch):
    first, *_ = expected_likelihoods(tiny, batch)
    taken = []
    reward = CalifReward(alpha=0.1, on_rollouts=lambda step, rows: taken.append((step, rows)))
    reward.bind(trainer(tiny))
    batch |= {"key": ["a", "a", "b", "b"], "l0": [-100.0, None, -100.0, -100.0]}
    reward(**batch, trainer_state=SimpleNamespace(global_step=6), log_extra=print)
    ((step, rows),) = taken
    assert step == 6
    assert json.loads(json.dumps(rows, allow_nan=False)) == rows, "plain JSON, no NaN"
    assert [row["key"] for row in rows] == ["a", "a", "b", "b"]
    assert [row["completion"] for row in rows] == TEXTS
    assert [row["zone"] for row in rows] == ["inside", "unbounded", "inside", "unbounded"]
    assert rows[0] == {
        "key": "a",
        "completion": "Tea and rain today",
        "r_ver": 1.0,
        "loglik": pytest.approx(first, abs=1e-5),
        "l0": -100.0,
        "l1": 0.0,
        "zone": "inside",
        "reward": 1.1,
        "tokens": len(batch["completion_ids"][0]) - 1,
        "distinct_2": 1.0,
    }
    assert rows[1]["l0"] is None
    assert (rows[3]["loglik"], rows[3]["tokens"], rows[3]["distinct_2"]) == (None, 0, None)


def test_an_answer_cut_at_the_limit_keeps_its_last_token(tiny, batch):
    taken = []
    reward = CalifReward(on_rollouts=lambda step, rows: taken.extend(rows))
    reward.bind(trainer(tiny))
    cut = [ids[:-1] for ids in batch["completion_ids"][:3]] + batch["completion_ids"][3:]
    reward(**batch | {"completion_ids": cut})
    assert [row["tokens"] for row in taken] == [len(ids) for ids in cut[:3]] + [0]


@pytest.mark.parametrize("text", ["", " \n"])
def test_an_answer_without_text_gets_nothing_and_is_not_scored(tiny, batch, text):
    reward = CalifReward()
    reward.bind(trainer(tiny))
    logged = {}
    blank = {"completions": [text] * 4, "completion_ids": [[28, tiny.tokenizer.eos_token_id]] * 4}
    assert reward(**batch | blank, log_metric=logged.__setitem__) == [0.0] * 4
    assert math.isnan(logged["loglik"])
    assert logged["zone/unbounded"] == 1.0


def test_the_semantics_of_the_verdicts_can_be_chosen(tiny, batch, monkeypatch):
    asked = []

    def followed(constraints, text, semantics, **options):
        asked.append(semantics)
        return 1.0

    monkeypatch.setattr("califkit.rewards.fraction_followed", followed)
    reward = CalifReward(semantics="repaired")
    reward.bind(trainer(tiny))
    reward(**batch)
    assert set(asked) == {"repaired"}


@pytest.mark.parametrize("short", ["completions", "completion_ids", "request", "constraints", "l0"])
def test_columns_of_unequal_length_are_refused(tiny, batch, short):
    reward = CalifReward()
    reward.bind(trainer(tiny))
    with pytest.raises(ValueError):
        reward(**batch | {short: batch[short][:1]})


def test_an_unbound_reward_says_what_to_do(batch):
    with pytest.raises(RuntimeError, match=r"call reward.bind\(trainer\)"):
        CalifReward()(**batch)


def test_an_unbound_reward_can_be_pickled(tiny, batch):
    reward = pickle.loads(pickle.dumps(CalifReward(alpha=0.3, semantics="repaired")))  # noqa: S301
    assert (reward.alpha, reward.semantics, reward.__name__) == (0.3, "repaired", "calif")
    reward.bind(trainer(tiny))
    assert reward(**batch)[0] == pytest.approx(1.3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ref_model": None}, "no reference model"),
        ({"args": SimpleNamespace(sync_ref_model=True, temperature=1.0)}, "sync_ref_model=True"),
        ({"args": SimpleNamespace(sync_ref_model=False, temperature=0.9)}, "temperature=0.9"),
    ],
)
def test_a_trainer_that_would_make_the_bounds_wrong_is_refused(tiny, batch, changes, message):
    reward = CalifReward()
    with pytest.raises(ValueError, match=message):
        reward.bind(trainer(tiny, **changes))
    with pytest.raises(RuntimeError, match="bind"):
        reward(**batch)


def test_the_reference_is_taken_out_of_its_wrapper(tiny, batch):
    wrapper = object()
    unwrap = {wrapper: tiny.model}.__getitem__
    reward = CalifReward()
    reward.bind(trainer(tiny, ref_model=wrapper, accelerator=SimpleNamespace(unwrap_model=unwrap)))
    assert reward(**batch)[0] == pytest.approx(1.1)


@pytest.mark.parametrize("alpha", [0, -0.1])
def test_a_useless_alpha_is_refused_when_the_reward_is_made(alpha):
    with pytest.raises(ValueError, match="alpha must be positive"):
        CalifReward(alpha=alpha)


def test_constraints_travel_as_json():
    constraints = [
        Constraint("punctuation:no_comma"),
        Constraint("length_constraints:number_words", {"num_words": 5, "relation": "at least"}),
    ]
    assert json.loads(constraints_json(constraints)) == [
        {"id": "punctuation:no_comma", "kwargs": {}},
        {
            "id": "length_constraints:number_words",
            "kwargs": {"num_words": 5, "relation": "at least"},
        },
    ]
