"""Anchors in and out: a cache in the layout of the method's authors, and Parquet for anybody."""

import json
import math

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from califkit.anchors.exchange import export_anchors, import_cache, read_cache
from califkit.anchors.measure import compute_anchors, self_test
from califkit.anchors.rows import AnchorError, read_draws
from califkit.anchors.table import load_anchors
from califkit.data.composer import compose
from califkit.data.prompts import training_prompts
from califkit.models.likelihood import ReferenceScorer
from califkit.runs.folders import open_run
from califkit.runs.jsonl import RowLog
from califkit.runs.params import Settings
from califkit.runs.settings import Execution

N, VALIDATION, SEED = 9, 3, 1
EXECUTION = Execution()


@pytest.fixture
def settings(tmp_path, monkeypatch):
    monkeypatch.setenv("CALIFKIT_RUNS", str(tmp_path / "runs"))
    RowLog(tmp_path / "prompts.jsonl").keep(compose(N, 0, max_constraints=2))
    sampling = {"max_tokens": 8, "batch_size": 4}
    return Settings(
        model="tiny-random-llama",
        data={"source": str(tmp_path / "prompts.jsonl"), "n_prompts": N},
        anchors={"sampling": sampling},
        training={"prompts_per_step": 2, "anchors_may_differ": True},
    )


@pytest.fixture
def measured(settings):
    """The anchors as califkit measures them: what a cache of the same answers has to give again."""
    return compute_anchors("measured", settings.anchor_stage(), EXECUTION)


def side_fields(prefix, row, names=("ids", "nll", "n_tokens", "ppl")):
    # Every answer here ends in its end-of-turn token or is cut, and l is over all of its tokens.
    count = len(row["token_ids"])
    total = -row["loglik"] * count
    values = (row["token_ids"], total, count, math.exp(total / count))
    return {f"{prefix}_{name}": value for name, value in zip(names, values, strict=True)}


def cache_items(run, key_of, **options):
    items = {}
    for row in read_draws(run.folder):
        prefix = {"constrained": "ref1", "natural": "ref0"}[row["side"]]
        items.setdefault(key_of(row["key"]), {}).update(side_fields(prefix, row, **options))
    return items


def write_cache(folder, items):
    path = folder / "cache.json"
    path.write_text(json.dumps({"metadata": {"version": 3, "top_p": 0.95}, "items": items}))
    return path


def places(settings, behind):
    """Key of a prompt -> its place after the shuffle, as the authors number their rows."""
    keys = [instance.key for instance in training_prompts(settings.data).instances]
    order = np.random.default_rng(SEED).permutation(N)
    return {keys[row]: str(place - behind) for place, row in enumerate(order)}


@pytest.mark.parametrize("numbering", ["key", "place", "behind validation"])
def test_a_cache_gives_the_bounds_that_it_was_made_of(settings, measured, tmp_path, numbering):
    behind = {"place": 0, "behind validation": VALIDATION}.get(numbering)
    place = places(settings, behind) if behind is not None else None
    items = cache_items(measured, place.get if place else str)
    if numbering == "behind validation":
        items = {key: item for key, item in items.items() if int(key) >= 0}
    path = write_cache(tmp_path, items)
    run = import_cache(path, "imported", settings.anchor_stage(), EXECUTION, SEED, VALIDATION)
    ours, theirs = (load_anchors(r).set_index("key") for r in (measured, run))
    there = [key for key in ours.index if place is None or place[key] in items]
    assert len(there) == (N - VALIDATION if behind == VALIDATION else N)
    # ref0 is the answer to the request alone: the paper's l1, the upper bound.
    for bound in ("l0", "l1"):
        assert theirs.loc[there, bound].to_numpy() == pytest.approx(ours.loc[there, bound])
        assert theirs[bound].isna().sum() == N - len(there)
    for column in ("constrained_r_ver", "natural_tokens"):
        assert theirs.loc[there, column].tolist() == ours.loc[there, column].tolist()
    facts = run.manifest()["imported"]
    assert facts["file"] == "cache.json" and facts["metadata"] == {"version": 3, "top_p": 0.95}
    assert facts["sha256"]


def test_training_can_start_from_imported_anchors(settings, measured, tmp_path, tiny):
    path = write_cache(tmp_path, cache_items(measured, str))
    run = import_cache(path, "imported", settings.anchor_stage(), EXECUTION)
    loaded = training_prompts(settings.data)
    load_anchors(run, settings.anchor_stage(), loaded.sha256)  # measured as this stage asks
    scorer = ReferenceScorer(tiny.model, tiny.tokenizer)
    assert self_test(run, loaded.instances, scorer) < 1e-4


def test_what_fields_are_called_does_not_matter(settings, measured, tmp_path):
    items = cache_items(measured, str, names=("a", "sum_of_losses", "length", "z"))
    _, read = read_cache(write_cache(tmp_path, items))
    rows = {(r["key"], r["side"]): r for r in read_draws(measured.folder)}
    for (key, side), row in rows.items():
        assert read[key][side].loglik == pytest.approx(row["loglik"])
        assert read[key][side].token_ids == row["token_ids"]


def test_a_cache_of_another_model_is_refused_and_nothing_is_left(settings, measured, tmp_path):
    items = cache_items(measured, str)
    for item in items.values():
        total, count = item["ref0_nll"] + 5.0, item["ref0_n_tokens"]
        item |= {"ref0_nll": total, "ref0_ppl": math.exp(total / count)}
    with pytest.raises(AnchorError, match="does not fit these prompts and this model; the key of"):
        import_cache(write_cache(tmp_path, items), "imported", settings.anchor_stage(), EXECUTION)
    assert not open_run("imported", settings.anchor_stage()).folder.exists()


GOOD = {"ref0_ids": [5, 6], "ref0_nll": 4.0, "ref0_n": 2, "ref0_ppl": math.exp(2.0)}


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (GOOD | {"ref0_ppl": 3.0}, "item '7': ref0: of .* no one reading as sum"),
        (GOOD | {"ref0_more": [1]}, "ref0 has 2 lists of token ids, expected one"),
        (GOOD | {"ref0_ids": ["a"]}, "ref0 has 1 lists of token ids, expected one"),
        ([1], "item '7': .* is no object"),
        ({}, "ref0 has 0 lists"),
    ],
)
def test_an_item_that_cannot_be_read_is_named(tmp_path, item, message):
    with pytest.raises(AnchorError, match=message):
        read_cache(write_cache(tmp_path, {"7": item}))


@pytest.mark.parametrize("content", ["", "[1]", "{}", '{"items": {}}', '{"items": 5}', "[" * 9999])
def test_a_file_that_is_no_cache(tmp_path, content):
    path = tmp_path / "cache.json"
    path.write_text(content)
    with pytest.raises(AnchorError, match="cache.json: (not a readable cache|holds no items)"):
        read_cache(path)


def test_an_answer_that_the_cache_lacks_is_missing_here(tmp_path):
    other = {f"ref1_{key.removeprefix('ref0_')}": value for key, value in GOOD.items()}
    lacking = GOOD | other | {"ref1_nll": math.inf}
    path = tmp_path / "cache.json"
    path.write_text(json.dumps({"items": [GOOD | other, lacking]}))  # items may be a list
    _, items = read_cache(path)
    assert items["0"]["natural"] == items["0"]["constrained"]
    assert items["0"]["natural"].loglik == -2.0
    assert items["1"]["constrained"] is None and items["1"]["natural"] is not None


def test_anchors_that_are_there_are_not_replaced(settings, measured, tmp_path):
    path = write_cache(tmp_path, cache_items(measured, str))
    with pytest.raises(AnchorError, match="has anchors already; delete it"):
        import_cache(path, "measured", settings.anchor_stage(), EXECUTION)


def test_the_exported_file_holds_every_answer_and_how_it_was_measured(settings, measured, tmp_path):
    instances = training_prompts(settings.data).instances
    path = tmp_path / "anchors.parquet"
    assert export_anchors(measured, instances, path) == 2 * N
    table, bounds = pd.read_parquet(path), load_anchors(measured).set_index("key")
    assert sorted(table["key"].unique()) == sorted(i.key for i in instances)
    natural = table[table["side"] == "natural"].set_index("key")
    assert natural["loglik"].to_numpy() == pytest.approx(bounds.loc[natural.index, "l1"])
    assert natural["l0"].to_numpy() == pytest.approx(bounds.loc[natural.index, "l0"])
    first = instances[0]
    assert natural.loc[first.key, ["request", "prompt"]].tolist() == [first.request, first.prompt]
    facts = json.loads(pq.read_schema(path).metadata[b"califkit"])
    assert facts["model"] == "tiny-random-llama" and facts["sampling"]["max_tokens"] == 8
