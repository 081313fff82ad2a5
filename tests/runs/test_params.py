"""Settings: what is accepted and typed, what is refused and how, what the hash covers."""

from pathlib import Path

import pytest
import yaml

from califkit.judges.rubrics import BENCHMARKS
from califkit.runs.params import Settings, load_params
from califkit.runs.settings import RUBRICS, ParamsError
from califkit.runs.stages import AnchorStage, GenerateStage, ScoreStage, TrainStage, stage_hash
from califkit.runs.yaml_text import YamlError, read_yaml

PARAMS = Path(__file__).resolve().parents[2] / "params"


@pytest.fixture
def write(tmp_path):
    """Writes a params file and returns its path; a dict is its ``settings`` tree."""

    def write(content: str | dict) -> Path:
        if isinstance(content, dict):
            content = yaml.safe_dump({"profile": "test", "settings": content})
        path = tmp_path / "test.yaml"
        path.write_text(content, encoding="utf-8")
        return path

    return write


def refusal(path: Path, **options) -> str:
    with pytest.raises(ParamsError) as caught:
        load_params(path, **options)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message, "one problem is one line"
    return message


@pytest.mark.parametrize("path", sorted(PARAMS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_params_file_loads_under_its_own_name(path):
    params = load_params(path)
    assert params.profile == path.stem
    assert params == load_params(path.stem)
    assert all(0 < stage.training.learning_rate < 1 for stage in params.settings.train_stages())


def test_numbers_that_yaml_reads_as_text_are_typed(write):
    path = write("profile: test\nsettings: {training: {learning_rate: 1e-6}, alpha: 1}")
    raw = yaml.safe_load(path.read_text())["settings"]
    assert raw["training"]["learning_rate"] == "1e-6", "YAML 1.1 wants a dot"
    settings = load_params(path).settings
    assert settings.training.learning_rate == 0.000001
    assert isinstance(settings.training.learning_rate, float)
    assert isinstance(settings.alpha, float)


def test_an_empty_tree_gives_the_papers_settings(write):
    settings = load_params(write("profile: test")).settings
    assert settings == Settings()
    assert settings.alpha == 0.1
    assert settings.training.rollouts_per_prompt == 8
    assert settings.training.temperature == 1.0
    assert settings.training.beta == 0.001
    assert settings.training.prompts_per_step == 1024
    assert settings.training.learning_rate == 5e-7
    assert settings.training.max_completion_tokens == 2048
    assert settings.anchors.draws == 1
    sampling = settings.evaluation.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.7, 0.8, 20)
    assert len(settings.eval_seeds) == 3


@pytest.mark.parametrize(
    ("settings", "key", "value"),
    [
        ({"training": {"steps": "abc"}}, "settings.training.steps", "'abc'"),
        ({"training": {"steps": 2.5}}, "settings.training.steps", "2.5"),
        ({"training": {"steps": True}}, "settings.training.steps", "True"),
        ({"training": {"steps": None}}, "settings.training.steps", "None"),
        ({"training": {"steps": 0}}, "settings.training.steps", "0"),
        ({"training": [1]}, "settings.training", "[1]"),
        ({"training": {"learning_rate": "1e-6x"}}, "settings.training.learning_rate", "'1e-6x'"),
        ({"training": {"learning_rate": 0}}, "settings.training.learning_rate", "0"),
        ({"training": {"learning_rate": "inf"}}, "settings.training.learning_rate", "'inf'"),
        ({"training": {"weight_decay": float("nan")}}, "settings.training.weight_decay", "nan"),
        ({"training": {"adam_betas": [0.9]}}, "settings.training.adam_betas.1", "[0.9]"),
        ({"training": {"adam_betas": [0.9, 1.0]}}, "settings.training.adam_betas.1", "1.0"),
        ({"training": {"rollouts_per_prompt": 1}}, "settings.training.rollouts_per_prompt", "1"),
        ({"training": {"loss_type": "ppo"}}, "settings.training.loss_type", "'ppo'"),
        (
            {"training": {"lr_scheduler": "stepwise"}},
            "settings.training.lr_scheduler",
            "'stepwise'",
        ),
        ({"training": {"scale_rewards": "std"}}, "settings.training.scale_rewards", "'std'"),
        ({"alpha": 0}, "settings.alpha", "0"),
        ({"alpha": "inf"}, "settings.alpha", "'inf'"),
        ({"alpha": True}, "settings.alpha", "True"),
        ({"methods": ["calif", "dpo"]}, "settings.methods.1", "'dpo'"),
        ({"methods": "calif"}, "settings.methods", "'calif'"),
        ({"methods": ["calif", "calif"]}, "settings.methods", "'calif'"),
        ({"train_seeds": []}, "settings.train_seeds", "[]"),
        ({"train_seeds": [-1]}, "settings.train_seeds.0", "-1"),
        ({"train_seeds": [True]}, "settings.train_seeds", "True"),
        ({"eval_seeds": [0, 1, 0]}, "settings.eval_seeds", "[0, 1, 0]"),
        ({"data": {"max_constraints": 6}}, "settings.data.max_constraints", "6"),
        ({"data": {"seed": 2**32}}, "settings.data.seed", "4294967296"),
        ({"anchors": {"sampling": {"top_p": 0}}}, "settings.anchors.sampling.top_p", "0"),
        ({"anchors": {"sampling": {"top_p": 1.01}}}, "settings.anchors.sampling.top_p", "1.01"),
        ({"anchors": {"sampling": {"top_k": -1}}}, "settings.anchors.sampling.top_k", "-1"),
        ({"evaluation": {"semantics": "fixed"}}, "settings.evaluation.semantics", "'fixed'"),
        ({"evaluation": {"n_prompts": 0}}, "settings.evaluation.n_prompts", "0"),
        ({"execution": {"cluster": "lsf"}}, "settings.execution.cluster", "'lsf'"),
        (
            {"execution": {"memory_per_worker_gb": 0}},
            "settings.execution.memory_per_worker_gb",
            "0",
        ),
    ],
)
def test_wrong_values_are_refused_with_file_key_and_value(write, settings, key, value):
    message = refusal(write(settings))
    assert f": {key}: " in message
    assert f"got {value}" in message or f"{value}" in message.partition("(got ")[2]


def write_slurm(write, line: str) -> Path:
    return write(f"profile: test\nsettings:\n  execution:\n    slurm:\n      {line}\n")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("timeout_min: 4320", {"timeout_min": 4320}),
        ("timeout_min: 1440", {"timeout_min": 1440}),
        ("timeout_min: 72h", {"timeout_min": 4320}),
        ("timeout_min: 3 d", {"timeout_min": 4320}),
        ("timeout_min: 90 min", {"timeout_min": 90}),
        ("timeout_min: '3600'", {"timeout_min": 3600}),
        ("slurm_time: 36h", {"slurm_time": 2160}),
        ("slurm_signal_delay_s: 2m", {"slurm_signal_delay_s": 120}),
        ("signal_delay_s: 3600", {"signal_delay_s": 3600}),
        (
            "slurm_additional_parameters: {time-min: 2h, qos: long}",
            {"slurm_additional_parameters": {"time-min": 120, "qos": "long"}},
        ),
    ],
)
def test_a_duration_is_a_number_of_its_unit_or_says_its_own(write, line, expected):
    assert load_params(write_slurm(write, line)).settings.execution.slurm == expected


