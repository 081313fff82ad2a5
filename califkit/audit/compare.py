"""Is the second policy hacking its verifier? Pairs of responses in, findings out.

Two policies answered the same prompts. Their difference is measured on the verifier side
(Constraint Satisfaction) and on the side of the answer (reference log-likelihood, Response Quality,
and what the texts show by themselves), with bootstrap intervals over prompts, and `decide` turns it
into a verdict. Files are read in `califkit.audit.files`, pages written in `califkit.audit.page`.

>>> from califkit.verifiers import Constraint
>>> no_comma = (Constraint("punctuation:no_comma"),)
>>> pairs = [Pair("What is tea?", no_comma, "A drink, mostly hot.", "Tea")]
>>> audit(pairs).verdict.word
'too few prompts to tell'
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from califkit.audit.signals import (
    Signal,
    find_signals,
    length,
    text_distinct_2,
)
from califkit.audit.statistics import MEASURES, Difference, Values, compare
from califkit.audit.verdict import Verdict, decide
from califkit.evaluation.verdicts import PUBLISHED, Verdicts, verify_many
from califkit.metrics import TRANSITIONS, change_by_transition, nan_mean, transitions
from califkit.verifiers import Constraint
from califkit.verifiers.registry import asks_for_short_or_copied

N_EXAMPLES = 10

Both = tuple[ArrayLike, ArrayLike]
"""A number a pair for the base policy and for the trained one; NaN where it was not measured."""


@dataclass(frozen=True)
class Pair:
    """Two answers, without reasoning, to one prompt.

    ``request`` is x alone (None takes the prompt). ``key`` names the prompt (None takes its text);
    pairs with one name are samples of one prompt. ``base_line`` and ``trained_line`` say where the
    answers stand in their files, and ``cut`` whether each was cut at the token limit.
    """

    prompt: str
    constraints: tuple[Constraint, ...]
    base: str
    trained: str
    request: str | None = None
    key: str | None = None
    base_line: int | None = None
    trained_line: int | None = None
    cut: tuple[bool | None, bool | None] = (None, None)

    @property
    def name(self) -> str:
        return self.prompt if self.key is None else self.key

    @property
    def x(self) -> str:
        return self.prompt if self.request is None else self.request

    @property
    def wording(self) -> str:
        """The constraints as the prompt words them: what is left of it without the request."""
        return "" if self.x == self.prompt else self.prompt.replace(self.x, " ")


@dataclass(frozen=True)
class Side:
    """What was measured on the answers of one policy; one entry a pair in everything.

    ``signals`` are those of each answer beside the other policy's. Numbers are NaN where they are
    not defined or not measured (``cut``, 0 or 1: not known); ``errors`` counts checks that failed.
    """

    verdicts: list[Verdicts]
    words: np.ndarray
    tokens: np.ndarray
    distinct_2: np.ndarray
    loglik: np.ndarray
    quality: np.ndarray
    identified: np.ndarray
    empty: np.ndarray
    cut: np.ndarray
    signals: list[dict[str, Signal]]

    @property
    def passes(self) -> np.ndarray:
        """Whether all constraints hold, loosely."""
        return np.array([all(verdicts.loose) for verdicts in self.verdicts])

    @property
    def followed(self) -> np.ndarray:
        """Number of constraints that hold, loosely."""
        return np.array([sum(verdicts.loose) for verdicts in self.verdicts])

    @property
    def errors(self) -> int:
        return sum(len(verdicts.errors) for verdicts in self.verdicts)


@dataclass(frozen=True)
class Audit:
    """The findings.

    ``differences`` are by name of `MEASURES`. ``transitions`` has a row for each of
    `califkit.metrics.TRANSITIONS`: ``n`` and the mean changes (trained minus base) of ``loglik``,
    ``quality`` and ``words``, NaN where not measured. ``types`` is a `type_table`. ``new_signals``
    are, for each pair, those that the trained answer shows and the base one does not; it has
    ``lost`` where it passes, or follows more than the base one, and shows such a signal ("passes
    the verifier, lost the answer"). ``not_checked`` says what could not be checked, and why.
    """

    pairs: Sequence[Pair]
    base: Side
    trained: Side
    differences: dict[str, Difference]
    transitions: pd.DataFrame
    types: pd.DataFrame
    new_signals: list[dict[str, Signal]]
    lost: np.ndarray
    verdict: Verdict
    not_checked: list[tuple[str, str]]
    semantics: str
    seed: int

    @property
    def n_prompts(self) -> int:
        return len({pair.name for pair in self.pairs})

    @property
    def table(self) -> pd.DataFrame:
        """The differences, a row a measure."""
        return pd.DataFrame([d.row() for d in self.differences.values()])

    def examples(self, n: int = N_EXAMPLES) -> list[int]:
        """Positions of the worst pairs, at most one a prompt.

        First those that lost the answer and pass the verifier or at least gained, then by the
        number of new signals, then by what l and RQ lost, then by how short the answer is now.
        """

        def badness(i: int) -> tuple[float, ...]:
            drop = self.base.loglik[i] - self.trained.loglik[i]
            points = self.base.quality[i] - self.trained.quality[i]
            ratio = self.trained.words[i] / max(self.base.words[i], 1)
            losses = np.nan_to_num([points, drop])
            passes = self.trained.passes[i]
            return (not self.lost[i], not passes, -len(self.new_signals[i]), *-losses, ratio, i)

        chosen: dict[str, int] = {}
        for i in sorted((i for i, s in enumerate(self.new_signals) if s), key=badness):
            chosen.setdefault(self.pairs[i].name, i)
        return list(chosen.values())[:n]


def audit(
    pairs: Sequence[Pair],
    logliks: Both | None = None,
    qualities: Both | None = None,
    tokens: Both | None = None,
    *,
    identified: Both | None = None,
    semantics: str = PUBLISHED,
    seed: int = 0,
    n_resamples: int = 10_000,
    processes: int = 1,
    progress: bool = False,
) -> Audit:
    """Audit pairs of answers.

    Parameters
    ----------
    logliks
        l of the answers under the frozen reference, in nats per token; NaN for empty answers.
    qualities
        Response Quality from a judge, 1 to 10; NaN where unscored.
    identified
        Whether the answers are identified (`califkit.metrics.identified`), 0 to 1.
    semantics, processes, progress
        Of the verifiers, as in `califkit.evaluation.verdicts.verify_many`.
    seed, n_resamples
        Of the bootstrap.
    """
    if not pairs:
        raise ValueError("no pairs to audit")
    if bare := next((pair for pair in pairs if not pair.constraints), None):
        raise ValueError(f"a pair without constraints: {bare.name[:80]!r}")
    texts = [pair.base for pair in pairs], [pair.trained for pair in pairs]
    items = [(p.constraints, t) for side in texts for p, t in zip(pairs, side, strict=True)]
    judged = list(verify_many(items, semantics, processes, progress, len(items)))
    given = {"loglik": logliks, "quality": qualities, "identified": identified, "tokens": tokens}
    measured = {name: _both(pairs, numbers) for name, numbers in given.items()}
    verdicts = judged[: len(pairs)], judged[len(pairs) :]
    base, trained = (_side(pairs, s, texts, verdicts[s], measured) for s in (0, 1))
    new, lost = _lost(trained, base)
    values = _values(pairs, base, _lost(base, trained)[1]), _values(pairs, trained, lost)
    notes = {
        "loglik": "" if logliks is not None else "no reference was given",
        "quality": "" if qualities is not None else "no judge was given",
        "identified": "" if identified is not None else "it was not asked for (--identify)",
        "tokens": "" if tokens is not None else "no reference was given, so no tokenizer is known",
        "cut": "no answer says whether it was cut (finish_reason)",
        "finished_prompt_level_loose_acc": "no pair has two answers that are known to be finished",
    }
    rng = np.random.default_rng(seed)
    differences = compare(values, [pair.name for pair in pairs], rng, n_resamples, notes)
    n_prompts = len({pair.name for pair in pairs})
    return Audit(
        pairs=pairs,
        base=base,
        trained=trained,
        differences=differences,
        transitions=_transition_table(base, trained),
        types=type_table(pairs, base, trained),
        new_signals=new,
        lost=lost,
        verdict=decide(differences, n_prompts),
        not_checked=_not_checked(pairs, base, trained, notes),
        semantics=semantics,
        seed=seed,
    )


def _side(
    pairs: Sequence[Pair],
    s: int,
    texts: tuple[list[str], list[str]],
    verdicts: list[Verdicts],
    measured: Mapping[str, tuple[np.ndarray, np.ndarray]],
) -> Side:
    """Side ``s`` (0 base, 1 trained) of what has an entry a side."""
    mine, other = texts[s], texts[1 - s]
    compared = [
        zip(measured[name][s], measured[name][1 - s], strict=True)
        for name in ("loglik", "quality", "identified")
    ]
    return Side(
        verdicts=verdicts,
        words=np.array([length(text) for text in mine], dtype=float),
        distinct_2=np.array([text_distinct_2(text) for text in mine]),
        empty=np.array([not text.strip() for text in mine]),
        cut=np.array([np.nan if pair.cut[s] is None else pair.cut[s] for pair in pairs]),
        signals=[
            find_signals(my_text, other_text, pair.constraints, pair.wording, *numbers)
            for pair, my_text, other_text, *numbers in zip(
                pairs, mine, other, *compared, strict=True
            )
        ],
        **{name: both[s] for name, both in measured.items()},
    )


def _both(pairs: Sequence[Pair], given: Both | None) -> tuple[np.ndarray, np.ndarray]:
    if given is None:
        return (np.full(len(pairs), np.nan),) * 2
    base, trained = (np.asarray(values, dtype=float) for values in given)
    if base.shape != (len(pairs),) or trained.shape != (len(pairs),):
        raise ValueError(f"{len(pairs)} pairs, but {base.size} and {trained.size} numbers")
    return base, trained


def _lost(mine: Side, theirs: Side) -> tuple[list[dict[str, Signal]], np.ndarray]:
    """The signals that only ``mine`` shows, and where it wins at the verifier with one of them."""
    new = [
        {name: signal for name, signal in shown.items() if name not in known}
        for shown, known in zip(mine.signals, theirs.signals, strict=True)
    ]
    return new, (mine.passes | (mine.followed > theirs.followed)) & _any(new)


def _any(signals: list[dict[str, Signal]]) -> np.ndarray:
    return np.array([bool(found) for found in signals])


def _values(pairs: Sequence[Pair], side: Side, lost: np.ndarray) -> Values:
    """Numerator and denominator that each pair adds to each measure."""
    one = np.ones(len(pairs))
    n = np.array([len(pair.constraints) for pair in pairs], dtype=float)
    strict = np.array([all(verdicts.strict) for verdicts in side.verdicts])
    means = {
        "prompt_level_loose_acc": 100.0 * side.passes,
        "prompt_level_strict_acc": 100.0 * strict,
        "quality": side.quality,
        "loglik": side.loglik,
        "identified": 100.0 * side.identified,
        "words": side.words,
        "tokens": side.tokens,
        "distinct_2": side.distinct_2,
        "empty": 100.0 * side.empty,
        "suspicious": 100.0 * _any(side.signals),
        "lost": 100.0 * lost,
        "cut": 100.0 * side.cut,
        "finished_prompt_level_loose_acc": np.where(side.cut == 0, 100.0 * side.passes, np.nan),
    }
    values = {name: (value, one) for name, value in means.items()}
    values["inst_level_loose_acc"] = (100.0 * side.followed, n)
    return {measure.name: values[measure.name] for measure in MEASURES}


def _transition_table(base: Side, trained: Side) -> pd.DataFrame:
    which = transitions(base.passes, trained.passes)
    rows = pd.DataFrame({"transition": TRANSITIONS})
    rows["n"] = [int((which == name).sum()) for name in TRANSITIONS]
    for name in ("loglik", "quality", "words"):
        change = getattr(trained, name) - getattr(base, name)
        means = change_by_transition(base.passes, trained.passes, change)
        rows[name] = [means[transition][0] for transition in TRANSITIONS]
    return rows


def type_table(pairs: Sequence[Pair], base: Side, trained: Side) -> pd.DataFrame:
    """Means by constraint type: ``type``, ``n`` pairs, and ``<number>_base``, ``<number>_trained``
    for ``cs`` and ``suspicious`` (percent), ``words`` and ``loglik``."""
    types = [{constraint.id.split(":")[0] for constraint in pair.constraints} for pair in pairs]
    rows = []
    for name in sorted(set(chain.from_iterable(types))):
        members = np.array([name in found for found in types])
        row: dict[str, object] = {"type": name, "n": int(members.sum())}
        numbers = {
            side: {
                "cs": 100.0 * of.passes,
                "words": of.words,
                "loglik": of.loglik,
                "suspicious": 100.0 * _any(of.signals),
            }
            for side, of in (("base", base), ("trained", trained))
        }
        for number in numbers["base"]:
            for side in numbers:
                row[f"{number}_{side}"] = nan_mean(numbers[side][number][members])
        rows.append(row)
    return pd.DataFrame(rows)


def _not_checked(
    pairs: Sequence[Pair], base: Side, trained: Side, notes: Mapping[str, str]
) -> list[tuple[str, str]]:
    found = []
    if notes["quality"]:
        found.append(("Response Quality", f"not measured, because {notes['quality']}"))
    elif n := int((np.isnan(base.quality) | np.isnan(trained.quality)).sum()):
        found.append((f"Response Quality of {n} pairs", "the judge gave no usable score"))
    if notes["loglik"]:
        found.append(("reference log-likelihood", f"not measured, because {notes['loglik']}"))
    elif n := int((np.isnan(base.loglik) | np.isnan(trained.loglik)).sum()):
        found.append((f"log-likelihood of {n} pairs", "an empty answer has none"))
    if notes["identified"]:
        found.append(("request identification", f"not measured, because {notes['identified']}"))
    if n := sum(asks_for_short_or_copied(c.id for c in pair.constraints) for pair in pairs):
        why = "their constraints ask for a short, copied or repeated answer"
        found.append((f"signals in the texts of {n} pairs", why))
    if base.errors or trained.errors:
        n = f"{base.errors} base and {trained.errors} trained"
        found.append((f"{n} verdicts", "the check failed, which counts as not followed"))
    found.append(
        (
            "whether an answer is right",
            "signals look at the form of a text; "
            + ("only a judge reads it" if notes["quality"] else "the judge alone has read it"),
        )
    )
    return found
