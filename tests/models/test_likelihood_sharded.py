"""The scorer on a model whose weights are spread over two processes (FSDP2, gloo, CPU)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from califkit.models.likelihood import ReferenceScorer

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).with_name("sharded_scoring.py")
LIMIT = 300  # seconds; two processes that wait for each other would wait for ever

# Each call: (requests, numbers of answer tokens) of rank 0 and of rank 1.
CALLS = [
    ((["Tea?", "Why?", "Name a colour.", "Tea?", "Rain"], [40, 0, 150, 7, 90]), (["Sea?"], [5])),
    (([], []), (["Tea?", "Tea?", "Tea?"], [100, 120, 3])),
    ((["Tea?"], [12]), (["Tea?"], [0])),
    (([], []), ([], [])),
]


@pytest.mark.parametrize("kind", ["full", "lora"])
def test_ranks_with_unequal_rows_agree_with_the_unsharded_scorer(tiny, tiny_folder, tmp_path, kind):
    rng = np.random.default_rng(0)
    calls = [
        [(x, [rng.integers(3, 40_000, size=n).tolist() for n in lengths]) for x, lengths in ranks]
        for ranks in CALLS
    ]
    file = tmp_path / "calls.json"
    file.write_text(json.dumps(calls))
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"),
            *(SCRIPT, tiny_folder, file, tmp_path, kind),
        ],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert done.returncode == 0, done.stderr[-3000:]

    ranks = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1)]
    assert [rank["world_size"] for rank in ranks] == [2, 2]
    assert all(rank["sharded"] for rank in ranks)
    scorer = ReferenceScorer(tiny.model, tiny.tokenizer)
    for number, call in enumerate(calls):
        for rank, (requests, answers) in zip(ranks, call, strict=True):
            found = rank["calls"][number]["l"]
            expected = scorer.score(requests, answers)
            assert found == pytest.approx(expected, abs=1e-5, nan_ok=True)
            assert np.isnan(found).tolist() == [not answer for answer in answers]
    passes = [[call["passes"] for call in rank["calls"]] for rank in ranks]
    assert passes[0] == passes[1], "every pass is a collective"
    assert passes[0][0] >= 3, "150 tokens a pass do not hold the rows of rank 0"
    assert passes[0][1:] == [3, 1, 0]