@pytest.mark.parametrize("quote", ["", "'"])
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("timeout_min", "72:00:00"),
        ("timeout_min", "24:00"),
        ("timeout_min", "1-12:00:00"),
        ("slurm_time", "1:30:00"),
        ("signal_delay_s", "2:00"),
    ],
)
def test_a_clock_time_is_no_duration(write, quote, key, value):
    message = refusal(write_slurm(write, f"{key}: {quote}{value}{quote}"))
    assert f"settings.execution.slurm: {key} = '{value}': ambiguous" in message
    unit = "s" if key.endswith("_s") else "min"
    assert f"write a whole number of {unit}, or number and unit as text, such as 36h" in message


@pytest.mark.parametrize("value", [259200, 43200, 3600, 5400, 0, -5, 90.0, "90 s", "long", [60]])
def test_what_yaml_makes_of_a_clock_time_is_refused_too(value):
    """papermill reads params files itself, with base 60: 72:00:00 comes as 259200."""
    with pytest.raises(ParamsError, match=r"slurm: timeout_min = .*write a whole number of min"):
        load_params("cpu", {"execution": {"slurm": {"timeout_min": value}}})


def test_settings_from_elsewhere_are_refused_when_they_are_nested_too_deeply():
    """A notebook's settings, or ``--set a.a.a...=1``, come as a tree."""
    tree = {}
    for _ in range(5000):
        tree = {"a": tree}
    with pytest.raises(ParamsError, match="cpu.yaml with overrides: settings: nested too deeply"):
        load_params("cpu", tree)


