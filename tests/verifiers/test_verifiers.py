"""The verifier API: registry, validation, strict and loose, errors, reward, threads."""

import inspect
import json
import re
import string
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from califkit.verifiers import (
    REGISTRY,
    Constraint,
    ConstraintError,
    Text,
    UnknownConstraintError,
    check,
    fraction_followed,
    patterns,
    registry,
    strip_reasoning,
    verify,
    verify_all,
)
from califkit.verifiers.registry import compare
from califkit.verifiers.text import fold

ROOT = Path(__file__).resolve().parents[2]
TRAINING_SUITES = ("ifeval", "iftrain")
IDS = [id for suite in TRAINING_SUITES for id in registry.suite_ids(suite)]


def example_constraint(id: str) -> Constraint:
    return Constraint(id, REGISTRY[id].example.kwargs)


# --- registry ----------------------------------------------------------------------------------
def test_the_suites_are_complete():
    assert [len(registry.suite_ids(s)) for s in TRAINING_SUITES] == [25, 29]


@pytest.mark.parametrize("id", IDS)
def test_example_passes_and_counterexample_fails(id):
    example = REGISTRY[id].example
    built = example_constraint(id)
    for semantics in ("published", "repaired"):
        assert check(built, example.passes, semantics=semantics).passed, semantics
        assert not verify(built, example.fails, semantics=semantics), semantics


@pytest.mark.parametrize("id", IDS)
def test_instruction_names_every_required_argument(id):
    spec = REGISTRY[id]
    named = {field for _, field, _, _ in string.Formatter().parse(spec.instruction) if field}
    assert named == {key for key, param in spec.params.items() if param.required}
    sentence = example_constraint(id).instruction
    assert "{" not in sentence and sentence[0].isupper()


@pytest.mark.parametrize("id", IDS)
def test_checker_takes_the_declared_arguments(id):
    spec = REGISTRY[id]
    for checker in (spec.checker, spec.repaired or spec.checker):
        assert list(inspect.signature(checker).parameters) == ["text", *spec.params]


def test_a_defect_has_a_repair_and_a_repair_a_defect():
    for id in IDS:
        assert (REGISTRY[id].defect is None) == (REGISTRY[id].repaired is None), id


@pytest.mark.parametrize(
    ("count", "relation", "expected"),
    [
        (2, "less than", True),
        (3, "less than", False),
        (3, "at least", True),
        (2, "at least", False),
    ],
)
def test_compare_at_the_boundary(count, relation, expected):
    assert compare(count, relation, 3) is expected


def test_compare_refuses_another_relation():
    with pytest.raises(ValueError, match="around"):
        compare(1, "around", 1)


# --- building a constraint ---------------------------------------------------------------------
def test_unknown_id_lists_near_names():
    with pytest.raises(UnknownConstraintError, match=r"keywords:existance.*keywords:existence"):
        Constraint("keywords:existance", {})
    assert issubclass(UnknownConstraintError, ValueError) and issubclass(
        ConstraintError, ValueError
    )


@pytest.mark.parametrize(
    ("id", "kwargs", "words"),
    [
        ("punctuation:no_comma", {"N": 1}, ["no_comma", "'N'", "1"]),
        ("keywords:existence", {}, ["existence", "'keywords'", "missing"]),
        ("keywords:existence", {"keywords": None}, ["'keywords'", "missing"]),
        ("keywords:existence", {"keywords": []}, ["'keywords'", "empty"]),
        ("keywords:existence", {"keywords": [1]}, ["'keywords'", "[1]", "strings"]),
        ("keywords:word_once", {"keyword": 5}, ["'keyword'", "5", "string"]),
        ("copy:copying_multiple", {"prompt_to_repeat": "x", "N": 2.5}, ["'N'", "2.5", "integer"]),
        ("copy:copying_multiple", {"prompt_to_repeat": "x", "N": True}, ["'N'", "True"]),
        ("copy:copying_multiple", {"prompt_to_repeat": "x", "N": 0}, ["'N'", "0", "at least 1"]),
        (
            "length_constraints:number_words",
            {"num_words": 3, "relation": "around"},
            ["'relation'", "'around'", "'less than'"],
        ),
        ("language:response_language", {"language": "zh-cn"}, ["'language'", "'zh-cn'"]),
    ],
)
def test_a_wrong_constraint_names_id_key_and_value(id, kwargs, words):
    with pytest.raises(ConstraintError) as caught:
        Constraint(id, kwargs)
    assert all(word in str(caught.value) for word in [id, *words])


