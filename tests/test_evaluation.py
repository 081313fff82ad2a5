"""Scores of responses and the summary, against arithmetic done by hand."""

import json
import math
import time

import pandas as pd
import pytest

from califkit.data import DataError, load_jsonl
from califkit.evaluation import (
    METRICS,
    NO_JUDGE,
    SCORES,
    metrics_by_run,
    run_metrics,
    score_responses,
    summary_table,
)
from califkit.generate import RESPONSES
from califkit.likelihood import ReferenceScorer
from califkit.params import Execution, GenerateStage, ResponseSettings, ScoreStage
from califkit.runs import RowLog, open_run, read_jsonl

ROWS = [
    {
        "key": "a",
        "strict": [True, False],
        "loose": [True, True],
        "loglik": -2.0,
        "tokens": 10,
        "distinct_2": 0.5,
    },
    {
        "key": "b",
        "strict": [False],
        "loose": [False],
        "loglik": -4.0,
        "tokens": 5,
        "distinct_2": 1.0,
    },
    {
        "key": "c",
        "strict": [True],
        "loose": [True],
        "loglik": None,
        "tokens": 0,
        "distinct_2": None,
    },
]


def test_metrics_of_a_run():
    values = run_metrics(ROWS)
    assert list(values) == list(METRICS)
    assert values == pytest.approx(
        {
            "prompt_loose": 100 * 2 / 3,
            "prompt_strict": 100 / 3,
            "instruction_loose": 75.0,
            "instruction_strict": 50.0,
            "loglik": -3.0,  # every response weighs the same; the empty one has none
            "tokens": 5.0,
            "distinct_2": 0.75,
        }
    )


def test_metrics_that_no_response_has_are_undefined():
    values = run_metrics(ROWS[2:])
    assert math.isnan(values["loglik"])
    assert values["tokens"] == 0.0


def by_run(**changes) -> pd.DataFrame:
    """Three runs of the base model and one of CaLIF; every metric 24, 26, 28 and 30."""
    table = pd.DataFrame(
        {
            "method": ["base"] * 3 + ["calif"],
            "train_seed": [None] * 3 + [0],
            "eval_seed": [0, 1, 2, 0],
            **{name: [24.0, 26.0, 28.0, 30.0] for name in METRICS},
            "response_quality": NO_JUDGE,
        }
    )
    return table.assign(**changes)


def test_the_summary_gives_mean_and_sample_deviation_over_runs():
    table = summary_table(by_run()).set_index(["method", "metric"])
    assert table.index.get_level_values("method").unique().tolist() == ["base", "calif"]
    for metric in METRICS:
        base, calif = table.loc[("base", metric)], table.loc[("calif", metric)]
        assert (base["mean"], base["std"], base["runs"]) == (26.0, 2.0, 3)
        assert (calif["mean"], calif["runs"]) == (30.0, 1)
        assert math.isnan(calif["std"]), "one run has no deviation"
        assert base["note"] == calif["note"] == ""


def test_response_quality_says_why_it_is_not_there():
    table = summary_table(by_run())
    rows = table[table["metric"] == "response_quality"]
    assert rows["method"].tolist() == ["base", "calif"]
    assert rows["note"].tolist() == ["not measured: no judge configured"] * 2
    assert rows[["mean", "std"]].isna().all(axis=None)
    assert rows["runs"].tolist() == [0, 0]


def test_a_metric_that_a_run_leaves_undefined_has_no_number_but_a_reason():
    table = summary_table(by_run(loglik=[-1.0, math.nan, -2.0, -3.0]))
    table = table.set_index(["method", "metric"])
    base = table.loc[("base", "loglik")]
    assert math.isnan(base["mean"])
    assert base["note"] == "not measured: undefined in 1 of 3 runs"
    assert table.loc[("calif", "loglik"), "mean"] == -3.0
    assert table.loc[("base", "tokens"), "mean"] == 26.0


# ---------------------------------------------------------------- the stage

PROMPTS = [
    {
        "key": "7",
        "messages": [{"role": "user", "content": "Name a drink. Use no comma."}],
        "ground_truth": "[{'instruction_id': ['punctuation:no_comma'], 'kwargs': [None]}]",
        "dataset": "ifeval",
        "constraint": "Use no comma.",
    },
    {
        "key": "3",
        "prompt": "Describe the sea.",
        "instruction_id_list": ["punctuation:no_comma", "keywords:existence"],
        "kwargs": [{}, {"keywords": ["water"]}],
    },
    {"key": "bad", "prompt": "x", "instruction_id_list": ["no:such"], "kwargs": [{}]},
]
# Strict fails for the second: its first line has the comma, which a loose variant leaves out.
TEXTS = {"7": "Iced tea", "3": "Well, the sea:\nwater at night"}


