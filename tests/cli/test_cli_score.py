"""Scoring a file of responses offline: ``califkit score`` and the modules behind it."""

from dataclasses import replace
from pathlib import Path

import pytest
from helpers import ids_of, read_rows, whole_logits, write_rows

from califkit.anchors.region import zones
from califkit.data.load import DataError, load_ifbench_wheel
from califkit.data.rows import constraints_json
from califkit.evaluation import score_files
from califkit.evaluation.response_files import Responses, answered, open_responses
from califkit.evaluation.score_files import Settings, score_file
from califkit.models.reasoning import answer_text
from califkit.verifiers import Constraint

NO_COMMA = constraints_json([Constraint("punctuation:no_comma")])
SETTINGS = Settings("tiny-random-llama")


def opened(path: Path, constraints: object = None) -> Responses:
    return open_responses(path, constraints, scoring=True)


def scored(tmp_path, rows, constraints=None, settings=SETTINGS) -> list[dict]:
    path = write_rows(tmp_path / "responses.jsonl", *rows)
    output = tmp_path / "scores.jsonl"
    score_file(opened(path, constraints), output, settings)
    return read_rows(output)


# --- the numbers ----------------------------------------------------------------------------------
def test_l_is_that_of_the_whole_logits_given_the_request_alone(tiny, tmp_path):
    generated = tiny.tokenizer("Rain falls on it", add_special_tokens=False)["input_ids"]
    rows = [
        {"request": "Describe the sea.", "response": "It is blue and wide."},
        {"request": "Describe tea.", "response": "Green.", "prompt": "Describe tea. No comma."},
        # Generated ids count as they are: no end-of-turn token is added to them.
        {"request": "Describe rain.", "response": "Rain falls on it", "token_ids": generated},
        {"request": "Describe ice.", "response": "Cold and", "finish_reason": "length"},
        {"request": "Describe fog.", "response": " \n"},
    ]
    result = scored(tmp_path, rows)
    expected = [
        whole_logits(tiny, "Describe the sea.", ids_of(tiny, "It is blue and wide.")),
        whole_logits(tiny, "Describe tea.", ids_of(tiny, "Green.")),
        whole_logits(tiny, "Describe rain.", generated),
        whole_logits(tiny, "Describe ice.", ids_of(tiny, "Cold and", end=False)),
    ]
    assert [row["loglik"] for row in result[:4]] == pytest.approx(expected, abs=1e-5)
    assert result[4]["loglik"] is None
    assert [row["line"] for row in result] == [1, 2, 3, 4, 5]
    assert [row["ids_from"] for row in result] == ["text", "text", "file", "text", "text"]
    assert {row["request_source"] for row in result} == {"column"}
    assert {row["r_ver"] for row in result} == {None}, "no constraints are known"


def test_without_end_of_turn_token(tiny, tmp_path):
    rows = [{"request": "Describe the sea.", "response": "It is blue."}]
    [row] = scored(tmp_path, rows, settings=Settings("tiny-random-llama", end=False))
    expected = whole_logits(tiny, "Describe the sea.", ids_of(tiny, "It is blue.", end=False))
    assert row["loglik"] == pytest.approx(expected, abs=1e-5)


def test_tokens_and_repetition_do_not_count_the_end_of_turn(tiny, tmp_path):
    [sea] = tiny.tokenizer(" sea", add_special_tokens=False)["input_ids"]
    text = " sea sea sea sea"
    rows = [
        {"request": "Say sea.", "response": text},
        {"request": "Say sea.", "response": text, "token_ids": [sea] * 4},
        {"request": "Say sea.", "response": text, "token_ids": [sea] * 4 + ids_of(tiny, "")},
    ]
    for row in scored(tmp_path, rows):
        assert row["tokens"] == 4
        assert row["distinct_2"] == pytest.approx(1 / 3), "one of three pairs is new"


