"""verl as the trainer: what it is told, what comes out, and, where it is installed, what it says.

verl trains on GPUs only. A stand-in program with its command line takes its place in the tests of
what happens around it; it calls the reward as verl's reward manager does.
"""

import json
import os
import subprocess
import sys
import textwrap
from importlib.util import find_spec

import numpy as np
import pandas as pd
import pytest
from tiny_runs import tiny_params

from califkit.data.prompts import training_prompts
from califkit.exhibits.training import rollout_table, training_table
from califkit.models.resolve import load_model
from califkit.runs.dispatch import check_stages, run_stage
from califkit.runs.folders import LOG, POLICY, ROLLOUTS
from califkit.runs.jsonl import read_jsonl
from califkit.runs.params import load_params
from califkit.runs.settings import ParamsError
from califkit.runs.stages import stage_hash
from califkit.training import verl

STEPS, PROMPTS, ROLLOUTS_PER_PROMPT = 3, 2, 4
ARM = {"trainer": "verl"}

STAND_IN = '''
    """Takes verl's overrides, trains nothing, leaves what verl leaves."""
    import asyncio, importlib, json, os, pathlib, shutil, sys

    import pandas as pd

    def value(text):
        for name, known in {"true": True, "false": False, "null": None}.items():
            if text == name:
                return known
        if text.startswith("'"):
            return text[1:-1].replace("\\\\'", "'")
        return json.loads(text.replace("'", '"')) if text[0] == "[" else float(text)

    settings = dict(argument.split("=", 1) for argument in sys.argv[1:])
    settings = {name.lstrip("+"): value(text) for name, text in settings.items()}
    prefix = "reward.custom_reward_function"
    module = importlib.import_module(settings[f"{prefix}.path"].removeprefix("pkg://"))
    reward = getattr(module, settings[f"{prefix}.name"])
    options = {k.rsplit(".", 1)[1]: v for k, v in settings.items() if ".reward_kwargs." in k}
    options |= {"tokens_per_pass": int(options["tokens_per_pass"]), "device": "cpu"}
    rows = pd.read_parquet(settings["data.train_files"]).to_dict("records")
    folder = pathlib.Path(settings["trainer.default_local_dir"])
    latest = folder / "latest_checkpointed_iteration.txt"
    first = int(latest.read_text()) + 1 if latest.exists() else 1
    per_step = int(settings["data.train_batch_size"])
    n = int(settings["actor_rollout_ref.rollout.n"])
    log = open(os.environ["VERL_FILE_LOGGER_PATH"], "w")

    async def step(number):
        chosen = [rows[(number * per_step + i) % len(rows)] for i in range(per_step)]
        calls = [
            reward(
                data_source=row["data_source"],
                solution_str=f"Answer {number} {i} to the question.",
                ground_truth=row["reward_model"]["ground_truth"],
                extra_info=row["extra_info"],
                **options,
            )
            for row in chosen
            for i in range(n)
        ]
        return await asyncio.gather(*calls)

    async def main():
        for number in range(first, int(settings["trainer.total_training_steps"]) + 1):
            await step(number)
            metrics = {"actor/pg_loss": 0.5, "actor/kl_loss": 0.25, "actor/entropy": 2.0}
            metrics |= {"response_length/clip_ratio": 0.125, "perf/time_per_step": 7.0}
            log.write(json.dumps({"step": number, "data": metrics}) + "\\n")
            log.flush()
            if os.environ.get("STAND_IN_DIES_AT") == str(number):
                sys.exit(3)
            actor = folder / f"global_step_{number}" / "actor"
            actor.mkdir(parents=True)
            shutil.copytree(settings["actor_rollout_ref.model.path"], actor / "model")
            latest.write_text(str(number))

    asyncio.run(main())
'''
MERGER = """
    import shutil, sys
    at = sys.argv.index
    shutil.copytree(sys.argv[at("--local_dir") + 1] + "/model", sys.argv[at("--target_dir") + 1])
"""


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """A package `verl` with the two programs that are started, first on the path."""
    folder = tmp_path / "packages"
    (folder / "verl" / "trainer").mkdir(parents=True)
    (folder / "verl-0.9.1.dist-info").mkdir()
    (folder / "verl-0.9.1.dist-info" / "METADATA").write_text("Name: verl\nVersion: 0.9.1\n")
    for name in ("__init__.py", "trainer/__init__.py"):
        (folder / "verl" / name).touch()
    (folder / "verl" / "trainer" / "main_ppo.py").write_text(textwrap.dedent(STAND_IN))
    (folder / "verl" / "model_merger.py").write_text(textwrap.dedent(MERGER))
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
    monkeypatch.setenv("CALIFKIT_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture
def params(tmp_path):
    return tiny_params(tmp_path, execution=ARM | {"save_every": 1, "processes": 1})


def stage_of(params, method="calif"):
    return params.settings.train_stage(method, 0)


def test_a_run_by_verl_leaves_what_a_run_by_trl_leaves(params, stand_in):
    stage, execution = stage_of(params), params.settings.execution
    run = run_stage(params.profile, stage, execution)
    facts = run.manifest()
    assert facts["rows"] == STEPS and facts["trainer"] == "verl 0.9.1"
    load_model(run.folder / POLICY)
    rollouts = read_jsonl(run.folder / ROLLOUTS)
    assert len(rollouts) == STEPS * PROMPTS * ROLLOUTS_PER_PROMPT
    keys = {instance.key for instance in training_prompts(stage.data).instances}
    assert {row["key"] for row in rollouts} <= keys
    assert [row["step"] for row in rollouts] == [1] * 8 + [2] * 8 + [3] * 8
    assert all(row["completion"].startswith(f"Answer {row['step']} ") for row in rollouts)
    log = read_jsonl(run.folder / LOG)
    for row in log:
        own = [r for r in rollouts if r["step"] == row["step"]]
        assert row["r_ver"] == pytest.approx(np.mean([r["r_ver"] for r in own]))
        assert row["reward"] == pytest.approx(np.mean([r["reward"] for r in own]))
        assert (row["loss"], row["kl"], row["clipped"], row["seconds"]) == (0.5, 0.25, 0.125, 7.0)
    # What notebooks make of a training run.
    table = training_table([run])
    assert table["step"].tolist() == [1, 2, 3]
    assert len(rollout_table([run])) == 16


def test_a_run_that_dies_goes_on_after_its_last_checkpoint(params, stand_in, monkeypatch):
    stage, execution = stage_of(params), params.settings.execution
    monkeypatch.setenv("STAND_IN_DIES_AT", "2")
    with pytest.raises(RuntimeError, match="verl ended with exit code 3"):
        run_stage(params.profile, stage, execution)
    monkeypatch.delenv("STAND_IN_DIES_AT")
    run = run_stage(params.profile, stage, execution)
    rollouts = read_jsonl(run.folder / ROLLOUTS)
    # The second step was rewarded twice; once is kept.
    assert [row["step"] for row in rollouts] == [1] * 8 + [2] * 8 + [3] * 8
    assert len({(row["step"], row["key"], row["completion"]) for row in rollouts}) == 24


def test_the_trainer_enters_the_description_of_a_run(tmp_path):
    ours = tiny_params(tmp_path).settings.train_stage("calif", 0)
    theirs = tiny_params(tmp_path, execution=ARM).settings.train_stage("calif", 0)
    assert stage_hash(ours) != stage_hash(theirs)
    assert ours.anchors == theirs.anchors


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"training": {"lora": {}}}, "training.lora"),
        ({"training": {"loss_type": "dr_grpo"}}, "training.loss_type = dr_grpo"),
        ({"training": {"scale_rewards": "batch"}}, "training.scale_rewards = batch"),
        ({"training": {"lr_scheduler": "linear"}}, "training.lr_scheduler = linear"),
        ({"reward": {"bonus_requires_compliant_anchor": True}}, "bonus_requires_compliant_anchor"),
    ],
)
def test_what_verl_cannot_do_is_refused_before_anything_starts(
    tmp_path, stand_in, changes, message
):
    params = tiny_params(tmp_path, execution=ARM, **changes)
    with pytest.raises(ParamsError, match=f"execution.trainer = verl: not with .*{message}"):
        check_stages(params.profile, [stage_of(params)], params.settings.execution)


