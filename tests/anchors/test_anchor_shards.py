"""Rows of anchors in several files: torn ends, several processes at once, other shard counts."""

import json

import pandas as pd
import pytest
from tiny_runs import kill_when, n_lines, start, tiny_params, wait_for

from califkit.anchors.rows import (
    AnchorError,
    cut_torn_end,
    done_units,
    read_draws,
    row_files,
    shard_name,
)
from califkit.anchors.table import ANCHORS
from califkit.runs.dispatch import run_stage
from califkit.runs.folders import Run, open_run
from califkit.runs.params import Params

SHARD = """
import sys
from califkit.anchors.measure import compute_anchors
from califkit.runs.params import load_params
file, index, count = sys.argv[1:]
params = load_params(file)
settings = params.settings
shard = (int(index), int(count))
run = compute_anchors(params.profile, settings.anchor_stage(), settings.execution, shard)
print("complete" if run.is_complete else "incomplete", flush=True)
"""


def lines(unit: int, n: int, key: str = "k") -> str:
    rows = [{"unit": unit, "key": f"{key}{unit}", "side": "natural", "draw": i} for i in range(n)]
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_the_rows_of_a_shard_have_a_file_of_their_own():
    assert shard_name((0, 1)) == "draws.jsonl"
    assert shard_name((2, 8)) == "draws-2-of-8.jsonl"
    with pytest.raises(AnchorError, match="shard 8 of 8: the index runs from 0 to 7"):
        shard_name((8, 8))


@pytest.mark.parametrize(
    ("torn", "whole"),
    [
        (lines(0, 2) + lines(3, 1), lines(0, 2)),  # a unit
        (lines(0, 2) + lines(3, 2)[:-5], lines(0, 2)),  # a line and so a unit
        (lines(0, 2) + lines(3, 2) + '{"unit": 4, "ke', lines(0, 2) + lines(3, 2)),  # a line
        (lines(0, 2), lines(0, 2)),
        (lines(3, 1)[:-1], ""),
        ("", ""),
    ],
)
def test_a_torn_end_is_cut_back_to_whole_units(tmp_path, torn, whole):
    path = tmp_path / "draws.jsonl"
    path.write_text(torn)
    done = {json.loads(line)["unit"] for line in whole.splitlines()}
    assert done_units(tmp_path, [2] * 5) == done
    cut_torn_end(path, [2] * 5)
    assert path.read_text() == whole


def test_done_is_what_some_file_holds_whole(tmp_path):
    (tmp_path / "draws.jsonl").write_text(lines(0, 2) + lines(1, 1))
    (tmp_path / "draws-0-of-2.jsonl").write_text(lines(2, 2) + lines(4, 1))
    (tmp_path / "draws-1-of-2.jsonl").write_text(lines(1, 2) + lines(4, 2)[:-1])
    (tmp_path / ".draws.jsonl.lock").write_text("")
    assert len(row_files(tmp_path)) == 3
    assert done_units(tmp_path, [2] * 5) == {0, 1, 2}
    before = [path.read_text() for path in row_files(tmp_path)]
    cut_torn_end(tmp_path / "absent.jsonl", [2] * 5)
    names = sorted((row["key"], row["draw"]) for row in read_draws(tmp_path))
    assert names == [("k0", 0), ("k0", 1), ("k1", 0), ("k1", 1), ("k2", 0), ("k2", 1), ("k4", 0)]
    assert [path.read_text() for path in row_files(tmp_path)] == before, "other files are not cut"


def test_a_damaged_line_is_named(tmp_path):
    (tmp_path / "draws.jsonl").write_text(lines(0, 2) + "{broken\n" + lines(1, 2))
    with pytest.raises(AnchorError, match="draws.jsonl, line 3: not JSON"):
        done_units(tmp_path, [2, 2])


# ---------------------------------------------------------------- processes


