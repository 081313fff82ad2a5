"""The numbers that a run of the notebooks gives, beside those that the repository has recorded."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from califkit.runs.folders import git
from califkit.runs.paths import project_root

_TOLERANCE = 1e-6  # of a number's size: the same computation, another order of its sums


@dataclass(frozen=True)
class Comparison:
    """How many of the ``total`` recorded numbers are equal, and the tables with others."""

    equal: int
    total: int
    different: tuple[str, ...]

    def in_words(self, profile: str) -> str:
        if not self.total:
            return f"no numbers of the profile {profile} are recorded, so none were compared"
        names = f"; others in {', '.join(self.different)}" if self.different else ""
        return f"{self.equal} of {self.total} numbers equal the recorded ones{names}"


def compare_with_recorded(profile: str, notebooks: Iterable[str]) -> Comparison:
    """The tables of some notebooks in ``figures/<profile>`` against those of the last commit.

    Numbers are equal if they differ by no more than a millionth; a table that is gone, or has
    another shape, has none that are. Without git, or where no tables are tracked, nothing is
    compared.
    """
    root = project_root()
    equal, total, different = 0, 0, []
    prefixes = {notebook.partition("_")[0] for notebook in notebooks}  # fig5 of fig5_main_results
    for name in (git(root, "ls-files", f"figures/{profile}/*.csv") or "").splitlines():
        if Path(name).name.partition("_")[0] not in prefixes:
            continue
        recorded = _numbers(git(root, "show", f"HEAD:{name}") or "")
        path = root / name
        found = _numbers(path.read_text(encoding="utf-8")) if path.is_file() else []
        same = 0
        if len(found) == len(recorded):
            same = sum(map(_equal, recorded, found))
        equal, total = equal + same, total + len(recorded)
        if same < len(recorded):
            different.append(Path(name).stem)
    return Comparison(equal, total, tuple(different))


def _numbers(text: str) -> list[float]:
    """The cells of a table that are numbers, row by row."""
    numbers = []
    for row in csv.reader(io.StringIO(text)):
        for cell in row:
            try:
                numbers.append(float(cell))
            except ValueError:
                continue
    return numbers


def _equal(one: float, other: float) -> bool:
    both_nan = math.isnan(one) and math.isnan(other)
    return both_nan or math.isclose(one, other, rel_tol=_TOLERANCE, abs_tol=1e-12)
