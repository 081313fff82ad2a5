"""The health report on tables built by hand, against arithmetic."""

import math

import numpy as np
import pandas as pd
import pytest

from califkit.anchors import report
from califkit.anchors.rows import defect
from califkit.anchors.table import AnchorError, anchor_table
from califkit.data.load import Instance
from califkit.verifiers import Constraint

NO_COMMA = Constraint("punctuation:no_comma")
LOWER = Constraint("change_case:english_lowercase")
DOT = Constraint("punctuation:punctuation_dot")


def instance(key: str, constraints=(NO_COMMA,)) -> Instance:
    return Instance(key, f"Say {key}. And more.", constraints, f"Say {key}.", "And more.", "test")


def answer(l, tokens=20, r_ver=1.0, text="some text", finish="stop", followed=None) -> dict:  # noqa: E741
    """An answer that follows its only constraint or not; without l it is empty."""
    text = "" if l is None else text
    return {
        "answer": text,
        "loglik": l,
        "n_tokens": 0 if l is None else tokens,
        "r_ver": 0.0 if l is None else r_ver,
        "followed": [r_ver == 1.0] if followed is None else followed,
        "finish_reason": finish,
        "defect": defect(text, tokens),
    }


def table_of(prompts: dict[str, tuple[list[dict], list[dict]]], instances=None) -> pd.DataFrame:
    """``prompts[key]`` holds the constrained and the natural answers, one a draw."""
    rows = [
        {"key": key, "side": side, "draw": draw, **values}
        | ({"answer": f"{values['answer']} {side}"} if values["answer"] == "some text" else {})
        for key, both in prompts.items()
        for side, drawn in zip(("constrained", "natural"), both, strict=True)
        for draw, values in enumerate(drawn)
    ]
    draws = max(len(drawn) for both in prompts.values() for drawn in both)
    return anchor_table(instances or [instance(key) for key in prompts], rows, draws)


def pair(l0, l1, **constrained):
    return [answer(l0, **constrained)], [answer(l1)]


ZEROED = "further constrained samples that would be zeroed"
INSIDE = "further constrained samples inside the region"


def health(prompts, instances=None) -> report.Health:
    instances = instances or [instance(key) for key in prompts]
    return report.health_report(table_of(prompts, instances), instances)


def line(found: report.Health, start: str) -> pd.Series:
    """The one line whose ``what`` begins so."""
    rows = found.summary[found.summary["what"].str.startswith(start)]
    assert len(rows) == 1, f"{start}: {len(rows)} lines"
    return rows.iloc[0]


def value(found: report.Health, start: str) -> tuple[float, int]:
    row = line(found, start)
    return row["value"], row["n"]


USUAL = {"a": pair(-3, -1), "b": pair(-2, -1.5), "c": pair(-4, -1), "d": pair(-1, -2)}


def test_every_finding_has_its_lines_in_order():
    summary = health(USUAL).summary
    numbers = [int(name[1:]) for name in summary["finding"]]
    in_the_training_log, refused_before = {5, 12, 13, 14}, {15}
    assert set(numbers) == set(range(1, 17)) - in_the_training_log - refused_before
    assert all(f"F{number}" in report.__doc__ for number in range(1, 17)), "each is explained"
    assert numbers == sorted(numbers)
    assert summary.columns.tolist() == ["finding", "what", "value", "n", "comment"]
    unmeasured = summary[summary["value"].isna()]
    assert unmeasured["comment"].str.contains("not ").all(), "a gap says why"


def test_reversed_bounds_are_counted_where_both_bounds_are():
    found = health(USUAL | {"e": pair(None, -1), "f": pair(-1, -1)})
    assert value(found, "reversed bounds (l0 > l1), share") == (1 / 5, 5)
    assert value(found, "prompts with width 0") == (1 / 5, 5)


def test_degenerate_prompts_are_left_out_of_the_second_rate():
    found = health(USUAL | {"short": pair(-1, -2, tokens=9)})
    assert value(found, "reversed bounds (l0 > l1), share") == (2 / 5, 5)
    assert value(found, "reversed bounds without degenerate prompts") == (1 / 4, 4)
    assert value(found, "degenerate prompts") == (1 / 5, 5)


def test_one_draw_measures_neither_persistence_nor_spread_nor_replay():
    found = health(USUAL)
    why = "not measured, because one sample a side; `califkit anchors"
    rows = found.summary[found.summary["comment"].str.startswith(why)]
    assert rows["finding"].tolist() == ["F1", "F7", "F11", "F16"]
    assert rows["value"].isna().all()
    comment = line(found, "the reference's own compliant")["comment"]
    assert "circular with one sample" in comment
    assert "circular" not in line(health(TWO), "the reference's own compliant")["comment"]