def test_zone_and_reward_where_bounds_and_constraints_are_known(tiny, tmp_path):
    text, request = "Blue and wide.", "Describe the sea."
    l = whole_logits(tiny, request, ids_of(tiny, text))  # noqa: E741
    row = {"request": request, "response": text, "constraints": NO_COMMA}
    rows = [
        row | {"l0": l - 1, "l1": l + 1},
        row | {"l0": l + 1, "l1": l + 2},
        row | {"l0": l - 2, "l1": l - 1},
        row | {"l0": l + 2, "l1": l + 1},
        row | {"l0": None, "l1": l + 1},
        row,
        {"request": request, "response": text, "l0": l - 1, "l1": l + 1},
        row | {"response": "Blue, wide.", "l0": -50.0, "l1": 0.0},
    ]
    result = scored(tmp_path, rows, settings=Settings("tiny-random-llama", alpha=0.25))
    assert [r["zone"] for r in result] == [
        "inside",
        "below",
        "above",
        "reversed",
        None,
        None,
        "inside",
        "inside",
    ]
    # r_ver = 1; inside + alpha, above 0, reversed and l <= l1 as r_ver; nothing followed, nothing.
    assert [r["reward"] for r in result] == [1.25, 1.0, 0.0, 1.0, None, None, None, 0.0]
    assert [r["r_ver"] for r in result] == [1, 1, 1, 1, 1, 1, None, 0]


def test_reasoning_is_neither_scored_nor_verified(tiny, tmp_path):
    text = "<think>blue, wide</think>Blue."
    ids = ids_of(tiny, text)
    rows = [
        {"request": "Describe the sea.", "response": text, "constraints": NO_COMMA},
        {"request": "Describe the sea.", "response": text, "token_ids": ids},
        {"request": "Describe the sea.", "response": "<think>blue", "constraints": NO_COMMA},
    ]
    first, second, third = scored(tmp_path, rows)
    expected = whole_logits(tiny, "Describe the sea.", ids_of(tiny, "Blue."))
    assert first["loglik"] == pytest.approx(expected, abs=1e-5)
    assert first["r_ver"] == 1.0
    assert second["tokens"] < len(ids) - 1
    assert (third["loglik"], third["r_ver"]) == (None, 0.0)


def test_what_follows_the_end_of_turn_is_neither_scored_nor_counted(tiny, tmp_path):
    end = tiny.tokenizer.eos_token_id
    ids = ids_of(tiny, "Hello there")
    row = {"request": "Say hello.", "response": "Hello there"}
    rows = [row, *(row | {"token_ids": [*ids, *more]} for more in ([], [end] * 3, [end, 57, 963]))]
    expected = whole_logits(tiny, "Say hello.", ids)
    for found in scored(tmp_path, rows):
        assert found["loglik"] == pytest.approx(expected, abs=1e-5)
        assert found["tokens"] == len(ids) - 1


@pytest.mark.parametrize(
    ("response", "plain", "thinking"),
    [
        (" Blue.", " Blue.", ""),
        ("a</think> Blue.", "a</think> Blue.", "Blue."),
        ("<think>a", "", ""),
        ("<think>a</think>b<think>c", "", ""),
    ],
)
def test_the_answer_in_a_text(response, plain, thinking):
    assert answer_text(response, thinking=False) == plain
    assert answer_text(response, thinking=True) == thinking


# --- where request and constraints come from ------------------------------------------------------
def test_a_benchmark_row_is_cut_into_request_and_constraints(tiny, tmp_path):
    instances = [i for i in load_ifbench_wheel().instances if not i.request_is_flagged][:2]
    rows = [{"prompt": i.prompt, "response": f"Answer {n}."} for n, i in enumerate(instances)]
    path = write_rows(tmp_path / "responses.jsonl", *rows)
    found = {row.line: row for row in opened(path)}
    for line, instance in enumerate(instances, start=1):
        assert found[line].request == instance.request != instance.prompt
        assert found[line].request_source == "split"
        assert found[line].constraints == instance.constraints
        assert found[line].response == f"Answer {line - 1}."


