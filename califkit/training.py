"""GRPO with TRL: a training stage -> policy, training log and rollouts.

The only module that knows TRL. Every default of ``GRPOConfig`` that matters is set here or in the
params file; the resolved configuration goes into the manifest. Where TRL's defaults differ from the
paper's training (section 3): beta is 0.001 and not 0, the KL term is the plain low-variance
estimator (no bias correction), and bfloat16 is switched off on a CPU.

A killed run continues from its last checkpoint; log rows after that checkpoint are cut and computed
again, so the final rows equal those of an unbroken run.
"""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import PrinterCallback, TrainerCallback
from transformers.trainer_utils import get_last_checkpoint
from trl import GRPOConfig, GRPOTrainer

from califkit.adapters import constraints_json
from califkit.anchors import AnchorError, compute_anchors, join_anchors, load_anchors
from califkit.models import load_tokenizer, resolve
from califkit.params import Execution, TrainStage
from califkit.prompts import training_prompts
from califkit.runs import LOG, ROLLOUTS, RowLog, Run, own_run
from califkit.trl_reward import CalifReward

POLICY = "policy"
CHECKPOINTS = "checkpoints"


def train(profile: str, stage: TrainStage, execution: Execution) -> Run:
    """Stage: one GRPO run. Missing anchors are computed first.

    Writes `LOG` (a row a step), `ROLLOUTS` (a row a rollout) and the trained model in `POLICY`.
    """
    started = time.monotonic()
    run = own_run(profile, stage)  # a recorded run has no policy
    with run.computing() as needed:
        if not needed:
            return run
        anchor_run = compute_anchors(profile, stage.anchors, execution)
        loaded = training_prompts(stage.anchors.data)
        if anchor_run.manifest()["data_sha256"] != loaded.sha256:
            raise AnchorError(
                f"{anchor_run.folder}: the bounds were measured for other training prompts; "
                "delete the folder to measure them again"
            )
        anchors = load_anchors(anchor_run)
        bounds = join_anchors(loaded.instances, anchors)
        rows = Dataset.from_dict(
            {
                "prompt": [[{"role": "user", "content": i.prompt}] for i in loaded.instances],
                "key": [i.key for i in loaded.instances],
                "request": [i.request for i in loaded.instances],
                "constraints": [constraints_json(i.constraints) for i in loaded.instances],
                "l0": bounds["l0"].tolist(),
                "l1": bounds["l1"].tolist(),
            }
        )
        config = grpo_config(stage, execution, run.folder)
        log = TrainingLog(run.folder, stage.training.steps, f"train {stage.name}")
        reward = CalifReward(
            alpha=stage.alpha,
            tokens_per_pass=execution.tokens_per_pass,
            on_rollouts=log.add_rollouts,
        )
        folder = resolve(stage.anchors.model)
        trainer = GRPOTrainer(
            model=str(folder),
            reward_funcs=reward,
            args=config,
            train_dataset=rows,
            processing_class=load_tokenizer(folder),
            callbacks=[log],
        )
        trainer.remove_callback(PrinterCallback)  # the log says how training goes
        reward.bind(trainer)
        checkpoint = _last_checkpoint(run.folder / CHECKPOINTS)
        done = _step_of(checkpoint)
        log.resume_at(done)
        if done < stage.training.steps:
            trainer.train(resume_from_checkpoint=checkpoint)
        else:  # killed after the last step, whose checkpoint train() would take a step further
            trainer.model = type(trainer.model).from_pretrained(checkpoint, dtype="auto")

        _save_policy(trainer, run.folder / POLICY)
        run.finish(
            started,
            rows=len(log.steps.rows()),
            data=loaded.summary(),
            data_sha256=loaded.sha256,
            semantics=reward.semantics,
            device=trainer.model.device.type,
            trl_config=resolved_config(config, run.folder),
            threads=torch.get_num_threads(),
        )
        # After the manifest: a kill between the two must not cost the training.
        shutil.rmtree(run.folder / CHECKPOINTS, ignore_errors=True)
    return run


