"""The examples run, and the documentation shows what is in them."""

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from califkit.rewards import verl
from califkit.runs.params import load_params

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"


def environment(**changes: str) -> dict[str, str]:
    return os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **changes}


def code_blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE)


def test_the_readme_shows_the_trl_example():
    script = (EXAMPLES / "trl_calif.py").read_text()
    assert script in code_blocks(ROOT / "README.md", "python")
    assert len(script.splitlines()) < 25


@pytest.mark.slow
def test_the_trl_example_trains(tmp_path):
    done = subprocess.run(
        [sys.executable, EXAMPLES / "trl_calif.py"],
        cwd=tmp_path,
        env=environment(MODEL="tiny-random-llama"),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    for logged in ("'rewards/calif/mean'", "'loglik'", "'zone/inside'", "'kl'"):
        assert logged in done.stdout


# --- verl, which is not installed -----------------------------------------------------------------
@pytest.fixture(scope="module")
def settings() -> dict[str, str]:
    """The settings that the script gives verl, without the marks of new keys."""
    text = (EXAMPLES / "verl_calif.sh").read_text()
    return dict(re.findall(r"^  \+?([\w.]+)=(.*) \\$", text, re.MULTILINE))


def test_the_verl_script_is_a_script():
    subprocess.run(["bash", "-n", EXAMPLES / "verl_calif.sh"], check=True)
    assert os.access(EXAMPLES / "verl_calif.sh", os.X_OK)


def test_the_verl_script_names_a_function_of_ours_and_its_options(settings):
    function = settings.pop("reward.custom_reward_function.name")
    assert settings["reward.custom_reward_function.path"] == f"pkg://{verl.__name__}"
    assert inspect.iscoroutinefunction(getattr(verl, function))
    start = "reward.custom_reward_function.reward_kwargs."
    options = {name.removeprefix(start) for name in settings if name.startswith(start)}
    assert "model" in options
    assert options <= set(inspect.signature(verl.CalifVerlReward).parameters)


def test_the_verl_script_has_the_papers_settings(settings):
    # Paper section 3 (Qwen3-1.7B, not thinking).
    expected = {
        "data.train_batch_size": 1024,
        "data.max_response_length": 2048,
        "actor_rollout_ref.rollout.n": 8,
        "actor_rollout_ref.rollout.temperature": 1.0,
        "actor_rollout_ref.actor.optim.lr": 5e-7,
        "actor_rollout_ref.actor.kl_loss_coef": 0.001,
        "trainer.total_epochs": 4,
        "reward.custom_reward_function.reward_kwargs.alpha": 0.1,
    }
    assert {name: float(settings[name]) for name in expected} == expected
    assert settings["actor_rollout_ref.actor.use_kl_loss"] == "true"
    assert settings["algorithm.use_kl_in_reward"] == "false"
    assert settings["reward.num_workers"] == "1", "every worker holds a copy of the reference"


@pytest.mark.slow
def test_the_rows_that_the_verl_page_makes(tmp_path):
    [script] = code_blocks(ROOT / "docs" / "verl.md", "python")
    script = script.replace("Qwen/Qwen3-1.7B", "tiny-random-llama").replace("2048", "8")
    (tmp_path / "data").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr

    import pandas as pd

    table = pd.read_parquet(tmp_path / "data" / "train.parquet")
    assert [row["request"] for row in table["extra_info"]] == ["Describe the sea.", "Name a drink."]
    scores = verl.compute_score_batch(
        table["data_source"],
        ["Blue.", "Tea, milk."],
        [row["ground_truth"] for row in table["reward_model"]],
        table["extra_info"],
        model="tiny-random-llama",
    )
    assert [score["r_ver"] for score in scores] == [1.0, 0.0]


# --- benchmarks -----------------------------------------------------------------------------------
@pytest.mark.slow
def test_the_cost_benchmark_measures_both_arms_on_the_same_rollouts(monkeypatch, capsys, tmp_path):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import reward_cost

    small = ["--tokens=4", "--prompts=2", "--rollouts=2", "--steps=2"]
    options = reward_cost.parse(["--model=tiny-random-llama", *small])
    seen = []
    real = reward_cost.Switch.__call__

    def call(self, prompts, completions, **columns):
        seen.append((self.arm, prompts, completions))
        return real(self, prompts, completions, **columns)

    monkeypatch.setattr(reward_cost.Switch, "__call__", call)
    arms, wall, cpu = reward_cost.run(options, str(tmp_path))
    assert arms == ["calif", "r_ver", "r_ver", "calif"], "who goes first alternates"
    _, *pairs = seen  # the first call warms the verifiers up
    for one, other in zip(pairs[::2], pairs[1::2], strict=True):
        assert {one[0], other[0]} == {"r_ver", "calif"}
        assert one[1:] == other[1:], "same prompts, same rollouts"
    assert pairs[0][2] != pairs[2][2], "another pair draws others"
    for arm, parts in zip(arms * 2, wall + cpu, strict=True):
        assert (parts.get("x pass", 0.0) > 0) == (arm == "calif")
        for part in ("generation", "KL pass", "training"):
            assert parts[part] > 0
        assert sum(parts.get(p, 0.0) for p in reward_cost.PARTS) == pytest.approx(parts["total"])
    assert reward_cost.report(arms, wall, "wall") > 0
    assert "CaLIF / r_ver" in capsys.readouterr().out


def test_the_judge_in_the_docs_is_one_that_can_be_used():
    (block,) = code_blocks(ROOT / "docs" / "judges.md", "yaml")
    settings = load_params("ci", yaml.safe_load(block)["settings"]).settings
    assert [stage.judge.name for stage in settings.pairwise_stages()] == ["local"]