def test_only_none_is_dropped_and_kwargs_are_not_changed():
    kwargs = {"num_bullets": 0.0, "keyword": None}
    built = Constraint("detectable_format:number_bullet_lists", kwargs)
    assert built.kwargs == {"num_bullets": 0} and isinstance(built.kwargs["num_bullets"], int)
    assert kwargs == {"num_bullets": 0.0, "keyword": None}
    assert verify(built, "no bullets") and not verify(built, "* one")


def test_lists_are_copied():
    keywords = ["tea"]
    built = Constraint("keywords:existence", {"keywords": keywords})
    keywords.append("milk")
    assert verify(built, "tea")


def test_optional_parameters():
    assert Constraint("keywords:exclude_word_harder", {"keyword": "a"}).kwargs == {"keyword": "a"}


# --- strict, loose, errors ---------------------------------------------------------------------
@pytest.mark.parametrize("id", IDS)
@pytest.mark.parametrize("response", ["", " ", "\n\n", "\u00a0\u3000"])
def test_blank_follows_nothing(id, response):
    built = example_constraint(id)
    for mode in ("strict", "loose"):
        for semantics in ("published", "repaired"):
            assert not verify(built, response, mode, semantics)


@pytest.mark.parametrize(
    "response",
    ["Sure, here:\nno more", "no more\nBye, all", "Hi,\nno more\nBye,", "**no** more"],
)
def test_loose_forgives_first_and_last_line(response):
    no_comma = Constraint("punctuation:no_comma")
    assert verify(no_comma, response, "loose")
    assert verify(no_comma, response, "strict") is ("," not in response)


def test_loose_stops_at_the_first_passing_variant(monkeypatch):
    seen = []
    spec = REGISTRY["punctuation:no_comma"]
    monkeypatch.setitem(
        REGISTRY,
        spec.id,
        registry.replace(spec, checker=lambda text: seen.append(text.raw) or "," not in text.raw),
    )
    assert verify(Constraint(spec.id), "a,\nb\nc", "loose")
    assert seen == ["a,\nb\nc", "b\nc"]


def test_verify_all_gives_one_verdict_per_constraint_in_order():
    same = Constraint("punctuation:no_comma")
    other = Constraint("punctuation:punctuation_dot")
    assert verify_all([same, other, same], "a, b") == [False, True, False]
    assert verify_all([], "a") == []


def test_an_exception_is_not_followed_and_says_why():
    built = Constraint("keywords:existence", {"keywords": ["("]})
    for mode in ("strict", "loose"):
        verdict = check(built, "some (text", mode)
        assert not verdict.passed
        assert "keywords:existence" in verdict.error and "unterminated" in verdict.error
    assert check(Constraint("keywords:existence", {"keywords": ["a"]}), "b").error is None


@pytest.mark.parametrize("keyword", ["(a+)+$", "(a|a)*$", "a*a*a*a*a*a*a*b", "(a?){40}a{40}"])
def test_a_hostile_keyword_ends_and_is_reported(keyword):
    built = Constraint("keywords:word_once", {"keyword": keyword})
    verdict = check(built, "a" * 20_000 + "!")  # without a limit it would take years
    assert not verdict.passed
    assert verdict.error is None or "PatternTimeout" in verdict.error


@pytest.mark.parametrize(
    ("keyword", "response", "passed"),
    [
        ("a.b", "axb", True),
        ("art", "start", True),
        ("What?", "Wha", True),
        ("C++", "ccc", True),  # A possessive repeat: one match.
        ("[ab]+c", "xabac", True),
        ("(ab)+", "ababab", True),
        (r"\bart\b", "start", False),
    ],
)
def test_keywords_act_as_patterns_in_published_semantics(keyword, response, passed):
    assert verify(Constraint("keywords:word_once", {"keyword": keyword}), response) is passed


@pytest.mark.parametrize("raw", ["tea", "a.b", "(ab)+", "a*b", "(?:x|y)z?", r"\d{2,3}", "x{2,}"])
def test_both_engines_give_the_same_matches(raw, monkeypatch):
    text = "tea axb ababab aab xz y 12 345 6789 xxx Tea " * 3
    text = Text(text)
    standard = [m.span() for m in patterns.matches("", raw, "", text, 0)]
    monkeypatch.setattr(patterns, "_STEP_BUDGET_BITS", -1.0)
    assert [m.span() for m in patterns.matches("", raw, "", text, 0)] == standard
    assert standard


