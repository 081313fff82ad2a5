"""Request identification: likelihoods against a plain call of the scorer, and what it can see."""

import json
import time

import numpy as np
import pytest

from califkit.data.load import DataError, load_jsonl
from califkit.evaluation.identification import (
    IDENTIFICATION,
    identification,
    identification_of,
    identify_responses,
    loglik_given_requests,
    other_requests,
)
from califkit.evaluation.scores import score_responses
from califkit.exhibits.summary import IDENTIFICATION as IDENTIFICATION_METRICS
from califkit.exhibits.summary import (
    NO_JUDGE,
    metrics_by_run,
    response_table,
    summary_table,
)
from califkit.exhibits.tables import policies_table
from califkit.generation import RESPONSES
from califkit.models.likelihood import ReferenceScorer
from califkit.models.resolve import load_model, load_tokenizer, resolve
from califkit.runs.folders import open_run
from califkit.runs.jsonl import RowLog, read_jsonl
from califkit.runs.settings import Execution, IdentificationSettings, ResponseSettings
from califkit.runs.stages import GenerateStage, IdentificationStage, ScoreStage, stage_hash

PAIRS = {
    "What is a volcano?": "A volcano is an opening in the Earth's crust through which lava, ash "
    "and gases escape.",
    "How do I boil an egg?": "Put the egg in boiling water for eight minutes, then cool it in cold "
    "water and peel it.",
    "Why is the sky blue?": "Air scatters blue light from the sun more than red light, so the sky "
    "looks blue to our eyes.",
    "Recommend a pet for a small flat.": "A cat is a good choice for a small apartment, since it "
    "is clean, quiet and needs no garden.",
    "Explain what inflation means.": "Inflation is a general rise in prices over time, so that "
    "money buys less than it did before.",
    "Write a sentence about football.": "The striker scored the winning goal in the last minute of "
    "the football match.",
    "How can I sleep better at night?": "Go to bed at the same time every night, avoid coffee in "
    "the evening and keep your bedroom dark.",
    "Who was Isaac Newton?": "Isaac Newton was an English physicist and mathematician who "
    "described gravity and the laws of motion.",
    "Describe a typical winter day in Norway.": "It is cold and snowy, the daylight lasts only a "
    "few hours and people ski through the forest.",
    "What does a lawyer do?": "A lawyer advises clients on the law and represents them in court.",
    "Give me an idea for a birthday present.": "You could give your friend a book, a board game or "
    "tickets for a concert.",
    "How does a bicycle stay upright?": "A moving bicycle stays upright because the rider steers "
    "into a fall and the wheels turn back under it.",
}
REQUESTS = list(PAIRS)


# --- the other requests --------------------------------------------------------------------------


def test_every_request_is_held_against_others_equally_often():
    requests = {f"key-{i}": request for i, request in enumerate(REQUESTS)}
    others = other_requests(requests, 5, seed=0)
    assert sorted(others) == sorted(requests)
    for key, chosen in others.items():
        assert len({key, *chosen}) == 5
    counts = np.unique([key for chosen in others.values() for key in chosen], return_counts=True)
    assert counts[1].tolist() == [4] * len(REQUESTS)
    assert other_requests(dict(reversed(requests.items())), 5, seed=0) == others
    assert other_requests(requests, 5, seed=1) != others


def test_prompts_with_one_request_are_not_held_against_each_other():
    requests = {"a": "tea?", "b": "tea?", "c": "rain?", "d": "sea?"}
    others = other_requests(requests, 3, seed=0)
    assert sorted(others["a"]) == sorted(others["b"]) == ["c", "d"]
    assert "b" not in others["c"], "one of the two stands for the request"
    with pytest.raises(DataError, match="against 4 requests, .* takes 2 to 3 here"):
        other_requests(requests, 4, seed=0)


# --- the stage -----------------------------------------------------------------------------------


