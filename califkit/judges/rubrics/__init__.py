"""The rubric benchmarks of the paper's Table 1: AdvancedIF (CIF), FollowBench and ComplexBench.

Data, prompts to a judge, rules, and metrics; no network and no judge of its own. One loop for all
three:

>>> benchmark = BENCHMARKS["followbench"]
>>> items = benchmark.load().items  # a small set of our own; give a path for the real data
>>> responses = {item.id: "Draft." for item in items}
>>> def ask(requests):  # here: a judge that is never satisfied
...     return [Reply('{"verdicts": ' + str(["NO"] * int(r.id[-1])).replace("'", '"') + "}")
...             for r in requests]
>>> records = judge_responses(benchmark, items, responses, ask)
>>> benchmark.score(items, [record.verdict for record in records]).metrics["followbench_csl"]
0.0
"""

from __future__ import annotations

from califkit.judges.rubrics.advancedif import AdvancedIF
from califkit.judges.rubrics.base import (
    Benchmark,
    Record,
    Reply,
    Request,
    Scores,
    Verdict,
    judge_responses,
    parse,
)
from califkit.judges.rubrics.complexbench import ComplexBench
from califkit.judges.rubrics.files import Loaded, RubricError
from califkit.judges.rubrics.followbench import FollowBench
from califkit.judges.rubrics.judge_text import Unreadable

__all__ = [
    "BENCHMARKS",
    "AdvancedIF",
    "Benchmark",
    "ComplexBench",
    "FollowBench",
    "Loaded",
    "Record",
    "Reply",
    "Request",
    "RubricError",
    "Scores",
    "Unreadable",
    "Verdict",
    "judge_responses",
    "parse",
]

BENCHMARKS: dict[str, Benchmark] = {
    benchmark.name: benchmark for benchmark in (AdvancedIF(), FollowBench(), ComplexBench())
}
"""By name, with the default settings: English, and the released way of finding a yes."""
