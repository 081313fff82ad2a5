"""The rubric benchmarks of the paper's Table 1: AdvancedIF (CIF), FollowBench and ComplexBench.

Data, questions to a judge, rules, and metrics; no network and no judge of its own. One loop for all
three:

>>> benchmark = BENCHMARKS["followbench"]
>>> items = benchmark.load().items  # a small set of our own; give a path for the real data
>>> responses = {item.id: "Draft." for item in items}
>>> def ask(questions):  # here: a judge that is never satisfied, at any of the five levels
...     return [Verdict("ok", (False,) * level) for level, _ in enumerate(questions, start=1)]
>>> judged = judge_responses(benchmark, items, responses, ask)
>>> verdicts = {entry.unit: entry.verdict for entry in judged}
>>> benchmark.score(items, verdicts).metrics["followbench_csl"]
0.0
"""

from __future__ import annotations

from califkit.judges.rubrics.advancedif import AdvancedIF
from califkit.judges.rubrics.base import Benchmark, judge_responses
from califkit.judges.rubrics.complexbench import ComplexBench
from califkit.judges.rubrics.files import RubricError
from califkit.judges.rubrics.followbench import FollowBench
from califkit.judges.verdicts import Verdict

__all__ = [
    "BENCHMARKS",
    "AdvancedIF",
    "Benchmark",
    "ComplexBench",
    "FollowBench",
    "RubricError",
    "Verdict",
    "judge_responses",
]

BENCHMARKS: dict[str, Benchmark] = {
    benchmark.name: benchmark for benchmark in (AdvancedIF(), FollowBench(), ComplexBench())
}
"""By name; in English."""
