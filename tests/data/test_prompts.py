"""Settings -> instances: what is chosen must not depend on the machine."""

import json
from importlib import resources

import pytest

from califkit import generation
from califkit.data import composer, load, prompts
from califkit.judges.rubrics import BENCHMARKS
from califkit.runs.folders import Run, StaleRunError
from califkit.runs.params import load_params
from califkit.runs.settings import (
    AnchorSettings,
    DataSettings,
    EvaluationSettings,
    ResponseSettings,
)
from califkit.runs.stages import AnchorStage, GenerateStage, stage_hash


@pytest.mark.parametrize("tagger", [True, False])
def test_chosen_test_prompts_do_not_depend_on_optional_data(tagger, monkeypatch, request):
    if tagger:
        import nltk

        folder = request.getfixturevalue("shared") / "nltk_data"
        monkeypatch.setattr(nltk.data, "path", [str(folder)])
    usable = load.load_ifbench_wheel().instances
    assert len(usable) == 293 or not tagger
    settings = EvaluationSettings(n_prompts=64)
    chosen = {instance.key for instance in generation.benchmark_prompts(settings).instances}
    without = [i for i in usable if all(c.id != "words:start_verb" for c in i.constraints)]
    assert chosen == {instance.key for instance in load.select(without, 64, 0)}


def test_the_composed_prompts_of_a_profile_have_their_requests():
    settings = load_params("cpu").settings.data
    loaded = prompts.training_prompts(settings)
    assert len(loaded.instances) == settings.n_prompts and not loaded.quarantined
    assert all(i.prompt.startswith(i.request) for i in loaded.instances)
    assert all(c.id in settings.constraint_ids for i in loaded.instances for c in i.constraints)


def test_test_prompts_can_be_composed_like_those_of_training():
    how = load_params("cpu").settings.data
    train, test = (how.model_copy(update={"part": part}) for part in ("train", "test"))
    settings = EvaluationSettings(benchmark="composer", composed=test)
    asked = generation.benchmark_prompts(settings).instances
    assert asked == prompts.training_prompts(test).instances
    trained = {i.request for i in prompts.training_prompts(train).instances}
    assert len(asked) == how.n_prompts and not trained & {i.request for i in asked}


# Rubric benchmarks.


def asked(benchmark, **changes):
    return generation.benchmark_prompts(ResponseSettings(benchmark=benchmark, **changes))


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_rubric_benchmark_gives_a_prompt_without_constraints_for_every_item(name):
    loaded = asked(name)
    items = BENCHMARKS[name].load().items
    assert [i.key for i in loaded.instances] == [item.id for item in items]
    assert loaded.n_rows == len(items) and not loaded.quarantined
    assert all(i.constraints == () and i.x == i.prompt for i in loaded.instances)
    assert not any(i.request_is_flagged for i in loaded.instances)
    assert f"{name}, built-in sample: {len(items)} rows" in loaded.summary()


def test_the_prompts_are_the_instructions_of_the_native_files():
    folder = resources.files("califkit.judges.rubrics") / "resources"
    complexbench = json.loads((folder / "complexbench.json").read_text())
    assert [i.prompt for i in asked("complexbench").instances] == [
        row["instruction_en"] for row in complexbench
    ]
    style = json.loads((folder / "style_constraints.json").read_text())
    prompt_of = {i.key: i.prompt for i in asked("followbench").instances}
    for row in style:
        if row["level"]:
            assert prompt_of[f"style/{row['example_id']}/{row['level']}"] == row["instruction"]


def test_a_source_stands_after_the_colon(tmp_path):
    sample = resources.files("califkit.judges.rubrics") / "resources" / "style_constraints.json"
    (tmp_path / "style_constraints.json").write_text(sample.read_text())
    loaded = asked(f"followbench:{tmp_path}")
    assert {i.key for i in loaded.instances} == {f"style/1/{level}" for level in range(1, 6)}
    assert str(tmp_path) in loaded.source


@pytest.mark.parametrize(
    ("benchmark", "message"),
    [
        ("followbench:", "source after the colon is empty"),
        ("followbench:/no/such/folder", "/no/such/folder"),
        ("followbenchmark", "no such file"),
    ],
)
def test_a_benchmark_that_cannot_be_had_is_an_error_that_names_it(benchmark, message):
    with pytest.raises(ValueError, match=message):
        asked(benchmark)
    assert not generation.is_rubric("ifbench") and not generation.is_rubric("hub:followbench")


def test_fewer_prompts_are_whole_groups_of_followbench():
    few = asked("followbench", n_prompts=14).instances
    groups = {i.key.rpartition("/")[0] for i in few}
    assert len(few) == 10 and len(groups) == 2
    assert {i.key for i in few} == {f"{g}/{level}" for g in groups for level in range(1, 6)}
    assert len(asked("followbench", n_prompts=5).instances) == 5
    with pytest.raises(ValueError, match=r"n_prompts = 4: followbench has groups of 5"):
        asked("followbench", n_prompts=4)