class Shards:
    """A tiny anchor stage, computed by processes in folders ``runs/<where>``."""

    def __init__(self, folder, monkeypatch) -> None:
        self.folder, self.monkeypatch = folder, monkeypatch
        self.params: Params = tiny_params(
            folder,
            data={"n_prompts": 12},
            anchors={"draws": 2, "sampling": {"max_tokens": 8, "batch_size": 3}},
        )

    def run(self, where: str) -> Run:
        self.monkeypatch.setenv("CALIFKIT_RUNS", str(self.folder / where))
        return open_run("tiny", self.params.settings.anchor_stage())

    def log(self, where: str, index: int, count: int):
        return self.folder / f"{where}-{index}-of-{count}.log"

    def start(self, where: str, index: int, count: int):
        arguments = ["-c", SHARD, str(self.folder / "tiny.yaml"), str(index), str(count)]
        return start(arguments, self.folder / where, self.log(where, index, count))

    def unsharded(self) -> Run:
        run = self.run("one")
        return run_stage("tiny", run.stage, self.params.settings.execution)


@pytest.fixture
def shards(tmp_path, monkeypatch):
    return Shards(tmp_path, monkeypatch)


def units(folder, name: str) -> list[int]:
    return sorted({json.loads(line)["unit"] for line in (folder / name).read_text().splitlines()})


@pytest.mark.slow
def test_two_shards_at_once_give_the_table_of_one_process(shards):
    processes = [shards.start("two", index, 2) for index in (0, 1)]
    assert [process.wait(timeout=300) for process in processes] == [0, 0]
    run, whole = shards.run("two"), shards.unsharded()
    assert run.is_complete
    assert units(run.folder, "draws-0-of-2.jsonl") == list(range(0, 16, 2))
    assert units(run.folder, "draws-1-of-2.jsonl") == list(range(1, 16, 2))
    ended = [shards.log("two", index, 2).read_text().splitlines()[-1] for index in (0, 1)]
    assert "complete" in ended
    tables = [r.folder / ANCHORS for r in (run, whole)]
    assert tables[0].read_bytes() == tables[1].read_bytes()
    facts = [r.manifest() for r in (run, whole)]
    for manifest in facts:
        del manifest["finished"], manifest["attempt_seconds"]
    assert facts[0] == facts[1]


@pytest.mark.slow
def test_a_killed_shard_is_continued_with_another_number_of_shards(shards):
    run = shards.run("killed")
    rows = run.folder / "draws-0-of-2.jsonl"
    process = shards.start("killed", 0, 2)
    kill_when(process, lambda: n_lines(rows) >= 6, shards.log("killed", 0, 2))
    kept = rows.read_bytes()
    with rows.open("ab") as file:  # as a kill in the middle of a write would leave it
        file.write(kept.splitlines(keepends=True)[0].replace(b'"unit": 0', b'"unit": 14')[:40])
    torn = rows.read_bytes()
    first = shards.start("killed", 1, 3)
    assert first.wait(timeout=300) == 0
    assert shards.log("killed", 1, 3).read_text().splitlines()[-1] == "incomplete"
    assert not run.is_complete
    others = [shards.start("killed", index, 3) for index in (0, 2)]
    assert [process.wait(timeout=300) for process in others] == [0, 0]
    assert run.is_complete
    assert rows.read_bytes() == torn, "a file of another sharding is only read"
    done = set(units_of(kept))
    for index in range(3):
        own = units(run.folder, f"draws-{index}-of-3.jsonl")
        assert own == [u for u in range(index, 16, 3) if u not in done], "nothing is drawn twice"
    whole = shards.unsharded()
    assert (run.folder / ANCHORS).read_bytes() == (whole.folder / ANCHORS).read_bytes()
    assert len(pd.read_parquet(run.folder / ANCHORS)) == 12


def units_of(data: bytes) -> list[int]:
    """Units of three rows that are whole in a file."""
    whole = data[: data.rfind(b"\n") + 1].splitlines()
    found = [json.loads(line)["unit"] for line in whole]
    return [unit for unit in set(found) if found.count(unit) == 3]


@pytest.mark.slow
def test_a_second_process_with_the_same_shard_waits_for_the_first(shards):
    processes = [shards.start("same", 0, 1)]
    run = shards.run("same")
    wait_for(lambda: n_lines(run.folder / "draws.jsonl") > 0, "rows")
    processes.append(shards.start("same", 0, 1))
    assert [process.wait(timeout=300) for process in processes] == [0, 0]
    assert "batches are there" not in shards.log("same", 0, 1).read_text()
    assert n_lines(run.folder / "draws.jsonl") == 12 * 2 * 2
