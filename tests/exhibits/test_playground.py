"""Controls in notebooks, moved as a reader would move them; no browser is needed for that."""

import pytest

from califkit.exhibits import playground
from califkit.exhibits.playground import region_playground, response_playground, reward_curves
from califkit.models.likelihood import ReferenceScorer
from califkit.verifiers import Constraint


@pytest.fixture
def printed(monkeypatch) -> list[str]:
    """What the outputs show: printed lines, and the kind of each displayed object."""
    lines: list[str] = []
    monkeypatch.setattr(playground, "print", lines.append, raising=False)
    monkeypatch.setattr(playground, "display", lambda thing: lines.append(type(thing).__name__))
    return lines


def test_editing_the_response_and_moving_a_bound_changes_what_it_earns(tiny, printed):
    scorer = ReferenceScorer(tiny.model, tiny.tokenizer)
    comma = Constraint("punctuation:no_comma")
    box = response_playground(scorer, "Name a drink.", [comma], "Green tea.", -6.0, 0.0)
    text, alpha, l0, l1, _ = box.children
    assert printed[0] == "DataFrame" and printed[-1] == "Figure"
    assert printed[1].startswith("r_ver = 1.00, l = ")
    assert printed[2].startswith("IF-RLVR gives 1.00, CaLIF gives 1.")
    printed.clear()
    text.value = "Green tea, please."
    assert "IF-RLVR gives 0.00, CaLIF gives 0.00" in printed
    printed.clear()
    text.value = "Green tea."
    l0.value = l1.value = -6.0  # l of a tiny random model lies lower still
    alpha.value = 0.5
    assert printed[-2] == "IF-RLVR gives 1.00, CaLIF gives 1.00"


def test_the_region_follows_its_sliders(printed):
    box = region_playground()
    alpha, l0, l1, _ = box.children
    before = len(printed)
    l1.value = -4.0  # below l0: reversed
    assert len(printed) == before + 1 and printed[-1] == "Figure"


def test_the_curves_are_the_rule_at_its_edges():
    table = reward_curves(0.2, -3.5, -1.5).set_index(["r_ver", "l"])["reward"]
    assert table[0.5, -3.5] == table[0.5, -1.5] == pytest.approx(0.7)
    assert table[1.0, 0.0] == 0 and table[0.0, -2.0] == 0
    reverse = reward_curves(0.2, -1.5, -3.5).set_index(["r_ver", "l"])["reward"]
    assert reverse[1.0, -3.5] == 1.0 and reverse[1.0, -2.0] == 0