def test_fold_makes_equal_what_a_pattern_takes_for_equal():
    """All characters with a case, and that the others match themselves alone."""
    letters = [c for c in map(chr, range(0x110000)) if c != c.swapcase() or c != c.casefold()]
    joined = "".join(letters)
    for letter in letters:
        for match in re.findall(re.escape(letter), joined, re.IGNORECASE):
            assert fold(match) == fold(letter), (letter, match)
    others = "".join(map(chr, range(0xD800))).translate(dict.fromkeys(map(ord, letters)))
    assert not re.search(f"[{re.escape(joined)}]", others, re.IGNORECASE)


keyword_scraps = st.lists(
    st.sampled_from([*"aAsSkKßſKİıiIéÉ好_1' ", "ss", "\u0345", "ι", "μµ"]), max_size=6
).map("".join)


@settings(max_examples=300, deadline=None)
@example("ι", "a\u0345a")
@given(keyword_scraps, st.lists(keyword_scraps, max_size=6).map(" ".join))
def test_keywords_are_found_as_the_plain_patterns_find_them(word, raw):
    text = Text(raw)
    for search, pattern in (
        (patterns.found, word),
        (patterns.count, word),
        (patterns.found_word, rf"\b{word}\b"),
        (patterns.found_literal, rf"(?<!\w){re.escape(word)}(?!\w)"),
    ):
        expected = len(re.findall(pattern, raw, re.IGNORECASE))
        assert search(word, text) == (expected if search is patterns.count else expected > 0)


def test_a_response_that_is_no_text_is_refused():
    with pytest.raises(TypeError, match="None"):
        verify(Constraint("punctuation:no_comma"), None)


def test_wrong_mode_and_semantics_are_refused():
    no_comma = Constraint("punctuation:no_comma")
    with pytest.raises(ValueError, match="mode"):
        verify(no_comma, "a", "lose")
    with pytest.raises(ValueError, match="semantics"):
        verify(no_comma, "a", semantics="fixed")


# --- properties --------------------------------------------------------------------------------
PIECES = ["*", "**", "***", "******", "-", "[", "]", "<<", ">>", '"', "'", ".", "!", "?", ",", "\n"]
PIECES += [
    "\n\n",
    " ",
    "\r",
    "\u00a0",
    "tea",
    "Tea.",
    "A",
    "1",
    "é",
    "你好",
    "😀",
    "P.S.",
    "Section 1",
]
responses = st.one_of(
    st.text(max_size=60), st.lists(st.sampled_from(PIECES), max_size=25).map("".join)
)


@settings(max_examples=60, deadline=None)
@given(response=responses)
def test_any_text_gives_a_verdict_and_loose_is_never_below_strict(response):
    for id in IDS:
        built = example_constraint(id)
        for semantics in ("published", "repaired"):
            strict = check(built, response, "strict", semantics)
            loose = check(built, response, "loose", semantics)
            assert strict.error is None and loose.error is None
            assert loose.passed or not strict.passed


@pytest.mark.parametrize(
    ("response", "bullets"),
    [
        ("*\nfoo", 1),
        ("*\n\n* b", 2),
        ("*\n* b", 1),
        ("* a\n**b**\n- c", 2),
        ("---", 1),
        ("*", 0),
        ("\n \n  * a", 1),
        ("-5", 1),
        ("x * a", 0),
        ("**", 0),
    ],
)
def test_bullets_as_the_published_patterns_count_them(response, bullets):
    """Expected: matches of ^\\s*\\*[^\\*].*$ and ^\\s*-.*$, read off by hand."""
    built = Constraint("detectable_format:number_bullet_lists", {"num_bullets": bullets})
    assert verify(built, response)


