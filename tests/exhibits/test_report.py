"""What running notebooks leaves: small, names no machine, never half-written."""

import re

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from califkit.exhibits.report import Result, natural_key, read_results, tidy, write_results


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


def test_an_error_the_kernel_could_not_report_is_shown_in_its_cell(report):
    path = executed(report / "02_train.ipynb")
    tidy(path, "cell [3]: the kernel died")
    (output,) = nbformat.read(path, as_version=4).cells[1].outputs
    assert (output.output_type, output.evalue) == ("error", "cell [3]: the kernel died")


def test_long_output_is_cut_in_the_middle(report):
    text = "start\n" + "x" * 100_000 + "\nend\n"
    path = executed(report / "a.ipynb", new_output("stream", name="stdout", text=text))
    tidy(path, None)
    kept = nbformat.read(path, as_version=4).cells[1].outputs[0].text
    assert kept.startswith("start\n")
    assert kept.endswith("\nend\n")
    left_out = int(re.search(r"\[\.\.\. (\d+) characters left out \.\.\.\]", kept)[1])
    assert kept.count("x") == 100_000 - left_out
    assert len(kept) < 10_000


def test_a_stored_notebook_names_no_folder_of_this_machine(report):
    path = executed(report / "a.ipynb")
    tidy(path, None)
    assert "/home/me" not in path.read_text()
    assert str(report) not in path.read_text()


def test_new_results_replace_old_ones_and_notebooks_that_are_gone_are_dropped(report):
    first = {name: Result(name, "failed", error=name) for name in ("a", "b", "c")}
    write_results(report, first, known=["a", "b", "c"])
    write_results(report, {"b": Result("b", "ok", 1.0)}, known=["c", "b"])
    assert read_results(report) == [first["c"], Result("b", "ok", 1.0)]
    assert read_results(report.parent) == []


def test_a_notebook_that_cannot_be_written_leaves_the_old_one(report, monkeypatch):
    path = executed(report / "a.ipynb")
    before = path.read_bytes()

    def interrupted(*paths):
        raise OSError("no space left")

    monkeypatch.setattr("os.replace", interrupted)
    with pytest.raises(OSError, match="no space left"):
        write_results(report, {}, known=[])
    with pytest.raises(OSError, match="no space left"):
        tidy(path, None)
    assert {file.name for file in report.iterdir()} == {"a.ipynb"}
    assert path.read_bytes() == before


def test_numbers_in_names_sort_as_numbers():
    names = ["fig10_a", "fig9_no_kl", "fig1_z", "fig1_b"]
    assert sorted(names, key=natural_key) == ["fig1_b", "fig1_z", "fig9_no_kl", "fig10_a"]
