"""CaLIF as TRL calls it, bound to a real trainer."""

import copy
import json
import math
import pickle
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers import OWN_SETTINGS
from tiny_trainer import MANY_E, likelihood, make_config, make_trainer, rows

from califkit.anchors.region import ZONES
from califkit.data.rows import constraints_json
from califkit.exhibits.training import training_table
from califkit.rewards.reference import NoReferenceError
from califkit.rewards.statistics import step_statistics
from califkit.rewards.trl import CalifReward, RewardError, check_config
from califkit.runs.folders import Run
from califkit.runs.params import load_params
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


@pytest.fixture(scope="module")
def trainer(tiny, tiny_folder, tmp_path_factory):
    """A trainer that has not trained; two rollouts a prompt."""
    folder = tmp_path_factory.mktemp("trainer")
    config = make_config(folder, per_device_train_batch_size=4, num_generations=2)
    return make_trainer(tiny_folder, config, CalifReward(), tiny.tokenizer)


@pytest.fixture
def bound(trainer):
    """Makes a reward that is bound to the trainer."""

    def make(*args, **options) -> CalifReward:
        reward = CalifReward(*args, **options)
        reward.bind(trainer)
        return reward

    trainer.model.train()  # as while it trains
    return make


def responses(tiny, texts) -> dict:
    """Texts as TRL hands rollouts over: decoded, and as ids with the end-of-turn token."""
    end = tiny.tokenizer.eos_token_id
    ids = [[*tiny.tokenizer(t, add_special_tokens=False)["input_ids"], end] for t in texts]
    return {"completions": list(texts), "completion_ids": ids}


@pytest.fixture
def batch(tiny) -> dict:
    """Four rollouts of two prompts."""
    return responses(tiny, TEXTS) | {
        "prompts": [[{"role": "user", "content": f"prompt {i // 2}"}] for i in range(4)],
        "request": ["Name a drink."] * 2 + ["Describe the weather at the sea."] * 2,
        "constraints": [FOUR_WORDS_NO_COMMA] * 4,
        "l0": [-100.0] * 4,
        "l1": [0.0] * 4,
    }


def expected_likelihoods(tiny, batch) -> list[float]:
    """The last answer has no text, so no likelihood."""
    pairs = zip(batch["request"][:3], batch["completion_ids"][:3], strict=True)
    return [likelihood(tiny.model, tiny.tokenizer, x, ids) for x, ids in pairs]


# --- rewards -------------------------------------------------------------------------------------


def test_rewards_come_in_the_order_of_the_rollouts(bound, batch):
    reward = bound(alpha=0.1)
    # r_ver: both; none of two; no comma only; an empty answer follows nothing.
    assert reward(**batch) == pytest.approx([1.1, 0.0, 0.6, 0.0])
    turned = {name: values[::-1] for name, values in batch.items()}
    assert reward(**turned) == pytest.approx([0.0, 0.6, 0.0, 1.1])


def test_each_rollout_is_held_against_its_own_bounds(bound, tiny, batch):
    first, _, third = expected_likelihoods(tiny, batch)
    reward = bound(alpha=0.1)
    near = batch | {"l0": [first - 1e-4] * 4, "l1": [first + 1e-4] * 4}
    assert reward(**near)[0] == pytest.approx(1.1), "l is that of the reference given the request"
    above = batch | {"l1": [first - 0.01, 0.0, third - 0.01, 0.0]}
    assert reward(**above) == [0.0, 0.0, 0.0, 0.0]
    reversed_bounds = batch | {"l0": [0.0] * 4, "l1": [first + 0.01, -50.0, third - 0.01, -50.0]}
    assert reward(**reversed_bounds) == pytest.approx([1.0, 0.0, 0.0, 0.0])
    missing = batch | {"l0": [None] * 4, "l1": [NAN, None, -50.0, -50.0]}
    assert reward(**missing) == pytest.approx([1.0, 0.0, 0.5, 0.0])


def test_conversations_are_scored_like_strings(bound, batch):
    reward = bound()
    conversations = [[{"role": "assistant", "content": text}] for text in TEXTS]
    assert reward(**batch | {"completions": conversations}) == reward(**batch)


def test_if_rlvr_is_the_verifier_fraction_whatever_the_likelihood(bound, batch):
    reward = bound(method="if_rlvr")
    logged = {}
    rewards = reward(**batch | {"l1": [-50.0] * 4}, log_metric=logged.__setitem__)
    assert rewards == [1.0, 0.0, 0.5, 0.0]
    assert logged["zone/above"] == 0.75, "zones are logged all the same"
    assert logged["above_ceiling"] == 0.5, "of them two have something to lose"
    assert logged["reward_minus_r_ver"] == 0.0