# --- repairs -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("id", "kwargs", "response", "published", "repaired"),
    [
        ("keywords:existence", {"keywords": ["art"]}, "A start.", True, False),
        ("keywords:existence", {"keywords": ["C++"]}, "I like vitamin c.", True, False),
        ("keywords:forbidden_words", {"forbidden_words": ["$5"]}, "It costs $5.", True, False),
        (
            "keywords:frequency",
            {"keyword": "art", "frequency": 1, "relation": "less than"},
            "start",
            False,
            True,
        ),
        ("keywords:word_once", {"keyword": "a.b"}, "axb", True, False),
        ("language:response_language", {"language": "en"}, "12345 !!!", True, False),
        (
            "length_constraints:nth_paragraph_first_word",
            {"num_paragraphs": 2, "nth_paragraph": 1, "first_word": "hello"},
            "\n\nHello there\n\nBye",
            False,
            True,
        ),
        (
            "length_constraints:nth_paragraph_first_word",
            {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "bye"},
            "Hello there\n\n\n\nBye",
            False,
            True,
        ),
        (
            "detectable_content:postscript",
            {"postscript_marker": "P.S."},
            "I say P.S. here.",
            True,
            False,
        ),
        ("detectable_format:number_bullet_lists", {"num_bullets": 1}, "* a\n---", False, True),
        ("detectable_format:constrained_response", {}, "Not My answer is yes. or so", True, False),
        (
            "detectable_format:number_highlighted_sections",
            {"num_highlights": 1},
            "2 * 3 * 4",
            True,
            False,
        ),
        (
            "detectable_format:multiple_sections",
            {"section_spliter": "Section", "num_sections": 1},
            "See Section 1 there.",
            True,
            False,
        ),
        (
            "combination:repeat_prompt",
            {"prompt_to_repeat": "Name a tree."},
            "Name a tree.",
            True,
            False,
        ),
        ("punctuation:no_comma", {}, "你好，朋友", True, False),
        ("keywords:exclude_word_harder", {"keyword": "Music"}, "Music, is", True, False),
        ("keywords:palindrome", {}, "I see", True, False),
        ("keywords:palindrome", {}, "Level!", False, True),
        ("letters:letter_counting", {"N": 3, "relation": "at most"}, "Tea!", False, True),
        ("letters:letter_counting", {"N": 3, "relation": "at most"}, "Teas", False, False),
        ("keywords:start_end", {}, "Tea is tea.", False, False),
        ("keywords:start_end", {}, '"Tea" is tea', False, True),
        ("keywords:start_end", {}, "Don't say what I do", True, False),
        ("detectable_format:number_bullet_lists", {"num_bullets": 1}, "* **Tea**: hot", True, True),
        ("detectable_format:number_bullet_lists", {"num_bullets": 1}, "- a\n* * *", False, True),
        (
            "copy:repeat_phrase",
            {"phrase": "the fox runs", "small_n": 1},
            "the fox runs, the cat runs",
            False,
            False,
        ),
        (
            "keywords:keyword_specific_position",
            {"keyword": "tea", "n": 1, "m": 3},
            "Don't drink tea.",
            False,
            True,
        ),
        ("detectable_format:sentence_hyphens", {}, "Sit down.-Have tea.-", True, False),
        ("detectable_format:bigram_wrapping", {}, "alone", True, False),
        ("paragraphs:paragraphs2", {}, "a\n\n\n\nb", False, True),
        ("first_word:first_word_answer", {"first_word": "hello"}, "Hello, world", False, True),
        ("first_word:first_word_sent", {"first_word": "tea"}, "Tea, I say. Tea!", False, True),
        ("last_word:last_word_answer", {"last_word": "end"}, "the end !", False, True),
        ("last_word:last_word_sent", {"last_word": "end"}, "the end?!", False, True),
        ("count:count_unique", {}, "Drink tea, eat cake, sleep", False, True),
        (
            "count:counting_composition",
            {"n_sent": 1, "n_words": 2},
            "A b.\n***\nC d.\n***\nE f.",
            False,
            True,
        ),
        (
            "keywords:keyword_specific_position",
            {"keyword": "target", "n": 1, "m": 3},
            "alpha, beta Target gamma.",
            False,
            True,
        ),
        ("punctuation:punctuation_exclamation", {}, "好！", True, False),
        (
            "copy:repeat_phrase",
            {"phrase": "the fox runs", "small_n": 1},
            "Bathe cat runs",
            True,
            False,
        ),
        ("keywords:no_adjacent_consecutive", {}, "1 2", False, True),
        (
            "new:copy_span_idx",
            {"prompt_to_repeat": "Name a tree.", "n_start": 5, "n_end": 9},
            "a tre",
            False,
            True,
        ),
        ("count:count_increment_word", {"keyword1": "a", "keyword2": "b"}, "a bb", True, False),
    ],
)
def test_published_and_repaired_verdicts(id, kwargs, response, published, repaired):
    built = Constraint(id, kwargs)
    assert verify(built, response) is published
    assert verify(built, response, semantics="repaired") is repaired


