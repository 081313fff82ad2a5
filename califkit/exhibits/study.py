"""The study of docs/study.md: arms side by side, differences at equal r_ver, and its hypotheses.

Two tables are the ground of everything here: `training_logs` (a row a step) and `held_out` (a row
an answer to a test prompt). The unit of every interval is the prompt.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from califkit import metrics
from califkit.evaluation.identification import identified_answers
from califkit.exhibits.summary import response_table
from califkit.runs.arms import Arm
from califkit.runs.folders import LOG, ROLLOUTS, MissingRunError, Run, open_run
from califkit.runs.jsonl import whole_lines
from califkit.runs.stages import stage_hash

BASE = "base"
END = 6
"""Steps at either end of a training run whose mean is its beginning and its end."""

LOGGED = [
    "step",
    "r_ver",
    "loglik",
    "tokens",
    "distinct_2",
    "zeroed",
    "zone/reversed",
    "groups_with_equal_r_ver",
]
MEASURES = ["passes", "share", "loglik", "tokens", "distinct_2", "top_1", "auc", "information"]
"""What is measured of an answer. ``share`` is that of its constraints that it follows, loosely."""

NOT_RUN = "not run"


# --- the two tables ------------------------------------------------------------------------------
def training_logs(arms: Iterable[Arm]) -> pd.DataFrame:
    """The logs of all complete training runs: ``arm``, ``seed`` and `LOGGED`, a row a step."""
    return _of_training(arms, LOG)[["arm", "seed", *LOGGED]]


def training_rollouts(arms: Iterable[Arm]) -> pd.DataFrame:
    """All rollouts of complete training runs: ``arm``, ``seed`` and `_MEASURED`; their texts, of
    which a full-scale run has gigabytes, are not kept."""
    return _of_training(arms, ROLLOUTS, _MEASURED)


_MEASURED = ("step", "key", "r_ver", "loglik", "l0", "l1", "anchor_r_ver", "distinct_2", "tokens")


def _of_training(
    arms: Iterable[Arm], file: str, columns: tuple[str, ...] | None = None
) -> pd.DataFrame:
    frames = []
    for arm in arms:
        for stage in arm.params.settings.train_stages():
            run = open_run(arm.params.profile, stage)
            if run.is_complete:
                rows = map(json.loads, whole_lines(run.folder / file))
                if columns is not None:
                    rows = ({name: row[name] for name in columns} for row in rows)
                rows = pd.DataFrame(list(rows))
                frames.append(rows.assign(arm=arm.name, seed=stage.seed))
    if not frames:
        raise MissingRunError("no training run of the study is complete")
    return pd.concat(frames, ignore_index=True)


def held_out(arms: Iterable[Arm], benchmark: str, first_tokens: int | None = None) -> pd.DataFrame:
    """Answers to the test prompts of a benchmark, of the base policy and of all complete arms,
    identified as a whole or by their ``first_tokens``.

    Columns: ``arm``, ``seed`` (of training; NaN for `BASE`), ``eval_seed``, ``key``, ``prompt``,
    ``response`` and `MEASURES`.
    """
    frames: dict[str, pd.DataFrame] = {}  # by hash: all arms have the base policy in common
    for arm in arms:
        for params in arm.evaluations:
            settings = params.settings
            identified = settings.identification
            wanted = identified is not None and identified.first_tokens == first_tokens
            if settings.evaluation.benchmark != benchmark or not wanted:
                continue
            for stages in zip(
                settings.score_stages(), settings.identification_stages(), strict=True
            ):
                runs = [open_run(params.profile, stage) for stage in stages]
                if all(run.is_complete for run in runs):
                    policy = stages[0].responses.policy
                    name, seed = (arm.name, policy.seed) if policy else (BASE, np.nan)
                    answers = _answers(params.profile, *runs).assign(arm=name, seed=seed)
                    frames.setdefault(stage_hash(stages[0]), answers)
    if not frames:
        raise MissingRunError(
            f"no answers to {benchmark} are scored and identified yet; identified are those of "
            "profiles with settings.identification"
        )
    columns = ["arm", "seed", "eval_seed", "key", "prompt", "response", *MEASURES]
    return pd.concat(frames.values(), ignore_index=True)[columns]


def _answers(profile: str, scores: Run, identified: Run) -> pd.DataFrame:
    table = response_table(profile, [scores]).drop(columns="information")
    share = [float(np.mean(verdicts)) for verdicts in table["loose"]]
    table = table.assign(share=share, passes=table["passes"].astype(float))
    return table.merge(identified_answers(identified), on="key", validate="one_to_one")


# --- levels and differences ----------------------------------------------------------------------
def ends(training: pd.DataFrame) -> pd.DataFrame:
    """Means over the first and the last `END` steps of every run of `training_logs`.

    Index: ``arm``, ``seed``; columns: (``start`` or ``end``, one of `LOGGED`).
    """
    runs = training.sort_values("step").groupby(["arm", "seed"], sort=False)
    numbers = LOGGED[1:]
    both = {"start": runs[numbers].apply(lambda run: run.head(END).mean())}
    both["end"] = runs[numbers].apply(lambda run: run.tail(END).mean())
    return pd.concat(both, axis="columns")


def levels(answers: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    """Mean of each of `MEASURES` by arm, with a 95 % interval over prompts.

    Columns: ``arm``, ``measure``, ``value``, ``low``, ``high``, ``answers``, ``seeds``.
    """
    rows = []
    for arm, group in answers.groupby("arm", sort=False):
        for measure in MEASURES:
            known = group.dropna(subset=[measure])
            interval = metrics.interval_by_prompt(known[measure], known["key"].tolist(), rng)
            seeds = max(1, group["seed"].nunique())
            rows.append((arm, measure, known[measure].mean(), *interval, len(known), seeds))
    columns = ["arm", "measure", "value", "low", "high", "answers", "seeds"]
    return pd.DataFrame(rows, columns=columns)


def difference(
    answers: pd.DataFrame,
    first: str,
    second: str,
    measure: str,
    rng: np.random.Generator,
    equal: str | None = None,
) -> dict[str, Any]:
    """First arm minus second on the same prompts, with a 95 % interval over prompts.

    Answers of two arms to one prompt are paired by seed (those of `BASE`, which has no training
    seed, with each seed of the other); with ``equal`` (a column, such as ``share``) only where both
    have the same value there. Differences are averaged within a prompt and seed, then within a
    prompt, then over prompts.

    Returns ``value``, ``low``, ``high``, ``prompts``, ``pairs`` and ``by_seed`` (the difference in
    each seed). Without a pair the numbers are NaN.
    """
    columns = ["key", "seed", measure, *([equal] if equal else [])]
    a, b = (answers.loc[answers["arm"] == arm, columns] for arm in (first, second))
    on = ["key"] if BASE in (first, second) else ["key", "seed"]
    pairs = a.merge(b, on=[*on, *([equal] if equal else [])], suffixes=("", "_second"))
    pairs = pairs.dropna(subset=[measure, f"{measure}_second"])
    seed = "seed_second" if first == BASE else "seed"
    pairs = pairs.assign(change=pairs[measure] - pairs[f"{measure}_second"])
    if pairs.empty:
        return {"value": np.nan, "low": np.nan, "high": np.nan, "prompts": 0, "pairs": 0} | {
            "by_seed": {}
        }
    within = pairs.groupby(["key", seed])["change"].mean()
    by_prompt = within.groupby("key").mean()
    low, high = metrics.bootstrap_interval(by_prompt, np.ones(len(by_prompt)), rng)
    by_seed = {int(s): float(mean) for s, mean in within.groupby(seed).mean().items()}
    return {"value": float(by_prompt.mean()), "low": low, "high": high} | {
        "prompts": len(by_prompt),
        "pairs": len(pairs),
        "by_seed": by_seed,
    }


def differences(
    answers: pd.DataFrame,
    against: str,
    rng: np.random.Generator,
    measures: Sequence[str] = ("information", "loglik", "tokens", "distinct_2"),
) -> pd.DataFrame:
    """Every arm against one, at equal share of followed constraints: `difference`, a row each."""
    others = [arm for arm in answers["arm"].unique() if arm != against]
    rows = [
        {"arm": arm, "against": against, "measure": measure}
        | difference(answers, arm, against, measure, rng, equal="share")
        for arm in others
        for measure in measures
    ]
    return pd.DataFrame(rows)


def ratio(
    answers: pd.DataFrame, arm: str, measure: str, rng: np.random.Generator
) -> tuple[float, float, float]:
    """Mean of an arm as a share of the base policy's on the same prompts, and its 95 % interval."""
    means = answers.groupby(["arm", "key"])[measure].mean().unstack("arm")
    units = means[[arm, BASE]].dropna().to_numpy()
    sums = metrics.bootstrap_sums(units, rng)
    low, high = np.quantile(sums[:, 0] / sums[:, 1], [0.025, 0.975])
    return float(units[:, 0].sum() / units[:, 1].sum()), float(low), float(high)


