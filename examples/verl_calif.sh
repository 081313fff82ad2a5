#!/usr/bin/env bash
# GRPO with the CaLIF reward in verl 0.9, with the paper's settings for Qwen3-1.7B where verl has
# them. NOT RUN: see docs/verl.md for what was checked, and for the files that it reads.
set -euo pipefail

MODEL=${MODEL:-Qwen/Qwen3-1.7B}
DATA=${DATA:-data}   # train.parquet, test.parquet

# Ray hides the GPUs from actors that ask for none, and verl's reward workers ask for none.
export RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO=0

python -m verl.trainer.main_ppo \
  data.train_files="$DATA/train.parquet" \
  data.val_files="$DATA/test.parquet" \
  data.train_batch_size=1024 \
  data.max_prompt_length=2048 \
  data.max_response_length=2048 \
  data.filter_overlong_prompts=true \
  +data.apply_chat_template_kwargs.enable_thinking=false \
  algorithm.adv_estimator=grpo \
  algorithm.use_kl_in_reward=false \
  actor_rollout_ref.model.path="$MODEL" \
  actor_rollout_ref.actor.optim.lr=5e-7 \
  actor_rollout_ref.actor.ppo_mini_batch_size=1024 \
  actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8 \
  actor_rollout_ref.actor.use_kl_loss=true \
  actor_rollout_ref.actor.kl_loss_type=low_var_kl \
  actor_rollout_ref.actor.kl_loss_coef=0.001 \
  actor_rollout_ref.actor.entropy_coeff=0 \
  actor_rollout_ref.actor.loss_agg_mode=token-mean \
  actor_rollout_ref.rollout.name=vllm \
  actor_rollout_ref.rollout.n=8 \
  actor_rollout_ref.rollout.temperature=1.0 \
  actor_rollout_ref.rollout.top_p=1.0 \
  actor_rollout_ref.rollout.top_k=-1 \
  actor_rollout_ref.rollout.tensor_model_parallel_size=1 \
  actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 \
  actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=8 \
  reward.num_workers=1 \
  reward.reward_manager.name=naive \
  reward.custom_reward_function.path=pkg://califkit.rewards.verl \
  reward.custom_reward_function.name=compute_score_async \
  +reward.custom_reward_function.reward_kwargs.model="$MODEL" \
  +reward.custom_reward_function.reward_kwargs.alpha=0.1 \
  +reward.custom_reward_function.reward_kwargs.device=cuda:0 \
  +reward.custom_reward_function.reward_kwargs.tokens_per_pass=16384 \
  trainer.n_gpus_per_node=8 \
  trainer.nnodes=1 \
  trainer.total_epochs=4 \
  "$@"