def test_a_prompt_that_cannot_be_cut_stands_in_and_is_flagged(tmp_path):
    row = {
        "key": 1,
        "prompt": "Sing, but use no comma.",
        "instruction_id_list": ["punctuation:no_comma"],
        "kwargs": [{}],
        "response": "La.",
    }
    [found] = opened(write_rows(tmp_path / "r.jsonl", row))
    assert (found.request, found.request_source) == ("Sing, but use no comma.", "prompt")
    [found] = opened(write_rows(tmp_path / "r.jsonl", row | {"request": "Sing."}))
    assert (found.request, found.request_source) == ("Sing.", "column")


TRAINING_ROW = {
    "key": "k1",
    "messages": [{"role": "user", "content": "Name a drink. Use no comma."}],
    "ground_truth": "[{'instruction_id': ['punctuation:no_comma'], 'kwargs': [None]}]",
    "dataset": "ifeval",
    "constraint": "Use no comma.",
}


def test_a_training_row_brings_the_text_to_cut_off(tmp_path):
    path = write_rows(tmp_path / "r.jsonl", TRAINING_ROW | {"response": "Tea."})
    [found] = opened(path)
    assert (found.key, found.request, found.request_source) == ("k1", "Name a drink.", "split")


def test_prompts_of_a_file_of_their_own(tmp_path):
    prompts = [
        TRAINING_ROW,
        {
            "key": "k2",
            "prompt": "Hum. No comma!",
            "request": "Hum.",
            "instruction_id_list": ["punctuation:no_comma"],
            "kwargs": [{}],
        },
    ]
    source = write_rows(tmp_path / "prompts.jsonl", *prompts)
    responses = [{"key": "k2", "response": "Hm."}, {"key": "k1", "response": "Tea."}]
    found = list(opened(write_rows(tmp_path / "r.jsonl", *responses), str(source)))
    assert {row.key: (row.request, row.request_source, row.response) for row in found} == {
        "k1": ("Name a drink.", "split", "Tea."),
        "k2": ("Hum.", "column", "Hm."),
    }
    assert all(len(row.constraints) == 1 for row in found)


def test_samples_of_lm_eval(tmp_path):
    row = {
        "doc": {
            "key": 7,
            "prompt": "Sing, no comma.",
            "request": "Sing.",
            "instruction_id_list": ["punctuation:no_comma"],
            "kwargs": [{}],
        },
        "filtered_resps": ["La."],
    }
    [found] = opened(write_rows(tmp_path / "r.jsonl", row))
    assert (found.key, found.request, found.response) == ("7", "Sing.", "La.")


def test_a_response_that_is_null_is_not_scored(tmp_path):
    rows = [{"request": "Sing.", "response": None}, {"request": "Sing.", "response": "La."}]
    path = write_rows(tmp_path / "r.jsonl", *rows)
    assert [row.line for row in answered(opened(path))] == [2]
    assert opened(path).n_answered == 1


