"""The HTML report: complete, self-contained, never half-written."""

import json
import re

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from califkit.exhibits.report import Result, natural_key, write_index, write_page

PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ"
    "AAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
LOADED = re.compile(
    r"<script[^>]*\ssrc=|<link\b|<iframe\b|@import|url\(\s*[\"']?https?:|<img[^>]*src=\"https?:"
)


@pytest.fixture
def report(tmp_path):
    folder = tmp_path / "figures" / "test" / "report"
    folder.mkdir(parents=True)
    return folder


def executed(path, *outputs):
    cells = [new_markdown_cell("# A title"), new_code_cell("x = 1", outputs=list(outputs))]
    notebook = new_notebook(cells=cells, metadata={"papermill": {"input_path": "/home/me/a.ipynb"}})
    nbformat.write(notebook, path)
    return path


def test_a_page_embeds_everything_and_loads_nothing(report):
    picture = new_output("display_data", data={"image/png": PIXEL})
    path = executed(report / "fig4_region.ipynb", picture)
    write_page(path, None)
    page = path.with_suffix(".html").read_text()
    assert "A title" in page
    assert f"data:image/png;base64,{PIXEL}" in page
    assert 'href="index.html"' in page
    assert not LOADED.search(page)


def test_an_error_the_kernel_could_not_report_is_shown_in_its_cell(report):
    path = executed(report / "02_train.ipynb")
    write_page(path, "cell [3]: the kernel died")
    (output,) = nbformat.read(path, as_version=4).cells[1].outputs
    assert (output.output_type, output.evalue) == ("error", "cell [3]: the kernel died")
    assert "the kernel died" in path.with_suffix(".html").read_text()


def test_long_output_is_cut_in_the_middle(report):
    text = "start\n" + "x" * 100_000 + "\nend\n"
    path = executed(report / "a.ipynb", new_output("stream", name="stdout", text=text))
    write_page(path, None)
    kept = nbformat.read(path, as_version=4).cells[1].outputs[0].text
    assert kept.startswith("start\n")
    assert kept.endswith("\nend\n")
    left_out = int(re.search(r"\[\.\.\. (\d+) characters left out \.\.\.\]", kept)[1])
    assert kept.count("x") == 100_000 - left_out
    assert len(kept) < 10_000


def test_a_stored_notebook_names_no_folder_of_this_machine(report):
    path = executed(report / "a.ipynb")
    write_page(path, None)
    assert "/home/me" not in path.read_text()
    assert str(report) not in path.read_text()


def test_the_index_shows_results_figures_tables_and_versions(report):
    for name in [
        "fig10_b.png",
        "fig4_a.png",
        "fig4_a.pdf",
        "fig4_a.csv",
        "tab1 x.csv",
        "notes.txt",
    ]:
        (report.parent / name).write_bytes(b"")
    (report / "fig4_a.html").write_text("")
    results = {
        "fig4_a": Result("fig4_a", "ok", 12.34, "2026-01-01 10:00 UTC"),
        "fig10_b": Result("fig10_b", "failed", 1.0, "2026-01-01 10:01 UTC", "cell [2]: E: <b>x"),
        "tab1": Result("tab1", "not run", error="02_train failed"),
    }
    write_index("test", report, results, known=list(results))
    page = (report / "index.html").read_text()
    assert not LOADED.search(page)
    assert 'href="../fig4_a.pdf"' in page
    assert 'href="../fig4_a.csv"' in page
    assert 'href="../tab1%20x.csv"' in page
    assert "notes.txt" not in page
    assert 'href="fig4_a.html"' in page
    assert 'href="fig10_b.html"' not in page  # there is no such page
    assert page.index('src="../fig4_a.png"') < page.index('src="../fig10_b.png"')
    assert "12.3" in page
    assert "cell [2]: E: &lt;b&gt;x" in page
    assert page.count('class="status ') == 3
    assert "02_train failed" in page
    assert re.search(r"transformers</span> \d", page)


def test_new_results_replace_old_ones_and_notebooks_that_are_gone_are_dropped(report):
    first = {name: Result(name, "failed", error=name) for name in ("a", "b", "c")}
    write_index("test", report, first, known=["a", "b", "c"])
    write_index("test", report, {"b": Result("b", "ok", 1.0)}, known=["c", "b"])
    stored = json.loads((report / "results.json").read_text())
    assert [(entry["name"], entry["status"]) for entry in stored] == [("c", "failed"), ("b", "ok")]


def test_a_page_that_cannot_be_finished_leaves_the_old_one(report, monkeypatch):
    path = executed(report / "a.ipynb")
    write_page(path, None)
    before = path.with_suffix(".html").read_text()

    def interrupted(*paths):
        raise OSError("no space left")

    monkeypatch.setattr("os.replace", interrupted)
    with pytest.raises(OSError, match="no space left"):
        write_index("test", report, {}, known=[])
    with pytest.raises(OSError, match="no space left"):
        write_page(path, None)
    assert {file.name for file in report.iterdir()} == {"a.ipynb", "a.html"}
    assert path.with_suffix(".html").read_text() == before


def test_numbers_in_names_sort_as_numbers():
    names = ["fig10_a", "fig9_no_kl", "fig1_z", "fig1_b"]
    assert sorted(names, key=natural_key) == ["fig1_b", "fig1_z", "fig9_no_kl", "fig10_a"]
