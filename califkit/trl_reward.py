"""CaLIF as a reward function of TRL's ``GRPOTrainer``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from califkit.adapters import completion_text, read_constraints
from califkit.likelihood import ReferenceScorer
from califkit.metrics import distinct_2, nan_mean, none_if_nan
from califkit.rewards import ZONES, calif_reward, exceeds_ceiling, zones
from califkit.verifiers import fraction_followed


class CalifReward:
    """Reward function for TRL's ``GRPOTrainer``: CaLIF, or the verifier fraction alone.

    The data set gives, beside ``prompt``, the columns ``request`` (x without its constraints),
    ``constraints`` (as `califkit.adapters.constraints_json` writes it), ``l0`` and ``l1``. After
    the trainer is built, `bind` hands over the reference model that it holds for its KL term::

        reward = CalifReward(alpha=0.1)
        trainer = GRPOTrainer(model=path, reward_funcs=reward, args=config, train_dataset=rows)
        reward.bind(trainer)
        trainer.train()

    Parameters
    ----------
    alpha
        Size of the bonus; None gives IF-RLVR (the reward is r_ver, the zones are only logged).
    semantics
        ``published`` or ``repaired`` verdicts.
    tokens_per_pass
        Padded tokens in one forward pass of the reference.
    on_rollouts
        Called with the step and one dict a rollout, after each scoring; for logs.
    """

    __name__ = "calif"

    def __init__(
        self,
        alpha: float | None = 0.1,
        semantics: str = "published",
        tokens_per_pass: int = 2048,
        on_rollouts: Callable[[int, list[dict[str, Any]]], None] | None = None,
    ) -> None:
        if alpha is not None and not alpha > 0:
            raise ValueError(f"alpha must be positive, or None for no bonus, got {alpha}")
        self.alpha = alpha
        self.semantics = semantics
        self.tokens_per_pass = tokens_per_pass
        self.on_rollouts = on_rollouts
        self._scorer: ReferenceScorer | None = None

    def bind(self, trainer: Any) -> None:
        """Take the frozen reference from a trainer that trains all weights with a KL term."""
        if trainer.ref_model is None:
            raise ValueError(
                "the trainer holds no reference model (beta = 0 or a PEFT policy); "
                "CalifReward needs one to score rollouts"
            )
        if trainer.args.sync_ref_model:
            raise ValueError(
                "sync_ref_model=True moves the reference that l0 and l1 were measured under"
            )
        if trainer.args.temperature != 1.0:
            raise ValueError(
                f"temperature={trainer.args.temperature}: rollouts must be drawn at 1.0, as l0 and "
                "l1 are likelihoods at temperature 1"
            )
        reference = trainer.accelerator.unwrap_model(trainer.ref_model)
        self._scorer = ReferenceScorer(reference, trainer.processing_class, self.tokens_per_pass)

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]],
        *,
        request: Sequence[str],
        constraints: Sequence[str],
        l0: Sequence[float | None],
        l1: Sequence[float | None],
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Any,
    ) -> list[float]:
        """Rewards of a batch of rollouts, in the order given (TRL's calling convention)."""
        if self._scorer is None:
            raise RuntimeError("call reward.bind(trainer) before training starts")
        texts = [completion_text(completion) for completion in completions]
        r_ver = np.array(
            [
                fraction_followed(read_constraints(row), text, self.semantics, unterminated="empty")
                for row, text in zip(constraints, texts, strict=True)
            ]
        )
        # An answer without text has no likelihood, in anchors and evaluation too.
        scored = [
            ids if text.strip() else [] for ids, text in zip(completion_ids, texts, strict=True)
        ]
        likelihood = self._scorer.score(request, scored)
        lower, upper = (np.array(bound, dtype=float) for bound in (l0, l1))
        if not len(lower) == len(upper) == len(texts):
            raise ValueError(f"{len(texts)} rollouts, but {len(lower)} l0 and {len(upper)} l1")
        if self.alpha is None:
            rewards = r_ver
        else:
            rewards = calif_reward(r_ver, likelihood, lower, upper, self.alpha)
        if not np.isfinite(rewards).all():
            raise RuntimeError(f"a reward is not finite: {rewards}")

        zone = zones(likelihood, lower, upper)
        answers = [self._without_end(ids) for ids in completion_ids]
        repetition = np.array([distinct_2(ids) for ids in answers])
        lengths = np.array([len(ids) for ids in answers])
        if log_metric is not None:
            log_metric("r_ver", float(r_ver.mean()))
            log_metric("loglik", nan_mean(likelihood))
            log_metric("distinct_2", nan_mean(repetition))
            log_metric("tokens", float(lengths.mean()))
            zeroed = exceeds_ceiling(likelihood, lower, upper) & (r_ver > 0)
            log_metric("above_ceiling", float(zeroed.mean()))
            log_metric("reward_minus_r_ver", float((rewards - r_ver).mean()))
            for name in ZONES:
                log_metric(f"zone/{name}", float((zone == name).mean()))
        if self.on_rollouts is not None:
            state = columns.get("trainer_state")
            keys = columns.get("key") or [None] * len(texts)
            rows = [
                {
                    "key": keys[i],
                    "completion": texts[i],
                    "r_ver": float(r_ver[i]),
                    "loglik": none_if_nan(likelihood[i]),
                    "l0": none_if_nan(lower[i]),
                    "l1": none_if_nan(upper[i]),
                    "zone": str(zone[i]),
                    "reward": float(rewards[i]),
                    "tokens": int(lengths[i]),
                    "distinct_2": none_if_nan(repetition[i]),
                }
                for i in range(len(texts))
            ]
            self.on_rollouts(state.global_step if state is not None else 0, rows)
        return rewards.tolist()

    def _without_end(self, ids: Sequence[int]) -> Sequence[int]:
        """Answer tokens without the end-of-turn token, which counts in l but not in a length."""
        ended = len(ids) > 0 and ids[-1] == self._scorer.tokenizer.eos_token_id
        return ids[:-1] if ended else ids
