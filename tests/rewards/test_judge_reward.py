"""Judges as rewards: what is paid and asked, tau, and a training run against a scripted server."""

import json
import math
import re
import subprocess
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest
from judge_server import Play, Request, error, says, score, serve
from tiny_runs import environment, params_file, tiny_params
from tiny_trainer import likelihood, make_config, make_trainer

from califkit.anchors.region import ZONES
from califkit.anchors.rows import AnchorError
from califkit.data.rows import constraints_json
from califkit.judges.cache import judge_cache
from califkit.judges.judge import Judge, JudgeError
from califkit.judges.prompts import QUALITY_PROMPTS
from califkit.rewards.judge import judge_statistics
from califkit.rewards.trl import CalifReward, RewardError
from califkit.runs.folders import LOG, ROLLOUTS, Run, StaleRunError, own_run
from califkit.runs.jsonl import RowLog, read_jsonl
from califkit.runs.judge_settings import JudgeSettings
from califkit.runs.params import JudgeModel
from califkit.runs.settings import ParamsError
from califkit.training.tau import Tau, fixed_tau, judge_settings, measure_tau
from califkit.verifiers import Constraint

NO_COMMA = constraints_json([Constraint("punctuation:no_comma")])
HALF = constraints_json(
    [
        Constraint("punctuation:no_comma"),
        Constraint("length_constraints:number_words", {"num_words": 99, "relation": "at least"}),
    ]
)

# Response -> what the judge makes of it, its score, the status in the log, the reward for tau = 7,
# alpha = 0.1, under one constraint: no comma. A server that fails is tried twice.
TABLE = {
    "eight": (score(8), 8, "ok", 1.1),
    "seven": (score(7), 7, "ok", 1.0),  # more than tau, not as much
    "one": (score(1), 1, "ok", 1.0),
    "refused": (says(None, refusal="I will not."), None, "refused", 1.0),
    "cut": (says('{"score": 9}', "length"), None, "truncated", 1.0),
    "prose": (says("A fine answer: 9 of 10."), None, "unparsable", 1.0),
    "eleven": (score(11), None, "out_of_range", 1.0),
    "failing": (error(500), None, "failed", 1.0),
    "with, comma": (score(10), None, None, 0.0),  # r_ver = 0
    "": (score(10), None, None, 0.0),
}


def tagged(request: Request, name: str) -> str:
    prompt = request.body["messages"][-1]["content"]
    return re.search(rf"<{name} (\w+)>\n(.*)\n</{name} \1>", prompt, re.DOTALL)[2]


def by_table(request: Request) -> Play:
    return TABLE[tagged(request, "response")][0]


def by_length(request: Request) -> Play:
    """A score that depends on the response alone: 1 to 10, by its last digit of length."""
    return score(1 + len(tagged(request, "response")) % 10)


def settings(url: str, **changes) -> JudgeSettings:
    usual = {"name": "t", "model": "m", "retries": 1, "backoff_s": 0.01, "timeout_s": 20.0}
    return JudgeSettings(base_url=url, **usual | changes)


def judge_at(url: str, **changes) -> Judge:
    return Judge(settings(url, **changes), show_progress=False)


@pytest.fixture(scope="module")
def trainer(tiny, tiny_folder, tmp_path_factory):
    """A trainer that has not trained; two rollouts a prompt."""
    folder = tmp_path_factory.mktemp("trainer")
    config = make_config(folder, per_device_train_batch_size=4, num_generations=2)
    return make_trainer(tiny_folder, config, CalifReward(), tiny.tokenizer)


@pytest.fixture
def bound(trainer):
    """Makes a judge reward that is bound to the trainer."""

    def make(judge, tau=7.0, method="self_judge", **options) -> CalifReward:
        reward = CalifReward(0.1, method, judge=judge, tau=tau, **options)
        reward.bind(trainer)
        return reward

    trainer.model.train()
    return make


