"""What every notebook does around its claim: read the parameters, get the runs, save what it shows.

exhibit = exhibits.open(profile, settings, submit)
runs = exhibit.runs(exhibit.settings.score_stages())
...
exhibit.save("fig5_main_results", table, axes)
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from califkit.exhibits.plots.shared import THEME
from califkit.exhibits.summary import NO_JUDGE, judges, metrics_by_run, response_table
from califkit.exhibits.tables import PrintedTable
from califkit.runs import dispatch
from califkit.runs.arms import Arm, load_arms
from califkit.runs.folders import Run
from califkit.runs.jsonl import write_json
from califkit.runs.params import (
    FILE_KEYS,
    Params,
    Settings,
    load_params,
    merge,
    params_path,
    read_params_file,
    read_study,
)
from califkit.runs.paths import project_root
from califkit.runs.settings import ParamsError
from califkit.runs.stages import Stage


@dataclass(frozen=True)
class Exhibit:
    """A notebook's parameters, typed; made by `open_exhibit`.

    ``overrides`` are the settings given that are not in the params file, ``deviations`` what they
    change, as ``training.steps: 5``.
    """

    params: Params
    submit: bool
    overrides: dict[str, Any] = field(default_factory=dict)
    deviations: dict[str, Any] = field(default_factory=dict)

    @property
    def profile(self) -> str:
        return self.params.profile

    @property
    def settings(self) -> Settings:
        return self.params.settings

    def runs(self, stages: Sequence[Stage], on_tick: Callable[[], None] | None = None) -> list[Run]:
        """The runs of these stages, computed if they are not there: `dispatch.ensure`."""
        return dispatch.ensure(self.params, stages, self.submit, on_tick)

    def arms(self, *groups: str) -> list[Arm]:
        """The arms of the profile, of some groups or all: `califkit.runs.arms.load_arms`."""
        return load_arms(self.profile, self.overrides, groups or None)

    def configurations(self) -> dict[str, Settings]:
        """The settings of each configuration of the profile's study; of another profile, or of a
        study of one configuration, its own settings under the name of the model."""
        named = read_study(params_path(self.profile))["configurations"]
        if len(named) < 2:
            return {self.settings.model: self.settings}
        return {
            name: load_params(self.profile, merge(settings, self.overrides)).settings
            for name, settings in named.items()
        }

    def by_run(self) -> pd.DataFrame:
        """Every evaluation of every configuration with its metrics, judged if there is a judge:
        `califkit.exhibits.summary.metrics_by_run`, and ``configuration``."""
        frames = []
        for name, settings in self.configurations().items():
            runs = self.runs(settings.score_stages())
            quality = self.runs(settings.quality_stages())
            identified = self.runs(settings.identification_stages())
            table = metrics_by_run(runs, quality, identified)
            frames.append(table.assign(configuration=name))
        return pd.concat(frames, ignore_index=True)

    def responses(self, settings: Settings | None = None) -> pd.DataFrame:
        """Every response of the profile, or of other settings in it, with its scores, judged if
        there is a judge: `califkit.exhibits.summary.response_table`."""
        settings = settings or self.settings
        runs = self.runs(settings.score_stages())
        quality = self.runs(settings.quality_stages())
        identified = self.runs(settings.identification_stages())
        table = response_table(self.profile, runs, quality, identified)
        judge = judges(table) or NO_JUDGE
        print(f"{len(runs)} evaluations, {len(table)} responses; response quality: {judge}")
        if (how := settings.identification) is not None:
            print(f"request identification against {how.requests} requests (no response quality)")
        return table

    def cancel(self, stages: Sequence[Stage]) -> int:
        """End the jobs of these stages, and of what they need, that are alive; how many."""
        return len(dispatch.cancel_jobs(self.profile, stages))

    def jobs(self, stages: Sequence[Stage]) -> pd.DataFrame:
        """What asking for these stages would mean, a row a stage; nothing is started."""
        return pd.DataFrame(dispatch.job_list(self.profile, stages))

    def save(
        self,
        name: str,
        table: pd.DataFrame,
        picture: Axes | np.ndarray | None = None,
        of: Iterable[Settings] | None = None,
    ) -> None:
        """Write a table, or a picture with the table that it draws, and print where.

        ``figures/<profile>/<name>`` gets the endings ``.csv`` and ``.md``, or ``.png``, ``.pdf``
        and ``.csv``. Overrides of the profile have a folder of their own in there, named by them,
        so that nothing is overwritten. A picture gets a `caption`; ``of`` are the settings that its
        numbers are of where they are not the profile's own, none for a picture of no runs. The same
        table gives the same bytes: no date goes into the files.
        """
        folder = self._folder()
        if picture is None:
            paths = write_table(folder, name, table)
        else:
            paths = [folder / f"{name}.{ending}" for ending in ("png", "pdf", "csv")]
            figure = np.ravel(picture)[0].figure
            _write_above(figure, self.caption(of))
            figure.savefig(paths[0], dpi=200, metadata={"Software": None})
            figure.savefig(paths[1], metadata={"CreationDate": None})
            table.to_csv(paths[2], index=False)
        _tell(paths)

    def caption(self, of: Iterable[Settings] | None = None) -> str:
        """What the numbers of a picture are of, for the file itself: models, sizes, seeds, and the
        settings that deviate from the profile's. Settings that differ are all named."""
        shown = [self.settings] if of is None else list(of)

        def named(value: Callable[[Settings], Any]) -> str:
            return " or ".join(dict.fromkeys(str(value(settings)) for settings in shown))

        parts = [f"profile {self.profile}"]
        if shown:
            parts += [
                named(lambda s: s.model),
                f"trained {named(lambda s: s.training.steps)} steps of {named(_rollouts)} rollouts",
                f"seeds {named(lambda s: ', '.join(map(str, s.train_seeds)))}",
                f"n = {named(_test_prompts)}",
                f"evaluation seeds {named(lambda s: ', '.join(map(str, s.eval_seeds)))}",
            ]
        if self.deviations:
            parts.append(f"deviating from the profile: {in_short(self.deviations)}")
        return "; ".join(parts)

    def typeset(self, name: str, table: PrintedTable) -> None:
        """Write a table in the paper's layout as ``.html`` and ``.tex`` where `save` writes, and
        print where. The LaTeX is a ``table`` environment: booktabs, caption, fonts in T1."""
        texts = {"html": table.as_html(), "tex": table.as_latex()}
        paths = [self._folder() / f"{name}.{ending}" for ending in texts]
        for path, text in zip(paths, texts.values(), strict=True):
            path.write_text(text, encoding="utf-8")
        _tell(paths)

    def conclude(self, name: str, this_run: str, paper: str) -> None:
        """Say what the exhibit comes to, here and in the paper, in a sentence each.

        ``<name>.json`` keeps both for the first page of the site.
        """
        words = {"this run": this_run, "paper": paper}
        write_json(self._folder() / f"{name}.json", words)
        for source, sentence in words.items():
            print(f"{source}: {sentence}")

    def _folder(self) -> Path:
        folder = project_root() / "figures" / self.profile / in_short(self.deviations)
        folder.mkdir(parents=True, exist_ok=True)
        return folder


