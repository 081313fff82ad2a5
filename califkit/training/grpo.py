"""GRPO with TRL: a training stage -> policy, training log and rollouts.

Every default of ``GRPOConfig`` that matters is set here or in the params file; the resolved
configuration goes into the manifest. Where TRL's defaults differ from the paper's training (section
3): beta is 0.001 and not 0, the KL term is the plain low-variance estimator (no bias correction),
and bfloat16 is on where it is faster (`califkit.training.precision`). The trainer itself is that of
`califkit.training.groups`.

A killed run continues from its last checkpoint; log rows after that checkpoint are cut and computed
again, so the final rows equal those of an unbroken run. Under torchrun (or `califkit.runs.machine`)
all processes train together; the first one alone holds the folder and writes into it.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from peft import LoraConfig, PeftModel
from transformers import AutoModelForCausalLM, PrinterCallback, TrainerCallback
from trl import GRPOConfig

from califkit.anchors.measure import self_test
from califkit.data.prompts import training_prompts
from califkit.judges.cache import judge_cache
from califkit.judges.judge import Judge
from califkit.models.chat import template_date
from califkit.models.resolve import load_tokenizer, resolve
from califkit.models.sampling import resolved
from califkit.rewards.trl import CalifReward, check_config
from califkit.runs.folders import LOG, POLICY, Run, open_run, own_run, require_complete
from califkit.runs.jsonl import read_jsonl, write_json
from califkit.runs.paths import check_writable, explaining_full_disk, project_file
from califkit.runs.settings import (
    JUDGE_METHODS,
    Execution,
    ParamsError,
    Sampling,
)
from califkit.runs.stages import TrainStage, stage_hash
from califkit.runs.text import say
from califkit.training.checkpoints import (
    CHECKPOINTS,
    FACTS,
    bytes_needed,
    copy_policy,
    last_checkpoint,
    step_of,
)
from califkit.training.checks import check_gpu
from califkit.training.groups import GroupTrainer
from califkit.training.log import TrainingLog
from califkit.training.precision import training_precision
from califkit.training.rows import training_rows
from califkit.training.tau import fixed_tau, judge_settings

_PROCESS_GROUP_TIMEOUT = 24 * 3600
"""Seconds that processes wait for each other: the first one may measure tau meanwhile."""


def train(profile: str, stage: TrainStage, execution: Execution) -> Run:
    """Stage: one GRPO run, with anchors that are there.

    Writes `LOG` (a row a step), `ROLLOUTS` (a row a rollout) and the trained model in `POLICY`;
    adapters are merged into it. Under several processes each of them has to call this.

    Raises
    ------
    ParamsError
        If it is started in another number of processes than its settings were checked for.
    StaleRunError
        If it was begun in another precision.
    MissingRunError
        If the anchors are not there.
    StorageError
        If the folder cannot be written, the disk is too small for the run, or it fills up.
    AnchorError
        If the anchors are not those of these prompts, or this scorer does not reproduce them.
    JudgeError
        If tau cannot be measured, or the judge may cost more than its limit; before the first step.
    RewardError
        If the judge cannot be asked any more; the run continues from its last checkpoint.
    """
    started = time.monotonic()
    run = own_run(profile, stage)  # a recorded run has no policy
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if processes == 1 and run.is_complete:
        return run
    if processes != execution.processes:
        raise ParamsError(
            f"training was started in {processes} processes, but execution.processes = "
            f"{execution.processes}"
        )
    check_gpu(execution)
    peft_config = _lora_config(stage)
    precision = training_precision(stage.training.precision, run.folder, processes)
    config = grpo_config(stage, execution, run.folder, precision)  # starts the process group
    # Its own settings say that the anchors were drawn alike, or that they may differ.
    check_config(config, peft_config, bounds_temperature=config.temperature)
    group = config.distributed_state
    with explaining_full_disk(run.folder), _computing(run, execution, group) as needed:
        if needed:
            anchors = require_complete(open_run(profile, stage.anchors))
            checkpoint = _from_first(group, lambda: last_checkpoint(run.folder / CHECKPOINTS))
            if step_of(checkpoint) < stage.training.steps:
                _train(run, anchors, profile, execution, config, peft_config, checkpoint)
            elif group.is_main_process:  # killed after the last step
                say(f"train {stage.name}: all {stage.training.steps} steps are there")
            if group.is_main_process:
                _finish(run, started)
            group.wait_for_everyone()
    return run


def _lora_config(stage: TrainStage) -> LoraConfig | None:
    if (lora := stage.training.lora) is None:
        return None
    modules = lora.target_modules
    return LoraConfig(
        r=lora.r,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=modules if isinstance(modules, str) else list(modules),
        task_type="CAUSAL_LM",
    )


def grpo_config(
    stage: TrainStage, execution: Execution, folder: Path, precision: str
) -> GRPOConfig:
    """The TRL configuration of a training stage in one of several processes.

    They share the rollouts of a step evenly. The prompts of a step are the same whatever their
    number; its rollouts are not, because each process draws from a seed of its own.
    """
    settings = stage.training
    rollouts = settings.prompts_per_step * settings.rollouts_per_prompt
    on_gpu = torch.cuda.is_available()
    return GRPOConfig(
        output_dir=str(folder / CHECKPOINTS),
        seed=stage.seed,
        data_seed=stage.seed,
        max_steps=settings.steps,
        per_device_train_batch_size=settings.micro_batch_size,
        gradient_accumulation_steps=rollouts // (settings.micro_batch_size * execution.processes),
        num_generations=settings.rollouts_per_prompt,
        max_completion_length=settings.max_completion_tokens,
        temperature=settings.temperature,
        top_p=1.0,
        top_k=0,
        repetition_penalty=1.0,
        learning_rate=settings.learning_rate,
        lr_scheduler_type=settings.lr_scheduler,
        warmup_steps=0,
        optim="adamw_torch",
        adam_beta1=settings.adam_betas[0],
        adam_beta2=settings.adam_betas[1],
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.max_grad_norm,
        beta=settings.beta,
        use_bias_correction_kl=False,
        epsilon=settings.epsilon,
        loss_type=settings.loss_type,
        scale_rewards=settings.scale_rewards,
        num_iterations=1,  # one update per batch (section 3), so every step has its rollouts
        importance_sampling_level="token",
        mask_truncated_completions=False,
        sync_ref_model=False,
        disable_dropout=settings.lora is None or not settings.lora.dropout,
        entropy_coef=0.0,
        shuffle_dataset=True,
        remove_unused_columns=False,
        gradient_checkpointing=settings.gradient_checkpointing,
        bf16=precision == "bfloat16",
        use_cpu=not on_gpu,
        model_init_kwargs={"dtype": "float32"},
        chat_template_kwargs={"enable_thinking": stage.anchors.thinking},
        use_vllm=settings.use_vllm,
        vllm_mode="colocate",
        vllm_gpu_memory_utilization=execution.vllm.gpu_memory_utilization,
        vllm_max_model_length=execution.longest(stage.data, settings.max_completion_tokens),
        vllm_enable_sleep_mode=execution.vllm.sleep,
        vllm_tensor_parallel_size=execution.vllm.tensor_parallel_size,
        # Else rollouts whose likelihoods under vLLM and trainer differ get no loss: none in the
        # paper.
        vllm_importance_sampling_correction=False,
        deepspeed=execution.deepspeed and str(project_file(execution.deepspeed)),
        ddp_timeout=_PROCESS_GROUP_TIMEOUT,
        logging_steps=1,
        save_steps=execution.save_every,
        save_total_limit=execution.keep_checkpoints,
        report_to=list(execution.report_to),
        run_name=f"{stage.name}-{stage_hash(stage)}",
        disable_tqdm=True,
    )


def resolved_config(config: GRPOConfig, folder: Path) -> dict[str, Any]:
    """The full TRL configuration for the manifest, with the run folder's own path left out."""
    text = json.dumps(config.to_dict(), default=str, sort_keys=True)
    return json.loads(text.replace(str(folder), "."))


