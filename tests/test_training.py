"""A real GRPO run of both methods on a tiny model."""

import numpy as np
import pytest
from tiny_runs import tiny_params

from califkit.anchors import load_anchors
from califkit.likelihood import ReferenceScorer
from califkit.models import load_model, load_tokenizer, resolve
from califkit.prompts import training_prompts
from califkit.runs import LOG, ROLLOUTS, Run, open_run, read_jsonl

pytestmark = pytest.mark.slow

STEPS, PROMPTS, ROLLOUTS_PER_PROMPT = 3, 2, 4
ZONE_NAMES = ["below", "inside", "above", "reversed", "unbounded"]


class Trained:
    """Runs of both methods, and what went through the scorer of each."""

    def __init__(self) -> None:
        self.runs: dict[str, Run] = {}
        self.trainers: dict[str, object] = {}
        self.scored: dict[str, list[tuple]] = {"if_rlvr": [], "calif": []}

    def rollouts(self, method: str) -> list[dict]:
        return read_jsonl(self.runs[method].folder / ROLLOUTS)

    def log(self, method: str) -> list[dict]:
        return read_jsonl(self.runs[method].folder / LOG)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    from califkit import training

    folder = tmp_path_factory.mktemp("training")
    result = Trained()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CALIFKIT_RUNS", str(folder / "runs"))
        params = tiny_params(folder)
        bind = training.CalifReward.bind
        for stage in params.settings.train_stages():

            def spy(reward, trainer, method=stage.method):
                bind(reward, trainer)
                result.trainers[method] = trainer
                score = reward._scorer.score

                def recorded(requests, answers):
                    values = score(requests, answers)
                    result.scored[method].append((list(requests), list(answers), values))
                    return values

                reward._scorer.score = recorded

            patch.setattr(training.CalifReward, "bind", spy)
            result.runs[stage.method] = training.train("tiny", stage, params.settings.execution)
        yield result