def _rollouts(settings: Settings) -> int:
    return settings.training.prompts_per_step * settings.training.rollouts_per_prompt


def _test_prompts(settings: Settings) -> str:
    evaluation = settings.evaluation
    made = evaluation.composed.n_prompts if evaluation.composed else None
    source = evaluation.benchmark.rpartition("/")[2]
    return f"{evaluation.n_prompts or made or 'all'} test prompts ({source})"


def _write_above(figure: Figure, text: str) -> None:
    """A small line above a figure, folded at its width; below it stand the legends."""
    wide = int(figure.get_figwidth() * 17)  # characters of this size in an inch
    lines = textwrap.fill(text, wide)
    figure.suptitle(lines, x=0.01, ha="left", fontsize=6, color="#777777")


def conclusions(folder: Path, names: Iterable[str]) -> list[dict[str, str]]:
    """What the exhibits of these notebooks have concluded, a row each: `Exhibit.conclude`."""
    paths = {name: folder / f"{name}.json" for name in names}
    return [
        {"exhibit": name} | json.loads(path.read_text(encoding="utf-8"))
        for name, path in paths.items()
        if path.is_file()
    ]


def _tell(paths: Sequence[Path]) -> None:
    for path in paths:
        print(path.relative_to(project_root()))


def open_exhibit(profile: str, settings: dict[str, Any], submit: bool) -> Exhibit:
    """Check and read a notebook's three parameters, and set how tables and pictures look.

    ``papermill -p submit false`` passes the text, which would count as true: the texts true and
    false mean what they say.
    """
    _check_injected()
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
    _show_tables_in_words()
    pd.set_option("display.float_format", "{:.4g}".format)
    pd.set_option("display.max_colwidth", 300, "display.max_rows", 80)
    plt.rcParams.update(THEME)
    judge = ", ".join(params.settings.judges()) or "none"
    print(f"profile {params.profile}, model {params.settings.model}, judge: {judge}")
    if departures := params.settings.reward.model_dump(exclude_defaults=True):
        told = ", ".join(f"{name} = {value}" for name, value in departures.items())
        print(f"CaLIF departs from the paper's rule: {told}")
    if changed := _deviations(load_params(profile).settings, params.settings):
        print(f"overrides: {in_short(changed)}")
    file = read_params_file(params_path(profile)).get("settings", {})
    return Exhibit(params, submit, _changed(settings, file), changed)