@pytest.mark.skipif(find_spec("verl") is not None, reason="verl is installed")
def test_without_verl_a_run_is_refused(params, tmp_path, monkeypatch):
    monkeypatch.setenv("CALIFKIT_RUNS", str(tmp_path / "runs"))
    with pytest.raises(ParamsError, match="the package verl is not installed"):
        check_stages(params.profile, [stage_of(params)], params.settings.execution)


def paper_overrides(folder, method="calif", **settings):
    execution = {"trainer": "verl", "cluster": "local"}
    params = load_params("h100", {"execution": execution, "model": "tiny-random-llama"} | settings)
    stage = params.settings.train_stage(method, 7)
    return verl.overrides(stage, params.settings.execution, folder, n_prompts=93_882)


def test_the_papers_settings_as_verl_is_told_them(tmp_path):
    told = paper_overrides(tmp_path)
    expected = {
        "data.train_batch_size": 1024,
        "data.max_response_length": 2048,
        "data.seed": 7,
        "actor_rollout_ref.rollout.n": 8,
        "actor_rollout_ref.rollout.temperature": 1.0,
        "actor_rollout_ref.actor.ppo_mini_batch_size": 1024,
        "actor_rollout_ref.actor.optim.lr": 5e-7,
        "actor_rollout_ref.actor.kl_loss_coef": 0.001,
        "actor_rollout_ref.actor.loss_agg_mode": "token-mean",
        "+reward.custom_reward_function.reward_kwargs.alpha": 0.1,
        "trainer.total_epochs": 4,  # of 91 steps
        "trainer.total_training_steps": 364,
        "trainer.n_gpus_per_node": 8,
    }
    assert {name: told[name] for name in expected} == expected
    plain = paper_overrides(tmp_path, "if_rlvr", training={"beta": 0.0})
    assert "+reward.custom_reward_function.reward_kwargs.alpha" not in plain
    assert plain["actor_rollout_ref.actor.use_kl_loss"] is False


