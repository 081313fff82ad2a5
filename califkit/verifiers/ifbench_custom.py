"""IFBench ids with one fixed task each: ``custom:``. They ignore all keyword arguments.

Source: allenai/IFBench 0.2.0, test set; see `ifbench` for the rest of the suite.
"""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections.abc import Callable
from datetime import date
from itertools import pairwise

from califkit.verifiers import registry
from califkit.verifiers.registry import Example, repairs
from califkit.verifiers.text import Text, depunct, ps_strip

_DIGITS = re.compile(r"\d+")
# Published with an optional run of newlines in front; stripping the pieces does the same in
# linear time. The bar belongs to the class.
_QUESTION = re.compile(r"Question \d+[.|):;]?\s*")
_OPTION = re.compile(r"[A-Ea-e][.|)]\s*\w")
_DATE = re.compile(r"(\d{4})-(\d{2})-(\d{2})")
_SPECIAL = re.compile(r"[^\w\s]")
_CAPITALS = (
    "Reykjavik Helsinki Oslo Tallinn Stockholm Riga Moscow Copenhagen Vilnius Minsk Dublin Berlin "
    "Amsterdam Warsaw London Brussels Prague Luxembourg Paris Vienna Bratislava Budapest Vaduz "
    "Chisinau Bern Ljubljana Zagreb"
).split()
# The csv module's own default, which any library in the process may have changed.
_MAX_FIELD = 131_072
_TOO_MANY_ROWS = 16  # one more than the longest table asked for


def _task(
    name: str, instruction: str, passes: str, fails: str, defect: str | None = None
) -> Callable:
    """`verifier` for a fixed task, which upstream lets carry any keyword argument."""
    return registry.verifier(
        f"custom:{name}",
        suite="ifbench",
        instruction=instruction,
        example=Example({}, passes, fails),
        defect=defect,
        ignores_extra=True,
    )


class _AsciiForms(dict):
    """Code point to the ASCII part of its compatibility decomposition, filled on demand:
    normalising a long run of combining marks, which are dropped, is quadratic."""

    def __missing__(self, code: int) -> str:
        form = unicodedata.normalize("NFKD", chr(code))
        self[code] = "".join(char for char in form if char.isascii())
        return self[code]


_ASCII_FORMS = _AsciiForms()


def _to_ascii(s: str) -> str:
    return s if s.isascii() else s.translate(_ASCII_FORMS)


def _csv_rows(s: str, delimiter: str = ",", blank: bool = True) -> list[list[str]]:
    """Rows in the excel dialect; lines end at ``\\n``, a bare ``\\r`` in a field is an error.

    All rows are read, as one far down may be the error, but no more are kept than show that there
    are too many. Without ``blank``, blank lines are no rows.
    """
    rows: list[list[str]] = []
    for row in csv.reader(io.StringIO(s), delimiter=delimiter):
        if any(len(field) > _MAX_FIELD for field in row):
            raise csv.Error(f"field larger than {_MAX_FIELD} characters")
        if len(rows) < _TOO_MANY_ROWS and (row or blank):
            rows.append(row)
    return rows


def _header(names: str, separator: str) -> re.Pattern[str]:
    """Pattern of a header line whose names stand bare or in double quotes."""
    return re.compile(separator.join(f'(?:{name}|"{name}")' for name in names.split()))


_PRODUCT_HEADER = _header("ProductID Category Brand Price Stock", r",[ \t]*")
_STUDENT_HEADER = _header("StudentID Subject Grade Semester Score", r"\t *")


@_task(
    "multiples",
    "Count from 10 to 50 and write the multiples of 7 only.",
    "14 21 28 35 42 49",
    "10 14 21 28 35 42 49",
)
def multiples(text: Text) -> bool:
    return _DIGITS.findall(text.raw) == ["14", "21", "28", "35", "42", "49"]


def _quiz(*lengths: int) -> str:
    """A quiz with questions of these lengths, for the example."""
    return "\n".join(
        f"Question {i}: {'x' * n}?\nA. 1\nB. 2\nC. 3\nD. 4\nE. 5" for i, n in enumerate(lengths, 1)
    )


