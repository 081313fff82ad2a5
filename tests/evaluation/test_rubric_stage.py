"""The rubric stage with a real server as the judge, and its tables.

Expected numbers are worked out by hand from the small sets: 5 rows with 16 criteria (AdvancedIF),
two groups for the judge and one by rule (FollowBench), 12 questions (ComplexBench).
"""

import json
import re
import shutil

import numpy as np
import pandas as pd
import pytest
from judge_server import error, says, serve

from califkit.data.load import DataError
from califkit.evaluation.estimate import estimates
from califkit.evaluation.rubrics import RUBRICS, judge_rubrics
from califkit.exhibits import paper, rubrics, summary
from califkit.exhibits.summary import NO_JUDGE
from califkit.generation import RESPONSES, benchmark_prompts
from califkit.judges.judge import JudgeError
from califkit.judges.rubrics import RubricError
from califkit.runs.dispatch import run_stage
from califkit.runs.folders import open_run
from califkit.runs.jsonl import read_jsonl
from califkit.runs.params import load_params
from califkit.runs.settings import ParamsError

NAN = float("nan")


@pytest.fixture(autouse=True)
def runs(tmp_path, monkeypatch):
    monkeypatch.setenv("CALIFKIT_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


def params(url, *benchmarks, n_prompts=8, **judge):
    usual = {"model": "m", "retries": 0, "backoff_s": 0.01, "timeout_s": 5.0}
    judges = [{"name": "t", "base_url": url, **usual, **judge}]
    changes = {"judge": "t", "rubrics": list(benchmarks), "execution": {"judges": judges}}
    return load_params("ci", changes | {"evaluation": {"n_prompts": n_prompts}})


def judged(url, benchmark, **judge):
    """The base policy with the first seed on a benchmark, generated first if need be."""
    settings = params(url, benchmark, **judge).settings
    return run_stage("ci", settings.rubric_stages()[0], settings.execution)


def prompt_of(request):
    return request.body["messages"][0]["content"]


def verdict(request, good):
    """An answer in the format that the request asks for, all yes or all no."""
    fields = request.body["response_format"]["json_schema"]["schema"]["properties"]
    count = re.search(r"with exactly (\d+) entries", prompt_of(request))
    n = int(count[1]) if count else 0
    if "criteria" in fields:
        entry = {"reason": "So.", "satisfied": good}
        return says(json.dumps({"criteria": [entry] * n, "all_satisfied": good}))
    if "verdicts" in fields:
        return says(json.dumps({"reason": "So.", "verdicts": ["YES" if good else "NO"] * n}))
    if "scope" in fields:
        return says(json.dumps({"scope": "none", "spans": []}))
    return says(json.dumps({"analysis": "So.", "answer": good}))


def pleased(request):
    return verdict(request, True)


def displeased(request):
    return verdict(request, False)


def respond(settings, tokenizer, text):
    """Finished responses of the base policy: ``text(key)`` to every prompt."""
    stage = settings.rubric_stages()[0].responses
    loaded = benchmark_prompts(stage.evaluation)
    run = open_run("ci", stage)
    run.folder.mkdir(parents=True)
    rows = [
        {
            "key": i.key,
            "prompt": i.prompt,
            "response": text(i.key),
            "token_ids": tokenizer.encode(text(i.key), add_special_tokens=False),
            "finish_reason": "length",
        }
        for i in loaded.instances
    ]
    (run.folder / RESPONSES).write_text("".join(json.dumps(row) + "\n" for row in rows))
    run.finish(0.0, rows=len(rows), data=loaded.summary(), data_sha256=loaded.sha256)


# ------------------------------------------------------------------ the stage


def test_a_policy_is_generated_judged_and_found_again():
    with serve(pleased) as server:
        run = judged(server.url, "advancedif")
        assert len(server.requests) == 5
        assert judged(server.url, "advancedif").folder == run.folder
        assert len(server.requests) == 5
    facts = run.manifest()
    assert facts["metrics"] == {
        "advancedif_overall_pass_rate": 100.0,
        "advancedif_micro_rubric_pass": 100.0,
    }
    assert facts["counts"]["n"] == facts["rows"] == facts["items"] == facts["asked"] == 5
    assert facts["counts"]["n_criteria"] == 16
    assert facts["released"]["advancedif_overall_pass_rate"] == 100.0
    assert (facts["benchmark"], facts["source"]) == ("advancedif", "built-in sample")
    assert (facts["judge"], facts["judge_models"]) == ("t", ["served-model"])
    assert facts["language"] == "en"
    assert len(facts["prompt_versions"]) == 1
    assert (facts["unscored"], facts["usage"]["requests"]) == ({}, 5)
    assert "numbers do not compare with published ones" in facts["warnings"][0]
    rows = read_jsonl(run.folder / RUBRICS)
    assert [row["item"] for row in rows] == [f"row-{n}" for n in range(1, 6)]
    assert all(row["verdict"]["value"]["satisfied"] for row in rows)
    responses = read_jsonl(open_run("ci", run.stage.responses).folder / RESPONSES)
    assert {row["key"]: row["response"] for row in responses} == {
        row["item"]: row["response"] for row in rows
    }


def test_rules_decide_without_the_judge(tiny):
    # All 15 prompts. The groups `content` and `example` are decided by rule, and a draft meets
    # none of them; the five levels of `style` are for the judge. Levels in a row: 0, 5 and 0.
    with serve(pleased) as server:
        settings = params(server.url, "followbench", n_prompts=None).settings
        respond(settings, tiny.tokenizer, lambda key: " Draft. ")
        foreseen = estimates("ci", settings.rubric_stages()[:1], settings.execution)["t"].calls
        assert (foreseen, server.requests) == (5, []), "what a rule decides costs nothing"
        run = judge_rubrics("ci", settings.rubric_stages()[0], settings.execution)
        assert len(server.requests) == run.manifest()["asked"] == 5
    assert run.manifest()["counts"]["n_by_rule"] == 10
    assert run.manifest()["metrics"] == {
        "followbench_hsr": pytest.approx(100 / 3),
        "followbench_ssr": pytest.approx(100 / 3),
        "followbench_csl": pytest.approx(5 / 3),
    }
    rows = read_jsonl(run.folder / RUBRICS)
    assert {row["response"] for row in rows} == {" Draft. "}  # rules compare whole texts
    # The released script weights the levels, here all alike, and leaves `example` out.
    table = rubrics.by_run([run]).set_index("metric")
    assert table.loc["followbench_hsr", "released"] == pytest.approx(100 / 2)
    assert np.isnan(table.loc["followbench_csl", "released"])


def test_every_question_of_complexbench_is_asked(tiny):
    with serve(displeased) as server:
        settings = params(server.url, "complexbench").settings
        respond(settings, tiny.tokenizer, lambda key: f"Text {key}.")
        run = judge_rubrics("ci", settings.rubric_stages()[0], settings.execution)
        assert len(server.requests) == 12
    facts = run.manifest()
    assert facts["counts"]["n"] == facts["asked"] == 12
    assert len(facts["prompt_versions"]) == 2  # for a verdict, and for the spans of a rule
    # The one lexical question is whether a word is absent: it is, from nothing.
    assert facts["metrics"] == {
        "complexbench_lexical": 100.0,
        "complexbench_semantic": 0.0,
        "complexbench_utility": 0.0,
        "complexbench_format": 0.0,
    }


def test_only_the_answer_after_the_reasoning_is_judged(tiny):
    with serve(pleased) as server:
        settings = params(server.url, "advancedif").settings
        texts = {
            "row-1": "<think>A secret plan.</think>\n\nThe answer.",
            "row-2": "<think>A secret plan without an end.",
        }
        respond(settings, tiny.tokenizer, lambda key: texts.get(key, "Text."))
        run = judge_rubrics("ci", settings.rubric_stages()[0], settings.execution)
        assert not any("secret" in prompt_of(request) for request in server.requests)
        assert sum("The answer." in prompt_of(request) for request in server.requests) == 1
        assert len(server.requests) == 4
    # Without an answer nothing holds, and nobody is asked.
    assert run.manifest()["metrics"]["advancedif_overall_pass_rate"] == 100 * 4 / 5
    assert run.manifest()["counts"]["n_missing"] == 0


# ------------------------------------------------------------------ a judge that fails


def test_failed_calls_are_counted_and_repeated_alone(tiny):
    with serve(lambda r: error(400) if "Text 1" in prompt_of(r) else pleased(r)) as server:
        settings = params(server.url, "advancedif").settings
        respond(settings, tiny.tokenizer, lambda key: f"Text {key[-1]}.")
        run = judge_rubrics("ci", settings.rubric_stages()[0], settings.execution)
    facts = run.manifest()
    assert facts["counts"]["n_missing"] == 1
    assert facts["metrics"]["advancedif_overall_pass_rate"] == 100 * 4 / 5
    assert facts["warnings"][-1].startswith("judge t: 1 of 5 calls failed")
    shutil.rmtree(run.folder)
    with serve(pleased) as server:
        settings = params(server.url, "advancedif").settings
        run = judge_rubrics("ci", settings.rubric_stages()[0], settings.execution)
        assert len(server.requests) == 1
    assert run.manifest()["counts"]["n_missing"] == 0
    assert run.manifest()["metrics"]["advancedif_overall_pass_rate"] == 100.0


def test_answers_that_cannot_be_used_have_their_reasons(tiny):
    plays = {
        "Text 1": says("I would rather not say."),
        "Text 2": says(None, refusal="no"),
        "Text 3": says('{"criteria": [', "length"),
        # A verdict of the released prompt whose criteria have none of our names: the released
        # scorer takes its flag, we have no verdict.
        "Text 4": says('{"rubrics_check": {"a": "yes"}, "SATISFIED_ALL_REQUIREMENTS": "YES"}'),
    }

    def script(request):
        found = [play for text, play in plays.items() if text in prompt_of(request)]
        return found[0] if found else pleased(request)

    with serve(script) as server:
        settings = params(server.url, "advancedif").settings
        respond(settings, tiny.tokenizer, lambda key: f"Text {key[-1]}.")
        run = judge_rubrics("ci", settings.rubric_stages()[0], settings.execution)
    facts = run.manifest()
    statuses = ["unparsable", "refused", "truncated", "unparsable", "ok"]
    assert [row["verdict"]["status"] for row in read_jsonl(run.folder / RUBRICS)] == statuses
    assert facts["unscored"] == {"unparsable": 2, "refused": 1, "truncated": 1}
    assert facts["metrics"]["advancedif_overall_pass_rate"] == 100 * 1 / 5
    assert facts["released"]["advancedif_overall_pass_rate"] == 100 * 2 / 5
    table = rubrics.by_run([run])
    assert table["unjudged"].tolist() == [4, 4]
    assert table["released"].iloc[0] == 40.0


def test_a_judge_that_never_answers_leaves_the_stage_unfinished(tiny):
    with serve([error(500)]) as server:
        settings = params(server.url, "advancedif").settings
        respond(settings, tiny.tokenizer, lambda key: f"Text {key[-1]}.")
        with pytest.raises(JudgeError, match=r"none of 5 questions .* failed \(HTTP 500"):
            judge_rubrics("ci", settings.rubric_stages()[0], settings.execution)
    with serve(pleased) as server:
        assert judged(server.url, "advancedif").is_complete


def test_a_missing_key_is_told_before_anything_is_generated(runs, monkeypatch):
    monkeypatch.delenv("NO_SUCH_JUDGE_KEY", raising=False)
    with pytest.raises(JudgeError, match="NO_SUCH_JUDGE_KEY is not set"):
        judged("http://127.0.0.1:9/v1", "advancedif", api_key_env="NO_SUCH_JUDGE_KEY")
    assert not (runs / "ci" / "generation").exists()


def test_the_judge_has_to_be_the_one_of_the_stage():
    described = params("http://127.0.0.1:9/v1", "advancedif").settings
    other = params("http://127.0.0.1:9/v1", "advancedif", temperature=1.0).settings
    with pytest.raises(ParamsError, match="t is not the judge that .* temperature = 1.0, not"):
        judge_rubrics("ci", described.rubric_stages()[0], other.execution)


def test_responses_to_an_edited_benchmark_are_refused(tiny, tmp_path):
    path = tmp_path / "rows.csv"
    head = "conversation_history,benchmark_name,prompt_metadata\n"
    row = '"[{""role"": ""user"", ""content"": ""%s""}]",if_complex_if_oss,'
    row += '"{""rubrics"": ""[\\""Is it short?\\""]""}"\n'
    path.write_text(head + row % "Greet.")
    with serve(pleased) as server:
        settings = params(server.url, f"advancedif:{path}").settings
        respond(settings, tiny.tokenizer, lambda key: "Hello.")
        path.write_text(head + row % "Part.")
        with pytest.raises(DataError, match=r"rows\.csv: sha256 .*, but the responses in"):
            judge_rubrics("ci", settings.rubric_stages()[0], settings.execution)
        assert not server.requests


# ------------------------------------------------------------------ tables


def finished(settings, values, unjudged=0, source="built-in sample"):
    """Manifests of the AdvancedIF stages, with ``values[method]`` a list over the seeds."""
    found = []
    for stage in settings.rubric_stages():
        numbers = values.get(stage.responses.method, [])
        if stage.responses.seed >= len(numbers):
            continue
        run = open_run("ci", stage)
        run.folder.mkdir(parents=True)
        value = numbers[stage.responses.seed]
        run.finish(
            0.0,
            benchmark="advancedif",
            source=source,
            items=5,
            language="en",
            data_sha256="0123456789abcdef",
            warnings=["small"],
            judge="t",
            judge_models=["served-model"],
            asked=5,
            metrics={"advancedif_overall_pass_rate": value, "advancedif_micro_rubric_pass": None},
            counts={"n": 5, "n_missing": 0, "n_unparsable": unjudged, "n_refused": 0}
            | {"n_truncated": 0},
            released={"advancedif_overall_pass_rate": 1.0, "advancedif_micro_rubric_pass": 2.0},
        )
        found.append(run)
    return found


@pytest.fixture
def settings():
    return params("http://127.0.0.1:9/v1", "advancedif").settings


def test_the_table_has_mean_and_sample_std_and_says_what_was_not_measured(settings):
    runs = finished(settings, {"base": [10.0, 14.0], "calif": [30.0]}, unjudged=1)
    table = rubrics.rubric_table(rubrics.by_run(runs), settings)
    assert table.groupby("method", sort=False).size().to_dict() == {
        "base": 9,
        "if_rlvr": 9,
        "calif": 9,
    }
    cells = table.set_index(["method", "metric"])
    base = cells.loc[("base", "advancedif_overall_pass_rate")]
    # Sample standard deviation of 10 and 14: sqrt(2^2 + 2^2) = 2.83.
    assert (base["mean"], base["std"]) == (12.0, pytest.approx(np.sqrt(8)))
    assert (base["runs"], base["units"], base["unjudged"], base["released"]) == (2, 10, 2, 1.0)
    assert (base["judge"], base["note"]) == ("t", "our own small set, not the benchmark")
    assert np.isnan(cells.loc[("calif", "advancedif_overall_pass_rate"), "std"])
    undefined = cells.loc[("base", "advancedif_micro_rubric_pass")]
    assert np.isnan(undefined["mean"])
    assert undefined["note"] == "not measured: no unit enters it in 2 of 2 runs"
    other = cells.loc[("base", "complexbench_format")]
    assert np.isnan(other["mean"]) and other["runs"] == 0
    assert other["note"] == "not measured: complexbench is not among the setting rubrics"


@pytest.mark.parametrize(
    ("source", "verdict"),
    [
        ("built-in sample", "our own small set, not the benchmark"),
        ("/data/rows.csv", "as in the paper"),  # 18.08 (base) and 19.32 (CaLIF) there
    ],
)
def test_small_sets_are_not_compared_with_the_paper(settings, source, verdict):
    runs = finished(settings, {"base": [10.0, 11.0], "calif": [30.0, 31.0]}, source=source)
    table = rubrics.rubric_table(rubrics.by_run(runs), settings)
    compared = summary.against_paper(table).set_index(["comparison", "metric"])
    row = compared.loc[("CaLIF minus base", "advancedif_overall_pass_rate")]
    assert (row["difference"], row["paper"]) == (20.0, pytest.approx(1.24))
    assert row["verdict"] == verdict


def test_without_a_judge_or_a_benchmark_every_row_says_so():
    none = rubrics.by_run([])
    table = rubrics.rubric_table(none, load_params("ci").settings)
    assert len(table) == 27 and set(table["note"]) == {NO_JUDGE}
    assert table["mean"].isna().all()
    judge_alone = params("http://127.0.0.1:9/v1").settings
    notes = set(rubrics.rubric_table(none, judge_alone)["note"])
    assert notes == {"not measured: the setting rubrics names no benchmark"}


def test_two_sources_of_a_benchmark_are_not_averaged(settings):
    runs = finished(settings, {"base": [10.0]}) + finished(settings, {"calif": [1.0]}, source="x")
    with pytest.raises(RubricError, match="advancedif: more than one source: built-in sample, x"):
        rubrics.rubric_table(rubrics.by_run(runs), settings)


def test_the_data_are_named_and_small_sets_are_called_small(settings):
    runs = finished(settings, {"base": [1.0, 2.0]}, unjudged=1)
    (row,) = rubrics.data_table(runs).to_dict("records")
    assert row["data"] == "our own small set, not the benchmark"
    assert (row["items"], row["sha256"], row["language"]) == (5, "0123456789ab", "en")
    assert (row["judge"], row["answered_by"], row["warnings"]) == ("t", "served-model", "small")
    assert [row[k] for k in ("runs", "units", "asked", "unjudged")] == [2, 10, 10, 2]
    assert rubrics.data_table([]).empty


def test_the_papers_configurations_have_columns_of_their_own(settings):
    table = rubrics.rubric_table(rubrics.by_run([]), settings)
    beside = rubrics.beside_paper(table).set_index(["method", "metric"])
    columns = [column for column in beside if column.startswith("paper: ")]
    assert columns == [f"paper: {label}" for label in list(paper.CONFIGURATIONS.values())[:5]]
    assert beside.loc[("base", "followbench_hsr"), "paper: Qwen3-1.7B"] == 53.81
    assert beside.loc[("if_rlvr", "advancedif_overall_pass_rate"), "paper: Qwen3-4B"] == 29.02
    assert beside[columns].notna().all(axis=None)
    unknown = rubrics.beside_paper(table.assign(method="no_lower_dev"))
    assert unknown[columns].isna().all(axis=None)


def test_the_papers_counts_follow_from_its_table():
    counts = rubrics.cells_above(paper.exhibit("table1"))
    assert counts["cells"].tolist() == [45, 45, 45]
    assert dict(zip(counts["comparison"], counts["above"], strict=True)) == {
        "CaLIF above base": 40,
        "IF-RLVR above base": 14,
        "CaLIF above IF-RLVR": 41,
    }


def test_a_cell_without_a_number_and_a_tie_are_not_above():
    cells = pd.DataFrame(
        [
            ("c", "base", "a", 1.0),
            ("c", "calif", "a", 2.0),
            ("c", "base", "b", 2.0),
            ("c", "calif", "b", 2.0),
            ("c", "base", "d", np.nan),
            ("c", "calif", "d", 9.0),
        ],
        columns=["configuration", "method", "metric", "value"],
    )
    counts = rubrics.cells_above(cells).set_index("comparison")
    assert counts.loc["CaLIF above base"].tolist() == [1, 2]
    assert counts.loc["IF-RLVR above base"].tolist() == [0, 0]


def test_the_papers_table_has_fifteen_rows_nine_metrics_and_its_marks():
    table = rubrics.marked_table(paper.exhibit("table1"))
    assert table.shape == (15, 9)
    # The marks as printed.
    column = table.loc["Qwen3-1.7B", "FollowBench: CSL (levels, 0 to 5)"]
    assert column["base"].strip("*<u>/") == "2.54 ± 0.06"
    marks = table.map(lambda cell: cell[:2])
    assert (marks == "**").groupby(level=0).sum().ge(1).all(axis=None)
    last = table.iloc[-1]
    assert last.name == ("Tulu 3 8B DPO", "CaLIF")
    assert "55.10 ± 0.40" in last["ComplexBench: Format (%)"]


def test_best_is_bold_second_underlined_and_a_gap_a_dash():
    rows = [("base", 1.0, NAN), ("if_rlvr", 3.0, 0.5), ("calif", NAN, NAN)]
    cells = pd.DataFrame(rows, columns=["method", "value", "std"])
    every = [cells.assign(metric=metric, configuration="mine") for metric in paper.RUBRIC_METRICS]
    column = rubrics.marked_table(pd.concat(every)).iloc[:, 0]
    assert column.tolist() == ["<u>1.00</u>", "**3.00 ± 0.50**", "-"]
