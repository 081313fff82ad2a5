"""What every notebook does around its claim: its parameters, its runs, what it saves."""

import re
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import papermill
import pytest
import yaml
from IPython.core.interactiveshell import InteractiveShell

from califkit import exhibits
from califkit.exhibits import exhibit as exhibit_module
from califkit.runs.dispatch import NotSubmittedError
from califkit.runs.jobs import JobError
from califkit.runs.settings import ParamsError

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def own_options():
    with pd.option_context("display.max_rows", 60), plt.rc_context():
        yield
    plt.close("all")


@pytest.mark.parametrize(
    ("profile", "settings", "submit", "message"),
    [
        ("ci", {}, "no", "submit = 'no' is of type str, expected bool"),
        ("ci", {}, 0, "submit = 0 is of type int, expected bool"),
        ("ci", "{}", False, "settings = '{}' is of type str, expected dict"),
        ("ci", None, False, "settings = None is of type NoneType, expected dict"),
        (4, {}, False, "profile = 4 is of type int, expected str"),
    ],
)
def test_a_parameter_of_another_type_is_refused_before_anything_else(
    profile, settings, submit, message
):
    with pytest.raises(ParamsError) as caught:
        exhibits.open(profile, settings, submit)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "meant"), [("false", False), ("False", False), ("true", True), (True, True)]
)
def test_submit_as_papermill_passes_it_on_a_command_line(given, meant):
    assert exhibits.open("ci", {}, given).submit is meant


def notebook(monkeypatch, *cells: str) -> None:
    """As inside a notebook that has run these cells."""
    shell = InteractiveShell()
    shell.user_ns["In"] = ["", *cells]
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)


DEFAULTS = "profile = 'cpu'  # ci | cpu\nsettings = {}\nsubmit = False\n"


def test_a_mistyped_papermill_parameter_is_refused_by_the_notebook_itself(monkeypatch):
    notebook(monkeypatch, DEFAULTS, "# Parameters\nprofile = 'ci'\nsetings = 5\n", "import x")
    with pytest.raises(ParamsError, match="parameter setings: there is none .* submit"):
        exhibits.open("ci", {}, False)
    notebook(monkeypatch, DEFAULTS, "# Parameters\nprofile = 'ci'\nsubmit = True\n")
    assert exhibits.open("ci", {}, True).submit
    notebook(monkeypatch, DEFAULTS, "# Parameters\nprofile = 'ci'\ngroups = {}\n")  # a whole file
    exhibits.open("ci", {}, False)
    notebook(monkeypatch, DEFAULTS, "profile = 'ci'; other = 5")  # by hand: cells run in any order
    exhibits.open("ci", {}, False)


@pytest.mark.parametrize("kind", [ParamsError, NotSubmittedError, JobError])
def test_a_notebook_shows_our_errors_without_the_way_through_our_code(kind, capsys):
    shell = InteractiveShell()
    shell.user_ns["kind"] = kind
    result = shell.run_cell(
        "def inner():\n    raise kind('settings.x: what has to change')\ninner()"
    )
    assert isinstance(result.error_in_exec, kind), "the cell has failed"
    shown = capsys.readouterr()
    assert shown.out + shown.err == f"{kind.__name__}: settings.x: what has to change\n"


def test_overrides_reach_the_settings_and_one_line_says_what_is_open(capsys):
    exhibit = exhibits.open("ci", {"training": {"steps": 5}}, False)
    assert (exhibit.profile, exhibit.settings.training.steps) == ("ci", 5)
    assert capsys.readouterr().out == (
        "profile ci, model tiny-random-llama, judge: none\noverrides: training.steps=5\n"
    )
    exhibits.open("ci", {"reward": {"ceiling_margin": 0.7}}, False)
    assert "CaLIF departs from the paper's rule: ceiling_margin = 0.7" in capsys.readouterr().out


