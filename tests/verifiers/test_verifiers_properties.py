"""What holds for all 112 ids: verdicts on any text, from any state, thread or process; time."""

import copy
import importlib.util
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from califkit import verifiers
from califkit.verifiers import Constraint, ConstraintError, check, registry
from califkit.verifiers.registry import REGISTRY

ROOT = Path(__file__).resolve().parents[2]
NLTK_DATA = ROOT.parent / "shared" / "nltk_data"
SEMANTICS = ("published", "repaired")
MODES = ("strict", "loose")

pieces = st.sampled_from(
    [
        *("*", "***", "******", "-", "[", "]", "<<", ">>", '"', "'", ".", "!", "?", ",", ";", ":"),
        *("\n", "\n\n", " ", "\t", "\r", "\u00a0", "A", "1", "é", "İ", "你好", "😀", "P.S."),
        *("tea", "Tea.", "Section 1", "Question 1", "<i>", "</i>", "{", "}", "the quick "),
        *("1805-12-02", "ID,Country", "Zimbabwe", "it's ", "cannot ", "```", "My answer is yes."),
    ]
)
texts = st.text(max_size=60) | st.lists(pieces, max_size=25).map("".join)


# The tagger is there in every test of this module, or in none.
pytestmark = pytest.mark.usefixtures("tagger_path")


def load_benchmark():
    path = ROOT / "benchmarks" / "verifiers_hostile.py"
    spec = importlib.util.spec_from_file_location("verifiers_hostile", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def constraints() -> list[Constraint]:
    """Every id with the arguments of its example; `words:start_verb` only where its data is."""
    built = []
    for id, entry in REGISTRY.items():
        try:
            built.append(Constraint(id, entry.example.kwargs))
        except ConstraintError:
            assert id == "words:start_verb"
    return built


def verdicts(text: str) -> list[tuple]:
    return [
        (c.id, mode, semantics, check(c, text, mode, semantics).passed)
        for c in constraints()
        for mode in MODES
        for semantics in SEMANTICS
    ]


def forget_everything() -> None:
    """Empty every memo of the package."""
    for name, module in list(sys.modules.items()):
        if name.startswith("califkit.verifiers"):
            for value in vars(module).values():
                if hasattr(value, "cache_clear") and value.__module__.startswith("califkit"):
                    value.cache_clear()
    verifiers._analyse.cache_clear()


def test_all_ids_are_here():
    assert len(REGISTRY) == 112 and len(constraints()) >= 111


@settings(max_examples=25, deadline=None)
@given(texts, texts)
def test_verdicts_do_not_depend_on_what_was_verified_before(text, other):
    forget_everything()
    fresh = verdicts(text)
    verdicts(other)
    verdicts(text + other)
    assert verdicts(text) == fresh


@settings(max_examples=25, deadline=None)
@given(texts)
def test_floats_equal_ints_and_kwargs_stay_as_they_are(text):
    for constraint in constraints():
        kwargs = dict(REGISTRY[constraint.id].example.kwargs)
        floats = {k: float(v) if type(v) is int else v for k, v in kwargs.items()}
        given_kwargs = copy.deepcopy(floats)
        as_floats = Constraint(constraint.id, floats)
        for mode in MODES:
            assert check(as_floats, text, mode) == check(constraint, text, mode), constraint.id
        assert floats == given_kwargs
        assert as_floats.kwargs == constraint.kwargs
        assert dict(REGISTRY[constraint.id].example.kwargs) == kwargs


TEXTS = [
    "Tea is tea. Milk isn't! Is it?\n\n* one\n* two\n\nP.S. Done.",
    "Heute ist ein schöner Tag, und wir gehen in den Garten.",
    "the quick brown fox, the quick slow fox.\n***\nU.S. He left. 3.50 [x] <<y>>",
    '你好，世界。😀 Section 1 "a \'b "c" b\' a"',
    '{"a": [1, 2]}',
]


def test_threads_agree():
    expected = [verdicts(text) for text in TEXTS]
    forget_everything()
    results: list = [None] * 16
    barrier = threading.Barrier(16)

    def work(i: int) -> None:
        barrier.wait()
        order = TEXTS[i % len(TEXTS) :] + TEXTS[: i % len(TEXTS)]
        by_text = {text: verdicts(text) for text in order}
        results[i] = [by_text[text] for text in TEXTS]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(result == expected for result in results)


def test_another_process_agrees():
    """Another hash seed and an empty history."""
    code = (
        "import json, sys; sys.path.insert(0, 'tests/verifiers')\n"
        "from test_verifiers_properties import TEXTS, verdicts\n"
        "print(json.dumps([verdicts(text) for text in TEXTS]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"NLTK_DATA": str(NLTK_DATA)},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[list(v) for v in verdicts(text)] for text in TEXTS]


# --- parameters --------------------------------------------------------------------------------
def test_a_number_too_large_for_a_float_is_refused_by_name():
    with pytest.raises(ConstraintError, match="'percentage'.*too large"):
        Constraint("ratio:stop_words", {"percentage": 10**400})
    huge = Constraint(
        "length_constraints:number_words", {"num_words": 10**400, "relation": "less than"}
    )
    assert check(huge, "few words").passed


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_count_that_is_no_number_is_refused(value):
    with pytest.raises(ConstraintError, match="'num_words'"):
        Constraint("length_constraints:number_words", {"num_words": value, "relation": "at least"})


def test_an_instruction_can_be_read_without_the_data_of_the_check(monkeypatch):
    import nltk

    from califkit.verifiers import tagger

    monkeypatch.setattr(nltk.data, "path", [])
    tagger.require.cache_clear()
    assert "verb" in registry.spec("words:start_verb").instruct({})
    with pytest.raises(ConstraintError, match="averaged_perceptron_tagger_eng"):
        Constraint("words:start_verb")


# --- hostile texts -----------------------------------------------------------------------------
def test_the_analysis_of_a_long_response_is_not_kept():
    forget_everything()
    check(constraints()[0], "One two. " * 100_000, "loose")
    assert verifiers._analyse.cache_info().currsize == 0


@pytest.mark.slow
@pytest.mark.parametrize("semantics", SEMANTICS)
def test_hostile_texts_raise_nothing(semantics):
    """All patterns of the benchmark, which measures the speed; here only the verdicts count."""
    benchmark = load_benchmark()
    wrong = []
    for name in benchmark.PATTERNS:
        text = benchmark.hostile_text(name, 100_000)
        for constraint in constraints():
            error = check(constraint, text, "strict", semantics).error
            if error and not constraint.id.startswith("custom:csv_"):  # csv may refuse a text
                wrong.append((constraint.id, name, error))
    assert wrong == []
