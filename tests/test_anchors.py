"""The bounds: drawing again what came out empty, the table, and joining it to prompts."""

import hashlib
import json

import numpy as np
import pytest

from califkit import anchors
from califkit.anchors import (
    AnchorError,
    anchor_table,
    compute_anchors,
    join_anchors,
    load_anchors,
)
from califkit.composer import compose
from califkit.data import Instance
from califkit.generate import Response, TransformersEngine
from califkit.likelihood import ReferenceScorer
from califkit.params import AnchorStage, DataSettings, Execution, Settings
from califkit.prompts import training_prompts
from califkit.runs import RowLog, StaleRunError, open_run, read_jsonl
from califkit.verifiers import Constraint

CONSTRAINT = Constraint("punctuation:no_comma")
EXECUTION = Execution()


def instance(key: str, request: str) -> Instance:
    text = "Use no comma."
    return Instance(key, f"{request} {text}", (CONSTRAINT,), request, text, "test")


INSTANCES = [instance("b", "Name a drink."), instance("a", "Describe the sea at night.")]


class ScriptedEngine:
    """Answers from a script: for each prompt a list, one answer a try. Remembers what it is asked.

    An empty text is an answer of the end-of-turn token alone.
    """

    def __init__(self, tiny, script: dict[str, list[str]]) -> None:
        self.model, self.tokenizer = tiny.model, tiny.tokenizer
        self.script = {prompt: list(answers) for prompt, answers in script.items()}
        self.calls: list[tuple[list[str], int]] = []

    def generate(self, prompts, sampling, seed):
        self.calls.append((list(prompts), seed))
        texts = [self.script[prompt].pop(0) for prompt in prompts]
        return [Response(text, self.ids(text), "stop") for text in texts]

    def ids(self, text: str) -> list[int]:
        words = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return [*words, self.tokenizer.eos_token_id]


@pytest.fixture
def compute(tiny, tmp_path, monkeypatch):
    """Runs the anchor stage on `INSTANCES` (as a data file) with a scripted engine."""
    monkeypatch.setenv("CALIFKIT_RUNS", str(tmp_path / "runs"))
    source = tmp_path / "rows.jsonl"
    label = [{"instruction_id": [CONSTRAINT.id], "kwargs": [None]}]
    rows = [
        {
            "key": i.key,
            "messages": [{"role": "user", "content": i.prompt}],
            "ground_truth": repr(label),
            "dataset": "ifeval",
            "constraint": i.constraint_text,
        }
        for i in INSTANCES
    ]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def compute(script: dict[str, list[str]], **settings):
        engine = ScriptedEngine(tiny, script)
        monkeypatch.setattr(TransformersEngine, "load", lambda model: engine)
        stage = AnchorStage(
            model="tiny-random-llama",
            data=DataSettings(source=str(source), n_prompts=2),
            anchors=settings,
        )
        return engine, compute_anchors("test", stage, EXECUTION)

    return compute


def script(b0=("iced tea",), b1=("tea",), a0=("dark, calm",), a1=("black water",)):
    """Answers to the constrained (0) and the natural (1) prompt of both instances."""
    first, second = INSTANCES
    return {
        first.prompt: list(b0),
        first.request: list(b1),
        second.prompt: list(a0),
        second.request: list(a1),
    }


def likelihood(engine, request: str, text: str) -> float:
    scorer = ReferenceScorer(engine.model, engine.tokenizer)
    return scorer.score([request], [engine.ids(text)])[0]


def test_bounds_are_scored_given_the_request_alone(compute):
    engine, run = compute(script())
    table = load_anchors(run)
    assert table["key"].tolist() == ["b", "a"], "in the order of the data"
    drink, sea = (i.request for i in INSTANCES)
    expected = {
        "l0": [likelihood(engine, drink, "iced tea"), likelihood(engine, sea, "dark, calm")],
        "l1": [likelihood(engine, drink, "tea"), likelihood(engine, sea, "black water")],
    }
    for bound, values in expected.items():
        assert table[bound].tolist() == pytest.approx(values, abs=1e-5)
    assert table["constrained_r_ver"].tolist() == [1.0, 0.0]
    lengths = [len(engine.ids(text)) - 1 for text in ("iced tea", "dark, calm")]
    assert table["constrained_tokens"].tolist() == lengths
    manifest = run.manifest()
    assert (manifest["rows"], manifest["missing_bounds"]) == (2, 0)
    reversed_rows = sum(a > b for a, b in zip(expected["l0"], expected["l1"], strict=True))
    assert manifest["reversed_bounds"] == reversed_rows


def test_an_empty_answer_is_drawn_again_from_another_seed(compute):
    engine, run = compute(script(b0=["", "  \n", "iced tea"], a1=["", "black water"]))
    (first, seed), (second, seed2), (third, seed3) = engine.calls
    assert sorted(first) == sorted(script())
    assert sorted(second) == sorted([INSTANCES[0].prompt, INSTANCES[1].request])
    assert third == [INSTANCES[0].prompt]
    assert len({seed, seed2, seed3}) == 3
    rows = read_jsonl(run.folder / anchors.DRAWS)
    tries = {(row["key"], row["side"]): row["tries"] for row in rows}
    assert tries == {
        ("b", "constrained"): 3,
        ("b", "natural"): 1,
        ("a", "constrained"): 1,
        ("a", "natural"): 2,
    }
    assert load_anchors(run)[["l0", "l1"]].notna().all(axis=None)


