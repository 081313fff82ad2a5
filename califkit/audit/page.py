"""The page and the JSON file of an audit: self-contained, nothing loaded from the network.

Responses are data: whatever stands in them is shown as text.
"""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import markupsafe
from matplotlib.figure import Figure

from califkit.audit import plots, signals
from califkit.audit.compare import Audit, Side
from califkit.audit.files import Source
from califkit.audit.statistics import MEASURES, Difference
from califkit.audit.verdict import HACKING, MIXED, NOTHING, RULE, number, signed
from califkit.exhibits.report import timestamp
from califkit.metrics import none_if_nan
from califkit.runs.folders import versions
from califkit.runs.jsonl import replace_file, write_json

PAGE, DATA = "audit.html", "audit.json"
SHOWN_CHARACTERS = 600
"""Characters of a text that are shown at once; the rest is folded in."""

_TONES = {HACKING: "bad", MIXED: "mixed", NOTHING: "good"}
_TRANSITIONS = {
    "pass_to_pass": "passes → passes",
    "fail_to_pass": "fails → passes",
    "pass_to_fail": "passes → fails",
    "fail_to_fail": "fails → fails",
}
_S = signals
SIGNAL_MEANINGS = {
    "near_empty": f"at most {_S.NEAR_EMPTY_WORDS} words.",
    "length_collapse": f"at most {_S.COLLAPSE_WORDS} words and at most {_S.COLLAPSE_RATIO:.0%} of "
    "the other answer's (or of the maximum that a constraint sets).",
    "repetition": f"distinct-2 under {_S.REPETITION_DISTINCT_2:g}, or one 2-gram makes "
    f"{_S.REPETITION_SHARE:.0%} of all or more; from {_S.REPETITION_UNITS} words on, and over "
    "characters where there are fewer words.",
    "copied_constraint": f"{_S.COPIED_SHARE:.0%} of the words or more stand in the constraints.",
    "request_lost": "the reference finds the answer no likelier given its own request than given "
    "another one of the files, and the other answer likeliest given its own.",
    "loglik_drop": f"l at least {_S.LOGLIK_DROP:g} nats per token under the other answer's.",
    "quality_drop": f"Response Quality at least {_S.QUALITY_DROP:g} points under the other's.",
}
"""What each of `califkit.audit.signals.SIGNALS` means, for the page."""


def write_audit(
    report: Audit, folder: Path, source: Source | None = None, command: str | None = None
) -> tuple[Path, Path]:
    """Write `PAGE` and `DATA` into a folder (made if needed; earlier ones are replaced).

    ``command`` is the one that repeats the audit.
    """
    folder.mkdir(parents=True, exist_ok=True)
    page, data = folder / PAGE, folder / DATA
    write_json(data, as_json(report, source) | {"command": command})
    # A lone surrogate in a text has no UTF-8; it is shown as a question mark.
    replace_file(page, as_html(report, source, command), errors="replace")
    return page, data


def as_json(report: Audit, source: Source | None = None) -> dict[str, Any]:
    """Everything on the page as data, and the numbers of every pair (without its texts)."""
    return {
        "verdict": asdict(report.verdict),
        "rule": list(RULE),
        "signals": SIGNAL_MEANINGS,
        "n_pairs": len(report.pairs),
        "n_prompts": report.n_prompts,
        "semantics": report.semantics,
        "seed": report.seed,
        "source": None if source is None else _source(source),
        "measures": [difference.row() for difference in report.differences.values()],
        "transitions": _clean(report.transitions.to_dict("records")),
        "types": _clean(report.types.to_dict("records")),
        "not_checked": [{"what": what, "why": why} for what, why in report.not_checked],
        "examples": [_example(report, i) for i in report.examples()],
        "pairs": [_pair_numbers(report, i) for i in range(len(report.pairs))],
        "versions": versions(),
    }


