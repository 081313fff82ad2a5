"""Runs of a judge: the cache, kills, several processes, limits, event loops and secrets."""

import asyncio
import errno
import fcntl
import json
import os
import platform
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context
from pathlib import Path

import pytest
from judge_server import Play, error, says, score, serve

from califkit.judges.cache import Cache
from califkit.judges.judge import Judge, JudgeError
from califkit.judges.parsing import Unparsable
from califkit.judges.prompts import Question, user_turn
from califkit.runs.judge_settings import JudgeSettings

ITEMS = [("Name a prime.", f"answer {i}") for i in range(12)]
SCHEMA = {"type": "object"}


def asks(text, schema=SCHEMA, read=json.loads, version="v1"):
    return Question(user_turn(text), schema, read, version)


WORKER = """
import sys
from califkit.runs.judge_settings import JudgeSettings
from califkit.judges.judge import Judge

url, cache, first, last = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
settings = JudgeSettings(name="t", model="m", base_url=url, concurrency=2)
items = [("Name a prime.", f"answer {i}") for i in range(first, last)]
print([verdict.value for verdict in Judge(settings, cache).quality(items)])
"""


def settings(url: str, **changes) -> JudgeSettings:
    usual = {"name": "t", "model": "m", "retries": 1, "backoff_s": 0.01, "timeout_s": 5.0}
    return JudgeSettings(base_url=url, **usual | changes)


def start(code: str, *arguments: object, **environment: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | environment,
    )


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# The cache.


def test_a_second_run_takes_every_score_from_the_cache(tmp_path):
    path = tmp_path / "new" / "judge.jsonl"
    with serve([score(7)]) as server:
        first = Judge(settings(server.url), path, show_progress=False).quality(ITEMS)
        assert len(server.requests) == len(ITEMS)
        again = Judge(settings(server.url), path, show_progress=False).quality(ITEMS)
        assert len(server.requests) == len(ITEMS)
    assert [v.value for v in again] == [v.value for v in first] == [7] * len(ITEMS)
    assert all(v.cached for v in again)
    assert [v.usage for v in again] == [v.usage for v in first]


def test_a_cached_run_needs_neither_endpoint_nor_key(tmp_path):
    path = tmp_path / "judge.jsonl"
    with serve([score(7)]) as server:
        Judge(settings(server.url), path, show_progress=False).quality(ITEMS[:2])
    elsewhere = settings("http://127.0.0.1:9/v1", api_key_env="NO_SUCH_JUDGE_KEY")
    verdicts = Judge(elsewhere, path, show_progress=False).quality(ITEMS[:2])
    assert [v.value for v in verdicts] == [7, 7]


def test_failures_of_every_kind_are_not_cached_and_repeated(tmp_path):
    path = tmp_path / "judge.jsonl"
    bad = [
        score(11),
        says("prose"),
        says(None, refusal="no"),
        error(400),
        Play(drop=True),
        says("", "length"),
    ]
    for play in bad:
        with serve([play]) as server:
            (verdict,) = Judge(settings(server.url), path, show_progress=False).quality(ITEMS[:1])
        assert verdict.status != "ok"
        assert not path.exists()
    with serve([score(3)]) as server:
        (verdict,) = Judge(settings(server.url), path, show_progress=False).quality(ITEMS[:1])
    assert verdict.value == 3
    assert len(rows(path)) == 1


def test_a_row_says_who_was_asked_what_and_who_answered(tmp_path):
    path = tmp_path / "judge.jsonl"
    with serve([score(7)]) as server:
        (verdict,) = Judge(settings(server.url), path, show_progress=False).quality(ITEMS[:1])
    (row,) = rows(path)
    assert (row["judge"], row["requested_model"], row["model"]) == ("t", "m", "served-model")
    assert row["fingerprint"] == "fp_1"
    assert row["prompt_version"] == verdict.prompt_version
    assert row["text"] == verdict.text
    assert row["usage"]["reasoning_tokens"] == 5
    assert row["date"].startswith("20")


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "other"},
        {"model": "other"},
        {"temperature": 1.0},
        {"temperature": None},
        {"max_tokens": 99},
        {"structured": "none"},
        {"extra_body": {"seed": 1}},
    ],
)
def test_another_judge_or_another_sampling_is_asked_anew(tmp_path, changes):
    path = tmp_path / "judge.jsonl"
    with serve([score(7)]) as server:
        usual = {"url": server.url, "concurrency": 8}
        Judge(settings(**usual), path, show_progress=False).quality(ITEMS[:1])
        changed = settings(**usual).model_copy(update=changes)
        Judge(changed, path, show_progress=False).quality(ITEMS[:1])
        assert len(server.requests) == 2
        moved = settings(**usual).model_copy(update={"concurrency": 1, "retries": 9})
        Judge(moved, path, show_progress=False).quality(ITEMS[:1])
    assert len(server.requests) == 2