@pytest.fixture
def stage(tiny, tmp_path, monkeypatch):
    """The scoring stage of responses that are there, the third of them empty."""
    monkeypatch.setenv("CALIFKIT_RUNS", str(tmp_path / "runs"))
    prompts = [*PROMPTS, PROMPTS[0] | {"key": "9"}]
    source = tmp_path / "prompts.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in prompts))
    stage = GenerateStage(
        model="tiny-random-llama",
        policy=None,
        evaluation=ResponseSettings(benchmark=str(source)),
        seed=0,
    )
    run = open_run("test", stage)
    end = tiny.tokenizer.eos_token_id
    with run.computing():
        rows = []
        for key, text in {**TEXTS, "9": ""}.items():
            ids = tiny.tokenizer(text, add_special_tokens=False)["input_ids"]
            row = {"key": key, "prompt": "p", "response": text, "token_ids": [*ids, end]}
            rows.append(row | {"n_tokens": len(ids), "finish_reason": "stop"})
        RowLog(run.folder / RESPONSES).append(rows)
        sha256 = load_jsonl(source, on_error="quarantine").sha256
        run.finish(time.monotonic(), rows=3, data_sha256=sha256)
    return ScoreStage(responses=stage, semantics="published")


def test_responses_are_scored(tiny, stage):
    run = score_responses("test", stage, Execution())
    rows = {row["key"]: row for row in read_jsonl(run.folder / SCORES)}
    assert list(rows) == ["7", "3", "9"], "in the order of the responses"
    assert rows["7"]["strict"] == rows["7"]["loose"] == [True]
    assert rows["3"]["ids"] == ["punctuation:no_comma", "keywords:existence"]
    assert rows["3"]["strict"] == [False, True]
    assert rows["3"]["loose"] == [True, True]
    assert rows["9"]["strict"] == rows["9"]["loose"] == [False]
    assert (rows["9"]["loglik"], rows["9"]["tokens"], rows["9"]["distinct_2"]) == (None, 0, None)
    # The first prompt without its constraint; the second has none that stands apart.
    scorer = ReferenceScorer(tiny.model, tiny.tokenizer)
    for key, request in {"7": "Name a drink.", "3": "Describe the sea."}.items():
        ids = tiny.tokenizer(TEXTS[key], add_special_tokens=False)["input_ids"]
        expected = scorer.score([request], [[*ids, tiny.tokenizer.eos_token_id]])
        assert [rows[key]["loglik"]] == pytest.approx(expected, abs=1e-3)
        assert rows[key]["tokens"] == len(ids)
    table = metrics_by_run([run])
    row = table.iloc[0]
    assert (row["method"], row["eval_seed"], row["n"]) == ("base", 0, 3)
    assert (row["empty"], row["left_out"]) == (1, 1)
    assert row["response_quality"] == NO_JUDGE
    assert row["prompt_loose"] == pytest.approx(200 / 3)
    manifest = run.manifest()
    assert manifest["settings"]["semantics"] == "published"
    assert manifest["judge"] is None


def test_responses_to_other_prompts_are_not_scored(stage):
    path = stage.responses.evaluation.benchmark
    with open(path, "a") as file:
        file.write(json.dumps(PROMPTS[0] | {"key": "new"}) + "\n")
    with pytest.raises(DataError, match="answer prompts with sha256") as caught:
        score_responses("test", stage, Execution())
    assert path in str(caught.value)
    assert not open_run("test", stage).is_complete


def test_reasoning_is_not_judged(stage):
    path = open_run("test", stage.responses).folder / RESPONSES
    rows = read_jsonl(path)
    rows[0]["response"] = "<think>a drink, with no comma</think>Iced tea"
    rows[1]["response"] = "<think>The water never ends"
    RowLog(path).keep(rows)
    run = score_responses("test", stage, Execution())
    scored = {row["key"]: row for row in read_jsonl(run.folder / SCORES)}
    assert scored["7"]["strict"] == [True]
    assert scored["3"]["loose"] == [False, False], "reasoning that never ends is no answer"


def test_a_response_to_a_prompt_that_is_not_usable_here_is_named(stage):
    path = open_run("test", stage.responses).folder / RESPONSES
    RowLog(path).append([{"key": "gone", "response": "x"}])
    with pytest.raises(DataError, match="1 of 4 responses .* first with key 'gone'"):
        score_responses("test", stage, Execution())
