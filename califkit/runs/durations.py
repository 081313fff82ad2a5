"""Durations in settings: a whole number of the key's unit, or a number with its unit."""

from __future__ import annotations

import re
from typing import Any

_UNITS = {"s": 1, "min": 60, "m": 60, "h": 3600, "d": 86400}
_TEXT = re.compile(r"(\d{1,9})\s*(s|min|m|h|d)?")
_KEYS = {
    "timeout_min": "min",
    "slurm_time": "min",
    "signal_delay_s": "s",
    "slurm_signal_delay_s": "s",
}
_SBATCH_KEYS = {"time": "min", "time_min": "min", "time-min": "min"}
_LONGEST = 60 * 86400
_SUSPECT, _STEP = 3600, 900


def checked_durations(slurm: dict[str, Any]) -> dict[str, Any]:
    """Options of submitit with every duration as a whole number of its unit.

    Raises
    ------
    ValueError
        As `duration` does, with the key.
    """
    slurm = _checked(slurm, _KEYS)
    sbatch = slurm.get("slurm_additional_parameters")
    if isinstance(sbatch, dict):
        slurm["slurm_additional_parameters"] = _checked(sbatch, _SBATCH_KEYS)
    return slurm


def _checked(options: dict[str, Any], units: dict[str, str]) -> dict[str, Any]:
    checked = dict(options)
    for key in options.keys() & units.keys():
        try:
            checked[key] = duration(options[key], units[key])
        except ValueError as error:
            raise ValueError(f"{key} = {options[key]!r:.80}: {error}") from None
    return checked


def duration(value: Any, unit: str) -> int:
    """A duration of a setting, in ``unit``: 90, "90 min", "36h", "3d".

    Raises
    ------
    ValueError
        For anything else, clock times among them: 72:00:00 is text where it is quoted, the number
        259200 where it is not, and 24:00 is a day or 24 minutes. So are whole numbers of minutes
        that are quarter hours written so (3600 is 1:00:00, 5400 is 1:30:00), and what exceeds 60
        days.
    """
    write = f"write a whole number of {unit}, or number and unit as text, such as 36h or 3d"
    if isinstance(value, str) and (found := _TEXT.fullmatch(value.strip())):
        seconds = int(found[1]) * _UNITS[found[2] or unit]
    elif isinstance(value, int) and not isinstance(value, bool):
        if unit == "min" and value >= _SUSPECT and value % _STEP == 0:
            hours, minutes = divmod(value // 60, 60)
            raise ValueError(
                f"YAML reads {hours}:{minutes:02}:00 without quotes as this number, so it may "
                f"mean {hours} h {minutes} min or {value} minutes; {write}"
            )
        seconds = value * _UNITS[unit]
    else:
        clock = isinstance(value, str) and ":" in value
        raise ValueError(f"{'ambiguous' if clock else 'no duration'}; {write}")
    if not 0 < seconds <= _LONGEST or seconds % _UNITS[unit]:
        raise ValueError(f"must be a whole number of {unit} and at most 60 days; {write}")
    return seconds // _UNITS[unit]
