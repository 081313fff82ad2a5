"""Every vector of the rubric benchmarks' golden files, where that folder exists."""

import json

import pytest

from califkit.judges.parsing import Unparsable
from califkit.judges.prompts import Messages, user_turn
from califkit.judges.rubrics import AdvancedIF, ComplexBench, FollowBench, Verdict, judge_responses
from califkit.judges.rubrics import complexbench_rules as complex_rules
from califkit.judges.rubrics import followbench_rules as follow_rules
from califkit.judges.rubrics.advancedif import CifItem
from califkit.judges.rubrics.complexbench import DIMENSIONS, read_answer
from califkit.judges.rubrics.complexbench_data import to_item
from califkit.judges.rubrics.followbench_data import FollowItem
from califkit.judges.verdicts import read_answer as read_verdict

MESSAGES: Messages = user_turn("Do it.")
TOLERANCE = 1e-6


def golden(shared, name):
    return json.loads((shared / "rubric" / f"golden_{name}.json").read_text(encoding="utf-8"))


def close(expected):
    """`expected` with its numbers taken approximately, however deep they lie."""
    if isinstance(expected, dict):
        return {key: close(value) for key, value in expected.items()}
    if isinstance(expected, list):
        return [close(value) for value in expected]
    return pytest.approx(expected, abs=TOLERANCE) if isinstance(expected, float) else expected


def judge(benchmark, item, raw):
    """The verdict on the one unit of an item, from a judge's text."""
    if raw is None:
        return Verdict("missing")
    (question,) = benchmark.decide(item, "An answer.")
    return read_verdict(question, Verdict("ok", text=raw))


def test_advancedif_cases(shared):
    cases = golden(shared, "advancedif")["cases"]
    assert len(cases) == 38
    benchmark = AdvancedIF()
    for case in cases:
        rows = case["rows"]
        items = [CifItem(f"row-{i}", MESSAGES, tuple(r["rubrics"])) for i, r in enumerate(rows)]
        verdicts = [
            judge(benchmark, item, row["raw"]) for item, row in zip(items, rows, strict=True)
        ]
        by_unit = {item.id: verdict for item, verdict in zip(items, verdicts, strict=True)}
        scores = benchmark.score(items, by_unit)
        assert flat_advancedif(scores) == close(case["expected"]), case["name"]
        reference = dict(case["reference_as_released"])
        assert released_advancedif(scores) == close(reference), case["name"]
        per_row = [released_row(verdict) for verdict in verdicts]
        assert per_row == close(case["reference_per_row"]), case["name"]


def flat_advancedif(scores):
    counts = scores.counts
    return {
        "overall_pass_rate": scores.metrics["advancedif_overall_pass_rate"],
        "micro_rubric_pass_rate": scores.metrics["advancedif_micro_rubric_pass"],
        "n_rows": counts["n"],
        "n_rubrics": counts["n_criteria"],
        "rubrics_passed": counts["n_criteria_satisfied"],
    } | {
        key: counts[key]
        for key in ("n_rows_unjudged", "n_rubrics_without_verdict", "n_flag_disagrees")
    }


def released_advancedif(scores):
    released = dict(scores.released)
    return {
        "overall_pass_rate": released.pop("advancedif_overall_pass_rate"),
        "micro_rubric_pass_rate": released.pop("advancedif_micro_rubric_pass"),
        "n_rows": scores.counts["n"],
    } | released


def released_row(verdict):
    row = verdict.value.released if verdict.value else None
    if row is None:
        return {"judged": False, "satisfied": None, "rubric_level_pass_rate": None}
    return {"judged": True, "satisfied": row.flag, "rubric_level_pass_rate": row.rate}


def test_followbench_judge_texts(shared):
    vectors = golden(shared, "followbench")["judge_parse"]
    assert len(vectors) == 42
    for vector in vectors:
        item = FollowItem("style", 1, vector["level"], "s", ("x",), "")
        verdict = judge(FollowBench(), item, vector["raw"])
        holds = verdict.value or (False,)
        got = {"status": verdict.status, "hard": all(holds), "soft": sum(holds) / len(holds)}
        assert got == close(vector["expected"]), vector


def test_followbench_rules(shared):
    vectors = golden(shared, "followbench")["rule_checks"]
    assert len(vectors) == 231
    for vector in vectors:
        category = "format" if vector["source"] == "format" else "content"
        example_id = vector["example_id"] or 0
        assert follow_rules.is_rule_judged(category, vector["source"], example_id)
        got = follow_rules.follows(
            category,
            vector["source"],
            example_id,
            vector["level"],
            vector["target"] or "",
            vector["generation"],
        )
        assert got is vector["expected"], vector


def test_followbench_templates(shared):
    vectors = golden(shared, "followbench")["example_template_checks"]
    assert len(vectors) == 22
    for vector in vectors:
        got = follow_rules.matches_template(vector["target"], vector["generation"])
        assert got is vector["expected"], vector