# --- resume ---------------------------------------------------------------------------------------
@pytest.fixture
def many(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(score_files, "UNIT", 2)
    rows = [{"key": i, "request": f"Say {i}.", "response": f"{i} it is."} for i in range(5)]
    return write_rows(tmp_path / "responses.jsonl", *rows)


def test_a_killed_run_continues_after_its_last_whole_unit(many, tmp_path, monkeypatch):
    output = tmp_path / "scores.jsonl"
    score_file(opened(many), output, SETTINGS)
    whole = output.read_bytes()
    lines = whole.splitlines(keepends=True)
    # Killed in the middle of the second unit's second row.
    output.write_bytes(b"".join(lines[:3]) + lines[3][:10])
    done = []
    real = score_files.score_rows
    monkeypatch.setattr(
        score_files,
        "score_rows",
        lambda rows, *rest: done.append([row.line for row in rows]) or real(rows, *rest),
    )
    score_file(opened(many), output, SETTINGS)
    assert done == [[3, 4], [5]]
    assert output.read_bytes() == whole
    score_file(opened(many), output, SETTINGS)
    assert done == [[3, 4], [5]], "a complete file costs nothing"


def test_a_file_made_with_other_settings_is_refused(many, tmp_path):
    output = tmp_path / "scores.jsonl"
    score_file(opened(many), output, SETTINGS)
    before = output.read_bytes()
    for change, named in [
        ({"reference": "other"}, "reference = 'tiny-random-llama', not 'other'"),
        ({"alpha": 0.2}, "alpha = 0.1, not 0.2"),
        ({"semantics": "repaired"}, "semantics = 'published', not 'repaired'"),
        ({"end": False}, "end = True, not False"),
        ({"thinking": True}, "thinking = False, not True"),
    ]:
        with pytest.raises(DataError, match=f"scores.jsonl: was made with {named}"):
            score_file(opened(many), output, replace(SETTINGS, **change))
    many.write_text(many.read_text() + '{"request": "More?", "response": "Yes."}\n')
    with pytest.raises(DataError, match="responses_sha256"):
        score_file(opened(many), output, SETTINGS)
    assert output.read_bytes() == before


def test_a_file_of_another_origin_is_refused(many, tmp_path):
    output = write_rows(tmp_path / "scores.jsonl", {"a": 1})
    with pytest.raises(DataError, match="was not made by this command"):
        score_file(opened(many), output, SETTINGS)
    assert read_rows(output) == [{"a": 1}]


# --- input that cannot be used --------------------------------------------------------------------
GOOD = {"request": "Sing.", "response": "La."}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (GOOD | {"request": " "}, "field 'request' must be text, not ' '"),
        ({"response": "La."}, "field 'request' is missing"),
        ({"request": "Sing."}, "field 'response' is missing"),
        (GOOD | {"response": ["La."]}, r"field 'response' must be one text, not \['La.'\]"),
        (GOOD | {"response": "\ud800"}, "field 'response' is not valid Unicode"),
        (GOOD | {"token_ids": [1, -2]}, "field 'token_ids' must list ids"),
        (GOOD | {"token_ids": [1, 49152]}, "'token_ids' holds 49152, but the reference has 49152"),
        (GOOD | {"l0": "low"}, "field l0 must be a finite number or None, not 'low'"),
        (GOOD | {"l1": True}, "field l1 must be a finite number or None, not True"),
        (GOOD | {"l0": 0.5}, "field l0 must be at most 0, as a log-likelihood .*; got 0.5"),
        (GOOD | {"l1": float("inf")}, "field l1 must be a finite number or None, not inf"),
        (GOOD | {"l1": -(10**400)}, "field l1 must be a finite number or None, not -1000"),
        (GOOD | {"constraints": "none"}, "field 'constraints'"),
        (GOOD | {"constraints": '[{"id": "punctuation:no_coma"}]'}, "punctuation:no_coma"),
    ],
)
def test_a_row_that_cannot_be_used_is_named_before_anything_is_written(tmp_path, row, message):
    path = write_rows(tmp_path / "r.jsonl", GOOD, GOOD, row)
    with pytest.raises(DataError, match=f"r.jsonl, line 3: .*{message}"):
        score_file(opened(path), tmp_path / "scores.jsonl", SETTINGS)
    assert [p.name for p in tmp_path.iterdir()] == ["r.jsonl"]