def as_html(report: Audit, source: Source | None = None, command: str | None = None) -> str:
    """The page."""
    template = (
        resources.files("califkit.audit").joinpath("resources/audit.html.j2").read_text("utf-8")
    )
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["capitalize_first"] = lambda text: text[:1].upper() + text[1:]
    return environment.from_string(template).render(
        verdict=report.verdict,
        tone=_TONES.get(report.verdict.word, "unclear"),
        source=source,
        command=command,
        data=DATA,
        pairs=_in_script([_pair_row(report, i) for i in range(len(report.pairs))]),
        transition_names=_TRANSITIONS,
        n_pairs=len(report.pairs),
        n_prompts=report.n_prompts,
        semantics=report.semantics,
        now=timestamp(),
        figures=_figures(report),
        measures=[_measure(report.differences[measure.name]) for measure in MEASURES],
        examples=[_example(report, i) for i in report.examples()],
        n_new=sum(map(bool, report.new_signals)),
        transitions=[_transition(row) for row in report.transitions.to_dict("records")],
        types=[_type(row) for row in report.types.to_dict("records")],
        has_loglik=bool(report.differences["loglik"].n),
        not_checked=report.not_checked,
        rule=RULE,
        signals=[(_S.SIGNALS[name], meaning) for name, meaning in SIGNAL_MEANINGS.items()],
        seed=report.seed,
        versions=versions(),
        limit=SHOWN_CHARACTERS,
    )


def _figures(report: Audit) -> list[dict[str, str]]:
    across = report.differences["prompt_level_loose_acc"]
    up = report.differences[plots.answer_side(report)]
    alt = (
        f"From base to trained: {across.measure.label} {across.base:.1f} to {across.trained:.1f}%, "
        f"{up.measure.label} {number(up.base, 2)} to {number(up.trained, 2)} {up.measure.unit}"
    )
    return [
        {
            "png": _png(plots.arrow(report)),
            "alt": alt,
            "caption": "From base to trained, with 95% intervals.",
        },
        {
            "png": _png(plots.distributions(report)),
            "alt": "Histograms over the answers of both policies",
            "caption": "Base (solid) and trained (dashed) answers.",
        },
    ]


def _png(figure: Figure) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=180)
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def _measure(d: Difference) -> dict[str, Any]:
    m = d.measure
    cells = [
        {"value": number(value, m.digits), "ends": _ends(ends, m.digits)}
        for value, ends in ((d.base, d.base_95), (d.trained, d.trained_95))
    ]
    ends = " to ".join(signed(end, m.digits) for end in d.difference_95)
    cells.append({"value": signed(d.difference, m.digits), "ends": ends})
    return {"label": m.label, "unit": m.unit, "n": d.n, "note": d.note, "cells": cells}


def _ends(ends: tuple[float, float], digits: int) -> str:
    return " to ".join(number(end, digits) for end in ends)


def _transition(row: Mapping[str, Any]) -> dict[str, Any]:
    shown = {name: _or_dash(row[name], signed) for name in ("loglik", "quality", "words")}
    return {"name": _TRANSITIONS[row["transition"]], "n": row["n"], **shown}


def _type(row: Mapping[str, Any]) -> dict[str, Any]:
    def both(name: str, digits: int) -> str:
        return " → ".join(
            _or_dash(row[f"{name}_{side}"], number, digits) for side in ("base", "trained")
        )

    return {
        "type": row["type"],
        "n": row["n"],
        "cs": both("cs", 0),
        "suspicious": both("suspicious", 0),
        "words": both("words", 0),
        "loglik": both("loglik", 2),
    }


def _or_dash(value: float, shown: Any, digits: int = 2) -> str:
    return "–" if math.isnan(value) else shown(value, digits)


def _example(report: Audit, i: int) -> dict[str, Any]:
    pair, new = report.pairs[i], report.new_signals[i]
    return {
        "name": f"key {pair.key}" if pair.key is not None else f"pair {i + 1}",
        "tag": _tag(report, i),
        "request": pair.x,
        "constraints": [{"id": c.id, "text": c.instruction} for c in pair.constraints],
        "base": _answer(report, report.base, i, pair.base, {}),
        "trained": _answer(report, report.trained, i, pair.trained, new),
    }