@pytest.mark.parametrize("method", ["if_rlvr", "calif"])
class TestLogs:
    def test_a_row_a_step(self, trained, method):
        assert [row["step"] for row in trained.log(method)] == [1, 2, 3]
        assert trained.runs[method].manifest()["rows"] == STEPS

    def test_a_row_a_rollout(self, trained, method):
        rows = trained.rollouts(method)
        assert len(rows) == STEPS * PROMPTS * ROLLOUTS_PER_PROMPT
        for step in (1, 2, 3):
            keys = [row["key"] for row in rows if row["step"] == step]
            assert len(set(keys)) == PROMPTS
            assert all(keys.count(key) == ROLLOUTS_PER_PROMPT for key in keys)

    def test_an_epoch_shows_every_prompt_once(self, trained, method):
        keys = {row["key"] for row in trained.rollouts(method)}
        data = trained.runs[method].stage.anchors.data
        assert keys == {instance.key for instance in training_prompts(data).instances}

    def test_step_rows_are_means_of_the_rollouts(self, trained, method):
        rollouts = trained.rollouts(method)
        for row in trained.log(method):
            own = [r for r in rollouts if r["step"] == row["step"]]
            for name in ("r_ver", "loglik", "tokens", "distinct_2", "reward"):
                mean = np.mean([r[name] for r in own])
                assert row[name] == pytest.approx(mean, abs=1e-5), (row["step"], name)

    def test_zone_shares(self, trained, method):
        rollouts = trained.rollouts(method)
        for row in trained.log(method):
            own = [r["zone"] for r in rollouts if r["step"] == row["step"]]
            shares = [row[f"zone/{zone}"] for zone in ZONE_NAMES]
            assert sum(shares) == pytest.approx(1)
            assert shares == pytest.approx([own.count(z) / len(own) for z in ZONE_NAMES])

    def test_zones_follow_the_bounds(self, trained, method):
        for r in trained.rollouts(method):
            if r["l0"] > r["l1"]:
                expected = "reversed"
            elif r["loglik"] < r["l0"]:
                expected = "below"
            else:
                expected = "inside" if r["loglik"] <= r["l1"] else "above"
            assert r["zone"] == expected

    def test_bounds_are_those_of_the_anchors(self, trained, method):
        run = trained.runs[method]
        table = load_anchors(open_run("tiny", run.stage.anchors)).set_index("key")
        for r in trained.rollouts(method):
            assert r["l0"] == pytest.approx(table.at[r["key"], "l0"])
            assert r["l1"] == pytest.approx(table.at[r["key"], "l1"])

    def test_the_policy_moved_and_the_reference_did_not(self, trained, method):
        run, trainer = trained.runs[method], trained.trainers[method]
        folder = resolve(run.stage.anchors.model)
        base, policy = load_model(folder), load_model(run.folder / "policy")
        moved = [
            (a - b).abs().max().item()
            for a, b in zip(base.parameters(), policy.parameters(), strict=True)
        ]
        assert min(moved) > 1e-4
        reference = trainer.ref_model.state_dict()
        assert all(reference[name].equal(value) for name, value in base.state_dict().items())
        assert trained.log(method)[0]["kl"] == pytest.approx(0, abs=1e-7)
        assert trained.log(method)[-1]["kl"] > 1e-5

    def test_online_and_offline_likelihood_agree(self, trained, method):
        """Every rollout of every step scored again by a fresh scorer, and one answer after it."""
        run, trainer = trained.runs[method], trained.trainers[method]
        folder = resolve(run.stage.anchors.model)
        offline = ReferenceScorer(load_model(folder), load_tokenizer(folder), tokens_per_pass=1)
        assert len(trained.scored[method]) == STEPS
        online = []
        for requests, answers, values in trained.scored[method]:
            np.testing.assert_allclose(offline.score(requests, answers), values, atol=1e-5)
            online += values.tolist()
        logged = [r["loglik"] for r in trained.rollouts(method)]
        assert online == logged

        fixed = ["Name a colour."], [[100, 200, 300, 2]]
        after = ReferenceScorer(trainer.ref_model, trainer.processing_class).score(*fixed)
        np.testing.assert_allclose(after, offline.score(*fixed), atol=1e-5)
        policy = ReferenceScorer(trainer.model, trainer.processing_class).score(*fixed)
        assert abs(policy - after) > 1e-3

    def test_requests_are_scored_without_their_constraints(self, trained, method):
        data = trained.runs[method].stage.anchors.data
        known = {instance.request for instance in training_prompts(data).instances}
        assert {x for requests, _, _ in trained.scored[method] for x in requests} == known

    def test_resolved_configuration_is_in_the_manifest(self, trained, method):
        manifest = trained.runs[method].manifest()
        config = manifest["trl_config"]
        expected = {
            "beta": 0.001,
            "loss_type": "dapo",
            "scale_rewards": "group",
            "epsilon": 0.2,
            "num_iterations": 1,
            "importance_sampling_level": "token",
            "use_bias_correction_kl": False,
            "sync_ref_model": False,
            "mask_truncated_completions": False,
            "disable_dropout": True,
            "temperature": 1.0,
            "top_p": 1.0,
            "top_k": 0,
            "num_generations": ROLLOUTS_PER_PROMPT,
            "max_completion_length": 8,
            "max_steps": STEPS,
            "per_device_train_batch_size": 4,
            "gradient_accumulation_steps": 2,
            "learning_rate": 1e-3,
            "lr_scheduler_type": "constant",
            "warmup_steps": 0,
            "seed": 0,
            "data_seed": 0,
            "chat_template_kwargs": {"enable_thinking": False},
            "output_dir": "./checkpoints",
        }
        assert {key: config[key] for key in expected} == expected
        assert manifest["settings"]["method"] == method
        assert manifest["versions"]["trl"][0].isdigit()

    def test_nothing_is_left_of_the_work(self, trained, method):
        names = {path.name for path in trained.runs[method].folder.iterdir()}
        assert names == {LOG, ROLLOUTS, "policy", "manifest.json", ".lock"}


def test_precision_is_float32_on_a_cpu(trained):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    config = trained.runs["calif"].manifest()["trl_config"]
    assert not config["bf16"] and not config["fp16"] and config["use_cpu"]
    assert config["model_init_kwargs"] == {"dtype": "float32"}


def test_if_rlvr_is_rewarded_by_the_verifier_alone(trained):
    assert all(r["reward"] == r["r_ver"] for r in trained.rollouts("if_rlvr"))


def test_calif_is_rewarded_by_the_formula(trained):
    """Paper, section 2.3, written out for one rollout."""
    for r in trained.rollouts("calif"):
        if r["loglik"] > r["l1"]:
            expected = 0.0
        elif r["l0"] <= r["loglik"] and r["r_ver"] > 0:
            expected = r["r_ver"] + (0.1 if r["l0"] <= r["l1"] else 0.0)
        else:
            expected = r["r_ver"]
        assert r["reward"] == pytest.approx(expected), r


def test_both_methods_start_alike(trained):
    """The same prompts in the same order, and, until the first update, the same rollouts."""
    keys = {m: [(r["step"], r["key"]) for r in trained.rollouts(m)] for m in trained.runs}
    assert keys["if_rlvr"] == keys["calif"]
    first = {
        m: [r["completion"] for r in trained.rollouts(m) if r["step"] == 1] for m in trained.runs
    }
    assert first["if_rlvr"] == first["calif"]
