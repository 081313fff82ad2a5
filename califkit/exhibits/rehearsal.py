"""A rehearsal: a whole study at the size of a toy, by the very path that the real one takes.

Every model is replaced by a miniature of its own architecture and template family, the prompts by
composed ones in the hub's layout, judges by a stand-in; numbers are a few steps, prompts and
tokens. All else is the profile's own: its arms and rewards, ranks and shards, jobs that wait for
others, every stage, every notebook; vLLM and ZeRO-3 where it is given GPUs. What fails here would
have failed there.

A rehearsal is a profile like any other, ``rehearse-<profile>``, written to ``params/``: its runs
are resumed, listed and cancelled like any other's.
"""

from __future__ import annotations

import contextlib
import copy
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from califkit import __version__
from califkit.data.composer import compose
from califkit.judges.stand_in import stand_in
from califkit.models.miniature import write_miniature
from califkit.models.resolve import build_once, cache_dir
from califkit.runs.arms import load_arms
from califkit.runs.jsonl import RowLog
from califkit.runs.params import Params, merge, params_path, read_params_file, read_study
from califkit.runs.paths import project_root
from califkit.runs.stages import Stage
from califkit.training.plan import configuration

PREFIX = "rehearse-"

_TOKENS = 16
_SAMPLING = {"max_tokens": _TOKENS, "batch_size": 8}
_SIZES: dict[str, Any] = {
    "eval_seeds": [0],
    "region_draws": 2,
    "rubrics": ["advancedif", "followbench", "complexbench"],
    "anchors": {"sampling": _SAMPLING},
    "training": {
        "steps": 2,
        "prompts_per_step": 4,
        "rollouts_per_prompt": 2,
        "max_completion_tokens": _TOKENS,
        "micro_batch_size": 2,
        "use_vllm": False,
    },
    "evaluation": {"benchmark": "ifbench", "n_prompts": 6, "sampling": _SAMPLING},
    "engine": None,
    "execution": {"processes": 2, "memory_per_worker_gb": 2.0, "save_every": 1},
}
_PROMPTS = 12
_SLURM = {"nodes": 1, "cpus_per_task": 2, "mem_gb": 6, "timeout_min": 60}
_OF_THE_SITE = ("slurm_setup", "slurm_partition", "slurm_account", "slurm_qos", "slurm_constraint")
"""Options that are the profile's own: whether its cluster takes them is the point."""


@dataclass(frozen=True)
class Rehearsal:
    """A rehearsal's params file, and what of the profile could not be rehearsed here."""

    profile: str
    path: Path
    left_out: tuple[str, ...]


def write_rehearsal(
    profile: str | Path,
    cluster: Literal["local", "slurm"],
    judge_url: str,
    gpus: int = 0,
) -> Rehearsal:
    """Write ``params/rehearse-<profile>.yaml`` and the models and prompts that it names.

    ``gpus`` are those of a job: with none, transformers draws where the profile has vLLM draw.
    """
    load_arms(profile)  # what is wrong with it is told of its own file
    source = params_path(profile)
    raw, study = read_params_file(source), read_study(source)
    name = PREFIX + raw["profile"]
    left_out = []
    sizes = copy.deepcopy(_SIZES)
    if gpus:
        sizes["execution"]["processes"] = gpus
        del sizes["engine"], sizes["training"]["use_vllm"]
    else:
        left_out.append("vLLM and GPUs: --gpus 2 asks for them")
    settings = merge(raw.get("settings") or {}, sizes)
    settings["data"] = _data(settings.get("data", {}))
    settings = _with_miniatures(settings)
    tree: dict[str, Any] = {"profile": name, "submit": True, "settings": settings}
    for key, levels in study.items():
        if levels:
            tree[key] = _with_miniatures(_sized_levels(levels, sizes))
    execution = settings["execution"] = _execution(settings["execution"], cluster, judge_url, gpus)
    settings.setdefault("judge", execution["judges"][0]["name"])
    if not gpus and _drop(tree, "deepspeed"):
        left_out.append("ZeRO-3: without a GPU DeepSpeed does nothing")
    path = project_root() / "params" / f"{name}.yaml"
    header = f"# Written by `califkit rehearse --profile {profile}`; not part of the study.\n"
    path.write_text(header + yaml.safe_dump(tree, sort_keys=False), encoding="utf-8")
    return Rehearsal(name, path, tuple(left_out))