def test_the_direct_bonus_grows_with_the_likelihood(bound, tiny, batch):
    first, _, third = expected_likelihoods(tiny, batch)
    reward = bound(alpha=2.0, method="direct_bonus")
    # Above l1, where CaLIF would pay nothing.
    expected = [1 + 2 * math.exp(first), 0.0, 0.5 + 2 * math.exp(third), 0.0]
    assert reward(**batch | {"l1": [-50.0] * 4}) == pytest.approx(expected, abs=1e-6)


def test_the_options_of_the_rule_are_passed_on(bound, tiny, batch):
    first, *_ = expected_likelihoods(tiny, batch)
    above = batch | {"l1": [first - 0.5] * 4}
    assert bound()(**above)[0] == 0.0
    assert bound(ceiling_margin=1.0)(**above)[0] == pytest.approx(1.1)
    reversed_bounds = above | {"l0": [0.0] * 4}
    assert bound()(**reversed_bounds)[0] == 0.0
    assert bound(reversed_bounds="keep")(**reversed_bounds)[0] == 1.0


def test_the_bonus_can_depend_on_the_anchor(tiny, tiny_folder, tmp_path, batch):
    data = rows(anchor_r_ver=[1.0, 0.5, None, 1.0])
    config = make_config(tmp_path)
    trainer = make_trainer(tiny_folder, config, CalifReward(), tiny.tokenizer, data=data)
    taken = []
    reward = CalifReward(
        bonus_requires_compliant_anchor=True, on_rollouts=lambda step, rows: taken.extend(rows)
    )
    reward.bind(trainer)
    trainer.model.train()
    assert reward(**batch, anchor_r_ver=[1.0, 1.0, 0.5, 0.5]) == pytest.approx([1.1, 0, 0.5, 0])
    assert [row["anchor_r_ver"] for row in taken] == [1.0, 1.0, 0.5, 0.5]
    assert reward(**batch, anchor_r_ver=[None] * 4) == pytest.approx([1.0, 0, 0.5, 0])
    with pytest.raises(RewardError, match="lacks the columns anchor_r_ver"):
        reward(**batch)


def test_the_logged_zone_reaches_up_to_the_ceiling_of_the_rule(bound, tiny, batch):
    first, *_ = expected_likelihoods(tiny, batch)
    changes = {"l0": [first - 1] * 4, "l1": [first - 0.5] * 4}
    for margin, zone, reward in [(None, "above", 0.0), (0.7, "inside", 1.1), (0.4, "above", 0.0)]:
        taken = []
        calif = bound(
            ceiling_margin=margin, on_rollouts=lambda step, rows, to=taken: to.extend(rows)
        )
        calif(**batch | changes)
        assert (taken[0]["zone"], taken[0]["reward"]) == (zone, pytest.approx(reward))


@pytest.mark.parametrize("beta", [0.01, 0.0])
def test_l_is_taken_at_temperature_1_whatever_rollouts_are_drawn_at(
    tiny, tiny_folder, tmp_path, batch, beta
):
    """TRL divides the logits of its own passes by the temperature of the rollouts."""
    config = make_config(tmp_path, temperature=0.6, beta=beta)
    trainer = make_trainer(tiny_folder, config, CalifReward(), tiny.tokenizer)
    taken = []
    reward = CalifReward(bounds_temperature=0.6, on_rollouts=lambda step, rows: taken.extend(rows))
    reward.bind(trainer)
    trainer.model.train()
    reward(**batch)
    expected = expected_likelihoods(tiny, batch)
    assert [row["loglik"] for row in taken[:3]] == pytest.approx(expected, abs=1e-5)
    with pytest.raises(RewardError, match="temperature=0.6, but .* were drawn at 1.0"):
        CalifReward().bind(trainer)


# --- the final answer ----------------------------------------------------------------------------


def test_reasoning_is_not_verified(bound, tiny, batch):
    texts = ["<think>A, b</think>tea", "<think>a</think>tea, b", "<think>not closed", "tea"]
    changes = responses(tiny, texts) | {"constraints": [NO_COMMA] * 4}
    assert bound(method="if_rlvr")(**batch | changes) == [1.0, 0.0, 0.0, 1.0]


def test_reasoning_is_not_scored(bound, tiny, batch):
    """l is that of the tokens after the marker, so the same answer has the same l."""
    texts = ["<think>Hmm, rain?</think>tea", "tea", "<think>a</think>tea", "<think>tea"]
    taken = []
    reward = bound(on_rollouts=lambda step, rows: taken.extend(rows))
    reward(**batch | responses(tiny, texts) | {"request": ["Name a drink."] * 4})
    ids = responses(tiny, ["tea"])["completion_ids"][0]
    l = likelihood(tiny.model, tiny.tokenizer, "Name a drink.", ids)  # noqa: E741
    assert [row["loglik"] for row in taken] == [pytest.approx(l, abs=1e-5)] * 3 + [None]
    assert [row["completion"] for row in taken] == texts, "logged as drawn"