def test_a_key_twice_is_refused():
    """YAML takes the second; a params file in which a value was changed in one place only."""
    with pytest.raises(YamlError, match="line 3: alpha twice"):
        read_yaml("a: &x {alpha: 1}\nb:\n  {alpha: 1, alpha: 2}")
    merged = read_yaml("a: &x {alpha: 1}\nb: &y {beta: 1}\nc: {<<: [*x, *y], alpha: 2}")
    assert merged["c"] == {"alpha": 2, "beta": 1}


def test_only_clock_times_are_read_otherwise_than_by_yaml():
    text = "{a: 1:30, b: 1:30.5, c: 0x10, d: 1_000, e: 1.5e+3, f: 2026-12-01 10:00:00, g: '1:2'}"
    assert read_yaml(text) == yaml.safe_load(text) | {"a": "1:30", "b": "1:30.5"}


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"modell": "x"}, "settings.modell"),
        ({"training": {"lr": 1}}, "settings.training.lr"),
        ({"anchors": {"sampling": {"topp": 1}}}, "settings.anchors.sampling.topp"),
        ({"evaluation": {"seed": 1}}, "settings.evaluation.seed"),
        ({"data": {"path": "a"}}, "settings.data.path"),
        ({"execution": {"gpus": 1}}, "settings.execution.gpus"),
    ],
)
def test_an_unknown_key_is_refused_at_every_level(write, settings, key):
    assert f": {key}: unknown key (got " in refusal(write(settings))


def test_an_unknown_key_is_refused_at_the_top(write):
    assert ": sttings: unknown key" in refusal(write("profile: test\nsttings: {}"))


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        (
            {"data": {"min_constraints": 4, "max_constraints": 2}},
            ["settings.data: ", "min_constraints (4)", "max_constraints (2)"],
        ),
        (
            {"training": {"prompts_per_step": 3, "rollouts_per_prompt": 3, "micro_batch_size": 2}},
            ["settings.training: ", "= 9 rollouts", "micro_batch_size = 2"],
        ),
        (
            {"training": {"lora": {"target_modules": ["q_proj", "lm_head"]}}},
            ["settings.training.lora.target_modules", "head"],
        ),
        (
            {"data": {"n_prompts": 7}, "training": {"prompts_per_step": 8}},
            ["data.n_prompts = 7", "training.prompts_per_step = 8"],
        ),
        (
            {"data": {"source": "rows.jsonl", "constraint_ids": ["punctuation:no_comma"]}},
            ["settings.data: constraint_ids = ('punctuation:no_comma',)", "source = rows.jsonl"],
        ),
        (
            {"data": {"source": "hub:a/b", "max_constraints": 3}},
            ["settings.data: max_constraints = 3", "source = hub:a/b", "set it to 5"],
        ),
        (
            {"data": {"source": "hub:a/b", "min_constraints": 2}},
            ["settings.data: min_constraints = 2", "set it to 1"],
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(write, settings, parts):
    message = refusal(write(settings))
    assert all(part in message for part in parts), message
    assert "(got {" not in message  # the whole group, which says nothing


@pytest.mark.parametrize("name", ["..", ".", "a/b", "", ".hidden", "a\n"])
def test_a_profile_name_stays_within_its_folder(write, name):
    assert "profile: " in refusal(write(yaml.safe_dump({"profile": name})))


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("profile: [", "not readable as YAML"),
        ("profile: 2020-13-45", "not readable as YAML"),
        ("- profile", "expected a mapping"),
        ("", "expected a mapping"),
        ("submit: true", "profile: "),
        ("profile: test\nsettings: [1]", "settings: "),
        ("profile: test\nsubmit: maybe", "submit: "),
        ("profile: test\n1: 2", "1: "),
    ],
)
def test_a_file_that_is_no_params_file_is_refused(write, content, part):
    path = write(content)
    assert part in refusal(path)
    assert part in refusal(path, settings={"alpha": 0.2}), "an override hides nothing"