def _show_tables_in_words() -> None:
    """Have the notebook show tables by `table_html`."""
    from IPython import get_ipython

    shell = get_ipython()
    if shell is not None:
        shell.display_formatter.formatters["text/html"].for_type(pd.DataFrame, table_html)


def table_html(table: pd.DataFrame) -> str:
    """A table for a page: texts to the left, numbers with four digits, a dash for what is missing;
    columns without any value are named below it instead.

    Whatever stands in a cell is shown as text.
    """
    if not (table.columns.is_unique and table.index.is_unique):
        return table.to_html(na_rep="-")
    empty = [name for name in table if table[name].map(_is_missing).all()] if len(table) else []
    table = table.drop(columns=empty)
    texts = [name for name in table if not pd.api.types.is_numeric_dtype(table[name])]
    style = table.style.format(_shown, na_rep="-", escape="html")
    style = style.format_index(escape="html").format_index(escape="html", axis=1)
    if isinstance(table.index, pd.RangeIndex):
        style = style.hide(axis="index")  # numbers of rows say nothing
    style = style.set_properties(subset=texts, **{"text-align": "left"})
    html = style.set_table_styles([{"selector": "th", "props": "text-align: left"}])
    html = html.to_html(max_rows=pd.get_option("display.max_rows"))
    names = ", ".join(map(str, empty))
    return f"{html}<p><small>without a value: {escape(names)}</small></p>" if empty else html


def _is_missing(value: Any) -> bool:
    return value is None or (np.ndim(value) == 0 and (pd.isna(value) or value == ""))


def _shown(value: Any) -> Any:
    return f"{value:.4g}" if isinstance(value, float) else value


def _check_injected() -> None:
    """Refuse what papermill injected for no parameter: it warns of a slip, and runs without it.

    Its cell comes behind that of the parameters, which is the only one with assignments before.
    """
    from IPython import get_ipython

    shell = get_ipython()
    cells = [] if shell is None else shell.user_ns.get("In", [])
    injected = [i for i, cell in enumerate(cells) if cell.startswith(_INJECTED)]
    if not injected:
        return
    known = {name for cell in cells[: injected[0]] for name in _assigned(cell)}
    given = [name for i in injected for name in _assigned(cells[i])]
    if unknown := [name for name in given if name not in known | FILE_KEYS]:
        raise ParamsError(
            f"notebook parameter {', '.join(unknown)}: there is none of this name; there are: "
            f"{', '.join(sorted(known))}"
        )


_INJECTED = "# Parameters\n"  # how papermill begins its cell


def _assigned(cell: str) -> list[str]:
    """The names that a cell of plain assignments sets."""
    assignments = [line for line in ast.parse(cell).body if isinstance(line, ast.Assign)]
    return [target.id for line in assignments for target in line.targets]


def _changed(given: dict[str, Any], file: dict[str, Any]) -> dict[str, Any]:
    """The settings given without those that the params file has anyway: papermill passes all of
    them, and they would undo what the arms of a study change."""
    changed = {}
    for key, value in given.items():
        theirs = file.get(key)
        if isinstance(value, dict) and isinstance(theirs, dict):
            value = _changed(value, theirs)
            if value:
                changed[key] = value
        elif value != theirs or key not in file:
            changed[key] = value
    return changed


def _deviations(file: Settings, own: Settings) -> dict[str, Any]:
    """The settings that differ. How the work is carried out changes no result and is left out, but
    for the trainer."""
    dumps = [settings.model_dump(mode="json") for settings in (file, own)]
    dumps = [dump | {"execution": {"trainer": dump["execution"]["trainer"]}} for dump in dumps]
    flat = [pd.json_normalize(dump).iloc[0] for dump in dumps]
    keys = sorted({*flat[0].index, *flat[1].index})
    return {
        key: flat[1].get(key) for key in keys if repr(flat[0].get(key)) != repr(flat[1].get(key))
    }


def in_short(deviations: dict[str, Any]) -> str:
    """Settings as the name of a folder: ``alpha=0.2,training.steps=5``; empty without any."""
    name = ",".join(f"{key}={value}" for key, value in sorted(deviations.items()))
    plain = re.sub(r"[^\w.,=-]+", "-", name)
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return plain if plain == name and len(name) <= 80 else f"{plain[:70]}-{digest}"


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
