"""Stages of a judge, with a scripted server: what it is shown, kept, and asked for again."""

import json
import re
import shutil
import time

import pytest
import yaml
from judge_server import JudgeServer, Play, Request, error, says, score, serve
from tiny_thinker import save_thinker

from califkit.data.load import DataError, load_jsonl
from califkit.evaluation.quality import (
    PAIRS,
    QUALITY,
    estimates,
    judge_pairs,
    judge_quality,
    quality_by_run,
)
from califkit.exhibits.summary import metrics_by_run, response_table, summary_table
from califkit.generation import RESPONSES
from califkit.judges.cache import judge_cache
from califkit.judges.judge import JudgeError
from califkit.judges.prompts import PAIR_VERSION, QUALITY_PROMPTS
from califkit.runs.dispatch import run_stage
from califkit.runs.folders import open_run
from califkit.runs.jsonl import RowLog, read_jsonl
from califkit.runs.judge_settings import JudgeModel, JudgeSettings
from califkit.runs.params import load_params
from califkit.runs.settings import Execution, ParamsError, ResponseSettings
from califkit.runs.stages import GenerateStage, PairwiseStage, QualityStage, ScoreStage

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
        "instruction_id_list": ["punctuation:no_comma"],
        "kwargs": [{}],
    },
    {
        "key": "9",
        "prompt": "Describe the moon.",
        "instruction_id_list": ["punctuation:no_comma"],
        "kwargs": [{}],
    },
]
TEXTS = {"7": "Iced tea", "3": "Blue", "9": ""}


def between_tags(request: Request, name: str) -> str:
    prompt = request.body["messages"][-1]["content"]
    return re.search(rf"<{name} (\w+)>\n(.*)\n</{name} \1>", prompt, re.DOTALL)[2]


def by_length(request: Request) -> Play:
    """The score of a response is one more than its length."""
    return score(1 + len(between_tags(request, "response")))


def prefers(word: str):
    """A judge of pairs for whom the response with this word is better; a tie without it."""

    def play(request: Request) -> Play:
        found = [o for o in ("first", "second") if word in between_tags(request, f"{o} response")]
        return says(json.dumps({"reasoning": "", "verdict": found[0] if found else "tie"}))

    return play


def execution(server: JudgeServer, **changes) -> Execution:
    usual = {"name": "grader", "model": "m", "retries": 0, "backoff_s": 0.01, "concurrency": 1}
    return Execution(judges=(JudgeSettings(base_url=server.url, **usual | changes),))


JUDGE = JudgeModel(name="grader", model="m")


@pytest.fixture
def responses_of(tiny, tmp_path, monkeypatch):
    """Makes responses that are there: ``responses_of(texts, seed)`` gives their stage."""
    monkeypatch.setenv("CALIFKIT_RUNS", str(tmp_path / "runs"))
    source = tmp_path / "prompts.jsonl"
    source.write_text("".join(json.dumps(prompt) + "\n" for prompt in PROMPTS))
    loaded = load_jsonl(source, on_error="quarantine")

    def make(texts: dict[str, str] = TEXTS, seed: int = 0, tokenizer=None, **settings):
        tokenizer = tokenizer or tiny.tokenizer
        model = {"model": "tiny-random-llama"} | settings
        how = ResponseSettings(benchmark=str(source))
        stage = GenerateStage(policy=None, evaluation=how, seed=seed, **model)
        rows = []
        for key, text in texts.items():
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            row = {"key": key, "prompt": "p", "response": text, "n_tokens": len(ids)}
            row["token_ids"] = [*ids, tokenizer.eos_token_id]
            rows.append(row | {"finish_reason": "stop"})
        run = open_run("test", stage)
        with run.computing():
            RowLog(run.folder / RESPONSES).append(rows)
            run.finish(time.monotonic(), rows=len(rows), data_sha256=loaded.sha256)
        return stage

    return make


# ---------------------------------------------------------------- response quality


