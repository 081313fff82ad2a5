"""The notebooks that show a judge's verdicts, run on the ci profile with a scripted judge."""

import json
import re
import shutil
from pathlib import Path

import nbformat
import pandas as pd
import pytest
import yaml
from judge_server import JudgeServer, Play, Request, says, serve

from califkit.exhibits import notebooks
from califkit.generation import RESPONSES
from califkit.runs.folders import open_run
from califkit.runs.jsonl import read_jsonl
from califkit.runs.params import load_params

ROOT = Path(__file__).resolve().parents[2]
KEY = "sk-test-0123456789abcdefSECRET"
PRESENT = (
    "03_evaluate",
    "fig1_blind_spot",
    "fig2_example",
    "fig3_pairs",
    "fig5_main_results",
    "fig7_constraint_types",
    "fig8_sweeps",
    "fig9_no_kl",
    "tab1_rubrics",
    "tab2_transitions",
    "tab3_judge_rewards",
    "tab4_ablations",
    "tab5_pairwise",
    "tab6_inflation",
    "tab7_tab8_examples",
)


def grade(text: str) -> int:
    return 1 + len(text) % 10


def between_tags(prompt: str, name: str) -> str:
    return re.search(rf"<{name} (\w+)>\n(.*)\n</{name} \1>", prompt, re.DOTALL)[2]


def judge(request: Request) -> Play:
    """Grades by the length of a response, prefers the longer of two, and answers rubrics yes."""
    prompt = request.body["messages"][-1]["content"]
    schema = request.body["response_format"]["json_schema"]["schema"]
    verdict = filled(schema, prompt)
    if "score" in schema["properties"]:
        verdict["score"] = grade(between_tags(prompt, "response"))
    elif set(schema["properties"]) == {"reasoning", "verdict"}:
        lengths = [len(between_tags(prompt, f"{order} response")) for order in ("first", "second")]
        longer = "first" if lengths[0] > lengths[1] else "second"
        verdict["verdict"] = "tie" if lengths[0] == lengths[1] else longer
    return says(json.dumps(verdict))


