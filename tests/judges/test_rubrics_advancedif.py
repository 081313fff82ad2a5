"""AdvancedIF: the hub's CSV, judge texts, and where our numbers leave the released ones."""

import csv
import json
import subprocess
import sys

import pytest

from califkit.judges.parsing import Unparsable
from califkit.judges.prompts import user_turn
from califkit.judges.rubrics import AdvancedIF, RubricError, Verdict
from califkit.judges.rubrics.advancedif import CIF_NAMES, CifItem, read_answer
from califkit.judges.verdicts import read_answer as read_verdict

COLUMNS = ("conversation_history", "benchmark_name", "prompt_metadata")


def judged(item, text):
    (question,) = AdvancedIF().decide(item, "Hello.")
    return read_verdict(question, Verdict("ok", text=text))


def csv_row(turns=None, part=CIF_NAMES[0], rubrics=("Is it short?", "Is it kind?")):
    turns = [{"role": "user", "content": "Say hello."}] if turns is None else turns
    return [json.dumps(turns), part, json.dumps({"rubrics": json.dumps(rubrics)})]


def write(path, *rows, header=COLUMNS):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def released(flag="YES", **checks):
    return json.dumps({"rubrics_check": checks, "SATISFIED_ALL_REQUIREMENTS": flag})


def ours(*verdicts, **more):
    entries = [{"reason": "Seen.", "satisfied": verdict} for verdict in verdicts]
    return json.dumps({"criteria": entries} | more)


def test_both_spellings_of_the_part_are_taken_and_other_parts_are_not(tmp_path):
    other = csv_row(part="system_steerability_v2", turns=[{"role": "system", "content": "x"}])
    path = write(
        tmp_path / "a.csv", csv_row(), other, csv_row(part=CIF_NAMES[1], rubrics=["Is it?"])
    )
    first, second = AdvancedIF().load(path).items
    assert first == CifItem("row-1", user_turn("Say hello."), ("Is it short?", "Is it kind?"))
    assert (second.id, second.rubrics) == ("row-3", ("Is it?",))


def test_the_full_number_of_rows_gives_no_warning(tmp_path):
    path = write(tmp_path / "a.csv", *[csv_row()] * 402)
    assert AdvancedIF().load(path).warnings == ()
    (warning,) = AdvancedIF().load(write(tmp_path / "b.csv", *[csv_row()] * 401)).warnings
    assert "401 CIF rows where the full data have 402" in warning


def test_a_long_conversation_is_read_and_the_limit_of_the_process_stays(tmp_path):
    limit = csv.field_size_limit()
    long = "word " * 60_000
    path = write(tmp_path / "a.csv", csv_row(turns=[{"role": "user", "content": long}]))
    assert AdvancedIF().load(path).items[0].messages[0]["content"] == long
    assert csv.field_size_limit() == limit


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (csv_row(turns=[]), "row 2: field 'conversation_history' must hold one turn"),
        (csv_row(turns=[{"role": "user"}]), "row 2, conversation_history: field 'content' is miss"),
        (csv_row(turns=[{"role": "system", "content": "x"}]), "must be a user turn"),
        (csv_row(turns=[{"role": "user", "content": " "}]), "field 'content' is empty"),
        (csv_row(rubrics=[]), r"field 'rubrics' must be a list of texts, not \[\]"),
        (csv_row(rubrics=["", "b"]), "field 'rubrics' must be a list of texts"),
        (csv_row(rubrics="abc"), "field 'rubrics' must be a list of texts, not 'abc'"),
        (["[", CIF_NAMES[0], "{}"], r"field 'conversation_history' is not JSON: .*'\['"),
        ([csv_row()[0], CIF_NAMES[0], "{}"], "prompt_metadata: field 'rubrics' is missing"),
        ([csv_row()[0], CIF_NAMES[0], "[]"], "prompt_metadata: must be an object"),
        ([csv_row()[0], CIF_NAMES[0]], "row 2: has too few columns"),
    ],
)
def test_a_row_that_does_not_fit_is_named(tmp_path, row, message):
    path = write(tmp_path / "data.csv", csv_row(), row)
    with pytest.raises(RubricError, match=message) as caught:
        AdvancedIF().load(path)
    assert "data.csv, row 2" in str(caught.value)


