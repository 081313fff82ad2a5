"""Tables in the paper's layout, for the notebook, an HTML page and LaTeX (great-tables).

A `PrintedTable` holds text only: what a cell says is decided by the functions that lay a table out,
one for each table of the paper. Numbers in full precision are in the ``.csv`` files.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from great_tables import GT, loc, style

from califkit.exhibits import paper
from califkit.exhibits.methods import arm_label, label
from califkit.exhibits.plaintext import cut, plain
from califkit.exhibits.rubrics import marked_table
from califkit.exhibits.summary import IDENTIFICATION, METRICS

MISSING = "-"

# Characters of no text, which neither HTML nor LaTeX escapes, stand for the marks of a cell.
_MARKS = {"**": ("\ue000", "\ue001"), "<u>": ("\ue002", "\ue003")}
_HTML = {"\ue000": "<b>", "\ue001": "</b>", "\ue002": "<u>", "\ue003": "</u>"}
_LATEX = {"\ue000": r"\textbf{", "\ue001": "}", "\ue002": r"\underline{", "\ue003": "}"}
_IN_LATEX = {"\N{PLUS-MINUS SIGN}": r"$\pm$"}


@dataclass(frozen=True)
class PrintedTable:
    """A table as it is printed.

    ``cells`` are texts; ``**bold**`` and ``<u>underlined</u>`` hold for whole cells. The index has
    two levels, group and row. Columns may have two levels, spanner and column. With ``prose`` the
    last column is running text.
    """

    title: str
    cells: pd.DataFrame
    note: str = ""
    prose: bool = False

    def as_html(self) -> str:
        """A fragment of a page, with its own style sheet; nothing is loaded."""
        html = self._as_gt().as_raw_html(inline_css=False)
        return _replaced(html, _HTML)

    def as_latex(self) -> str:
        """A ``table`` environment; it takes booktabs, caption and a font encoding T1.

        Characters that pdflatex has no glyph for are written as their code points.
        """
        # Styles are for the page: LaTeX aligns by its column types.
        latex = self._as_gt(styled=False).as_latex()
        if self.prose:  # it writes every text column as one line
            latex = latex.replace("l}\n\\toprule", "p{0.6\\linewidth}}\n\\toprule", 1)
        return _replaced("".join(map(_latex_character, latex)), _LATEX)

    def _repr_html_(self) -> str:
        return self.as_html()

    def _as_gt(self, styled: bool = True) -> GT:
        texts = self.cells.astype(object).fillna(MISSING).astype(str).map(_with_marks)
        names = {f"c{i}": name for i, name in enumerate(texts.columns)}
        flat = texts.set_axis(list(names), axis="columns").reset_index(drop=True)
        for level, column in enumerate(("group", "row")):
            flat.insert(level, column, texts.index.get_level_values(level).astype(str))
        table = GT(flat, rowname_col="row", groupname_col="group", id="table")
        table = table.tab_header(self.title)
        table = table.cols_label({c: _column(name) for c, name in names.items()})
        for spanner in filter(None, dict.fromkeys(map(_spanner, names.values()))):
            under = [c for c, name in names.items() if _spanner(name) == spanner]
            table = table.tab_spanner(spanner, under)
        table = table.cols_align("right")
        if self.prose:
            last = list(names)[-1]
            table = table.cols_align("left", columns=last).cols_width({last: "60%"})
        if self.note:
            table = table.tab_source_note(self.note)
        if styled:
            table = table.tab_style(style.text(weight="bold"), loc.row_groups())
        return table.tab_options(table_font_size="12px", heading_align="left")


def number(mean: Any, std: Any = np.nan, digits: int = 2) -> str:
    """``1.23 ± 0.10``, without a deviation ``1.23``, a dash for no number."""
    if pd.isna(mean):
        return MISSING
    return f"{mean:.{digits}f}" + ("" if pd.isna(std) else f" ± {std:.{digits}f}")


def _column(name: Hashable) -> str:
    return str(name[1] if isinstance(name, tuple) else name)


def _spanner(name: Hashable) -> str:
    return str(name[0]) if isinstance(name, tuple) else ""


def _with_marks(text: str) -> str:
    for mark, (begin, end) in _MARKS.items():
        closing = mark.replace("<", "</")
        if text.startswith(mark) and text.endswith(closing) and len(text) > len(mark + closing):
            return begin + text.removeprefix(mark).removesuffix(closing) + end
    return text


def _replaced(text: str, marks: Mapping[str, str]) -> str:
    for character, markup in marks.items():
        text = text.replace(character, markup)
    return text


def _latex_character(character: str) -> str:
    if character in _IN_LATEX or ord(character) < 0x250 or character in _LATEX:
        return _IN_LATEX.get(character, character)
    return f"[U+{ord(character):04X}]"


def _why_missing(notes: pd.Series) -> str:
    reasons = "; ".join(dict.fromkeys(filter(None, notes)))
    return f"{MISSING}: {reasons}." if reasons else ""


def _sources(this_run: pd.DataFrame, printed: pd.DataFrame) -> pd.DataFrame:
    """Two tables of cells, one under the other; the first level of the index says whose."""
    names = {"this run": this_run, "paper": printed}
    named = []
    for source, cells in names.items():
        groups = cells.index.get_level_values(0).map(lambda group, s=source: f"{group} ({s})")
        rows = cells.index.get_level_values(1)
        named.append(cells.set_axis(pd.MultiIndex.from_arrays([groups, rows])))
    return pd.concat(named)


def figure2(table: pd.DataFrame) -> PrintedTable:
    """The example of Fig. 2 as a table: ``table`` has a row for the paper's and one for this run's,
    with ``source``, ``policy``, ``constraint``, scores alone and constrained, and ``response``."""
    cells = pd.DataFrame({"constraint": table["constraint"]})
    for name, column in (("RQ", "quality"), ("l", "loglik")):
        for side, suffix in (("alone", "_alone"), ("constrained", "")):
            known = table.get(column + suffix, pd.Series(np.nan, table.index))
            cells[f"{name} {side}"] = known.map(number)
    cells["response"] = table["response"].str.strip("` ")
    cells.index = pd.MultiIndex.from_arrays([table["source"], table["policy"]])
    return PrintedTable("Figure 2: a pass that answers nothing", cells, prose=True)


def table1(cells: pd.DataFrame, note: str) -> PrintedTable:
    """``cells`` as `califkit.exhibits.rubrics.marked_table` takes them; the paper's below."""
    both = _sources(marked_table(cells), marked_table(paper.exhibit("table1")))
    both.columns = pd.MultiIndex.from_tuples([tuple(name.split(": ")) for name in both.columns])
    note = f"Mean ± sample standard deviation; best bold, second underlined. This run: {note}."
    return PrintedTable("Table 1: the rubric benchmarks", both, note)


