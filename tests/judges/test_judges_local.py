"""Judging by a real model behind a real server: ``transformers serve`` with SmolLM2 on the CPU."""

import json
import socket
import subprocess
import sys
import time
import urllib.request
from functools import partial

import pytest

from califkit.judges.judge import Judge, JudgeError
from califkit.judges.parsing import read_choice
from califkit.judges.prompts import Question, answer_schema, user_turn
from califkit.runs.judge_settings import JudgeSettings

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Address and model name of the running server."""
    from transformers.utils.import_utils import is_serve_available

    from califkit.models.resolve import resolve

    if not is_serve_available():
        pytest.skip("transformers serve needs fastapi and uvicorn, which are not installed")
    folder = str(resolve("smollm2-135m-instruct"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    code = "from transformers.cli.transformers import main; main()"
    options = ["--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    log = tmp_path_factory.mktemp("serve") / "log"
    with log.open("w") as output:
        server = subprocess.Popen(
            [sys.executable, "-c", code, "serve", folder, *options],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        for _ in range(120):
            assert server.poll() is None, log.read_text()
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1):
                    break
            except OSError:
                time.sleep(0.5)
        yield f"http://127.0.0.1:{port}/v1", folder
    finally:
        server.terminate()
        server.wait(timeout=20)


def settings(served, **changes) -> JudgeSettings:
    url, model = served
    usual = {"structured": "none", "max_tokens": 16, "concurrency": 1, "retries": 0}
    return JudgeSettings(name="smollm2", model=model, base_url=url, **usual | changes)


# Two examples are enough for this model to keep the form, though not to be right.
BY_EXAMPLE = (
    {"role": "user", "content": "Is fire hot?"},
    {"role": "assistant", "content": '{"answer": "yes"}'},
    {"role": "user", "content": "Is ice hot?"},
    {"role": "assistant", "content": '{"answer": "no"}'},
    {"role": "user", "content": "Is the sun hot?"},
)


def asks(messages):
    read = partial(read_choice, key="answer", choices=("yes", "no"))
    return [Question(messages, answer_schema(answer={"type": "string"}), read, "v1")]


def test_an_answer_in_the_form_asked_for_is_read_and_kept(served, tmp_path):
    path = tmp_path / "judge.jsonl"
    (verdict,) = Judge(settings(served), path).judge_all(asks(BY_EXAMPLE))
    assert verdict.status == "ok", verdict
    assert json.loads(verdict.text) == {"answer": verdict.value}
    assert verdict.model.startswith(served[1])
    assert verdict.usage.input_tokens > 0
    (again,) = Judge(settings(served), path).judge_all(asks(BY_EXAMPLE))
    assert again.cached
    assert again.value == verdict.value


def test_a_weak_model_gives_a_score_or_a_reason_why_not(served, tmp_path):
    path = tmp_path / "judge.jsonl"
    (verdict,) = Judge(settings(served), path).quality([("Name a prime.", "Seven is a prime.")])
    # What this model writes is its own affair; the endpoint is never at fault.
    assert verdict.status in ("ok", "unparsable", "out_of_range", "truncated")
    assert verdict.usage.input_tokens > 100
    assert (verdict.value is not None) == (verdict.status == "ok") == path.exists()
    assert (verdict.reason == "") == (verdict.status == "ok")


def test_a_truncated_answer_is_told_from_a_whole_one(served):
    story = asks(user_turn("Write a long story about a river."))
    (verdict,) = Judge(settings(served, max_tokens=4)).judge_all(story)
    assert (verdict.status, verdict.value) == ("truncated", None)
    assert verdict.usage.output_tokens == 4 + 8


def test_a_field_that_this_server_refuses_is_named(served):
    judge = Judge(settings(served, extra_body={"no_such_field": 1}))
    with pytest.raises(JudgeError, match="extra_body without no_such_field"):
        judge.quality([("x", "y")])
