"""FollowBench: native files, rules, judge texts, groups."""

import json
import time

import pytest

from califkit.judges.rubrics import FollowBench, RubricError, Verdict
from califkit.judges.rubrics.followbench_data import FollowItem
from califkit.judges.rubrics.followbench_rules import follows, is_rule_judged, matches_template
from califkit.judges.verdicts import read_answer


def record(level, **changes):
    row = {"example_id": 7, "category": "style", "source": "own", "level": level}
    return row | {"instruction": f"Write, step {level}.", "target": ""} | changes


def write(folder, records, category="style"):
    path = folder / f"{category}_constraints.json"
    path.write_text(json.dumps(records), encoding="utf-8")
    return path


def group(**changes):
    return [record(level, **changes) for level in range(6)]


def test_items_have_the_levels_one_to_five_and_the_history_up_to_their_own(tmp_path):
    write(tmp_path, group()[::-1])
    items = FollowBench().load(tmp_path).items
    assert [item.id for item in items] == [f"style/7/{level}" for level in range(1, 6)]
    assert items[1].history == ("Write, step 0.", "Write, step 1.", "Write, step 2.")
    assert items[1].messages == ({"role": "user", "content": "Write, step 2."},)


def test_the_file_and_not_the_field_is_the_category(tmp_path):
    path = write(tmp_path, group(category="style, format"), "mixed")
    assert {item.category for item in FollowBench().load(path).items} == {"mixed"}


def test_level_0_may_be_absent_or_empty(tmp_path):
    path = write(tmp_path, group()[1:])
    assert FollowBench().load(path).items[0].history == ("Write, step 1.",)
    path = write(tmp_path, [record(0, instruction=""), *group()[1:]])
    item = FollowBench().load(path).items[0]
    (question,) = FollowBench().decide(item, "Draft.")
    content = question.messages[0]["content"]
    assert "(no instruction yet)" in content
    assert content.index("step 0") < content.index("step 1") < content.index("Draft.")


def test_the_full_numbers_give_no_warning(tmp_path):
    groups = [record(level, example_id=n) for n in range(124) for level in range(6)]
    write(tmp_path, groups)
    example = [record(level, example_id=n) for n in range(40) for level in range(1, 6)]
    write(tmp_path, example, "example")
    loaded = FollowBench().load(tmp_path)
    assert (len(loaded.items), loaded.warnings) == (820, ())
    write(tmp_path, groups[6:])
    (warning,) = FollowBench().load(tmp_path).warnings
    assert "938 records and 815 items of level 1 to 5" in warning


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ({}, "must be a list"),
        ([], "must be a list"),
        ([5], "record 1: must be an object, not 5"),
        ([record("1")], "record 1: field 'level' must be int, not '1'"),
        ([record(True)], "record 1: field 'level' must be int, not True"),
        ([record(6)], "record 1: field 'level' must be 0 to 5, not 6"),
        ([record(1, target=None)], "record 1: field 'target' must be str, not None"),
        ([record(1, instruction=" ")], "record 1: field 'instruction' is empty"),
        ([{"level": 1}], "record 1: field 'example_id' is missing"),
        ([*group(), record(3)], "example_id 7: field 'level' has 3 twice"),
        (group()[:-1], r"example_id 7: the levels \[5\] are missing"),
        (group(source="CONLL2003", target="f()"), "level 1: field 'target': .*f\\(\\)"),
        (group(source="CONLL2003", target="['a', 3]"), "no Python list of texts"),
    ],
)
def test_a_record_that_does_not_fit_is_named(tmp_path, records, message):
    with pytest.raises(RubricError, match=message) as caught:
        FollowBench().load(write(tmp_path, records))
    assert "style_constraints.json" in str(caught.value)


def test_a_source_without_native_files_is_refused(tmp_path):
    with pytest.raises(RubricError, match="no file content_constraints.json or"):
        FollowBench().load(tmp_path)
    for broken in ("[", "[" * 100_000):
        (tmp_path / "style_constraints.json").write_text(broken, encoding="utf-8")
        with pytest.raises(RubricError, match="style_constraints.json: not JSON"):
            FollowBench().load(tmp_path)


@pytest.mark.parametrize(
    ("category", "source", "example_id", "by_rule"),
    [
        ("example", "anything", 1, True),
        ("content", "E2E", 1, True),
        ("mixed", "xsum", 1, True),
        ("format", "own", 22, True),
        ("format", "own", 30, True),
        ("style", "own", 22, False),
        ("format", "own", 23, False),
    ],
)
def test_who_judges(category, source, example_id, by_rule):
    assert is_rule_judged(category, source, example_id) is by_rule


FOUR = "Potter sold well. The actor wrote it. Now films have made money."


