"""Scores of responses and the summary, against arithmetic done by hand."""

import json
import math
import time

import pandas as pd
import pytest
from tiny_thinker import save_thinker

from califkit.data.load import DataError, load_jsonl
from califkit.evaluation.scores import SCORES, score_responses
from califkit.exhibits.summary import METRICS, NO_JUDGE, metrics_by_run, run_metrics, summary_table
from califkit.generation import RESPONSES
from califkit.models.likelihood import ReferenceScorer
from califkit.models.resolve import load_model, load_tokenizer
from califkit.runs.folders import open_run
from califkit.runs.jsonl import RowLog, read_jsonl
from califkit.runs.settings import Execution, ResponseSettings
from califkit.runs.stages import GenerateStage, ScoreStage

ROWS = [
    {
        "key": "a",
        "finish_reason": "length",
        "strict": [True, False],
        "loose": [True, True],
        "loglik": -2.0,
        "tokens": 10,
        "distinct_2": 0.5,
    },
    {
        "key": "b",
        "finish_reason": "stop",
        "strict": [False],
        "loose": [False],
        "loglik": -4.0,
        "tokens": 5,
        "distinct_2": 1.0,
    },
    {
        "key": "c",
        "finish_reason": "stop",
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
            "prompt_level_loose_acc": 100 * 2 / 3,
            "prompt_level_strict_acc": 100 / 3,
            "inst_level_loose_acc": 75.0,
            "inst_level_strict_acc": 50.0,
            "loglik": -3.0,  # every response weighs the same; the empty one has none
            "tokens": 5.0,
            "distinct_2": 0.75,
            "cut": 100 / 3,
            "finished_prompt_level_loose_acc": 50.0,
        }
    )


def test_where_every_answer_is_cut_the_finished_ones_have_no_accuracy():
    values = run_metrics(ROWS[:1])
    assert values["cut"] == 100.0
    assert math.isnan(values["finished_prompt_level_loose_acc"])


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


def row(tokenizer, key: str, text: str) -> dict:
    """A row of generated responses; `text` and an end of turn were generated."""
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return {
        "key": key,
        "prompt": "p",
        "response": text,
        "token_ids": [*ids, tokenizer.eos_token_id],
        "n_tokens": len(ids),
        "finish_reason": "stop",
    }


@pytest.fixture
def stage_of(tmp_path, monkeypatch):
    """Makes the scoring stage of responses that are there: ``stage_of(rows, **settings)``."""
    monkeypatch.setenv("CALIFKIT_RUNS", str(tmp_path / "runs"))
    prompts = [*PROMPTS, PROMPTS[0] | {"key": "9"}]
    source = tmp_path / "prompts.jsonl"
    source.write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
    sha256 = load_jsonl(source, on_error="quarantine").sha256

    def make(rows: list[dict], **settings) -> ScoreStage:
        how = ResponseSettings(benchmark=str(source))
        stage = GenerateStage(policy=None, evaluation=how, seed=0, **settings)
        run = open_run("test", stage)
        with run.computing():
            RowLog(run.folder / RESPONSES).append(rows)
            run.finish(time.monotonic(), rows=len(rows), data_sha256=sha256)
        return ScoreStage(responses=stage, semantics="published")

    return make


@pytest.fixture
def stage(tiny, stage_of):
    """The scoring stage of three responses, the third of them empty."""
    rows = [row(tiny.tokenizer, key, text) for key, text in {**TEXTS, "9": ""}.items()]
    return stage_of(rows, model="tiny-random-llama")


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
    assert row["prompt_level_loose_acc"] == pytest.approx(200 / 3)
    manifest = run.manifest()
    assert manifest["settings"]["semantics"] == "published"


def test_responses_to_other_prompts_are_not_scored(stage):
    path = stage.responses.evaluation.benchmark
    with open(path, "a") as file:
        file.write(json.dumps(PROMPTS[0] | {"key": "new"}) + "\n")
    with pytest.raises(DataError, match="answer prompts with sha256") as caught:
        score_responses("test", stage, Execution())
    assert path in str(caught.value)
    assert not open_run("test", stage).is_complete


def test_only_the_answer_of_a_thinking_model_is_scored(tiny, stage_of, tmp_path):
    folder = save_thinker(tiny, tmp_path / "thinker")
    scorer = ReferenceScorer(load_model(folder), load_tokenizer(folder))
    tokenizer = scorer.tokenizer
    texts = {
        "7": "<think>a drink, with no comma, or water</think>\n\nIced tea, or tea",
        "3": "<think>The water never ends",
        "9": "No comma here",  # the template may have opened what this does not close
    }
    rows = [row(tokenizer, key, text) for key, text in texts.items()]
    stage = stage_of(rows, model=str(folder), thinking=True)
    run = score_responses("test", stage, Execution())
    scored = {row["key"]: row for row in read_jsonl(run.folder / SCORES)}

    answer = tokenizer("Iced tea, or tea", add_special_tokens=False)["input_ids"]
    assert scored["7"]["strict"] == [False], "a comma"
    assert scored["7"]["tokens"] == len(answer)
    pairs = list(zip(answer, answer[1:], strict=False))
    assert scored["7"]["distinct_2"] == pytest.approx(len(set(pairs)) / len(pairs))
    expected = scorer.score(["Name a drink."], [[*answer, tokenizer.eos_token_id]])
    assert [scored["7"]["loglik"]] == pytest.approx(expected, abs=1e-3)
    whole = scorer.score(["Name a drink."], [rows[0]["token_ids"]])
    assert abs(whole - expected) > 0.01, "so that the reasoning would show"

    for key in ("3", "9"):
        assert not any(scored[key]["loose"]), "reasoning that never ends is no answer"
        assert (scored[key]["loglik"], scored[key]["tokens"]) == (None, 0)
        assert scored[key]["distinct_2"] is None


def test_reasoning_that_was_not_asked_for_is_not_scored(tiny, stage_of):
    texts = {
        "7": "<think>a drink, with no comma</think>Iced tea",
        "3": "<think>The water never ends",
        "9": "No comma here",
    }
    rows = [row(tiny.tokenizer, key, text) for key, text in texts.items()]
    run = score_responses("test", stage_of(rows, model="tiny-random-llama"), Execution())
    scored = {row["key"]: row for row in read_jsonl(run.folder / SCORES)}
    assert scored["7"]["strict"] == [True]
    assert scored["3"]["loose"] == [False, False]
    assert (scored["3"]["loglik"], scored["3"]["tokens"]) == (None, 0)
    assert scored["9"]["strict"] == [True]
    for key, text in {"7": "Iced tea", "9": "No comma here"}.items():
        ids = tiny.tokenizer(text, add_special_tokens=False)["input_ids"]
        assert scored[key]["tokens"] == len(ids)


def test_a_response_to_a_prompt_that_is_not_usable_here_is_named(stage):
    path = open_run("test", stage.responses).folder / RESPONSES
    RowLog(path).append([{"key": "gone", "response": "x"}])
    with pytest.raises(DataError, match="1 of 4 responses .* first with key 'gone'"):
        score_responses("test", stage, Execution())
