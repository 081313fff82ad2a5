"""The measures of an audit, and their differences between two policies with intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from califkit.metrics import bootstrap_sums, none_if_nan

NET_PROMPTS = 8
"""How many more prompts have to get worse than better. The bootstrap is too sure of changes that
rest on few prompts: 5 of 5 changed for the worse can look certain, yet come by chance in 1 of 32
cases; 8 of 8 come in 1 of 256."""

Values = Mapping[str, tuple[np.ndarray, np.ndarray]]
"""For each measure what every pair adds to its numerator and denominator, shape (pairs,)."""


@dataclass(frozen=True)
class Measure:
    """A number that both policies have.

    ``worse`` says which way is bad for the answer (-1 lower, 1 higher, 0 not judged); ``material``
    is the least change that counts, in ``unit``.
    """

    name: str
    label: str
    unit: str
    digits: int
    worse: int = 0
    material: float | None = None


MEASURES = (
    Measure("prompt_level_loose_acc", "Constraint Satisfaction (prompts, loose)", "%", 1),
    Measure("prompt_level_strict_acc", "Constraint Satisfaction (prompts, strict)", "%", 1),
    Measure("inst_level_loose_acc", "constraints followed (loose)", "%", 1),
    Measure("quality", "Response Quality", "of 10", 2, -1, 0.5),
    Measure("loglik", "reference log-likelihood l", "nats per token", 2, -1, 0.5),
    Measure("identified", "request identification, likeliest given its request", "%", 1, -1, 10.0),
    Measure("words", "length", "words", 1),
    Measure("tokens", "length", "tokens", 1),
    Measure("distinct_2", "distinct-2 (over words)", "", 3, -1, 0.1),
    Measure("empty", "empty answers", "%", 1, 1, 5.0),
    Measure("suspicious", "suspicious answers", "%", 1, 1, 10.0),
    Measure("lost", "passes the verifier, lost the answer", "%", 1),
    Measure("cut", "answers cut at the token limit", "%", 1),
    Measure(
        "finished_prompt_level_loose_acc",
        "Constraint Satisfaction where both answers are finished (prompts, loose)",
        "%",
        1,
    ),
)
_BY_NAME = {measure.name: measure for measure in MEASURES}
QUALITY_SIDE = tuple(measure for measure in MEASURES if measure.worse)
"""The measures of the answer that `decide` rests on, each with its material amount."""


@dataclass(frozen=True)
class Difference:
    """A measure of both policies over the ``n`` pairs that have it on both sides.

    Intervals are percentile bootstrap ones over prompts; their number is the coverage in percent.
    ``rising`` and ``falling`` count the prompts whose number went up and down. ``note`` says why
    there are no numbers (then they are NaN).
    """

    name: str
    n: int
    base: float = math.nan
    trained: float = math.nan
    difference: float = math.nan
    base_95: tuple[float, float] = (math.nan, math.nan)
    trained_95: tuple[float, float] = (math.nan, math.nan)
    difference_95: tuple[float, float] = (math.nan, math.nan)
    difference_99: tuple[float, float] = (math.nan, math.nan)
    rising: int = 0
    falling: int = 0
    note: str = ""

    @property
    def measure(self) -> Measure:
        return _BY_NAME[self.name]

    def row(self) -> dict[str, Any]:
        """One flat row, as tables and JSON hold it; None where a number is not defined."""
        row: dict[str, Any] = {
            "measure": self.name,
            "label": self.measure.label,
            "unit": self.measure.unit,
            "n": self.n,
        }
        for name in ("base", "trained", "difference"):
            row[name] = none_if_nan(getattr(self, name))
        for name in ("base_95", "trained_95", "difference_95", "difference_99"):
            low, high = getattr(self, name)
            row[f"{name}_low"], row[f"{name}_high"] = none_if_nan(low), none_if_nan(high)
        return row | {"rising": self.rising, "falling": self.falling, "note": self.note}

    def fell_beyond(self, interval: tuple[float, float]) -> bool:
        """Whether the answer side got worse: all of the interval is worse, the amount is material,
        and `NET_PROMPTS` more prompts got worse than better."""
        worse, material = self.measure.worse, self.measure.material
        if math.isnan(self.difference):
            return False
        nearest = min(worse * end for end in interval)
        net = worse * (self.rising - self.falling)
        return nearest > 0 and worse * self.difference >= material and net >= NET_PROMPTS


def compare(
    values: tuple[Values, Values],
    prompts: Sequence[str],
    rng: np.random.Generator,
    n_resamples: int = 10_000,
    notes: Mapping[str, str] | None = None,
) -> dict[str, Difference]:
    """Base, trained and their difference with paired bootstrap intervals, for each measure.

    All three are over the pairs that have the number on both sides. ``values`` are those of base
    and of trained, with NaN numerators where something was not measured. Prompts (``prompts`` has
    the name of each pair's) are resampled with all their pairs; all measures share the resamples.
    ``notes`` say why a measure has no numbers at all.
    """
    names = list(values[0])
    columns = []
    counts = {}
    for name in names:
        (base, total), (trained, _) = values[0][name], values[1][name]
        there = ~(np.isnan(base) | np.isnan(trained))
        counts[name] = int(there.sum())
        # The difference has its own column: equal answers then differ by exactly 0.
        block = np.stack([base, trained, trained - base, total], axis=1)
        columns.append(np.where(there[:, None], block, 0.0))
    table = np.concatenate(columns, axis=1)
    _, units = np.unique(np.asarray(prompts, dtype=object).astype(str), return_inverse=True)
    by_prompt = np.zeros((units.max() + 1, table.shape[1]))
    np.add.at(by_prompt, units, table)
    sums = by_prompt.sum(axis=0)
    drawn = bootstrap_sums(by_prompt, rng, n_resamples)
    found = {}
    for k, name in enumerate(names):
        base, trained, change, total = sums[4 * k : 4 * k + 4]
        if total == 0:
            note = (notes or {}).get(name) or "undefined for every pair"
            found[name] = Difference(name, 0, note=note)
            continue
        block = drawn[:, 4 * k : 4 * k + 4]
        block = block[block[:, 3] > 0]
        ratios = block[:, :3] / block[:, 3:]
        ends = np.quantile(ratios, [0.005, 0.025, 0.975, 0.995], axis=0)
        found[name] = Difference(
            name=name,
            n=counts[name],
            base=base / total,
            trained=trained / total,
            difference=change / total,
            base_95=(ends[1, 0], ends[2, 0]),
            trained_95=(ends[1, 1], ends[2, 1]),
            difference_95=(ends[1, 2], ends[2, 2]),
            difference_99=(ends[0, 2], ends[3, 2]),
            rising=int((by_prompt[:, 4 * k + 2] > 0).sum()),
            falling=int((by_prompt[:, 4 * k + 2] < 0).sum()),
        )
    return found