def _tag(report: Audit, i: int) -> str | None:
    if not report.lost[i]:
        return None
    how = "passes the verifier" if report.trained.passes[i] else "follows more"
    return f"{how}, lost the answer"


def _answer(report: Audit, side: Side, i: int, text: str, new: Mapping[str, Any]) -> dict[str, Any]:
    ids = [constraint.id for constraint in report.pairs[i].constraints]
    loose = side.verdicts[i].loose
    n = int(side.words[i])
    facts = ["1 word" if n == 1 else f"{n} words"]
    if not math.isnan(side.loglik[i]):
        facts.append(f"l {number(side.loglik[i], 2)}")
    if not math.isnan(side.quality[i]):
        facts.append(f"RQ {side.quality[i]:g}")
    return {
        "text": text,
        "facts": " · ".join(facts),
        "checks": [{"id": n, "passed": p} for n, p in zip(ids, loose, strict=True)],
        "signals": [
            {
                "name": signal.name,
                "label": _S.SIGNALS[signal.name],
                "value": float(signal.value),
                "text": signal.text,
                "is_new": signal.name in new,
            }
            for signal in side.signals[i].values()
        ],
    }


def _in_script(value: Any) -> markupsafe.Markup:
    """JSON for a ``script`` element, which no text in it can close."""
    return markupsafe.Markup(json.dumps(value).replace("<", "\\u003c"))


def _pair_row(report: Audit, i: int) -> dict[str, Any]:
    """What the list of all pairs shows of one; texts up to `SHOWN_CHARACTERS`."""
    pair, sides = report.pairs[i], (report.base, report.trained)
    passes = ["pass" if side.passes[i] else "fail" for side in sides]
    kinds = [f"{passes[0]}_to_{passes[1]}"]
    kinds += ["lost"] if report.lost[i] else []
    kinds += ["new"] if report.new_signals[i] else []

    def both(values: Sequence[str]) -> str:
        return " → ".join(values)

    return {
        "key": str(pair.key) if pair.key is not None else f"pair {i + 1}",
        "kinds": kinds,
        "followed": both([f"{sum(s.verdicts[i].loose)}/{len(s.verdicts[i].loose)}" for s in sides]),
        "words": both([f"{s.words[i]:.0f}" for s in sides]),
        "l": both([_or_dash(float(s.loglik[i]), number) for s in sides]),
        "signals": [_S.SIGNALS[name] for name in report.new_signals[i]],
        **{
            name: text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]} …"
            for name, text in (("request", pair.x), ("base", pair.base), ("trained", pair.trained))
        },
    }


def _pair_numbers(report: Audit, i: int) -> dict[str, Any]:
    pair = report.pairs[i]
    row: dict[str, Any] = {
        "key": pair.key,
        "base_line": pair.base_line,
        "trained_line": pair.trained_line,
        "ids": [constraint.id for constraint in pair.constraints],
        "lost": bool(report.lost[i]),
        "new_signals": list(report.new_signals[i]),
    }
    for name, side in (("base", report.base), ("trained", report.trained)):
        row[name] = {
            "strict": list(side.verdicts[i].strict),
            "loose": list(side.verdicts[i].loose),
            "signals": {s.name: float(s.value) for s in side.signals[i].values()},
            **{
                measured: none_if_nan(getattr(side, measured)[i])
                for measured in ("words", "tokens", "distinct_2", "loglik", "quality")
            },
        }
    return row


def _source(source: Source) -> dict[str, Any]:
    fields = asdict(source)
    return fields | {"base": str(source.base), "trained": str(source.trained)}


def _clean(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of a table as JSON holds them: None where a number is not defined."""
    return [
        {k: none_if_nan(v) if isinstance(v, float) else v for k, v in row.items()} for row in rows
    ]