@_task(
    "mcq_count_length",
    "Write four multiple choice questions (Question 1, Question 2, ...) with five options each "
    "(A. to E.), every question longer than the one before.",
    _quiz(1, 2, 3, 4),
    _quiz(1, 2, 4, 4),
)
def mcq_count_length(text: Text) -> bool:
    if not text.raw.startswith("Question"):
        return False
    pieces = [piece for piece in map(str.strip, _QUESTION.split(text.raw)) if piece]
    if len(pieces) != 4:
        return False
    lengths = []
    for piece in pieces:
        lines = [line.strip() for line in piece.split("\n")]
        options = [i for i, line in enumerate(lines) if _OPTION.match(line)]
        if len(options) != 5:
            return False
        lengths.append(len(" ".join(lines[: options[0]]).strip()))
    return all(a < b for a, b in pairwise(lengths))


@_task(
    "reverse_newline",
    "List the countries of Africa in reverse alphabetical order, one a line.",
    "\n".join(
        f"{c}{d}land" for c in ("Zimbabwe ", "Yonder", "Xenon") for d in "zyxwvutsrqponmlkji"
    ),
    "Zimbabwe\nZambia\nUganda",
)
def reverse_newline(text: Text) -> bool:
    names = [name for name in map(ps_strip, text.lines) if name]
    start = next((i for i, name in enumerate(names) if "Zimbabwe" in name), len(names))
    names = [_to_ascii(name) for name in names[start:]]
    return len(names) >= 52 and all(a >= b for a, b in pairwise(names))


@_task(
    "word_reverse",
    "Name the national bird of the United States in a sentence whose words stand in reverse order.",
    "Eagle bald the is it",
    "It is the bald eagle",
)
def word_reverse(text: Text) -> bool:
    # Published, the reversed text must also be one sentence; without punctuation it always is.
    words = depunct(text.lower.strip()).split()
    return "bald eagle" in " ".join(reversed(words))


@_task(
    "character_reverse",
    "Name the national bird of the United States and write every character in reverse order.",
    "elgae dlab eht si tI",
    "It is the bald eagle",
)
def character_reverse(text: Text) -> bool:
    return "elgae dlab" in text.lower


_SENTENCES_A_TO_Z = " ".join(f"{chr(65 + i)} is a letter." for i in range(26))


@_task(
    "sentence_alphabet",
    "Tell a story of 26 sentences that start with the letters A to Z, in this order.",
    _SENTENCES_A_TO_Z,
    _SENTENCES_A_TO_Z.removesuffix(" Z is a letter."),
    defect="An opening quote is taken for the first letter.",
)
def sentence_alphabet(text: Text) -> bool:
    return _spells_alphabet([sentence.split(maxsplit=1)[0][0] for sentence in text.sentences])


@repairs(
    sentence_alphabet,
    "Looks behind it.",
    gained='"' + _SENTENCES_A_TO_Z.replace("letter.", 'letter," he said.', 1),
)
def sentence_alphabet_repaired(text: Text) -> bool:
    return _spells_alphabet(
        [next(filter(str.isalnum, sentence), "") for sentence in text.sentences]
    )


def _spells_alphabet(firsts: list[str]) -> bool:
    return len(firsts) == 26 and all(c.lower() == chr(97 + i) for i, c in enumerate(firsts))


@_task(
    "european_capitals_sort",
    "List the European capitals above 45 degrees north from north to south, separated by commas.",
    ", ".join(_CAPITALS),
    ", ".join(reversed(_CAPITALS)),
)
def european_capitals_sort(text: Text) -> bool:
    return [name for name in map(str.strip, _to_ascii(text.raw).split(",")) if name] == _CAPITALS


_CITIES = "ID,Country,City,Year,Count\n" + "\n".join(f"{i},Peru,Lima,2001,{i}" for i in range(1, 8))


@_task(
    "csv_city",
    "Write CSV data with the columns ID, Country, City, Year and Count and seven rows.",
    _CITIES,
    _CITIES + "\n8,Peru,Lima,2001,8",
    defect="A blank line, also at the end, is a row and fails.",
)
def csv_city(text: Text) -> bool:
    return _is_city_table(_csv_rows(text.raw))


@repairs(csv_city, "Leaves blank lines out.", gained=_CITIES + "\n\n")
def csv_city_repaired(text: Text) -> bool:
    return _is_city_table(_csv_rows(text.raw, blank=False))


def _is_city_table(rows: list[list[str]]) -> bool:
    return (
        len(rows) == 8
        and rows[0] == ["ID", "Country", "City", "Year", "Count"]
        and all(len(row) == 5 for row in rows)
    )


_PRODUCTS = "ProductID,Category,Brand,Price,Stock\n" + "\n".join(
    f"{i},toys,Acme,9,{i}" for i in range(1, 14)
)