def test_with_thinking_off_nothing_is_hidden_before_an_end_marker(bound, tiny, batch):
    changes = responses(tiny, ["Tea, milk, cake. </think> ok"] * 4)
    changes |= {"constraints": [NO_COMMA] * 4}
    assert bound()(**batch | changes) == [0.0] * 4


def test_what_follows_the_end_of_turn_is_neither_scored_nor_counted(bound, tiny, batch):
    plain, padded = [], []
    bound(on_rollouts=lambda step, rows: plain.extend(rows))(**batch)
    end, more = tiny.tokenizer.eos_token_id, tiny.tokenizer("a, b")["input_ids"]
    batch |= {"completion_ids": [[*ids, end, end, *more] for ids in batch["completion_ids"]]}
    bound(on_rollouts=lambda step, rows: padded.extend(rows))(**batch)
    for name in ("r_ver", "tokens", "answer_tokens", "distinct_2", "clipped"):
        assert [row[name] for row in padded] == [row[name] for row in plain]
    assert [row["loglik"] for row in padded[:3]] == pytest.approx(
        [row["loglik"] for row in plain[:3]], abs=1e-6
    )


def test_in_thinking_mode_a_response_without_a_marker_has_no_answer(
    tiny, tiny_folder, tmp_path, batch
):
    config = make_config(tmp_path, chat_template_kwargs={"enable_thinking": True})
    trainer = make_trainer(tiny_folder, config, CalifReward(), tiny.tokenizer)
    reward = CalifReward(thinking=True)
    reward.bind(trainer)
    texts = ["tea", "hm</think>tea", "<think>hm</think>tea", "<think>tea"]
    changes = responses(tiny, texts) | {"constraints": [NO_COMMA] * 4}
    assert reward(**batch | changes) == pytest.approx([0.0, 1.1, 1.1, 0.0])
    with pytest.raises(RewardError, match="enable_thinking=True"):
        CalifReward().bind(trainer)


@pytest.mark.parametrize("text", ["", " \n"])
def test_an_answer_without_text_gets_nothing_and_is_not_scored(bound, tiny, batch, text):
    logged = {}
    blank = responses(tiny, [text] * 4)
    assert bound()(**batch | blank, log_metric=logged.__setitem__) == [0.0] * 4
    assert math.isnan(logged["loglik"])
    assert logged["zone/unbounded"] == 1.0


def test_the_semantics_of_the_verdicts_can_be_chosen(bound, batch, monkeypatch):
    asked = []

    def verify_all(constraints, text, mode, semantics):
        asked.append((mode, semantics))
        return [True] * len(constraints)

    monkeypatch.setattr("califkit.rewards.score.verify_all", verify_all)
    bound(semantics="repaired")(**batch)
    assert set(asked) == {("strict", "repaired")}


# --- what is logged ------------------------------------------------------------------------------


def test_metrics_of_a_step(bound, tiny, batch):
    first, second, third = expected_likelihoods(tiny, batch)
    logged = {}
    bounds = {"l0": [-100.0, -100.0, 0.0, -100.0], "l1": [0.0, -50.0, -1.0, 0.0]}
    bound()(**batch | bounds, log_metric=logged.__setitem__)
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
    assert logged["r_ver/punctuation"] == 0.5, "no comma in the first and the third of four"
    assert logged["r_ver/length_constraints"] == 0.25
    assert logged["clipped"] == 0.0


def test_all_statistics_of_the_rollouts_are_logged(bound, batch):
    logged, taken = {}, []
    reward = bound(on_rollouts=lambda step, rows: taken.extend(rows))
    reward(**batch, log_metric=logged.__setitem__)
    assert logged == step_statistics(taken)


def test_the_training_table_reads_the_names_that_are_logged(bound, batch, tmp_path):
    logged = {"step": 1, "reward": 0.5, "seconds": 1.0}
    bound(method="no_upper")(**batch, log_metric=logged.__setitem__)
    (tmp_path / "log.jsonl").write_text(json.dumps(logged) + "\n")
    stage = load_params("ci").settings.train_stage("no_upper", 3)
    row = training_table([Run(stage, tmp_path)]).iloc[0]
    assert (row["method"], row["train_seed"], row["step"]) == ("no_upper", 3, 1)
    assert row["r_ver"] == logged["r_ver"]
    assert row["inside"] == 0.75
    assert row["unbounded"] == 0.25


