"""A real GRPO run of both methods on a tiny model."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tiny_runs import environment, params_file, tiny_params

from califkit.anchors.rows import AnchorError
from califkit.anchors.table import ANCHORS, load_anchors
from califkit.data.prompts import training_prompts
from califkit.models.likelihood import ReferenceScorer
from califkit.models.resolve import load_model, load_tokenizer, resolve
from califkit.rewards.statistics import alarms
from califkit.runs.dispatch import run_stage
from califkit.runs.folders import (
    LOG,
    ROLLOUTS,
    MissingRunError,
    Run,
    StaleRunError,
    open_run,
    own_run,
)
from califkit.runs.jsonl import read_jsonl
from califkit.runs.paths import StorageError
from califkit.runs.settings import ParamsError

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
    from califkit.training import grpo

    folder = tmp_path_factory.mktemp("training")
    result = Trained()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CALIFKIT_RUNS", str(folder / "runs"))
        params = tiny_params(folder)
        bind = grpo.CalifReward.bind
        for stage in params.settings.train_stages():

            def spy(reward, trainer, method=stage.method):
                bind(reward, trainer)
                result.trainers[method] = trainer
                score = reward.scorer.score

                def recorded(requests, answers):
                    values = score(requests, answers)
                    result.scored[method].append((list(requests), list(answers), values))
                    return values

                reward.scorer.score = recorded

            patch.setattr(grpo.CalifReward, "bind", spy)
            result.runs[stage.method] = run_stage("tiny", stage, params.settings.execution)
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
        self_test, *steps = trained.scored[method]
        assert len(self_test[0]) == 2 * PROMPTS * STEPS  # both answers of every prompt
        assert len(steps) == STEPS
        online = []
        for requests, answers, values in steps:
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
        assert manifest["sampling"]["temperature"] == 1.0
        assert manifest["sampling"]["top_k"] == 0
        assert manifest["sampling"]["no_repeat_ngram_size"] == 0
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
            "vllm_importance_sampling_correction": False,
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

    def test_what_was_checked_and_found_is_in_the_manifest(self, trained, method):
        manifest = trained.runs[method].manifest()
        assert 0 <= manifest["anchor_self_test"] < 1e-4  # the same scorer on the same machine
        assert manifest["reference"] == "kl_model"
        assert manifest["processes"] == 1
        assert manifest["dropped_prompts"] == 0
        assert manifest["semantics"] == "published"

    def test_three_samples_of_every_step_are_logged(self, trained, method):
        for row in trained.log(method):
            own = [r for r in trained.rollouts(method) if r["step"] == row["step"]]
            assert len(row["samples"]) == 3
            for sample in row["samples"]:
                assert set(sample) == {"key", "completion", "r_ver", "loglik", "reward", "zone"}
                assert any(sample.items() <= rollout.items() for rollout in own)

    def test_what_to_watch_is_logged(self, trained, method):
        log = trained.log(method)
        for number, row in enumerate(log, start=1):
            assert row["alarms"] == alarms(log[:number])
            watched = {"entropy", "kl", "clipped", "reward_minus_r_ver", "frac_reward_zero_std"}
            assert watched <= row.keys()
            assert "r_ver/keywords" in row or "r_ver/letters" in row

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


# ---------------------------------------------------------------- other ways to train


@pytest.fixture
def runs(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("CALIFKIT_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


def run_one(folder: Path, **changes) -> Run:
    params = tiny_params(folder, **changes)
    (stage,) = params.settings.train_stages()
    return run_stage("tiny", stage, params.settings.execution)


def weights(folder: Path) -> dict:
    return load_model(folder).state_dict()


class TestAdapters:
    @pytest.fixture(scope="class")
    def adapted(self, tmp_path_factory) -> Run:
        folder = tmp_path_factory.mktemp("adapters")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("CALIFKIT_RUNS", str(folder / "runs"))
            lora = {"r": 4, "target_modules": ["q_proj", "down_proj"]}
            yield run_one(folder, methods=["calif"], training={"lora": lora})

    def test_the_policy_is_a_plain_model_with_the_adapters_merged_in(self, adapted):
        names = {path.name for path in (adapted.folder / "policy").iterdir()}
        assert "model.safetensors" in names and not any("adapter" in name for name in names)
        base = weights(resolve(adapted.stage.anchors.model))
        for name, value in weights(adapted.folder / "policy").items():
            difference = value - base[name]
            if "q_proj" in name or "down_proj" in name:
                assert difference.abs().max() > 1e-5
                assert np.linalg.matrix_rank(difference.numpy(), tol=1e-6) <= 4
            else:
                assert not difference.any(), name

    def test_the_reference_is_the_start(self, adapted):
        assert adapted.manifest()["reference"] == "adapter_off"
        folder = resolve(adapted.stage.anchors.model)
        scorer = ReferenceScorer(load_model(folder), load_tokenizer(folder))
        data = training_prompts(adapted.stage.anchors.data)
        requests = {i.key: i.request for i in data.instances}
        rows = read_jsonl(adapted.folder / ROLLOUTS)
        tokenizer = scorer.tokenizer
        again = [tokenizer(r["completion"], add_special_tokens=False)["input_ids"] for r in rows]
        # Text and token ids of random tokens do not always go back and forth.
        same = [i for i, r in enumerate(rows) if len(again[i]) == r["tokens"] and r["clipped"]]
        assert len(same) >= 5
        logged = [rows[i]["loglik"] for i in same]
        offline = scorer.score([requests[rows[i]["key"]] for i in same], [again[i] for i in same])
        assert np.sum(np.abs(offline - logged) < 1e-4) >= 5

    def test_it_is_trained_and_logged_like_any_other(self, adapted):
        log = read_jsonl(adapted.folder / LOG)
        assert [row["step"] for row in log] == [1, 2, 3]
        assert log[-1]["kl"] > 0
        assert adapted.manifest()["settings"]["training"]["lora"]["r"] == 4


def test_without_a_kl_term_the_reference_is_a_copy(tmp_path, runs):
    run = run_one(tmp_path, methods=["calif"], training={"beta": 0.0, "steps": 2})
    assert run.manifest()["reference"] == "own_copy"
    assert run.manifest()["trl_config"]["beta"] == 0
    assert all("kl" not in row for row in read_jsonl(run.folder / LOG))
    assert run.manifest()["anchor_self_test"] < 1e-4


def test_a_region_method_takes_its_bounds_from_the_intervals(tmp_path, runs):
    from califkit.anchors.table import bounds_for

    run = run_one(tmp_path, methods=["inner_region"], region_draws=3, training={"steps": 2})
    anchors = open_run("tiny", run.stage.anchors)
    assert run.stage.anchors.anchors.draws == 3
    table = load_anchors(anchors)
    l0, l1 = bounds_for("inner_region", table)
    place = {key: i for i, key in enumerate(table["key"])}
    for row in read_jsonl(run.folder / ROLLOUTS):
        i = place[row["key"]]
        assert (row["l0"], row["l1"]) == pytest.approx((l0[i], l1[i]))


def configuration(folder: Path, **changes):
    from califkit.training.grpo import grpo_config

    params = tiny_params(folder, methods=["calif"], **changes)
    (stage,) = params.settings.train_stages()
    return grpo_config(stage, params.settings.execution, folder, "float32")


def test_processes_share_the_rollouts_of_a_step(tmp_path):
    """2 prompts x 4 rollouts in micro-batches of 2."""
    for processes, accumulation in ((1, 4), (2, 2)):
        config = configuration(
            tmp_path, training={"micro_batch_size": 2}, execution={"processes": processes}
        )
        assert config.per_device_train_batch_size == 2
        assert config.gradient_accumulation_steps == accumulation


def test_settings_reach_the_trainer(tmp_path):
    config = configuration(
        tmp_path,
        thinking=True,
        execution={"keep_checkpoints": 3, "save_every": 7, "report_to": ["wandb"]},
        training={"use_vllm": True, "lora": {"r": 4}},
    )
    assert config.chat_template_kwargs == {"enable_thinking": True}
    assert (config.save_total_limit, config.save_steps) == (3, 7)
    assert config.report_to == ["wandb"]
    assert (config.use_vllm, config.vllm_mode) == (True, "colocate")
    assert config.disable_dropout
    lora = configuration(tmp_path, training={"lora": {"r": 4, "dropout": 0.1}})
    assert not lora.disable_dropout  # it would switch the adapter's own off


# ---------------------------------------------------------------- what is refused


def test_a_launcher_starts_as_many_processes_as_were_checked(tmp_path, runs, monkeypatch):
    from califkit.training.grpo import train

    monkeypatch.setenv("WORLD_SIZE", "3")
    params = tiny_params(tmp_path, methods=["calif"])
    with pytest.raises(ParamsError, match="started in 3 processes, but execution.processes = 1"):
        train("tiny", params.settings.train_stages()[0], params.settings.execution)
    assert not runs.exists()


def test_training_opens_its_anchors_and_measures_none(tmp_path, runs):
    from califkit.training.grpo import train

    params = tiny_params(tmp_path, methods=["calif"])
    (stage,) = params.settings.train_stages()
    anchors = open_run("tiny", stage.anchors).folder
    expected = f"{anchors}: is not complete; `califkit anchors` with the profile tiny computes it"
    with pytest.raises(MissingRunError, match=expected):
        train("tiny", stage, params.settings.execution)
    assert not anchors.exists()


def test_a_run_does_not_go_on_with_another_number_of_processes(tmp_path, runs, monkeypatch):
    (stage,) = tiny_params(tmp_path, methods=["calif"]).settings.train_stages()
    checkpoints = own_run("tiny", stage).folder / "checkpoints"
    (checkpoints / "checkpoint-2").mkdir(parents=True)
    (checkpoints / "checkpoint-2" / "trainer_state.json").write_text('{"global_step": 2}')
    (checkpoints / "facts.json").write_text('{"processes": 2}')
    with pytest.raises(StaleRunError, match="begun with 2 processes and cannot go on with 1"):
        run_one(tmp_path, methods=["calif"])
    assert not list(runs.rglob("draws*"))


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CALIFKIT_RUNS", str(tmp_path / "file" / "runs"))
    with pytest.raises(StorageError, match="cannot be written"):
        run_one(tmp_path, methods=["calif"])


def test_a_disk_that_is_too_small_before_the_first_step(tmp_path, runs, monkeypatch):
    params = tiny_params(tmp_path, methods=["calif"])
    run_stage("tiny", params.settings.anchor_stage(), params.settings.execution)
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(StorageError, match=r"training/.*GB are needed, 0.00 GB are free"):
        run_one(tmp_path, methods=["calif"])
    assert not list(runs.rglob(LOG))


class TestPromptsWithUnsoundAnchors:
    @pytest.fixture
    def stages(self, tmp_path, runs):
        """Both methods on anchors of twelve tokens, with one natural answer that is a loop."""
        from califkit.anchors.table import read_metadata, write_anchors

        params = tiny_params(
            tmp_path,
            anchors={"sampling": {"max_tokens": 12, "batch_size": 12}},
            training={"drop_degenerate": True},
        )
        stages = params.settings.train_stages()
        self.anchors = run_stage("tiny", stages[0].anchors, params.settings.execution)
        path = self.anchors.folder / ANCHORS
        table, metadata = load_anchors(self.anchors), read_metadata(path)
        table["identical"] = False
        for side in ("constrained", "natural"):
            defects = ["loop" if side == "natural" and i == 2 else "" for i in range(len(table))]
            table[f"{side}_defect_each"] = [np.array([defect], dtype=object) for defect in defects]
        write_anchors(table, path, metadata)
        self.key = table.at[2, "key"]
        return stages

    def rows(self, stage):
        from califkit.training.rows import training_rows

        return training_rows(stage, self.anchors, training_prompts(stage.anchors.data))

    def test_leave_under_every_method(self, stages):
        for stage in stages:
            instances, rows = self.rows(stage)
            assert len(instances) == len(rows) == 5
            assert [i.key for i in instances] == rows["key"][:]
            assert self.key not in rows["key"][:]

    def test_stay_unless_asked(self, stages):
        plain = stages[0].training.model_copy(update={"drop_degenerate": False})
        instances, rows = self.rows(stages[0].model_copy(update={"training": plain}))
        assert self.key in rows["key"][:] and len(instances) == 6

    def test_too_few_that_remain_are_an_error(self, stages):
        many = stages[0].training.model_copy(update={"prompts_per_step": 6})
        with pytest.raises(AnchorError, match="5 of 6 prompts have sound anchors, fewer than"):
            self.rows(stages[0].model_copy(update={"training": many}))


def test_anchors_that_the_scorer_does_not_reproduce(tmp_path, runs):
    """A stored likelihood that is off by more than the tolerance stops the run before a step."""
    import json

    params = tiny_params(tmp_path, methods=["calif"])
    (stage,) = params.settings.train_stages()
    anchors = run_stage("tiny", stage.anchors, params.settings.execution)
    (draws,) = anchors.folder.glob("draws*.jsonl")
    rows = read_jsonl(draws)
    rows[0]["loglik"] += 0.03
    draws.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(AnchorError, match="scored again"):
        run_one(tmp_path, methods=["calif"])
    assert not (own_run("tiny", stage).folder / LOG).exists()


# ---------------------------------------------------------------- a disk that fills, two processes


def test_a_disk_that_fills_up_during_training(tmp_path, monkeypatch):
    """The error says so; with room again the same command continues."""
    from califkit.training import grpo

    disk = tmp_path / "disk"
    disk.mkdir()
    size = ["-o", "size=70m", "none", str(disk)]  # one checkpoint of 38 MB, not two
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", *size]).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        monkeypatch.setenv("CALIFKIT_RUNS", str(disk))
        params = tiny_params(tmp_path, methods=["calif"], execution={"save_every": 1})
        (stage,) = params.settings.train_stages()
        run_stage("tiny", stage.anchors, params.settings.execution)
        with monkeypatch.context() as patch:
            patch.setattr(grpo, "bytes_needed", lambda *arguments: 0)
            with pytest.raises(StorageError, match="the disk is full; free some space"):
                run_one(tmp_path, methods=["calif"], execution={"save_every": 1})
        more = ["mount", "-o", "remount,size=500m", str(disk)]
        subprocess.run(more, check=True)
        run = run_one(tmp_path, methods=["calif"], execution={"save_every": 1})
        assert [row["step"] for row in read_jsonl(run.folder / LOG)] == [1, 2, 3]
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


TWO_PROCESSES = """
import sys
from califkit.runs.params import load_params
from califkit.training.grpo import train
params = load_params(sys.argv[1])
(stage,) = params.settings.train_stages()
run = train(params.profile, stage, params.settings.execution)
assert run.is_complete  # on both
"""


def test_two_processes_under_torchrun(tmp_path, runs, trained):
    script = tmp_path / "script.py"
    script.write_text(TWO_PROCESSES)
    alone = tiny_params(tmp_path, methods=["calif"]).settings
    run_stage("tiny", alone.anchor_stage(), alone.execution)
    file = params_file(tmp_path, methods=["calif"], execution={"processes": 2})
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    result = subprocess.run(
        [*command, str(script), str(file)], env=environment(runs), capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr[-3000:]
    (stage,) = tiny_params(tmp_path, methods=["calif"]).settings.train_stages()
    run = own_run("tiny", stage)
    assert run.manifest()["processes"] == 2
    assert run.manifest()["trl_config"]["gradient_accumulation_steps"] == 1
    log, rollouts = read_jsonl(run.folder / LOG), read_jsonl(run.folder / ROLLOUTS)
    assert [row["step"] for row in log] == [1, 2, 3]
    one = trained.rollouts("calif")
    assert [(r["step"], r["key"]) for r in rollouts] == [(r["step"], r["key"]) for r in one]
    for row in log:
        own = [r for r in rollouts if r["step"] == row["step"]]
        for name in ("r_ver", "loglik", "reward"):
            assert row[name] == pytest.approx(np.mean([r[name] for r in own]), abs=1e-5)
    assert (run.folder / "policy" / "model.safetensors").is_file()
    assert not (run.folder / "checkpoints").exists()
    assert result.stdout.count("step 3 of 3") == 1  # only the first process speaks
