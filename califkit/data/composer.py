"""Compose training prompts: requests we wrote x constraints of the training suites.

The small profiles train on these prompts, so that nothing has to be downloaded. A composed row has
the columns of the hub's training set (``allenai/IF_multi_constraints_upto5``) and goes through the
same loader.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any, TypeVar

import numpy as np

from califkit.verifiers import registry

T = TypeVar("T")

MAX_CONSTRAINTS = 5
"""Most constraints in one prompt, as in the hub's training set."""

PARTS = {"train": (0, 1), "pilot": (2,), "test": (3,)}
"""Parts of the requests that have none in common: remainders of their digests modulo 4."""

# First number of every seed sequence after the user's: keeps the streams apart.
_REQUEST_STREAM, _ROW_STREAM = 0, 1


# --- what is drawn from ---------------------------------------------------------------------------


def _resource(name: str) -> str:
    return resources.files("califkit.data").joinpath("resources", name).read_text(encoding="utf-8")


@cache
def requests() -> tuple[str, ...]:
    """The requests of ``requests.txt``, in file order."""
    lines = (line.strip() for line in _resource("requests.txt").splitlines())
    return tuple(line for line in lines if line and not line.startswith("#"))


@cache
def requests_of(part: str | None) -> tuple[str, ...]:
    """The requests of one of `PARTS`, by their texts alone, in file order; all of them for None."""
    if part is None:
        return requests()
    digests = {request: hashlib.sha256(request.encode()).digest() for request in requests()}
    return tuple(request for request, digest in digests.items() if digest[-1] % 4 in PARTS[part])


@cache
def _words() -> dict[str, Any]:
    """Lists of words and phrases, and the languages a prompt may ask for (code -> name)."""
    return json.loads(_resource("words.json"))


@cache
def conflicts() -> dict[str, frozenset[str]]:
    """For each training id the ids it must not be combined with: the symmetric closure of the facts
    in ``conflicts.json``. Every id excludes itself."""
    facts = json.loads(_resource("conflicts.json"))
    ids = set(SAMPLERS)
    excluded = {id: {id} for id in ids}
    for id in facts["alone"]:
        excluded[id] |= ids
    for id, allowed in facts["only_with"].items():
        excluded[id] |= ids - set(allowed)
    for a, b in facts["pairs"]:
        excluded[a].add(b)
    return {
        id: frozenset(others | {other for other in ids if id in excluded[other]})
        for id, others in excluded.items()
    }


# --- keyword arguments ----------------------------------------------------------------------------