def followbench_unit(category, group, level, cell):
    """An item and its verdict, from a cell of the golden file."""
    by_rule = group["mode"] != "llm"
    source = "E2E" if by_rule else "s"
    item = FollowItem(category, group["example_id"], level, source, ("x",), "")
    if by_rule:
        return item, Verdict("ok", (cell,))
    raw = cell["raw"] if isinstance(cell, dict) else cell if cell is None else repr(cell)
    return item, judge(FollowBench(), item, raw)


def test_followbench_cases(shared):
    cases = golden(shared, "followbench")["cases"]
    assert len(cases) == 40
    for case in cases:
        units = [
            followbench_unit(category, group, level, cell)
            for category, groups in case["input"].items()
            for group in groups
            for level, cell in enumerate(group["levels"], start=1)
        ]
        scores = FollowBench().score([i for i, _ in units], {i.id: v for i, v in units})
        got = {key: scores.details[key] for key in ("per_category", "macro", "micro")}
        got |= {key: scores.counts[key] for key in ("n_missing", "n_unparsable")}
        assert got == close(case["expected"]), case["name"]
        for key in ("hsr", "ssr", "csl"):
            assert scores.metrics[f"followbench_{key}"] == close(case["expected"]["macro"][key])
        released = scores.released
        reference = dict(case["reference_as_released"])
        assert released["level_weighted"] == close(reference.pop("_level_weighted", None))
        assert set(released["per_category"]) == set(reference)
        for category, printed in reference.items():
            if "error" in printed:
                assert printed["error"] in released["per_category"][category]["error"]
            else:
                assert released["per_category"][category] == printed, case["name"]


def test_complexbench_dimension_groups(shared):
    groups = golden(shared, "complexbench")["dimension_groups"]
    assert {name: list(dimensions) for name, dimensions in DIMENSIONS.items()} == groups


def test_complexbench_judge_texts(shared):
    vectors = golden(shared, "complexbench")["judge_parse"]
    assert len(vectors) == 18
    for vector in vectors:
        try:
            got = read_answer(vector["raw"])
        except Unparsable:
            got = False  # what the released parser makes of it
        assert got is vector["expected"], vector


def test_complexbench_rules(shared):
    vectors = golden(shared, "complexbench")["rule_checks"]
    assert len(vectors) == 117
    for vector in vectors:
        if vector["expected"] is None:
            with pytest.raises(ValueError, match="unknown rule"):
                complex_rules.parse_rules(vector["rule"])
            continue
        rules = complex_rules.parse_rules(vector["rule"])
        assert complex_rules.follows(rules, vector["segments"]) is vector["expected"], vector


def test_complexbench_extractions(shared):
    vectors = golden(shared, "complexbench")["extraction"]
    assert len(vectors) == 13
    for vector in vectors:
        got = complex_rules.read_spans(vector["extraction"], vector["response"])
        assert got == vector["expected"], vector


def complexbench_item(row):
    """An instance of the golden file, which has no texts."""
    questions = [{"question_en": "?"} | question for question in row["scoring_questions"]]
    return to_item(row | {"instruction_en": "Do.", "scoring_questions": questions}, "en", "golden")


def test_complexbench_cases(shared):
    cases = golden(shared, "complexbench")["cases"]
    assert len(cases) == 37
    for case in cases:
        items = [complexbench_item(row) for row in case["instances"]]
        verdicts = {
            f"{row['main_id']}/{i}": Verdict("ok", question["verdict"])
            for row in case["instances"]
            for i, question in enumerate(row["scoring_questions"])
            if question["verdict"] is not None
        }
        scores = ComplexBench().score(items, verdicts)
        after = scores.details["after_dependencies"]
        got = {name: scores.metrics[f"complexbench_{name}"] for name in DIMENSIONS} | {
            "drfr": scores.details["drfr"],
            "n_questions": scores.counts["n"],
            "n_by_dimension": {name: scores.counts[f"n_{name}"] for name in DIMENSIONS},
            "after_dependencies": [
                [after[f"{item.id}/{i}"] for i in range(len(item.questions))] for item in items
            ],
            "n_missing": scores.counts["n_missing"],
            "per_dimension": scores.details["per_dimension"],
        }
        assert got == close(case["expected"]), case["name"]
        if case["reference_as_released"] == "same values":
            assert scores.released == scores.metrics | {"drfr": got["drfr"]}
        else:
            assert scores.released == {"error": case["reference_as_released"]}


@pytest.mark.parametrize(
    ("benchmark", "path", "n"),
    [
        (AdvancedIF(), "advancedif/if_oss_synthetic.csv", 3),
        (FollowBench(), "followbench", 15),
        (ComplexBench("en"), "complexbench/data_sample.json", 1),
        (ComplexBench("zh"), "complexbench/data_synthetic.json", 3),
    ],
)
def test_samples_of_the_native_files_load(shared, benchmark, path, n):
    loaded = benchmark.load(shared / "rubric" / "data" / path)
    assert len(loaded.items) == n
    assert "do not compare with published ones" in loaded.warnings[0]
    responses = {item.id: "A response." for item in loaded.items}
    failed = Verdict("failed")
    judged = judge_responses(benchmark, loaded.items, responses, lambda q: [failed] * len(q))
    assert len(judged) == sum(len(benchmark.units(item)) for item in loaded.items)