def test_rows_of_the_rollout_log(bound, tiny, batch):
    first, *_ = expected_likelihoods(tiny, batch)
    taken = []
    reward = bound(on_rollouts=lambda step, rows: taken.append((step, rows)))
    batch |= {"key": ["a", "a", "b", "b"], "l0": [-100.0, None, -100.0, -100.0]}
    reward(**batch, trainer_state=SimpleNamespace(global_step=6), log_extra=print, other=[0] * 4)
    ((step, logged),) = taken
    assert step == 6
    assert json.loads(json.dumps(logged, allow_nan=False)) == logged, "plain JSON, no NaN"
    assert [row["key"] for row in logged] == ["a", "a", "b", "b"]
    assert [row["group"] for row in logged] == [0, 0, 1, 1]
    assert [row["completion"] for row in logged] == TEXTS
    assert [row["zone"] for row in logged] == ["inside", "unbounded", "inside", "unbounded"]
    assert logged[0] == {
        "key": "a",
        "group": 0,
        "completion": "Tea and rain today",
        "r_ver": 1.0,
        "loglik": pytest.approx(first, abs=1e-5),
        "l0": -100.0,
        "l1": 0.0,
        "zone": "inside",
        "reward": 1.1,
        "tokens": len(batch["completion_ids"][0]) - 1,
        "answer_tokens": len(batch["completion_ids"][0]) - 1,
        "distinct_2": 1.0,
        "clipped": False,
        "types": {"punctuation": [1, 1], "length_constraints": [1, 1]},
    }
    assert logged[1]["l0"] is None
    assert logged[2]["types"] == {"punctuation": [1, 1], "length_constraints": [0, 1]}
    assert (logged[3]["loglik"], logged[3]["tokens"], logged[3]["distinct_2"]) == (None, 0, None)


def test_rollouts_that_earn_nothing_may_stay_unscored(bound, tiny, batch):
    first, *_ = expected_likelihoods(tiny, batch)
    taken = []
    batch |= {"completions": ["a, b", *TEXTS[1:]]}
    rewards = bound()(**batch)
    log = {}
    paid = bound(score_zero_reward=False, on_rollouts=lambda step, rows: taken.extend(rows))
    assert paid(**batch, log_metric=log.__setitem__) == rewards
    assert all((row["loglik"] is not None) == (row["r_ver"] > 0) for row in taken if row["tokens"])
    assert {row["zone"] for row in taken if row["r_ver"] == 0} == {"unbounded"}
    assert any(row["r_ver"] == 0 and row["tokens"] for row in taken), "or nothing was left out"


def test_the_length_of_answers_is_logged_beside_that_of_the_anchors(bound, batch):
    log = {}
    tokens = [len(ids) - 1 for ids in batch["completion_ids"]]
    assert tokens[3] == 0
    anchors = [tokens[0] / 3, tokens[1], tokens[2] / 2, 5.0]  # ratios 3, 1, 2; none of an empty one
    bound()(**batch, anchor_tokens=anchors, log_metric=log.__setitem__)
    assert log["anchor_length_ratio"] == pytest.approx(2.0)


def test_an_answer_cut_at_the_limit_is_clipped_and_keeps_its_last_token(bound, batch):
    taken = []
    reward = bound(on_rollouts=lambda step, rows: taken.extend(rows))
    cut = [ids[:-1] for ids in batch["completion_ids"][:3]] + batch["completion_ids"][3:]
    reward(**batch | {"completion_ids": cut})
    assert [row["tokens"] for row in taken] == [len(ids) for ids in cut[:3]] + [0]
    assert [row["clipped"] for row in taken] == [True, True, True, False]


def test_evaluation_does_not_enter_the_rollout_log(bound, trainer, tiny, batch, monkeypatch):
    taken, logged = [], {}
    reward = bound(method="if_rlvr", on_rollouts=lambda step, rows: taken.extend(rows))
    monkeypatch.setattr(trainer, "num_generations_eval", 4)
    trainer.model.eval()
    # r_ver 1, 1, 0.5, 0.5: one group of four in evaluation, two of two in training.
    batch |= responses(tiny, [TEXTS[0]] * 2 + [TEXTS[2]] * 2)
    reward(**batch, log_metric=logged.__setitem__)
    assert not taken
    assert logged["r_ver"] == pytest.approx(3 / 4)
    assert logged["groups_with_equal_r_ver"] == 0.0
    trainer.model.train()
    reward(**batch, log_metric=logged.__setitem__)
    assert logged["groups_with_equal_r_ver"] == 1.0


