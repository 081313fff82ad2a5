"""The bounds: drawing again what came out empty, the table and how it was measured, joining it."""

import errno
import hashlib
import json
import os
import shutil
from collections import Counter

import numpy as np
import pandas as pd
import pytest

from califkit.anchors import measure
from califkit.anchors import rows as anchor_rows
from califkit.anchors import table as anchor_table
from califkit.anchors.measure import compute_anchors, self_test
from califkit.anchors.probe import PROBE, draw_probe, read_probe
from califkit.anchors.rows import AnchorError, read_draws
from califkit.anchors.table import bounds_for, degenerate, join_anchors, load_anchors
from califkit.data.composer import compose
from califkit.data.load import Instance
from califkit.data.prompts import training_prompts
from califkit.models.engines import stop_token_ids, to_response
from califkit.models.likelihood import ReferenceScorer
from califkit.runs.folders import StaleRunError, open_run
from califkit.runs.jsonl import RowLog
from califkit.runs.params import Settings
from califkit.runs.paths import StorageError
from califkit.runs.settings import DataSettings, Execution
from califkit.runs.stages import AnchorStage
from califkit.runs.units import unit_seed
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

    def __init__(self, tiny, script: dict[str, list[str]], thinking: bool) -> None:
        self.model, self.tokenizer = tiny.model, tiny.tokenizer
        self.thinking = thinking
        self.script = {prompt: list(answers) for prompt, answers in script.items()}
        self.calls: list[tuple[list[str], int]] = []
        self.closed = False

    def close(self):
        self.closed = True

    def generate(self, prompts, sampling, seed):
        assert not self.closed
        self.calls.append((list(prompts), seed))
        texts = [self.script[prompt].pop(0) for prompt in prompts]
        stop = stop_token_ids(self.model.generation_config, self.tokenizer)
        return [to_response(self.ids(text), stop, self.tokenizer, self.thinking) for text in texts]

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

    def compute(script: dict[str, list[str]], thinking: bool = False, **settings):
        engine = ScriptedEngine(tiny, script, thinking)
        monkeypatch.setattr(measure, "load_engine", lambda model, kind, thinking, limit: engine)
        stage = AnchorStage(
            model="tiny-random-llama",
            thinking=thinking,
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
    rows = list(read_draws(run.folder))
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
    assert run.manifest()["missing_answers"] == {
        "constrained": {"ended without an answer": 1},
        "natural": {},
    }
    empty = [row for row in read_draws(run.folder) if not row["answer"]]
    assert [(r["loglik"], r["r_ver"], r["tries"], r["defect"]) for r in empty] == [
        (None, 0.0, 3, "empty")
    ]


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
    assert len(list(read_draws(run.folder))) == 2 * 2 * 3
    assert table.at["b", "constrained_l"].tolist() == pytest.approx([*parts, np.nan], nan_ok=True)


def test_verifier_and_likelihood_see_the_answer_behind_the_reasoning(compute):
    thought = "<think>\nOne, two, three.\n</think>\n\n"
    engine, run = compute(
        script(
            b0=[f"{thought}iced tea"],
            b1=["<think>never, ever closed", f"{thought}tea"],
            a0=[f"{thought}dark, calm"],
            a1=["<think>open", "<think>open"],
        ),
        thinking=True,
        retries=1,
    )
    rows = {(row["key"], row["side"]): row for row in read_draws(run.folder)}
    row = rows["b", "constrained"]
    assert row["response"] == f"{thought}iced tea"
    assert row["token_ids"] == engine.ids(row["response"]), "all that was generated is kept"
    assert (row["answer"], row["r_ver"]) == ("iced tea", 1.0), "commas of the reasoning are free"
    request = INSTANCES[0].request
    tail = engine.ids("iced tea")
    assert row["token_ids"][-len(tail) :] == tail
    assert row["loglik"] == pytest.approx(likelihood(engine, request, "iced tea"), abs=1e-5)
    assert row["n_tokens"] == len(tail) - 1
    assert rows["b", "natural"]["tries"] == 2, "reasoning that never ends is an empty answer"
    assert rows["a", "natural"]["defect"] == "empty"
    assert run.manifest()["missing_bounds"] == 1
    metadata = anchor_table.read_metadata(run.folder / measure.ANCHORS)
    assert metadata["thinking"] is True
    assert self_test(run, INSTANCES, ReferenceScorer(engine.model, engine.tokenizer)) < 1e-5


# ---------------------------------------------------------------- engine and disk


def test_the_engine_is_closed_when_the_answers_are_drawn(compute):
    engine, _ = compute(script())
    assert engine.closed


def test_the_engine_is_closed_when_drawing_fails(compute, monkeypatch):
    opened = []

    def fail(self, *args):
        opened.append(self)
        raise RuntimeError("out of memory")

    monkeypatch.setattr(ScriptedEngine, "generate", fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        compute(script())
    assert [engine.closed for engine in opened] == [True]


def test_no_model_is_loaded_where_all_answers_are_there(compute, monkeypatch):
    _, run = compute(script())
    table = (run.folder / measure.ANCHORS).read_bytes()
    for name in ("manifest.json", measure.ANCHORS):  # as a kill before the merge leaves it
        (run.folder / name).unlink()

    def refuse(*args):
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(measure, "load_engine", refuse)
    monkeypatch.setattr(measure, "load_model", refuse)
    run = compute_anchors("test", run.stage, EXECUTION)
    assert run.is_complete
    assert (run.folder / measure.ANCHORS).read_bytes() == table


def test_a_folder_that_cannot_be_written_is_named_before_a_model_is_loaded(compute, monkeypatch):
    monkeypatch.setenv("CALIFKIT_RUNS", "/proc/x")
    monkeypatch.setattr(measure, "drawing", None)
    with pytest.raises(StorageError, match="^/proc/x/test/anchors/.*: cannot be written: "):
        compute(script())


def test_a_disk_without_room_for_the_answers_is_refused(compute, monkeypatch):
    usage = shutil.disk_usage("/")._replace(free=10_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    # Two prompts, two sides and three draws, of 150 tokens each: 12 * (150 * 12 + 500) = 27,600.
    with pytest.raises(StorageError, match="about 0.00 GB are needed, 0.00 GB are free"):
        compute(script(), draws=3, sampling={"max_tokens": 150})
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage._replace(free=9_200))
    _, run = compute(script(), sampling={"max_tokens": 150})  # 4 * 2,300 = 9,200
    assert run.is_complete


def test_a_disk_that_fills_up_is_explained(compute, monkeypatch):
    def full(self, rows):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(RowLog, "append", full)
    with pytest.raises(StorageError, match="the disk is full; free some space"):
        compute(script())


# ---------------------------------------------------------------- the probe


EXTRA = [["tea one", "tea two", "tea three"], ["t one", "t two", "t three"]]


@pytest.fixture
def probe(compute, tiny, monkeypatch):
    """A complete anchor run, and a function that probes it with a scripted engine."""
    _, run = compute(script(), sampling={"batch_size": 4})
    monkeypatch.setattr(measure, "load_engine", None)

    def probe(n, b0=EXTRA[0], b1=EXTRA[1], a0=EXTRA[0], a1=EXTRA[1]):
        engine = ScriptedEngine(tiny, script(b0, b1, a0, a1), thinking=False)
        monkeypatch.setattr(measure, "load_engine", lambda *args: engine)
        draw_probe(run, INSTANCES, EXECUTION, n)
        return engine

    return run, probe


def test_a_probe_draws_three_more_answers_a_side_and_changes_nothing_else(probe):
    run, draw = probe
    before = {p.name: p.read_bytes() for p in run.folder.iterdir()}
    assert read_probe(run, INSTANCES) is None
    engine = draw(2)
    assert engine.closed
    after = {p.name: p.read_bytes() for p in run.folder.iterdir()}
    assert set(after) - set(before) == {PROBE, ".probe.lock"}
    assert all(after[name] == content for name, content in before.items())
    table = read_probe(run, INSTANCES)
    assert table["key"].tolist() == ["b", "a"]
    request = INSTANCES[0].request
    expected = [likelihood(engine, request, text) for text in EXTRA[0]]
    assert sorted(table.at[0, "constrained_l"]) == pytest.approx(sorted(expected), abs=1e-5)
    numbers = [unit_seed(0, number, 0) for number in range(100)]
    assert not {seed for _, seed in engine.calls} & set(numbers), "seeds of its own"
    assert draw(2).calls == [], "nothing is drawn twice"


def test_a_probe_takes_prompts_from_all_over_the_data(probe):
    run, draw = probe
    draw(1)
    assert read_probe(run, INSTANCES)["key"].tolist() == ["a"], "the middle of two"
    with pytest.raises(AnchorError, match="holds a probe of 1 prompts, not of 2; delete the file"):
        draw(2)
    with pytest.raises(AnchorError, match="a probe takes 1 to 2 prompts here, not 3"):
        draw(3)


def test_a_probe_of_bounds_that_were_measured_otherwise_is_refused(probe):
    run, draw = probe
    path = run.folder / measure.ANCHORS
    metadata = anchor_table.read_metadata(path)
    metadata["scorer"] = metadata["scorer"] | {"precision": "float8"}
    anchor_table.write_anchors(load_anchors(path), path, metadata)
    with pytest.raises(AnchorError, match="scorer.precision is 'float8', but 'float32'"):
        draw(2)


def test_a_probe_that_was_interrupted_is_continued(probe):
    run, draw = probe
    whole = draw(2)
    path = run.folder / PROBE
    rows = path.read_bytes()
    lines = rows.splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:5]) + lines[5][:20])
    with pytest.raises(AnchorError, match="5 of 12 answers; `califkit anchors report --probe 2`"):
        read_probe(run, INSTANCES)
    # The first batch of four is whole: the scripts of its prompts have gone on.
    drawn = Counter(prompt for prompts, _ in whole.calls[:1] for prompt in prompts)
    left = [
        texts[drawn[prompt] :] for (prompt, texts) in zip(script(), [*EXTRA, *EXTRA], strict=True)
    ]
    engine = draw(2, *left)
    assert engine.calls == whole.calls[1:]
    assert path.read_bytes() == rows


# ---------------------------------------------------------------- the table


def row(key, side, l, n_tokens=12, r_ver=1.0, draw=0, answer="text", finish="stop"):  # noqa: E741
    return {
        "key": key,
        "side": side,
        "draw": draw,
        "answer": f"{answer} {side}" if answer else "",
        "loglik": l,
        "n_tokens": n_tokens,
        "followed": [r_ver == 1.0],
        "r_ver": r_ver,
        "finish_reason": finish,
        "defect": anchor_rows.defect(answer, n_tokens),
    }


def test_the_table_takes_rows_in_any_order():
    rows = [
        row("a", "natural", -1.0, 40),
        row("b", "constrained", -3.0, 20, 0.5),
        row("b", "natural", None, 0, 0.0, answer="", finish="length"),
        row("a", "constrained", -2.0, 60, 0.0),
    ]
    table = anchor_table.anchor_table(INSTANCES, rows)
    assert table["key"].tolist() == ["b", "a"]
    assert table["l0"].tolist() == [-3.0, -2.0]
    assert np.isnan(table.at[0, "l1"])
    assert table.at[1, "l1"] == -1.0
    assert table["natural_tokens"].tolist() == [0, 40]
    assert table["constrained_r_ver"].tolist() == [0.5, 0.0]
    assert table["constrained_followed"].map(list).tolist() == [[0.0], [0.0]]
    assert table["natural_defect_each"].map(list).tolist() == [["empty"], [""]]
    expected = hashlib.sha256(b"Name a drink.").hexdigest()
    assert table.at[0, "request_sha256"] == expected
    assert anchor_table.table_facts(table) == {
        "missing_bounds": 1,
        "missing_answers": {
            "constrained": {},
            "natural": {"no answer before the token limit": 1},
        },
        "reversed_bounds": 0,
    }


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([row("b", "natural", -1.0)], "no constrained answer 0 of key 'b'"),
        ([row("new", "natural", -1.0)], "sample 0 of key 'new' is none of this run's"),
        ([row("b", "natural", -1.0, draw=1)], "sample 1 of key 'b' is none of this run's"),
    ],
)
def test_rows_that_do_not_make_a_table_are_named(rows, message):
    with pytest.raises(AnchorError, match=message):
        anchor_table.anchor_table(INSTANCES, rows)


@pytest.fixture
def table():
    rows = [
        row(i.key, side, value)
        for i, value in zip(INSTANCES, (-1.0, -2.0), strict=True)
        for side in measure.SIDES
    ]
    return anchor_table.anchor_table(INSTANCES, rows)


def test_bounds_are_joined_by_key(table):
    assert join_anchors(INSTANCES[::-1], table)["l0"].tolist() == [-2.0, -1.0]
    assert join_anchors(INSTANCES[:1], table)["key"].tolist() == ["b"]


def test_a_prompt_without_bounds_is_named(table):
    with pytest.raises(AnchorError, match="no anchors for the prompt with key 'new'"):
        join_anchors([*INSTANCES, instance("new", "Name a drink.")], table)


def test_bounds_of_another_request_are_refused(table):
    with pytest.raises(AnchorError, match="key 'a' were measured for another request"):
        join_anchors([INSTANCES[0], instance("a", "Describe the sea by day.")], table)


def test_the_region_methods_take_ends_of_intervals_and_complete_prompts_only():
    values = {"constrained": (-3.0, -2.0), "natural": (-1.5, -0.5)}
    rows = [
        row(key, side, None if (key, side, draw) == ("a", "natural", 1) else value, draw=draw)
        for key in "ba"
        for side, pair in values.items()
        for draw, value in enumerate(pair)
    ]
    table = anchor_table.anchor_table(INSTANCES, rows, draws=2)
    l0, l1 = bounds_for("calif", table)
    assert l0.tolist() == [-2.5, -2.5]
    assert l1.tolist() == [-1.0, -1.5], "the mean of what is there"
    # Two draws half a nat from their mean: s = sqrt(0.5), h = 12.7062 * s / sqrt(2) = 6.3531.
    l0, l1 = bounds_for("outer_region", table)
    assert l0[0] == pytest.approx(-2.5 - 6.3531, abs=1e-4)
    assert l1[0] == pytest.approx(-1.0 + 6.3531, abs=1e-4)
    l0, l1 = bounds_for("inner_region", table)
    assert l0[0] == pytest.approx(-2.5 + 6.3531, abs=1e-4)
    assert np.isnan([l0[1], l1[1]]).all()


# ---------------------------------------------------------------- how they were measured


def test_the_file_says_how_the_bounds_were_measured(compute, tiny):
    _, run = compute(script(), sampling={"max_tokens": 9, "top_p": 0.9}, seed=3)
    found = anchor_table.read_metadata(run.folder / measure.ANCHORS)
    template = hashlib.sha256(tiny.tokenizer.chat_template.encode()).hexdigest()
    expected = {
        "schema": 1,
        "model": "tiny-random-llama",
        "thinking": False,
        "engine": None,
        "chat_template_sha256": template,
        "data_sha256": run.manifest()["data_sha256"],
        "draws": 1,
        "retries": 3,
        "seed": 3,
        "dtype": "float32",
    }
    assert {key: found[key] for key in expected} == expected
    assert found["sampling"] == {
        "temperature": 1.0,
        "top_p": 0.9,
        "top_k": 0,
        "max_tokens": 9,
        "batch_size": 32,
    }
    drawn = run.manifest()["sampling"]
    assert (drawn["top_p"], drawn["max_new_tokens"], drawn["min_p"]) == (0.9, 9, None)
    assert found["scorer"]["precision"] == "float32"
    assert found["versions"]["transformers"]


def changed(stage: AnchorStage, **changes) -> AnchorStage:
    """The stage with other settings, given as in the metadata: ``sampling__top_p=0.9``."""
    tree = stage.model_dump()
    for name, value in changes.items():
        path = name.split("__")
        if path[0] in tree["anchors"]:
            path = ["anchors", *path]
        place = tree
        for part in path[:-1]:
            place = place[part]
        place[path[-1]] = value
    return AnchorStage(**tree)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "smollm2-135m-instruct"}, "model is 'tiny-random-llama', but 'smollm2"),
        ({"thinking": True}, "thinking is False, but True"),
        ({"engine": "vllm"}, "engine is None, but 'vllm'"),
        ({"sampling__temperature": 0.9}, "sampling.temperature is 1.0, but 0.9"),
        ({"sampling__top_p": 0.95}, "sampling.top_p is 1.0, but 0.95"),
        ({"sampling__top_k": 20}, "sampling.top_k is 0, but 20"),
        ({"sampling__max_tokens": 65}, "sampling.max_tokens is 2048, but 65"),
        ({"draws": 8}, "draws is 1, but 8"),
        ({"seed": 1}, "seed is 0, but 1"),
    ],
)
def test_bounds_that_were_measured_otherwise_are_refused(compute, changes, message):
    _, run = compute(script())
    path = run.folder / measure.ANCHORS
    with pytest.raises(AnchorError, match=message) as error:
        load_anchors(path, changed(run.stage, **changes))
    assert str(path) in str(error.value)


def test_bounds_of_other_prompts_or_another_template_are_refused(compute):
    _, run = compute(script())
    path = run.folder / measure.ANCHORS
    sha256 = run.manifest()["data_sha256"]
    with pytest.raises(AnchorError, match=f"data_sha256 is '{sha256}', but 'abc'"):
        load_anchors(run, run.stage, "abc")
    metadata = anchor_table.read_metadata(path)
    other_day = metadata | {"template_date": "2025-01-01"}
    anchor_table.write_anchors(load_anchors(path), path, other_day)
    with pytest.raises(AnchorError, match="template_date is '2025-01-01', but None is expected"):
        load_anchors(path, run.stage, sha256)
    anchor_table.write_anchors(load_anchors(path), path, metadata | {"chat_template_sha256": "x"})
    with pytest.raises(AnchorError, match="chat_template_sha256 is 'x', but '"):
        load_anchors(run, run.stage, sha256)


def test_bounds_that_were_scored_in_another_precision_are_refused(compute, monkeypatch):
    _, run = compute(script())
    monkeypatch.setattr(anchor_table, "scoring_precision", lambda: "bfloat16 autocast")
    message = "scorer.precision is 'float32', but 'bfloat16 autocast' is expected; .* on a machine"
    with pytest.raises(AnchorError, match=message):
        load_anchors(run, run.stage)
    metadata = anchor_table.read_metadata(run.folder / measure.ANCHORS)
    metadata["scorer"]["precision"] = "bfloat16 autocast"
    anchor_table.write_anchors(load_anchors(run), run.folder / measure.ANCHORS, metadata)
    assert len(load_anchors(run, run.stage)) == len(INSTANCES)


@pytest.mark.parametrize(
    ("absent", "message"),
    [
        ("draws", "draws is not said, but 1 is expected"),
        ("scorer", "scorer.precision is not said, but 'float32' is expected"),
        ("schema", "schema version None, expected 1"),
    ],
)
def test_a_table_that_does_not_say_all_of_it_is_refused(compute, absent, message):
    _, run = compute(script())
    path = run.folder / measure.ANCHORS
    metadata = anchor_table.read_metadata(path)
    del metadata[absent]
    anchor_table.write_anchors(load_anchors(run), path, metadata)
    with pytest.raises(AnchorError, match=message) as error:
        load_anchors(run, run.stage)
    assert str(path) in str(error.value)


def test_what_does_not_change_their_meaning_is_not_compared(compute):
    _, run = compute(script())
    same = changed(run.stage, retries=5, sampling__batch_size=7)
    pd.testing.assert_frame_equal(
        load_anchors(run, same, run.manifest()["data_sha256"]), load_anchors(run)
    )


def test_a_table_that_does_not_say_how_it_was_measured_is_refused(compute, tmp_path):
    _, run = compute(script())
    path = tmp_path / "foreign.parquet"
    load_anchors(run).to_parquet(path)
    with pytest.raises(AnchorError, match="foreign.parquet: says nothing of how"):
        load_anchors(path)
    anchor_table.write_anchors(load_anchors(run), path, {"schema": 0})
    with pytest.raises(AnchorError, match="schema version 0, expected 1"):
        load_anchors(path)


def test_bounds_of_an_incomplete_run_are_refused(compute, monkeypatch):
    _, run = compute(script())
    (run.folder / "manifest.json").unlink()
    with pytest.raises(AnchorError, match=f"{run.folder} are not complete"):
        load_anchors(open_run("test", run.stage))


# ---------------------------------------------------------------- the self-test


class ShiftedScorer:
    """Stands in for a scorer of another model: off by a constant."""

    def __init__(self, engine, shift: float, precision: str = "float32") -> None:
        self.precision = precision
        self.inner = ReferenceScorer(engine.model, engine.tokenizer)
        self.tokenizer, self.shift, self.seen = engine.tokenizer, shift, []

    def score(self, requests, answers):
        self.seen += requests
        return self.inner.score(requests, answers) + self.shift


def test_the_self_test_scores_both_sides_again(compute):
    engine, run = compute(script())
    scorer = ShiftedScorer(engine, 0.01)
    assert self_test(run, INSTANCES, scorer, n=4) == pytest.approx(0.01, abs=1e-5)
    assert sorted(scorer.seen) == sorted(2 * [i.request for i in INSTANCES])
    scorer.seen.clear()
    self_test(run, INSTANCES, scorer, n=2)
    assert len(scorer.seen) == 2, "one a side"