def test_bytes_that_are_no_text_are_refused(tmp_path):
    path = tmp_path / "test.yaml"
    path.write_bytes(b"profile: \xff\xfe")
    assert "not readable as YAML" in refusal(path)


def test_several_problems_are_told_in_one_go(write):
    with pytest.raises(ParamsError) as caught:
        load_params(write({"alpha": -1, "training": {"steps": "abc"}}))
    first, second = str(caught.value).splitlines()
    assert "settings.alpha" in first
    assert "settings.training.steps" in second


def test_a_missing_file_is_named_with_the_profiles_there_are(tmp_path):
    with pytest.raises(ParamsError, match=r"no params file .*params/nope\.yaml; profiles: .*ci"):
        load_params("nope")
    with pytest.raises(ParamsError, match=str(tmp_path / "nope.yaml")):
        load_params(tmp_path / "nope.yaml")


def test_overrides_are_merged_key_by_key(write):
    path = write({"training": {"steps": 3, "micro_batch_size": 4}, "train_seeds": [1, 2]})
    settings = load_params(path, {"training": {"steps": 5}, "train_seeds": [7]}).settings
    assert settings.training.steps == 5
    assert settings.training.micro_batch_size == 4, "its neighbour stays"
    assert settings.train_seeds == (7,), "a list is replaced, not joined"
    assert load_params(path, {}).settings == load_params(path).settings


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ({"training": {"steps": "abc"}}, "settings.training.steps"),
        ({"training": {"step": 5}}, "settings.training.step"),
        ({"training": 5}, "settings.training"),
        ({"nope": 5}, "settings.nope"),
        ([1], "settings"),
        ("alpha", "settings"),
    ],
)
def test_overrides_are_typed_by_the_same_schema(write, override, key):
    message = refusal(write({}), settings=override)
    assert f" with overrides: {key}: " in message


def test_settings_cannot_be_changed_after_they_were_checked():
    with pytest.raises(ValueError, match="frozen"):
        Settings().alpha = 5


