"""CaLIF as a reward function of TRL's ``GRPOTrainer``, in one process or several."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from numbers import Real
from typing import Any, Literal

import numpy as np

from califkit.metrics import none_if_nan
from califkit.models.chat import pin_date
from califkit.models.likelihood import ReferenceScorer
from califkit.models.reasoning import Answer, final_answer, turn_end_id
from califkit.rewards.adapters import completion_text
from califkit.rewards.checks import (
    COLUMNS,
    OPTIONAL_COLUMNS,
    RewardError,
    check_columns,
    check_config,
    check_dataset,
    check_generation_config,
    check_prompt,
    check_row,
    check_step,
    check_template,
)
from califkit.rewards.judge import Grader, JudgeRule, judge_statistics, reward_rule
from califkit.rewards.reference import find_reference
from califkit.rewards.score import answer_row, pay
from califkit.rewards.statistics import step_statistics

__all__ = ["CalifReward", "RewardError", "check_config"]


class CalifReward:
    """Reward function for TRL's ``GRPOTrainer``: CaLIF or another reward of the paper.

    The data set gives, beside ``prompt`` (a conversation), the columns ``request`` (x without its
    constraints), ``constraints`` (as `califkit.data.rows.constraints_json` writes it), ``l0`` and
    ``l1`` (nats per token; a few may be missing, as None or NaN). Optional: ``key``, for logs and
    messages, ``anchor_tokens`` (length of the constrained anchor, for a warning), and
    ``anchor_r_ver``, which ``bonus_requires_compliant_anchor`` needs. After the trainer is built,
    `bind` finds its reference and checks its data::

        reward = CalifReward(alpha=0.1)
        trainer = GRPOTrainer(model=path, reward_funcs=reward, args=config, train_dataset=rows)
        reward.bind(trainer)
        trainer.train()

    Only the final answer is verified and scored. Each process scores its own rollouts; what is
    logged describes the rollouts of all processes.

    Parameters
    ----------
    method
        One of `califkit.runs.settings.Method`; also the name under which the trainer logs the
        reward. Those that do not pay by l, ``if_rlvr`` and the judges, log l and zones all the
        same.
    alpha, reversed_bounds, ceiling_margin, bonus_requires_compliant_anchor
        As in `califkit.rewards.rules.RewardRule`.
    judge, tau
        For ``self_judge`` and ``stronger_judge``, which need both: a `califkit.judges.judge.Judge`
        or the like, and the score to exceed; see `califkit.rewards.judge`. Each process judges its
        own rollouts, while the reference scores them.
    semantics
        ``published`` or ``repaired`` verdicts.
    bounds_temperature
        Temperature at which the answers behind l0 and l1 were drawn. Rollouts have to be drawn at
        the same; l itself is taken at temperature 1 in any case.
    thinking
        Whether rollouts are drawn in thinking mode; see `califkit.models.reasoning.final_answer`.
    score_zero_reward
        Whether rollouts with r_ver = 0 are scored as well. They earn 0 whatever their l, so False
        saves time and changes no reward; l and zones are then those of the others alone.
    tokens_per_pass
        Padded tokens in one forward pass of the reference.
    on_rollouts
        Called on every process with the number of finished steps and one dict a rollout of all
        processes, in the order of the step; for logs. Not called in evaluation. Keys: ``key``,
        ``group`` (number of the prompt in the step), ``completion`` (as drawn), ``tokens`` (as
        drawn, without the end-of-turn token), ``clipped`` (no end-of-turn token), all that
        `califkit.rewards.score` writes of an answer, ``anchor_r_ver`` and ``anchor_tokens`` if the
        data set has them, and ``judge_status`` and ``judge_score`` if a judge is asked.
    """

    def __init__(
        self,
        alpha: float | None = 0.1,
        method: str = "calif",
        *,
        reversed_bounds: Literal["keep"] | None = None,
        ceiling_margin: float | None = None,
        bonus_requires_compliant_anchor: bool = False,
        judge: Grader | None = None,
        tau: float | None = None,
        semantics: Literal["published", "repaired"] = "published",
        bounds_temperature: float = 1.0,
        thinking: bool = False,
        score_zero_reward: bool = True,
        tokens_per_pass: int = 2048,
        on_rollouts: Callable[[int, list[dict[str, Any]]], None] | None = None,
    ) -> None:
        numbers = {"alpha": alpha, "ceiling_margin": ceiling_margin, "tau": tau}
        for name, value in (numbers | {"bounds_temperature": bounds_temperature}).items():
            if value is not None and (not isinstance(value, Real) or isinstance(value, bool)):
                raise TypeError(f"{name} must be a number, got {value!r}")
        if semantics not in ("published", "repaired"):
            raise ValueError(f"semantics must be 'published' or 'repaired', got {semantics!r}")
        if tokens_per_pass < 1:
            raise ValueError(f"tokens_per_pass must be at least 1, got {tokens_per_pass}")
        self.rule = reward_rule(
            method,
            alpha,
            judge,
            tau,
            reversed_bounds=reversed_bounds,
            ceiling_margin=ceiling_margin,
            bonus_requires_compliant_anchor=bonus_requires_compliant_anchor,
        )
        self.semantics = semantics
        self.bounds_temperature = bounds_temperature
        self.thinking = thinking
        self.score_zero_reward = score_zero_reward
        self.tokens_per_pass = tokens_per_pass
        self.on_rollouts = on_rollouts
        self.__name__ = method
        self.reference_kind: str | None = None
        self.scorer: ReferenceScorer | None = None
        self._trainer: Any = None
        self._turn_ends: set[int] = set()

    def bind(self, trainer: Any) -> None:
        """Take the frozen reference from a trainer that has not trained yet; check its data.

        ``scorer`` then gives l under the reference, and ``reference_kind`` says where that lives;
        see `califkit.rewards.reference`. A chat template that prints today's date prints
        `califkit.models.chat.DATE` from now on. All rows of the training and evaluation sets are
        read. Those of an ``IterableDataset`` cannot be, so an error in one shows only when it is
        scored. `RewardError` for settings, a chat template or data that cannot be used (see
        `califkit.rewards.checks`); `NoReferenceError` if the starting policy cannot be had.
        """
        check_config(trainer.args, bounds_temperature=self.bounds_temperature)
        check_generation_config(trainer)
        pin_date(trainer.processing_class)
        pin_date(trainer)  # which has a template of its own where there are tools
        check_template(trainer, thinking=self.thinking)
        evaluated = trainer.eval_dataset
        if not isinstance(evaluated, Mapping):
            evaluated = {} if evaluated is None else {"": evaluated}
        for dataset, name in (
            (trainer.train_dataset, "training set"),
            *((part, f"evaluation set {key}".rstrip()) for key, part in evaluated.items()),
        ):
            for doubt in check_dataset(dataset, name, self._needed, self.rule.method):
                warnings.warn(doubt, stacklevel=2)
        check_step(trainer)
        reference = find_reference(trainer)
        self.scorer = ReferenceScorer(
            reference.model,
            trainer.processing_class,
            self.tokens_per_pass,
            active=reference.active,
            lockstep=_passes_are_collectives(trainer),
        )
        self.reference_kind = reference.kind
        self._trainer = trainer
        self._turn_ends = {*trainer.eos_token_ids, turn_end_id(trainer.processing_class)}

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]],
        *,
        log_metric: Callable[[str, float], None] | None = None,
        trainer_state: Any = None,
        **columns: Any,
    ) -> list[float]:
        """Rewards of this process's rollouts, in the order given (TRL's calling convention).

        Every process has to call it at the same time. `RewardError` for data that cannot be used
        names process, rollout, key and cause, and is raised by all.
        """
        from accelerate.utils import gather_object

        if self.scorer is None:
            raise RuntimeError("call reward.bind(trainer) before training starts")
        with raised_everywhere():
            rows, requests, answers = self._verified(prompts, completions, completion_ids, columns)
        if isinstance(self.rule, JudgeRule):
            wait_for_judge = self.rule.ask(rows, requests, [answer.text for answer in answers])
        scored = [
            answer.token_ids if self.score_zero_reward or row["r_ver"] > 0 else []
            for row, answer in zip(rows, answers, strict=True)
        ]
        # Where each pass is a collective, an error between two of them cannot be shared: it ends
        # this process, and with it the job.
        with nullcontext() if self.scorer.lockstep else raised_everywhere():
            likelihood = self.scorer.score(requests, scored)
        with raised_everywhere():
            if isinstance(self.rule, JudgeRule):
                wait_for_judge()
            rewards = self._reward(rows, likelihood)

        step = gather_object(rows)
        training = self._trainer.model.training
        per_prompt = "num_generations" if training else "num_generations_eval"
        for i, row in enumerate(step):  # the rollouts of a prompt follow each other in the step
            row["group"] = i // getattr(self._trainer, per_prompt)
        if log_metric is not None:
            statistics = step_statistics(step, self.rule.margin)
            statistics |= judge_statistics(step) if isinstance(self.rule, JudgeRule) else {}
            for name, value in statistics.items():
                log_metric(name, value)
        if self.on_rollouts is not None and training:
            self.on_rollouts(trainer_state.global_step if trainer_state else 0, step)
        return rewards

    @property
    def _needed(self) -> tuple[str, ...]:
        """Columns that the data set has to have."""
        more = ("anchor_r_ver",) if self.rule.bonus_requires_compliant_anchor else ()
        return (*COLUMNS, *more)

    def _verified(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]],
        columns: Mapping[str, Sequence[Any]],
    ) -> tuple[list[dict[str, Any]], list[str], list[Answer]]:
        """Rows without reward, and the requests and answers to score."""
        check_columns(columns, self._needed)
        names = [name for name in (*COLUMNS, *OPTIONAL_COLUMNS) if name in columns]
        given = {"prompts": prompts, "completion_ids": completion_ids}
        for name, values in (given | {name: columns[name] for name in names}).items():
            if len(values) != len(completions):
                raise RewardError(f"{len(completions)} completions, but {len(values)} {name}")
        rows, requests, answers = [], [], []
        for i, (completion, ids) in enumerate(zip(completions, completion_ids, strict=True)):
            data = {name: columns[name][i] for name in names}
            try:
                check_prompt(prompts[i])
                row, answer = self._verified_row(completion, ids, data)
                # A request that the template refuses has to fail here, before the collectives.
                if requests[-1:] != [data["request"]]:
                    self.scorer.prefix_ids(data["request"])
            except Exception as error:
                raise RewardError(
                    f"rollout {i}, key {data.get('key')!r}: {_cause(error)}"
                ) from error
            rows.append(row)
            requests.append(data["request"])
            answers.append(answer)
        return rows, requests, answers

    def _verified_row(
        self, completion: Any, ids: Sequence[int], data: Mapping[str, Any]
    ) -> tuple[dict[str, Any], Answer]:
        constraints, numbers = check_row(data, self.rule.method)
        answer = final_answer(
            ids, self.scorer.tokenizer, thinking=self.thinking, stop=self._turn_ends
        )
        end = next((i for i, token in enumerate(ids) if token in self._turn_ends), None)
        row = {
            "key": data.get("key"),
            "completion": completion_text(completion),
            "tokens": len(ids) if end is None else end,
            "clipped": end is None,
            **answer_row(answer, constraints, numbers["l0"], numbers["l1"], self.semantics),
        }
        return row | {name: none_if_nan(value) for name, value in numbers.items()}, answer

    def _reward(self, rows: list[dict[str, Any]], likelihood: np.ndarray) -> list[float]:
        """Rewards, written into the rows together with likelihood and zone."""
        pay(rows, likelihood, self.rule)
        for i, row in enumerate(rows):
            if not np.isfinite(row["reward"]):
                raise RewardError(f"rollout {i}, key {row['key']!r}: the reward is {row['reward']}")
        return [row["reward"] for row in rows]


def _passes_are_collectives(trainer: Any) -> bool:
    """Whether a forward pass gathers weights that are split over the processes."""
    if trainer.is_deepspeed_enabled:
        return trainer.accelerator.state.deepspeed_plugin.zero_stage == 3
    return trainer.is_fsdp_enabled


@contextmanager
def raised_everywhere() -> Iterator[None]:
    """An error inside it on one process is a `RewardError` on all of them.

    Every process has to pass through; inside there must be no collective.
    """
    from accelerate.utils import gather_object

    mine: Exception | None = None
    try:
        yield
    except Exception as error:
        mine = error
    causes = gather_object([_cause(mine) if mine else None])
    failed = [
        f"process {rank}: {cause}" if len(causes) > 1 else cause
        for rank, cause in enumerate(causes)
        if cause
    ]
    if failed:
        raise RewardError("; ".join(failed)) from mine


def _cause(error: Exception) -> str:
    return str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