@pytest.mark.parametrize(
    ("source", "level", "target", "response", "expected"),
    [
        ("E2E", 1, "name[Oak]", "name[Oak]", True),
        ("E2E", 1, "name[Oak]", "name[Oak]\n", False),
        ("text_editing", 1, "a", "A", False),
        ("WIKIEVENTS", 1, "a\nb", "b", True),
        ("WIKIEVENTS", 1, "a\nb", "b\nc", False),
        ("WIKIEVENTS", 1, "a\n\nb", "", True),
        ("WIKIEVENTS", 1, "a\nb", "", False),
        ("CONLL2003", 1, "['Oslo', 'Rome']", "Rome", True),
        ("CONLL2003", 1, "['Oslo', 'Rome']", "Oslo, Rome", False),
        ("self_made_space", 1, "left", "It is left of it.", True),
        ("self_made_space", 1, "left", "Left", False),
        ("BBH_logical", 1, "(B)", "Not (A) but (B).", True),
        ("BBH_logical", 1, "(B)", "(B), not (A)", False),
        ("BBH_logical", 1, "(B)", "B", False),
        ("BBH_time", 1, "02/03/2001", "First 01/01/2000, so 02/03/2001.", True),
        ("BBH_time", 1, "02/03/2001", "2/3/2001", False),
        ("gsm_8k", 1, "$14", "$3 and $11 make $14.50", True),
        ("gsm_8k", 1, "$14", "14", False),
        ("cnn_dailymail", 5, "", FOUR, True),
        ("cnn_dailymail", 3, "", FOUR.replace("Potter", "potter"), False),
        ("cnn_dailymail", 3, "", FOUR.replace("films", "filmstrips"), False),
        ("cnn_dailymail", 4, "", FOUR.replace("actor", "lavish actor"), False),
        ("cnn_dailymail", 5, "", FOUR.replace("have made", "made"), False),
        ("cnn_dailymail", 1, "", FOUR + " ", False),
        ("xsum", 5, "", "The operation is helping.", True),
        ("xsum", 4, "", "The operation is helpful.", False),
        ("xsum", 5, "", "Operations are helping.", False),
        ("xsum", 2, "", "a " * 18 + "b", True),
        ("xsum", 2, "", "a " * 19 + "b", False),
        ("samsum", 5, "", "Kim has stuff to do.", True),
        ("samsum", 5, "", "Kim, too, has stuff to do.", False),
        ("samsum", 4, "", "Stuff and stuff for Procrastinators.", False),
        ("gigaword", 5, "", "two boats sank in a storm last night", True),
        ("gigaword", 1, "", "two boats sank in a storm  last night", False),
        ("gigaword", 3, "", "Two boats sank in a storm last night", False),
        ("gigaword", 4, "", "two boats sank in a bus last night", False),
        ("arxiv", 5, "", "We study activations.", True),
        ("arxiv", 3, "", "we study activations.", False),
        ("arxiv", 5, "", "We study activations of a transformer.", False),
    ],
)
def test_rules_of_the_sources(source, level, target, response, expected):
    assert follows("content", source, 1, level, target, response) is expected


LONG = " ".join(["word"] * 21)
PARAGRAPHS = "\n\n".join([f"{LONG}."] * 3)


@pytest.mark.parametrize(
    ("level", "response", "expected"),
    [
        (1, PARAGRAPHS, True),
        (1, PARAGRAPHS + "\n\nMore.", False),
        (2, PARAGRAPHS + " One. Two.", False),
        (3, PARAGRAPHS, True),
        (3, PARAGRAPHS.replace("word word", "word", 1), False),
        (4, PARAGRAPHS, False),
        (5, PARAGRAPHS + "\n\nThose are suggestions", False),
    ],
)
def test_format_group_22(level, response, expected):
    assert follows("format", "own", 22, level, "", response) is expected


def test_format_group_22_cannot_pass_from_level_4_because_a_number_is_a_sentence():
    numbered = "\n\n".join(f"{n}. {LONG}" for n in (1, 2, 3))
    assert follows("format", "own", 22, 2, "", numbered)
    assert not follows("format", "own", 22, 4, "", numbered)


POINTS = "\n".join(f"**{n}) Idea: take a short walk to the far end of town." for n in range(1, 6))


@pytest.mark.parametrize(
    ("level", "response", "expected"),
    [
        (1, "**", True),
        (1, "*", False),
        (2, POINTS, True),
        (2, POINTS.replace("**5", "5"), False),
        (2, POINTS + " **6) More:", False),
        (4, POINTS, True),
        (4, POINTS + " Too short.", False),
        (4, POINTS.replace("a short", "a very very very very short"), False),
        (5, POINTS, True),
        (5, POINTS.replace("far", "far-ly"), False),
        (5, POINTS.replace("far", "early"), True),
        (3, POINTS.replace("1) Idea: take", "1) Idea: 1.2.3 take"), False),
        (4, POINTS.replace("a short walk", "Mr. Ox"), True),  # no cut after the abbreviation
    ],
)
def test_format_group_30(level, response, expected):
    assert follows("format", "own", 30, level, "", response) is expected