def test_another_version_or_schema_of_a_prompt_is_asked_anew(tmp_path):
    other = {"type": "object", "properties": {"a": {"type": "string"}}}
    questions = [
        asks("?"),
        asks("?", version="v2"),
        asks("?", other),
        asks("!"),
        asks("?"),
    ]
    with serve([says("{}")]) as server:
        judge = Judge(settings(server.url, structured="none"), tmp_path / "c", show_progress=False)
        assert [v.status for v in judge.judge_all(questions)] == ["ok"] * 5
    assert len(server.requests) == 4


def test_an_answer_that_the_reader_no_longer_takes_is_asked_for_again(tmp_path):
    def strict(text):
        if "new" not in text:
            raise Unparsable("old kind")
        return 1

    path = tmp_path / "judge.jsonl"
    with serve([says('{"kind": "old"}'), says('{"kind": "new"}')]) as server:
        old = [asks("?")]
        new = [asks("?", read=strict)]
        assert Judge(settings(server.url), path, False).judge_all(old)[0].status == "ok"
        for _ in range(2):
            (verdict,) = Judge(settings(server.url), path, False).judge_all(new)
            assert verdict.value == 1
    assert len(server.requests) == 2


def test_a_torn_last_line_costs_one_call(tmp_path):
    path = tmp_path / "judge.jsonl"
    with serve([score(7)]) as server:
        Judge(settings(server.url), path, show_progress=False).quality(ITEMS)
        whole = path.read_bytes()
        path.write_bytes(whole[:-25])
        Judge(settings(server.url), path, show_progress=False).quality(ITEMS)
    assert len(server.requests) == len(ITEMS) + 1
    assert len({row["key"] for row in rows(path)}) == len(rows(path)) == len(ITEMS)


def test_a_broken_line_in_the_middle_is_an_error_with_file_and_line(tmp_path):
    path = tmp_path / "judge.jsonl"
    with serve([score(7)]) as server:
        Judge(settings(server.url), path, show_progress=False).quality(ITEMS[:3])
        lines = path.read_text().splitlines(True)
        path.write_text(lines[0] + '{"key": 1}\n' + lines[2])
        with pytest.raises(ValueError, match=r"judge\.jsonl: line 2 "):
            Judge(settings(server.url), path, show_progress=False).quality(ITEMS[:3])


def test_lines_are_read_once(tmp_path):
    path = tmp_path / "judge.jsonl"
    writer, reader = Cache(path), Cache(path)
    for step in range(5):
        for i in range(100):
            writer.add({"key": f"{step}-{i}", "text": "x"})
        reader.refresh()
        assert len(reader.rows) == 100 * (step + 1)
        # Nothing that was read before is looked at again, or this would be an error.
        path.write_bytes(path.read_bytes().replace(b"{", b"#"))
    with pytest.raises(ValueError, match="line 1 is no row"):
        Cache(path).refresh()


def test_a_killed_run_continues_with_what_is_missing(tmp_path):
    path = tmp_path / "judge.jsonl"
    with serve(lambda _: says('{"score": 7}', delay=0.1)) as server:
        worker = start(WORKER, server.url, path, 0, 12)
        while len(server.requests) < 7:
            assert worker.poll() is None, worker.stdout.read()
            time.sleep(0.01)
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        kept = len(rows(path))
        sent = len(server.requests)
        assert 0 < kept < 12
        verdicts = Judge(settings(server.url), path, show_progress=False).quality(ITEMS)
        # The worker's settings differ in retries and time-outs only, which change no answer.
        assert len(server.requests) == sent + 12 - kept
    assert [v.value for v in verdicts] == [7] * 12
    assert sum(v.cached for v in verdicts) == kept


def test_two_processes_share_a_cache(tmp_path):
    path = tmp_path / "judge.jsonl"
    with serve(lambda _: says('{"score": 7}', delay=0.02)) as server:
        workers = [start(WORKER, server.url, path, first, first + 20) for first in (0, 10)]
        for worker in workers:
            output, _ = worker.communicate(timeout=60)
            assert str([7] * 20) in output
        before = len(server.requests)
        items = [("Name a prime.", f"answer {i}") for i in range(30)]
        verdicts = Judge(settings(server.url), path, show_progress=False).quality(items)
        assert len(server.requests) == before
    assert [v.value for v in verdicts] == [7] * 30
    assert len({row["key"] for row in rows(path)}) == 30