# --- verl itself ----------------------------------------------------------------------------------

real = pytest.mark.skipif(find_spec("verl") is None, reason="verl is not installed")

COMPOSE = """
import json, sys
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import validate_config
with initialize_config_module("verl.trainer.config", version_base=None):
    config = compose("ppo_trainer", sys.argv[1:])
validate_config(config, need_reference_policy(config), need_critic(config))
names = [argument.split("=", 1)[0].lstrip("+") for argument in sys.argv[1:]]
found = {name: OmegaConf.select(config, name) for name in names}
plain = {k: OmegaConf.to_container(v) if OmegaConf.is_config(v) else v for k, v in found.items()}
print("FOUND", json.dumps(plain))
"""


@real
@pytest.mark.parametrize("method", ["calif", "if_rlvr"])
def test_verls_own_configuration_takes_every_setting_as_it_was_meant(tmp_path, method):
    folder = tmp_path / "it's a \\ folder, {with} $signs"
    told = paper_overrides(folder, method, reward={"ceiling_margin": 0.7})
    arguments = verl.command(told)[3:]
    done = subprocess.run(
        [sys.executable, "-c", COMPOSE, *arguments], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.rpartition("FOUND ")[2])
    assert found == {name.lstrip("+"): value for name, value in told.items()}


REWARD = """
import asyncio, json, sys
import numpy as np
import torch
from omegaconf import OmegaConf
from hydra import compose, initialize_config_module
from verl import DataProto
from verl.experimental.reward_loop.reward_manager import get_reward_manager_cls
from verl.trainer.ppo.reward import get_custom_reward_fn
import pandas as pd
from califkit.models.resolve import load_tokenizer, resolve

with initialize_config_module("verl.trainer.config", version_base=None):
    config = compose("ppo_trainer", sys.argv[2:])
tokenizer = load_tokenizer(resolve("tiny-random-llama"))
row = pd.read_parquet(sys.argv[1]).to_dict("records")[0]
texts = ["Tea is warm.", "Tea, warm.", "Deep."]


async def main():
    manager = get_reward_manager_cls(config.reward.reward_manager.name)(
        config, tokenizer, get_custom_reward_fn(config)
    )
    def data(text):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        ids = [*ids, tokenizer.eos_token_id]
        padded = torch.tensor([ids + [tokenizer.pad_token_id] * (16 - len(ids))])
        mask = torch.tensor([[1] * 4 + [1] * len(ids) + [0] * (16 - len(ids))])
        tensors = {"prompts": torch.zeros(1, 4, dtype=torch.long), "responses": padded}
        return DataProto.from_dict(
            tensors=tensors | {"attention_mask": mask},
            non_tensors={
                name: np.array([row[name]], dtype=object)
                for name in ("data_source", "reward_model", "extra_info")
            },
        )
    return await asyncio.gather(*(manager.run_single(data(text)) for text in texts))

print("FOUND", json.dumps(asyncio.run(main()), default=float))
"""


@real
def test_verls_own_reward_manager_calls_the_reward(tmp_path, monkeypatch):
    from califkit.rewards.verl import compute_score_batch, verl_row
    from califkit.verifiers import Constraint

    row = verl_row("Tea? Use no comma.", "Tea?", [Constraint("punctuation:no_comma")], -50.0, 0.0)
    path, written = tmp_path / "train.parquet", tmp_path / "rewarded.jsonl"
    pd.DataFrame([row]).to_parquet(path)
    told = paper_overrides(tmp_path)
    reward = "+reward.custom_reward_function.reward_kwargs"
    told |= {f"{reward}.device": "cpu", f"{reward}.rows": str(written)}
    done = subprocess.run(
        [sys.executable, "-c", REWARD, path, *verl.command(told)[3:]],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.rpartition("FOUND ")[2])
    texts = ["Tea is warm.", "Tea, warm.", "Deep."]
    expected = compute_score_batch(
        ["califkit"] * 3,
        texts,
        [row["reward_model"]["ground_truth"]] * 3,
        [row["extra_info"]] * 3,
        model="tiny-random-llama",
        device="cpu",
    )
    assert [one["reward_score"] for one in found] == [1.1, 0.0, 1.1]
    for one, other in zip(found, expected, strict=True):
        assert one["reward_extra_info"] == pytest.approx(other, abs=1e-5)
    assert sorted(r["completion"] for r in read_jsonl(written)) == sorted(texts)