def test_overrides_have_figures_of_their_own(tmp_path, monkeypatch):
    (tmp_path / "params").symlink_to(ROOT / "params")
    monkeypatch.setenv("CALIFKIT_ROOT", str(tmp_path))
    whole_file = yaml.safe_load((ROOT / "params" / "ci.yaml").read_text())["settings"]
    table = pd.DataFrame({"a": [1]})
    steps = {"alpha": 0.5, "training": {"steps": 5}}
    for settings in ({}, whole_file, {"execution": {"workers": 2}}, steps, {"alpha": 0.2}):
        exhibits.open("ci", settings, False).save("table", table)
    folder = tmp_path / "figures" / "ci"
    assert sorted(path.parent.name for path in folder.rglob("table.csv")) == [
        "alpha=0.2",
        "alpha=0.5,training.steps=5",
        "ci",  # as the file says, whether its settings are given again or not
    ]


def test_settings_of_the_file_given_again_do_not_undo_what_arms_change():
    """papermill -f passes the whole file; what differs from it holds for every arm."""
    settings = yaml.safe_load((ROOT / "params" / "ci.yaml").read_text())["settings"]
    settings["training"]["beta"] = 0.001
    settings["alpha"] = 0.3
    exhibit = exhibits.open("ci", settings, False)
    assert exhibit.overrides == {"training": {"beta": 0.001}, "alpha": 0.3}
    arms = {arm.name: arm.params.settings for arm in exhibit.arms()}
    assert arms["if_rlvr"].methods == ("if_rlvr",)
    assert {one.alpha for one in arms.values()} == {0.3}


@pytest.mark.slow
@pytest.mark.notebook
def test_the_template_runs_and_saves_its_picture(tmp_path, monkeypatch):
    for name in ("params", "results"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.setenv("CALIFKIT_ROOT", str(tmp_path))
    papermill.execute_notebook(
        str(ROOT / "notebooks" / "_template.ipynb"),
        str(tmp_path / "out.ipynb"),
        {"profile": "laptop"},
        kernel_name="python3",
        progress_bar=False,
    )
    saved = sorted(path.name for path in (tmp_path / "figures" / "laptop").iterdir())
    assert saved == ["template.csv", "template.pdf", "template.png"]


def test_a_picture_says_in_the_file_what_its_numbers_are_of(tmp_path, monkeypatch):
    (tmp_path / "params").symlink_to(ROOT / "params")
    monkeypatch.setenv("CALIFKIT_ROOT", str(tmp_path))
    exhibit = exhibits.open("laptop", {"alpha": 0.5}, False)
    assert exhibit.caption() == (
        "profile laptop; smollm2-135m-instruct; trained 36 steps of 24 rollouts; seeds 0, 1, 2; "
        "n = 64 test prompts (ifbench); evaluation seeds 0, 1; "
        "deviating from the profile: alpha=0.5"
    )
    arms = [arm.params.settings for arm in exhibit.arms("beta")]
    assert "n = 64 test prompts (composer)" in exhibit.caption(arms), "what arms answer"
    assert exhibit.caption(()) == "profile laptop; deviating from the profile: alpha=0.5"
    several = exhibits.open("paper", {}, False)
    drawn = several.caption(several.configurations().values())
    assert "Qwen/Qwen3-1.7B or Qwen/Qwen3-4B or allenai/Llama-3.1-Tulu-3-8B-DPO" in drawn
    assert "trained 364 or 273 steps of 8192 rollouts" in drawn
    figure, axes = plt.subplots()
    exhibit.save("picture", pd.DataFrame({"a": [1]}), axes)
    assert figure.get_suptitle().replace("\n", " ") == exhibit.caption()


def test_tables_in_a_notebook_are_texts_to_the_left_and_a_dash_for_what_is_missing():
    table = pd.DataFrame(
        {"arm": ["<b>one</b>", "two"], "value": [0.123456, float("nan")], "n": [10_000, 2]}
    )
    html = exhibit_module.table_html(table)
    assert "<b>" not in html and "&lt;b&gt;one&lt;/b&gt;" in html, "shown as text"
    assert ">0.1235<" in html and ">-<" in html and ">10000<" in html
    left = re.findall(r"#T_\w+_row\d_col\d", html.partition("</style>")[0])
    assert {name[-4:] for name in left} == {"col0"}, "texts alone"
    table = table.assign(judge="", gap=float("nan"))
    html = exhibit_module.table_html(table)
    assert "without a value: judge, gap<" in html and html.count("<th ") == 3
    twice = pd.concat([table, table])
    assert "&lt;b&gt;" in exhibit_module.table_html(twice), "rows of one name"