@pytest.mark.slow
def test_a_trainer_logs_the_reward_under_the_name_of_the_method(tiny, tiny_folder, tmp_path):
    taken = []
    reward = CalifReward(method="no_lower", on_rollouts=lambda step, rows: taken.append(rows))
    config = make_config(
        tmp_path, per_device_train_batch_size=4, gradient_accumulation_steps=2, max_steps=2
    )
    trainer = make_trainer(tiny_folder, config, reward, tiny.tokenizer)
    reward.bind(trainer)
    trainer.train()
    logs = [row for row in trainer.state.log_history if "loss" in row]
    assert len(logs) == len(taken) == 2, "one call a step, whatever the micro-batch"
    for log, step in zip(logs, taken, strict=True):
        assert [row["group"] for row in step] == [0] * 4 + [1] * 4
        assert all(len({row["key"] for row in step if row["group"] == g}) == 1 for g in (0, 1))
        mean = sum(row["reward"] for row in step) / 8
        assert log["rewards/no_lower/mean"] == pytest.approx(mean, abs=1e-6)
        for name, value in step_statistics(step).items():
            assert log[name] == pytest.approx(value, abs=1e-5), name


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"request": [" ", "x", "x", "x"]}, r"rollout 0, key 'a': request must be text"),
        ({"request": ["x", None, "x", "x"]}, "rollout 1, key 'b': request must be text, got None"),
        ({"constraints": [NO_COMMA, NO_COMMA, "[", NO_COMMA]}, "rollout 2, key 'c': constraints"),
        ({"constraints": ['[{"id": "no:such"}]'] * 4}, "rollout 0, key 'a': constraints.*no:such"),
        ({"l0": [-1.0, "low", -1.0, -1.0]}, "rollout 1, key 'b': l0 must be a finite number"),
        ({"l1": [0.0, 0.0, 0.0, math.inf]}, "rollout 3, key 'd': l1 must be a finite number"),
        ({"anchor_r_ver": [0.5, 1.5, 1.0, 1.0]}, "rollout 1, key 'b': anchor_r_ver .* 1.5"),
        ({"l1": [0.0, 0.0, 0.5, 0.0]}, "rollout 2, key 'c': l1 must be at most 0"),
        ({"prompts": ["Name a drink."] * 4}, "rollout 0, key 'a': prompt must be a conversation"),
        ({"completions": [[], "x", "x", "x"]}, "rollout 0, key 'a': a completion without an ass"),
        ({"completion_ids": [[6732, 10**9], [1], [1], [1]]}, "token id 1000000000"),
    ],
)
def test_a_rollout_that_cannot_be_scored_is_named(bound, batch, columns, message):
    reward = bound()
    with pytest.raises(RewardError, match=message):
        reward(**batch | {"key": ["a", "b", "c", "d"]} | columns)


@pytest.mark.parametrize("short", ["completions", "completion_ids", "request", "constraints", "l0"])
def test_columns_of_unequal_length_are_refused(bound, batch, short):
    with pytest.raises(RewardError, match="completions, but"):
        bound()(**batch | {short: batch[short][:1]})


@pytest.mark.parametrize("absent", ["request", "constraints", "l0", "l1"])
def test_a_missing_column_is_refused(bound, batch, absent):
    del batch[absent]
    with pytest.raises(RewardError, match=f"lacks the columns {absent}"):
        bound()(**batch)


def test_an_unbound_reward_says_what_to_do(batch):
    with pytest.raises(RuntimeError, match=r"call reward.bind\(trainer\)"):
        CalifReward()(**batch)


def test_an_unbound_reward_can_be_pickled(trainer, batch):
    reward = pickle.loads(pickle.dumps(CalifReward(alpha=0.3, semantics="repaired")))  # noqa: S301
    assert (reward.rule.alpha, reward.semantics, reward.__name__) == (0.3, "repaired", "calif")
    reward.bind(trainer)
    assert reward(**batch)[0] == pytest.approx(1.3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 0}, "alpha must be positive"),
        ({"alpha": -0.1}, "alpha must be positive"),
        ({"alpha": None}, "positive alpha"),
        ({"method": "nonsense"}, "unknown method 'nonsense'"),
        ({"method": "no_lower", "ceiling_margin": 0.1}, "does not use ceiling_margin"),
        ({"semantics": "lenient"}, "semantics must be"),
        ({"tokens_per_pass": 0}, "tokens_per_pass must be at least 1"),
    ],
)
def test_a_useless_option_is_refused_when_the_reward_is_made(options, message):
    with pytest.raises(ValueError, match=message):
        CalifReward(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": "0.1"}, "alpha must be a number, got '0.1'"),
        ({"alpha": True}, "alpha must be a number, got True"),
        ({"ceiling_margin": "1e-1"}, "ceiling_margin must be a number, got '1e-1'"),
        ({"method": "if_rlvr", "alpha": "0.1"}, "alpha must be a number"),
    ],
)
def test_a_number_that_is_none_is_refused_when_the_reward_is_made(options, message):
    with pytest.raises(TypeError, match=message):
        CalifReward(**options)


