"""Running notebooks: strict parameters, order, failures, and kernels of this interpreter."""

import json
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from papermill.exceptions import PapermillExecutionError

from califkit.exhibits import notebooks
from califkit.exhibits.notebooks import NotebookError, NotebookFailed
from califkit.runs.settings import ParamsError

PARAMETERS = 'profile = "cpu"\nsettings = {}\nsubmit = False'
INJECTED = {"profile": "test", "submit": False, "settings": {"model": "tiny"}}
TAGGED = {"tags": ["parameters"]}


def write(path: Path, *cells: nbformat.NotebookNode) -> Path:
    notebook = new_notebook(cells=list(cells))
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    notebook.metadata["language_info"] = {"name": "python"}
    nbformat.write(notebook, path)
    return path


def good(path: Path, *sources: str) -> Path:
    cells = [new_markdown_cell("# Title"), new_code_cell(PARAMETERS, metadata=TAGGED)]
    return write(path, *cells, *map(new_code_cell, sources))


def make_checkout(root: Path) -> Path:
    (root / "params").mkdir(parents=True)
    (root / "params" / "test.yaml").write_text(
        "profile: test\nsubmit: false\nsettings: {model: tiny}\n"
    )
    (root / "notebooks").mkdir()
    for name in notebooks.PIPELINE:
        good(root / "notebooks" / f"{name}.ipynb", "x = 1")
    return root


@pytest.fixture
def checkout(tmp_path, monkeypatch) -> Path:
    """A project with the four pipeline notebooks and the params file of a profile `test`."""
    root = make_checkout(tmp_path / "project with {braces}")
    monkeypatch.setenv("CALIFKIT_ROOT", str(root))
    return root


# ---------------------------------------------------------------- check


def test_a_good_notebook_passes(tmp_path):
    notebooks.check(good(tmp_path / "a.ipynb", "print(profile)"), INJECTED)


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ([new_code_cell(PARAMETERS)], "0 cells are tagged 'parameters'"),
        (
            [new_code_cell(PARAMETERS, metadata=TAGGED) for _ in range(2)],
            "2 cells are tagged 'parameters'",
        ),
        (
            [new_code_cell("import os"), new_code_cell(PARAMETERS, metadata=TAGGED)],
            "not the first code cell",
        ),
        (
            [new_markdown_cell("text", metadata=TAGGED), new_code_cell(PARAMETERS)],
            "not the first code cell",
        ),
        (
            [new_code_cell(f"{PARAMETERS}\nfolder = profile + '/x'", metadata=TAGGED)],
            "parameter 'folder = profile + '/x'' is no literal",
        ),
        ([new_code_cell("profile = (", metadata=TAGGED)], "parameter 'profile = (' is no literal"),
        (
            [new_code_cell('profile = "cpu"\nsettings = {}', metadata=TAGGED)],
            "unknown parameter submit = False; parameters: profile, settings",
        ),
    ],
    ids="untagged two_tags not_first markdown expression syntax unknown".split(),
)
def test_a_defect_is_named_with_its_notebook(tmp_path, cells, message):
    path = write(tmp_path / "fig1_defect.ipynb", *cells)
    with pytest.raises(NotebookError) as caught:
        notebooks.check(path, INJECTED)
    assert message in str(caught.value)
    assert "fig1_defect.ipynb" in str(caught.value)


@pytest.mark.parametrize(
    "source",
    [
        "!false",
        "x = 1\n  !ls",
        "files = !ls",
        "%%bash\nfalse",
        "%%sh",
        "%%script bash",
        "%sx false",
        "%system false",
        "a = %sx false",
    ],
)
def test_a_cell_whose_failing_command_would_pass_is_refused(tmp_path, source):
    path = good(tmp_path / "fig1_shell.ipynb", source)
    with pytest.raises(NotebookError, match="fig1_shell.ipynb: .* runs a shell command"):
        notebooks.check(path, INJECTED)


@pytest.mark.parametrize("source", ["x != 1", "# !ls", "%matplotlib inline", "%%time\nx = 1"])
def test_other_lines_are_no_shell_commands(source):
    assert notebooks.shell_line(source) is None


