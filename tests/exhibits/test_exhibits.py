"""Tables behind Fig. 7 and Tables 6 to 8, and responses that are shown and cannot act."""

import json
from typing import Any

import mistune
import numpy as np
import pandas as pd
import pytest

from califkit.exhibits import examples, paper, plaintext, types
from califkit.exhibits.exhibit import write_table
from califkit.exhibits.methods import LOOKS
from califkit.exhibits.summary import NO_JUDGE
from califkit.generation import benchmark_prompts
from califkit.runs.settings import EvaluationSettings


def response(method="base", key="p", passes=False, **changes: Any) -> dict[str, Any]:
    return {
        "method": method,
        "train_seed": None if method == "base" else 0,
        "eval_seed": 0,
        "prompt": f"prompt {key}",
        "response": f"{method} {key}",
        "passes": passes,
        "key": key,
        "ids": ["words:vowel"],
        "loglik": -1.0,
        "tokens": 10,
        "distinct_2": 1.0,
        "quality": np.nan,
        "judge": "",
    } | changes


def table_of(*rows: dict[str, Any]) -> pd.DataFrame:
    return pd.DataFrame(rows)


def judged(*rows: dict[str, Any]) -> pd.DataFrame:
    return table_of(*rows).assign(judge="a-judge")


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def cells(table: pd.DataFrame) -> pd.DataFrame:
    return table.set_index(["type", "method", "metric"])


# ------------------------------------------------------------------ constraint types


def test_types_are_distinct_prefixes():
    ids = ["words:a", "format:b", "words:c", "plain"]
    assert types.prompt_types(ids) == ("words", "format", "plain")


def test_counts_on_the_benchmark_are_those_of_the_paper():
    # IFBench: prompts that contain a type, and that have no other (open point A18). The types of
    # which every row is in the installed wheel; `words`, `count` and `custom` lack some.
    instances = benchmark_prompts(EvaluationSettings()).instances
    rows = [response(key=i.key, ids=[c.id for c in i.constraints]) for i in instances]
    counts = types.type_counts(table_of(*rows)).set_index("type")
    assert counts.index[:7].tolist() == [*types.TYPES, *types.RARE_TYPES]
    expected = {"format": (96, 78), "ratio": (44, 28), "sentence": (28, 15), "repeat": (9, 9)}
    assert {name: tuple(counts.loc[name]) for name in expected} == expected


def test_counts_are_of_prompts_and_not_of_responses():
    rows = [response(m, "p", ids=["words:a", "count:b"]) for m in ("base", "calif")]
    counts = types.type_counts(table_of(*rows, response(key="q"))).set_index("type")
    assert tuple(counts.loc["words"]) == (2, 1)
    assert tuple(counts.loc["count"]) == (1, 0)
    assert tuple(counts.loc["ratio"]) == (0, 0)


MIXED = (
    response(key="p", passes=True, ids=["words:a"], tokens=10),
    response(key="q", passes=False, ids=["words:a", "format:b"], tokens=30),
    response(key="r", passes=True, ids=["format:b"], tokens=50),
)


def test_a_prompt_with_two_types_enters_both_groups_with_its_verdict():
    table = cells(types.type_table(table_of(*MIXED), rng(), ["words", "format"]))
    assert table.loc[("words", "base", "prompt_level_loose_acc"), "value"] == 50.0
    assert table.loc[("format", "base", "prompt_level_loose_acc"), "value"] == 50.0
    assert table.loc[("words", "base", "tokens"), "value"] == 20.0
    assert table.loc[("format", "base", "tokens"), "value"] == 40.0


def test_prompts_that_mix_types_can_be_left_out():
    table = cells(types.type_table(table_of(*MIXED), rng(), ["words", "format"], mixed=False))
    assert table.loc[("words", "base", "prompt_level_loose_acc"), "value"] == 100.0
    assert table.loc[("words", "base", "prompt_level_loose_acc"), "n"] == 1


def test_rare_types_are_shown_on_request_only():
    responses = table_of(response(ids=["custom:a"]), response(key="q"))
    assert set(types.type_table(responses, rng())["type"]) == set(types.TYPES)
    table = types.type_table(responses, rng(), types.RARE_TYPES)
    assert cells(table).loc[("custom", "base", "tokens"), "n"] == 1


def test_an_interval_over_prompts_is_that_of_a_binomial_share():
    rows = [response(key=str(i), passes=i < 30) for i in range(100)]
    row = cells(types.type_table(table_of(*rows), rng())).loc[
        "words", "base", "prompt_level_loose_acc"
    ]
    assert (row["value"], row["n"]) == (30.0, 100)
    # 2.5 % and 97.5 % quantiles of Binomial(100, 0.3): 21 and 39.
    assert (row["low"], row["high"]) == pytest.approx((21, 39), abs=1)


def test_a_second_run_with_the_same_responses_makes_nothing_more_certain():
    rows = [response(key=str(i), tokens=i) for i in range(20)]
    again = [row | {"eval_seed": 1} for row in rows]
    one = types.type_table(table_of(*rows), rng())
    two = types.type_table(table_of(*rows, *again), rng())
    pd.testing.assert_frame_equal(one, two)


def test_intervals_come_from_the_generator_alone():
    rows = [response(key=str(i), tokens=i * i) for i in range(9)]
    first = types.type_table(table_of(*rows), rng())
    pd.testing.assert_frame_equal(first, types.type_table(table_of(*rows), rng()))
    other = types.type_table(table_of(*rows), np.random.default_rng(1))
    assert not first["low"].equals(other["low"])
    assert first["value"].equals(other["value"])


def test_one_prompt_has_no_interval_and_none_has_no_value():
    table = cells(types.type_table(table_of(response(passes=True)), rng()))
    one = table.loc["words", "base", "prompt_level_loose_acc"]
    assert one["value"] == 100.0 and np.isnan(one["low"]) and "no interval" in one["note"]
    none = table.loc["ratio", "base", "prompt_level_loose_acc"]
    assert (none["n"], none["note"]) == (0, "no prompt of this type") and np.isnan(none["value"])


def test_response_quality_without_a_judge_says_so():
    responses = table_of(*MIXED)
    for table in (
        types.type_table(responses, rng()),
        types.type_changes(pd.concat([responses, responses.assign(method="calif")]), rng()),
    ):
        quality = table[table["metric"] == "response_quality"]
        assert quality["value"].isna().all() and (quality["note"] == NO_JUDGE).all()
        assert (table["judge"] == "").all()


def test_response_quality_is_averaged_over_scored_responses_and_names_its_judge():
    scores = {"p": 2.0, "q": 5.0, "r": np.nan}
    responses = judged(*(response(key=key, quality=score) for key, score in scores.items()))
    table = cells(types.type_table(responses, rng()))
    row = table.loc["words", "base", "response_quality"]
    assert (row["value"], row["n"], row["judge"]) == (3.5, 2, "a-judge")
    assert row["note"] == "1 of 3 without a value"
    assert table.loc[("words", "base", "tokens"), "judge"] == ""


def test_changes_compare_the_same_prompts():
    responses = table_of(
        response("base", "p", tokens=10, loglik=-1.0),
        response("base", "q", tokens=20, loglik=-2.0),
        response("calif", "p", True, tokens=40, loglik=-3.0),
        response("calif", "q", tokens=30, loglik=np.nan),
    )
    table = cells(types.type_changes(responses, rng(), ["words"]))
    assert table.index.get_level_values("method").unique().tolist() == ["calif"]
    assert table.loc[("words", "calif", "prompt_level_loose_acc"), "value"] == 50.0
    # Differences of 30 and 10: resampling two prompts gives nothing outside them.
    tokens = table.loc["words", "calif", "tokens"]
    assert (tokens["value"], tokens["low"], tokens["high"]) == (20.0, 10.0, 30.0)
    loglik = table.loc["words", "calif", "loglik"]
    assert (loglik["value"], loglik["n"]) == (-2.0, 1)
    assert loglik["note"] == "1 of 2 without a value; one prompt: no interval"


def measured(method, metric, **values) -> list[tuple]:
    """Rows of a type table: value, low, high by type."""
    return [(t, method, metric, *numbers, 9, "", "") for t, numbers in values.items()]


def typed(*groups: list[tuple]) -> pd.DataFrame:
    columns = ["type", "method", "metric", "value", "low", "high", "n", "note", "judge"]
    return pd.DataFrame([row for group in groups for row in group], columns=columns)


def test_claims_name_the_leading_type_and_whether_it_is_told_apart():
    levels = typed(measured("base", "prompt_level_loose_acc", words=(5, 2, 8), count=(20, 10, 30)))
    changes = typed(
        measured("if_rlvr", "prompt_level_loose_acc", words=(30, 20, 40), count=(35, 25, 45)),
        measured("if_rlvr", "tokens", words=(-5, -6, -4), count=(-9, -10, -8)),
        measured("calif", "tokens", words=(2, -1, 5), count=(-3, -7, 1)),
    )
    table = types.type_claims(levels, changes).set_index("claim")
    assert table["paper"].tolist() == ["words"] * 4 + ["no type"]
    assert table["verdict"].tolist() == [
        "as in the paper",
        "another type than in the paper, but not told apart from the next",
        "not measured: this profile has no such run",
        "another type than in the paper",
        "as in the paper: no interval lies below 0",
    ]
    assert table["this run"].iloc[0] == "words 5.0 [2.0, 8.0]"
    assert table["this run"].iloc[3] == "count -9.0 [-10.0, -8.0]"


def test_claims_call_a_tie_a_tie_and_no_gain_no_gain():
    levels = typed(measured("base", "prompt_level_loose_acc", words=(0, 0, 0), count=(0, 0, 0)))
    changes = typed(
        measured("if_rlvr", "prompt_level_loose_acc", words=(-3, -4, 0), count=(-1, -2, 0)),
        measured("calif", "tokens", words=(-5, -9, -1), count=(0, -1, 1)),
    )
    verdicts = types.type_claims(levels, changes)["verdict"].tolist()
    assert verdicts[:2] == ["a tie", "no type moves that way"]
    assert verdicts[4] == "opposite to the paper: words"


def test_claims_on_quality_repeat_why_it_was_not_measured():
    responses = table_of(*(response(m, k) for m in ("base", "if_rlvr", "calif") for k in "pq"))
    levels = types.type_table(responses, rng())
    changes = types.type_changes(responses, rng())
    table = types.type_claims(levels, changes).set_index("claim")
    assert table.loc["IF-RLVR loses most response quality", "verdict"] == NO_JUDGE


# ------------------------------------------------------------------ which responses to show


def test_repetition_is_taken_from_the_direct_bonus():
    responses = table_of(
        response("if_rlvr", "p", distinct_2=0.01),
        response("direct_bonus", "p", distinct_2=0.5),
        response("direct_bonus", "q", distinct_2=0.2, loglik=-2.0),
        response("direct_bonus", "r", distinct_2=0.2, loglik=-0.1),
        response("direct_bonus", "s", distinct_2=np.nan),
    )
    found, rule = examples.repetitions(responses)
    assert found["key"].tolist() == ["r", "q", "p"]
    assert set(found["method"]) == {"direct_bonus"}
    assert "no run" not in rule


def test_without_the_direct_bonus_the_rule_says_what_is_missing():
    responses = table_of(
        response("base", "p", distinct_2=0.1), response("calif", "p", distinct_2=0.3)
    )
    found, rule = examples.repetitions(responses)
    assert found["method"].tolist() == ["calif"]
    assert "no run of the direct likelihood bonus" in rule and "among CaLIF" in rule


def pair(key, base: dict[str, Any], rlvr: dict[str, Any], seed: int = 0) -> list[dict[str, Any]]:
    return [
        response("base", key, **base, eval_seed=seed),
        response("if_rlvr", key, **({"passes": True} | rlvr), eval_seed=seed),
    ]