# Every setting with a second value, and the kinds of stages whose results it can change.
ANCHORS, ALL = {"anchors", "training", "policies"}, {"anchors", "training", "policies", "base"}
TRAINED, RESPONSES = {"training", "policies"}, {"policies", "base"}
CHANGES = {
    "model": ("other/model", ALL),
    "thinking": (True, ALL),
    "engine": ("vllm", ALL),
    "reward.reversed_bounds": ("keep", TRAINED),
    "reward.ceiling_margin": (0.5, TRAINED),
    "reward.bonus_requires_compliant_anchor": (True, TRAINED),
    "data.source": ("hub:a/b", ANCHORS),
    "data.n_prompts": (2000, ANCHORS),
    "data.min_constraints": (2, ANCHORS),
    "data.max_constraints": (4, ANCHORS),
    "data.constraint_ids": (["punctuation:no_comma"], ANCHORS),
    "data.part": ("train", ANCHORS),
    "data.revision": ("abc", ANCHORS),
    "data.seed": (1, ANCHORS),
    "anchors.sampling.batch_size": (16, ANCHORS),
    "anchors.draws": (2, ANCHORS),
    "anchors.retries": (1, ANCHORS),
    "anchors.seed": (1, ANCHORS),
    "training.steps": (3, TRAINED),
    "training.prompts_per_step": (512, TRAINED),
    "training.rollouts_per_prompt": (4, TRAINED),
    "training.learning_rate": (1e-6, TRAINED),
    "training.lr_scheduler": ("linear", TRAINED),
    "training.adam_betas": ([0.9, 0.95], TRAINED),
    "training.weight_decay": (0.0, TRAINED),
    "training.max_grad_norm": (0.5, TRAINED),
    "training.beta": (0.01, TRAINED),
    "training.epsilon": (0.3, TRAINED),
    "training.loss_type": ("grpo", TRAINED),
    "training.scale_rewards": ("none", TRAINED),
    "training.micro_batch_size": (16, TRAINED),
    "training.gradient_checkpointing": (False, TRAINED),
    "training.lora": ({"r": 8}, TRAINED),
    "training.precision": ("float32", TRAINED),
    "training.use_vllm": (True, TRAINED),
    "training.drop_degenerate": (True, TRAINED),
    "evaluation.benchmark": ("rows.jsonl", RESPONSES),
    "evaluation.n_prompts": (10, RESPONSES),
    "evaluation.prompt_seed": (1, RESPONSES),
    "evaluation.sampling.temperature": (1.0, RESPONSES),
    "evaluation.sampling.top_p": (0.9, RESPONSES),
    "evaluation.sampling.top_k": (0, RESPONSES),
    "evaluation.sampling.max_tokens": (9, RESPONSES),
    "evaluation.sampling.batch_size": (9, RESPONSES),
    "execution.cluster": ("slurm", set()),
    "execution.workers": (2, set()),
    "execution.memory_per_worker_gb": (1.0, set()),
    "execution.save_every": (1, set()),
    "execution.processes": (2, set()),
    "execution.keep_checkpoints": (3, set()),
    "execution.tokens_per_pass": (1, set()),
    "execution.trainer": ("verl", TRAINED),
    "execution.deepspeed": ("zero3.json", set()),
    "execution.report_to": (["trackio"], set()),
    "execution.slurm": ({"slurm_partition": "gpu"}, set()),
    "execution.vllm.sleep": (False, set()),
    "execution.vllm.max_model_len": (4096, set()),
    "execution.vllm.gpu_memory_utilization": (0.5, set()),
    "execution.vllm.tensor_parallel_size": (2, set()),
    "execution.slurm_stages": ({"scores": {"slurm_partition": "cpu"}}, set()),
    "execution.gpu_memory_gb": (80, set()),
    "execution.requeues": (2, set()),
}
# These have tests of their own below.
ELSEWHERE = {"alpha", "methods", "train_seeds", "eval_seeds", "evaluation.semantics"}
ELSEWHERE |= {"region_draws", "judge", "self_judge", "stronger_judge", "tau", "rubrics"}
ELSEWHERE |= {"data.max_prompt_tokens", "data.tokenizer"}  # tests/data/test_prompts.py
ELSEWHERE |= {"checkpoints", "answers", "execution.policies"}
ELSEWHERE |= {"execution.judges", "identification", "evaluation.composed"}
# Anchors are drawn as the rollouts are.
ANCHOR_SAMPLING = {"temperature": 0.9, "top_p": 0.9, "top_k": 5, "max_tokens": 9}
ELSEWHERE |= {f"anchors.sampling.{name}" for name in ANCHOR_SAMPLING}
ELSEWHERE |= {"training.max_completion_tokens", "training.anchors_may_differ"}
ELSEWHERE |= {"training.temperature"}


def leaves(tree: dict, prefix: str = "") -> set[str]:
    found = set()
    for key, value in tree.items():
        nested = isinstance(value, dict) and value
        found |= leaves(value, f"{prefix}{key}.") if nested else {prefix + key}
    return found


def test_the_table_of_changes_knows_every_setting():
    assert leaves(Settings().model_dump()) == set(CHANGES) | ELSEWHERE


def stage_hashes(settings: Settings) -> dict[str, str]:
    scores = settings.score_stages()
    return {
        "anchors": stage_hash(settings.anchor_stage()),
        "training": stage_hash(settings.train_stage("calif", 0)),
        "base": stage_hash(scores[0].responses) + stage_hash(scores[0]),
        "policies": stage_hash(scores[-1].responses) + stage_hash(scores[-1]),
    }


