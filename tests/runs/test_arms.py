"""Arms of a study: one params file, many times over."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tiny_runs import environment, params_file

from califkit.data.prompts import training_prompts
from califkit.generation import benchmark_prompts
from califkit.runs.arms import Arm, load_arms
from califkit.runs.params import ParamsError, load_params
from califkit.runs.stages import stage_hash

STUDY = Path(__file__).resolve().parents[2] / "params" / "arms" / "study.yaml"


@pytest.fixture
def write(tmp_path):
    base = tmp_path / "base.yaml"
    base.write_text(yaml.safe_dump({"profile": "mine", "settings": {"alpha": 0.3}}))

    def make(groups: dict, **content) -> Path:
        path = tmp_path / "arms.yaml"
        held = {"params": str(base), "groups": groups, **content}
        path.write_text(yaml.safe_dump(held, sort_keys=False))
        return path

    return make


def test_an_arm_is_the_params_file_with_settings_of_group_and_arm(write):
    also = [{"evaluation": {"n_prompts": 7}}]
    groups = {
        "one": {"settings": {"train_seeds": [5]}, "also": also, "arms": {"a": {"alpha": 0.2}}},
        "two": {"arms": {"b": {"methods": ["if_rlvr"]}}},
    }
    a, b = load_arms(write(groups))
    assert (a.name, a.group, b.name, b.group) == ("a", "one", "b", "two")
    assert (a.params.settings.alpha, a.params.settings.train_seeds) == (0.2, (5,))
    assert (b.params.settings.alpha, b.params.settings.methods) == (0.3, ("if_rlvr",))
    assert [p.settings.evaluation.n_prompts for p in a.evaluations] == [None, 7]
    assert a.evaluations[0].settings.train_stages() == a.evaluations[1].settings.train_stages()
    assert {a.params.profile, b.params.profile} == {"mine"}


def test_what_all_arms_share_yields_to_the_group_and_the_arm(write):
    groups = {"one": {"settings": {"alpha": 0.2}, "arms": {"a": {}, "b": {"train_seeds": [7]}}}}
    a, b = load_arms(write(groups, settings={"alpha": 0.1, "train_seeds": [5]}))
    assert (a.params.settings.alpha, a.params.settings.train_seeds) == (0.2, (5,))
    assert (b.params.settings.alpha, b.params.settings.train_seeds) == (0.2, (7,))


def test_pilots_have_a_profile_and_settings_of_their_own(write):
    groups = {"one": {"arms": {"a": {"alpha": 0.2, "train_seeds": [1, 2]}}}}
    path = write(groups, pilot={"train_seeds": [100]})
    (plain,), (pilot,) = load_arms(path), load_arms(path, pilot=True)
    assert (plain.params.profile, pilot.params.profile) == ("mine", "mine-pilot")
    assert plain.params.settings.train_seeds == (1, 2)
    assert (pilot.params.settings.train_seeds, pilot.params.settings.alpha) == ((100,), 0.2)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({"one": {"arms": {"a": {"alpha": -1}}}}, r"arms.yaml: arm a: .*settings.alpha.*got -1"),
        (
            {"one": {"arms": {"a": {}}, "seed": 1}},
            r"groups.one.seed: unknown key \(got 1\)",
        ),
        ({"one": {"arms": {"a": {}}, "configurations": ["x"]}}, "one: no configuration x; .* none"),
        ({"one": {"arms": {"a": {}}}, "two": {"arms": {"a": {}}}}, "the arm a comes twice"),
        ({"one": []}, r"arms.yaml: groups.one: .* \(got \[\]\)"),
        ({"one": {"arms": {"a": 3}}}, r"arms.yaml: groups.one.arms.a: .* \(got 3\)"),
    ],
)
def test_a_file_that_cannot_be_used(write, groups, message):
    with pytest.raises(ParamsError, match=message):
        load_arms(write(groups))


def test_a_group_stands_once_for_each_configuration(write):
    configurations = {"small": {"alpha": 0.2}, "large": {"thinking": True}}
    groups = {
        "one": {"arms": {"a": {}, "b": {"alpha": 0.7}}},
        "two": {"configurations": ["large"], "arms": {"c": {}}},
    }
    path = write(groups, configurations=configurations)
    found = [
        (a.name, a.configuration, a.params.settings.alpha, a.params.settings.thinking)
        for a in load_arms(path)
    ]
    assert found == [
        ("small/a", "small", 0.2, False),
        ("small/b", "small", 0.7, False),
        ("large/a", "large", 0.3, True),
        ("large/b", "large", 0.7, True),
        ("large/c", "large", 0.3, True),
    ]
    assert [arm.name for arm in load_arms(path, groups=["two"])] == ["large/c"]
    with pytest.raises(ParamsError, match="arms.yaml: no group three; known are one, two"):
        load_arms(path, groups=["three"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"alhpa": 0.2}, r"arms.yaml: arm large/a: .*settings.alhpa: unknown key \(got 0.2\)"),
        ({"thinking": "x"}, r"arms.yaml: arm large/a: .*settings.thinking: .*\(got 'x'\)"),
    ],
)
def test_a_configuration_that_cannot_be_used_is_named_with_its_arm_and_key(write, change, message):
    path = write({"one": {"arms": {"a": {}}}}, configurations={"small": {}, "large": change})
    with pytest.raises(ParamsError, match=message) as error:
        load_arms(path)
    assert "\n" not in str(error.value)


# --- the paper -----------------------------------------------------------------------------------


def test_the_paper_has_31_training_runs_on_five_sets_of_anchors():
    """10 main runs, 4 judge rewards, 5 ablations, 5 more alphas, 6 more betas, CaLIF without KL;
    the region methods take eight draws a side for the prompts of Qwen3-1.7B."""
    arms = load_arms(STUDY.parents[1] / "paper.yaml")
    stages = [stage for arm in arms for stage in arm.params.settings.train_stages()]
    assert len({stage_hash(stage) for stage in stages}) == 10 + 4 + 5 + 5 + 6 + 1 == 31
    draws = {stage_hash(stage.anchors): stage.anchors.anchors.draws for stage in stages}
    assert sorted(draws.values()) == [1, 1, 1, 1, 1, 8]
    references = {(stage.anchors.model, stage.anchors.thinking) for stage in stages}
    assert len(references) == 5


# --- the study of docs/study.md ------------------------------------------------------------------


@pytest.fixture(scope="module")
def arms() -> dict[str, Arm]:
    return {arm.name: arm for arm in load_arms(STUDY)}


def test_the_main_arms_differ_in_the_reward_alone_and_have_three_seeds(arms):
    main = [arm for arm in arms.values() if arm.group == "main"]
    assert [arm.name for arm in main] == ["if_rlvr", "calif", "calif_variant"]
    for arm in main:
        stages = arm.params.settings.train_stages()
        assert [stage.seed for stage in stages] == [0, 1, 2]
        first = main[0].params.settings.train_stages()[0]
        assert {stage.anchors for stage in stages} == {first.anchors}
        assert {stage.training for stage in stages} == {first.training}
        assert [p.settings.evaluation.benchmark for p in arm.evaluations] == ["composer", "ifbench"]
    printed = arms["calif"].params.settings.train_stages()[0]
    assert printed.reward.model_dump() == load_params("study").settings.reward.model_dump()
    assert not any(printed.reward.model_dump().values()), "the rule as the paper prints it"


def test_every_arm_trains_otherwise(arms):
    hashes = [stage_hash(s) for arm in arms.values() for s in arm.params.settings.train_stages()]
    assert len(set(hashes)) == len(hashes)


def test_bounds_are_drawn_like_rollouts_and_no_arm_makes_an_exception(arms):
    for arm in arms.values():
        settings = arm.params.settings
        assert not settings.training.anchors_may_differ
        assert settings.anchors.sampling.temperature == settings.training.temperature


def test_training_pilots_and_tests_share_no_request(arms):
    pilots = {arm.name: arm for arm in load_arms(STUDY, pilot=True)}
    tested = {i.request for i in benchmark_prompts(evaluation(arms["calif"])).instances}
    assert len(tested) == 64
    for name, arm in arms.items():
        trained = {i.request for i in training_prompts(arm.params.settings.data).instances}
        piloted = {i.request for i in training_prompts(pilots[name].params.settings.data).instances}
        assert not trained & tested and not trained & piloted and not piloted & tested, name
        assert evaluation(arm) == evaluation(arms["calif"]), "one set of test prompts for all"


def evaluation(arm: Arm):
    return arm.params.settings.generate_stages()[0].evaluation


@pytest.mark.slow
def test_the_script_runs_arms_and_prints_their_numbers(tmp_path):
    base = params_file(tmp_path, identification={"requests": 3}, training={"steps": 1})
    groups = {"one": {"arms": {"verifier": {"methods": ["if_rlvr"]}, "calif": {"methods": []}}}}
    file = tmp_path / "arms.yaml"
    file.write_text(yaml.safe_dump({"params": str(base), "groups": groups}))
    script = STUDY.parents[2] / "benchmarks" / "study.py"

    def run(*options: str) -> str:
        call = [sys.executable, script, "--arms", file, "--arm", "verifier", *options]
        done = subprocess.run(
            call, env=environment(tmp_path / "runs"), capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "verifier             0 of 5 runs are complete" in run("--list")
    printed = run()
    assert "verifier             5 of 5 runs are complete" in run("--list")
    training, evaluation = run("--table").strip().split("\n\n")
    assert printed.endswith(f"{training}\n\n{evaluation}\n"), "a complete study prints the same"
    assert [line.split()[0] for line in training.splitlines()] == ["arm", "verifier"]
    assert [line.split()[0] for line in evaluation.splitlines()] == ["arm", "base", "verifier"]
    assert "information" in evaluation and "groups_with_equal_r_ver" in training