def test_a_file_without_the_part_or_the_columns_is_refused(tmp_path):
    with pytest.raises(RubricError, match=r"no rows of complex_if.*\{'other': 2\}"):
        AdvancedIF().load(write(tmp_path / "a.csv", *[csv_row(part="other")] * 2))
    with pytest.raises(RubricError, match=r"columns \['prompt_metadata'\] are missing"):
        AdvancedIF().load(write(tmp_path / "b.csv", csv_row(), header=(*COLUMNS[:2], "x")))
    with pytest.raises(RubricError, match="nowhere.csv: cannot be read: No such file"):
        AdvancedIF().load(tmp_path / "nowhere.csv")
    (tmp_path / "c.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RubricError, match="not a CSV file in UTF-8"):
        AdvancedIF().load(tmp_path / "c.csv")


@pytest.mark.parametrize("name", ["facebook/AdvancedIF", "facebook/AdvancedIF@abc", "no name"])
def test_hub_data_that_cannot_be_had_are_a_clear_error(name):
    code = f"from califkit.judges.rubrics import AdvancedIF; AdvancedIF().load('hub:{name}')"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert f"RubricError: cannot get if_oss_full_data.csv of the data set '{name}'" in run.stderr


@pytest.mark.parametrize(
    ("text", "satisfied", "flag"),
    [
        (ours(True, False, all_satisfied=False), (True, False), False),
        (ours(True, True), (True, True), None),
        (f"First I look.\n```json\n{ours(True, False)}\n```\nDone.", (True, False), None),
        (f"<think>{ours(False, False)}</think>{ours(True, True)}", (True, True), None),
        (released(question_1="Yes", question_2="no"), (True, False), True),
        (released("no", question_1="Its eyes are blue", question_2="YES"), (True, True), False),
        (released(question_2="Yes"), (None, True), True),
        (released(question_1="yes", question_2="no", overall="no"), (True, False), True),
        (json.dumps({"rubrics_check": {"question_1": "yes"}}), (True, None), None),
    ],
)
def test_judge_texts_that_are_read(text, satisfied, flag):
    item = CifItem("row-1", user_turn("Say hello."), ("Is it short?", "Is it kind?"))
    verdict = judged(item, text)
    assert verdict.status == "ok"
    assert (verdict.value.satisfied, verdict.value.flag) == (satisfied, flag)


@pytest.mark.parametrize(
    "text",
    [
        "",
        f"The response says {ours(True, True)}. {ours(False, False)}",
        "Yes, all criteria are met.",
        ours(True),
        ours(True, True, True),
        json.dumps({"criteria": [{"satisfied": "true"}, {"satisfied": True}]}),
        json.dumps({"criteria": {"1": True, "2": True}}),
        json.dumps({"criteria": [True, True]}),
        ours(True, True)[:-3],
        released(question_1="yes", question_2=True),
        json.dumps({"SATISFIED_ALL_REQUIREMENTS": "YES"}),
        json.dumps({"rubrics_check": ["yes", "yes"]}),
        "null",
        "[true, true]",
        "<think>" + ours(True, True),
        '{"criteria":' * 3000,
    ],
)
def test_judge_texts_without_a_verdict(text):
    item = CifItem("row-1", user_turn("Say hello."), ("Is it short?", "Is it kind?"))
    assert judged(item, text).status == "unparsable"


def test_yes_counts_inside_words_too_as_released():
    text = released(question_1="Yesterday", question_2="No eyes", question_3="It is so: Yes.")
    assert read_answer(text, 3).satisfied == (True, True, True)


def test_the_released_numbers_follow_the_flag_and_the_criteria_that_were_answered():
    benchmark = AdvancedIF()
    items = [CifItem(f"row-{n}", user_turn("Hi."), ("A?", "B?")) for n in (1, 2, 3)]
    texts = [
        released("YES", question_1="yes"),  # one of two answered, flag yes
        released("NO", question_1="yes", question_2="yes"),  # all met, flag no
        f"Here: {released('YES', question_1='yes', question_2='yes')}",  # not JSON alone
    ]
    verdicts = {i.id: judged(i, text) for i, text in zip(items, texts, strict=True)}
    scores = benchmark.score(items, verdicts)
    assert scores.metrics["advancedif_overall_pass_rate"] == pytest.approx(100 * 2 / 3)
    assert scores.metrics["advancedif_micro_rubric_pass"] == pytest.approx(100 * 5 / 6)
    assert scores.counts["n_flag_disagrees"] == 2
    assert scores.counts["n_rubrics_without_verdict"] == 1
    assert scores.released["advancedif_overall_pass_rate"] == pytest.approx(100 * 1 / 3)
    assert scores.released["advancedif_micro_rubric_pass"] == pytest.approx(100.0)
    assert (scores.released["rubrics_counted"], scores.released["n_failed"]) == (3, 1)


@pytest.mark.parametrize(
    ("flag", "overall", "disagrees"),
    [("YES", "NO", 1), ("YES", "yes", 0), ("NO", "NO", 0), ("NO", "YES", 0)],
)
def test_a_flag_that_leaves_out_what_else_the_judge_answered_is_counted(flag, overall, disagrees):
    item = CifItem("row-1", user_turn("Hi."), tuple("ABCDEF"))
    six = {f"question_{n}": "Yes" for n in range(1, 7)}
    verdict = judged(item, released(flag, **six, overall=overall))
    scores = AdvancedIF().score([item], {"row-1": verdict})
    assert scores.counts["n_flag_disagrees_with_others"] == disagrees
    # Against the six criteria, all of which are met.
    assert scores.counts["n_flag_disagrees"] == (flag == "NO")
    assert scores.metrics["advancedif_overall_pass_rate"] == 100


def test_a_verdict_of_the_wrong_length_is_refused():
    item = CifItem("row-1", user_turn("Hi."), ("A?", "B?"))
    other = CifItem("row-1", user_turn("Hi."), ("A?",))
    verdict = judged(other, ours(True))
    with pytest.raises(RubricError, match="row-1: 1 verdicts, 2 criteria"):
        AdvancedIF().score([item], {"row-1": verdict})


def test_an_unreadable_answer_says_why():
    with pytest.raises(Unparsable, match="'criteria' must be a list of 2 entries"):
        read_answer(ours(True), 2)