class TestGenerationConfig:
    """The model's generation_config.json says what TRL leaves unset."""

    @pytest.mark.parametrize(
        ("name", "value"), [("no_repeat_ngram_size", 3), ("min_p", 0.15), ("typical_p", 0.2)]
    )
    def test_what_would_change_the_rollouts_is_refused(self, trainer, monkeypatch, name, value):
        monkeypatch.setattr(trainer.model.generation_config, name, value)
        message = rf"generation_config\.json has {name}={value}: rollouts must be drawn with {name}"
        with pytest.raises(RewardError, match=message):
            CalifReward().bind(trainer)

    def test_what_trl_sets_itself_is_not(self, trainer, monkeypatch):
        for name in ("do_sample", "temperature", "top_p", "top_k", "repetition_penalty"):
            monkeypatch.setattr(trainer.model.generation_config, name, OWN_SETTINGS[name])
        monkeypatch.setattr(trainer.model.generation_config, "no_repeat_ngram_size", 0)
        CalifReward().bind(trainer)

    def test_nor_is_what_generation_kwargs_override(self, tiny, tiny_folder, tmp_path):
        config = make_config(tmp_path, generation_kwargs={"min_p": 0.0, "typical_p": 1.0})
        trainer = make_trainer(tiny_folder, config, CalifReward(), tiny.tokenizer)
        trainer.model.generation_config.min_p = 0.95
        trainer.model.generation_config.typical_p = 0.2
        CalifReward().bind(trainer)
        trainer.model.generation_config.eta_cutoff = 0.1
        with pytest.raises(RewardError, match=r"eta_cutoff=0\.1"):
            CalifReward().bind(trainer)


def test_rollouts_and_bounds_see_the_same_date(tiny, tiny_folder, tmp_path):
    """TRL renders the prompts of the rollouts, with a template that prints today's date."""
    tokenizer = copy.deepcopy(tiny.tokenizer)
    tokenizer.chat_template = "{{ strftime_now('%d %B %Y') }}: {{ messages[0]['content'] }}"
    reward = CalifReward()
    trainer = make_trainer(tiny_folder, make_config(tmp_path), reward, tokenizer)
    reward.bind(trainer)
    prompt_ids, *_ = trainer._tokenize_prompts([[{"role": "user", "content": "Tea?"}]])
    assert tokenizer.decode(prompt_ids[0]) == "26 July 2024: Tea?"
    assert reward.scorer.prefix_ids("Tea?") == prompt_ids[0]


