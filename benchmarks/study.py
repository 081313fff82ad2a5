"""Run the arms of a study, or list them, or print what is there of them.

    python benchmarks/study.py --list
    nice python benchmarks/study.py --group main
    python benchmarks/study.py --table

The arms are those of ``params/arms/laptop.yaml``. The same call continues what was interrupted, and
complete runs cost nothing. ``--pilot`` runs the arms on other requests with other seeds, in a
profile of its own; pilots settle open choices and are never results.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pandas as pd

from califkit.evaluation.identification import identification_of
from califkit.evaluation.scores import SCORES
from califkit.exhibits.summary import run_metrics
from califkit.runs.arms import Arm, load_arms
from califkit.runs.dispatch import compute_all, job_list
from califkit.runs.folders import LOG, open_run
from califkit.runs.jsonl import read_jsonl
from califkit.runs.params import Params
from califkit.runs.paths import project_root
from califkit.runs.stages import TrainStage

LAST_STEPS = 6
LOGGED = ("r_ver", "loglik", "tokens", "distinct_2", "zone/above", "groups_with_equal_r_ver")


def training_table(arms: list[Arm]) -> pd.DataFrame:
    """Means over the last steps of every training run that is complete, a row a run."""
    rows = []
    for arm in arms:
        for stage in arm.params.settings.train_stages():
            run = open_run(arm.params.profile, stage)
            if run.is_complete:
                log = pd.DataFrame(read_jsonl(run.folder / LOG)).tail(LAST_STEPS)
                means = {name: log[name].mean() for name in LOGGED}
                rows.append({"arm": arm.name, "seed": stage.seed, "steps": len(log)} | means)
    return pd.DataFrame(rows)


def evaluation_table(arms: list[Arm]) -> pd.DataFrame:
    """CS, l, length and identification on the test prompts, a row a policy and benchmark.

    The base policy comes first; arms that are not complete are left out.
    """
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for arm in arms:
        for params in arm.evaluations:
            for row in _policies(params):
                name = arm.name if row["seed"] is not None else "base"
                rows.setdefault((name, row["seed"], row["benchmark"]), {"arm": name} | row)
    return pd.DataFrame(rows.values())


def _policies(params: Params) -> list[dict[str, Any]]:
    """The policies of some params whose scores are complete; several evaluation seeds are means."""
    settings, found = params.settings, []
    policies: dict[TrainStage | None, list[Any]] = {}
    for scores, identified in zip(
        settings.score_stages(), settings.identification_stages(), strict=True
    ):
        pair = [open_run(params.profile, stage) for stage in (scores, identified)]
        policies.setdefault(scores.responses.policy, []).append(pair)
    for policy, pairs in policies.items():
        if all(run.is_complete for pair in pairs for run in pair):
            rows = [row for scores, _ in pairs for row in read_jsonl(scores.folder / SCORES)]
            metrics = run_metrics(rows)
            identified = identification_of([run for _, run in pairs])
            found.append(
                {
                    "seed": policy.seed if policy else None,
                    "benchmark": settings.evaluation.benchmark,
                    **{
                        name: metrics[name]
                        for name in ("prompt_level_loose_acc", "loglik", "tokens")
                    },
                    "top_1": identified.top_1,
                    "auc": identified.auc,
                    "information": identified.information,
                }
            )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--arms", type=Path, default=project_root() / "params/arms/laptop.yaml")
    parser.add_argument("--group", action="append", help="only this group; repeatable")
    parser.add_argument("--arm", action="append", help="only this arm; repeatable")
    parser.add_argument("--pilot", action="store_true", help="other requests, other seeds")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--list", action="store_true", help="what is there; compute nothing")
    action.add_argument("--table", action="store_true", help="numbers of what is there")
    args = parser.parse_args()

    arms = load_arms(args.arms, pilot=args.pilot)
    for given, known in ((args.group, {a.group for a in arms}), (args.arm, {a.name for a in arms})):
        if unknown := set(given or ()) - known:
            parser.error(f"no {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}")
    arms = [a for a in arms if a.group in (args.group or (a.group,))]
    arms = [a for a in arms if a.name in (args.arm or (a.name,))]
    if not arms:
        parser.error("no arm of this name is in this group")
    params = arms[0].params
    stages = [stage for arm in arms for stage in arm.stages]
    if args.list:
        for arm in arms:
            states = [row["state"] for row in job_list(params.profile, arm.stages)]
            done = states.count("complete")
            print(f"{arm.group:14} {arm.name:20} {done} of {len(states)} runs are complete")
        return
    if not args.table:
        compute_all(params.profile, stages, params.settings.execution)
    for table in (training_table(arms), evaluation_table(arms)):
        text = table.to_string(index=False, float_format="{:.3f}".format, na_rep="")
        print(f"\n{text if len(table) else 'nothing is complete yet'}")


if __name__ == "__main__":
    main()