@pytest.mark.parametrize(
    ("default", "value"),
    [
        ("0.5", "1e-6"),  # what YAML makes of 1e-6
        ("0.5", True),
        ("1", 1.0),
        ("1", True),
        ("False", 0),
        ("'text'", None),
        ("[]", {}),
        ("{}", []),
    ],
)
def test_a_value_of_another_type_is_refused(tmp_path, default, value):
    cell = new_code_cell(f"rate = {default}", metadata=TAGGED)
    path = write(tmp_path / "a.ipynb", cell)
    with pytest.raises(NotebookError, match="a.ipynb: parameter rate = .* is of type") as caught:
        notebooks.check(path, {"rate": value})
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize(
    ("default", "value"),
    [("0.5", 1), ("0.5", 2.5), ("-1", 3), ("None", "x"), ("{'a': 1}", {}), ("[1]", ["x"])],
)
def test_a_value_of_the_right_type_is_accepted(tmp_path, default, value):
    path = write(tmp_path / "a.ipynb", new_code_cell(f"rate = {default}", metadata=TAGGED))
    notebooks.check(path, {"rate": value})


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"nbformat": 4, "cells": 1}', '{"nbformat": 4}', '{"nbformat": 99}']
)
def test_a_file_that_is_no_notebook_is_named(tmp_path, content):
    path = tmp_path / "broken.ipynb"
    path.write_text(content)
    with pytest.raises(NotebookError, match="broken.ipynb: not a readable notebook"):
        notebooks.check(path, {})


def test_a_missing_notebook_is_named(tmp_path):
    with pytest.raises(NotebookError, match="gone.ipynb: no such notebook"):
        notebooks.check(tmp_path / "gone.ipynb", {})


# ---------------------------------------------------------------- order


def test_order_is_pipeline_then_figures_then_tables_by_number(checkout):
    for name in ["tab10_b", "tab2_a", "fig10_y", "fig4_x", "fig4_w", "Untitled"]:
        good(checkout / "notebooks" / f"{name}.ipynb")
    assert notebooks.order() == [
        *["00_tour", "01_anchors", "02_train", "03_evaluate", "04_study", "05_campaign"],
        *["fig4_w", "fig4_x", "fig10_y", "tab2_a", "tab10_b"],
    ]


def test_a_subset_runs_in_the_same_order(checkout):
    assert notebooks.select(["03_evaluate", "00_tour", "03_evaluate"]) == ["00_tour", "03_evaluate"]


def test_an_unknown_name_lists_the_known_ones(checkout):
    with pytest.raises(NotebookError, match="'fig9'; there are: 00_tour, 01_anchors, 02_train"):
        notebooks.execute("test", ["00_tour", "fig9"])


# ---------------------------------------------------------------- prepare


def test_copies_hold_the_parameters_and_have_not_run(checkout, tmp_path):
    source = checkout / "notebooks" / "02_train.ipynb"
    before = source.read_bytes()
    copies = notebooks.prepare("test", tmp_path / "build" / "nbval", ["02_train", "00_tour"])
    assert copies == [tmp_path / "build" / "nbval" / f"{n}.ipynb" for n in ("00_tour", "02_train")]
    cells = nbformat.read(copies[1], as_version=4).cells
    assert [cell.metadata.tags for cell in cells[1:3]] == [["parameters"], ["injected-parameters"]]
    namespace: dict[str, object] = {}
    exec(cells[2].source, namespace)
    assert {key: namespace[key] for key in INJECTED} == INJECTED
    assert all(c.execution_count is None and not c.outputs for c in cells if c.cell_type == "code")
    assert source.read_bytes() == before


def test_nothing_is_written_if_one_notebook_is_defective(checkout, tmp_path):
    write(checkout / "notebooks" / "tab1_last.ipynb", new_code_cell(PARAMETERS))
    with pytest.raises(NotebookError, match="tab1_last.ipynb: 0 cells are tagged"):
        notebooks.prepare("test", tmp_path / "copies")
    with pytest.raises(NotebookError, match="tab1_last.ipynb: 0 cells are tagged"):
        notebooks.execute("test")
    assert not (tmp_path / "copies").exists()
    assert not (checkout / "figures").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("profile: test\nsetings: {}\n", "setings"),
        ("profile: test\nsettings: {training: {learning_rate: fast}}\n", "learning_rate.*'fast'"),
    ],
)
def test_a_wrong_params_file_is_refused_before_anything_runs(checkout, text, message):
    (checkout / "params" / "test.yaml").write_text(text)
    with pytest.raises(ParamsError, match=message):
        notebooks.execute("test")
    assert not (checkout / "figures").exists()