TWO = {
    # constrained draws, natural draws
    "both": ([answer(-1), answer(-1)], [answer(-2), answer(-3)]),
    "first": ([answer(-1), answer(-4)], [answer(-2), answer(-1)]),
    "second": ([answer(-3), answer(-1, r_ver=0.0)], [answer(-2), answer(-2)]),
    "never": ([answer(-3), answer(-2)], [answer(-1), answer(-1)]),
    "lost": ([answer(-3), answer(None)], [answer(-1), answer(-1)]),
}


def test_persistence_over_draws():
    found = health(TWO)
    # "lost" is incomplete; of the two reversed in draw 1 one is reversed again, of the two others
    # one is.
    rows = found.summary[found.summary["what"].str.startswith("reversed in a further sample where")]
    assert list(zip(rows["value"], rows["n"], strict=True)) == [(1 / 2, 2), (1 / 2, 2)]
    assert value(found, "reversed in at least one sample") == (3 / 4, 4)
    assert value(found, "reversed in every sample") == (1 / 4, 4)


def drawn_around(l0: float, l1: float, spread: float):
    """Two draws a side whose standard deviation is the spread."""
    half = spread / math.sqrt(2)
    return [[answer(bound - half), answer(bound + half)] for bound in (l0, l1)]


@pytest.mark.parametrize(
    ("width", "spread", "above"),
    [(0.81, 0.28, None), (0.37, 0.34, "14%"), (0.75, 0.85, "19%"), (-0.2, 0.5, "66%")],
)
def test_a_region_that_is_no_wider_than_a_sample_spreads_is_warned_of(width, spread, above):
    """Widths and spreads of the paper's models and of SmolLM2 at two temperatures."""
    prompts = {key: drawn_around(-2, -2 + width, spread) for key in "abc"}
    row = line(health(prompts), "median width / this spread, constrained")
    assert (row["value"], row["n"]) == (pytest.approx(width / spread), 3)
    if above is None:
        assert row["comment"] == ""
    else:
        assert row["comment"].startswith("WARNING: below 2 ")
        assert f"about {above} lie there" in row["comment"]
    assert line(health(prompts), "median width / this spread, natural")["comment"] == ""


def test_spread_over_draws_beside_the_width():
    found = health(TWO)
    start = "spread over samples, median of the prompts' standard deviations, "
    # Two values d apart have the standard deviation d / sqrt(2). Constrained: 0, 3, 2, 1; natural:
    # 1, 1, 0, 0, 0.
    assert value(found, start + "constrained") == (pytest.approx(1.5 / math.sqrt(2)), 4)
    assert value(found, start + "natural") == (0.0, 5)
    # Widths of the means: -1.5, 1, 0, 1.5, 2.
    assert value(found, "width l1 - l0, median") == (1.0, 5)
    ratio = 1.0 / (1.5 / math.sqrt(2))
    assert value(found, "median width / this spread, constrained") == (pytest.approx(ratio), 4)
    assert line(found, "median width / this spread, natural")["comment"].endswith("no spread")
    assert value(found, "width l1 - l0, 5th percentile")[0] == pytest.approx(-1.2)


def test_draw_2_is_replayed_against_the_bounds_of_draw_1():
    found = health(TWO)
    # With r_ver > 0 and all three values: both (l1 = -2, l = -1: zeroed), first (reversed bounds,
    # l = -4 below l1 = -2), never (l0 = -3, l = -2, l1 = -1: inside).
    assert value(found, ZEROED) == (pytest.approx(1 / 3), 3)
    assert value(found, INSIDE) == (pytest.approx(1 / 3), 3)
    # Regions: second (l0 = -3, l1 = -2, l = -1: -1) and never (1/2).
    assert value(found, "position") == (pytest.approx(-0.25), 2)
    assert line(found, ZEROED)["comment"].endswith("bounds of sample 1")