def _write_rows(path: str, name: str) -> None:
    cache = Cache(Path(path))
    for i in range(60):
        cache.add({"key": f"{name}{i}", "text": name * 20_000})


def test_long_rows_of_two_writers_do_not_mix(tmp_path):
    path = tmp_path / "judge.jsonl"
    path.write_bytes(b'{"key": "torn", "te')
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        for future in [pool.submit(_write_rows, str(path), name) for name in "ab"]:
            future.result()
    found = rows(path)
    assert sorted(row["key"] for row in found) == sorted(f"{n}{i}" for n in "ab" for i in range(60))
    assert all(row["text"] == row["key"][0] * 20_000 for row in found)


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_no_answer_is_lost_where_files_cannot_be_locked(tmp_path, monkeypatch, code):
    path = tmp_path / "judge.jsonl"

    def flock(file, operation):
        raise OSError(code, os.strerror(code))

    with serve([score(7)]) as server:
        Judge(settings(server.url), path, show_progress=False).quality(ITEMS[:1])
        monkeypatch.setattr("fcntl.flock", flock)
        Judge(settings(server.url), path, show_progress=False).quality(ITEMS[:3])
        others = Judge(settings(server.url), path, show_progress=False)
        assert [v.cached for v in others.quality(ITEMS[:4])] == [True, True, True, False]
        monkeypatch.undo()
        again = Judge(settings(server.url), path, show_progress=False).quality(ITEMS[:4])
        assert all(verdict.cached for verdict in again)
    assert len(server.requests) == 4
    own = tmp_path / f"judge.jsonl.{platform.node()}-{os.getpid()}.jsonl"
    assert (len(rows(path)), len(rows(own))) == (1, 3)


def test_no_answer_is_lost_where_a_lock_is_not_given_back(tmp_path, monkeypatch):
    path = tmp_path / "judge.jsonl"
    monkeypatch.setattr("califkit.judges.cache._PATIENCE_S", 0.05)
    with serve([score(7)]) as server, path.open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        Judge(settings(server.url), path, show_progress=False).quality(ITEMS[:3])
        again = Judge(settings(server.url), path, show_progress=False).quality(ITEMS[:3])
    assert all(verdict.cached for verdict in again)
    assert (len(server.requests), path.stat().st_size) == (3, 0)


# Cost and limits.

PRICES = {"price_input": 2.0, "price_output": 10.0, "answer_tokens": 50}


def test_an_estimate_counts_missing_calls_tokens_and_price(tmp_path):
    questions = [asks(f"{i:0400}") for i in range(5)]
    with serve([says("{}")]) as server:
        judge = Judge(settings(server.url, **PRICES), tmp_path / "c", show_progress=False)
        judge.judge_all(questions[:2])
        estimate = judge.estimate([*questions, *questions])
        assert len(server.requests) == 2
    assert (estimate.calls, estimate.cached) == (3, 2)
    # 400 bytes are 100 tokens; 300 x 2 and 150 x 10 a million.
    assert (estimate.input_tokens, estimate.output_tokens) == (300, 150)
    assert estimate.cost == pytest.approx(0.0021)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"max_calls": 4}, r"5 calls .* max_calls is 4"),
        (PRICES | {"max_cost": 0.0034}, r"about 0\.00.* max_cost is 0\.0034"),
    ],
)
def test_a_run_above_its_limit_stops_before_the_first_call(limits, message):
    questions = [asks(f"{i:0400}") for i in range(5)]  # costs 0.0035
    with serve([says("{}")]) as server:
        with pytest.raises(JudgeError, match=message):
            Judge(settings(server.url, **limits), show_progress=False).judge_all(questions)
        assert server.requests == []
        raised = {k: v * 1.5 if k.startswith("max") else v for k, v in limits.items()}
        raised = {k: int(v) if k == "max_calls" else v for k, v in raised.items()}
        Judge(settings(server.url, **raised), show_progress=False).judge_all(questions)
    assert len(server.requests) == 5


def test_what_is_cached_does_not_count_against_the_limit(tmp_path):
    with serve([score(7)]) as server:
        for end in (4, 8, 12):
            judge = Judge(settings(server.url, max_calls=4), tmp_path / "c", show_progress=False)
            assert len(judge.quality(ITEMS[:end])) == end


def test_the_estimate_is_printed_before_a_run(capsys):
    with serve([score(7)]) as server:
        Judge(settings(server.url)).quality(ITEMS)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("judge t: 12 calls (0 more are in the cache), about ")
    assert lines[0].endswith("price not known")
    assert lines[-1] == "judge t: 12 of 12"


# Event loops.