class TestConfig:
    """Refused before any model is loaded."""

    def config(self, **changes):
        from trl import GRPOConfig

        return GRPOConfig(output_dir="unused", use_cpu=True, bf16=False, **changes)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"sync_ref_model": True, "beta": 0.1}, "sync_ref_model=True moves the reference"),
            ({"remove_unused_columns": True}, "remove_unused_columns=True would keep request"),
            ({"temperature": 0.9}, "temperature=0.9, but the answers .* were drawn at 1.0"),
            ({"generation_kwargs": {"temperature": 0.9}}, "generation_kwargs has temperature=0.9"),
            (
                {"top_p": 0.95},
                "top_p=0.95: rollouts must be drawn with top_p=1.0, as the answers",
            ),
            ({"top_k": 20}, "top_k=20: rollouts must be drawn with top_k=0"),
            ({"min_p": 0.05}, "min_p=0.05: rollouts must be drawn with min_p=None"),
            ({"repetition_penalty": 1.1}, "repetition_penalty=1.1: rollouts must be"),
            ({"top_k": None}, "top_k=None: rollouts must be drawn with top_k=0"),  # it means 50
            ({"generation_kwargs": {"top_p": 0.9}}, "generation_kwargs has top_p=0.9"),
            ({"generation_kwargs": {"typical_p": 0.2}}, "generation_kwargs has typical_p=0.2"),
            ({"generation_kwargs": {"no_repeat_ngram_size": 3}}, "with no_repeat_ngram_size=0"),
            ({"generation_kwargs": {"seed": 1}}, "seed=1: rollouts must be drawn without seed"),
            (
                {"use_vllm": True, "generation_kwargs": {"presence_penalty": 1.0}},
                "generation_kwargs has presence_penalty=1.0",
            ),
            (
                {"use_vllm": True, "vllm_structured_outputs_regex": "a+"},
                "vllm_structured_outputs_regex=a",
            ),
        ],
    )
    def test_settings_that_would_make_the_bounds_wrong(self, changes, message):
        with pytest.raises(RewardError, match=message):
            check_config(self.config(**changes))

    def test_plain_draws_are_accepted_however_they_are_said(self):
        check_config(self.config())
        check_config(self.config(top_p=1.0, top_k=0, min_p=0.0, repetition_penalty=1.0))
        check_config(self.config(generation_kwargs={"top_k": 0, "max_time": 60.0}))
        with_vllm = {"min_p": 0.0, "presence_penalty": 0.0, "detokenize": True}
        check_config(self.config(use_vllm=True, generation_kwargs=with_vllm))

    def test_rollouts_are_drawn_at_the_temperature_of_the_bounds(self):
        check_config(self.config(temperature=0.6), bounds_temperature=0.6)
        with pytest.raises(RewardError, match=r"temperature=1.0, but .* were drawn at 0.6"):
            check_config(self.config(), bounds_temperature=0.6)

    def test_an_adapter_on_the_head(self):
        from peft import LoraConfig

        config = self.config()
        check_config(config, LoraConfig(target_modules="all-linear"))
        with pytest.raises(NoReferenceError, match="lm_head"):
            check_config(config, LoraConfig(target_modules=["q_proj", "lm_head"]))

    def test_bind_looks_at_them_too(self, trainer, batch, monkeypatch):
        reward = CalifReward()
        monkeypatch.setattr(trainer.args, "temperature", 0.9)
        with pytest.raises(RewardError, match="temperature=0.9"):
            reward.bind(trainer)
        with pytest.raises(RuntimeError, match="bind"):
            reward(**batch)


THINKS_BY_DEFAULT = (
    "{{ messages[0]['content'] }}|"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
)


class TestTemplate:
    """Prompts have to be rendered for the mode that the reward is made for."""

    @pytest.fixture
    def bind(self, trainer, monkeypatch):
        def bind(template: str, asked: bool | None, thinking: bool) -> None:
            options = None if asked is None else {"enable_thinking": asked}
            monkeypatch.setattr(trainer.processing_class, "chat_template", template)
            monkeypatch.setattr(trainer.args, "chat_template_kwargs", options)
            CalifReward(thinking=thinking).bind(trainer)

        return bind

    def test_a_template_that_thinks_by_default_has_to_be_told_not_to(self, bind):
        with pytest.raises(RewardError, match=r'chat_template_kwargs=\{"enable_thinking": False\}'):
            bind(THINKS_BY_DEFAULT, None, thinking=False)
        bind(THINKS_BY_DEFAULT, False, thinking=False)
        bind(THINKS_BY_DEFAULT, None, thinking=True)
        bind(THINKS_BY_DEFAULT, True, thinking=True)

    def test_a_template_that_does_not_think_by_default_has_to_be_told_to(self, bind):
        template = "{{ messages[0]['content'] }}|{% if enable_thinking %}<think>{% endif %}"
        with pytest.raises(RewardError, match=r'chat_template_kwargs=\{"enable_thinking": True\}'):
            bind(template, None, thinking=True)
        bind(template, None, thinking=False)

    @pytest.mark.parametrize("asked", [None, False])
    def test_a_template_that_always_opens_a_think_block(self, bind, asked):
        template = "{{ messages[0]['content'] }}|<think>\n"
        with pytest.raises(RewardError, match=r"opens a think block.*CalifReward\(thinking=True\)"):
            bind(template, asked, thinking=False)
        bind(template, None, thinking=True)