def test_a_probe_measures_what_one_draw_cannot_tell():
    prompts = {"wide": pair(-3, -1), "unprobed": pair(-2, -2.5), "reversed": pair(-1, -2)}
    instances = [instance(key) for key in prompts]
    probe = {
        "wide": (
            [answer(-2), answer(-2.5, r_ver=0.0), answer(0)],  # inside; follows nothing; above
            [answer(-1), answer(-1), answer(-1)],
        ),
        "reversed": (
            [answer(-1), answer(-3, r_ver=0.5), answer(None)],  # above, below, missing
            [answer(-2), answer(-2), answer(-2)],
        ),
    }
    extra = table_of(probe, [instances[0], instances[2]])
    found = report.health_report(table_of(prompts, instances), instances, extra)
    # Four rollouts with l and r_ver > 0: two lie above l1, one is inside the region of "wide".
    assert value(found, ZEROED) == (2 / 4, 4)
    assert value(found, INSIDE) == (1 / 4, 4)
    assert line(found, ZEROED)["comment"].endswith("probe of 2 prompts")
    # (l1 - l) / 2 of "wide": 0.5, 0.75, -0.5.
    assert value(found, "position") == (0.5, 3)
    # "reversed" is not complete in all four draws. Of "wide", reversed is the last draw alone.
    assert value(found, "reversed in a further sample where sample 1 is not") == (
        pytest.approx(1 / 3),
        3,
    )
    assert value(found, "reversed in at least one sample") == (1.0, 1)
    assert value(found, "reversed in every sample") == (0.0, 1)
    # Constrained, "wide": -3, -2, -2.5, 0 around -1.875.
    squares = 1.125**2 + 0.125**2 + 0.625**2 + 1.875**2
    start = "spread over samples, median of the prompts' standard deviations, "
    assert value(found, start + "constrained") == (pytest.approx(math.sqrt(squares / 3)), 1)
    assert value(found, start + "natural") == (0.0, 2)
    # What the bounds themselves tell stays as it was.
    assert value(found, "reversed bounds (l0 > l1), share") == (pytest.approx(2 / 3), 3)


def test_the_references_own_compliant_answers_that_would_be_zeroed():
    prompts = {
        "a": pair(-3, -1),
        "b": pair(-1, -2),
        "c": pair(-1, -2, r_ver=0.5),
        "d": pair(-2, -1),
        "e": pair(-1, None),
    }
    found = health(prompts)
    assert value(found, "the reference's own compliant") == (pytest.approx(1 / 3), 3)


def test_reversed_bounds_by_octile_of_length_ratio():
    prompts = {
        f"p{ratio:02}": ([answer(-1 if ratio > 13 else -3, 10 * ratio)], [answer(-2, 10)])
        for ratio in range(1, 17)
    }
    found = health(prompts)
    octiles = found.details["length_ratio"]
    assert octiles["n"].tolist() == [2] * 8
    assert octiles["ratio_from"].tolist() == [1, 3, 5, 7, 9, 11, 13, 15]
    assert octiles["ratio_to"].tolist() == [2, 4, 6, 8, 10, 12, 14, 16]
    assert octiles["reversed"].tolist() == [0, 0, 0, 0, 0, 0, 0.5, 1]
    assert value(found, "reversed bounds in the highest octile") == (1.0, 2)
    assert value(found, "reversed bounds in the lowest octile") == (0.0, 2)
    assert value(found, "constrained answer is the longer") == (1.0, 3)


def test_prompts_of_the_same_length_ratio_stay_together():
    prompts = {f"p{i}": pair(-3, -1) for i in range(20)} | {"long": pair(-1, -2, tokens=40)}
    octiles = health(prompts).details["length_ratio"]
    assert octiles["n"].tolist() == [20, 1]
    assert octiles["reversed"].tolist() == [0, 1]


def test_reversed_bounds_by_number_of_constraints():
    two = (NO_COMMA, LOWER)
    instances = [instance("a"), instance("b", two), instance("c", two), instance("d", two)]
    followed = {"followed": [True, True]}
    prompts = {
        "a": pair(-3, -1),
        **{
            key: ([answer(l0, **followed)], [answer(-2, **followed)])
            for key, l0 in {"b": -1, "c": -3, "d": None}.items()
        },
    }
    detail = health(prompts, instances).details["n_constraints"]
    assert detail.to_numpy().tolist() == [[1, 1, 0], [2, 2, 0.5]]


def test_l_by_length_of_the_answer():
    lengths = {"a": (8, -4.0), "b": (15, -2.0), "c": (16, -1.0), "d": (31, -1.5)}
    prompts = {k: ([answer(l0, n)], [answer(None)]) for k, (n, l0) in lengths.items()}
    found = health(prompts)
    detail = found.details["length"]
    expected = [
        ["constrained", 8, 16, 2, -3.0, math.sqrt(2)],
        ["constrained", 16, 32, 2, -1.25, math.sqrt(0.125)],
    ]
    assert detail.iloc[:, :5].to_numpy().tolist() == [row[:5] for row in expected]
    assert detail["std_l"].tolist() == pytest.approx([row[5] for row in expected])
    # Ranks of the lengths 1 2 3 4, of l 1 2 4 3: 1 - 6 * (0 + 0 + 1 + 1) / (4 * 15) = 0.8.
    start = "rank correlation of l with length, "
    assert value(found, start + "constrained") == (pytest.approx(0.8), 4)
    assert math.isnan(value(found, start + "natural")[0])
    assert value(found, "median length, constrained") == (15.5, 4)