def test_gaps_of_quality_are_ranked_where_if_rlvr_passes():
    responses = judged(
        *pair("small", {"quality": 5.0}, {"quality": 4.0}),
        *pair("large", {"quality": 9.0}, {"quality": 1.0}),
        *pair("fails", {"quality": 10.0}, {"quality": 1.0, "passes": False}),
        *pair("unscored", {"quality": 10.0}, {"quality": np.nan}),
        *pair(
            "asks for one word",
            {"quality": 10.0, "ids": ["format:options"]},
            {"quality": 1.0, "ids": ["format:options"]},
        ),
    )
    found, rule = examples.quality_gaps(responses)
    assert found["key"].tolist() == ["large", "small"]
    assert found["quality_gap"].tolist() == [8.0, 1.0]
    assert "largest gap of response quality" in rule


def test_without_a_judge_the_drop_of_likelihood_then_of_length_ranks():
    responses = table_of(
        *pair("a", {"loglik": -1.0, "tokens": 50}, {"loglik": -3.0, "tokens": 40}),
        *pair("b", {"loglik": -1.0, "tokens": 50}, {"loglik": -3.0, "tokens": 5}),
        *pair("c", {"loglik": -1.0}, {"loglik": -9.0}),
        *pair("c", {"loglik": -1.0}, {"loglik": -8.0}, seed=1),
    )
    found, rule = examples.quality_gaps(responses)
    assert found["key"].tolist() == ["c", "b", "a"]  # each prompt once
    assert found["eval_seed"].iloc[0] == 0
    assert found["loglik_drop"].tolist() == [8.0, 2.0, 2.0]
    assert found["length_drop"].tolist() == [0.0, 45.0, 10.0]
    assert NO_JUDGE in rule


def test_no_pass_gives_no_example():
    found, _ = examples.quality_gaps(table_of(*pair("a", {}, {"passes": False})))
    assert found.empty
    table = examples.beside_example(None, 7)
    assert (table["note"] == "not measured: this profile has no such example").all()
    assert table["paper: response_quality"].tolist() == [5, 1, 6]


def test_policies_stand_side_by_side_on_the_same_prompt_seed_and_training():
    responses = judged(
        response("base", quality=7.0, passes=True),
        response("base", eval_seed=1),
        response("if_rlvr", train_seed=0, response="other training", quality=2.0),
        response("if_rlvr", train_seed=1, response="same training", quality=np.nan),
        response("calif", train_seed=0, quality=6.0),
        response("calif", "q"),
    )
    pick = responses.iloc[3]
    rows = examples.side_by_side(responses, pick, ["base", "if_rlvr", "calif", "direct_bonus"])
    assert rows["policy"].tolist() == ["base", "IF-RLVR", "CaLIF", "direct likelihood bonus"]
    assert rows["response"].tolist() == ["base p", "same training", "calif p", ""]
    assert rows["verdict"].tolist() == ["pass", "fail", "fail", ""]
    assert rows["response_quality"].tolist()[::2] == [7.0, 6.0]
    assert rows["note"].tolist() == [
        "",
        "response quality unscored",
        "",
        "not measured: this profile has no run with this reward",
    ]
    text = examples.as_text(pick["prompt"], pick["ids"], rows)
    assert "base: pass, RQ 7 (a-judge), log-likelihood -1.00, 10 tokens" in text
    assert "IF-RLVR: fail, RQ unscored," in text
    assert "direct likelihood bonus: not measured" in text


def test_undefined_scores_of_a_short_response_are_called_undefined():
    responses = table_of(response(loglik=np.nan, distinct_2=np.nan, response="", tokens=0))
    rows = examples.side_by_side(responses, responses.iloc[0], ["base"])
    text = examples.as_text("x", ["words:vowel"], rows)
    assert f"RQ {NO_JUDGE}, log-likelihood undefined, 0 tokens, distinct-2 undefined" in text
    assert text.endswith("(empty)")
    assert "identification" not in text, "not measured"


def test_identification_stands_beside_response_quality_and_is_not_called_so():
    responses = table_of(response(information=7.25))
    rows = examples.side_by_side(responses, responses.iloc[0], ["base"])
    text = examples.as_text("x", ["words:vowel"], rows)
    assert f"RQ {NO_JUDGE}, log-likelihood -1.00" in text
    assert "distinct-2 1.00, identification 7.2 nats\n" in text


# ------------------------------------------------------------------ responses cannot act

