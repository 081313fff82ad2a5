"""Verdicts equal to the published code, line by line, on the golden vectors of ../shared."""

import ast
import gzip
import json
import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from califkit.verifiers import (
    REGISTRY,
    Constraint,
    ConstraintError,
    Verdict,
    check,
    fraction_followed,
    verify_all,
)

SHARED = Path(__file__).resolve().parents[3] / "shared"
GOLDEN = SHARED / "verifiers"
TAGGER = SHARED / "nltk_data" / "taggers"
FILES = {"ifeval": 25, "ifeval_g": 25, "iftrain": 29, "ifbench": 58}

pytestmark = [
    pytest.mark.usefixtures("tagger_path"),
    pytest.mark.skipif(not GOLDEN.is_dir(), reason="no golden vectors beside the repo"),
]


def rows(name: str) -> Iterator[tuple[int, dict]]:
    with gzip.open(GOLDEN / f"golden_{name}.jsonl.gz", "rt", encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            yield number, json.loads(line)


@cache
def build(id: str, kwargs: str) -> Constraint | ConstraintError:
    try:
        return Constraint(id, json.loads(kwargs))
    except ConstraintError as error:
        return error


def disagreements(row: dict) -> list[str]:
    """What differs on one golden line; where the reference throws, we have to say no as well."""
    raises = row.get("raises", False)
    built = build(row["id"], json.dumps(row["kwargs"] or {}))
    if isinstance(built, ConstraintError):
        return [] if raises else [f"not built: {built}"]
    out = []
    for mode in ("strict", "loose"):
        verdict: Verdict = check(built, row["response"], mode)
        if verdict.passed != row[mode] and not (raises and mode == "loose"):
            out.append(f"{mode} {verdict} instead of {row[mode]}")
        if verdict.error and not raises:
            out.append(f"{mode} error {verdict.error}")
    if "reward" in row and not raises:
        followed = fraction_followed([built], row["response"]) == 1.0
        if followed != row["reward"]:
            out.append(f"reward {followed} instead of {row['reward']}")
    return out


@pytest.mark.parametrize("name", FILES)
def test_golden_file(name):
    n_ids = FILES[name]
    wrong, total, ids = [], 0, set()
    for number, row in rows(name):
        if row["id"] == "words:start_verb" and not TAGGER.is_dir():
            continue
        total += 1
        ids.add(row["id"])
        for what in disagreements(row):
            wrong.append(
                f"line {number} {row['id']} {row['kwargs']} {row['response'][:120]!r}: {what}"
            )
    assert not wrong, f"{len(wrong)} of {total} disagree, the first:\n" + "\n".join(wrong[:10])
    assert len(ids) == n_ids
    assert ids == {id for id in ids if id in REGISTRY}


def test_golden_reward():
    wrong = []
    for number, row in rows("reward"):
        label = ast.literal_eval(row["label"])[0]
        label = json.loads(label) if isinstance(label, str) else label
        pairs = zip(label["instruction_id"], label["kwargs"], strict=False)
        constraints = [Constraint(id, kwargs or {}) for id, kwargs in pairs]
        score = fraction_followed(constraints, row["prediction"])
        if not math.isclose(score, row["score"], abs_tol=1e-9):
            wrong.append(f"line {number}: {score} instead of {row['score']}")
    assert not wrong, "\n".join(wrong[:10])


@pytest.mark.skipif(not TAGGER.is_dir(), reason="no tagger data")
def test_golden_eval_ifbench():
    """Verdict lists per row, and the four accuracies they give."""
    summary = json.loads((GOLDEN / "golden_eval_ifbench_summary.json").read_text())
    lists = {"strict": [], "loose": []}
    for number, row in rows("eval_ifbench"):
        pairs = zip(row["instruction_id_list"], row["kwargs"], strict=True)
        constraints = [Constraint(id, kwargs or {}) for id, kwargs in pairs]
        for mode in lists:
            verdicts = verify_all(constraints, row["response"] or "", mode)
            assert verdicts == row[mode], f"line {number} {row['instruction_id_list']} {mode}"
            lists[mode].append(verdicts)
    for mode, verdicts in lists.items():
        flat = [v for row in verdicts for v in row]
        assert (len(verdicts), len(flat)) == (summary["n_prompts"], summary["n_instructions"])
        prompt = sum(map(all, verdicts)) / len(verdicts)
        assert prompt == pytest.approx(summary[f"{mode}_prompt"], abs=1e-12)
        assert sum(flat) / len(flat) == pytest.approx(summary[f"{mode}_instruction"], abs=1e-12)
