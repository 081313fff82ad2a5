"""Arms of a study: one params file with a few settings changed, many times over.

An arms file is YAML::

    params: study              # the params file that all arms start from
    settings: {...}            # changed for all arms (optional)
    pilot: {...}               # settings of pilots, whatever the arm; their profile is <name>-pilot
    groups:
      main:
        settings: {...}        # changed for all arms of the group (optional)
        also: [{...}]          # further evaluations: settings changed once more (optional)
        arms:
          calif: {methods: [calif]}

All arms share a profile, so that runs which several of them need (the base policy, anchors) are
computed once.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from califkit.runs.params import Params, ParamsError, load_params, merge, read_params_file
from califkit.runs.stages import Stage

_GROUP = {"settings", "also", "arms"}


@dataclass(frozen=True)
class Arm:
    """One arm; ``evaluations`` differ in the test prompts alone, the main ones come first."""

    name: str
    group: str
    evaluations: tuple[Params, ...]

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


def load_arms(
    path: Path, *, pilot: bool = False, settings: dict[str, Any] | None = None
) -> list[Arm]:
    """The arms of a file, in its order, with ``settings`` laid over each; `ParamsError` names the
    file, and the arm at fault."""
    raw = read_params_file(path)
    _check_keys(raw, {"params", "settings", "pilot", "groups"}, f"{path}")
    extra = raw.get("pilot", {}) if pilot else {}
    arms: list[Arm] = []
    for group, content in raw["groups"].items():
        _check_keys(content, _GROUP, f"{path}: {group}")
        for name, own_settings in content["arms"].items():
            if name in {arm.name for arm in arms}:
                raise ParamsError(f"{path}: the arm {name} comes twice")
            own: dict[str, Any] = {}
            shared, of_group = raw.get("settings", {}), content.get("settings", {})
            for level in (shared, of_group, own_settings, extra, settings or {}):
                own = merge(own, level)
            changes = [own, *(merge(own, further) for further in content.get("also", ()))]
            try:
                loaded = [load_params(raw["params"], change) for change in changes]
            except ParamsError as error:
                raise ParamsError(f"{path}: arm {name}: {error}") from error
            if pilot:
                loaded = [p.model_copy(update={"profile": f"{p.profile}-pilot"}) for p in loaded]
            arms.append(Arm(name, group, tuple(loaded)))
    return arms


def _check_keys(content: Any, known: set[str], where: str) -> None:
    if not isinstance(content, dict) or (unknown := set(content) - known):
        got = ", ".join(sorted(unknown)) if isinstance(content, dict) else repr(content)
        raise ParamsError(f"{where}: has {got}; known are {', '.join(sorted(known))}")