def test_unusable_files_end_with_one_line_and_code_2(califkit, tmp_path):
    reference = ["--reference", "tiny-random-llama"]
    assert califkit("score", tmp_path / "none.jsonl", *reference)[0] == 2
    broken = tmp_path / "broken.jsonl"
    broken.write_text("{\n")
    code, _, error = califkit("score", broken, *reference)
    assert (code, error.count("\n")) == (2, 1)
    assert "broken.jsonl, line 1: not a line of JSON" in error
    path = write_rows(tmp_path / "r.jsonl", GOOD)
    code, _, error = califkit("score", path, "--reference", "no-such-model")
    assert code == 2 and "no-such-model" in error
    code, _, error = califkit("score", path, *reference, "--out", tmp_path / "no" / "s.jsonl")
    assert code == 2 and "does not exist" in error
    code, _, error = califkit("score", path, *reference, "--alpha", "0")
    assert code == 2 and "--alpha 0.0: must be positive and finite" in error
    unmatched = write_rows(tmp_path / "u.jsonl", {"prompt": "No such prompt.", "response": "La."})
    code, _, error = califkit("score", unmatched, *reference)
    assert code == 2 and f"{unmatched}: none of its responses answers a prompt of" in error


# --- the command ----------------------------------------------------------------------------------
def test_the_command_prints_means_and_shares(tiny, califkit, tmp_path):
    rows = [
        {"request": "Sing.", "response": "La la.", "constraints": NO_COMMA, "l0": -50, "l1": 0},
        {"request": "Sing.", "response": "La, la.", "constraints": NO_COMMA, "l0": -50, "l1": 0},
        {"request": "Sing.", "response": "", "constraints": NO_COMMA, "l0": -50, "l1": 0},
        {"request": "Hum.", "response": "Hm."},
    ]
    path = write_rows(tmp_path / "responses.jsonl", *rows)
    code, output, error = califkit("score", path, "--reference", "tiny-random-llama")
    assert code == 0, error
    lines = dict(line.rsplit("  ", 1) for line in output.splitlines() if "  " in line)
    lines = {name.strip(): value.strip() for name, value in lines.items()}
    texts = {"Sing.": ["La la.", "La, la."], "Hum.": ["Hm."]}
    values = [whole_logits(tiny, x, ids_of(tiny, y)) for x, ys in texts.items() for y in ys]
    assert float(lines["mean l, nats per token"]) == pytest.approx(sum(values) / 3, abs=1e-4)
    assert lines["empty answers, no l"] == "25.0%"
    assert float(lines["r_ver"]) == pytest.approx(1 / 3, abs=1e-4)
    assert float(lines["CaLIF reward"]) == pytest.approx(1.1 / 3, abs=1e-4)
    assert "token ids from the text, with an end-of-turn token: 4 rows" in output
    scores = tmp_path / "responses.scores.jsonl"
    assert f"scores: {scores}" in output
    assert len(read_rows(scores)) == 4
    assert califkit("score", path, "--reference", "tiny-random-llama")[1].endswith(
        output[output.index("responses:") :]
    ), "the same command again prints the same"


# --- request identification ----------------------------------------------------------------------
ASKED = {
    "Describe the sea.": "It is blue and wide.",
    "Name a drink.": "Green tea.",
    "Describe ice.": "Cold and clear.",
    "Say hello.": "Hello there!",
    "Describe fog.": "",
}


def asked(n: int = 1) -> list[dict]:
    return [{"request": x, "response": y} for x, y in ASKED.items()] * n


def test_answers_are_held_against_other_requests_of_the_file(tiny, tmp_path):
    plain = scored(tmp_path, asked())
    (tmp_path / "scores.jsonl").unlink()
    (tmp_path / "scores.jsonl.settings.json").unlink()
    result = scored(tmp_path, asked(), settings=replace(SETTINGS, identify=5))
    assert [row["loglik"] for row in result] == [row["loglik"] for row in plain]
    for row, (request, text) in zip(result, ASKED.items(), strict=True):
        found = row["identification"]
        if not text:
            assert (found["loglik"], found["tokens"]) == (None, 0)
            continue
        ids = ids_of(tiny, text)
        assert found["tokens"] == len(ids)
        assert found["loglik"][0] == row["loglik"]
        others = [whole_logits(tiny, x, ids) for x in ASKED if x != request]
        assert sorted(found["loglik"][1:]) == pytest.approx(sorted(others), abs=1e-5)