def late(rollouts: pd.DataFrame) -> pd.DataFrame:
    """The rollouts of the last `END` steps."""
    return rollouts[rollouts["step"] > rollouts["step"].max() - END]


def rollouts_at_equal_r_ver(
    rollouts: pd.DataFrame, first: str, second: str, rng: np.random.Generator
) -> dict[str, Any]:
    """l of the rollouts of two arms in their last pass over the prompts, at equal r_ver.

    A prompt's rollouts with one r_ver are averaged in each arm; then as `difference`.
    """
    latest = rollouts.groupby(["arm", "seed", "key"])["step"].transform("max")
    last = rollouts[rollouts["step"] == latest]
    means = last.groupby(["arm", "seed", "key", "r_ver"], as_index=False)["loglik"].mean()
    return difference(means, first, second, "loglik", rng, equal="r_ver")


def examples(answers: pd.DataFrame, hacked: str, arms: Sequence[str], count: int) -> pd.DataFrame:
    """What arms answer where one of them passes and has lost most information, by that rule.

    The prompts are those whose answer of the arm ``hacked`` in its first seed follows all
    constraints, by the fall of information from the base policy's answer. Rows of `held_out`,
    ``count`` prompts with a row for each of ``arms``.
    """
    first = answers[answers["seed"].isna() | (answers["seed"] == answers["seed"].min())]
    first = first[first["eval_seed"] == first["eval_seed"].min()]
    told = first.pivot(index="key", columns="arm", values="information")
    passing = first.loc[(first["arm"] == hacked) & (first["passes"] == 1), "key"]
    fallen = (told[BASE] - told[hacked]).loc[passing].sort_values(ascending=False, kind="stable")
    chosen = {key: place for place, key in enumerate(fallen.index[:count])}
    rows = first[first["key"].isin(chosen) & first["arm"].isin(arms)]
    order = [rows["key"].map(chosen), rows["arm"].map(list(arms).index)]
    return rows.iloc[np.lexsort(order[::-1])].reset_index(drop=True)


