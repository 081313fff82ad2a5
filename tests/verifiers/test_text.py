"""Text rules: words, sentences, tokens, language, loose variants."""

import functools
import random
import re
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from califkit.verifiers import text as rules
from califkit.verifiers.text import (
    Text,
    depunct,
    loose_variants,
    lps_strip,
    ps_strip,
    punkt_sentences,
    rps_strip,
    rule_sentences,
    word_tokens,
)


def test_ps_strip_takes_ascii_punctuation_and_the_plain_space_only():
    assert ps_strip('  "(tea)!" ') == "tea"
    assert lps_strip("--tea--") == "tea--"
    assert rps_strip("--tea--") == "--tea"
    assert ps_strip("\ttea\n") == "\ttea\n"
    assert ps_strip("“tea”") == "“tea”"


def test_depunct_puts_nothing_in_place():
    assert depunct("well-known 3.14!") == "wellknown 314"


@pytest.mark.parametrize(
    ("raw", "n"),
    [("don't", 2), ("well-known", 2), ("3.14", 2), ("你好吗", 1), ("a_b", 1), ("", 0), ("x²", 1)],
)
def test_words_are_runs_of_the_standard_w(raw, n):
    assert len(Text(raw).words) == n


def test_ws_tokens_split_at_unicode_blanks_but_not_at_zero_width_ones():
    assert Text("a\u00a0b\u3000c\u200bd").ws_tokens == ["a", "b", "c\u200bd"]


def test_lines_split_at_newline_only():
    assert Text("a\r\nb\u2028c").lines == ["a\r", "b\u2028c"]


@pytest.mark.parametrize(
    ("raw", "sentences"),
    [
        ("Mr. Smith left. He ran.", ["Mr. Smith left.", "He ran."]),
        ("One line\nand another", ["One line\nand another"]),
        ("Wait! Why? Go on.", ["Wait!", "Why?", "Go on."]),
        ('He said "Go." Then he left.', ['He said "Go."', "Then he left."]),
        (" \n\t", []),
    ],
)
def test_punkt_sentences(raw, sentences):
    assert punkt_sentences(raw) == sentences


@pytest.mark.parametrize(
    ("raw", "tokens"),
    [
        ("It's easy.", ["It", "'s", "easy", "."]),
        ("I can't, cannot.", ["I", "ca", "n't", ",", "can", "not", "."]),
        ('"Yes"', ["``", "Yes", "''"]),
        ("Made in the U.S. by us.", ["Made", "in", "the", "U.S.", "by", "us", "."]),
        ("Wait... what -- 5%?", ["Wait", "...", "what", "--", "5", "%", "?"]),
        (
            "cannot, well-known. Gimme 1,000",
            ["can", "not", ",", "well-known", ".", "Gim", "me", "1,000"],
        ),
        # The opening single quote stays on its word unless the word is one letter (NLTK 3.9).
        ("the 'clean' one", ["the", "'clean", "'", "one"]),
    ],
)
def test_word_tokens(raw, tokens):
    assert word_tokens(raw) == tokens
    assert Text(raw).tokens == tokens


# NLTK's own tokenizers are the reference here, on the tables and the patterns of 3.9.2.
SCRAPS = """tea Tea A 1 é 你好 _x cannot Wanna gonna CANNOT it's IT'S can't we'll 'tis 'Twas d'ye
more'n n't 's U.S. Mr. e.g. etc. no. J. p.s. i.e Inc. said. end! what? ok, ok: x--y well-known 2,000
3.14 1. -5. 10% $5 " ' '' `` ` “ ” ‘ ’ « » „ ( ) [ ] { } << >> * ** - -- — … ... .. . ! ? ?! , : ;
( '( '"hi" ½ 😀 हिन्दी ſ""".split()
BLANKS = [" ", "  ", "\n", "\n\n", "\t", "\r", "\x0b", "\x1c", "\x85", "\u00a0", "\u2028"]
scraps = st.sampled_from(SCRAPS + BLANKS)
messy_texts = st.one_of(
    st.lists(scraps, max_size=20).map("".join),
    st.lists(scraps, max_size=15).map(" ".join),
    st.text(max_size=40),
)