def batch_of(tiny, texts, constraints=NO_COMMA) -> dict:
    n = len(texts)
    tokens = tiny.tokenizer(texts, add_special_tokens=False)["input_ids"]
    return {
        "completions": texts,
        "completion_ids": [[*ids, tiny.tokenizer.eos_token_id] for ids in tokens],
        "prompts": [[{"role": "user", "content": "Name a drink. No comma."}]] * n,
        "request": ["Name a drink."] * n,
        "constraints": [constraints] * n,
        "l0": [-100.0] * n,
        "l1": [-50.0] * n,  # l lies above: CaLIF would pay nothing
    }


# ---------------------------------------------------------------- the reward


@pytest.mark.parametrize("method", ["self_judge", "stronger_judge"])
def test_a_verdict_of_every_status(bound, tiny, method):
    taken, logged = [], {}
    with serve(by_table) as server:
        reward = bound(
            judge_at(server.url), method=method, on_rollouts=lambda step, rows: taken.extend(rows)
        )
        rewards = reward(**batch_of(tiny, list(TABLE)), log_metric=logged.__setitem__)
    assert rewards == pytest.approx([paid for *_, paid in TABLE.values()])
    assert reward.__name__ == method
    found = [(row["judge_score"], row["judge_status"], row["reward"]) for row in taken]
    assert found == [(s, status, pytest.approx(r)) for _, s, status, r in TABLE.values()]
    assert {name: value for name, value in logged.items() if name.startswith("judge/")} == {
        "judge/calls": 8,
        "judge/unscored": 5,
        "judge/refused": 1,
        "judge/truncated": 1,
        "judge/unparsable": 1,
        "judge/out_of_range": 1,
        "judge/failed": 1,
        "judge/score": pytest.approx((8 + 7 + 1) / 3),
        "judge/bonus": pytest.approx(1 / 8),
    }


def test_only_rollouts_that_can_earn_are_judged_and_only_by_request_and_answer(bound, tiny):
    texts = ["<think>reasons</think>tea", "<think>open", "coffee", "milk, milk"]
    with serve(by_length) as server:
        reward = bound(judge_at(server.url), tau=4.0)
        rewards = reward(**batch_of(tiny, texts, HALF))
    # Scores 4 and 7; r_ver is one half, which is enough.
    assert rewards == pytest.approx([0.5, 0.0, 0.6, 0.0])
    shown = {(tagged(r, "prompt"), tagged(r, "response")) for r in server.requests}
    assert shown == {("Name a drink.", "tea"), ("Name a drink.", "coffee")}
    for request in server.requests:
        assert not re.search("comma|reasons", json.dumps(request.body), re.IGNORECASE)


@pytest.mark.parametrize(("tau", "paid"), [(6.5, 1.1), (7.0, 1.0), (7.5, 1.0)])
def test_half_below_a_whole_threshold_is_the_rule_at_least_the_threshold(bound, tiny, tau, paid):
    with serve([score(7)]) as server:
        assert bound(judge_at(server.url), tau)(**batch_of(tiny, ["tea"] * 2)) == [paid] * 2


def test_likelihood_and_zones_are_logged_as_for_other_methods(bound, tiny):
    texts = ["tea", "iced tea"]
    taken, logged = [], {}
    with serve([score(10)]) as server:
        reward = bound(judge_at(server.url), on_rollouts=lambda step, rows: taken.extend(rows))
        batch = batch_of(tiny, texts)
        assert reward(**batch, log_metric=logged.__setitem__) == pytest.approx([1.1] * 2)
    expected = [
        likelihood(tiny.model, tiny.tokenizer, "Name a drink.", ids)
        for ids in batch["completion_ids"]
    ]
    assert [row["loglik"] for row in taken] == pytest.approx(expected, abs=1e-5)
    assert [row["zone"] for row in taken] == ["above"] * 2
    assert logged["loglik"] == pytest.approx(sum(expected) / 2, abs=1e-5)
    assert {zone: logged[f"zone/{zone}"] for zone in ZONES}["above"] == 1.0
    assert logged["reward_minus_r_ver"] == pytest.approx(0.1)
    assert logged["zeroed"] == 0.0