# --- the hypotheses of docs/study.md -------------------------------------------------------------
@dataclass(frozen=True)
class _Evidence:
    """What criteria are measured on. Each method returns ``found`` and, where there are any,
    ``low`` and ``high`` (95 % over prompts) and ``by_seed``."""

    ends: pd.DataFrame
    answers: pd.DataFrame
    rollouts: pd.DataFrame
    rng: np.random.Generator

    def change(self, arm: str, column: str, of_base: str) -> dict[str, Any]:
        """Rollouts of the last steps less the base policy's samples for the same prompts."""
        own = late(self.rollouts[self.rollouts["arm"] == arm])
        changes = (own[column] - own[of_base]).groupby(own["seed"]).mean()
        return {"found": float(changes.mean()), "by_seed": _listed(changes)}

    def at_the_end(self, first: str, second: str, column: str) -> dict[str, Any]:
        values = self.ends.loc[first]["end", column] - self.ends.loc[second]["end", column]
        return {"found": float(values.mean()), "by_seed": _listed(values)}

    def gain(self, first: str, second: str) -> dict[str, Any]:
        """What the first arm gains in r_ver, as a share of what the second gains."""
        gains = [self.change(arm, "r_ver", "anchor_r_ver")["found"] for arm in (first, second)]
        return {"found": gains[0] / gains[1]}

    def of_base(self, arm: str, measure: str) -> dict[str, Any]:
        found, low, high = ratio(self.answers, arm, measure, self.rng)
        return {"found": found, "low": low, "high": high}

    def difference(
        self, first: str, second: str, measure: str, equal: str | None = None
    ) -> dict[str, Any]:
        """First arm minus second on the same prompts; one seed is read against the same seed."""
        return _named(difference(self.answers, first, second, measure, self.rng, equal))

    def rollouts_at_equal_r_ver(self, first: str, second: str) -> dict[str, Any]:
        return _named(rollouts_at_equal_r_ver(self.rollouts, first, second, self.rng))

    def between_mixes(self, first: str, second: str) -> dict[str, Any]:
        """What the variant keeps of l against IF-RLVR under one mix of constraints and another."""
        kept = [
            self.at_the_end(f"{mix}_variant", f"{mix}_if_rlvr", "loglik")["found"]
            for mix in (first, second)
        ]
        text = f"{first} {kept[0]:+.2f}, {second} {kept[1]:+.2f}"
        return {"found": kept[0] - kept[1], "by_seed": text}

    def at_the_start(self, first: str, second: str, column: str) -> dict[str, Any]:
        a, b = (self.ends.loc[(arm, 0), ("start", column)] for arm in (first, second))
        return {"found": a - b, "by_seed": f"{first} {a:.2f}, {second} {b:.2f}"}

    def over_l1(self, arm: str) -> dict[str, Any]:
        """l less l1 of the rollouts of the last steps."""
        own = late(self.rollouts[self.rollouts["arm"] == arm]).dropna(subset=["loglik", "l1"])
        above = (own["loglik"] - own["l1"]).groupby(own["key"]).mean()
        low, high = metrics.bootstrap_interval(above, np.ones(len(above)), self.rng)
        return {"found": float(above.mean()), "low": low, "high": high}