class TestTrainingSet:
    """Refused when the reward is bound."""

    @pytest.fixture
    def bind(self, trainer, monkeypatch):
        from datasets import Dataset

        def bind(columns: dict, evaluated=None, **options) -> None:
            monkeypatch.setattr(trainer, "train_dataset", Dataset.from_dict(columns))
            monkeypatch.setattr(trainer, "eval_dataset", evaluated)
            CalifReward(**options).bind(trainer)

        return bind

    @pytest.mark.parametrize("absent", ["request", "constraints", "l0", "l1"])
    def test_a_column_that_is_missing(self, bind, absent):
        columns = rows()
        del columns[absent]
        with pytest.raises(RewardError, match=f"lacks the columns {absent}; it has prompt, key"):
            bind(columns)

    @pytest.mark.parametrize("name", ["l0", "l1"])
    @pytest.mark.parametrize("missing", [None, NAN])
    def test_no_anchors_at_all(self, bind, name, missing):
        with pytest.raises(RewardError, match=f"no row .* has {name}: the anchors are not loaded"):
            bind(rows(**{name: [missing] * 4}))

    def test_a_few_missing_anchors_are_accepted(self, bind):
        bind(rows(l0=[None, -1.0, NAN, None], l1=[NAN, 0.0, 0.0, None]))

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"constraints": [MANY_E, MANY_E, "[", MANY_E]}, "row 2 .*key 'prompt-2': constraints"),
            ({"request": ["a", "b", "c", ""]}, "row 3 .*'prompt-3': request must be text"),
            ({"l0": [-1.0, -math.inf, -1.0, -1.0]}, "row 1 .*'prompt-1': l0 .* -inf"),
            (
                {"l0": [-1.0, -1.0, 0.1, -1.0]},
                "row 2 .*'prompt-2': l0 must be at most 0.*; got 0.1",
            ),
            ({"l1": [0.0, 2.5, 0.0, 0.0]}, "row 1 of the training set, .*: l1 must be at most 0"),
            ({"prompt": ["Name a drink."] * 4}, "row 0 .*conversation.*got 'Name a drink.'"),
            ({"prompt": [[]] * 4}, r"row 0 .*conversation.*got \[\]"),
        ],
    )
    def test_a_row_that_cannot_be_used(self, bind, changes, message):
        with pytest.raises(RewardError, match=message):
            bind(rows(**changes))

    def test_an_end_of_an_interval_may_exceed_0(self, bind):
        """Paper section 6: the mean of a side, plus the half-width on one side of the region."""
        for method, wide, other in [("outer_region", "l1", "l0"), ("inner_region", "l0", "l1")]:
            bind(rows(**{wide: [0.4, -1.0, -1.0, -1.0]}), method=method)
            with pytest.raises(RewardError, match=f"{other} must be at most 0"):
                bind(rows(**{other: [0.4, -1.0, -1.0, -1.0]}), method=method)

    def test_fewer_rows_than_a_step_takes(self, bind):
        """TRL would end after zero steps. A step has 4 rollouts, 2 a prompt."""
        with pytest.raises(RewardError, match="has 1 rows, but a step takes 2 prompts"):
            bind(rows(1))
        bind(rows(2))

    @pytest.mark.parametrize("named", [False, True])
    def test_evaluation_sets_are_read_too(self, bind, named):
        from datasets import Dataset

        def evaluated(columns):
            data = Dataset.from_dict(columns)
            return {"easy": Dataset.from_dict(rows()), "hard": data} if named else data

        where = "evaluation set hard" if named else "evaluation set"
        with pytest.raises(RewardError, match=f"row 1 of the {where}, key 'prompt-1': request"):
            bind(rows(), evaluated(rows(request=["a", "", "c", "d"])))
        without = {name: values for name, values in rows().items() if name != "l1"}
        with pytest.raises(RewardError, match="lacks the columns l1"):
            bind(rows(), evaluated(without))
        bind(rows(), evaluated(rows(1)))

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"l0": [-1.0] * 4, "l1": [-2.0] * 3 + [0.0]}, "3 of 4 rows have l0 > l1.*swapped"),
            (
                {"request": [turns[0]["content"] for turns in rows()["prompt"]]},
                "every request is the same as its prompt",
            ),
            (
                {
                    "prompt": [
                        [{"role": "system", "content": "Be brief."}, *turns]
                        for turns in rows()["prompt"]
                    ]
                },
                "4 prompts have a system turn",
            ),
        ],
    )
    def test_likely_mistakes_are_warned_about(self, bind, changes, message):
        with pytest.warns(UserWarning, match=f"training set: {message}") as caught:
            bind(rows(**changes))
        assert [Path(w.filename).name for w in caught] == ["test_trl_reward.py"], "where bind is"

    def test_usual_data_raise_no_warning(self, bind, recwarn):
        prompts = rows()["prompt"]
        some = [prompts[0][0]["content"], "b", "c", "d"]
        bind(rows(request=some, l0=[-1.0] * 4, l1=[-2.0, -2.0, 0.0, 0.0]))
        assert not recwarn.list

    def test_rows_of_a_stream_are_checked_when_they_are_scored(self, trainer, batch, monkeypatch):
        from datasets import IterableDataset

        def stream():
            yield {name: values[0] for name, values in rows(1, constraints=["["]).items()}

        monkeypatch.setattr(trainer, "train_dataset", IterableDataset.from_generator(stream))
        reward = CalifReward()
        reward.bind(trainer)
        with pytest.raises(RewardError, match="rollout 0"):
            reward(**batch | {"constraints": ["["] * 4})


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