# ---------------------------------------------------------------- failures, without kernels


@pytest.fixture
def outcomes(monkeypatch) -> dict[str, list[Exception]]:
    """Replaces execution: each run of a notebook raises its next error, or none when used up."""
    errors: dict[str, list[Exception]] = {}

    def execute_notebook(source, output, parameters, **options):
        source, output = (path.format() for path in (source, output))  # as papermill does
        notebook = nbformat.read(source, as_version=4)
        notebook.metadata["papermill"] = {}
        nbformat.write(notebook, output)
        if queue := errors.get(Path(source).stem):
            raise queue.pop(0)
        return notebook

    monkeypatch.setattr(notebooks.papermill, "execute_notebook", execute_notebook)
    return errors


def cell_error(message: str) -> PapermillExecutionError:
    return PapermillExecutionError(
        cell_index=2, exec_count=7, source="", ename="KeyError", evalue=message, traceback=[]
    )


def statuses(checkout: Path) -> dict[str, str]:
    log = checkout / "figures" / "test" / "report" / "results.json"
    return {entry["name"]: entry["status"] for entry in json.loads(log.read_text())}


def test_a_failing_pipeline_notebook_stops_the_rest(checkout, outcomes):
    good(checkout / "notebooks" / "fig4_region.ipynb")
    outcomes["02_train"] = [cell_error("two\n  lines")]
    lines: list[str] = []
    with pytest.raises(NotebookFailed) as caught:
        notebooks.execute("test", echo=lines.append)
    assert str(caught.value) == "02_train: cell [7]: KeyError: two lines"
    assert statuses(checkout) == {
        "00_tour": "ok",
        "01_anchors": "ok",
        "02_train": "failed",
        "03_evaluate": "not run",
        "04_study": "not run",
        "05_campaign": "not run",
        "fig4_region": "not run",
    }
    assert caught.value.report.folder == checkout / "figures" / "test" / "report"
    assert "[7/7] fig4_region: not run, because 02_train failed" in lines


def test_a_failing_figure_lets_the_others_run(checkout, outcomes):
    for name in ("fig4", "fig5", "fig6"):
        good(checkout / "notebooks" / f"{name}.ipynb")
        outcomes[name] = [cell_error(f"no {name}")]
    outcomes["fig5"] = []
    with pytest.raises(NotebookFailed) as caught:
        notebooks.execute("test", ["fig4", "fig5", "fig6"])
    assert str(caught.value).splitlines() == [
        "fig4: cell [7]: KeyError: no fig4",
        "fig6: cell [7]: KeyError: no fig6",
    ]
    assert statuses(checkout) == {"fig4": "failed", "fig5": "ok", "fig6": "failed"}


def test_a_later_run_of_a_subset_keeps_the_other_results(checkout, outcomes):
    good(checkout / "notebooks" / "fig4.ipynb")
    outcomes["fig4"] = [cell_error("once")]
    with pytest.raises(NotebookFailed):
        notebooks.execute("test")
    report = notebooks.execute("test", ["fig4"])
    assert [result.status for result in report.results] == ["ok"]
    assert statuses(checkout) == dict.fromkeys([*notebooks.PIPELINE, "fig4"], "ok")
    assert "once" not in (report.folder / "results.json").read_text()


def test_a_kernel_that_does_not_start_gets_a_second_chance(checkout, outcomes):
    outcomes["00_tour"] = [RuntimeError("Kernel died before replying to kernel_info")]
    assert notebooks.execute("test", ["00_tour"]).results[0].status == "ok"
    assert outcomes["00_tour"] == []


def test_a_kernel_that_never_starts_is_a_failure(checkout, outcomes):
    outcomes["00_tour"] = [RuntimeError("first"), RuntimeError("second"), RuntimeError("third")]
    with pytest.raises(NotebookFailed, match="^00_tour: the kernel did not start: second$"):
        notebooks.execute("test", ["00_tour"])
    assert len(outcomes["00_tour"]) == 1


def test_printed_text_is_passed_on_line_by_line():
    lines: list[str] = []
    relay = notebooks._Relay(lines.append)
    for text in ["step 1", "0\nste", "p 20\nbar 1\rbar 2\n", "rest"]:
        relay.write(text)
        relay.flush()
    assert lines == ["    step 10", "    step 20", "    bar 2"]
    relay.close()
    assert lines[3:] == ["    rest"]