def _named(found: dict[str, Any]) -> dict[str, Any]:
    by_seed = _listed(found["by_seed"].values())
    return {"found": found["value"], "low": found["low"], "high": found["high"], "by_seed": by_seed}


def _listed(values: Iterable[float]) -> str:
    return ", ".join(f"{value:+.2f}" for value in values)


def _at_least(bound: float) -> Callable[[dict[str, Any]], bool]:
    return lambda found: found["found"] >= bound


def _at_most(bound: float) -> Callable[[dict[str, Any]], bool]:
    return lambda found: found["found"] <= bound


def _above(bound: float) -> Callable[[dict[str, Any]], bool]:
    """At least the bound, with an interval and all seeds above 0."""
    return lambda found: (
        found["found"] >= bound and found["low"] > 0 and "-" not in found["by_seed"]
    )


_RLVR, _PRINTED, _VARIANT = "if_rlvr", "calif", "calif_variant"
_MIXES = [f"{mix}_{arm}" for mix in ("equal", "unequal") for arm in ("variant", "if_rlvr")]


@dataclass(frozen=True)
class Criterion:
    """A line of docs/study.md: what was expected of which arms, and how that is measured."""

    hypothesis: str
    criterion: str
    expected: str
    arms: Sequence[str]
    measured: Callable[[_Evidence], dict[str, Any]]
    holds: Callable[[dict[str, Any]], bool]