def test_another_scorer_is_found_out_before_training(compute):
    engine, run = compute(script())
    stored = {(r["key"], r["side"]): r["loglik"] for r in read_draws(run.folder)}
    with pytest.raises(AnchorError) as error:
        self_test(run, INSTANCES, ShiftedScorer(engine, -0.03))
    text = str(error.value)
    key, side = next(k for k in stored if f"{k[1]} answer of key {k[0]!r}" in text)
    assert f"l = {stored[key, side]:.4f}, scored again {stored[key, side] - 0.03:.4f}" in text
    assert "another model, another chat template, or another precision" in text
    # In bfloat16 a short answer may be off by more: 0.02 and 0.1 over the root of its length.
    self_test(run, INSTANCES, ShiftedScorer(engine, -0.03, "bfloat16"))
    with pytest.raises(AnchorError, match="scored again"):
        self_test(run, INSTANCES, ShiftedScorer(engine, -0.15, "bfloat16"))


def test_answers_to_other_prompts_are_no_self_test(compute):
    engine, run = compute(script())
    scorer = ReferenceScorer(engine.model, engine.tokenizer)
    with pytest.raises(AnchorError, match="holds no answer to these prompts"):
        self_test(run, [instance("new", "Why?")], scorer)


# ---------------------------------------------------------------- defects


LOOP = "again and " * 30
PI = "314159265358979323846264338327951288419716939937511582197494"  # 60 digits, 1 to 9


@pytest.mark.parametrize(
    ("text", "n_tokens", "expected"),
    [
        ("", 0, "empty"),
        (" \n", 2, "empty"),
        ("Yes", 1, "one_token"),
        ("A cup of tea, please.", 9, "near_empty"),
        ("A cup of black tea, please.", 10, ""),
        (LOOP, 60, "loop"),
        ("again and " * 24, 48, ""),  # 48 words: too short to be called a loop
        (" ".join(PI), 60, ""),  # 9 distinct of 60: 0.15 is not under 0.15
        (" ".join(PI.replace("9", "8")), 60, "loop"),
        # Four times the same eight words (32) among 28 others: more than half of 60.
        (
            " ".join(f"a b c d e f g h {' '.join(f'w{i}{j}' for j in range(7))}" for i in range(4)),
            60,
            "loop",
        ),
        # Three times (24 of 60) is not.
        (
            " ".join(
                f"a b c d e f g h {' '.join(f'w{i}{j}' for j in range(12))}" for i in range(3)
            ),
            60,
            "",
        ),
    ],
)
def test_defects_of_an_answer(text, n_tokens, expected):
    assert anchor_rows.defect(text, n_tokens) == expected


def test_degenerate_prompts():
    def both(key, constrained=None, natural=None):
        defaults = {"l": -1.0, "n_tokens": 60, "r_ver": 0.0, "answer": f"answer {key}"}
        return [
            row(key, "constrained", **defaults | (constrained or {})),
            row(key, "natural", **defaults | (natural or {})),
        ]

    prompts = [
        instance(key, f"Request {key}.")
        for key in ("sound", "loop", "asked", "natural", "short", "same", "gone")
    ]
    rows = [
        *both("sound"),
        *both("loop", {"answer": LOOP}),
        *both("asked", {"answer": LOOP, "r_ver": 1.0}),
        *both("natural", natural={"answer": LOOP, "r_ver": 1.0}),
        *both("short", {"n_tokens": 9}),
        *both("same"),
        *both("gone", natural={"answer": "", "l": None, "n_tokens": 0}),
    ]
    for r in rows:
        if r["key"] == "same":
            r["answer"] = "the very same"
    table = anchor_table.anchor_table(prompts, rows)
    found = dict(zip(table["key"], degenerate(table), strict=True))
    assert found == {
        "sound": False,
        "loop": True,
        "asked": False,
        "natural": True,
        "short": True,
        "same": True,
        "gone": True,
    }


# ---------------------------------------------------------------- other prompts


def test_anchors_are_not_continued_with_edited_prompts(tmp_path, monkeypatch):
    monkeypatch.setenv("CALIFKIT_RUNS", str(tmp_path / "runs"))
    prompts = tmp_path / "prompts.jsonl"
    ids = ["punctuation:no_comma"]
    settings = Settings(
        model="tiny-random-llama",
        data={"source": str(prompts), "n_prompts": 2},
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