def test_the_judge_sees_the_request_alone_and_every_answer_also_an_empty_one(responses_of):
    stage = QualityStage(responses=responses_of(), judge=JUDGE)
    with serve(by_length) as server:
        run = run_stage("test", stage, execution(server))
        shown = {(between_tags(r, "prompt"), between_tags(r, "response")) for r in server.requests}
    # Without its constraint; a prompt that has none that stands apart is shown whole.
    assert shown == {
        ("Name a drink.", "Iced tea"),
        ("Describe the sea.", "Blue"),
        ("Describe the moon.", ""),
    }
    rows = read_jsonl(run.folder / QUALITY)
    assert [row["key"] for row in rows] == ["7", "3", "9"], "in the order of the responses"
    assert [row["value"] for row in rows] == [9, 5, 1]
    assert [row["request_is_flagged"] for row in rows] == [False, True, True]
    row = rows[0]
    assert (row["status"], row["reason"], row["model"]) == ("ok", "", "served-model")
    assert row["prompt_version"] == QUALITY_PROMPTS["paper"].version
    assert row["usage"]["input_tokens"] == 100
    manifest = run.manifest()
    assert manifest["settings"]["judge"]["name"] == "grader"
    assert (manifest["rows"], manifest["unscored"], manifest["flagged_requests"]) == (3, {}, 2)
    assert manifest["judge_models"] == ["served-model"]
    assert manifest["usage"]["output_tokens"] == 60


def test_reasoning_is_not_shown_to_the_judge(tiny, responses_of, tmp_path):
    folder = save_thinker(tiny, tmp_path / "thinker")
    from califkit.models.resolve import load_tokenizer

    texts = {"7": "<think>or water</think>\n\nIced tea", "3": "<think>The sea never ends"}
    responses = responses_of(
        texts, tokenizer=load_tokenizer(folder), model=str(folder), thinking=True
    )
    with serve(by_length) as server:
        judge_quality("test", QualityStage(responses=responses, judge=JUDGE), execution(server))
        shown = {between_tags(request, "response") for request in server.requests}
    assert shown == {"Iced tea", ""}, "reasoning that never ends is no answer"


def test_an_unscored_response_is_a_row_with_a_reason_and_is_not_asked_about_again(responses_of):
    stage = QualityStage(responses=responses_of(), judge=JUDGE)

    def refuses_blue(request: Request) -> Play:
        return says("no JSON") if between_tags(request, "response") == "Blue" else score(4)

    with serve(refuses_blue) as server:
        run = judge_quality("test", stage, execution(server))
        rows = {row["key"]: row for row in read_jsonl(run.folder / QUALITY)}
        assert (rows["3"]["status"], rows["3"]["value"]) == ("unparsable", None)
        assert rows["3"]["reason"]
        assert run.manifest()["unscored"] == {"unparsable": 1}
        asked = len(server.requests)
        judge_quality("test", stage, execution(server))
        assert len(server.requests) == asked, "a complete stage stays complete"
    shutil.rmtree(run.folder)
    with serve([score(8)]) as server:
        run = judge_quality("test", stage, execution(server))
        assert [between_tags(r, "response") for r in server.requests] == ["Blue"]
    assert [row["value"] for row in read_jsonl(run.folder / QUALITY)] == [4, 8, 4]


def test_a_stage_that_was_stopped_asks_only_for_what_is_missing(responses_of):
    stage = QualityStage(responses=responses_of(), judge=JUDGE)
    with serve([score(4), score(5), error(401, "no such key")]) as server:
        with pytest.raises(JudgeError, match="the key is not accepted"):
            judge_quality("test", stage, execution(server))
        first = [between_tags(r, "response") for r in server.requests]
    assert len(first) == 3
    assert not open_run("test", stage).is_complete
    with serve([score(6)]) as server:
        run = judge_quality("test", stage, execution(server))
        assert [between_tags(r, "response") for r in server.requests] == first[2:]
    assert sorted(row["value"] for row in read_jsonl(run.folder / QUALITY)) == [4, 5, 6]
    assert judge_cache("test", JUDGE).read_text().count("\n") == 3


def test_a_stage_in_which_nothing_was_scored_is_not_complete(responses_of):
    stage = QualityStage(responses=responses_of(), judge=JUDGE)
    with (
        serve([error(503, "overloaded")]) as server,
        pytest.raises(JudgeError, match="none of 3 questions was answered.*failed.*overloaded"),
    ):
        judge_quality("test", stage, execution(server))
    assert not open_run("test", stage).is_complete


