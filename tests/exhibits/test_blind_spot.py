"""Figures 1 and 2: policies behind a scripted endpoint or in files, graded by scripted judges."""

import json
import re

import pandas as pd
import pytest
from judge_server import Play, Request, says, score, serve

from califkit.exhibits.blind_spot import (
    blind_example,
    blind_spot_table,
    both_sides,
    example_text,
    graded,
    policy_answers,
    rank_correlation,
)
from califkit.runs.params import Params, load_params
from califkit.runs.settings import ParamsError

REQUESTS = {"1": "Describe the sea.", "2": "Name a drink.", "3": "Describe tea."}
CONSTRAINT = "Use no comma."
ALONE, CONSTRAINED = "It is wide, and it is deep.", "wide"


@pytest.fixture(autouse=True)
def runs(tmp_path, monkeypatch):
    monkeypatch.setenv("CALIFKIT_RUNS", str(tmp_path / "runs"))


@pytest.fixture
def params(tmp_path):
    """A profile of three test prompts; ``params(url, judges, **settings)``."""
    rows = [
        {
            "key": key,
            "messages": [{"role": "user", "content": f"{request} {CONSTRAINT}"}],
            "ground_truth": "[{'instruction_id': ['punctuation:no_comma'], 'kwargs': [None]}]",
            "dataset": "ifeval",
            "constraint": CONSTRAINT,
        }
        for key, request in REQUESTS.items()
    ]
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def make(url: str, *judges: str, policies: tuple[str, ...] = (), **settings) -> Params:
        def endpoint(name: str) -> dict:
            return {"name": name, "model": name, "base_url": url, "retries": 0}

        execution = {"judges": list(map(endpoint, judges))}
        execution["policies"] = list(map(endpoint, policies))
        evaluation = {"benchmark": str(path), "n_prompts": None}
        changes = {"execution": execution, "evaluation": evaluation, "judge": list(judges) or None}
        return load_params("ci", changes | settings)

    return make


def play(request: Request) -> Play:
    """Policies answer at length to a request alone; `kind` scores 10 and 2, `harsh` 7 and 1."""
    model, prompt = request.body["model"], request.body["messages"][0]["content"]
    if model not in ("kind", "harsh"):
        return says(CONSTRAINED if CONSTRAINT in prompt else ALONE)
    response = re.search(r"<response (\w+)>\n(.*)\n</response \1>", prompt, re.DOTALL)[2]
    high, low = {"kind": (10, 2), "harsh": (7, 1)}[model]
    return score(high if response == ALONE else low)


def test_a_policy_gets_the_prompt_as_it_is_and_its_answers_are_kept(params):
    with serve(play) as server:
        asked = params(server.url, policies=("one",))
        answers = policy_answers(asked)
        assert len(server.requests) == 6
        for request in server.requests:
            assert "response_format" not in request.body
        prompts = {request.body["messages"][0]["content"] for request in server.requests}
        assert prompts == {*REQUESTS.values(), *(f"{x} {CONSTRAINT}" for x in REQUESTS.values())}
        pd.testing.assert_frame_equal(policy_answers(asked), answers)
        assert len(server.requests) == 6, "what is there is not asked for again"
    passes = answers.set_index("side")["passes"]
    assert passes["constrained"].tolist() == [1.0] * 3
    assert passes["alone"].isna().all(), "an answer to x was not asked to keep to c"


def test_quality_is_averaged_over_the_judges_and_drops_with_the_constraint(params):
    with serve(play) as server:
        asked = params(server.url, "kind", "harsh", policies=("one",))
        answers = graded(asked, policy_answers(asked))
    (row,) = blind_spot_table(answers).to_dict("records")
    assert (row["satisfaction"], row["quality"]) == (100.0, 1.5)
    assert (row["quality_alone"], row["quality_constrained"]) == (8.5, 1.5)
    assert (row["quality_drop"], row["pairs"], row["unanswered"]) == (7.0, 3, 0)
    assert row["judge"] == "kind (6 of 6), harsh (6 of 6)"
    pick, rule = blind_example(answers)
    assert "largest drop of response quality" in rule
    text = example_text(pick)
    assert "request alone; RQ 8.50 (kind (6 of 6), harsh (6 of 6))\n    | It is wide" in text
    assert "pass; RQ 1.50" in text


def test_files_are_read_as_answers_and_what_is_missing_is_counted(params, tmp_path):
    def file(name: str, **texts: str) -> str:
        path = tmp_path / name
        rows = [{"key": key.strip("k"), "response": text} for key, text in texts.items()]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(path)

    files = {
        "name": "theirs",
        "constrained": file("c.jsonl", k1="One, two", k2="<think>a, b</think>tea", k3="tea"),
        "alone": file("a.jsonl", k1="Wide.", k2="Tea."),
    }
    asked = params("http://127.0.0.1:9/v1", answers=[files])
    answers = graded(asked, policy_answers(asked))
    (row,) = blind_spot_table(answers).to_dict("records")
    assert row["satisfaction"] == pytest.approx(100 * 2 / 3)
    assert (row["source"], row["pairs"], row["unanswered"]) == ("file", 2, 1)
    assert row["note"] == "quality not measured: no judge configured"
    assert both_sides(answers)["response"].tolist() == ["One, two", "tea"]


def test_an_answer_that_never_comes_is_missing_and_not_empty(params):
    def refuses(request: Request) -> Play:
        asked = request.body["messages"][0]["content"]
        return says(None, refusal="No.") if asked == REQUESTS["2"] else play(request)

    with serve(refuses) as server:
        answers = policy_answers(params(server.url, policies=("one",)))
    missing = answers[answers["response"].isna()]
    assert missing[["side", "key"]].to_numpy().tolist() == [["alone", "2"]]


def test_a_correlation_takes_three_policies():
    table = pd.DataFrame({"satisfaction": [10.0, 20.0, 40.0], "quality": [9.0, 5.0, 1.0]})
    assert rank_correlation(table) == (pytest.approx(-1.0), "")
    value, why = rank_correlation(table.head(2))
    assert value != value and "takes three" in why


def test_a_policy_has_a_name_of_its_own(params):
    files = {"name": "one", "constrained": "c.jsonl", "alone": "a.jsonl"}
    with pytest.raises(ParamsError, match="a name twice: one, one"):
        params("http://127.0.0.1:9/v1", policies=("one",), answers=[files])
    with pytest.raises(ParamsError, match="two policies of one name: one, one"):
        params("http://127.0.0.1:9/v1", policies=("one", "one"))