def table2(beside: pd.DataFrame) -> PrintedTable:
    """``beside`` is `califkit.exhibits.pairs.transitions_beside_paper`."""
    cells = pd.DataFrame(
        {
            "pairs": beside["pairs"].map("{:.0f}".format),
            "this run": [number(*pair) for pair in beside[["this_run", "this_std"]].to_numpy()],
            "paper": [number(*pair) for pair in beside[["paper", "paper_std"]].to_numpy()],
        }
    )
    cells.index = pd.MultiIndex.from_arrays(
        [beside["method"].map(label), beside["transition"].str.replace("_", " ")]
    )
    notes = "; ".join(dict.fromkeys(filter(None, beside["note"])))
    note = f"Trained minus base, judged; the paper's over five configurations ({paper.JUDGE})."
    title = "Table 2: change of response quality where the verdict changes"
    return PrintedTable(title, cells, f"{note} This run: {notes}." if notes else note)


def table3(table: pd.DataFrame) -> PrintedTable:
    """``table`` is `califkit.exhibits.arms.judge_rewards`."""
    texts = [number(*pair) for pair in table[["value", "std"]].to_numpy()]
    groups = table["configuration"] + " (" + table["source"] + ")"
    named = table.assign(cell=texts, group=groups, row=table["reward"].map(label))
    wide = named.pivot(index=["group", "row"], columns="metric", values="cell")
    index = pd.MultiIndex.from_frame(named[["group", "row"]].drop_duplicates())
    wide = wide.reindex(index=index, columns=table["metric"].unique())
    labels = {"prompt_level_loose_acc": "CS (%)", "response_quality": "RQ"} | paper.RUBRIC_METRICS
    spans = [
        ("IFBench", name) if ": " not in name else tuple(name.split(": "))
        for name in (labels[metric] for metric in wide.columns)
    ]
    wide.columns = pd.MultiIndex.from_tuples(spans)
    missing = table[(table["source"] == "this run") & table["value"].isna()]["note"]
    return PrintedTable("Table 3: CaLIF and rewards with a judge", wide, _why_missing(missing))


def table4(table: pd.DataFrame) -> PrintedTable:
    """``table`` is `califkit.exhibits.arms.ablations_beside_paper`."""
    here = _arm_cells(table, "mean", "difference")
    there = _arm_cells(table[table["metric"].isin(paper.METRICS)], "paper", "paper_difference")
    cells = pd.concat({"this run": here, "paper, Qwen3-1.7B": there}, axis="columns")
    return PrintedTable("Table 4: parts of the reward", cells, _DIFFERENCES)


def arms_table(table: pd.DataFrame, title: str) -> PrintedTable:
    """Some arms: ``table`` is `califkit.exhibits.arms.with_differences`."""
    return PrintedTable(title, _arm_cells(table, "mean", "difference"), _DIFFERENCES)


