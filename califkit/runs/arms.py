"""Arms of a study: the settings of a params file with a few of them changed, many times over.

Two more keys make a params file a study::

    configurations:             # what changes with the model, say; without the key there is one
      qwen3-1.7b: {}
      qwen3-1.7b-thinking: {thinking: true}
    groups:
      main:
        configurations: [qwen3-1.7b]   # the group's; all of them without the key
        settings: {...}                # changed for all arms of the group (optional)
        also: [{...}]                  # further evaluations: settings changed once more (optional)
        arms:
          calif: {methods: [calif]}

All arms have one profile, so that runs which several of them need (the base policy, anchors, a
point that two sweeps have in common) are computed once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from califkit.runs.params import Params, ParamsError, load_params, merge, params_path, read_study
from califkit.runs.settings import RewardOptions
from califkit.runs.stages import Stage, TrainStage, stage_hash

_GROUP = {"configurations", "settings", "also", "arms"}


@dataclass(frozen=True)
class Arm:
    """One arm; ``evaluations`` differ in the test prompts alone, the main ones come first."""

    name: str
    group: str
    configuration: str
    evaluations: tuple[Params, ...]

    @property
    def label(self) -> str:
        return f"{self.configuration}, {self.name}" if self.configuration else self.name

    @property
    def params(self) -> Params:
        return self.evaluations[0]

    @property
    def stages(self) -> list[Stage]:
        """What the arm consists of: training, scores and request identification."""
        found: list[Stage] = list(self.params.settings.train_stages())
        for params in self.evaluations:
            found += params.settings.score_stages()
            found += params.settings.identification_stages()
        return found

    @property
    def judged_stages(self) -> list[Stage]:
        """What judges are asked about its main test prompts; nothing without a judge."""
        settings = self.params.settings
        return [*settings.quality_stages(), *settings.rubric_stages()]


def load_arms(
    profile: str | Path, settings: dict[str, Any] | None = None, groups: Iterable[str] | None = None
) -> list[Arm]:
    """The arms of a params file in its order, with ``settings`` laid over each.

    A file without groups has one arm a method, in the group ``main``; CaLIF with another rule than
    the paper's is called ``calif_variant``. ``groups`` takes those alone.
    `ParamsError` names the file, and the configuration and the arm at fault.
    """
    path = params_path(profile)
    study = read_study(path)
    if not study["groups"]:
        own = load_params(profile, settings).settings
        departs = {"calif": "calif_variant"} if own.reward != RewardOptions() else {}
        arms = {departs.get(name, name): {"methods": [name]} for name in own.methods}
        study["groups"] = {"main": {"arms": arms}}
    if unknown := set(groups or ()) - set(study["groups"]):
        known = ", ".join(study["groups"])
        raise ParamsError(f"{path}: no group {', '.join(sorted(unknown))}; there are {known}")
    arms = []
    for group, content in study["groups"].items():
        if groups is None or group in groups:
            arms += _arms_of(path, group, content, study["configurations"], settings or {})
    names = [(arm.configuration, arm.name) for arm in arms]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ParamsError(f"{path}: the arm {', '.join(filter(None, twice[0]))} comes twice")
    return arms


def training_runs(arms: Iterable[Arm]) -> dict[str, TrainStage]:
    """The different training runs of some arms, by hash."""
    stages = (stage for arm in arms for stage in arm.params.settings.train_stages())
    return {stage_hash(stage): stage for stage in stages}


def _arms_of(
    path: Path,
    group: str,
    content: Any,
    configurations: dict[str, Any],
    settings: dict[str, Any],
) -> Iterator[Arm]:
    where = f"{path}: groups.{group}"
    _check_keys(content, _GROUP, where)
    for name, wanted in (("configurations", list), ("settings", dict), ("also", list)):
        if not isinstance(content.get(name, wanted()), wanted):
            kind = {list: "list", dict: "mapping"}[wanted]
            raise ParamsError(f"{where}: {name} = {content[name]!r}: expected a {kind}")
    chosen = content.get("configurations", list(configurations) or [""])
    if unknown := [name for name in chosen if name and name not in configurations]:
        known = ", ".join(configurations) or "none"
        raise ParamsError(f"{where}: no configuration {', '.join(unknown)}; there are: {known}")
    arms = content.get("arms")
    if not isinstance(arms, dict):
        raise ParamsError(f"{where}: arms = {arms!r}: expected a mapping of names to settings")
    for configuration in chosen:
        for name, own in arms.items():
            merged: dict[str, Any] = {}
            of_configuration = configurations.get(configuration) or {}
            for level in (of_configuration, content.get("settings", {}), own, settings):
                if not isinstance(level, dict):
                    at = ", ".join(filter(None, [configuration, name]))
                    raise ParamsError(f"{where}: arm {at}: {level!r}: expected settings")
                merged = merge(merged, level)
            changes = [merged, *(merge(merged, further) for further in content.get("also", ()))]
            at_fault = ", ".join(filter(None, [configuration, name]))
            try:
                loaded = tuple(load_params(path, change) for change in changes)
            except ParamsError as error:
                raise ParamsError(f"{path}: arm {at_fault}: {error}") from error
            yield Arm(name, group, configuration, loaded)


def _check_keys(content: Any, known: set[str], where: str) -> None:
    if not isinstance(content, dict) or (unknown := set(content) - known):
        got = ", ".join(sorted(unknown)) if isinstance(content, dict) else repr(content)
        raise ParamsError(f"{where}: has {got}; known are {', '.join(sorted(known))}")