def grpo_config(stage: TrainStage, execution: Execution, folder: Path) -> GRPOConfig:
    """The TRL configuration of a training stage."""
    settings = stage.training
    rollouts = settings.prompts_per_step * settings.rollouts_per_prompt
    on_gpu = torch.cuda.is_available()
    return GRPOConfig(
        output_dir=str(folder / CHECKPOINTS),
        seed=stage.seed,
        data_seed=stage.seed,
        max_steps=settings.steps,
        per_device_train_batch_size=settings.micro_batch_size,
        gradient_accumulation_steps=rollouts // settings.micro_batch_size,
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
        disable_dropout=True,
        entropy_coef=0.0,
        shuffle_dataset=True,
        remove_unused_columns=False,
        gradient_checkpointing=settings.gradient_checkpointing,
        bf16=on_gpu,
        use_cpu=not on_gpu,
        # bfloat16 weights would swallow updates of this size; on a GPU autocast saves the time.
        model_init_kwargs={"dtype": "float32"},
        chat_template_kwargs={"enable_thinking": False},
        logging_steps=1,
        save_steps=execution.save_every,
        save_total_limit=1,
        report_to="none",
        disable_tqdm=True,
    )


def resolved_config(config: GRPOConfig, folder: Path) -> dict[str, Any]:
    """The full TRL configuration for the manifest, with the run folder's own path left out."""
    text = json.dumps(config.to_dict(), default=str, sort_keys=True)
    return json.loads(text.replace(str(folder), "."))


class TrainingLog(TrainerCallback):
    """Keeps `LOG` and `ROLLOUTS` in step with the trainer, and says how training goes."""

    def __init__(self, folder: Path, steps: int, label: str) -> None:
        self.steps = RowLog(folder / LOG)
        self.rollouts = RowLog(folder / ROLLOUTS)
        self.total = steps
        self.label = label
        self._pending: list[dict[str, Any]] = []
        self._clock = time.monotonic()

    def resume_at(self, step: int) -> None:
        """Cut the rows of steps after the checkpoint that training continues from."""
        for log in (self.steps, self.rollouts):
            rows = log.rows()
            kept = [row for row in rows if row["step"] <= step]
            if len(kept) < len(rows):
                log.keep(kept)
        if step:
            print(f"{self.label}: continuing after step {step} of {self.total}", flush=True)

    def add_rollouts(self, step: int, rows: list[dict[str, Any]]) -> None:
        """Take the rollouts of the step that is being computed (``step`` counts finished ones)."""
        self._pending += [{"step": step + 1, **row} for row in rows]

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._clock = time.monotonic()

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        if not state.is_world_process_zero or not logs or "loss" not in logs:
            return
        row = {"step": state.global_step} | {k: v for k, v in logs.items() if k != "step_time"}
        row["seconds"] = round(time.monotonic() - self._clock, 2)
        self.rollouts.append(self._pending)
        self._pending = []
        self.steps.append([row])
        print(
            f"{self.label}: step {state.global_step} of {self.total}: "
            f"r_ver {row['r_ver']:.2f}, l {_number(row['loglik'])}, {row['tokens']:.0f} tokens, "
            f"{row['seconds']:.0f} s",
            flush=True,
        )


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f}"


def _last_checkpoint(folder: Path) -> str | None:
    """The newest whole checkpoint; one that a kill tore is removed.

    The trainer deletes an older checkpoint only after it has written the next one, so a kill never
    leaves none.
    """
    while folder.is_dir() and (checkpoint := get_last_checkpoint(str(folder))):
        if _is_whole(Path(checkpoint)):
            return checkpoint
        shutil.rmtree(checkpoint)
    return None


def _is_whole(checkpoint: Path) -> bool:
    """Whether the trainer state is there, which is the last file of a checkpoint to be written."""
    try:
        json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return False
    return True


def _step_of(checkpoint: str | None) -> int:
    return int(checkpoint.rsplit("-", 1)[1]) if checkpoint else 0


def _save_policy(trainer: GRPOTrainer, folder: Path) -> None:
    temporary = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    trainer.save_model(str(temporary))
    shutil.rmtree(folder, ignore_errors=True)
    temporary.rename(folder)