def test_without_a_rollout_that_can_earn_nobody_is_asked(bound, tiny):
    logged = {}
    with serve([score(10)]) as server:
        reward = bound(judge_at(server.url))
        assert reward(**batch_of(tiny, [",", ""]), log_metric=logged.__setitem__) == [0.0, 0.0]
        assert not server.requests
    assert (logged["judge/calls"], logged["judge/unscored"]) == (0, 0)
    assert not {"judge/score", "judge/bonus"} & logged.keys()


def test_the_judge_is_asked_while_the_reference_scores(bound, tiny):
    """The judge answers only after the reference is done, and the reference begins only after the
    judge was asked: one after the other, in either order, would wait for ever."""
    asked, scored = threading.Event(), threading.Event()
    events = []

    def slow(request: Request) -> Play:
        asked.set()
        assert scored.wait(20)
        events.append("judge answers")
        return score(9)

    with serve(slow) as server:
        reward = bound(judge_at(server.url))
        passes = reward.scorer.score

        def score_after_the_question(*arguments):
            assert asked.wait(20)
            values = passes(*arguments)
            events.append("reference is done")
            scored.set()
            return values

        reward.scorer.score = score_after_the_question
        assert reward(**batch_of(tiny, ["tea"] * 2)) == pytest.approx([1.1] * 2)
    assert events == ["reference is done", "judge answers"]


def test_an_endpoint_that_refuses_every_call_ends_training(bound, tiny):
    with serve([error(401)]) as server, pytest.raises(RewardError, match="key is not accepted"):
        bound(judge_at(server.url))(**batch_of(tiny, ["tea", "milk"]))


@pytest.mark.parametrize(("calls", "ends"), [(7, False), (8, True)])
def test_a_few_failed_calls_do_not_end_training_but_a_dead_endpoint_does(bound, tiny, calls, ends):
    batch = batch_of(tiny, [f"tea {i}" for i in range(calls)])
    with serve([error(503, "overloaded")]) as server:
        reward = bound(judge_at(server.url, retries=0))
        if ends:
            with pytest.raises(RewardError, match=f"all {calls} calls failed .*overloaded"):
                reward(**batch)
        else:
            assert reward(**batch) == [1.0] * calls


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "self_judge", "tau": 7.0}, "'self_judge' needs judge"),
        ({"method": "stronger_judge", "judge": "a judge"}, "'stronger_judge' needs tau"),
        ({"method": "self_judge", "judge": "a judge", "tau": math.nan}, "tau must be a finite"),
        ({"method": "self_judge", "judge": "a judge", "tau": 7.0, "alpha": 0.0}, "alpha must be"),
        ({"method": "self_judge", "judge": "a judge", "tau": 7.0, "alpha": None}, "needs alpha"),
        ({"method": "calif", "judge": "a judge"}, "'calif' does not use judge"),
        ({"method": "if_rlvr", "tau": 7.0}, "'if_rlvr' does not use tau"),
        (
            {"method": "self_judge", "judge": "a judge", "tau": 7.0, "reversed_bounds": "keep"},
            "'self_judge' does not use reversed_bounds",
        ),
    ],
)
def test_a_reward_without_what_it_needs_or_with_what_it_does_not_use(options, message):
    with pytest.raises(ValueError, match=message):
        CalifReward(**options)


def test_the_bonus_is_counted_among_the_rollouts_that_follow_a_constraint():
    def row(r_ver, reward, status, value):
        return {"r_ver": r_ver, "reward": reward, "judge_status": status, "judge_score": value}

    rows = [row(0.5, 0.6, "ok", 9), row(1.0, 1.0, "ok", 3), row(0.0, 0.0, None, None)]
    found = judge_statistics([*rows, row(1.0, 1.0, "failed", None)])
    assert (found["judge/calls"], found["judge/unscored"], found["judge/failed"]) == (3, 1, 1)
    assert found["judge/bonus"] == pytest.approx(1 / 3)
    assert found["judge/score"] == 6


# ---------------------------------------------------------------- tau


INSTANCES = [
    SimpleNamespace(key=str(i), x=f"Request {i}.", request=f"Request {i}.") for i in range(10)
]