@dataclass
class _Draw:
    """The draws of one row.

    Words come from shuffled decks and are dealt once per row, so that no two constraints of a
    prompt speak of the same word (one asking for it, another forbidding it).
    """

    rng: np.random.Generator
    request: str
    _decks: dict[str, list[str]] = field(default_factory=dict)

    def integer(self, low: int, high: int, step: int = 1) -> int:
        """One of low, low + step, ..., high."""
        return low + step * int(self.rng.integers((high - low) // step + 1))

    def pick(self, items: Sequence[T]) -> T:
        return items[int(self.rng.integers(len(items)))]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        return [items[i] for i in self.rng.permutation(len(items))]

    def word(self, name: str) -> str:
        """The next word of a list of ``words.json``."""
        if name not in self._decks:
            self._decks[name] = self.shuffled(list(_words()[name]))
        return self._decks[name].pop()

    def words(self, name: str, low: int, high: int) -> list[str]:
        return [self.word(name) for _ in range(self.integer(low, high))]


Sampler = Callable[[_Draw], dict[str, Any]]


def _nothing(_: _Draw) -> dict[str, Any]:
    return {}


def _request(draw: _Draw) -> dict[str, Any]:
    return {"prompt_to_repeat": draw.request}


def _word_frequency(draw: _Draw) -> dict[str, Any]:
    # "Less than" is only a demand for a word that a response would use anyway.
    relation = draw.pick(registry.RELATIONS)
    words, most = ("keywords", 4) if relation == "at least" else ("frequent", 5)
    keyword = draw.word(words)
    return {"keyword": keyword, "frequency": draw.integer(2, most), "relation": relation}


def _letter_frequency(draw: _Draw) -> dict[str, Any]:
    relation = draw.pick(registry.RELATIONS)
    return {
        "letter": draw.word("letters"),
        "let_frequency": draw.integer(3, 12) if relation == "at least" else draw.integer(4, 15),
        "let_relation": relation,
    }


def _relation(
    key: str, relation_key: str, at_least: tuple[int, ...], less_than: tuple[int, ...]
) -> Sampler:
    """Sampler of a count and its relation; the ranges are arguments of `_Draw.integer`."""
    ranges = {"at least": at_least, "less than": less_than}

    def sample(draw: _Draw) -> dict[str, Any]:
        relation = draw.pick(registry.RELATIONS)
        return {key: draw.integer(*ranges[relation]), relation_key: relation}

    return sample


def _nth_paragraph(draw: _Draw) -> dict[str, Any]:
    paragraphs = draw.integer(2, 5)
    return {
        "num_paragraphs": paragraphs,
        "nth_paragraph": draw.integer(1, paragraphs),
        "first_word": draw.word("first_words"),
    }


def _excludable(request: str) -> list[str]:
    """Words of a request, short ones and those left out that another constraint may ask for."""
    tokens = (token.strip(".,;:?!\"'") for token in request.split())
    asked_for = {w for name in _words().values() for entry in name for w in entry.lower().split()}
    return [w for w in tokens if w.isalpha() and w.islower() and len(w) > 3 and w not in asked_for]


def _span_of_request(draw: _Draw) -> dict[str, Any]:
    """Character indices of two to five words inside the request.

    Upstream's check takes the end as exclusive while its instruction speaks of an inclusive one.
    The spans end in front of a blank, so that both readings name the same (stripped) text. They
    never start at 0, which upstream takes for a missing value.
    """
    blanks = [i for i, character in enumerate(draw.request) if character == " "]
    first = draw.integer(0, len(blanks) - 3)
    last = draw.integer(first + 2, min(first + 5, len(blanks) - 1))
    return {"prompt_to_repeat": draw.request, "n_start": blanks[first] + 1, "n_end": blanks[last]}


SAMPLERS: dict[str, Sampler] = {
    "keywords:existence": lambda d: {"keywords": d.words("keywords", 2, 3)},
    "keywords:frequency": _word_frequency,
    "keywords:forbidden_words": lambda d: {"forbidden_words": d.words("common", 2, 3)},
    "keywords:letter_frequency": _letter_frequency,
    "language:response_language": lambda d: {"language": d.word("languages")},
    "length_constraints:number_sentences": _relation(
        "num_sentences", "relation", at_least=(2, 8), less_than=(2, 8)
    ),
    "length_constraints:number_paragraphs": lambda d: {"num_paragraphs": d.integer(2, 5)},
    "length_constraints:number_words": _relation(
        "num_words", "relation", at_least=(30, 200, 10), less_than=(20, 150, 10)
    ),
    "length_constraints:nth_paragraph_first_word": _nth_paragraph,
    "detectable_content:number_placeholders": lambda d: {"num_placeholders": d.integer(2, 4)},
    "detectable_content:postscript": lambda d: {"postscript_marker": d.pick(["P.S.", "P.P.S"])},
    "detectable_format:number_bullet_lists": lambda d: {"num_bullets": d.integer(2, 6)},
    "detectable_format:constrained_response": _nothing,
    "detectable_format:number_highlighted_sections": lambda d: {"num_highlights": d.integer(2, 4)},
    "detectable_format:multiple_sections": lambda d: {
        "section_spliter": d.word("section_words"),
        "num_sections": d.integer(2, 5),
    },
    "detectable_format:json_format": _nothing,
    "detectable_format:title": _nothing,
    "combination:two_responses": _nothing,
    "combination:repeat_prompt": _request,
    "startend:end_checker": lambda d: {"end_phrase": d.word("end_phrases")},
    "change_case:capital_word_frequency": _relation(
        "capital_frequency", "capital_relation", at_least=(2, 10), less_than=(2, 6)
    ),
    "change_case:english_capital": _nothing,
    "change_case:english_lowercase": _nothing,
    "punctuation:no_comma": _nothing,
    "startend:quotation": _nothing,
    "copy:repeat_phrase": lambda d: {"phrase": d.word("phrases"), "small_n": d.integer(2, 3)},
    "copy:copy": _request,
    "new:copy_span_idx": _span_of_request,
    "detectable_format:sentence_hyphens": _nothing,
    "keywords:no_adjacent_consecutive": _nothing,
    "detectable_format:square_brackets": _nothing,
    "keywords:word_once": lambda d: {"keyword": d.word("keywords")},
    "keywords:word_count_different_numbers": _word_frequency,
    "keywords:exclude_word_harder": lambda d: {"keyword": d.pick(_excludable(d.request))},
    "paragraphs:paragraphs": _nothing,
    "paragraphs:paragraphs2": _nothing,
    "first_word:first_word_sent": lambda d: {"first_word": d.word("first_words")},
    "first_word:first_word_answer": lambda d: {"first_word": d.word("first_words")},
    "last_word:last_word_sent": lambda d: {"last_word": d.word("last_words")},
    "last_word:last_word_answer": lambda d: {"last_word": d.word("last_words")},
    "detectable_format:bigram_wrapping": _nothing,
    "copy:copying_simple": _request,
    "copy:copying_multiple": lambda d: {**_request(d), "N": d.integer(2, 4)},
    "punctuation:punctuation_dot": _nothing,
    "punctuation:punctuation_exclamation": _nothing,
    "count:lowercase_counting": lambda d: {"N": d.integer(5, 40, 5)},
    "letters:letter_counting": _relation(
        "N", "relation", at_least=(50, 400, 10), less_than=(50, 400, 10)
    ),
    "letters:letter_counting2": _letter_frequency,
    "count:counting_composition": lambda d: {"n_sent": d.integer(2, 3), "n_words": d.integer(4, 9)},
    "count:count_unique": _nothing,
    "count:count_increment_word": lambda d: {
        "keyword1": d.word("keywords"),
        "keyword2": d.word("keywords"),
    },
    "keywords:palindrome": _nothing,
    "keywords:keyword_specific_position": lambda d: {
        "keyword": d.word("keywords"),
        "n": d.integer(1, 3),
        # Not the first token: the check is case-sensitive and a sentence starts with a capital.
        "m": d.integer(2, 8),
    },
    "keywords:start_end": _nothing,
}
"""Sampler of the keyword arguments of each training id, 25 of IFEval and 29 of IFBench-train."""


# The registry's sentences stand alone. Where another one follows, a value needs a visible end, and
# the request to repeat stands just before; the registry shows a language by its code.
_WORDING = {
    "language:response_language": "Write your whole response in {name} and use no other language.",
    "detectable_content:postscript": "At the end of your response, add a postscript that starts "
    'with "{postscript_marker}".',
    "combination:repeat_prompt": "First repeat the request above word for word, without change, "
    "and then answer it.",
    "startend:end_checker": "End your response with exactly this phrase, and write nothing after "
    'it: "{end_phrase}"',
}


def _sentence(id: str, kwargs: Mapping[str, Any]) -> str:
    if id not in _WORDING:
        return registry.spec(id).instruct(kwargs)
    name = _words()["languages"].get(kwargs.get("language"))
    return _WORDING[id].format(**kwargs, name=name)


# --- composing ------------------------------------------------------------------------------------


def compatible_set(ids: Sequence[str], size: int) -> tuple[str, ...] | None:
    """The first `size` of `ids`, in their order, that may stand in one prompt; None if none can."""
    if size == 0:
        return ()
    for i, id in enumerate(ids):
        others = [other for other in ids[i + 1 :] if other not in conflicts()[id]]
        if len(others) >= size - 1 and (rest := compatible_set(others, size - 1)) is not None:
            return (id, *rest)
    return None


def _checked_ids(constraint_ids: Iterable[str] | None) -> list[str]:
    """The ids to draw from, in the order of `SAMPLERS` whatever order they were given in."""
    if constraint_ids is None:
        return [id for id in SAMPLERS if id in registry.REGISTRY]
    if isinstance(constraint_ids, str):
        raise ValueError(f"constraint_ids must be a list of ids, not the string {constraint_ids!r}")
    wanted = set(constraint_ids)
    if not wanted:
        raise ValueError("constraint_ids is empty: give at least one id, or None for all")
    for id in sorted(wanted):
        registry.spec(id)  # an unknown id raises here, with near names
        if id not in SAMPLERS:
            raise ValueError(
                f"constraint_ids: {id!r} is of suite {registry.spec(id).suite!r}; prompts are "
                "composed from the training suites 'ifeval' and 'iftrain' only"
            )
    return [id for id in SAMPLERS if id in wanted]


def compose(
    n: int,
    seed: int,
    constraint_ids: Iterable[str] | None = None,
    min_constraints: int = 1,
    max_constraints: int = 5,
    part: str | None = None,
) -> list[dict[str, Any]]:
    """Compose `n` training rows in the column layout of the hub's training set.

    Each row depends on its own number, `seed` and the ids alone: the rows of a shorter call are the
    first rows of a longer one, and they are the same on every machine. Each request is used once
    before one is used again (in another order and with other constraints). `constraint_ids` are
    drawn from, all of the training suites by default. The number of constraints in a prompt is
    uniform between `min_constraints` and the smaller of `max_constraints` and the most that go
    together; an id that excludes all others (the copying tasks) stands alone. `part` is one of
    `PARTS`.

    Returns
    -------
    list of dict
        Per row ``key``, ``messages`` (one user message: the request and the constraint sentences,
        joined by blanks), ``ground_truth`` (Python literal: a list of one dict of
        ``instruction_id`` and ``kwargs``), ``dataset``, ``constraint_type`` and ``constraint`` (the
        sentences joined by TABs).

    Raises
    ------
    ValueError
        An argument out of range, an id that is unknown or not of the training suites, or ids of
        which no `min_constraints` can be combined.

    Examples
    --------
    >>> row = compose(1, seed=0, constraint_ids=["punctuation:no_comma"])[0]
    >>> row["ground_truth"]
    "[{'instruction_id': ['punctuation:no_comma'], 'kwargs': [None]}]"
    >>> row["messages"][0]["content"].endswith(" " + row["constraint"])
    True
    """
    if n <= 0:
        raise ValueError(f"n = {n}: at least one row has to be asked for")
    if seed < 0:
        raise ValueError(f"seed = {seed}: must not be negative")
    if not 1 <= min_constraints <= max_constraints <= MAX_CONSTRAINTS:
        raise ValueError(
            f"min_constraints = {min_constraints}, max_constraints = {max_constraints}: "
            f"needs 1 <= min <= max <= {MAX_CONSTRAINTS}"
        )
    if part is not None and part not in PARTS:
        raise ValueError(f"part = {part!r}: none of {', '.join(PARTS)}")
    pool = requests_of(part)
    ids = _checked_ids(constraint_ids)
    most = max(size for size in range(max_constraints + 1) if compatible_set(ids, size) is not None)
    if most < min_constraints:
        raise ValueError(
            f"min_constraints = {min_constraints}, but of the {len(ids)} ids to draw from "
            f"at most {most} can be combined (the others exclude each other)"
        )
    rows = []
    order: list[int] = []
    for index in range(n):
        turn, position = divmod(index, len(pool))
        if position == 0:
            rng = np.random.default_rng([seed, _REQUEST_STREAM, turn])
            order = rng.permutation(len(pool)).tolist()
        rng = np.random.default_rng([seed, _ROW_STREAM, index])
        draw = _Draw(rng, pool[order[position]])
        chosen = compatible_set(draw.shuffled(ids), draw.integer(min_constraints, most))
        rows.append(_row(index, draw, chosen))
    return rows


def _row(index: int, draw: _Draw, ids: Sequence[str]) -> dict[str, Any]:
    kwargs = [SAMPLERS[id](draw) for id in ids]
    sentences = [_sentence(id, given) for id, given in zip(ids, kwargs, strict=True)]
    prompt = " ".join([draw.request, *sentences])
    label = repr([{"instruction_id": list(ids), "kwargs": [given or None for given in kwargs]}])
    # The number keeps the keys of one call apart, the digest those of calls with other settings.
    digest = hashlib.sha256(f"{prompt}\n{label}".encode()).hexdigest()[:12]
    return {
        "key": f"composed-{index:06d}-{digest}",
        "messages": [{"role": "user", "content": prompt}],
        "ground_truth": label,
        "dataset": "ifeval",
        "constraint_type": "multi" if len(ids) > 1 else "single",
        "constraint": "\t".join(sentences),
    }
