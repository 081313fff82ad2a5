"""What every notebook does around its claim: read the parameters, get the runs, save what it shows.

exhibit = exhibits.open(profile, settings, submit)
runs = exhibit.runs(exhibit.settings.score_stages())
...
exhibit.save("fig5_main_results", table, axes)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from califkit.exhibits.plots.shared import THEME
from califkit.exhibits.summary import NO_JUDGE, judges, response_table
from califkit.runs import dispatch
from califkit.runs.arms import Arm, load_arms
from califkit.runs.folders import Run
from califkit.runs.params import Params, Settings, load_params, merge
from califkit.runs.paths import project_root
from califkit.runs.settings import ParamsError
from califkit.runs.stages import Stage


@dataclass(frozen=True)
class Exhibit:
    """A notebook's parameters, typed; made by `open_exhibit`."""

    params: Params
    submit: bool
    overrides: dict[str, Any]

    @property
    def profile(self) -> str:
        return self.params.profile

    @property
    def settings(self) -> Settings:
        return self.params.settings

    def runs(self, stages: Sequence[Stage], on_tick: Callable[[], None] | None = None) -> list[Run]:
        """The runs of these stages, computed if they are not there: `dispatch.ensure`."""
        return dispatch.ensure(self.params, stages, self.submit, on_tick)

    def arms(self) -> list[Arm]:
        """The arms of the profile's study: ``params/arms/<profile>.yaml``, with what the notebook
        overrides; without such a file one arm a method."""
        path = project_root() / "params" / "arms" / f"{self.profile}.yaml"
        if path.exists():
            return load_arms(path, settings=self.overrides)
        each = {name: merge(self.overrides, {"methods": [name]}) for name in self.settings.methods}
        return [
            Arm(name, "main", (load_params(self.profile, settings),))
            for name, settings in each.items()
        ]

    def responses(self) -> pd.DataFrame:
        """Every response of the profile with its scores, judged if there is a judge:
        `califkit.exhibits.summary.response_table`."""
        runs = self.runs(self.settings.score_stages())
        quality = self.runs(self.settings.quality_stages())
        identified = self.runs(self.settings.identification_stages())
        table = response_table(self.profile, runs, quality, identified)
        judge = judges(table) or NO_JUDGE
        print(f"{len(runs)} evaluations, {len(table)} responses; response quality: {judge}")
        if (how := self.settings.identification) is not None:
            print(f"request identification against {how.requests} requests (no response quality)")
        return table

    def jobs(self, stages: Sequence[Stage]) -> pd.DataFrame:
        """What asking for these stages would mean, a row a stage; nothing is started."""
        return pd.DataFrame(dispatch.job_list(self.profile, stages))

    def save(
        self, name: str, table: pd.DataFrame, picture: Axes | np.ndarray | None = None
    ) -> None:
        """Write a table, or a picture with the table that it draws, and print where.

        ``figures/<profile>/<name>`` gets the endings ``.csv`` and ``.md``, or ``.png``, ``.pdf``
        and ``.csv``. The same table gives the same bytes: no date goes into the files.
        """
        folder = project_root() / "figures" / self.profile
        folder.mkdir(parents=True, exist_ok=True)
        if picture is None:
            paths = write_table(folder, name, table)
        else:
            paths = [folder / f"{name}.{ending}" for ending in ("png", "pdf", "csv")]
            figure = np.ravel(picture)[0].figure
            figure.savefig(paths[0], dpi=200, metadata={"Software": None})
            figure.savefig(paths[1], metadata={"CreationDate": None})
            table.to_csv(paths[2], index=False)
        for path in paths:
            print(path.relative_to(project_root()))


def open_exhibit(profile: str, settings: dict[str, Any], submit: bool) -> Exhibit:
    """Check and read a notebook's three parameters, and set how tables and pictures look.

    ``papermill -p submit false`` passes the text, which would count as true: the texts true and
    false mean what they say.
    """
    submit = {"true": True, "false": False}.get(str(submit).lower(), submit)
    for name, value, wanted in (
        ("profile", profile, str),
        ("settings", settings, dict),
        ("submit", submit, bool),
    ):
        if type(value) is not wanted:
            raise ParamsError(
                f"notebook parameter {name} = {value!r} is of type {type(value).__name__}, "
                f"expected {wanted.__name__} (papermill's -p passes text; use -y or -f)"
            )
    params = load_params(profile, settings)
    pd.set_option("display.float_format", "{:.4g}".format)
    pd.set_option("display.max_colwidth", 300, "display.max_rows", 80)
    plt.rcParams.update(THEME)
    judge = ", ".join(params.settings.judges()) or "none"
    print(f"profile {params.profile}, model {params.settings.model}, judge: {judge}")
    return Exhibit(params, submit, settings)


def write_table(folder: Path, name: str, table: pd.DataFrame) -> list[Path]:
    """Write ``<name>.csv`` (full precision) and ``<name>.md`` (four digits) in a folder."""
    csv, markdown = folder / f"{name}.csv", folder / f"{name}.md"
    table.to_csv(csv, index=False)
    rows = [table.columns, ["---"] * len(table.columns), *table.itertuples(index=False)]
    lines = ["| " + " | ".join(map(_markdown_cell, row)) + " |" for row in rows]
    markdown.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return [csv, markdown]


def _markdown_cell(cell: Any) -> str:
    if isinstance(cell, float):
        return "" if np.isnan(cell) else f"{cell:.4g}"
    return str(cell).replace("|", "\\|").replace("\n", " ")
