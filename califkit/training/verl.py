"""GRPO with verl: the same training stage through the trainer that the paper used.

verl is a program of its own, which this stage starts: prompts and bounds go in as its Parquet
files, our settings as its overrides (`overrides`), our reward as its reward function
(`califkit.rewards.verl`), which also writes a row a rollout. Out come the policy, `LOG` and
`ROLLOUTS` as from TRL. What differs between the two trainers is in ``docs/verl.md``; so is what was
tried and what was not: verl trains on GPUs only.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd

from califkit.data.load import Instance
from califkit.data.prompts import training_prompts
from califkit.models.chat import pinned, template_date
from califkit.models.resolve import load_tokenizer, resolve
from califkit.rewards.statistics import alarms, step_statistics
from califkit.rewards.verl import verl_row
from califkit.runs.folders import LOG, POLICY, ROLLOUTS, Run, open_run, own_run, require_complete
from califkit.runs.jsonl import RowLog, finished_rows
from califkit.runs.paths import check_writable, explaining_full_disk
from califkit.runs.settings import JUDGE_METHODS, Execution, ParamsError
from califkit.runs.stages import TrainStage
from califkit.runs.text import say
from califkit.runs.units import batches
from califkit.training.checkpoints import CHECKPOINTS
from califkit.training.log import samples
from califkit.training.rows import training_rows

_LOSS = {"dapo": "token-mean", "bnpo": "token-mean", "grpo": "seq-mean-token-mean"}
"""TRL's names of how token losses are averaged -> verl's. All rollouts of a step are one batch."""

_METRICS = {
    "loss": "actor/pg_loss",
    "kl": "actor/kl_loss",
    "entropy": "actor/entropy",
    "grad_norm": "actor/grad_norm",
    "clipped": "response_length/clip_ratio",
    "seconds": "perf/time_per_step",
}
"""Columns of `LOG` <- verl's metrics."""

_REWARDED = "rewarded.jsonl"
_LATEST = "latest_checkpointed_iteration.txt"


def check_settings(profile: str, stage: TrainStage, execution: Execution) -> None:
    """Refuse what verl, or the way we start it, cannot do; `ParamsError` names the setting."""
    settings = stage.training
    problems = {
        f"method {stage.method}: a judge's reward": stage.method in JUDGE_METHODS,
        "training.lora": settings.lora is not None,
        "training.scale_rewards = batch": settings.scale_rewards == "batch",
        f"training.loss_type = {settings.loss_type}": settings.loss_type not in _LOSS,
        f"training.lr_scheduler = {settings.lr_scheduler}": settings.lr_scheduler == "linear",
        "reward.bonus_requires_compliant_anchor": bool(
            stage.reward and stage.reward.bonus_requires_compliant_anchor
        ),
        f"execution.slurm.nodes = {_nodes(execution)}": _nodes(execution) > 1,
    }
    if unable := [name for name, is_so in problems.items() if is_so]:
        raise ParamsError(f"execution.trainer = verl: not with {'; '.join(unable)}")
    if find_spec("verl") is None:
        raise ParamsError(
            "execution.trainer = verl: the package verl is not installed (docs/verl.md)"
        )


def _nodes(execution: Execution) -> int:
    return execution.slurm.get("nodes", 1)


def train(profile: str, stage: TrainStage, execution: Execution) -> Run:
    """Stage: one GRPO run by verl, with anchors that are there; as `califkit.training.grpo.train`.

    An interrupted run goes on after verl's last checkpoint. `ParamsError` as in `check_settings`;
    RuntimeError if verl ends with an error, which is then above it in the output.
    """
    started = time.monotonic()
    run = own_run(profile, stage)
    if run.is_complete:
        return run
    check_settings(profile, stage, execution)
    check_writable(run.folder)
    with explaining_full_disk(run.folder), run.computing() as needed:
        if needed:
            anchors = require_complete(open_run(profile, stage.anchors))
            loaded = training_prompts(stage.data)
            instances, rows = training_rows(stage, anchors, loaded)
            folder = run.folder.absolute() / CHECKPOINTS
            folder.mkdir(parents=True, exist_ok=True)
            prompts = write_prompts(stage, instances, rows.to_list(), folder)
            settings = overrides(stage, execution, folder, len(prompts))
            if _step(folder) < stage.training.steps:
                _run_verl(stage, settings, folder)
            write_logs(run.folder, folder, stage, rows.to_list())
            _save_policy(folder, run.folder / POLICY, settings["actor_rollout_ref.model.path"])
            run.finish(
                started,
                rows=stage.training.steps,
                data=loaded.summary(),
                data_sha256=loaded.sha256,
                dropped_prompts=len(loaded.instances) - len(instances),
                trainer=f"verl {metadata.version('verl')}",
                precision="bfloat16",
                processes=execution.processes,
                verl_overrides=json.loads(
                    json.dumps(settings).replace(str(run.folder.absolute()), ".")
                ),
            )
            shutil.rmtree(folder, ignore_errors=True)
    return run