def anchor_folder(folder: Path, answers: list[str]) -> Run:
    """The rows of an anchor run: answer i is y0 of prompt i; every y1 is "natural"."""
    RowLog(folder / "draws.jsonl").append(
        {"key": str(i), "side": side, "draw": 0, "answer": answer if side == "constrained" else "n"}
        for i, answer in enumerate(answers)
        for side in ("natural", "constrained")
    )
    return Run(SimpleNamespace(), folder)


def test_tau_is_the_mean_score_of_the_constrained_reference_answers(tmp_path):
    """Given the request alone; empty answers and prompts that are not trained on are left out."""
    anchors = anchor_folder(tmp_path, ["a" * i for i in range(12)])
    with serve(by_length) as server:
        tau = measure_tau(anchors, INSTANCES, judge_at(server.url))
    # Prompts 1 to 9, of as many letters: scores 2 to 10.
    assert asdict(tau) == {
        "value": 6.0,
        "measured": True,
        "prompt_version": QUALITY_PROMPTS["paper"].version,
        "scored": 9,
        "unscored": {},
        "empty": 1,
        "judge_models": ["served-model"],
    }
    shown = {(tagged(r, "prompt"), tagged(r, "response")) for r in server.requests}
    assert shown == {(f"Request {i}.", "a" * i) for i in range(1, 10)}


def test_unscored_answers_are_left_out_of_tau_and_counted(tmp_path):
    anchors = anchor_folder(tmp_path, [*(["eight"] * 5), *(["one"] * 4), "prose"])
    with serve(by_table) as server:
        tau = measure_tau(anchors, INSTANCES, judge_at(server.url))
    assert tau.value == pytest.approx((5 * 8 + 4 * 1) / 9)
    assert (tau.scored, tau.unscored) == (9, {"unparsable": 1})


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        (["eight"] * 8 + ["prose", "eleven"], "2 of 10 .*1 unparsable, the first: .*1 out_of_ra"),
        (["failing"] * 3, "3 of 3 reference answers are unscored .3 failed, the first: HTTP 500"),
    ],
)
def test_tau_needs_scores_for_nine_in_ten(tmp_path, answers, message):
    anchors = anchor_folder(tmp_path, answers)
    with serve(by_table) as server, pytest.raises(JudgeError, match=message):
        measure_tau(anchors, INSTANCES, judge_at(server.url))


def test_tau_needs_an_answer(tmp_path):
    with pytest.raises(AnchorError, match="no constrained answer"):
        measure_tau(anchor_folder(tmp_path, ["", " "]), INSTANCES, judge_at("http://localhost:9"))


class TestFixedTau:
    """Of a run with the training stage of the tiny profile: 3 steps of 8 rollouts."""

    @pytest.fixture
    def fixed(self, tmp_path, capsys):
        anchors = anchor_folder(tmp_path, ["eight"] * 4)

        def fix(url: str, tau: float | None = None, **changes) -> tuple[Tau, str]:
            (stage,) = judged_params(tmp_path, url, tau=tau).settings.train_stages()
            run = Run(stage, tmp_path / "run")
            found = fixed_tau(
                run, settings(url, **changes), anchors, INSTANCES, tmp_path / "scores.jsonl"
            )
            return found, capsys.readouterr().out

        return fix

    def test_it_is_measured_once(self, fixed, tmp_path):
        with serve(by_table) as server:
            first, _ = fixed(server.url)
        again, _ = fixed("http://127.0.0.1:9/v1")  # nobody is there
        assert (first.value, first.scored) == (8.0, 4)
        assert again.value == first.value
        assert json.loads((tmp_path / "run/tau.json").read_text())["value"] == 8.0
        assert len(read_jsonl(tmp_path / "scores.jsonl")) == 4

    def test_a_given_one_is_taken(self, fixed):
        tau, _ = fixed("http://127.0.0.1:9/v1", tau=6.5)
        assert (tau.value, tau.measured, tau.scored) == (6.5, False, 0)

    def test_the_cost_is_told_before(self, fixed):
        _, told = fixed("http://127.0.0.1:9/v1", tau=6.5)
        assert "judge t: at most 8 calls a step, 24 in 3 steps; about" in told
        assert "200 output tokens a call, price not known" in told
        # Free input; an answer is taken as 200 tokens.
        prices = {"price_input": 0.0, "price_output": 1e6}
        _, told = fixed("http://127.0.0.1:9/v1", tau=6.5, **prices)
        assert "at most about 4800.00" in told
        with pytest.raises(JudgeError, match="cost about 4800.00; max_cost is 4799"):
            fixed("http://127.0.0.1:9/v1", tau=6.5, max_cost=4799, **prices)

    def test_another_wording_of_the_prompt_is_another_run(self, fixed):
        fixed("http://127.0.0.1:9/v1", tau=6.5)
        with pytest.raises(StaleRunError, match="another wording"):
            fixed("http://127.0.0.1:9/v1", tau=6.5, prompt="strict")