def test_samples_of_a_request_are_not_further_prompts(tmp_path):
    scored(tmp_path, asked(4), settings=replace(SETTINGS, identify=3))
    responses = opened(tmp_path / "responses.jsonl")
    output, how = tmp_path / "scores.jsonl", replace(SETTINGS, identify=3)
    found = score_files.summarise(score_file(responses, output, how)).identification
    assert (found.answers, found.prompts, found.requests) == (20, 5, 3)


def test_identification_that_is_not_possible_or_asked_for_otherwise_is_refused(many, tmp_path):
    with pytest.raises(DataError, match="identify = 900: .* takes 2 to"):
        score_file(opened(many), tmp_path / "s.jsonl", replace(SETTINGS, identify=900))
    assert not (tmp_path / "s.jsonl").exists()
    score_file(opened(many), tmp_path / "s.jsonl", SETTINGS)
    with pytest.raises(DataError, match="was made with identify = None, not 3"):
        score_file(opened(many), tmp_path / "s.jsonl", replace(SETTINGS, identify=3))


def test_the_command_prints_identification(califkit, tmp_path):
    path = write_rows(tmp_path / "r.jsonl", *asked())
    out = califkit("score", path, "--reference", "tiny-random-llama", "--identify", "3")[1]
    assert "identified, AUC" in out and "nats an answer" in out
    plain = califkit(
        "score", path, "--reference", "tiny-random-llama", "--out", tmp_path / "plain.jsonl"
    )[1]
    assert "identified" not in plain


def test_the_command_counts_cut_answers_and_shows_the_finished_ones(tiny, califkit, tmp_path):
    rows = [
        {"request": "Sing.", "response": "La la.", "finish_reason": "stop"},
        {"request": "Sing.", "response": "La, la", "finish_reason": "length"},
        {"request": "Hum.", "response": "Hm."},
    ]
    path = write_rows(tmp_path / "responses.jsonl", *rows)
    code, output, error = califkit("score", path, "--reference", "tiny-random-llama")
    assert code == 0, error
    lines = {line.split("  ")[0]: line.split() for line in output.splitlines()}
    assert lines["cut at the token limit"][-1] == "1"
    values = [
        whole_logits(tiny, row["request"], ids_of(tiny, row["response"], end=end))
        for row, end in zip(rows, (True, False, True), strict=True)
    ]
    shown = [float(value) for value in lines["mean l, nats per token"][-2:]]
    expected = [sum(values) / 3, (values[0] + values[2]) / 2]
    assert shown == pytest.approx(expected, abs=1e-4)
    scores = read_rows(tmp_path / "responses.scores.jsonl")
    assert [row["cut"] for row in scores] == [False, True, None]


def test_filters_of_lm_eval_have_means_of_their_own(califkit, tmp_path):
    doc = {"key": 1, "prompt": "Sing, no comma.", "request": "Sing.", "kwargs": [{}]}
    doc["instruction_id_list"] = ["punctuation:no_comma"]
    rows = [{"doc": doc, "filter": f, "resps": [[text]]} for f, text in (("a", "x, y"), ("b", "x"))]
    path = write_rows(tmp_path / "samples.jsonl", *rows)
    code, output, error = califkit("score", path, "--reference", "tiny-random-llama")
    assert code == 0, error
    means = [line.split()[-1] for line in output.splitlines() if line.startswith("r_ver")]
    assert means == ["0.0000", "1.0000"]
    assert "filter 'a'" in output and "filter 'b'" in output


def test_zones_of_rows_are_those_of_the_rewards_module(tiny, tmp_path):
    rows = [GOOD | {"l0": -11.0 + i, "l1": -10.0 + i / 2} for i in range(-3, 4)]
    for row in scored(tmp_path, rows):
        assert row["zone"] == zones(row["loglik"], row["l0"], row["l1"])