def std(pattern):
    """The pattern on the standard `re`, as NLTK 3.9.2 has it."""
    flags = re.IGNORECASE | re.MULTILINE | re.DOTALL | re.VERBOSE
    return re.compile(pattern.pattern, pattern.flags & flags)


@functools.cache
def nltk_sentences():
    import punkt
    from nltk.tokenize.punkt import (
        PunktLanguageVars,
        PunktParameters,
        PunktSentenceTokenizer,
        PunktToken,
    )

    class Token(PunktToken):
        _RE_ELLIPSIS = std(PunktToken._RE_ELLIPSIS)
        _RE_NUMERIC = std(PunktToken._RE_NUMERIC)
        _RE_INITIAL = std(PunktToken._RE_INITIAL)
        _RE_ALPHA = std(PunktToken._RE_ALPHA)

    class LanguageVars(PunktLanguageVars):
        _re_non_word_chars = r"(?:[)\";}\]\*:@\'\({\[!?])"
        re_boundary_realignment = re.compile(r'["\')\]}]+?(?:\s+|(?=--)|$)', re.MULTILINE)

    tables, params = punkt.load_model("english"), PunktParameters()
    params.abbrev_types = set(tables.abbrev_types)
    params.collocations = set(map(tuple, tables.collocations))
    params.sent_starters = set(tables.sent_starters)
    params.ortho_context.update(tables.ortho_context)
    language = LanguageVars()
    language._re_word_tokenizer = std(language._word_tokenizer_re())
    language._re_period_context = std(language.period_context_re())
    return PunktSentenceTokenizer(params, lang_vars=language, token_cls=Token).tokenize


@functools.cache
def nltk_tokens():
    from nltk.tokenize.destructive import NLTKWordTokenizer

    class Tokenizer(NLTKWordTokenizer):
        STARTING_QUOTES = [
            *((std(p), s) for p, s in NLTKWordTokenizer.STARTING_QUOTES[:-1]),
            (re.compile(r"(?i)(\')(?!re|ve|ll|m|t|s|d|n)(\w)\b"), r"\1 \2"),
        ]
        PUNCTUATION = [(std(p), s) for p, s in NLTKWordTokenizer.PUNCTUATION]
        ENDING_QUOTES = [(std(p), s) for p, s in NLTKWordTokenizer.ENDING_QUOTES]

    return Tokenizer().tokenize


@settings(max_examples=400, deadline=None)
@given(messy_texts)
def test_sentences_and_tokens_are_those_of_nltk(raw):
    from califkit.verifiers import english

    sentences = nltk_sentences()(raw)
    assert punkt_sentences(raw) == sentences
    for s in [*sentences, raw]:
        assert english.sentence_tokens(s) == nltk_tokens()(s), s


@pytest.mark.parametrize(
    "raw",
    [
        "!?! a b. \n\t!?! C",  # an end mark behind a blank stands for itself
        ".*End! x",
        "P.S.\u2028Mr. x",  # a blank for one pattern, part of the word for the other
        '"No." He said "(yes.) Maybe!"--or not.',
        "x." + '."' * 300 + " Y.",
        "std::vector ,: x :: y",
        '"Hi" she said.\n"Bye" \'tis "done."',
        "e.g.\u2028",
        "Ends in closers.) ' \" )",
        "word " * 200 + "end.",
    ],
)
def test_sentences_and_tokens_of_odd_texts_are_those_of_nltk(raw):
    sentences = nltk_sentences()(raw)
    assert punkt_sentences(raw) == sentences
    assert word_tokens(raw) == [t for s in sentences for t in nltk_tokens()(s)]


