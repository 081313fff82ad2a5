"""The documentation table is the registry's, and every repair shows what it changes."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from califkit.verifiers import REGISTRY, Constraint, UnknownConstraintError, check, registry
from califkit.verifiers.docs import describe, listing, markdown

PAGE = Path(__file__).resolve().parents[2] / "docs" / "constraints.md"
REPAIRED = [id for id, spec in REGISTRY.items() if spec.repaired is not None]


def rows() -> dict[str, list[str]]:
    """Cells of each table row by id; an escaped bar is no border."""
    found = {}
    for line in markdown().splitlines():
        if line.startswith("| `"):
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            found[cells[0].strip("`")] = cells
    return found


def test_the_page_is_in_step_with_the_code():
    assert PAGE.read_text(encoding="utf-8") == markdown(), (
        "write it anew: python -m califkit.verifiers.docs > docs/constraints.md"
    )


def test_the_module_prints_the_page():
    done = subprocess.run(
        [sys.executable, "-m", "califkit.verifiers.docs"], capture_output=True, check=True
    )
    assert done.stdout.decode("utf-8") == markdown()


def test_every_id_has_a_full_row():
    assert set(rows()) == set(REGISTRY)
    assert len(REGISTRY) == 112
    for id, cells in rows().items():
        assert len(cells) == 8, id
        assert all(cells[:4]), id
        is_repaired = id in REPAIRED
        assert bool(cells[4]) == bool(cells[5]) == is_repaired, id
        assert bool(cells[6] or cells[7]) == is_repaired, id


def test_a_repair_comes_with_defect_words_and_contrast():
    for id, spec in REGISTRY.items():
        parts = [spec.repaired, spec.defect, spec.repair, spec.contrast]
        assert all(parts) or not any(parts), id
        for text in filter(None, (spec.defect, spec.repair)):
            assert text[0].isupper() or text.startswith("`"), id
            assert text.endswith("."), id


@pytest.mark.parametrize("id", REPAIRED)
def test_the_two_semantics_differ_on_the_contrast(id):
    contrast = REGISTRY[id].contrast
    built = Constraint(id, contrast.kwargs)
    shown = [(contrast.lost, True), (contrast.gained, False)]
    shown = [(response, passes) for response, passes in shown if response is not None]
    assert shown
    for response, passes in shown:
        published, repaired = (
            check(built, response, semantics=name) for name in ("published", "repaired")
        )
        assert (published.passed, published.error) == (passes, None), response
        assert (repaired.passed, repaired.error) == (not passes, None), response


def test_a_repair_needs_a_defect():
    with pytest.raises(ValueError, match="startend:quotation: a repair needs the defect"):
        registry.repairs(REGISTRY["startend:quotation"].checker, "Does better.", "x")(bool)


def test_describe_tells_all_there_is():
    text = describe("detectable_format:multiple_sections")
    for part in (
        "ifeval",
        "Divide your response into {num_sections} sections",
        "parameter num_sections: an integer, at least 0",
        '"Section 1\\nTea and milk."',
        "mid-line",
        "Counts lines that start with the literal marker",
        '"See Section 1 and Section 2."',
    ):
        assert part in text
    assert "passes published only" not in describe("startend:quotation")


def test_describe_shows_optional_and_limited_parameters():
    assert "one of less than, at least" in describe("length_constraints:number_words")
    assert "optional" in describe("keywords:exclude_word_harder")
    assert "a list of strings or a string" in describe("keywords:existence")


def test_an_unknown_id_lists_near_ones():
    with pytest.raises(UnknownConstraintError, match="startend:quotation"):
        describe("startend:quotatoin")


def test_listing_names_every_id_once():
    ids = [line.split()[0] for line in listing().splitlines() if line.startswith("  ")]
    assert sorted(ids) == sorted(REGISTRY)
    assert "own" not in listing()  # where nothing of one's own is registered