@_task(
    "csv_special_character",
    "Write CSV data with the columns ProductID, Category, Brand, Price and Stock and 14 rows; put "
    "a special character into one field and enclose that field in double quotes.",
    _PRODUCTS + '\n14,"toys & games",Acme,9,14',
    _PRODUCTS + "\n14,toys,Acme,9,14",
    defect="Rows behind the first quoted special character are not checked.",
)
def csv_special_character(text: Text) -> bool:
    for row in _product_rows(text):
        if len(row) != 5:
            return False
        if any(map(_is_quoted_special, row)):
            return True
    return False


@repairs(
    csv_special_character,
    "Checks all rows.",
    lost=_PRODUCTS.replace("1,toys", '1,"toys & games"', 1) + "\n14",
)
def csv_special_character_repaired(text: Text) -> bool:
    rows = _product_rows(text)
    return all(len(row) == 5 for row in rows) and any(
        _is_quoted_special(field) for row in rows for field in row
    )


def _product_rows(text: Text) -> list[list[str]]:
    """The 14 data rows, their quotes kept as part of the fields; [] when the form is wrong."""
    if not _PRODUCT_HEADER.fullmatch(text.lines[0].strip()):
        return []
    rows = _csv_rows(text.raw.replace('"', '"""'))
    return rows[1:] if len(rows) == 15 else []


def _is_quoted_special(field: str) -> bool:
    """A quote, a character that is no letter, digit or blank, and a quote, in the first line."""
    if not field.startswith('"'):
        return False
    line = field.split("\n", 1)[0]
    return bool(_SPECIAL.search(line, 1, max(line.rfind('"'), 1)))


_STUDENTS = (
    '"StudentID"\t"Subject"\t"Grade"\t"Semester"\t"Score"' + '\n"1"\t"Art"\t"A"\t"2"\t"9"' * 3
)


@_task(
    "csv_quotes",
    "Write tab-separated data with the columns StudentID, Subject, Grade, Semester and Score and "
    "three rows, each field in double quotes.",
    _STUDENTS,
    _STUDENTS.replace('"', ""),
    defect="The names in the header have to be quoted too.",
)
def csv_quotes(text: Text) -> bool:
    rows = _student_rows(text)
    return bool(rows) and all(map(_is_quoted_row, rows))


@repairs(csv_quotes, "Takes bare ones as well.", gained=_STUDENTS.replace('"', "", 10))
def csv_quotes_repaired(text: Text) -> bool:
    rows = _student_rows(text)
    return bool(rows) and len(rows[0]) == 5 and all(map(_is_quoted_row, rows[1:]))


def _student_rows(text: Text) -> list[list[str]]:
    """Header and three data rows, quotes kept; [] when the form is wrong."""
    if not _STUDENT_HEADER.fullmatch(text.lines[0].strip()):
        return []
    rows = _csv_rows(text.raw.replace('"', '"""'), delimiter="\t")
    return rows if len(rows) == 4 else []


def _is_quoted_row(row: list[str]) -> bool:
    fields = [field.strip() for field in row]
    return len(fields) == 5 and all(f.startswith('"') and f.endswith('"') for f in fields)


@_task(
    "date_format_list",
    "List the dates of the battles of the Napoleonic Wars as YYYY-MM-DD, separated by commas.",
    "1805-12-02, 1815-06-18",
    "2 Dec 1805, 18 June 1815",
    defect="Month 00, day 00 and 29 February of any year pass.",
)
def date_format_list(text: Text) -> bool:
    return _are_dates(text, _is_published_date)


@repairs(date_format_list, "Asks for real dates.", lost="1805-00-00, 1815-02-29")
def date_format_list_repaired(text: Text) -> bool:
    return _are_dates(text, _is_real_date)


def _are_dates(text: Text, valid: Callable[[int, int, int], bool]) -> bool:
    matches = (_DATE.fullmatch(piece.strip()) for piece in text.stripped.split(","))
    return all(m and valid(*map(int, m.groups())) for m in matches)


def _is_published_date(year: int, month: int, day: int) -> bool:
    longest = 29 if month == 2 else 30 if month in (4, 6, 9, 11) else 31
    return 1769 <= year <= 1821 and month <= 12 and (month == 0 or day <= longest)


def _is_real_date(year: int, month: int, day: int) -> bool:
    if not 1769 <= year <= 1821:
        return False
    try:
        date(year, month, day)
    except ValueError:
        return False
    return True
