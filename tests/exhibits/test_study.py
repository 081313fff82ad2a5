"""The analysis of docs/study.md, on tables small enough to work out by hand."""

import numpy as np
import pandas as pd
import pytest

from califkit.exhibits.study import (
    BASE,
    CRITERIA,
    END,
    LOGGED,
    MEASURES,
    NOT_RUN,
    difference,
    differences,
    ends,
    examples,
    hypotheses,
    late,
    levels,
    ratio,
    rollouts_at_equal_r_ver,
)


def answers(*rows: tuple) -> pd.DataFrame:
    """(arm, seed, key, share, information) each; the other measures are 1."""
    table = pd.DataFrame(rows, columns=["arm", "seed", "key", "share", "information"])
    ones = {name: 1.0 for name in MEASURES if name not in table}
    return table.assign(**ones, eval_seed=0).astype({"seed": float})


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


PAIRED = answers(
    ("a", 0, "p", 0.5, 5.0),
    ("a", 1, "p", 1.0, 9.0),
    ("a", 0, "q", 1.0, 2.0),
    ("b", 0, "p", 0.5, 1.0),
    ("b", 1, "p", 0.5, 1.0),
    ("b", 0, "q", 1.0, 1.0),
    (BASE, None, "p", 0.0, 4.0),
    (BASE, None, "q", 0.0, 4.0),
)


def test_differences_are_averaged_within_a_prompt_first():
    found = difference(PAIRED, "a", "b", "information", rng())
    # p: (4 + 8) / 2 = 6; q: 1. By seed: (4 + 1) / 2 and 8.
    assert found["value"] == 3.5
    assert found["by_seed"] == {0: 2.5, 1: 8.0}
    assert (found["prompts"], found["pairs"]) == (2, 3)
    assert (found["low"], found["high"]) == (1.0, 6.0), "of two prompts: one of them twice"


def test_at_equal_share_only_pairs_with_the_same_share_count():
    found = difference(PAIRED, "a", "b", "information", rng(), equal="share")
    assert (found["value"], found["pairs"]) == (2.5, 2)  # seed 1 of p followed more: left out
    (row,) = differences(PAIRED[PAIRED["arm"] != BASE], "b", rng(), ["information"]).itertuples()
    assert (row.arm, row.against, row.value) == ("a", "b", 2.5)


def test_the_base_policy_is_paired_with_every_seed():
    found = difference(PAIRED, "a", BASE, "information", rng())
    assert found["value"] == ((1 + 5) / 2 + -2) / 2
    turned = difference(PAIRED, BASE, "a", "information", rng())
    assert turned["value"] == -found["value"]
    assert turned["by_seed"] == {0: (-1 + 2) / 2, 1: -5.0}


def test_without_a_pair_there_is_no_number():
    found = difference(PAIRED, "b", BASE, "information", rng(), equal="share")
    assert np.isnan(found["value"]) and found["pairs"] == 0 and found["by_seed"] == {}


def test_levels_and_ratios_to_the_base_policy():
    table = levels(PAIRED, rng()).set_index(["arm", "measure"])
    row = table.loc[("a", "information")]
    assert row["value"] == pytest.approx((5 + 9 + 2) / 3)
    assert (row["answers"], row["seeds"]) == (3, 2)
    assert (row["low"], row["high"]) == (2.0, 7.0), "a prompt is resampled with both its answers"
    value, low, high = ratio(PAIRED, "a", "information", rng())
    assert value == (7 + 2) / (4 + 4)
    assert (low, high) == (0.5, 1.75)


def test_the_ends_of_a_run_are_means_of_its_first_and_last_steps():
    steps = pd.DataFrame({name: np.arange(1.0, 21.0) for name in LOGGED}).assign(arm="a", seed=0)
    both = ends(steps.sample(frac=1, random_state=0)).loc[("a", 0)]
    assert END == 6
    assert (both["start", "r_ver"], both["end", "r_ver"]) == (3.5, 17.5)


def rollouts(*rows: tuple) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["arm", "seed", "step", "key", "r_ver", "loglik"])


