"""Text in messages."""

import pytest

from califkit.runs.text import one_line, short


def test_lines_become_one():
    assert one_line(ValueError("no file\n  at  line 3\t")) == "no file at line 3"


@pytest.mark.parametrize(
    ("cut", "value"), [(short, "x" * 78), (one_line, "x" * 80)], ids=["repr", "str"]
)
def test_what_is_too_long_is_cut(cut, value):
    fits = cut(value, 80)
    assert len(fits) == 80 and "..." not in fits
    longer = cut(value + "x", 80)
    assert len(longer) == 80 and longer.endswith("x...")
    assert longer[:-3] == fits[:77]