def write_prompts(
    stage: TrainStage, instances: Sequence[Instance], rows: Sequence[Mapping[str, Any]], to: Path
) -> pd.DataFrame:
    """Write ``train.parquet`` for verl, a row a prompt with its bounds; the table."""
    table = pd.DataFrame(
        [
            verl_row(
                instance.prompt,
                instance.request,
                instance.constraints,
                row["l0"],
                row["l1"],
                index=index,
                method=stage.method,
            )
            for index, (instance, row) in enumerate(zip(instances, rows, strict=True))
        ]
    )
    table.to_parquet(to / "train.parquet")
    return table


def overrides(
    stage: TrainStage, execution: Execution, folder: Path, n_prompts: int
) -> dict[str, Any]:
    """The settings of verl 0.9 for a stage, by their names in its configuration.

    ``folder`` takes the data, the checkpoints and the rewarded rollouts. A name that verl's own
    configuration does not have begins with ``+``. Nothing is left to a default that would train
    otherwise than TRL does.
    """
    settings, data = stage.training, str(folder / "train.parquet")
    model = resolve(stage.anchors.model)
    tokenizer = load_tokenizer(model)
    options = stage.reward.model_dump() if stage.reward else {}
    actor, rollout, reward = (
        "actor_rollout_ref.actor",
        "actor_rollout_ref.rollout",
        "+reward.custom_reward_function.reward_kwargs",
    )
    micro = settings.micro_batch_size
    values = {
        "data.train_files": data,
        "data.val_files": data,  # asked for, and never used: there is no validation
        "data.train_batch_size": settings.prompts_per_step,
        "data.max_prompt_length": stage.data.max_prompt_tokens or 2048,
        "data.max_response_length": settings.max_completion_tokens,
        "data.filter_overlong_prompts": True,
        "data.seed": stage.seed,
        "+data.apply_chat_template_kwargs.enable_thinking": stage.anchors.thinking,
        "algorithm.adv_estimator": "grpo",
        "algorithm.use_kl_in_reward": False,
        "algorithm.norm_adv_by_std_in_grpo": settings.scale_rewards == "group",
        "actor_rollout_ref.model.path": str(model),
        "actor_rollout_ref.model.enable_gradient_checkpointing": settings.gradient_checkpointing,
        f"{actor}.ppo_mini_batch_size": settings.prompts_per_step,  # one update a batch
        f"{actor}.ppo_epochs": 1,
        f"{actor}.ppo_micro_batch_size_per_gpu": micro,
        f"{actor}.clip_ratio": settings.epsilon,
        f"{actor}.use_kl_loss": settings.beta > 0,
        f"{actor}.kl_loss_type": "low_var_kl",
        f"{actor}.kl_loss_coef": settings.beta,
        f"{actor}.entropy_coeff": 0,
        f"{actor}.loss_agg_mode": _LOSS[settings.loss_type],
        f"{actor}.optim.lr": settings.learning_rate,
        f"{actor}.optim.lr_scheduler_type": settings.lr_scheduler,
        f"{actor}.optim.betas": list(settings.adam_betas),
        f"{actor}.optim.weight_decay": settings.weight_decay,
        f"{actor}.optim.clip_grad": settings.max_grad_norm,
        f"{rollout}.name": "vllm",
        f"{rollout}.n": settings.rollouts_per_prompt,
        f"{rollout}.temperature": settings.temperature,
        f"{rollout}.top_p": 1.0,
        f"{rollout}.top_k": -1,
        f"{rollout}.gpu_memory_utilization": execution.vllm.gpu_memory_utilization,
        f"{rollout}.tensor_model_parallel_size": execution.vllm.tensor_parallel_size,
        f"{rollout}.max_model_len": execution.longest(stage.data, settings.max_completion_tokens),
        f"{rollout}.free_cache_engine": execution.vllm.sleep,
        f"{rollout}.log_prob_micro_batch_size_per_gpu": micro,
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": micro,
        "reward.num_workers": 1,  # one copy of the reference
        "reward.reward_manager.name": "naive",
        "reward.custom_reward_function.path": "pkg://califkit.rewards.verl",
        "reward.custom_reward_function.name": "compute_score_async",
        f"{reward}.model": str(model),
        f"{reward}.method": stage.method,
        f"{reward}.thinking": stage.anchors.thinking,
        f"{reward}.tokens_per_pass": execution.tokens_per_pass,
        f"{reward}.device": "cuda:0",
        f"{reward}.rows": str(folder / _REWARDED),
        "trainer.n_gpus_per_node": execution.processes,
        "trainer.nnodes": 1,
        "trainer.total_epochs": -(
            -settings.steps // max(1, n_prompts // settings.prompts_per_step)
        ),
        "trainer.total_training_steps": settings.steps,
        "trainer.save_freq": execution.save_every,
        "trainer.max_actor_ckpt_to_keep": execution.keep_checkpoints,
        "trainer.default_local_dir": str(folder),
        "trainer.resume_mode": "auto",
        "trainer.val_before_train": False,
        "trainer.test_freq": -1,
        "trainer.logger": ["console", "file"],
        "trainer.project_name": "califkit",
        "trainer.experiment_name": stage.name,
    }
    if stage.alpha is not None:
        values[f"{reward}.alpha"] = stage.alpha
    for name in ("reversed_bounds", "ceiling_margin"):
        if options.get(name) is not None:
            values[f"{reward}.{name}"] = options[name]
    if template_date(tokenizer) is not None:
        template = pinned(tokenizer.get_chat_template())
        values["actor_rollout_ref.model.custom_chat_template"] = template
    return values


