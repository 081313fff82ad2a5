"""A trained policy, its anchors and its responses as folders that a hub takes, each with a card.

Cards say what the manifests say: where weights and rows come from, how they were made, and what was
not measured. Nothing is uploaded.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from califkit import CalifkitError
from califkit.anchors.table import ANCHORS
from califkit.exhibits.methods import label
from califkit.exhibits.summary import METRICS, metrics_by_run
from califkit.generation import RESPONSES
from califkit.runs.folders import LOG, POLICY, Run, open_run, own_run, require_complete
from califkit.runs.jsonl import read_jsonl
from califkit.runs.params import Settings
from califkit.runs.stages import TrainStage

PAPER = "arXiv:2610.19525"
LICENSE = "apache-2.0"

_NOT_MEASURED = "Response quality was not measured: no judge was asked."


class ExportError(CalifkitError, ValueError):
    """What is to be exported is not there, or the folder for it is not empty."""


def export_policy(profile: str, stage: TrainStage, settings: Settings, folder: Path) -> list[Path]:
    """Write ``policy``, ``anchors`` and ``responses`` of one training run below a new folder.

    Responses are those evaluations of the policy that are complete. `ExportError` if the folder
    holds anything, or the run has no weights here (recorded runs have none).
    """
    if folder.exists() and any(folder.iterdir()):
        raise ExportError(f"{folder}: is not empty")
    run = own_run(profile, stage)
    if not run.is_complete or not (run.folder / POLICY).is_dir():
        raise ExportError(f"{run.folder}: has no weights here; `califkit train` makes them")
    anchors = require_complete(open_run(profile, stage.anchors))
    scored = [open_run(profile, s) for s in settings.score_stages() if s.responses.policy == stage]
    scored = [one for one in scored if one.is_complete]
    written = [_policy(run, scored, folder / "policy"), _anchors(anchors, folder / "anchors")]
    if scored:
        written.append(_responses(profile, scored, folder / "responses"))
    return written


def _policy(run: Run, scored: list[Run], folder: Path) -> Path:
    shutil.copytree(run.folder / POLICY, folder)
    facts, stage = run.manifest(), run.stage
    log = read_jsonl(run.folder / LOG)
    head = {
        "base_model": stage.anchors.model,
        "library_name": "transformers",
        "license": LICENSE,
        "pipeline_tag": "text-generation",
        "tags": ["grpo", "instruction-following", "califkit", stage.method],
    }
    text = f"""
# {stage.anchors.model}, trained with {label(stage.method)}

A policy trained by GRPO on verifiable constraints with the reward **{label(stage.method)}** (seed
{stage.seed}), by califkit, the reproducible-paper project for CaLIF ({PAPER}). It shows what that
reward does at this scale; it is no model for use.

## Training

{_table(_flat(stage.training.model_dump()) | {"alpha": stage.alpha} | _reward(stage))}

{facts["data"]}. {facts["processes"]} process(es), {facts["precision"]}, on {facts["host"]}; commit
{facts["git_commit"]}. First and last step:

{_table({name: f"{log[0][name]:.3f} to {log[-1][name]:.3f}" for name in _LOGGED if name in log[0]})}

## Evaluation

{_evaluation(scored)}

{_NOT_MEASURED}

## Versions

{_table(facts["versions"])}
"""
    return _card(folder, head, text)


_LOGGED = ("r_ver", "loglik", "tokens", "distinct_2", "kl")


def _anchors(run: Run, folder: Path) -> Path:
    folder.mkdir(parents=True)
    shutil.copyfile(run.folder / ANCHORS, folder / ANCHORS)
    facts, stage = run.manifest(), run.stage
    head = {"license": LICENSE, "tags": ["califkit", "anchors"], "size_categories": ["n<1K"]}
    if facts["rows"] >= 1000:
        head["size_categories"] = ["1K<n<100K"]
    text = f"""
# Bounds l0 and l1 of {facts["rows"]} prompts under {stage.model}

A row a prompt (`{ANCHORS}`): `l0` is the average log-likelihood, given the request alone, of the
reference's answer to request and constraints, `l1` that of its answer to the request alone, in nats
per token. The schema's metadata (key `califkit`) says how they were measured.

{_table(_flat(stage.anchors.model_dump()) | {"thinking": stage.thinking})}

{facts["data"]}. Reversed bounds (l0 > l1): {facts["reversed_bounds"]}; missing:
{facts["missing_bounds"]}.
"""
    return _card(folder, head, text)


def _responses(profile: str, scored: Iterable[Run], folder: Path) -> Path:
    folder.mkdir(parents=True)
    lines = {}
    for run in scored:
        stage = run.stage.responses
        source = require_complete(open_run(profile, stage))
        name = f"{source.folder.name}.jsonl"
        shutil.copyfile(source.folder / RESPONSES, folder / name)
        lines[name] = f"{stage.evaluation.benchmark}, seed {stage.seed}"
    head = {"license": LICENSE, "tags": ["califkit", "responses"]}
    text = f"""
# Responses of the policy

A row a prompt: `key`, `prompt`, `response`, `token_ids`, `finish_reason`. `califkit verify` and
`califkit score` read them.

{_table(lines)}
"""
    return _card(folder, head, text)


def _evaluation(scored: list[Run]) -> str:
    if not scored:
        return "None of its evaluations is complete."
    table = metrics_by_run(scored)
    parts = []
    for name, words in METRICS.items():
        values = table[name].astype(float)
        spread = f" ± {values.std():.2f}" if len(values) > 1 else ""
        if not np.isnan(values.mean()):
            parts.append((words, f"{values.mean():.2f}{spread}"))
    asked = scored[0].stage.responses.evaluation
    head = f"{table['n'].iloc[0]} prompts of {asked.benchmark}, {len(table)} run(s).\n\n"
    return head + _table(dict(parts))


def _reward(stage: TrainStage) -> dict[str, Any]:
    return stage.reward.model_dump(exclude_defaults=True) if stage.reward else {}


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        elif value is not None:
            flat[f"{prefix}{key}"] = value
    return flat


def _table(rows: Mapping[str, Any]) -> str:
    return "\n".join(["| | |", "| --- | --- |", *(f"| {k} | {v} |" for k, v in rows.items())])


def _card(folder: Path, head: Mapping[str, Any], text: str) -> Path:
    path = folder / "README.md"
    front = yaml.safe_dump(dict(head), sort_keys=False)
    path.write_text(f"---\n{front}---\n{text}", encoding="utf-8")
    return path