@pytest.mark.parametrize(
    ("target", "response", "expected"),
    [
        ("{instruction}\nREPLY: {answer}", "REPLY: a (b) c", True),
        ("{instruction}\nREPLY: {answer}", "REPLY: a\nb", False),
        ("{instruction}\nREPLY: {answer}", "A REPLY: a", False),
        ("{instruction}\n{{'a': '{answer}'}}", "{'a': 'b'}", True),
        ("{instruction}\n{{{answer}}}", "{b}", True),
        ("{instruction}\n(.*) {answer}", "xy z", False),
        ("{instruction}\n{answer}|{answer}", "a|b", True),
    ],
)
def test_templates_of_the_examples(target, response, expected):
    assert matches_template(target, response) is expected


def test_rules_are_quick_on_one_repeated_character():
    for character in ("*", "**1", ".", " ", "$1", "(A", "e.g. "):
        text = character * (100_000 // len(character))
        for category, source, group in (("format", "own", 22), ("format", "own", 30)):
            started = time.perf_counter()
            follows(category, source, group, 5, "", text)
            assert time.perf_counter() - started < 2


def ask(level, text):
    item = FollowItem("style", 1, level, "own", ("x",), "")
    (question,) = FollowBench().decide(item, "Draft.")
    return read_answer(question, Verdict("ok", text=text))


@pytest.mark.parametrize(
    ("level", "text", "value"),
    [
        (1, '{"reason": "NO doubt", "verdicts": ["YES"]}', (True,)),
        (2, '{"verdicts": ["YES", "NO"], "reason": "["}', (True, False)),
        (1, "So: YES", (True,)),
        (1, "NO", (False,)),
        (1, "UNKNOWN", (False,)),
        (3, "Well.\n```['YES', \"NO\", 'MAYBE',]```", (True, False, False)),
        (2, "<think>['NO', 'NO']</think>['YES', 'YES']", (True, True)),
    ],
)
def test_judge_texts_that_are_read(level, text, value):
    verdict = ask(level, text)
    assert (verdict.status, verdict.value) == ("ok", value)


@pytest.mark.parametrize(
    ("level", "text"),
    [
        (1, '{"reason": "YES", "verdicts": []}'),
        (2, 'I quote {"verdicts": ["YES", "YES"]}: {"verdicts": ["NO", "NO"]}'),
        (1, '{"reason": "YES, it does", "verd'),
        (1, '{"answer": "YES"}'),
        (1, 'Here: {"verdicts": ["YES"'),
        (1, '{"verdicts": ["yes"]}'),
        (2, '{"verdicts": "YES, YES"}'),
        (2, '{"verdicts": [true, true]}'),
        (1, "yes"),
        (2, "YES YES"),
        (2, "[print('YES'), 'YES']"),
        (2, "['YES'] + ['YES']"),
        (2, "[" * 600 + "]" * 600),
        (2, "[" + "-" * 900 + "1]"),
        (2, "['YES', 'YES'" + " " * 2000 + "]"),
        (2, ""),
    ],
)
def test_judge_texts_without_a_verdict(level, text):
    assert ask(level, text).status == "unparsable"


def test_a_group_without_all_its_levels_cannot_be_scored():
    items = FollowBench().load().items
    with pytest.raises(RubricError, match=r"style/1 has the levels \[2, 3, 4, 5\]"):
        FollowBench().score([item for item in items if item.id != "style/1/1"], {})


def test_a_verdict_of_the_wrong_length_is_refused():
    items = FollowBench().load().items
    with pytest.raises(RubricError, match="style/1/3: the verdict must have 3 booleans"):
        FollowBench().score(items, {"style/1/3": Verdict("ok", (True,))})


def test_categories_weigh_the_same_however_many_groups_they_have():
    items = [
        FollowItem(category, n, level, "E2E", ("x",), "a")
        for category, n in (("content", 1), ("content", 2), ("content", 3), ("mixed", 1))
        for level in range(1, 6)
    ]
    verdicts = {item.id: Verdict("ok", (item.category == "mixed",)) for item in items}
    scores = FollowBench().score(items, verdicts)
    assert scores.metrics["followbench_hsr"] == pytest.approx(50)
    assert scores.metrics["followbench_csl"] == pytest.approx(2.5)
    assert scores.details["micro"] == pytest.approx({"hsr": 25, "ssr": 25, "csl": 1.25})