HOSTILE = (
    "\x1b[31mred\x1b[0m\r\n<script>alert(1)</script> ![x](http://example.org/x.png) ``` `` `\n\n"
    "CaLIF: pass, RQ 10\n| a | b |\n\u202eright to left\u2069 \u2028 \rover\n"
    "=HYPERLINK(1) **bold** $x$"
)


def test_control_characters_become_visible_and_text_stays():
    text = plaintext.plain(HOSTILE)
    assert "\\x1b[31mred\\x1b[0m\n<script>" in text
    assert "\\u202eright to left\\u2069 \\u2028 \\rover" in text
    assert not set(text) & {"\x1b", "\r", "\u202e", "\u2028"}
    assert plaintext.plain("half \ud83c") == "half \\ud83c"
    family = "naïve 日本 👩\u200d👧 é"  # a zero-width joiner is part of the emoji
    assert plaintext.plain(family) == family


def test_no_line_of_a_response_can_be_taken_for_a_line_of_ours():
    responses = table_of(response(response=HOSTILE), response("calif", response="x" * 5000))
    rows = examples.side_by_side(responses, responses.iloc[0], ["base", "calif"])
    text = examples.as_text(HOSTILE, ["words:vowel"], rows, limit=1000)
    ours = [line for line in text.split("\n") if line and not line.startswith("    |")]
    assert [line.split(" ")[0] for line in ours] == ["query", "base:", "CaLIF:"]
    assert max(map(len, text.split("\n"))) <= 110
    assert "[... 4000 more characters]" in text.replace("\n    | ", " ")


def test_a_saved_response_is_inert_in_markdown_and_in_a_spreadsheet(tmp_path):
    texts = [HOSTILE, "=1+1", "`", "", "a|b <b>c</b>", "`<i>x</i>"]
    methods = list(LOOKS)[: len(texts)]
    rows = [response(m, response=t) for m, t in zip(methods, texts, strict=True)]
    responses = table_of(*rows)
    shown = examples.side_by_side(responses, responses.iloc[0], methods)
    csv, markdown = write_table(tmp_path, "examples", examples.beside_example(shown, 6))
    page = mistune.create_markdown(plugins=["table"], escape=False)(markdown.read_text("utf-8"))
    assert page.count("<tr>") == 1 + len(texts)
    for tag in ("<script", "<img", "<b>", "<i>", "<strong", "<a "):
        assert tag not in page
    assert "&lt;script&gt;" in page and "|b &lt;b&gt;" in page
    saved = pd.read_csv(csv)["response"]
    assert saved[1] == "` =1+1 `" and saved.isna().tolist() == [False] * 3 + [True] + [False] * 2


def test_a_long_response_is_cut_in_a_cell():
    assert (
        plaintext.code_span("a\nb" + "c" * 1000, limit=5) == "` a ⏎ bcc [... 998 more characters] `"
    )


# ------------------------------------------------------------------ the paper's examples


def test_known_rows_of_the_paper():
    table = paper.example(6).set_index("policy")
    assert table["response_quality"].tolist() == [5, 2, 7, 1]
    assert table["loglik"].tolist() == [-1.25, -5.05, -0.84, -0.04]
    assert "verdict" not in table
    assert paper.example(8)["verdict"].tolist() == ["pass"] * 3


@pytest.mark.parametrize("number", [6, 7, 8])
def test_the_papers_examples_equal_its_data(shared, number):
    reference = json.loads((shared / "paper" / "paper.json").read_text())["tables"]
    values = reference[f"table{number}"]["values"]
    labels = {"base": "base", "if_rlvr": "IF-RLVR", "calif": "CaLIF"}
    labels["direct"] = "direct likelihood bonus"
    table = paper.example(number).set_index("policy")
    assert table.index.tolist() == [labels[method] for method in values]
    for method, row in values.items():
        ours = table.loc[labels[method]]
        assert ours["response_quality"] == row["response_quality"]
        if "log_likelihood" in row:
            assert ours["loglik"] == row["log_likelihood"]
        if "satisfied" in row:
            assert ours["verdict"] == ("pass" if row["satisfied"] else "fail")
    key = paper.QUERIES[number].split(" (")[0].removeprefix("IFBench ")
    assert key in reference[f"table{number}"]["caption"]
