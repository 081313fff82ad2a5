"""ComplexBench: the native file, the rule language, extractions, judge texts, dependencies."""

import json

import pytest

from califkit.judges.parsing import Unparsable
from califkit.judges.rubrics import ComplexBench, RubricError, Verdict
from califkit.judges.rubrics.complexbench import RESPONSE_CHARACTERS
from califkit.judges.rubrics.complexbench_data import ComplexItem, ScoringQuestion
from califkit.judges.rubrics.complexbench_rules import follows, parse_rules, read_spans
from califkit.judges.verdicts import read_answer


def question(position=0, **changes):
    row = {"point_id": position, "question": "好吗？", "question_en": "Is it good?", "rule": None}
    return row | {"constraint_dimensions": ["Topic"], "composition_types": [], "dep": []} | changes


def instance(main_id=0, *questions, **changes):
    row = {"main_id": main_id, "instruction": "写。", "instruction_en": "Write."}
    row |= {"task_types": "Writing", "category": "And_1"}
    return row | {"scoring_questions": list(questions) or [question()]} | changes


def write(folder, rows):
    path = folder / "data.json"
    path.write_text(json.dumps(rows), encoding="utf-8")
    return path


def test_the_language_chooses_instruction_and_questions(tmp_path):
    path = write(tmp_path, [instance()])
    (english,), (chinese,) = ComplexBench().load(path).items, ComplexBench("zh").load(path).items
    assert (english.instruction, english.questions[0].text) == ("Write.", "Is it good?")
    assert (chinese.instruction, chinese.questions[0].text) == ("写。", "好吗？")
    assert chinese.messages == ({"role": "user", "content": "写。"},)
    assert ComplexBench().load(path).sha256 != ComplexBench("zh").load(path).sha256
    with pytest.raises(RubricError, match="language 'de' must be 'en' or 'zh'"):
        ComplexBench("de")


def test_the_full_numbers_give_no_warning(tmp_path):
    sizes = {"Keywords": 467, "Sentiment": 733, "Template": 954}
    names = [name for name, n in sizes.items() for _ in range(n)]
    asked = [question(i, constraint_dimensions=[name]) for i, name in enumerate(names)]
    rows = [instance(0, *asked)]
    rows += [instance(i, question(constraint_dimensions=["Factuality"])) for i in range(1, 1150)]
    assert ComplexBench().load(write(tmp_path, rows)).warnings == ()
    rows[5]["scoring_questions"][0]["constraint_dimensions"] = ["Topic"]
    (warning,) = ComplexBench().load(write(tmp_path, rows)).warnings
    assert "lexical 467, semantic 734, format 954" in warning


def test_instances_away_from_their_position_are_mentioned(tmp_path):
    loaded = ComplexBench().load(write(tmp_path, [instance(1), instance(0)]))
    assert "2 instances do not stand at the position" in loaded.warnings[1]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({}, "must be a list"),
        ([instance(0), instance(0)], "field 'main_id' has 0 twice"),
        ([instance("0")], "instance 0: field 'main_id' must be int, not '0'"),
        ([instance(3, instruction_en=" ")], "main_id 3: field 'instruction_en' is empty"),
        ([instance(3, scoring_questions=[])], "field 'scoring_questions' is empty"),
        ([instance(3, question(2))], "question 0: field 'point_id' is 2, not the position 0"),
        ([instance(3, question(dep=[1]))], r"field 'dep' must hold positions .*\[1\]"),
        ([instance(3, question(dep=[0]))], r"field 'dep' must hold positions of other"),
        ([instance(3, question(constraint_dimensions=[1]))], "'constraint_dimensions' must be"),
        ([instance(3, question(rule="odd:[1]"))], "field 'rule': unknown rule 'odd:\\[1\\]'"),
        ([instance(3, question(rule="length:[a]"))], "does not begin with two numbers"),
        ([instance(3, question(rule="keyword:x"))], "'x' is not a list in square brackets"),
        ([instance(3, question(rule="startswith:"))], "rule startswith: has no text"),
        ([instance(3, question(rule="keyword:[]"))], "lists no words"),
        ([instance(3, question(rule=5))], "field 'rule' must be str, not 5"),
    ],
)
def test_an_instance_that_does_not_fit_is_named(tmp_path, rows, message):
    with pytest.raises(RubricError, match=message) as caught:
        ComplexBench().load(write(tmp_path, rows))
    assert "data.json" in str(caught.value)


