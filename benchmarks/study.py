"""Run the arms of a study, or list them, or print what is there of them.

    python benchmarks/study.py --list
    nice python benchmarks/study.py --group main
    python benchmarks/study.py --table

The arms are those of a params file, ``laptop`` by default. The same call continues what was
interrupted, and complete runs cost nothing.
"""

from __future__ import annotations

import argparse

import numpy as np
import pandas as pd

from califkit.exhibits import study
from califkit.runs.arms import load_arms
from califkit.runs.dispatch import compute_all, job_list


def show(table: pd.DataFrame) -> None:
    print(f"\n{table.to_string(index=False, float_format='{:.3f}'.format, na_rep='')}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--profile", default="laptop", help="a params file with groups of arms")
    parser.add_argument("--group", action="append", help="only this group; repeatable")
    parser.add_argument("--arm", action="append", help="only this arm; repeatable")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--list", action="store_true", help="what is there; compute nothing")
    action.add_argument("--table", action="store_true", help="numbers of what is there")
    args = parser.parse_args()

    arms = load_arms(args.profile, groups=args.group)
    if unknown := set(args.arm or ()) - (known := {arm.name for arm in arms}):
        parser.error(f"no {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}")
    arms = [arm for arm in arms if arm.name in (args.arm or (arm.name,))]
    params = arms[0].params
    stages = [stage for arm in arms for stage in arm.stages]
    if args.list:
        for arm in arms:
            states = [row["state"] for row in job_list(params.profile, arm.stages)]
            done = states.count("complete")
            print(f"{arm.group:14} {arm.label:34} {done} of {len(states)} runs are complete")
        return
    if not args.table:
        compute_all(params.profile, stages, params.settings.execution)
    show(study.ends(study.training_logs(arms))["end"].reset_index())
    for benchmark in {p.settings.evaluation.benchmark: None for a in arms for p in a.evaluations}:
        levels = study.levels(study.held_out(arms, benchmark), np.random.default_rng(0))
        table = levels.pivot(index="arm", columns="measure", values="value")[study.MEASURES]
        show(table.reset_index().assign(benchmark=benchmark))


if __name__ == "__main__":
    main()