def filled(schema: dict, prompt: str) -> object:
    """Any value that a schema allows; a list gets an item for each numbered line at the end."""
    if "enum" in schema:
        return schema["enum"][0]
    match schema["type"]:
        case "object":
            return {name: filled(part, prompt) for name, part in schema["properties"].items()}
        case "array":
            numbered = re.findall(r"^(\d+)\. ", prompt, re.MULTILINE)
            return [filled(schema["items"], prompt)] * (int(numbered[-1]) if numbered else 1)
    return {"string": "Because.", "integer": 5, "number": 5, "boolean": True}[schema["type"]]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A project whose ci profile has a judge, all judge notebooks executed; and the server."""
    root = tmp_path_factory.mktemp("project")
    shutil.copytree(ROOT / "notebooks", root / "notebooks")
    (root / "params").mkdir()
    profile = yaml.safe_load((ROOT / "params" / "ci.yaml").read_text())
    with pytest.MonkeyPatch.context() as patch, serve(judge) as server:
        patch.setenv("CALIFKIT_ROOT", str(root))
        patch.setenv("CALIFKIT_RUNS", str(root / "runs"))
        patch.setenv("JUDGE_TEST_KEY", KEY)
        patch.setenv("OMP_NUM_THREADS", "1")
        profile["settings"] |= {"judge": "scripted", "rubrics": ["advancedif"]}
        profile["settings"]["execution"]["judges"] = [
            {"name": "scripted", "model": "m", "base_url": server.url, "retries": 0}
            | {"api_key_env": "JUDGE_TEST_KEY"}
        ]
        rewards = {name: {"methods": [name]} for name in ("self_judge", "stronger_judge")}
        profile["groups"]["judges"] = {
            "settings": dict.fromkeys(rewards, "scripted"),
            "arms": rewards,
        }
        (root / "params" / "ci.yaml").write_text(yaml.safe_dump(profile))
        report = notebooks.execute("ci", PRESENT)
        assert all(result.status == "ok" for result in report.results)
        yield root, server


def table(checkout: tuple[Path, JudgeServer], name: str) -> pd.DataFrame:
    return pd.read_csv(checkout[0] / "figures" / "ci" / f"{name}.csv")


def answers(method: str, seed: int) -> dict[str, str]:
    """Final answers of a method by prompt, as the run folder has them."""
    for stage in load_params("ci").settings.generate_stages():
        if (stage.method, stage.seed) == (method, seed):
            rows = read_jsonl(open_run("ci", stage).folder / RESPONSES)
            return {row["key"]: row["response"].strip() for row in rows}
    raise AssertionError(f"no run of {method} with seed {seed}")


@pytest.mark.slow
@pytest.mark.notebook
def test_03_evaluate_and_figure_5_show_the_mean_score_and_its_judge(checkout):
    summary = table(checkout, "03_evaluate_summary")
    drawn = table(checkout, "fig5_main_results")
    for method in ("base", "if_rlvr", "calif"):
        grades = [[grade(text) for text in answers(method, seed).values()] for seed in (0, 1)]
        expected = sum(sum(run) / len(run) for run in grades) / 2
        for found, value in ((summary, "mean"), (drawn[drawn["source"] == "this run"], "value")):
            rows = found[(found["method"] == method) & (found["metric"] == "response_quality")]
            assert rows[value].tolist() == pytest.approx([expected])
            assert rows["judge"].tolist() == ["scripted"]
    assert summary.loc[summary["metric"] == "response_quality", "unscored"].tolist() == [0, 0, 0]


@pytest.mark.slow
@pytest.mark.notebook
def test_table_2_holds_the_change_of_the_score_in_each_transition(checkout):
    changes = table(checkout, "tab2_transitions")
    for method in ("if_rlvr", "calif"):
        rows = changes[changes["method"] == method]
        assert rows["scored"].tolist() == rows["pairs"].tolist()
        differences = [
            grade(answers(method, seed)[key]) - grade(text)
            for seed in (0, 1)
            for key, text in answers("base", seed).items()
        ]
        assert rows["pairs"].sum() == len(differences)
        total = (rows["quality_change"].fillna(0) * rows["pairs"]).sum()
        assert total == pytest.approx(sum(differences))
    beside = table(checkout, "tab2_beside_paper")
    assert beside["paper"].dropna().tolist() == [-1.26, -2.05, 0.01, -0.28]


@pytest.mark.slow
@pytest.mark.notebook
def test_table_5_counts_the_pairs_that_the_judge_decides(checkout):
    ours, theirs = answers("calif", 0), answers("if_rlvr", 0)
    wins = sum(len(ours[key]) > len(theirs[key]) for key in ours)
    losses = sum(len(ours[key]) < len(theirs[key]) for key in ours)
    row = table(checkout, "tab5_pairwise").iloc[0]
    assert (row["wins"], row["losses"], row["pairs"]) == (wins, losses, len(ours))
    assert row["judge"] == "scripted"
    trust = table(checkout, "tab5_judge").iloc[0]
    assert trust["consistent"] == 100.0
    assert trust["unscored"] == 0
    if wins + losses:
        assert trust["first_position"] == 50.0


@pytest.mark.slow
@pytest.mark.notebook
def test_table_1_holds_the_share_of_requirements_that_are_met(checkout):
    rows = table(checkout, "tab1_rubrics")
    rows = rows[rows["metric"] == "advancedif_micro_rubric_pass"].set_index("method")
    # This judge finds every requirement met.
    assert rows["mean"].to_dict() == {"base": 100.0, "if_rlvr": 100.0, "calif": 100.0}
    assert set(rows["judge"]) == {"scripted"}


@pytest.mark.slow
@pytest.mark.notebook
def test_table_3_compares_rewards_that_a_judge_has_paid(checkout):
    rows = table(checkout, "tab3_judge_rewards").query("source == 'this run'")
    judged = rows.dropna(subset="value").groupby("reward")["metric"].nunique()
    # Constraint Satisfaction, response quality and the two metrics of AdvancedIF.
    assert judged.to_dict() == {"calif": 4, "self_judge": 4, "stronger_judge": 4}
    won = table(checkout, "tab3_metrics_won").set_index("source")
    assert won.loc["this run", "compared"] == 4
    assert won.loc["this run", "won"] <= 2, "this judge finds every requirement of all three met"


@pytest.mark.slow
@pytest.mark.notebook
def test_figures_8_and_9_draw_the_judges_quality(checkout):
    points = table(checkout, "fig8_sweeps").query("source == 'this run'")
    assert points["y"].between(1, 10).all() and len(points) == 5
    bars = table(checkout, "fig9_no_kl").query("metric == 'response_quality'")
    assert bars["mean"].between(1, 10).all() and len(bars) == 4
    (base,) = points.loc[points["curve"] == "base", "y"]
    assert base == bars.set_index("arm").loc["base", "mean"]


@pytest.mark.slow
@pytest.mark.notebook
@pytest.mark.parametrize("name", PRESENT)
def test_no_notebook_says_that_there_is_no_judge(checkout, name):
    executed = nbformat.read(
        checkout[0] / "figures" / "ci" / "report" / f"{name}.ipynb", as_version=4
    )
    outputs = [output for cell in executed.cells for output in cell.get("outputs", [])]
    assert "no judge configured" not in json.dumps(outputs)


@pytest.mark.slow
@pytest.mark.notebook
def test_the_key_of_the_judge_is_sent_and_stands_in_no_file(checkout):
    root, server = checkout
    assert {request.headers["authorization"] for request in server.requests} == {f"Bearer {KEY}"}
    files = [path for path in root.rglob("*") if path.is_file()]
    assert any("judges" in path.parts for path in files)
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []
