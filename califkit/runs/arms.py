"""Arms of a study: one params file with a few settings changed, many times over.

An arms file is YAML::

    params: study              # the params file that all arms start from
    settings: {...}            # changed for all arms (optional)
    configurations: {...}      # models, or other ways to train all arms (optional)
    pilot: {...}               # settings of pilots, whatever the arm; their profile is <name>-pilot
    groups:
      main:
        settings: {...}        # changed for all arms of the group (optional)
        also: [{...}]          # further evaluations: settings changed once more (optional)
        arms:
          calif: {methods: [calif]}

With ``configurations`` (a name and the settings changed for it, each) every group stands once for
each of them, or for those that its own key ``configurations`` lists, and the names of arms begin
with the configuration's: ``qwen3-4b/calif``.

All arms share a profile, so that runs which several of them need (the base policy, anchors) are
computed once.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from califkit.runs.params import (
    Params,
    ParamsError,
    load_params,
    merge,
    read_params_file,
    typed,
)
from califkit.runs.stages import Stage
from califkit.runs.types import Frozen


class _Group(Frozen):
    configurations: tuple[str, ...] | None = None
    settings: dict[str, Any] = {}
    also: tuple[dict[str, Any], ...] = ()
    arms: dict[str, dict[str, Any]]


class _File(Frozen):
    params: str
    settings: dict[str, Any] = {}
    configurations: dict[str, dict[str, Any]] = {}
    pilot: dict[str, Any] = {}
    groups: dict[str, _Group]


@dataclass(frozen=True)
class Arm:
    """One arm; ``evaluations`` differ in the test prompts alone, the main ones come first.

    ``configuration`` is None where the file has none.
    """

    name: str
    group: str
    evaluations: tuple[Params, ...]
    configuration: str | None = None

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
    path: Path,
    *,
    pilot: bool = False,
    settings: dict[str, Any] | None = None,
    groups: Collection[str] | None = None,
) -> list[Arm]:
    """The arms of a file, in its order, with ``settings`` laid over each; ``groups`` None is all.

    `ParamsError` names the file, and the configuration and the arm at fault.
    """
    file = typed(_File, read_params_file(path), str(path))
    _check_known(groups or (), file.groups, f"{path}: no group")
    extra = file.pilot if pilot else {}
    arms: list[Arm] = []
    for group, content in file.groups.items():
        asked = content.configurations
        if asked is None:
            asked = tuple(file.configurations)
        _check_known(asked, file.configurations, f"{path}: {group}: no configuration")
        for configuration in asked if file.configurations else [None]:
            of_configuration = file.configurations.get(configuration, {})
            for own_name, of_arm in content.arms.items():
                name = f"{configuration}/{own_name}" if configuration else own_name
                if name in {arm.name for arm in arms}:
                    raise ParamsError(f"{path}: the arm {name} comes twice")
                own: dict[str, Any] = {}
                levels = (file.settings, of_configuration, content.settings, of_arm, extra)
                for level in (*levels, settings or {}):
                    own = merge(own, level)
                changes = [own, *(merge(own, further) for further in content.also)]
                try:
                    loaded = [load_params(file.params, change) for change in changes]
                except ParamsError as error:
                    raise ParamsError(f"{path}: arm {name}: {error}") from error
                if pilot:
                    pilots = {"profile": f"{loaded[0].profile}-pilot"}
                    loaded = [params.model_copy(update=pilots) for params in loaded]
                arms.append(Arm(name, group, tuple(loaded), configuration))
    return [arm for arm in arms if groups is None or arm.group in groups]


def _check_known(names: Collection[str], known: Collection[str], what: str) -> None:
    if unknown := [name for name in names if name not in known]:
        raise ParamsError(f"{what} {', '.join(unknown)}; known are {', '.join(known) or 'none'}")