# ---------------------------------------------------------------- the training stage


KEY = "sk-do-not-write-this-down"


def judged_settings(url: str, **changes) -> dict:
    """The tiny profile with one training run, of a stronger judge."""
    judge = {
        "name": "t",
        "model": "m",
        "base_url": url,
        "api_key_env": "A_JUDGE_KEY",
        "retries": 1,
        "backoff_s": 0.01,
    }
    return {
        "methods": ["stronger_judge"],
        "stronger_judge": "t",
        "execution": {"judges": [judge], "save_every": 2},
        **changes,
    }


def judged_params(folder: Path, url: str, **changes):
    return tiny_params(folder, **judged_settings(url, **changes))


@pytest.fixture
def runs(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("CALIFKIT_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("A_JUDGE_KEY", KEY)
    return tmp_path / "runs"


def train_at(folder: Path, url: str, **changes) -> Run:
    from califkit.runs.dispatch import run_stage

    params = judged_params(folder, url, **changes)
    (stage,) = params.settings.train_stages()
    return run_stage(params.profile, stage, params.settings.execution)


class TestRefused:
    """Before anything is loaded, computed or asked."""

    @pytest.fixture
    def check(self, tmp_path, runs):
        from califkit.training.checks import check_settings

        params = judged_params(tmp_path, "http://127.0.0.1:9/v1")
        (stage,) = params.settings.train_stages()

        def run(stage_changes=None, **judge_changes):
            (judge,) = params.settings.execution.judges
            judges = (judge.model_copy(update=judge_changes),)
            execution = params.settings.execution.model_copy(update={"judges": judges})
            changed = stage.model_copy(update=stage_changes or {})
            check_settings("tiny", changed, execution)
            return judge_settings(changed, execution)

        return run

    def test_nothing_where_all_is_there(self, check):
        assert check().model == "m"
        assert check(max_calls=24).max_calls == 24

    def test_no_such_judge(self, check):
        with pytest.raises(ParamsError, match="no judge 't' in execution.judges; there are: other"):
            check(name="other")

    def test_a_judge_that_would_answer_otherwise(self, check):
        with pytest.raises(ParamsError, match="not the judge that.*model = 'n', not 'm'"):
            check(model="n")

    def test_no_key(self, check, monkeypatch):
        monkeypatch.delenv("A_JUDGE_KEY")
        with pytest.raises(ParamsError, match="variable A_JUDGE_KEY is not set"):
            check()

    @pytest.mark.parametrize("name", ["judge", "alpha"])
    def test_a_stage_that_lacks_something(self, check, name):
        with pytest.raises(ParamsError, match=f"method stronger_judge needs {name}"):
            check({name: None})

    def test_more_calls_than_are_allowed(self, check):
        with pytest.raises(ParamsError, match="may take 24 calls, one a rollout; max_calls is 23"):
            check(max_calls=23)

    def test_training_does_not_begin(self, tmp_path, runs, monkeypatch):
        monkeypatch.delenv("A_JUDGE_KEY")
        with pytest.raises(ParamsError, match="A_JUDGE_KEY"):
            train_at(tmp_path, "http://127.0.0.1:9/v1")
        assert not runs.exists()


def constrained_answers(runs: Path) -> list[dict]:
    (draws,) = runs.glob("tiny/anchors/*/draws.jsonl")
    return [r for r in read_jsonl(draws) if r["side"] == "constrained" and r["answer"].strip()]


def expected_score(text: str) -> int:
    return 1 + len(text) % 10


@pytest.mark.slow
class TestTraining:
    @pytest.fixture(scope="class")
    def trained(self, tmp_path_factory):
        """A run of four steps whose judge runs out of credit in the last; and what was asked.

        The last checkpoint is then of step 2.
        """
        folder = tmp_path_factory.mktemp("judged")
        result = SimpleNamespace(runs=folder / "runs")
        four_steps = {"training": {"steps": 4}}
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("CALIFKIT_RUNS", str(result.runs))
            patch.setenv("A_JUDGE_KEY", KEY)

            def without_credit(request: Request) -> Play:
                logs = [read_jsonl(p) for p in result.runs.glob(f"tiny/training/*/{LOG}")]
                if any(len(rows) == 3 for rows in logs):
                    return error(402, f"no credit for {KEY}")
                return by_length(request)

            with serve(without_credit) as server:
                with pytest.raises(RewardError, match="no credit") as caught:
                    train_at(folder, server.url, **four_steps)
                result.error = str(caught.value)
                (log,) = result.runs.glob(f"tiny/training/*/{LOG}")
                result.first_log = read_jsonl(log)
                result.first_tau = json.loads((log.parent / "tau.json").read_text())
                server.script = by_length
                n = len(server.requests)
                result.run = train_at(folder, server.url, **four_steps)
                result.first_requests, result.requests = server.requests[:n], server.requests[n:]
            patch.setenv("CALIFKIT_RUNS", str(folder / "again"))
            with serve(by_length) as server:
                result.unbroken = train_at(folder, server.url, **four_steps)
        result.log = read_jsonl(result.run.folder / LOG)
        result.rollouts = read_jsonl(result.run.folder / ROLLOUTS)
        return result

    def test_it_pays_by_the_rule(self, trained):
        assert [row["step"] for row in trained.log] == [1, 2, 3, 4]
        tau = trained.run.manifest()["tau"]["value"]
        able = [row for row in trained.rollouts if row["r_ver"] > 0]
        assert {row["judge_status"] for row in able} == {"ok"}
        assert {row["judge_score"] > tau for row in able} == {True, False}
        for row in able:
            assert row["reward"] == pytest.approx(row["r_ver"] + 0.1 * (row["judge_score"] > tau))
        for row in trained.rollouts:
            assert row["r_ver"] > 0 or (row["judge_score"], row["reward"]) == (None, 0)

    def test_the_judge_is_logged_beside_the_likelihood(self, trained):
        for row in trained.log:
            own = [r for r in trained.rollouts if r["step"] == row["step"] and r["r_ver"] > 0]
            assert row["judge/calls"] == len(own)
            assert row["judge/unscored"] == 0
            if own:
                mean = sum(r["judge_score"] for r in own) / len(own)
                assert row["judge/score"] == pytest.approx(mean)
            assert sum(row[f"zone/{zone}"] for zone in ZONES) == pytest.approx(1)
            assert row["loglik"] is not None

    def test_tau_is_measured_before_the_first_step_and_kept(self, trained):
        answers = constrained_answers(trained.runs)
        expected = [expected_score(row["answer"]) for row in answers]
        tau = trained.run.manifest()["tau"]
        assert tau["value"] == pytest.approx(sum(expected) / len(expected))
        assert (tau["scored"], tau["unscored"], tau["measured"]) == (len(answers), {}, True)
        assert tau["prompt_version"] == QUALITY_PROMPTS["paper"].version
        assert tau == trained.first_tau
        texts = {row["answer"] for row in answers}
        first = trained.first_requests[: len(answers)]
        assert {tagged(r, "response") for r in first} == texts
        assert not {tagged(r, "response") for r in trained.requests} & texts

    def test_it_continues_after_an_error_as_if_there_had_been_none(self, trained):
        assert [row["step"] for row in trained.first_log] == [1, 2, 3]
        assert trained.rollouts == read_jsonl(trained.unbroken.folder / ROLLOUTS)

    def test_verdicts_of_a_step_that_is_computed_again_are_not_asked_for_again(self, trained):
        """Step 3 came after the checkpoint."""
        last = [r for r in trained.rollouts if r["step"] == 4 and r["r_ver"] > 0]
        assert last and any(r["step"] == 3 and r["r_ver"] > 0 for r in trained.rollouts)
        asked = [tagged(r, "response") for r in trained.requests]
        # A set: a connection that breaks is tried again, and the server sees the question twice.
        assert set(asked) == {r["completion"].strip() for r in last}

    def test_no_key_is_written_anywhere(self, trained):
        files = [path for path in trained.runs.rglob("*") if path.is_file()]
        names = {path.name for path in files}
        assert {"manifest.json", "t.jsonl", LOG, ROLLOUTS, "tau.json"} <= names
        assert not [path for path in files if KEY.encode() in path.read_bytes()]
        assert KEY not in trained.error
        assert all(r.headers["authorization"] == f"Bearer {KEY}" for r in trained.requests)

    def test_scores_of_the_reference_answers_are_in_the_cache_of_the_judge(self, trained):
        model = JudgeModel(name="t", model="m")
        assert judge_cache("tiny", model).name == "t.jsonl"
        (cache,) = trained.runs.glob("tiny/judges/t.jsonl")
        answers = {row["answer"] for row in constrained_answers(trained.runs)}
        assert len(read_jsonl(cache)) == len(answers)


IN_TWO_PROCESSES = """
import os
import sys
from accelerate import PartialState
from califkit.runs.params import load_params
from califkit.training.grpo import train
params = load_params(sys.argv[1])
(stage,) = params.settings.train_stages()
try:
    run = train(params.profile, stage, params.settings.execution)
except ValueError as error:
    print(f"[{PartialState().process_index}] {type(error).__name__}: {error}", flush=True)
else:
    print(f"[{PartialState().process_index}] {run.is_complete}", flush=True)
os._exit(0)  # threads of gloo that meet the end of the interpreter abort it now and then
"""


def two_processes(folder: Path, runs: Path, url: str, **changes) -> str:
    from califkit.runs.dispatch import run_stage

    script = folder / "script.py"
    script.write_text(IN_TWO_PROCESSES)
    settings = judged_params(folder, url, **changes).settings
    run_stage("tiny", settings.anchor_stage("stronger_judge"), settings.execution)
    both = judged_settings(url, **changes)
    both["execution"] |= {"processes": 2}
    file = params_file(folder, **both)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    result = subprocess.run(
        [*command, str(script), str(file)],
        env=environment(runs),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout


@pytest.mark.slow
def test_in_two_processes_each_judges_its_own_rollouts(tmp_path, runs):
    with serve(by_length) as server:
        told = two_processes(tmp_path, runs, server.url)
        (stage,) = judged_params(tmp_path, server.url).settings.train_stages()
    assert "[0] True" in told and "[1] True" in told
    assert told.count("tau = ") == 1, "only the first process measures tau"
    run = own_run("tiny", stage)
    assert run.manifest()["processes"] == 2
    rollouts = read_jsonl(run.folder / ROLLOUTS)
    able = [row for row in rollouts if row["r_ver"] > 0]
    assert {row["judge_status"] for row in able} == {"ok"}
    tau = run.manifest()["tau"]["value"]
    for row in able:
        assert row["reward"] == pytest.approx(row["r_ver"] + 0.1 * (row["judge_score"] > tau))
    answers = constrained_answers(runs)
    assert len(server.requests) <= len(answers) + len(able), "nothing is asked by both"
    for row in read_jsonl(run.folder / LOG):
        assert row["judge/calls"] == sum(r["step"] == row["step"] for r in able)


@pytest.mark.slow
def test_an_endpoint_that_refuses_is_an_error_of_both_processes(tmp_path, runs):
    with serve([error(401)]) as server:
        told = two_processes(tmp_path, runs, server.url, tau=7.0)
    for rank in (0, 1):
        assert re.search(rf"\[{rank}\] RewardError: process [01]: .*key is not accepted", told)