def test_unusual_letter_is_counted_as_it_is():
    kwargs = {"letter": "#", "let_frequency": 4, "let_relation": "at least"}
    for id in ("keywords:letter_frequency", "letters:letter_counting2"):
        assert verify(Constraint(id, kwargs), "####")
        assert not verify(Constraint(id, kwargs), "###")


@pytest.mark.parametrize("id", ["keywords:letter_frequency", "letters:letter_counting2"])
@pytest.mark.parametrize("letter", ["ab", "e e", " ", "\u0130"])  # the last in lower case is two
def test_a_letter_is_one_character(id, letter):
    kwargs = {"letter": letter, "let_frequency": 1, "let_relation": "at least"}
    with pytest.raises(ConstraintError, match=rf"{id}: parameter 'letter' = .* a single character"):
        Constraint(id, kwargs)
    assert verify(Constraint(id, kwargs | {"letter": " E "}), "Tea")


# --- reasoning and reward ----------------------------------------------------------------------
@pytest.mark.parametrize(
    ("prediction", "answer"),
    [
        ("<think>a, b</think>No comma here", "No comma here"),
        ("reasoning</think>answer", "answer"),
        ("<think>never closed", ""),
        ("<think>a</think>b<think>c</think> d ", "d"),
        ("<|assistant|>\n<answer>x</answer>", "x"),
        ("plain", "plain"),
        ("<think>a</think><think>b", ""),
        ("", ""),
    ],
)
def test_strip_reasoning(prediction, answer):
    assert strip_reasoning(prediction) == answer


def test_unterminated_reasoning_can_be_kept():
    assert strip_reasoning("<think>open", unterminated="keep") == "<think>open"
    with pytest.raises(ValueError, match="unterminated"):
        strip_reasoning("x", unterminated="drop")


def test_fraction_followed():
    constraints = [
        Constraint("punctuation:no_comma"),
        Constraint("punctuation:punctuation_dot"),
        Constraint("punctuation:punctuation_exclamation"),
        Constraint("startend:quotation"),
    ]
    assert fraction_followed(constraints, "<think>a, b.</think>Yes, sir") == pytest.approx(2 / 4)
    assert fraction_followed(constraints, "<think>a</think>  ") == 0.0
    assert fraction_followed([], "Yes") == 0.0
    # Published: an unclosed <think> is judged as text. Strict: no loose variants.
    assert fraction_followed(constraints[:1], "<think>open") == 1.0
    assert fraction_followed(constraints[:1], "<think>open", unterminated="empty") == 0.0
    assert fraction_followed(constraints[:1], "Sure, yes:\nfine") == 0.0


# --- imports, threads --------------------------------------------------------------------------
def run_python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_is_light():
    heavy = {"nltk", "torch", "transformers", "langdetect", "punkt", "emoji", "syllapy", "regex"}
    loaded = run_python("import sys, califkit.verifiers; print(*sys.modules)").split()
    assert heavy.isdisjoint(loaded)


def test_sixteen_threads_at_once_in_a_fresh_process():
    """The first detections and tokenisations race; verdicts are those of a single thread."""
    texts = {
        "en": "The quick brown fox jumps over the lazy dog and runs away.",
        "de": "Heute ist ein schöner Tag, und wir gehen in den Garten.",
        "fr": "Aujourd'hui, il fait beau et nous allons au jardin.",
    }
    out = run_python(
        f"""
        import json, threading
        from califkit.verifiers import Constraint, check
        texts = {texts!r}
        barrier, results = threading.Barrier(16), [None] * 16
        def work(i):
            barrier.wait()
            out = []
            for language in texts:
                c = Constraint("language:response_language", {{"language": language}})
                w = Constraint("count:count_unique")
                s = Constraint("length_constraints:number_sentences",
                               {{"num_sentences": 2, "relation": "less than"}})
                for text in texts.values():
                    verdicts = [check(c, text), check(w, text), check(s, text)]
                    out += [[v.passed, v.error] for v in verdicts]
            results[i] = out
        threads = [threading.Thread(target=work, args=(i,)) for i in range(16)]
        [t.start() for t in threads]; [t.join() for t in threads]
        print(json.dumps(results))
        """
    )
    results = json.loads(out)
    expected = []
    for language in texts:
        for other in texts:
            # All three are single sentences; "the" comes twice, as "The" and "the": no repeats.
            expected += [[language == other, None], [True, None], [True, None]]
    assert results == [expected] * 16