@pytest.mark.parametrize("key", CHANGES)
def test_the_hash_covers_what_can_change_the_result_and_nothing_else(write, key):
    value, expected = CHANGES[key]
    override = value
    for part in reversed(key.split(".")):
        override = {part: override}
    before = stage_hashes(load_params(write({})).settings)
    after = stage_hashes(load_params(write(override)).settings)
    assert {kind for kind in before if before[kind] != after[kind]} == expected


@pytest.mark.parametrize(("name", "value"), ANCHOR_SAMPLING.items())
def test_anchors_drawn_otherwise_than_rollouts_have_to_be_asked_for(write, name, value):
    changed = {"anchors": {"sampling": {name: value}}}
    with pytest.raises(ParamsError, match=rf"anchors\.sampling\.{name} = {value}.*anchors_may_dif"):
        load_params(write(changed))
    allowed = load_params(write(changed | {"training": {"anchors_may_differ": True}})).settings
    plain = load_params(write({})).settings
    hashes = stage_hashes(allowed), stage_hashes(plain)
    assert {kind for kind in hashes[0] if hashes[0][kind] != hashes[1][kind]} == ANCHORS


@pytest.mark.parametrize(
    ("of_rollouts", "of_anchors", "value"),
    [("max_completion_tokens", "max_tokens", 9), ("temperature", "temperature", 0.6)],
)
def test_how_rollouts_are_drawn_splits_training_runs_and_anchors(
    write, of_rollouts, of_anchors, value
):
    limits = {
        "training": {of_rollouts: value},
        "anchors": {"sampling": {of_anchors: value}},
    }
    one, two = (stage_hashes(load_params(write(s)).settings) for s in ({}, limits))
    assert {kind for kind in one if one[kind] != two[kind]} == ANCHORS


def test_equal_settings_have_one_hash_however_they_are_written(write):
    first = load_params(write({"alpha": 1, "training": {"learning_rate": "1e-6"}})).settings
    second = load_params(write({"training": {"learning_rate": 0.000001}, "alpha": "1.0"})).settings
    assert stage_hashes(first) == stage_hashes(second)
    assert len(stage_hash(first.anchor_stage())) == 10


def test_alpha_splits_calif_runs_only(write):
    one, two = (load_params(write({"alpha": alpha})).settings for alpha in (0.1, 0.2))
    assert stage_hash(one.train_stage("calif", 0)) != stage_hash(two.train_stage("calif", 0))
    assert stage_hash(one.train_stage("if_rlvr", 0)) == stage_hash(two.train_stage("if_rlvr", 0))
    assert one.train_stage("if_rlvr", 0).alpha is None


def test_options_of_the_calibrated_rule_do_not_split_other_runs(write):
    plain, changed = (
        load_params(write({"reward": reward})).settings
        for reward in ({}, {"reversed_bounds": "keep"})
    )
    for method in ("if_rlvr", "direct_bonus", "no_lower", "no_upper"):
        stages = [settings.train_stage(method, 0) for settings in (plain, changed)]
        assert stage_hash(stages[0]) == stage_hash(stages[1]), method
    for method in ("calif", "inner_region", "outer_region"):
        stages = [settings.train_stage(method, 0) for settings in (plain, changed)]
        assert stage_hash(stages[0]) != stage_hash(stages[1]), method


def test_a_ceiling_margin_of_0_is_the_papers_rule(write):
    off, zero, some = (
        load_params(write({"reward": {"ceiling_margin": m}})).settings.train_stage("calif", 0)
        for m in (None, 0, 0.1)
    )
    assert zero.reward.ceiling_margin is None
    assert stage_hash(zero) == stage_hash(off) != stage_hash(some)


def test_region_methods_take_eight_draws_and_the_others_what_is_set(write):
    settings = load_params(write({})).settings
    assert settings.train_stage("calif", 0).anchors.anchors.draws == 1
    assert settings.train_stage("inner_region", 0).anchors.anchors.draws == 8
    assert settings.train_stage("outer_region", 0).anchors == settings.anchor_stage("inner_region")
    four = load_params(write({"region_draws": 4})).settings
    assert four.train_stage("outer_region", 0).anchors.anchors.draws == 4
    assert four.anchor_stage() == settings.anchor_stage()