def test_a_judge_that_would_answer_otherwise_is_refused(responses_of):
    stage = QualityStage(responses=responses_of(), judge=JUDGE)
    with serve(by_length) as server:
        with pytest.raises(ParamsError, match="temperature = 1.0, not 0.0"):
            judge_quality("test", stage, execution(server, temperature=1.0))
        with pytest.raises(ParamsError, match="no judge 'grader'.*there are: other"):
            judge_quality("test", stage, execution(server, name="other"))
        assert server.requests == []


def test_a_missing_key_shows_before_anything_is_generated(responses_of, monkeypatch):
    monkeypatch.delenv("NO_SUCH_JUDGE_KEY", raising=False)
    responses = responses_of().model_copy(update={"seed": 5})  # these are not there
    with serve(by_length) as server, pytest.raises(JudgeError, match="NO_SUCH_JUDGE_KEY"):
        run_stage(
            "test",
            QualityStage(responses=responses, judge=JUDGE),
            execution(server, api_key_env="NO_SUCH_JUDGE_KEY"),
        )
    assert not open_run("test", responses).folder.exists()


# ---------------------------------------------------------------- tables of scores


def test_scores_enter_the_tables_with_their_judge_and_what_is_missing(responses_of):
    def refuses_blue(request: Request) -> Play:
        return says("?") if between_tags(request, "response") == "Blue" else by_length(request)

    runs, graded = [], []
    with serve(refuses_blue) as server:
        for seed, texts in enumerate([TEXTS, {"7": "Tea", "3": "Sea", "9": "Moon"}]):
            responses = responses_of(texts, seed)
            how = execution(server)
            runs.append(run_stage("test", ScoreStage(responses=responses), how))
            graded.append(
                judge_quality("test", QualityStage(responses=responses, judge=JUDGE), how)
            )
    with pytest.warns(UserWarning, match="1 of 3 responses are unscored"):
        by_run = metrics_by_run(runs, graded)
    # (9 + 1) / 2, since one is unscored; (4 + 4 + 5) / 3
    assert by_run["response_quality"].tolist() == pytest.approx([5.0, 13 / 3])
    assert by_run["quality_unscored"].tolist() == [1, 0]
    assert by_run["judge"].tolist() == ["grader", "grader"]
    row = summary_table(by_run).set_index("metric").loc["response_quality"]
    assert row["mean"] == pytest.approx((5 + 13 / 3) / 2)
    assert (row["runs"], row["judge"], row["unscored"], row["note"]) == (2, "grader", 1, "")
    table = response_table("test", runs, graded[:1])
    assert table["quality"].iloc[[0, 2]].tolist() == [9.0, 1.0]
    assert table["quality"].isna().tolist() == [False, True, False, True, True, True]
    assert table["judge"].tolist() == ["grader"] * 3 + [""] * 3


def test_scores_of_two_judges_are_not_put_into_one_table(responses_of):
    responses = responses_of()
    other = JUDGE.model_copy(update={"name": "other"})
    with serve(by_length) as server:
        stages = [QualityStage(responses=responses, judge=judge) for judge in (JUDGE, other)]
        runs = [
            judge_quality("test", stage, execution(server, name=stage.judge.name))
            for stage in stages
        ]
    with pytest.raises(ValueError, match="different kinds.*grader with prompt.*other with"):
        quality_by_run(runs)


# ---------------------------------------------------------------- pairs


def pair_stage(responses_of, first: dict[str, str], second: dict[str, str]) -> PairwiseStage:
    return PairwiseStage(first=responses_of(first), second=responses_of(second, 1), judge=JUDGE)