def command(settings: Mapping[str, Any]) -> list[str]:
    """The command that trains with these settings."""
    arguments = [f"{name}={_in_hydra(value)}" for name, value in settings.items()]
    return [sys.executable, "-m", "verl.trainer.main_ppo", *arguments]


def _in_hydra(value: Any) -> str:
    """A value in Hydra's grammar of overrides; texts are quoted, whatever they hold."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list):
        return f"[{','.join(map(_in_hydra, value))}]"
    if not isinstance(value, str):
        return repr(value)
    # A backslash stands for itself, but before a quote.
    quoted = value.replace("\\'", "\\\\'").replace("'", "\\'")
    return f"'{quoted}'"


def _step(folder: Path) -> int:
    """Steps that verl's last checkpoint has behind it."""
    latest = folder / _LATEST
    return int(latest.read_text()) if latest.exists() else 0


def _run_verl(stage: TrainStage, settings: Mapping[str, Any], folder: Path) -> None:
    done = _step(folder)
    _cut_rewarded(folder / _REWARDED, done * _rollouts(stage))
    if done:
        say(f"train {stage.name}: continuing after step {done}")
    environment = os.environ | {
        # Ray hides the GPUs from actors that ask for none, and verl's reward workers ask for none.
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        # verl empties its log when it starts, so each start has one of its own.
        "VERL_FILE_LOGGER_PATH": str(folder / f"metrics-{done:06d}.jsonl"),
    }
    ended = subprocess.run(command(settings), env=environment)
    if ended.returncode:
        raise RuntimeError(f"verl ended with exit code {ended.returncode}")
    if _step(folder) < stage.training.steps:
        raise RuntimeError(
            f"verl ended after step {_step(folder)} of {stage.training.steps}: {folder}"
        )


def _rollouts(stage: TrainStage) -> int:
    return stage.training.prompts_per_step * stage.training.rollouts_per_prompt


def _cut_rewarded(path: Path, count: int) -> None:
    """Cut the rollouts of steps behind the checkpoint that verl continues from."""
    if path.exists():
        RowLog(path).keep(finished_rows(path)[:count])


def write_logs(
    run: Path, folder: Path, stage: TrainStage, rows: Sequence[Mapping[str, Any]]
) -> None:
    """`LOG` and `ROLLOUTS` of a run from the rollouts that were rewarded and verl's own metrics.

    ``tokens`` of a rollout are those of its text; whether one was cut is known of the step only.
    """
    metrics = {}
    for path in sorted(folder.glob("metrics-*.jsonl")):  # later ones replace what was done again
        metrics |= {row["step"]: row["data"] for row in finished_rows(path)}
    rewarded = finished_rows(folder / _REWARDED)
    steps = list(batches(rewarded, _rollouts(stage)))
    if len(steps) < stage.training.steps or len(steps[-1]) < _rollouts(stage):
        raise RuntimeError(
            f"{folder / _REWARDED}: has {len(rewarded)} rollouts, but {stage.training.steps} steps "
            f"of {_rollouts(stage)} were trained"
        )
    margin = stage.reward.ceiling_margin if stage.reward else None
    log: list[dict[str, Any]] = []
    everything = []
    for step, found in enumerate(steps, start=1):
        rollouts = [
            {
                "step": step,
                "key": rows[row["index"]]["key"],
                "tokens": row["answer_tokens"],
                "clipped": None,
                "anchor_r_ver": rows[row["index"]]["anchor_r_ver"],
                "anchor_tokens": rows[row["index"]]["anchor_tokens"],
                "group": row["index"],
                **{name: value for name, value in row.items() if name != "index"},
            }
            for row in sorted(found, key=lambda row: row["index"])
        ]
        data = metrics.get(step, {})
        line = {"step": step, **step_statistics(rollouts, margin or 0.0)}
        line["reward"] = sum(row["reward"] for row in rollouts) / len(rollouts)
        line |= {name: data.get(theirs) for name, theirs in _METRICS.items()}
        line["samples"] = samples(rollouts, step)
        line["alarms"] = alarms([*log, line])
        log.append(line)
        everything += rollouts
    RowLog(run / ROLLOUTS).keep(everything)
    RowLog(run / LOG).keep(log)


def _save_policy(folder: Path, policy: Path, model: str) -> None:
    """The policy of the last checkpoint as a folder that loads as a plain model."""
    temporary = policy.with_name(f".{policy.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    shards = folder / f"global_step_{_step(folder)}" / "actor"
    merge = [sys.executable, "-m", "verl.model_merger", "merge", "--backend", "fsdp"]
    subprocess.run([*merge, "--local_dir", shards, "--target_dir", temporary], check=True)
    load_tokenizer(Path(model)).save_pretrained(temporary)
    shutil.rmtree(policy, ignore_errors=True)
    temporary.rename(policy)
