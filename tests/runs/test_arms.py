"""Arms of a study: one params file, many times over."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tiny_runs import environment, params_file

from califkit.data.prompts import training_prompts
from califkit.generation import benchmark_prompts
from califkit.runs.arms import Arm, load_arms, training_runs
from califkit.runs.params import ParamsError, load_params
from califkit.runs.paths import project_root
from califkit.runs.stages import stage_hash


@pytest.fixture
def write(tmp_path):
    """A study of the settings alpha = 0.3, in the profile ``mine``."""

    def make(groups: dict, **content) -> Path:
        path = tmp_path / "study.yaml"
        content = {"profile": "mine", "settings": {"alpha": 0.3}, "groups": groups} | content
        path.write_text(yaml.safe_dump(content))
        return path

    return make


def test_an_arm_is_the_params_file_with_settings_of_group_and_arm(write):
    also = [{"evaluation": {"n_prompts": 7}}]
    groups = {
        "one": {"settings": {"train_seeds": [5]}, "also": also, "arms": {"a": {"alpha": 0.2}}},
        "two": {"arms": {"b": {"methods": ["if_rlvr"]}}},
    }
    a, b = load_arms(write(groups))
    assert (a.name, a.group, a.label, b.name, b.group) == ("a", "one", "a", "b", "two")
    assert (a.params.settings.alpha, a.params.settings.train_seeds) == (0.2, (5,))
    assert (b.params.settings.alpha, b.params.settings.methods) == (0.3, ("if_rlvr",))
    assert [p.settings.evaluation.n_prompts for p in a.evaluations] == [None, 7]
    assert a.evaluations[0].settings.train_stages() == a.evaluations[1].settings.train_stages()
    assert {a.params.profile, b.params.profile} == {"mine"}


def test_configurations_times_arms(write):
    configurations = {"small": {}, "warm": {"training": {"temperature": 0.6, "beta": 0.1}}}
    configurations["warm"]["anchors"] = {"sampling": {"temperature": 0.6}}
    groups = {
        "main": {"arms": {"a": {}, "b": {"training": {"beta": 0.2}}}},
        "one": {"configurations": ["warm"], "arms": {"c": {"alpha": 0.1}}},
    }
    path = write(groups, configurations=configurations)
    found = {arm.label: arm.params.settings for arm in load_arms(path)}
    assert list(found) == ["small, a", "small, b", "warm, a", "warm, b", "warm, c"]
    temperatures = [settings.training.temperature for settings in found.values()]
    assert temperatures == [1.0, 1.0, 0.6, 0.6, 0.6]
    assert [settings.training.beta for settings in found.values()] == [0.001, 0.2, 0.1, 0.2, 0.1]
    assert [arm.name for arm in load_arms(path, groups=["one"])] == ["c"]
    overridden = load_arms(path, {"alpha": 0.5})
    assert {arm.params.settings.alpha for arm in overridden} == {0.5}


def test_a_run_that_two_arms_share_is_one_run(write):
    sweep = {"arms": {"low": {"alpha": 0.2}, "same": {"alpha": 0.3}}, "settings": {}}
    sweep["settings"] = {"methods": ["calif"], "train_seeds": [0, 1]}
    groups = {"main": {"arms": {"calif": {"methods": ["calif"]}}}, "sweep": sweep}
    runs = training_runs(load_arms(write(groups)))
    assert sorted((run.alpha, run.seed) for run in runs.values()) == [
        *((0.2, 0), (0.2, 1)),
        *((0.3, 0), (0.3, 1)),
    ]


def test_a_file_without_groups_has_one_arm_a_method(write):
    arms = load_arms(write({}, settings={"methods": ["if_rlvr", "no_upper"]}), {"alpha": 0.7})
    assert [(arm.name, arm.group) for arm in arms] == [("if_rlvr", "main"), ("no_upper", "main")]
    assert [arm.params.settings.methods for arm in arms] == [("if_rlvr",), ("no_upper",)]
    assert {arm.params.settings.alpha for arm in arms} == {0.7}
    changed = load_arms(write({}), {"reward": {"ceiling_margin": 0.7}})
    assert [arm.name for arm in changed] == ["if_rlvr", "calif_variant"], "not the paper's rule"


def test_a_file_may_start_from_another_one_but_not_from_its_arms(write, tmp_path):
    base = write({"main": {"arms": {"a": {}}}})
    own = tmp_path / "own.yaml"
    content = {"base": str(base), "profile": "own", "settings": {"train_seeds": [4]}}
    own.write_text(yaml.safe_dump(content))
    params = load_params(own)
    assert (params.profile, params.settings.alpha) == ("own", 0.3)
    assert params.settings.train_seeds == (4,)
    assert [arm.name for arm in load_arms(own)] == ["if_rlvr", "calif"]
    for wrong in (str(own), 3):
        own.write_text(yaml.safe_dump(content | {"base": wrong}))
        with pytest.raises(ParamsError, match="own.yaml: base = .*: expected the name of another"):
            load_params(own)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({"one": {"arms": {"a": {"alpha": -1}}}}, r"study.yaml: arm a: .*settings.alpha.*got -1"),
        ({"one": {"arms": {"a": {"alhpa": 1}}}}, r"arm a: .*settings.alhpa: unknown key"),
        ({"one": {"arms": {"a": {}}, "seed": 1}}, "study.yaml: groups.one: has seed; known are"),
        ({"one": {"arms": {"a": {}}}, "two": {"arms": {"a": {}}}}, "the arm a comes twice"),
        ({"one": {"arms": {"a": {}}, "configurations": ["b"]}}, "one: no configuration b; there"),
        ({"one": {}}, "groups.one: arms = None: expected a mapping"),
        ({"one": {"arms": {"a": 3}}}, "groups.one: arm a: 3: expected settings"),
        ({"one": {"arms": {"a": {}}, "settings": 3}}, "one: settings = 3: expected a mapping"),
        (
            {"one": {"arms": {"a": {}}, "configurations": "small"}},
            "one: configurations = 'small': expected a list",
        ),
        ({"one": []}, r"groups.one: has \[\]"),
        (["one"], r"groups = \['one'\]: expected a mapping"),
    ],
)
def test_a_file_that_cannot_be_used(write, groups, message):
    with pytest.raises(ParamsError, match=message):
        load_arms(write(groups))


def test_a_group_that_is_not_there(write):
    with pytest.raises(ParamsError, match="study.yaml: no group two; there are one"):
        load_arms(write({"one": {"arms": {"a": {}}}}), groups=["two"])


# --- the study of docs/study.md ------------------------------------------------------------------


@pytest.fixture(scope="module")
def arms() -> dict[str, Arm]:
    return {arm.name: arm for arm in load_arms("laptop")}


def test_the_main_arms_differ_in_the_reward_alone_and_have_three_seeds(arms):
    main = [arm for arm in arms.values() if arm.group == "main"]
    assert [arm.name for arm in main] == ["if_rlvr", "calif", "calif_variant"]
    for arm in main:
        stages = arm.params.settings.train_stages()
        assert [stage.seed for stage in stages] == [0, 1, 2]
        first = main[0].params.settings.train_stages()[0]
        assert {stage.anchors for stage in stages} == {first.anchors}
        assert {stage.training for stage in stages} == {first.training}
        benchmarks = [p.settings.evaluation.benchmark for p in arm.evaluations]
        assert benchmarks == ["composer", "ifbench", "composer"]
    printed = arms["calif"].params.settings.train_stages()[0]
    assert printed.reward.model_dump() == load_params("laptop").settings.reward.model_dump()
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
    piloted = {
        instance.request
        for arm in load_arms("laptop-pilot")
        for instance in training_prompts(arm.params.settings.data).instances
    }
    tested = {i.request for i in benchmark_prompts(evaluation(arms["calif"])).instances}
    assert len(tested) == 64 and not piloted & tested
    for name, arm in arms.items():
        trained = {i.request for i in training_prompts(arm.params.settings.data).instances}
        assert not trained & tested and not trained & piloted, name
        assert evaluation(arm) == evaluation(arms["calif"]), "one set of test prompts for all"


def evaluation(arm: Arm):
    return arm.params.settings.generate_stages()[0].evaluation


@pytest.mark.slow
def test_the_script_runs_arms_and_prints_their_numbers(tmp_path):
    file = params_file(tmp_path, identification={"requests": 3}, training={"steps": 1})
    groups = {"one": {"arms": {"verifier": {"methods": ["if_rlvr"]}, "calif": {"methods": []}}}}
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | {"groups": groups}))
    script = project_root() / "benchmarks" / "study.py"

    def run(*options: str) -> str:
        call = [sys.executable, script, "--profile", file, "--arm", "verifier", *options]
        done = subprocess.run(
            call, env=environment(tmp_path / "runs"), capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert f"{'one':14} {'verifier':34} 0 of 5 runs are complete" in run("--list")
    printed = run()
    assert f"{'one':14} {'verifier':34} 5 of 5 runs are complete" in run("--list")
    training, evaluation = run("--table").strip().split("\n\n")
    assert printed.endswith(f"{training}\n\n{evaluation}\n"), "a complete study prints the same"
    assert [line.split()[0] for line in training.splitlines()] == ["arm", "verifier"]
    assert [line.split()[0] for line in evaluation.splitlines()] == ["arm", "base", "verifier"]
    assert "information" in evaluation and "groups_with_equal_r_ver" in training