@pytest.fixture
def stage_of(tiny, tmp_path, monkeypatch):
    """Makes the stage for texts of responses to `REQUESTS` that are there."""
    monkeypatch.setenv("CALIFKIT_RUNS", str(tmp_path / "runs"))
    prompts = [
        {
            "key": f"key-{i}",
            "messages": [{"role": "user", "content": f"{request} Use no comma."}],
            "ground_truth": "[{'instruction_id': ['punctuation:no_comma'], 'kwargs': [None]}]",
            "dataset": "ifeval",
            "constraint": "Use no comma.",
        }
        for i, request in enumerate(REQUESTS)
    ]
    source = tmp_path / "prompts.jsonl"
    source.write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
    responses = GenerateStage(
        model="tiny-random-llama",
        policy=None,
        evaluation=ResponseSettings(benchmark=str(source)),
        seed=0,
    )

    def make(texts: list[str], **how) -> IdentificationStage:
        run = open_run("test", responses)
        with run.computing() as needed:
            if needed:
                rows = [response(tiny.tokenizer, f"key-{i}", t) for i, t in enumerate(texts)]
                RowLog(run.folder / RESPONSES).append(rows)
                sha256 = load_jsonl(source, on_error="raise").sha256
                run.finish(time.monotonic(), rows=len(rows), data_sha256=sha256)
        return IdentificationStage(
            responses=responses, identification=IdentificationSettings(**{"requests": 3} | how)
        )

    return make


def response(tokenizer, key: str, text: str) -> dict:
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return {
        "key": key,
        "prompt": "p",
        "response": text,
        "token_ids": [*ids, tokenizer.eos_token_id],
        "n_tokens": len(ids),
        "finish_reason": "stop",
    }


TEXTS = [*list(PAIRS.values())[:-1], ""]


def test_answers_are_scored_given_their_own_request_and_given_others(tiny, stage_of):
    run = identify_responses("test", stage_of(TEXTS), Execution())
    rows = {row["key"]: row for row in read_jsonl(run.folder / IDENTIFICATION)}
    assert len(rows) == run.manifest()["rows"] == len(TEXTS)
    scorer = ReferenceScorer(tiny.model, tiny.tokenizer)
    for i, text in enumerate(TEXTS[:-1]):
        row = rows[f"key-{i}"]
        ids = [*tiny.tokenizer(text, add_special_tokens=False)["input_ids"], 2]
        assert row["tokens"] == len(ids)
        numbers = [i, *(int(key.removeprefix("key-")) for key in row["others"])]
        expected = scorer.score([REQUESTS[n] for n in numbers], [ids] * 3)
        assert row["loglik"] == pytest.approx(expected, abs=1e-4)
    assert (rows["key-11"]["loglik"], rows["key-11"]["tokens"]) == (None, 0)
    found = identification_of([run, run])
    assert (found.answers, found.prompts, found.requests) == (24, 12, 3)
    assert found == identification_of([run, run]), "intervals are drawn with a fixed seed"
    assert found.top_1_interval == identification_of([run]).top_1_interval


def test_a_run_that_was_interrupted_ends_with_the_same_rows(stage_of, monkeypatch):
    monkeypatch.setattr("califkit.evaluation.scores._BATCH", 5)
    stage = stage_of(TEXTS)
    run = identify_responses("test", stage, Execution())
    whole = read_jsonl(run.folder / IDENTIFICATION)
    (run.folder / "manifest.json").unlink()
    log = RowLog(run.folder / IDENTIFICATION)
    log.keep(whole[:7])
    identify_responses("test", stage, Execution())
    again = read_jsonl(run.folder / IDENTIFICATION)
    assert [row["key"] for row in again] == [row["key"] for row in whole]
    for row, before in zip(again, whole, strict=True):
        assert row["loglik"] == pytest.approx(before["loglik"], abs=1e-5)


def test_answers_can_be_compared_at_equal_length(tiny, stage_of):
    stage = stage_of(TEXTS[:-1] + ["Yes."], first_tokens=4)
    assert stage_hash(stage) != stage_hash(stage_of(TEXTS))
    run = identify_responses("test", stage, Execution())
    rows = {row["key"]: row for row in read_jsonl(run.folder / IDENTIFICATION)}
    assert [rows[f"key-{i}"]["tokens"] for i in range(11)] == [4] * 11
    ids = tiny.tokenizer(TEXTS[0], add_special_tokens=False)["input_ids"][:4]
    expected = ReferenceScorer(tiny.model, tiny.tokenizer).score(REQUESTS[:1], [ids])
    assert rows["key-0"]["loglik"][:1] == pytest.approx(expected, abs=1e-4)


