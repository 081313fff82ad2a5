"""Objects in a text: what counts as one, and where a text breaks off."""

import pytest

from califkit.judges.parsing import outermost_objects


@pytest.mark.parametrize(
    ("text", "objects", "cut_off"),
    [
        ("", [], False),
        ("No braces } here.", [], False),
        ('So: {"a": {"b": 1}} and {x}.', ['{"a": {"b": 1}}', "{x}"], False),
        ('```json\n{"a": "}{"}\n```', ['{"a": "}{"}'], False),
        ('{"a": "say \\"}\\" twice"}', ['{"a": "say \\"}\\" twice"}'], False),
        (r"\{a} {b}", ["{b}"], False),  # an escaped brace begins nothing
        ('An unpaired " and {"a": 1}', ['{"a": 1}'], False),  # quotes outside do not count
        ('{"a": 1} {"b": {"c": 2}', ['{"a": 1}'], True),
        ('{"a": "never closed}', [], True),
    ],
)
def test_objects_of_a_text(text, objects, cut_off):
    assert outermost_objects(text) == (objects, cut_off)