@contextmanager
def _computing(run: Run, execution: Execution, group: PartialState) -> Iterator[bool]:
    """`Run.computing` for a group of processes: the first one holds the folder, all learn whether
    there is anything to do."""
    if not group.is_main_process:
        yield _from_first(group, lambda: None)
        return
    if not run.is_complete:
        model = resolve(run.stage.anchors.model)
        check_writable(run.folder, bytes_needed(run.stage, execution, model, run.folder))
    with run.computing() as needed:
        yield _from_first(group, lambda: needed)


def _from_first(group: PartialState, value: Callable[[], Any]) -> Any:
    """What the first process finds, on all of them."""
    return broadcast_object_list([value() if group.is_main_process else None])[0]


def _train(
    run: Run,
    anchors: Run,
    profile: str,
    execution: Execution,
    config: GRPOConfig,
    peft_config: LoraConfig | None,
    checkpoint: Path | None,
) -> None:
    """Train up to the last step, whose checkpoint stays."""
    stage = run.stage
    loaded = training_prompts(stage.anchors.data)
    instances, rows = training_rows(stage, anchors, loaded)
    group, tau, judge = config.distributed_state, None, None
    if stage.method in JUDGE_METHODS:
        settings, scores = judge_settings(stage, execution), judge_cache(profile, stage.judge)
        tau = _from_first(group, lambda: fixed_tau(run, settings, anchors, instances, scores))
        # Verdicts of steps that have to be computed again after a kill are not asked for again.
        asked = run.folder / CHECKPOINTS / f"judged-{group.process_index}.jsonl"
        judge = Judge(settings, asked, show_progress=False)
    reward = _reward(stage, execution, judge, tau and tau.value)
    reward.on_rollouts = _ignore
    callbacks: list[TrainerCallback] = []
    if config.distributed_state.is_main_process:
        log = TrainingLog(run.folder, stage.training.steps, f"train {stage.name}")
        log.resume_at(step_of(checkpoint))
        reward.on_rollouts, callbacks = log.add_rollouts, [log]
    if "tensorboard" in execution.report_to:  # else it writes among the checkpoints
        os.environ["TENSORBOARD_LOGGING_DIR"] = str(run.folder / "tensorboard")
    folder = resolve(stage.anchors.model)
    trainer = GroupTrainer(
        model=str(folder),
        reward_funcs=reward,
        args=config,
        train_dataset=rows,
        processing_class=load_tokenizer(folder),
        peft_config=peft_config,
        callbacks=callbacks,
    )
    trainer.remove_callback(PrinterCallback)  # the log says how training goes
    reward.bind(trainer)

    def before_the_first_step() -> None:
        difference = self_test(anchors, instances, reward.scorer)
        facts = {
            "data": loaded.summary(),
            "data_sha256": loaded.sha256,
            "dropped_prompts": len(loaded.instances) - len(instances),
            "semantics": reward.semantics,
            "reference": reward.reference_kind,
            "prompts": str(trainer.sharing),
            "precision": "bfloat16" if config.bf16 else "float32",
            **({"tau": asdict(tau)} if tau else {}),
            "anchor_self_test": difference,
            "device": trainer.model.device.type,
            "processes": config.world_size,
            "threads": torch.get_num_threads(),
            "template_date": template_date(trainer.processing_class),
            "sampling": resolved(
                Sampling(
                    temperature=config.temperature, max_tokens=stage.training.max_completion_tokens
                ),
                "vllm" if config.use_vllm else None,
            ),
            "trl_config": resolved_config(config, run.folder),
        }
        if config.distributed_state.is_main_process:
            precision = facts["precision"]
            say(f"train {stage.name}: {precision}; {trainer.sharing}")
            write_json(run.folder / CHECKPOINTS / FACTS, facts)

    trainer.add_callback(_AtStart(before_the_first_step))
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)