def test_rollouts_are_compared_in_their_last_pass_at_equal_r_ver():
    table = rollouts(
        ("a", 0, 1, "p", 1.0, -9.0),  # an earlier pass
        ("a", 0, 9, "p", 1.0, -1.0),
        ("a", 0, 9, "p", 1.0, -2.0),
        ("a", 0, 9, "p", 0.5, -7.0),  # the other arm has none of these
        ("b", 0, 9, "p", 1.0, -2.0),
        ("b", 0, 9, "p", 0.0, -3.0),
    )
    found = rollouts_at_equal_r_ver(table, "a", "b", rng())
    assert (found["value"], found["pairs"]) == (0.5, 1)
    assert sorted(late(table.assign(step=[1, 4, 5, 9, 9, 9]))["step"]) == [4, 5, 9, 9, 9]


def test_examples_are_the_deepest_falls_among_the_passes():
    told = {"p": (9, 1), "q": (9, 5), "r": (9, 0), "s": (1, 3)}
    rows = [(BASE, None, key, 0.0, base) for key, (base, _) in told.items()]
    rows += [("a", 0, key, 1.0, own) for key, (_, own) in told.items()]
    table = answers(*rows)
    table["passes"] = [1.0] * 4 + [1.0, 1.0, 0.0, 1.0]  # a fails r
    found = examples(table, "a", [BASE, "a"], count=2)
    assert list(zip(found["key"], found["arm"], strict=True)) == [
        ("p", BASE),
        ("p", "a"),
        ("q", BASE),
        ("q", "a"),
    ]


def study(variant: float, rlvr: float) -> pd.DataFrame:
    """The hypotheses where IF-RLVR follows more and tells less, and the variant tells as given."""
    keys = [f"p{i}" for i in range(4)]
    told = {"if_rlvr": rlvr, "calif": rlvr - 1, "calif_variant": variant}
    rows = [(BASE, None, key, 0.5, 10.0) for key in keys]
    rows += [
        (arm, seed, key, 0.5, value)
        for arm, value in told.items()
        for seed in (0, 1)
        for key in keys
    ]
    lasting = {"if_rlvr": (0.7, -3.0), "calif": (0.7, -4.0), "calif_variant": (0.6, -1.0)}
    rolled = pd.DataFrame(
        {"arm": arm, "seed": seed, "step": step, "key": key, "r_ver": r_ver, "loglik": l_}
        | {"anchor_r_ver": 0.5, "l0": -2.0, "l1": -1.5}
        for arm, (r_ver, l_) in lasting.items()
        for seed in (0, 1)
        for step in range(1, 13)
        for key in keys
    )
    logs = pd.DataFrame(
        {"arm": arm, "seed": seed, "step": step} | dict.fromkeys(LOGGED[1:], l_)
        for arm, (_, l_) in lasting.items()
        for seed in (0, 1)
        for step in range(1, 13)
    )
    return hypotheses(logs, answers(*rows), rolled, rng()).set_index(["hypothesis", "criterion"])


def test_hypotheses_are_measured_as_the_plan_says():
    table = study(variant=9.5, rlvr=5.0)
    assert len(table) == len(CRITERIA)
    found = table["found"].to_dict()
    assert found[("H1", "training: l at the end less l0, IF-RLVR")] == -1.0
    assert found[("H1", "information, IF-RLVR / base")] == 0.5
    assert found[("H2", "information, CaLIF as printed minus IF-RLVR")] == -1.0
    assert found[("H3", "training: gain of r_ver, variant / IF-RLVR")] == pytest.approx(0.5)
    assert found[("H4", "information at equal share, variant minus IF-RLVR")] == 4.5
    assert table.loc["H4"].iloc[0]["by_seed"] == "+4.50, +4.50"
    holds = table["holds"]
    assert holds[("H1", "information, IF-RLVR / base")] == "yes"
    followed = ("H1", "share of constraints followed, IF-RLVR minus base")
    assert (found[followed], holds[followed]) == (0.0, "no")
    assert set(holds[["H3", "H2"]]) == {"yes"}
    assert set(holds.loc["H6":"H9"]) == {NOT_RUN}


def test_a_variant_that_tells_no_more_does_not_hold():
    holds = study(variant=5.0, rlvr=5.0)["holds"]
    assert holds[("H3", "information, variant minus IF-RLVR")] == "no"
    assert holds[("H4", "information at equal share, variant minus IF-RLVR")] == "no"