# ---------------------------------------------------------------- with kernels


@pytest.mark.slow
@pytest.mark.notebook
class TestRealRun:
    """One run of notebooks that do what notebooks do, and three that go wrong."""

    @pytest.fixture(scope="class")
    def run(self, tmp_path_factory):
        root = make_checkout(tmp_path_factory.mktemp("run") / "project")
        decoy = tmp_path_factory.mktemp("jupyter")
        spec = decoy / "kernels" / "python3" / "kernel.json"
        spec.parent.mkdir(parents=True)
        spec.write_text(
            json.dumps({"argv": ["/bin/false"], "display_name": "decoy", "language": "python"})
        )
        folder = root / "notebooks"
        good(
            folder / "00_tour.ipynb",
            "import os, sys\n"
            "from califkit.runs.paths import project_root\n"
            "print(sys.executable, project_root(), profile, settings, submit)",
            "from tqdm.auto import tqdm\nfor _ in tqdm(range(100)): pass",
            "for i in range(9000): print('line', i)",
            "import matplotlib.pyplot as plt\n_ = plt.plot([1, 2])",
        )
        good(folder / "fig1_raises.ipynb", "y = 2", "raise ValueError('no\\nsuch thing')", "y = 3")
        good(folder / "fig2_killed.ipynb", "import os, signal\nos.kill(os.getpid(), 9)", "y = 3")
        good(folder / "fig3_exits.ipynb", "import sys\nsys.exit(0)", "y = 3")
        lines: list[str] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("CALIFKIT_ROOT", str(root))
            patch.setenv("JUPYTER_PATH", str(decoy))
            patch.setenv("MPLBACKEND", "Agg")
            with pytest.raises(NotebookFailed) as caught:
                notebooks.execute(
                    "test",
                    ["00_tour", "fig1_raises", "fig2_killed", "fig3_exits"],
                    echo=lines.append,
                )
        return caught.value, lines, root / "figures" / "test" / "report"

    def test_each_failure_is_one_line_with_cell_and_error(self, run):
        error, _, _ = run
        assert str(error).splitlines() == [
            "fig1_raises: cell [4]: ValueError: no such thing",
            "fig2_killed: cell [3]: the kernel died, most often because memory ran out",
            "fig3_exits: cell [3]: SystemExit: the notebook ended itself",
        ]

    def test_kernels_run_this_python_whatever_kernelspec_the_user_has(self, run):
        _, lines, report = run
        root = report.parents[2]
        expected = f"{sys.executable} {root} test {{'model': 'tiny'}} False"
        assert f"    {expected}" in lines

    def test_progress_names_the_notebook_before_and_after(self, run):
        _, lines, _ = run
        assert lines[0] == "[1/4] 00_tour"
        (end,) = [line for line in lines if line.startswith("[1/4] 00_tour:")]
        assert end.startswith("[1/4] 00_tour: done (")
        assert "    line 8999" in lines[: lines.index(end)]

    def test_the_stored_notebook_is_small_and_has_pictures_but_no_bars(self, run):
        _, _, report = run
        cells = nbformat.read(report / "00_tour.ipynb", as_version=4).cells
        outputs = [output for cell in cells for output in cell.get("outputs", [])]
        assert [o.output_type for o in outputs] == ["stream", "stream", "display_data"]
        assert "image/png" in outputs[2].data
        assert len(outputs[1].text) < 10_000
        assert outputs[1].text.startswith("line 0\n")
        assert outputs[1].text.endswith("line 8999\n")
        assert "characters left out" in outputs[1].text

    @pytest.mark.parametrize("name", ["fig1_raises", "fig2_killed", "fig3_exits"])
    def test_the_error_is_in_the_output_notebook(self, run, name):
        _, _, report = run
        cells = nbformat.read(report / f"{name}.ipynb", as_version=4).cells
        types = [o.output_type for cell in cells for o in cell.get("outputs", [])]
        assert types.count("error") == 1
        wanted = {"fig1_raises": "such thing", "fig2_killed": "kernel died"}
        assert wanted.get(name, "SystemExit") in (report / f"{name}.ipynb").read_text()