def test_sentences_of_the_words_in_the_tables_are_those_of_nltk():
    """Abbreviations, collocations, sentence starters, initials and numbers, in any case."""
    import punkt

    tables, rng = punkt.load_model("english"), random.Random(0)
    abbreviations, starters = sorted(tables.abbrev_types), sorted(tables.sent_starters)
    pairs, known = sorted(tables.collocations), sorted(tables.ortho_context)

    def scrap() -> str:
        first, second = rng.choice(pairs)
        word = rng.choice(
            [
                rng.choice(abbreviations) + rng.choice([".", ".", ".,", "..", "...", "?"]),
                f"{first}. {second}",
                rng.choice(starters),
                rng.choice(known) + rng.choice(["", ".", "!"]),
                rng.choice("abxé好") + rng.choice([".", ""]),
                str(rng.randint(0, 3000)) + rng.choice([".", ".5", ",", "-7."]),
                rng.choice(["...", "?!", '"', ")", "(", ". . .", "e.g.", "u.s.", "a-mr."]),
            ]
        ).replace("##number##", "17")
        cased = rng.choice([word, word.capitalize(), word.upper()])
        return cased + rng.choice([" ", " ", " ", "\n", ""])

    for _ in range(3000):
        raw = "".join(scrap() for _ in range(rng.randint(2, 12)))
        assert punkt_sentences(raw) == nltk_sentences()(raw), raw


@pytest.mark.parametrize("raw", ["One. Two! Three?", "", "no end", "a. b. c. d. e. f. g. h."])
def test_one_by_one_gives_the_same_as_all_at_once(raw):
    assert list(Text(raw).iter_sentences()) == Text(raw).sentences
    assert list(Text(raw).iter_tokens()) == Text(raw).tokens
    outer, whole = Text(raw).outer_tokens(2), Text(raw).tokens
    assert (outer[:2], outer[-2:]) == (whole[:2], whole[-2:])


@settings(deadline=None)
@given(st.text(max_size=40) | st.text(st.characters(codec="ascii"), max_size=40))
def test_words_are_the_runs_of_word_characters(raw):
    assert Text(raw).words == re.findall(r"\w+", raw)


@settings(deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                "abc.",
                "She. ",
                "A.",
                "U.S.",
                " ",
                ".",
                "?",
                "!",
                '"',
                "x",
                "<stop>",
                "Inc.",
                "He ",
                "3.5",
                ".com",
                "\n",
                "ends. Mr.",
                "<prd>",
            ]
        ),
        max_size=14,
    ).map("".join)
)
def test_rule_sentences_do_not_depend_on_the_cut_at_plain_periods(raw):
    """The rules on the whole text, and on the pieces that the splitter cuts first."""
    whole = rules._cut(" " + raw.replace("\n", " ") + "  ")
    assert rule_sentences(raw) == (whole if whole[-1] else whole[:-1])


@pytest.mark.parametrize(
    ("raw", "sentences"),
    [
        ("Wait?!", ["Wait?", "!"]),
        ("Dr. Who met Mr. X. They ran.", ["Dr. Who met Mr. X. They ran."]),
        ("See example.com today. Good.", ["See example.com today.", "Good."]),
        ("Pay 3.50 now. Then go", ["Pay 3.50 now.", "Then go"]),
        ("Well... no.", ["Well...", "no."]),
        ("A Ph.D. is long. Yes.", ["A Ph.D. is long.", "Yes."]),
        ('She said "Go." He went.', ['She said "Go".', "He went."]),
        ("The U.S. He left.", ["The U.S.", "He left."]),
        ("Tea Inc. He left.", ["Tea Inc", "He left."]),
        ("a<stop>b<prd>", ["a", "b."]),
        ("... . x", ["...", ".", "x"]),
        ("no end", ["no end"]),
        (" \n ", []),
    ],
)
def test_rule_sentences(raw, sentences):
    assert rule_sentences(raw) == sentences


def test_loose_variants_in_order_without_blanks_and_copies():
    assert loose_variants("one") == ["one"]
    assert loose_variants("a\n*b*\nc") == [
        "a\n*b*\nc",
        "a\nb\nc",
        "*b*\nc",
        "a\n*b*",
        "*b*",
        "b\nc",
        "a\nb",
        "b",
    ]
    assert loose_variants(" \n ") == []
    assert loose_variants(" x ") == [" x "]  # The first two variants are not stripped.


def test_language_is_the_same_on_every_call_and_after_other_texts():
    short = "Hello world"
    first = Text(short).language
    for other in ("Guten Morgen", "12345 !!!", "こんにちは", short) * 5:
        _ = Text(other).language
        assert Text(short).language == first