@pytest.mark.parametrize(
    ("rule", "spans", "expected"),
    [
        ("keyword:[tea,milk]", ["milk and tea"], True),
        ("keyword:[tea,milk]", ["milk"], False),
        ("keyword:[Hm!]", ["Hm！"], True),  # pattern and text are mapped
        ("model_keyword:[Hm!]", ["Hm!"], False),  # only the pattern is
        ("model_keyword:[Hm!]", ["Hm！"], True),
        ("model_keyword_each:[Hm!]", ["Hm!", "Hm！"], True),
        ("model_forbidden_word:[Hm!]", ["Hm!"], True),
        ("model_forbidden_word_each:[Hm!]", ["Hm!"], False),
        ("model_keyword_num:[2,3,a,b,a]", ["aaa"], False),
        ("model_keyword_num:[2,3,a,b,a]", ["ab"], True),
        ("forbidden_word:[None]", ["None"], True),  # reads as absent
        ("keyword:[one]", ["None, one"], False),
        ("keyword:[x]", ["", "x"], False),
        ("model_length_each:[2,3]", ["", "ab", "abc"], True),
        ("model_length_each:[2,3]", ["", ""], False),
        ("length:[3,3]", ['"abc"'], True),
        ("length:[5,5]", ['"abc"'], True),
        ("model_length:[5,5]", ['"abc"'], False),
        ("length_word:[2,2]", [" two  words "], True),
        ("match:Yes", ["Yes."], True),
        ("match:Yes", ["Yes"], True),
        ("match:Yes", ["yes"], False),
        ("match:A.B", ["A.B"], True),
        ("match:好的", ["`好的`"], True),
        ("match:好的", ["``好的。``"], True),
        ("match:好的", ["＂好的＂"], True),
        ("match:好的", ["`好`"], False),
        ("endswith:end", ["the end?"], True),
        ("endswith:end", ["the end!"], False),
        ("not endswith:end", ["the end?"], False),
        ("model_not_startswith:a", [], True),
        ("model_startswith:a", [], False),
        ("startswith:a\nendswith:z", ["a to z."], True),
        ("startswith:a\nendswith:z", ["b to z."], False),
        ("keyword:[a]\nforbidden_word:[b]", ["a"], True),
        ("keyword:[a]\nforbidden_word:[b]", ["a b"], False),
        ("match:one\ntwo", ["one\ntwo"], True),
        ("model_starts_with_list_each:[a,b]", ["ax", "bx"], True),
        ("model_starts_with_list_each:[a,b]", ["ax", "bx", "cx"], False),
        ("model_endswith_each:;", ["x;", "y"], True),
        ("model_endswith_each:;", ["y"], False),
        ("model_number_each:[1,2]", ["x"], True),
        ("model_number_each:[0,2]", [], False),
        ('Json:["a","b"]', ['Here {"b": 1, "a": {"c": "}"}} done'], True),
        ('Json:["a"]', ['{"a": 1} {"b": 2}'], True),
        ('Json:["a"]', ["{'a': 1}"], False),
        ('Json:["a"]', ['{"a": 1'], False),
        ('Json:[""]', ['{"q": [1]}'], True),
        ("constraint_punc:[。]", ["One. Two。"], True),
        ("constraint_punc:[。]", ["One? Two."], False),
        ("constraint_punc:[。]", ["One – two."], False),
    ],
)
def test_rules(rule, spans, expected):
    assert follows(parse_rules(rule), spans) is expected


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ('{"scope": "all", "spans": []}', ["The whole."]),
        ('{"scope": "none", "spans": []}', []),
        ('{"scope": "spans", "spans": [" a ", "None||b"]}', ["a", "None||b"]),
        ('Sure. ```json\n{"scope": "spans", "spans": ["{\\"x\\": 1}"]}\n```', ['{"x": 1}']),
        ("评分对象：第一||第二", ["第一", "第二"]),
        ('评分对象：{"x": 1}', ['{"x": 1}']),
        ("all of it", ["The whole."]),
    ],
)
def test_extractions_that_are_read(text, spans):
    assert read_spans(text, "The whole.") == spans