def test_compliance_of_constrained_answers_by_type():
    instances = [
        instance("a", (NO_COMMA, LOWER)),
        instance("b", (NO_COMMA, DOT)),
        instance("c", (LOWER,)),
    ]

    def both(followed):
        mean = sum(followed) / len(followed)
        one = answer(-2, r_ver=mean, followed=followed)
        return [one], [answer(-1, followed=[False] * len(followed))]

    found = health(
        {"a": both([True, True]), "b": both([True, False]), "c": both([False])}, instances
    )
    assert value(found, "constrained answers that follow all") == (pytest.approx(1 / 3), 3)
    assert value(found, "constraints followed by") == (pytest.approx(0.5), 3)
    assert value(found, "prompts with a region whose") == (pytest.approx(2 / 3), 3)
    detail = found.details["type"]
    assert detail.to_numpy().tolist() == [
        ["change_case", 2, 0.5, 2, 0.5, 0.5],  # c, a
        ["punctuation", 3, pytest.approx(2 / 3), 2, 0.5, 0.75],  # a, and both of b
    ]


def test_defects_are_counted_by_kind():
    loop = "round and " * 30
    prompts = {
        "one": pair(-1, -2, tokens=1),
        "short": pair(-3, -2, tokens=9),
        "loop": pair(-3, -2, text=loop, r_ver=0.0),
        "asked": pair(-3, -2, text=loop),
        "same": ([answer(-2, text="tea time")], [answer(-2, text="tea time")]),
    }
    found = health(prompts)
    assert value(found, "one token, constrained") == (1 / 5, 5)
    assert value(found, "fewer than 10 tokens, constrained") == (2 / 5, 5)
    assert value(found, "fewer than 10 tokens, natural") == (0.0, 5)
    assert value(found, "repetition loops, constrained") == (2 / 5, 5)
    assert value(found, "constrained loops that follow all") == (1 / 2, 2)
    assert value(found, "prompts with the same answer") == (1 / 5, 5)
    assert value(found, "degenerate prompts") == (4 / 5, 5)


def test_missing_answers_are_told_by_side_reason_and_what_the_others_are_like():
    prompts = {
        "a": ([answer(-2, 10)], [answer(-1, 30)]),
        "b": ([answer(-2, 50, r_ver=0.0)], [answer(None, finish="length")]),
        "c": ([answer(-2, 70, r_ver=0.0)], [answer(None)]),
        "d": ([answer(-2, 20)], [answer(-1, 20)]),
    }
    found = health(prompts)
    assert value(found, "answers that are there, constrained") == (1.0, 4)
    assert value(found, "answers that are there, natural") == (0.5, 4)
    comment = line(found, "answers that are there, natural")["comment"]
    assert comment == "no answer before the token limit: 1, ended without an answer: 1"
    assert value(found, "prompts without a bound") == (0.5, 4)
    assert value(found, "mean length of answers to prompts with both bounds") == (20.0, 4)
    assert value(found, "mean length of answers to prompts without a bound") == (60.0, 2)
    assert value(found, "mean r_ver of answers to prompts without a bound") == (0.0, 2)
    assert value(found, "answers cut at the token limit, natural") == (0.25, 4)
    assert found.details["missing"].to_numpy().tolist() == [
        ["b", "natural", "no answer before the token limit", 50.0, 0.0],
        ["c", "natural", "ended without an answer", 70.0, 0.0],
    ]


def test_a_table_with_nothing_to_measure_says_so():
    found = health({"a": ([answer(None)], [answer(None)])})
    assert np.isnan(line(found, "reversed bounds (l0 > l1), share")["value"])
    assert "nothing to count" in line(found, "reversed bounds (l0 > l1), share")["comment"]
    assert value(found, "prompts without a bound") == (1.0, 1)
    assert found.details["length_ratio"].empty


def test_bounds_of_other_prompts_are_refused():
    with pytest.raises(AnchorError, match="no anchors for the prompt with key 'z'"):
        report.health_report(table_of(USUAL), [instance("z")])


def test_the_report_reads_what_was_written(tmp_path):
    from califkit.anchors.table import SCHEMA, load_anchors, write_anchors

    instances = [instance(key) for key in TWO]
    table = table_of(TWO, instances)
    write_anchors(table, tmp_path / "anchors.parquet", {"schema": SCHEMA})
    again = report.health_report(load_anchors(tmp_path / "anchors.parquet"), instances)
    pd.testing.assert_frame_equal(again.summary, health(TWO, instances).summary)