_DIFFERENCES = (
    "Mean over runs, in brackets the difference from the base policy. "
    f"{MISSING}: not measured, not run or not printed."
)
_SHORT = {
    "prompt_level_loose_acc": "CS (%)",
    "response_quality": "RQ",
    "loglik": "l",
    "tokens": "tokens",
    "distinct_2": "distinct-2",
    "information": "ident. (nats)",
}


def _arm_cells(table: pd.DataFrame, value: str, difference: str) -> pd.DataFrame:
    """A row a configuration and arm, a column a metric, cells value (difference)."""
    cells = []
    for row in table.to_dict("records"):
        digits = 0 if row["metric"] == "tokens" else 2
        change = "" if pd.isna(row[difference]) else f" ({row[difference]:+.{digits}f})"
        cells.append(number(row[value], digits=digits) + change)
    named = table.assign(cell=cells, arm=table["arm"].map(arm_label))
    wide = named.pivot(index=["configuration", "arm"], columns="metric", values="cell")
    index = pd.MultiIndex.from_frame(named[["configuration", "arm"]].drop_duplicates())
    return wide.reindex(index=index, columns=table["metric"].unique()).rename(columns=_SHORT)


def table5(table: pd.DataFrame) -> PrintedTable:
    """``table`` is `califkit.exhibits.pairs.pairs_beside_paper`."""
    counts = ["wins", "ties", "losses"]
    cells = table[counts].map(lambda count: number(count, digits=0))
    cells["adjusted win rate (%)"] = table["adjusted_win_rate"].map(number)
    sources = table["source"].str.cat(table["judge"].map(lambda j: f", judge {j}" if j else ""))
    cells.index = pd.MultiIndex.from_arrays([sources, table["configuration"]])
    note = "; ".join(dict.fromkeys(filter(None, table["note"])))
    return PrintedTable(
        "Table 5: CaLIF against IF-RLVR", cells, f"{MISSING}: {note}." if note else ""
    )


def example_table(table: int, rows: pd.DataFrame | None, query: str) -> PrintedTable:
    """Table 6, 7 or 8.

    ``rows`` is `califkit.exhibits.examples.side_by_side`, or None where this run has no example;
    ``query`` says which prompt theirs is.
    """
    printed = paper.example(table)
    parts = {f"paper: {paper.QUERIES[table]}": (printed, printed["response (described)"])}
    if rows is not None:
        answers = rows["response"].map(_one_line).where(rows["verdict"] != "", rows["note"])
        parts = {f"this run: {query}": (rows, answers)} | parts
    frames = []
    for group, (shown, answers) in parts.items():
        cells = pd.DataFrame(index=pd.MultiIndex.from_product([[group], shown["policy"]]))
        for name, column in (("RQ", "response_quality"), ("l", "loglik"), ("verdict", "verdict")):
            known = shown[column] if column in shown else pd.Series(np.nan, shown.index)
            texts = known.replace("", np.nan).map(lambda v: v if isinstance(v, str) else number(v))
            cells[name] = texts.to_numpy()
        frames.append(cells.assign(response=answers.to_numpy()))
    note = "The paper's responses are described in our words."
    if rows is None:
        note = f"This profile has no such example. {note}"
    return PrintedTable(f"Table {table}: an example", pd.concat(frames), note, prose=True)


def _one_line(text: str) -> str:
    return plain(cut(text, 600)).replace("\n", " \N{PILCROW SIGN} ")


def policies_table(summary: pd.DataFrame, title: str) -> PrintedTable:
    """Policies and metrics in words: ``summary`` is `califkit.exhibits.summary.summary_table`; a
    block a configuration, where there are several.

    A cell without a number has a dash, and the note says why, once for each metric.
    """
    labels = METRICS | IDENTIFICATION | {"response_quality": "response quality (1 to 10)"}
    texts = [number(*pair) for pair in summary[["mean", "std"]].to_numpy()]
    named = summary.assign(cell=texts, method=summary["method"].map(arm_label))
    if "configuration" not in named or named["configuration"].nunique() == 1:
        named["configuration"] = "mean over runs"
    wide = named.pivot(index=["configuration", "metric"], columns="method", values="cell")
    order = [
        (configuration, metric)
        for configuration in named["configuration"].unique()
        for metric in labels
        if (configuration, metric) in wide.index
    ]
    wide = wide.reindex(index=order, columns=named["method"].unique())
    wide = wide.rename(index=labels, level=1).rename(index=paper.CONFIGURATIONS, level=0)
    gaps = named[named["mean"].isna()]
    reasons = dict.fromkeys(f"{labels[row.metric]}: {row.note}" for row in gaps.itertuples())
    note = "; ".join(reasons)
    return PrintedTable(title, wide, note)