def test_pairs_answer_the_same_prompt_and_are_judged_in_both_orders(responses_of):
    first = {"7": "good tea", "3": "sea", "9": "moon"}
    second = {"9": "good moon", "7": "tea", "3": "the sea"}  # in another order
    stage = pair_stage(responses_of, first, second)
    with serve(prefers("good")) as server:
        run = run_stage("test", stage, execution(server))
        shown = {
            (between_tags(r, "first response"), between_tags(r, "second response"))
            for r in server.requests
        }
        assert {between_tags(r, "prompt") for r in server.requests} == {
            "Name a drink.",
            "Describe the sea.",
            "Describe the moon.",
        }
    both = [(first[key], second[key]) for key in first]
    assert shown == {*both, *(pair[::-1] for pair in both)}
    rows = {row["key"]: row for row in read_jsonl(run.folder / PAIRS)}
    assert {key: row["outcome"] for key, row in rows.items()} == {
        "7": "win",
        "3": "tie",
        "9": "loss",
    }
    assert (rows["7"]["first_order"], rows["7"]["second_order"]) == ("first", "second")
    assert all(row["consistent"] for row in rows.values())
    assert rows["7"]["statuses"] == ["ok", "ok"]
    assert rows["7"]["prompt_version"] == PAIR_VERSION
    assert rows["7"]["usage"]["input_tokens"] == 200
    assert run.manifest()["rows"] == 3


def test_an_order_without_a_verdict_makes_a_tie_and_is_counted(responses_of):
    stage = pair_stage(responses_of, {"7": "good tea"}, {"7": "tea"})

    def only_one_order(request: Request) -> Play:
        usual = prefers("good")(request)
        return usual if between_tags(request, "first response") == "good tea" else says("?")

    with serve(only_one_order) as server:
        run = judge_pairs("test", stage, execution(server))
    (row,) = read_jsonl(run.folder / PAIRS)
    assert (row["outcome"], row["consistent"]) == ("tie", False)
    assert (row["first_order"], row["second_order"]) == ("first", None)
    assert row["statuses"] == ["ok", "unparsable"]
    assert run.manifest()["unscored"] == {"unparsable": 1}


def always(verdict: str):
    return lambda _: says(json.dumps({"reasoning": "", "verdict": verdict}))


def first_only_for(word: str, otherwise: str):
    """A judge that names the first response where it has this word."""

    def play(request: Request) -> Play:
        first = word in between_tags(request, "first response")
        return always("first" if first else otherwise)(request)

    return play


@pytest.mark.parametrize(
    ("judge", "outcome", "consistent", "n_unscored"),
    [
        (prefers("tea"), "win", True, 0),
        (prefers("milk"), "loss", True, 0),
        (always("tie"), "tie", True, 0),
        (always("first"), "tie", False, 0),
        (always("second"), "tie", False, 0),
        (first_only_for("tea", "tie"), "tie", False, 0),
        (first_only_for("tea", "A"), "tie", False, 1),
    ],
)
def test_a_pair_is_won_only_if_both_orders_name_the_same_response(
    responses_of, judge, outcome, consistent, n_unscored
):
    stage = pair_stage(responses_of, {"7": "tea"}, {"7": "milk"})
    with serve(judge) as server:
        run = judge_pairs("test", stage, execution(server))
        assert len(server.requests) == 2
    (row,) = read_jsonl(run.folder / PAIRS)
    assert (row["outcome"], row["consistent"]) == (outcome, consistent)
    assert run.manifest()["unscored"] == ({"out_of_range": n_unscored} if n_unscored else {})


def test_policies_that_answer_other_prompts_are_not_paired(responses_of):
    stage = pair_stage(responses_of, {"7": "tea", "3": "sea"}, {"7": "tea", "9": "moon"})
    with serve(prefers("good")) as server:
        with pytest.raises(DataError, match="2 have one response only, the first with key '3'"):
            judge_pairs("test", stage, execution(server))
        assert server.requests == []


# ---------------------------------------------------------------- before the calls


def test_the_estimate_counts_the_calls_that_are_missing(responses_of):
    quality = QualityStage(responses=responses_of(), judge=JUDGE)
    pairs = pair_stage(responses_of, {"7": "tea", "3": "sea"}, {"7": "Tea", "3": "Sea"})
    pairs = pairs.model_copy(update={"first": pairs.second, "second": pairs.second})
    with serve(by_length) as server:
        how = execution(server, price_input=1.0, price_output=1.0)
        # Three responses; two pairs in two orders, each of which is the same question twice.
        assert estimates("test", [quality, pairs], how)["grader"].calls == 3 + 2
        judge_quality("test", quality, how)
        asked = len(server.requests)
        left = estimates("test", [quality, pairs], how)["grader"]
        assert (left.calls, len(server.requests)) == (2, asked)
        assert left.cost > 0


# ---------------------------------------------------------------- the command