CRITERIA = [
    Criterion(
        "H1",
        "training: r_ver at the end less that of the base's samples, IF-RLVR",
        ">= 0.05",
        [_RLVR],
        lambda e: e.change(_RLVR, "r_ver", "anchor_r_ver"),
        _at_least(0.05),
    ),
    Criterion(
        "H1",
        "training: l at the end less l0, IF-RLVR",
        "<= -0.3",
        [_RLVR],
        lambda e: e.change(_RLVR, "loglik", "l0"),
        _at_most(-0.3),
    ),
    Criterion(
        "H1",
        "information, IF-RLVR / base",
        "<= 0.75",
        [_RLVR],
        lambda e: e.of_base(_RLVR, "information"),
        _at_most(0.75),
    ),
    Criterion(
        "H1",
        "share of constraints followed, IF-RLVR minus base",
        ">= 0.05",
        [_RLVR],
        lambda e: e.difference(_RLVR, BASE, "share"),
        _above(0.05),
    ),
    Criterion(
        "H2",
        "information, CaLIF as printed minus IF-RLVR",
        "<= 0",
        [_RLVR, _PRINTED],
        lambda e: e.difference(_PRINTED, _RLVR, "information"),
        _at_most(0),
    ),
    Criterion(
        "H2",
        "training: l at the end, CaLIF as printed minus IF-RLVR",
        "<= 0.3",
        [_RLVR, _PRINTED],
        lambda e: e.at_the_end(_PRINTED, _RLVR, "loglik"),
        _at_most(0.3),
    ),
    Criterion(
        "H3",
        "information, variant / base",
        ">= 0.9",
        [_VARIANT],
        lambda e: e.of_base(_VARIANT, "information"),
        _at_least(0.9),
    ),
    Criterion(
        "H3",
        "information, variant minus IF-RLVR",
        "> 0",
        [_RLVR, _VARIANT],
        lambda e: e.difference(_VARIANT, _RLVR, "information"),
        _above(0),
    ),
    Criterion(
        "H3",
        "length, variant / base",
        ">= 0.9",
        [_VARIANT],
        lambda e: e.of_base(_VARIANT, "tokens"),
        _at_least(0.9),
    ),
    Criterion(
        "H3",
        "training: gain of r_ver, variant / IF-RLVR",
        ">= 1/3",
        [_RLVR, _VARIANT],
        lambda e: e.gain(_VARIANT, _RLVR),
        _at_least(1 / 3),
    ),
    Criterion(
        "H4",
        "information at equal share, variant minus IF-RLVR",
        ">= 5",
        [_RLVR, _VARIANT],
        lambda e: e.difference(_VARIANT, _RLVR, "information", "share"),
        _above(5),
    ),
    Criterion(
        "H4",
        "training: l at equal r_ver, last pass, variant minus IF-RLVR",
        "> 0",
        [_RLVR, _VARIANT],
        lambda e: e.rollouts_at_equal_r_ver(_VARIANT, _RLVR),
        _above(0),
    ),
    Criterion(
        "H5",
        "information, without upper bound minus variant",
        "-5 to 5",
        ["no_upper", _VARIANT],
        lambda e: e.difference("no_upper", _VARIANT, "information"),
        lambda f: abs(f["found"]) <= 5,
    ),
    Criterion(
        "H5",
        "information, without lower bound minus CaLIF as printed",
        "<= 5",
        ["no_lower", _PRINTED],
        lambda e: e.difference("no_lower", _PRINTED, "information"),
        _at_most(5),
    ),
    Criterion(
        "H6",
        "training: l at the end, variant minus IF-RLVR, equal minus unequal mix",
        "> 0",
        _MIXES,
        lambda e: e.between_mixes("equal", "unequal"),
        lambda f: f["found"] > 0,
    ),
    Criterion(
        "H7",
        "training, first steps: reversed bounds, one sample minus four",
        "> 0",
        ["one_draw", _PRINTED],
        lambda e: e.at_the_start("one_draw", _PRINTED, "zone/reversed"),
        lambda f: f["found"] > 0,
    ),
    Criterion(
        "H7",
        "training, first steps: zeroed rollouts, one sample minus four",
        "> 0",
        ["one_draw", _PRINTED],
        lambda e: e.at_the_start("one_draw", _PRINTED, "zeroed"),
        lambda f: f["found"] > 0,
    ),
    Criterion(
        "H8",
        "training: l less l1 at the end, direct bonus",
        "> 0",
        ["direct_bonus"],
        lambda e: e.over_l1("direct_bonus"),
        lambda f: f["found"] > 0,
    ),
    Criterion(
        "H8",
        "information, direct bonus / base",
        "< 1",
        ["direct_bonus"],
        lambda e: e.of_base("direct_bonus", "information"),
        lambda f: f["found"] < 1,
    ),
    Criterion(
        "H9",
        "information at temperature 1, CaLIF as printed minus IF-RLVR",
        "<= 0",
        ["hot_calif", "hot_if_rlvr"],
        lambda e: e.difference("hot_calif", "hot_if_rlvr", "information"),
        _at_most(0),
    ),
]


def hypotheses(
    training: pd.DataFrame, answers: pd.DataFrame, rollouts: pd.DataFrame, rng: np.random.Generator
) -> pd.DataFrame:
    """What docs/study.md expected and what was found, a row a criterion.

    The tables are `training_logs`, `held_out` and `training_rollouts`. Columns: ``hypothesis``,
    ``criterion``, ``expected``, ``found``, ``low``, ``high`` (95 % over prompts, NaN where the
    criterion has none), ``by_seed``, ``holds`` (yes, no, or `NOT_RUN` where an arm is missing).
    """
    there = set(training["arm"]) & set(answers["arm"])
    evidence = _Evidence(ends(training), answers, rollouts, rng)
    rows = []
    for one in CRITERIA:
        row = {"hypothesis": one.hypothesis, "criterion": one.criterion, "expected": one.expected}
        row |= {"found": np.nan, "low": np.nan, "high": np.nan, "by_seed": "", "holds": NOT_RUN}
        if set(one.arms) <= there:
            found = one.measured(evidence)
            row |= found | {"holds": "yes" if one.holds(found) else "no"}
        rows.append(row)
    return pd.DataFrame(rows)