def test_an_answer_that_stays_empty_leaves_no_bound_and_is_counted(compute):
    engine, run = compute(script(b0=["", "", " ", "never asked"]), retries=2)
    table = load_anchors(run).set_index("key")
    assert np.isnan(table.at["b", "l0"])
    assert not np.isnan(table.at["b", "l1"])
    assert table.loc["a", ["l0", "l1"]].notna().all()
    assert run.manifest()["missing_bounds"] == 1
    assert engine.script[INSTANCES[0].prompt] == ["never asked"]
    empty = [r for r in read_jsonl(run.folder / anchors.DRAWS) if not r["response"].strip()]
    assert [(r["loglik"], r["r_ver"], r["tries"]) for r in empty] == [(None, 0.0, 3)]


def test_several_draws_are_averaged(compute):
    engine, run = compute(
        script(*[[text, f"more {text}", ""] for text in ("one", "two", "three", "four")]),
        draws=3,
        retries=0,
    )
    request = INSTANCES[0].request
    parts = [likelihood(engine, request, text) for text in ("one", "more one")]
    table = load_anchors(run).set_index("key")
    assert table.at["b", "l0"] == pytest.approx(np.mean(parts), abs=1e-5), "the empty one is out"
    assert len(read_jsonl(run.folder / anchors.DRAWS)) == 2 * 2 * 3


def test_the_table_takes_rows_in_any_order():
    rows = [
        {"key": key, "side": side, "loglik": value, "n_tokens": n, "r_ver": r_ver}
        for key, side, value, n, r_ver in [
            ("a", "natural", -1.0, 4, 1.0),
            ("b", "constrained", -3.0, 2, 0.5),
            ("b", "natural", None, 0, 0.0),
            ("a", "constrained", -2.0, 6, 0.0),
        ]
    ]
    table = anchor_table(INSTANCES, rows)
    assert table["key"].tolist() == ["b", "a"]
    assert table["l0"].tolist() == [-3.0, -2.0]
    assert np.isnan(table.at[0, "l1"])
    assert table.at[1, "l1"] == -1.0
    assert table["natural_tokens"].tolist() == [0, 4]
    assert table["constrained_r_ver"].tolist() == [0.5, 0.0]
    expected = hashlib.sha256(b"Name a drink.").hexdigest()
    assert table.at[0, "request_sha256"] == expected


@pytest.fixture
def table():
    rows = [
        {"key": i.key, "side": side, "loglik": value, "n_tokens": 3, "r_ver": 1.0}
        for i, value in zip(INSTANCES, (-1.0, -2.0), strict=True)
        for side in anchors.SIDES
    ]
    return anchor_table(INSTANCES, rows)


def test_bounds_are_joined_by_key(table):
    assert join_anchors(INSTANCES[::-1], table)["l0"].tolist() == [-2.0, -1.0]
    assert join_anchors(INSTANCES[:1], table)["key"].tolist() == ["b"]


def test_a_prompt_without_bounds_is_named(table):
    with pytest.raises(AnchorError, match="no anchors for the prompt with key 'new'"):
        join_anchors([*INSTANCES, instance("new", "Name a drink.")], table)


def test_bounds_of_another_request_are_refused(table):
    with pytest.raises(AnchorError, match="key 'a' were measured for another request"):
        join_anchors([INSTANCES[0], instance("a", "Describe the sea by day.")], table)


def test_bounds_of_an_incomplete_run_are_refused(compute, monkeypatch):
    _, run = compute(script())
    (run.folder / "manifest.json").unlink()
    with pytest.raises(AnchorError, match=f"{run.folder} are not complete"):
        load_anchors(open_run("test", run.stage))


def test_anchors_are_not_continued_with_edited_prompts(tmp_path, monkeypatch):
    monkeypatch.setenv("CALIFKIT_RUNS", str(tmp_path / "runs"))
    prompts = tmp_path / "prompts.jsonl"
    ids = ["punctuation:no_comma"]
    settings = Settings(
        model="tiny-random-llama",
        data={"source": str(prompts), "n_prompts": 2, "constraint_ids": ids},
        training={"prompts_per_step": 2, "micro_batch_size": 8},
    )
    stage = settings.anchor_stage()
    for seed in (0, 1):
        prompts.unlink(missing_ok=True)
        RowLog(prompts).append(compose(2, seed, constraint_ids=ids))
        if seed == 0:  # begun, and killed before the first batch
            run = open_run("tiny", stage)
            run.folder.mkdir(parents=True)
            run.pin_data(training_prompts(stage.data).sha256)
    with pytest.raises(StaleRunError):
        compute_anchors("tiny", stage, Execution())
