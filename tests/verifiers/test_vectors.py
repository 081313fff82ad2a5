"""Verdicts of the published rules on texts of ours, decided by reading the rule.

The golden vectors beside the repository say more (`test_golden_verifiers`); these go with it.
"""

import json
from collections import defaultdict
from pathlib import Path

import pytest

from califkit.verifiers import REGISTRY, Constraint, check

ROWS = [
    json.loads(line)
    for line in (Path(__file__).parent / "vectors.jsonl").read_text(encoding="utf-8").splitlines()
]
BY_ID = defaultdict(list)
for row in ROWS:
    BY_ID[row["id"]].append(row)


def test_every_id_has_vectors_that_pass_and_that_fail():
    assert BY_ID.keys() == REGISTRY.keys()
    for mode in ("strict", "loose"):
        one_sided = {id for id, rows in BY_ID.items() if len({row[mode] for row in rows}) == 1}
        # Without its asterisks, which loose mode tries, every text passes sub-bullets.
        assert one_sided == ({"format:sub-bullets"} if mode == "loose" else set())


@pytest.mark.parametrize("id", REGISTRY)
def test_verdicts(id, request):
    if id == "words:start_verb":
        request.getfixturevalue("tagger")
    for row in BY_ID[id]:
        constraint = Constraint(id, row["kwargs"])
        for mode in ("strict", "loose"):
            assert check(constraint, row["response"], mode).passed is row[mode], (mode, row)