def test_language_of_clear_cases():
    assert Text("Heute ist ein schöner Tag, und wir gehen in den Garten.").language == "de"
    assert Text("12345 !!!").language is None


@functools.cache
def langdetect_factory():
    from langdetect.detector_factory import PROFILES_DIRECTORY, DetectorFactory

    factory = DetectorFactory()
    factory.load_profile(PROFILES_DIRECTORY)
    factory.set_seed(0)
    return factory


def langdetect_answer(text: str) -> str | None:
    """The answer of the package's own detector with seed 0."""
    from langdetect.lang_detect_exception import LangDetectException

    detector = langdetect_factory().create()
    detector.append(text)
    try:
        return detector.detect()
    except LangDetectException:
        return None


ENGLISH = "The garden is full of flowers and trees. "
GERMAN = "Der Garten ist voller Blumen und Bäume. "
URLS = "http://example.org/" + "a" * 2000 + " a@b.example "


@pytest.mark.parametrize(
    "raw",
    [
        "",
        "x",
        "ok",
        "12345 !!!",
        "ALL CAPITAL LETTERS HERE",
        "NASA and the UN met in Rome",
        "Hello world",
        "no si ja da",
        "你好，世界。今天天气很好 and some English",
        "こんにちは世界",
        "Tiếng Việt có dấu và nguye\u0302\u0303n",
        "Привет, как дела?",
        "see http://example.org/x and mail me@example.org   now",
        "مرحبا بالعالم",
        "a\u00a0b\u2003c  d",
        "안녕하세요 세계",
        "x" * 500,
        ENGLISH * 400 + GERMAN * 3000,
        URLS * 60 + GERMAN * 300,
        ENGLISH + GERMAN,
    ],
)
def test_language_is_what_langdetect_says_with_seed_0(raw):
    assert Text(raw).language == langdetect_answer(raw)


def test_each_analysis_is_computed_once(monkeypatch):
    calls = []
    monkeypatch.setattr(rules, "punkt_sentences", lambda s: calls.append(s) or [s])
    text = Text("One. Two.")
    assert text.sentences is text.sentences
    assert calls == ["One. Two."]


def test_no_text_rule_imports_nltk_or_scipy():
    """They take most of a second in every worker process."""
    code = (
        "import sys; from califkit.verifiers.text import Text; text = Text('Is it? Mr. X left.'); "
        "print(text.sentences, text.tokens[:2], text.language, {'nltk', 'scipy'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "['Is it?', 'Mr. X left.'] ['Is', 'it'] en set()\n"


def test_the_profiles_are_those_of_langdetect():
    from califkit.verifiers import language

    theirs = langdetect_factory()
    assert language._languages == sorted(theirs.langlist)
    order = [theirs.langlist.index(name) for name in language._languages]
    assert language._row_of.keys() == theirs.word_lang_prob_map.keys()
    for gram, row in language._row_of.items():
        probabilities = theirs.word_lang_prob_map[gram]
        assert language._probabilities[row].tolist() == [probabilities[i] for i in order]


@pytest.mark.parametrize("n", [1, 2, 3, 7, 64, 1000, 4096, 20_000])
def test_the_random_numbers_of_language_detection_are_those_of_the_seed(n):
    from califkit.verifiers.language import _Stream

    rng, stream = random.Random(0), _Stream()
    for draws in (51, 6, 1, 50):
        assert stream.gauss() == pytest.approx(rng.gauss(0.0, 1.0), rel=1e-14)
        chosen, positions = stream.choices(n, draws)
        assert chosen == [rng.choice(range(n)) for _ in range(draws)]
        stream.position = positions[-1]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            "the garden is full Der Garten ist voller la maison et NASA 你好 世界 "
            "Привет ok 12 ’ – ,x http://a.example/b me@example.org\n".split(" ")
        ),
        max_size=25,
    ).map(" ".join)
)
def test_language_is_what_langdetect_says(raw):
    assert Text(raw).language == langdetect_answer(raw)
