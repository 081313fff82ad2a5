"""Tables as they are printed: in a page and in LaTeX."""

import re
import shutil
import subprocess
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest

from califkit.exhibits import paper, tables
from califkit.exhibits.arms import ablations_beside_paper, judge_rewards
from califkit.exhibits.pairs import pairs_beside_paper, transitions_beside_paper
from califkit.exhibits.tables import PrintedTable

DOCUMENT = r"""\documentclass{article}
\usepackage[T1]{fontenc}
\usepackage{booktabs,caption}
\begin{document}
%s
\end{document}
"""


class Cells(HTMLParser):
    """The rows of a page's tables, as texts; ``<b>`` and ``<u>`` are kept."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.inside = False
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
            self.inside = True
        elif tag in ("b", "u"):
            self.rows[-1][-1] += f"<{tag}>"

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self.inside = False

    def handle_data(self, data):
        if self.inside:
            self.rows[-1][-1] += data.strip()


def small(**cells: str) -> PrintedTable:
    index = pd.MultiIndex.from_tuples([("group", "row")])
    return PrintedTable("Title", pd.DataFrame(cells, index=index), "a note")


def test_a_page_shows_title_groups_rows_and_note():
    rows = Cells(small(x="1.0", y="2.0").as_html()).rows
    assert rows == [["Title"], ["", "x", "y"], ["group"], ["row", "1.0", "2.0"], ["a note"]]


def test_marks_hold_for_whole_cells_and_are_the_same_in_both():
    table = small(best="**1.0 ± 0.1**", second="<u>2.0</u>", text="a ** b", open="<u>3")
    assert Cells(table.as_html()).rows[3] == ["row", "<b>1.0 ± 0.1", "<u>2.0", "a ** b", "<u>3"]
    latex = table.as_latex()
    assert r"\textbf{1.0 $\pm$ 0.1} & \underline{2.0} & a ** b &" in latex
    assert r"\textless{}u\textgreater{}3" in latex


def test_nothing_in_a_cell_can_act():
    hostile = "<script>alert(1)</script> & 50% of a_b {x} $y$ \\input{z}"
    table = small(x=hostile)
    assert "<script>alert" not in table.as_html()
    row = next(line for line in table.as_latex().splitlines() if line.startswith("row &"))
    assert r"\input" not in row.replace(r"\textbackslash{}input", "")
    assert r"50\% of a\_b" in row


def test_the_same_table_gives_the_same_bytes():
    assert small(x="1").as_html() == small(x="1").as_html()


def test_a_missing_cell_is_a_dash():
    assert Cells(small(x=np.nan).as_html()).rows[3] == ["row", "-"]


def test_a_prose_column_is_wrapped_in_latex_and_strange_characters_are_named():
    table = PrintedTable("T", small(x="1", response="tea \N{HOT BEVERAGE}").cells, prose=True)
    latex = table.as_latex()
    assert r"l|rp{0.6\linewidth}}" in latex
    assert "tea [U+2615]" in latex
    assert max(map(ord, latex)) < 0x250


# --- the tables of the paper -----------------------------------------------------------------
def arms(**found: dict[str, float]) -> pd.DataFrame:
    rows = [
        {"configuration": "small", "arm": arm, "method": arm, "metric": metric, "mean": value}
        for arm, metrics in found.items()
        for metric, value in metrics.items()
    ]
    return pd.DataFrame(rows).assign(std=np.nan, runs=1, judge="", note="")


def every_table() -> dict[str, PrintedTable]:
    cells = paper.exhibit("table1").query("configuration == 'qwen3-4b'")
    changes = {"method": ["if_rlvr"], "transition": ["fail_to_pass"], "pairs": [3], "judge": ["J"]}
    changes |= {"quality_change": [-1.5], "quality_std": [np.nan], "note": [""]}
    none = pd.DataFrame(columns=["configuration", "first", "second", "judge"])
    found = arms(base={"loglik": -1.0, "tokens": 30.0}, calif={"loglik": -1.5, "tokens": 36.0})
    example = {"policy": ["base"], "response_quality": [np.nan], "loglik": [-1.0]}
    example |= {"verdict": ["pass"], "response": ["one\ntwo"], "note": [""]}
    return {
        "tab1": tables.table1(cells.assign(configuration="small"), "own data"),
        "tab2": tables.table2(transitions_beside_paper(pd.DataFrame(changes))),
        "tab3": tables.table3(judge_rewards(found)),
        "tab4": tables.table4(ablations_beside_paper(found)),
        "tab5": tables.table5(pairs_beside_paper(none, ["small"])),
        "tab6": tables.example_table(6, pd.DataFrame(example), "key 1"),
        "tab7": tables.example_table(7, None, ""),
    }


def test_each_table_has_this_run_and_the_paper():
    rows = {name: Cells(table.as_html()).rows for name, table in every_table().items()}
    assert ["small (this run)"] in rows["tab1"] and ["Qwen3-4B (paper)"] in rows["tab1"]
    # The paper's Table 1, Qwen3-4B, AdvancedIF: CaLIF is best, base second.
    start = rows["tab1"].index(["small (this run)"]) + 1
    base, if_rlvr, calif = rows["tab1"][start : start + 3]
    assert base[1].startswith("<u>30.85 ± ") and calif[1].startswith("<b>34.08 ± ")
    assert if_rlvr[1].startswith("29.02 ± ")
    assert ["fail to pass", "3", "-1.50", "-2.05 ± 0.80"] in rows["tab2"]
    assert ["Tulu 3 8B DPO (paper)"] in rows["tab3"]
    calif = next(row for row in rows["tab4"] if row[0] == "CaLIF")
    assert "-1.50 (-0.50)" in calif and "36 (+6)" in calif, "of this run, from its base"
    assert "-1.42 (+0.09)" in calif and "550 (+65)" in calif, "as the paper prints them"
    assert ["overall", "1065", "213", "222", "78.10"] in rows["tab5"]
    assert ["base", "-", "-1.00", "pass", "one \N{PILCROW SIGN} two"] in rows["tab6"]
    assert not any("this run" in row[0] for row in rows["tab7"])


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="pdflatex is not installed")
def test_the_latex_compiles(tmp_path):
    texts = [table.as_latex() for table in every_table().values()]
    (tmp_path / "all.tex").write_text(DOCUMENT % "\n\\clearpage\n".join(texts), encoding="utf-8")
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "all.tex"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace")
    assert run.returncode == 0, run.stdout[-2000:]
    assert re.search(rf"\({len(texts)} pages", run.stdout)


def test_policies_of_several_configurations_have_a_block_each():
    rows = [
        {"configuration": configuration, "method": method, "metric": "loglik", "mean": mean}
        for configuration, means in (("qwen3-1.7b", (-1.5, -5.9)), ("other", (-2.0, -3.0)))
        for method, mean in zip(("base", "if_rlvr"), means, strict=True)
    ]
    summary = pd.DataFrame(rows).assign(std=np.nan, note="")
    cells = tables.policies_table(summary, "Policies").cells
    assert [block for block, _ in cells.index] == ["Qwen3-1.7B", "other"]
    assert cells.to_numpy().tolist() == [["-1.50", "-5.90"], ["-2.00", "-3.00"]]