def test_n_prompts_bounds_the_items_and_the_choice_is_told():
    settings = ResponseSettings(benchmark="complexbench", n_prompts=3)
    benchmark, loaded = generation.rubric_items(settings)
    assert benchmark is BENCHMARKS["complexbench"]
    assert len(loaded.items) == 3
    assert loaded.warnings[-1] == "built-in sample: 3 of 5 items, n_prompts = 3"
    assert loaded.sha256 == benchmark.load().sha256  # of the data, whatever is chosen
    other = generation.rubric_items(settings.model_copy(update={"prompt_seed": 1}))[1]
    assert other.items != loaded.items
    assert len(asked("complexbench", n_prompts=300).instances) == 5


def test_only_rubric_benchmarks_have_items():
    with pytest.raises(ValueError, match=r"'ifbench' is none of advancedif, followbench, compl"):
        generation.rubric_items(ResponseSettings())


def test_complete_responses_to_a_file_that_was_replaced(tmp_path):
    path = tmp_path / "rows.jsonl"
    row = {"key": "a", "prompt": "Say hi. Use no comma.", "kwargs": [{}]}
    row["instruction_id_list"] = ["punctuation:no_comma"]
    path.write_text(json.dumps(row) + "\n")
    known = generation.benchmark_prompts(ResponseSettings(benchmark=str(path))).sha256
    stage = GenerateStage(
        model="m", policy=None, evaluation=ResponseSettings(benchmark=str(path)), seed=0
    )
    run = Run(stage, tmp_path / "run")
    run.folder.mkdir()
    prompts.check_unchanged(run)  # not complete
    run.finish(0.0, data_sha256=known)
    prompts.check_unchanged(run)
    path.write_text(json.dumps(row | {"prompt": "Say hello. Use no comma."}) + "\n")
    with pytest.raises(StaleRunError, match=f"other prompts than {path} holds now"):
        prompts.check_unchanged(run)


# Data in the hub's layout.


@pytest.fixture
def hub_file(tmp_path):
    """Six composed prompts in a file of the hub's layout, the last of them a long one."""
    rows = composer.compose(6, seed=0)
    row = rows[-1]
    words = " tea" * 200
    row["messages"][0]["content"] += words
    row["constraint"] += words
    folder = tmp_path / "data"
    folder.mkdir()
    path = folder / "train.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_all_prompts_that_are_not_too_long(hub_file):
    every = DataSettings(source=str(hub_file), n_prompts=None)
    assert len(prompts.training_prompts(every).instances) == 6
    limit = {"max_prompt_tokens": 150, "tokenizer": "tiny-random-llama"}
    short = every.model_copy(update=limit)
    loaded = prompts.training_prompts(short)
    assert [i.key for i in loaded.instances] == [
        i.key for i in prompts.training_prompts(every).instances[:5]
    ]
    assert "1 quarantined (too long: 1)" in loaded.summary()
    lengths = prompts.prompt_lengths([i.prompt for i in loaded.instances], "tiny-random-llama")
    assert max(lengths) <= 150
    stages = [AnchorStage(model="m", data=d, anchors=AnchorSettings()) for d in (short, every)]
    assert stage_hash(stages[0]) != stage_hash(stages[1])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_prompt_tokens": 5}, "max_prompt_tokens = 5 and tokenizer = None"),
        ({"tokenizer": "x"}, "max_prompt_tokens = None and tokenizer = x"),
        ({"n_prompts": None}, "n_prompts = null is for a file or the hub"),
    ],
)
def test_what_says_nothing_about_prompts_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        DataSettings(**changes)


def test_the_only_split_of_a_data_set_is_taken_whatever_it_is_called(hub_file):
    """IFBench's test prompts are in a split called train."""
    loaded = load.load_hub(str(hub_file.parent), split="test")
    assert len(loaded.instances) == 6 and "[train]" in loaded.source
    (hub_file.parent / "validation.jsonl").write_bytes(hub_file.read_bytes())
    with pytest.raises(load.DataError, match="no split 'test'; there are: train, validation"):
        load.load_hub(str(hub_file.parent), split="test")


def test_all_of_a_benchmark_or_an_error(hub_file):
    settings = ResponseSettings(benchmark=str(hub_file), n_prompts=6)
    assert len(generation.benchmark_prompts(settings).instances) == 6
    with pytest.raises(load.DataError, match="n=7: cannot select that many of 6"):
        generation.benchmark_prompts(settings.model_copy(update={"n_prompts": 7}))