@pytest.mark.parametrize(
    "text",
    [
        '{"scope": "some", "spans": ["a"]}',
        '{"scope": "spans", "spans": []}',
        '{"scope": "spans", "spans": [1]}',
        '{"scope": "spans", "spans": ["a"',
        '{"spans": ["a"]}',
    ],
)
def test_extractions_without_spans_are_unreadable(text):
    with pytest.raises(Unparsable):
        read_spans(text, "The whole.")


def item(*rows):
    questions = [
        ScoringQuestion("Q?", rules and parse_rules(rules), dimensions, (), dep)
        for rules, dimensions, dep in rows
    ]
    return ComplexItem("4", "Write.", "Writing", "And_1", tuple(questions))


def judged(question, text):
    return read_answer(question, Verdict("ok", text=text))


def test_a_failed_extraction_is_no_verdict_even_where_a_rule_holds_for_nothing():
    asked = item(("forbidden_word:[rain]", ("Keywords",), ()))
    (question,) = ComplexBench().decide(asked, "Sun.")
    assert judged(question, '{"scope": "none", "spans": []}').value is True
    verdict = judged(question, "{")
    assert (verdict.status, verdict.value) == ("unparsable", None)


def test_a_rule_sees_the_whole_response_and_a_judge_its_beginning():
    asked = item(("length:[5000,5000]", ("Length",), ()), (None, ("Topic",), ()))
    answer = "x" * 5000
    questions = ComplexBench().decide(asked, answer)
    assert judged(questions[0], '{"scope": "all", "spans": []}').value is True
    for question in questions:
        content = question.messages[0]["content"]
        assert "x" * RESPONSE_CHARACTERS in content
        assert "x" * (RESPONSE_CHARACTERS + 1) not in content


def test_only_rules_for_each_span_ask_for_several():
    asked = item(("model_length_each:[1,2]", (), ()), ("model_length:[1,2]", (), ()))
    each, one = (q.messages[0]["content"] for q in ComplexBench().decide(asked, "x"))
    assert "each object that it asks about" in each
    assert "the one part that it asks about" in one


@pytest.mark.parametrize(
    ("text", "status", "value"),
    [
        ('{"analysis": "No.", "answer": true}', "ok", True),
        ('{"answer": false} ', "ok", False),
        ('It says {"answer": true}. {"analysis": "x", "answer": false}', "unparsable", None),
        ("<think>是</think>答案：否", "ok", False),
        ("是否可以？答案：是", "ok", True),
        ("否", "ok", False),
        ('{"answer": "yes"}', "unparsable", None),
        ('{"analysis": "it has {"answer": true}", "answer": false}', "unparsable", None),
        ('{"analysis": "是', "unparsable", None),
        ("Yes", "unparsable", None),
        ("是或否", "unparsable", None),
        ("", "unparsable", None),
    ],
)
def test_judge_texts(text, status, value):
    (question,) = ComplexBench().decide(item((None, (), ())), "x")
    verdict = judged(question, text)
    assert (verdict.status, verdict.value) == (status, value)


def test_a_failure_does_not_travel_along_a_chain():
    asked = item((None, ("Topic",), ()), (None, ("Length",), (0,)), (None, ("Keywords",), (1,)))
    raw = [False, True, True]
    verdicts = {f"4/{n}": Verdict("ok", value) for n, value in enumerate(raw)}
    scores = ComplexBench().score([asked], verdicts)
    assert scores.details["after_dependencies"] == {"4/0": False, "4/1": False, "4/2": True}
    assert scores.metrics["complexbench_utility"] is None


def test_a_question_counts_once_for_each_of_its_dimensions():
    asked = item((None, ("Topic", "Sentiment", "Length"), ()), (None, ("Topic",), ()))
    verdicts = {"4/0": Verdict("ok", True), "4/1": Verdict("ok", False)}
    scores = ComplexBench().score([asked], verdicts)
    assert scores.metrics["complexbench_semantic"] == pytest.approx(100 * 2 / 3)
    assert scores.metrics["complexbench_format"] == pytest.approx(100)
    assert scores.details["per_dimension"]["Topic"] == pytest.approx(50)


def test_a_verdict_that_is_no_boolean_is_refused():
    with pytest.raises(RubricError, match="4/0: the verdict must be a boolean, not 1"):
        ComplexBench().score([item((None, ("Topic",), ()))], {"4/0": Verdict("ok", 1)})