def test_it_stands_beside_response_quality_under_its_own_name(stage_of):
    stage = stage_of(TEXTS)
    identified = identify_responses("test", stage, Execution())
    scored = score_responses("test", ScoreStage(responses=stage.responses), Execution())
    without = summary_table(metrics_by_run([scored]))
    assert not set(IDENTIFICATION_METRICS) & set(without["metric"])
    table = summary_table(metrics_by_run([scored], identification_runs=[identified]))
    rows = table.set_index("metric")
    found = identification_of([identified])
    assert rows.at["top_1", "mean"] == pytest.approx(100 * found.top_1)
    assert rows.at["information", "mean"] == pytest.approx(found.information)
    assert rows.at["response_quality", "note"] == NO_JUDGE
    told = response_table("test", [scored], identification_runs=[identified])
    assert told.set_index("key").at["key-11", "information"] == 0, "an empty answer tells nothing"
    assert told["information"].mean() == pytest.approx(found.information)
    assert response_table("test", [scored])["information"].isna().all()
    words = policies_table(table, "").cells
    row = ("mean over runs", IDENTIFICATION_METRICS["information"])
    assert words.at[row, "base"] == f"{found.information:.2f}"
    assert len(words) == len(policies_table(without, "").cells) + 2


# --- what it can see -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def measured():
    """Measures texts in the place of the answers to `REQUESTS`, under SmolLM2."""
    folder = resolve("smollm2-135m-instruct")
    scorer = ReferenceScorer(load_model(folder), load_tokenizer(folder))
    requests = {request: request for request in REQUESTS}
    others = other_requests(requests, 6, seed=0)

    def measure(texts: dict[str, str], first_tokens: int | None = None):
        tokenizer = scorer.tokenizer
        ids = [
            tokenizer(texts[x], add_special_tokens=False)["input_ids"][:first_tokens]
            for x in others
        ]
        loglik = loglik_given_requests(scorer, [[x, *others[x]] for x in others], ids)
        return identification(loglik, [len(i) for i in ids], list(others))

    return measure


@pytest.mark.slow
class TestWithALanguageModel:
    def test_an_answer_to_the_point_is_identified(self, measured):
        found = measured(PAIRS)
        assert found.top_1 > 0.9
        assert found.auc > 0.95

    def test_keywords_of_the_answer_tell_less_but_are_identified(self, measured):
        """What it cannot see: a list of words on the right subject is no answer."""
        keywords = {
            x: ", ".join(w.strip(".,'") for w in y.split() if len(w) > 4) for x, y in PAIRS.items()
        }
        whole, listed = measured(PAIRS), measured(keywords)
        assert listed.information < 0.8 * whole.information
        assert listed.top_1 > 0.8

    def test_a_word_that_any_request_might_get_tells_little(self, measured):
        whole, word = measured(PAIRS), measured({x: y.split()[0] for x, y in PAIRS.items()})
        assert word.information < whole.information / 4
        assert word.top_1 < whole.top_1

    def test_one_and_the_same_answer_to_all_is_identified_by_chance(self, measured):
        for text in ("Yes.", "I am happy to help you with that, whatever it may be about."):
            found = measured(dict.fromkeys(REQUESTS, text))
            assert found.auc == pytest.approx(0.5, abs=0.1)
            assert found.top_1 < 0.4

    def test_answers_to_a_neighbouring_request_are_not_identified(self, measured):
        answers = list(PAIRS.values())
        neighbours = dict(zip(REQUESTS, answers[1:] + answers[:1], strict=True))
        found = measured(neighbours)
        assert found.top_1 < 0.3
        assert found.information < 0

    def test_it_does_not_follow_length(self, measured):
        """At equal length it tells answers from others, and padding does not help."""
        answers = list(PAIRS.values())
        neighbours = dict(zip(REQUESTS, answers[1:] + answers[:1], strict=True))
        assert measured(PAIRS, 8).auc > 0.9 > 0.6 > measured(neighbours, 8).auc
        filler = " I hope that this helps you. Let me know if you have any other question." * 3
        padded = {x: y.split()[0] + filler for x, y in PAIRS.items()}
        assert measured(padded).top_1 < measured(PAIRS).top_1