def _reward(
    stage: TrainStage, execution: Execution, judge: Judge | None = None, tau: float | None = None
) -> CalifReward:
    return CalifReward(
        stage.alpha,
        stage.method,
        **(stage.reward.model_dump() if stage.reward else {}),
        judge=judge,
        tau=tau,
        bounds_temperature=stage.training.temperature,
        thinking=stage.anchors.thinking,
        tokens_per_pass=execution.tokens_per_pass,
    )


class _AtStart(TrainerCallback):
    """Calls a function when the model is ready for the first step, wrapped as it will be."""

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._function()


def _ignore(step: int, rows: list[dict[str, Any]]) -> None:
    """What other processes do with rollouts: the first one writes those of all."""


def _finish(run: Run, started: float) -> None:
    """Make the policy of the last checkpoint and declare the run complete."""
    checkpoints = run.folder / CHECKPOINTS
    _save_policy(run.stage, last_checkpoint(checkpoints), run.folder / POLICY)
    facts = json.loads((checkpoints / FACTS).read_text(encoding="utf-8"))
    run.finish(started, rows=len(read_jsonl(run.folder / LOG)), **facts)
    # After the manifest: a kill between the two must not cost the training.
    shutil.rmtree(checkpoints, ignore_errors=True)


def _save_policy(stage: TrainStage, checkpoint: Path, folder: Path) -> None:
    """A folder that loads as a plain model; adapters are merged into the weights."""
    temporary = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    if stage.training.lora is None:
        copy_policy(checkpoint, temporary)
    else:
        start = resolve(stage.anchors.model)
        base = AutoModelForCausalLM.from_pretrained(start, dtype=torch.float32)
        PeftModel.from_pretrained(base, checkpoint).merge_and_unload().save_pretrained(temporary)
        load_tokenizer(checkpoint).save_pretrained(temporary)
    shutil.rmtree(folder, ignore_errors=True)
    temporary.rename(folder)