def test_an_option_that_is_off_leaves_older_runs_valid(write):
    stage = load_params(write({})).settings.train_stage("calif", 0)
    older = stage.model_copy(update={"reward": None})  # before the options existed
    assert stage_hash(older) == stage_hash(stage)


JUDGE = {"name": "local", "model": "some/model", "base_url": "http://localhost:8000/v1"}


def judged(write, **settings) -> Settings:
    judges = [JUDGE | settings.pop("judge_settings", {})]
    return load_params(
        write({"execution": {"judges": judges}, "judge": "local"} | settings)
    ).settings


def test_a_judge_is_named_where_it_is_described(write):
    with pytest.raises(ParamsError, match="no judge 'other' in execution.judges; there are: local"):
        judged(write, judge="other")
    with pytest.raises(ParamsError, match="methods has self_judge, but the setting self_judge"):
        judged(write, methods=["self_judge"])
    with pytest.raises(ParamsError, match="two judges of one name: local, local"):
        load_params(write({"execution": {"judges": [JUDGE, JUDGE]}}))


def test_what_a_judge_answers_is_hashed_and_how_it_is_reached_is_not(write):
    def hashes(**changes):
        settings = judged(write, judge_settings=changes, methods=["self_judge"], self_judge="local")
        return stage_hash(settings.quality_stages()[0]), stage_hash(settings.train_stages()[0])

    plain = hashes()
    assert hashes(base_url="http://elsewhere:1/v1", concurrency=1, retries=0) == plain
    for change in (
        {"model": "other/model"},
        {"temperature": 1.0},
        {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}},
    ):
        assert not set(hashes(**change)) & set(plain), change
    off, on = (
        hashes(extra_body={"chat_template_kwargs": {"enable_thinking": value}})
        for value in (False, True)
    )
    assert not set(off) & set(on)


def test_several_judges_grade_the_same_responses_and_the_first_compares(write):
    plain = judged(write, rubrics=["followbench"])
    others = [JUDGE | {"name": name} for name in ("local", "other")]
    changes = {"execution": {"judges": others}, "rubrics": ["followbench"]}
    alone, both = (judged(write, judge=j, **changes) for j in (["local"], ["local", "other"]))
    assert alone.judge_stages() == plain.judge_stages(), "one in a list is that one, hash and all"
    responses = plain.generate_stages()
    assert [s.judge.name for s in both.quality_stages()] == ["local"] * len(responses) + [
        "other"
    ] * len(responses)
    assert [s.responses for s in both.quality_stages()] == 2 * responses
    assert both.pairwise_stages() == plain.pairwise_stages()
    assert both.rubric_stages() == plain.rubric_stages()
    for wrong in ([], ["local", "local"]):
        with pytest.raises(ParamsError, match="judge: needs a name, a list of distinct names"):
            judged(write, judge=wrong, **changes)


def test_judging_leaves_the_runs_it_judges_alone(write):
    plain = load_params(write({})).settings
    settings = judged(write, rubrics=["followbench"])
    assert settings.score_stages() == plain.score_stages()
    assert [s.responses for s in settings.quality_stages()] == plain.generate_stages()
    assert plain.quality_stages() == plain.pairwise_stages() == plain.rubric_stages() == []
    (pair,) = settings.pairwise_stages()
    assert (pair.first.method, pair.second.method) == ("calif", "if_rlvr")
    assert pair.first.seed == pair.second.seed == plain.eval_seeds[0]
    rubrics = settings.rubric_stages()
    assert {s.responses.evaluation.benchmark for s in rubrics} == {"followbench"}
    assert len(rubrics) == len(plain.generate_stages())


def test_rubric_benchmarks_are_known_and_come_once(write):
    with pytest.raises(ParamsError, match="folowbench: rubric benchmarks are advancedif, follow"):
        load_params(write({"rubrics": ["folowbench"]}))
    with pytest.raises(ParamsError, match="a benchmark twice"):
        load_params(write({"rubrics": ["followbench", "followbench:/data/followbench"]}))
    assert RUBRICS == tuple(BENCHMARKS)