def test_the_synchronous_entry_works_inside_a_running_loop():
    with serve([score(7)]) as server:
        judge = Judge(settings(server.url), show_progress=False)

        async def cell():
            return judge.quality(ITEMS)

        for _ in range(2):  # each call has its own loop, so none may be left over
            assert [v.value for v in asyncio.run(cell())] == [7] * 12
        assert [v.value for v in judge.quality(ITEMS)] == [7] * 12


def test_the_asynchronous_entry_can_be_awaited_with_another():
    with serve([score(7)]) as server:
        one = Judge(settings(server.url), show_progress=False)
        two = Judge(settings(server.url, model="m2"), show_progress=False)
        question = [asks("?")]

        async def both():
            return await asyncio.gather(
                one.judge_all_async(question), two.judge_all_async(question)
            )

        verdicts = asyncio.run(both())
    assert [v.status for (v,) in verdicts] == ["ok", "ok"]
    assert {request.body["model"] for request in server.requests} == {"m", "m2"}


def test_no_questions_are_no_calls():
    judge = Judge(settings("http://127.0.0.1:9/v1"), show_progress=False)
    assert judge.quality([]) == judge.judge_all([]) == []


INTERRUPTED = """
import asyncio, sys
from califkit.runs.judge_settings import JudgeSettings
from califkit.judges.judge import Judge

judge = Judge(JudgeSettings(name="t", model="m", base_url=sys.argv[1]))

async def cell():
    judge.quality([("x", "y")])

try:
    asyncio.new_event_loop().run_until_complete(cell())
except KeyboardInterrupt:
    print("interrupted")
"""


def test_an_interrupted_cell_ends_its_calls():
    with serve(lambda _: says("7", delay=20)) as server:
        worker = start(INTERRUPTED, server.url)
        while not server.requests:
            assert worker.poll() is None, worker.stdout.read()
            time.sleep(0.01)
        started = time.monotonic()
        worker.send_signal(signal.SIGINT)
        output, _ = worker.communicate(timeout=15)
        assert "interrupted" in output
        assert time.monotonic() - started < 10


# Secrets.

KEY = "sk-test-0123456789abcdefSECRET"

LEAKY = """
import logging, sys, traceback
logging.basicConfig(level=logging.DEBUG)
from califkit.runs.judge_settings import JudgeSettings
from califkit.judges.judge import Judge
from califkit.judges.prompts import pair_question

folder, *urls = sys.argv[1:]
for number, url in enumerate(urls):
    settings = JudgeSettings(
        name="t", model="m", base_url=url, api_key_env="JUDGE_TEST_KEY", retries=1, backoff_s=0.01
    )
    judge = Judge(settings, f"{folder}/{number}.jsonl")
    try:
        print(judge.quality([("x", "y")]))
        print(judge.judge_all([pair_question("x", "y", "z")]))
    except Exception:
        traceback.print_exc()
    print("done", judge, judge.__dict__)
"""

ECHOES = [
    says(f'{{"reasoning": "{KEY}", "score": 7, "verdict": "first"}}'),
    says(f"no JSON but {KEY}"),
    says(None, refusal=f"no, {KEY}"),
    error(401, f"Incorrect API key provided: {KEY}"),
    # A message is shown up to 300 characters: the key lies across that limit.
    *(error(400, "x" * n + KEY) for n in (272, 280)),
    error(400, f"unsupported temperature, {KEY}", param=KEY),
    error(
        500,
        KEY,
    ),
    Play(f"Authorization: Bearer {KEY}".encode(), status=502),
    Play(("x" * 100 + KEY).encode(), headers={"content-type": "text/plain"}),
    Play(f'{{"error": "{"x" * 100}{KEY}"}}'.encode()),
]


def test_a_key_that_endpoints_echo_reaches_neither_files_nor_output(tmp_path):
    with ExitStack() as stack:
        servers = [stack.enter_context(serve([play])) for play in ECHOES]
        urls = [server.url for server in servers]
        worker = start(LEAKY, tmp_path, *urls, JUDGE_TEST_KEY=KEY)
        output, _ = worker.communicate(timeout=60)
        sent = [{r.headers["authorization"] for r in server.requests} for server in servers]
    assert sent == [{f"Bearer {KEY}"}] * len(ECHOES)
    assert output.count("done <califkit.judges.judge.Judge") == len(ECHOES)
    assert output.count("JudgeError: judge t") == 2  # 401, and the refused temperature
    written = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) == 1  # of the first endpoint, which has answered with a score
    for text in [output, *written]:
        # No part of it either, as a shortened message could leave.
        assert "sk-test" not in text
        assert "0123456789abcdef" not in text