@contextlib.contextmanager
def rehearsal(
    profile: str | Path, cluster: Literal["local", "slurm"] = "local", gpus: int = 0
) -> Iterator[Rehearsal]:
    """A written rehearsal while its stand-in for the judges is served."""
    host = "127.0.0.1" if cluster == "local" else socket.gethostname()
    with stand_in(host) as port:
        yield write_rehearsal(profile, cluster, f"http://{host}:{port}/v1", gpus)


def study_stages(profile: str) -> tuple[Params, list[Stage]]:
    """The first arm's params, for where and how a study is computed, and all stages of its arms."""
    arms = load_arms(profile)
    stages = [stage for arm in arms for stage in (*arm.stages, *arm.judged_stages)]
    return arms[0].params, list(dict.fromkeys(stages))


def _sized(settings: dict[str, Any], sizes: dict[str, Any]) -> dict[str, Any]:
    """Settings at the size of the rehearsal where they set it themselves."""
    small = dict(settings)
    for key, value in settings.items():
        if key in sizes:
            both = isinstance(value, dict) and isinstance(sizes[key], dict)
            small[key] = _sized(value, sizes[key]) if both else sizes[key]
    return small


def _sized_levels(levels: dict[str, Any], sizes: dict[str, Any]) -> dict[str, Any]:
    """The configurations or the groups of a study, each of whose mappings may hold settings."""
    small = {}
    for name, value in levels.items():
        if isinstance(value, dict):
            small[name] = _sized_levels(_sized(value, sizes), sizes)
        elif isinstance(value, list):
            small[name] = [_sized(v, sizes) if isinstance(v, dict) else v for v in value]
        else:
            small[name] = value
    return small


def _made() -> Path:
    """Where models and prompts are kept, which another version makes anew."""
    return cache_dir() / "rehearsal" / __version__


def _data(data: dict[str, Any]) -> dict[str, Any]:
    """The training prompts: composed ones, read from a file in the hub's layout."""
    path = build_once(_made() / "prompts", _write_prompts) / "prompts.jsonl"
    kept = {key: data[key] for key in ("seed", "max_prompt_tokens", "tokenizer") if key in data}
    return {"source": str(path), "n_prompts": None} | kept


def _write_prompts(folder: Path) -> None:
    RowLog(folder / "prompts.jsonl").keep(compose(_PROMPTS, 0, max_constraints=2))


def _with_miniatures(tree: Any) -> Any:
    """Settings with every model and tokenizer replaced by its miniature."""
    if isinstance(tree, list):
        return [_with_miniatures(part) for part in tree]
    if not isinstance(tree, dict):
        return tree
    replaced = {}
    for key, value in tree.items():
        if key in ("model", "tokenizer", "before", "after", "reference") and isinstance(value, str):
            value = _miniature(value)
        elif key != "execution":  # there a model is the name that a judge's server knows
            value = _with_miniatures(value)
        replaced[key] = value
    return replaced


def _miniature(model: str) -> str:
    """The miniature of a model, made once."""
    folder = _made() / model.replace("/", "--")

    def write(partial: Path) -> None:
        write_miniature(configuration(model), partial, opens_reasoning="Think" in model)

    return str(build_once(folder, write))


def _execution(
    execution: dict[str, Any], cluster: str, judge_url: str, gpus: int
) -> dict[str, Any]:
    """Where the rehearsal runs; judges keep their names and are the stand-in."""
    kept = execution.get("slurm") or {}
    slurm = _SLURM | {key: kept[key] for key in _OF_THE_SITE if key in kept}
    slurm |= {"gpus_per_node": gpus} if gpus else {}
    judges = execution.get("judges") or [{"name": "stand-in", "model": "stand-in"}]
    served = [
        {"name": judge["name"], "model": judge["model"], "base_url": judge_url} for judge in judges
    ]
    dropped = ("slurm_stages", "gpu_memory_gb", "policies", "tokens_per_pass")
    own = {key: value for key, value in execution.items() if key not in dropped}
    return own | {"cluster": cluster, "slurm": slurm, "judges": served}


def _drop(tree: Any, key: str) -> int:
    """Delete a key wherever it is in a tree; how often it was there."""
    if isinstance(tree, list):
        return sum(_drop(part, key) for part in tree)
    if not isinstance(tree, dict):
        return 0
    was_here = tree.pop(key, None) is not None
    return was_here + sum(_drop(part, key) for part in tree.values())