def test_only_a_method_with_a_judge_has_judge_and_tau(write):
    settings = judged(write, self_judge="local", tau=7.0)
    assert settings.train_stage("self_judge", 0).tau == 7.0
    assert settings.train_stage("self_judge", 0).judge.name == "local"
    assert settings.train_stage("calif", 0).judge is None
    assert settings.train_stage("calif", 0).tau is None


def test_methods_and_seeds_have_hashes_of_their_own(write):
    settings = load_params(write({"train_seeds": [0, 1], "eval_seeds": [0, 1, 2]})).settings
    trained, scored = settings.train_stages(), settings.score_stages()
    assert [(s.method, s.seed) for s in trained] == [
        ("if_rlvr", 0),
        ("if_rlvr", 1),
        ("calif", 0),
        ("calif", 1),
    ]
    assert len({stage_hash(stage) for stage in trained}) == 4
    assert len({stage_hash(stage) for stage in scored}) == (1 + 4) * 3
    more = load_params(write({"train_seeds": [0, 1, 2], "eval_seeds": [0]})).settings
    assert stage_hash(more.train_stages()[0]) == stage_hash(trained[0]), "a run stays what it was"


def test_how_responses_are_judged_does_not_draw_them_again(write):
    published, repaired = (
        load_params(write({"evaluation": {"semantics": name}})).settings.score_stages()[-1]
        for name in ("published", "repaired")
    )
    assert stage_hash(published.responses) == stage_hash(repaired.responses)
    assert stage_hash(published) != stage_hash(repaired)
    assert repaired.model_dump()["semantics"] == "repaired"


def test_stages_have_names_that_tell_them_apart(write):
    settings = load_params(write({"train_seeds": [3], "eval_seeds": [5]})).settings
    assert settings.anchor_stage().name == "reference"
    assert [s.name for s in settings.train_stages()] == ["if_rlvr-seed3", "calif-seed3"]
    assert [s.name for s in settings.score_stages()] == [
        "base-seed5",
        "if_rlvr-trained3-seed5",
        "calif-trained3-seed5",
    ]
    assert [s.responses.method for s in settings.score_stages()] == ["base", "if_rlvr", "calif"]
    kinds = [AnchorStage.kind, TrainStage.kind, GenerateStage.kind, ScoreStage.kind]
    assert kinds == ["anchors", "training", "generation", "scores"]


def test_request_identification_is_a_stage_of_its_own(write):
    plain, asked, otherwise = (
        load_params(write(settings)).settings
        for settings in ({}, {"identification": {}}, {"identification": {"requests": 4}})
    )
    assert plain.identification_stages() == []
    stages = asked.identification_stages()
    assert [stage.responses for stage in stages] == asked.generate_stages()
    assert stages[0].needs == (asked.generate_stages()[0],)
    assert stage_hashes(plain) == stage_hashes(asked) == stage_hashes(otherwise)
    assert stage_hash(stages[0]) != stage_hash(otherwise.identification_stages()[0])
    with pytest.raises(ParamsError, match=r"settings.identification.requests: .* \(got 1\)"):
        load_params(write({"identification": {"requests": 1}}))


def test_composed_test_prompts_split_responses_alone(write):
    composed = {"benchmark": "composer", "composed": {"part": "test"}}
    plain, asked = (
        load_params(write(settings)).settings for settings in ({}, {"evaluation": composed})
    )
    hashes = stage_hashes(plain), stage_hashes(asked)
    assert {kind for kind in hashes[0] if hashes[0][kind] != hashes[1][kind]} == RESPONSES
    assert asked.generate_stages("followbench") == plain.generate_stages("followbench")
    for refused in (
        {"benchmark": "composer"},
        {"composed": {}},
        {"benchmark": "composer", "composed": {"source": "rows.jsonl"}},
    ):
        with pytest.raises(ParamsError, match="settings.evaluation: .*compose"):
            load_params(write({"evaluation": refused}))
