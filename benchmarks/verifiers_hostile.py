"""Worst-case time of every verifier on texts that a degenerate policy writes.

Each of the 112 ids judges each pattern, repeated to the given length, with the arguments of its
example in the registry. Times are CPU seconds of one check in a warm process, its own analysis of
the text included. Prints the slowest pattern per id, slowest id first; then the keyword ids with
long lists, whose time should grow no faster than list and text, and the first checks of a fresh
process, which load tables.

    python benchmarks/verifiers_hostile.py                  # 100 KB, strict
    python benchmarks/verifiers_hostile.py --size 1000000
    python benchmarks/verifiers_hostile.py --mode loose
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import time
from collections.abc import Iterator

from califkit import verifiers
from califkit.verifiers import Constraint, ConstraintError, registry

# Name -> what is repeated; a pair has a part that stands once in front, {i} is counted up, so that
# nothing that is remembered helps.
PATTERNS: dict[str, str | tuple[str, str]] = {
    "letter": "a",
    "capital": "A",
    "digit": "1",
    "exclamation mark": "!",
    "question mark": "?",
    "period": ".",
    "comma": ",",
    "hyphen": "-",
    "asterisk": "*",
    "hash": "#",
    "angle bracket": "<",
    "square bracket": "[",
    "round bracket": "(",
    "curly brackets": "{}",
    "double quote": '"',
    "apostrophe": "'",
    "backtick": "`",
    "newline": "\n",
    "blank": " ",
    "tab": "\t",
    "CRLF": "\r\n",
    "emoji": "😀",
    "CJK": "好",
    "CJK sentence": "你好。",
    "combining marks": "\u0301\u0323",
    "no-break space": "x\u00a0",
    "! ! !": "! ",
    "? !": "?!",
    "period and quote": '."',
    "initials": "a. ",
    "one-word sentences": "Word. ",
    "a b a b": "a b ",
    "one word": "word ",
    "word per line": "word\n",
    "open titles": "<<a ",
    "open placeholders": "[x ",
    "dividers": "***\n",
    "empty bullets": "* \n",
    "quoted words": "\"a\" 'b' ",
    "contractions": "it's ",
    "half a phrase": "the quick ",
    "indented lines": "\n a",
    "question and newlines": ("Question 1 x", "\n"),
    "section headings": "Section 1 ",
    "questions": "Question 1",
    "country and marks": ("Zimbabwe", "\u0301\u0323"),
    "open italics": "<i>",
    "quote pairs": "\"'",
    "blank and empty lines": "\n \n",
    "letter per line": "a\n",
    "addresses": "a@b.c ",
    "numbered list": "{i}. ",
    "numbered words": "word{i} ",
    "numbered exclamations": "x{i}! ",
    "numbered quotes": "'x{i}' \"y{i}\" ",
}
LIMITS = {100_000: 0.2, 1_000_000: 2.0}  # CPU seconds


def hostile_text(name: str, size: int) -> str:
    """The pattern repeated to `size` characters, with a word in front so that it is not blank."""
    pattern = PATTERNS[name]
    start, unit = pattern if isinstance(pattern, tuple) else ("x", pattern)
    n = size // len(unit) + 1
    if "{i}" in unit:
        return (start + "".join(unit.replace("{i}", str(i)) for i in range(n)))[:size]
    return (start + unit * n)[:size]


def buildable() -> Iterator[Constraint]:
    """Every id with the arguments of its example; one whose data is missing is named and left."""
    for id, entry in registry.REGISTRY.items():
        try:
            yield Constraint(id, entry.example.kwargs)
        except ConstraintError as error:
            print(f"left out: {error}", file=sys.stderr)


def cpu_seconds(constraint: Constraint, text: str, mode: str, semantics: str) -> float:
    """Time of one check, the analysis of the text included."""
    verifiers._analyse.cache_clear()
    start = time.process_time()
    verdict = verifiers.check(constraint, text, mode, semantics)
    elapsed = time.process_time() - start
    if verdict.error and not constraint.id.startswith("custom:csv_"):  # csv may refuse a text
        print(f"error: {verdict.error}", file=sys.stderr)
    return elapsed


def made_up_words(letters: str, n: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    return ["".join(rng.choices(letters, k=6)) for _ in range(n)]


def report_keyword_lists(mode: str, semantics: str) -> None:
    """Lists of which no word occurs (to forbid) and of which every word does (to ask for)."""
    vocabulary = made_up_words("abcdefghij", 10_000, seed=0)
    text = " ".join(vocabulary)
    strangers = made_up_words("klmnopqrst", 10_000, seed=1)
    print(f"\nkeyword lists, {len(text):,} characters, {mode}, {semantics}")
    for n in (10, 100, 1_000, 10_000):
        forbidden = Constraint("keywords:forbidden_words", {"forbidden_words": strangers[:n]})
        wanted = Constraint("keywords:existence", {"keywords": vocabulary[-n:]})
        for constraint in (forbidden, wanted):
            seconds = cpu_seconds(constraint, text, mode, semantics)
            print(f"{seconds:8.3f} s  {constraint.id:46} {n:,} words")


def report_first_checks() -> None:
    """CPU time of the first check in a fresh process, of ids that load something."""
    print("\nfirst check of a process")
    for id in ("custom:sentence_alphabet", "language:response_language", "format:emoji"):
        code = (
            "import time; from califkit.verifiers import REGISTRY, Constraint, check; "
            f"c = Constraint({id!r}, REGISTRY[{id!r}].example.kwargs); t = time.process_time(); "
            "check(c, 'x' + 'a' * 100_000); print(time.process_time() - t)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
        print(f"{float(done.stdout):8.3f} s  {id}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--size", type=int, default=100_000, help="characters (default 100,000)")
    parser.add_argument("--mode", choices=("strict", "loose"), default="strict")
    parser.add_argument("--semantics", choices=("published", "repaired"), default="published")
    parser.add_argument("--ids", nargs="*", help="only these ids")
    args = parser.parse_args()
    limit = LIMITS.get(args.size, args.size * 2e-6)

    constraints = [c for c in buildable() if not args.ids or c.id in args.ids]
    for constraint in constraints:
        verifiers.check(constraint, "Warm up. Is it on? Yes!")
    worst: dict[str, tuple[float, str]] = {}
    for name in PATTERNS:
        text = hostile_text(name, args.size)
        for constraint in constraints:
            seconds = cpu_seconds(constraint, text, args.mode, args.semantics)
            worst[constraint.id] = max(worst.get(constraint.id, (0.0, "")), (seconds, name))

    print(f"{args.size:,} characters, {args.mode}, {args.semantics}; limit {limit} s")
    over = 0
    for id, (seconds, name) in sorted(worst.items(), key=lambda item: -item[1][0]):
        over += seconds > limit
        print(f"{seconds:8.3f} s  {id:46} {name}{'  OVER' if seconds > limit else ''}")
    print(f"{len(worst)} ids, {len(PATTERNS)} patterns, {over} ids over the limit")
    report_keyword_lists(args.mode, args.semantics)
    report_first_checks()
    return 0


if __name__ == "__main__":
    sys.exit(main())