@pytest.fixture
def profile(tmp_path, monkeypatch):
    """A profile of the base policy and two tiny trainings; ``profile(server)`` writes its file."""
    monkeypatch.setenv("CALIFKIT_RUNS", str(tmp_path / "runs"))

    def write(url: str, **settings):
        judges = [{"name": "grader", "model": "m", "base_url": url, "retries": 0}]
        tree = {
            "model": "tiny-random-llama",
            "eval_seeds": [0],
            "judge": "grader",
            "data": {"n_prompts": 2},
            "anchors": {"sampling": {"max_tokens": 8}},
            "training": {
                "steps": 1,
                "prompts_per_step": 2,
                "rollouts_per_prompt": 2,
                "max_completion_tokens": 8,
                "micro_batch_size": 4,
            },
            "evaluation": {"n_prompts": 3, "sampling": {"max_tokens": 8}},
            "execution": {"judges": judges},
        }
        path = tmp_path / "judged.yaml"
        path.write_text(yaml.safe_dump({"profile": "judged", "settings": tree | settings}))
        return path

    return write


def test_the_command_wants_a_judge(califkit, profile, tmp_path):
    path = profile("http://127.0.0.1:9/v1", judge=None)
    code, _, told = califkit("judge", "--profile", path)
    assert code == 2
    assert "profile judged has no judge" in told
    assert "described there: grader" in told
    assert not (tmp_path / "runs").exists()


def test_the_command_wants_the_key_before_it_trains(califkit, profile, tmp_path, monkeypatch):
    monkeypatch.delenv("NO_SUCH_JUDGE_KEY", raising=False)
    url = "http://127.0.0.1:9/v1"
    judge = {"name": "grader", "model": "m", "base_url": url, "api_key_env": "NO_SUCH_JUDGE_KEY"}
    path = profile(url, execution={"judges": [judge]})
    code, _, told = califkit("judge", "--profile", path)
    assert code == 2
    assert "NO_SUCH_JUDGE_KEY is not set" in told
    assert not (tmp_path / "runs").exists()


TROUBLE = (  # on the way to a judge, in variables of the environment
    ("ALL_PROXY", "socks://127.0.0.1:7890"),
    ("ALL_PROXY", "socks5://127.0.0.1:7890"),
    ("HTTP_PROXY", "http://127.0.0.1:9"),
    ("SSL_CERT_FILE", "/opt/old-env/ssl/cacert.pem"),
)


@pytest.mark.slow
def test_the_command_shows_what_it_takes_asks_above_the_limit_and_prints_the_tables(
    califkit, profile, monkeypatch
):
    def both(request: Request) -> Play:
        schema = request.body["response_format"]["json_schema"]["schema"]
        return score(6) if "score" in schema["properties"] else prefers("!")(request)

    with serve(both) as server:
        path = profile(server.url, methods=["if_rlvr", "calif"])
        code, told, refused = califkit("judge", "--profile", path, "--limit", 3)
        assert code == 2
        calls = int(re.search(r"judge grader: (\d+) calls", told)[1])
        # Three responses of three policies and three pairs in two orders; equal ones once.
        assert 3 < calls <= 9 + 6
        assert f"{calls} calls are more than --limit 3" in refused
        for name, value in TROUBLE:
            with monkeypatch.context() as environment:
                environment.setenv(name, value)
                code, _, refused = califkit("judge", "--profile", path)
            assert (code, refused.strip().count("\n")) == (2, 0)
            assert "judge grader: " in refused and name in refused
        assert server.requests == []
        code, told, refused = califkit("judge", "--profile", path, "--limit", 3, "--yes")
        assert (code, refused) == (0, "")
        assert len(server.requests) == calls
        rows = [line.split() for line in told.splitlines()]
        means = [row for row in rows if row and row[0] in ("base", "if_rlvr", "calif")]
        assert [row[-4:] for row in means[:3]] == [["6.000", "3", "0", "grader"]] * 3
        assert means[3][:4] == ["calif", "if_rlvr", "grader", "3"]
        code, told, _ = califkit("judge", "--profile", path, "--limit", 0)
        assert code == 0, "a complete one asks for nothing"
        assert len(server.requests) == calls
    stages = load_params(path).settings.quality_stages()
    assert all(open_run("judged", stage).is_complete for stage in stages)
