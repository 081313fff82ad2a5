"""IFBench ids of the groups ``count:``, ``ratio:``, ``words:`` and ``sentence:``.

The ids on form and repetition are in `ifbench_format`, the fixed tasks in `ifbench_custom`.
Source: allenai/IFBench 0.2.0, test set (58 ids).
"""

from __future__ import annotations

import re
import string
from collections import Counter
from functools import lru_cache, partial
from itertools import islice, pairwise
from typing import Annotated

from califkit.verifiers import patterns, registry
from califkit.verifiers.registry import AnyText, Count, Example, Param, Positive, repairs
from califkit.verifiers.text import (
    CLOSERS,
    Text,
    bare,
    bare_words,
    depunct,
    lps_strip,
    ps_strip,
    rps_strip,
    word_tokens,
)

verifier = partial(registry.verifier, suite="ifbench")

Percent = Annotated[float, Param(minimum=0)]

_CONJUNCTIONS = frozenset("and but for nor or so yet".split())
# English stop words as NLTK lists them, without the 45 entries that hold an apostrophe: the words
# compared have none.
_STOP_WORDS = frozenset(
    """i me my myself we our ours ourselves you your yours yourself yourselves he him his himself
    she her hers herself it its itself they them their theirs themselves what which who whom this
    that these those am is are was were be been being have has had having do does did doing a an
    the and but if or because as until while of at by for with about against between into through
    during before after above below to from up down in out on off over under again further then
    once here there when where why how all any both each few more most other some such no nor not
    only own same so than too very s t can will just don should now d ll m o re ve y ain aren
    couldn didn doesn hadn hasn haven isn ma mightn mustn needn shan shouldn wasn weren won
    wouldn""".split()
)
_NAMES = frozenset(
    """Emma Liam Sophia Jackson Olivia Noah Ava Lucas Isabella Mason Mia Ethan Charlotte Alexander
    Amelia Benjamin Harper Leo Zoe Daniel Chloe Samuel Lily Matthew Grace Owen Abigail Gabriel Ella
    Jacob Scarlett Nathan Victoria Elijah Layla Nicholas Audrey David Hannah Christopher Penelope
    Thomas Nora Andrew Aria Joseph Claire Ryan Stella Jonathan""".split()
)
_PRONOUNS = frozenset(
    """i me we us you he him she her it they them my mine our ours your yours his hers its their
    theirs myself ourselves yourself yourselves himself herself itself themselves this that these
    those who whom whose which what whoever whomever whatever whichever anybody anyone anything
    everybody everyone everything nobody nothing somebody someone something each either neither
    both all some any none""".split()
)
_PRIMES = frozenset(n for n in range(2, 100) if all(n % d for d in range(2, n)))
_ALPHABET = string.ascii_lowercase

_DIGITS = re.compile(r"\d+")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_ASCII_LETTER = re.compile(r"[a-z]")
_CLUSTER = re.compile(r"[bcdfghjklmnpqrstvwxyz]{2}")
_JAPANESE = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff]")


def _trigrams(items: str | list[str]) -> set:
    """The distinct runs of three neighbours of a string or list."""
    return set(zip(items, items[1:], items[2:], strict=False))


def _endings(text: Text, ignore: str = "") -> Counter[str]:
    """How many sentences end in which character, after stripping `ignore` from their end."""
    return Counter(
        sentence.rstrip(ignore)[-1:] if ignore else sentence[-1:] for sentence in text.sentences
    )


# --- count -----------------------------------------------------------------------------------
@verifier(
    "count:word_count_range",
    instruction="Answer in at least {min_words} and at most {max_words} words.",
    example=Example({"min_words": 2, "max_words": 3}, "Just three words.", "One."),
)
def word_count_range(text: Text, min_words: Count, max_words: Count) -> bool:
    return min_words <= len(text.words) <= max_words


@verifier(
    "count:unique_word_count",
    instruction="Use at least {N} different words.",
    example=Example({"N": 3}, "Red, red, green and blue.", "Red, RED and red."),
    defect="A token of pure punctuation counts once as a word (`a - b` has three).",
)
def unique_word_count(text: Text, N: Count) -> bool:
    return len({ps_strip(token) for token in text.lower.split()}) >= N


@repairs(unique_word_count, "Leaves such tokens out.", lost="Red - blue")
def unique_word_count_repaired(text: Text, N: int) -> bool:
    return len({ps_strip(token) for token in text.lower.split()} - {""}) >= N


@verifier(
    "count:conjunctions",
    instruction="Use at least {small_n} different coordinating conjunctions "
    "(and, but, for, nor, or, so, yet).",
    example=Example({"small_n": 2}, "I ran, but she sat and read.", "I ran and she sat and read."),
    defect="`and`, `And` and `and,` count as three different conjunctions.",
)
def conjunctions(text: Text, small_n: Count) -> bool:
    return len({t for t in text.ws_tokens if ps_strip(t).lower() in _CONJUNCTIONS}) >= small_n


@repairs(conjunctions, "Ignores case and punctuation.", lost="And I ran and sat.")
def conjunctions_repaired(text: Text, small_n: int) -> bool:
    return len({ps_strip(t).lower() for t in text.ws_tokens} & _CONJUNCTIONS) >= small_n


@verifier(
    "count:person_names",
    instruction="Mention at least {N} different first names from this list: "
    + ", ".join(sorted(_NAMES))
    + ".",
    example=Example({"N": 2}, "Mia met Leo.", "Mia went to Miami."),
)
def person_names(text: Text, N: Count) -> bool:
    return len(_NAMES.intersection(text.words)) >= N


@verifier(
    "count:numbers",
    instruction="Write exactly {N} numbers.",
    example=Example({"N": 2}, "Take 3.5 cups and 12 eggs.", "Take 12 eggs."),
    defect="Punctuation is deleted before counting, so `10-20` and `1/2` are one number each.",
)
def numbers(text: Text, N: Count) -> bool:
    return len(_DIGITS.findall(text.depunct)) == N


@repairs(
    numbers,
    "Joins digits over a point or comma only.",
    lost="Read 10-20 and 30-40.",
    gained="Read 10-20.",
)
def numbers_repaired(text: Text, N: int) -> bool:
    return len(_NUMBER.findall(text.raw)) == N


@verifier(
    "count:words_japanese",
    instruction="Write every word whose position is a multiple of {N} in Japanese.",
    example=Example({"N": 2}, "good 朝 my 友達", "good morning my 友達"),
    defect="A response of fewer than N words passes, although it has no Japanese word.",
)
def words_japanese(text: Text, N: Positive) -> bool:
    due = (ps_strip(token) for token in text.ws_tokens[N - 1 :: N])
    return all(not word or word.isdigit() or _JAPANESE.search(word) for word in due)


@repairs(words_japanese, "Asks for at least N words.", lost="Hello")
def words_japanese_repaired(text: Text, N: int) -> bool:
    return words_japanese(text, N) and len(text.ws_tokens) >= N


@verifier(
    "count:pronouns",
    instruction="Use at least {N} pronouns.",
    example=Example({"N": 3}, "She gave it to him.", "She gave the book away."),
)
def pronouns(text: Text, N: Count) -> bool:
    from califkit.verifiers import english

    found = 0
    for sentence in english.sentences(text.lower.replace("/", " ")):
        if found >= N:
            break
        if _ASCII_LETTER.search(sentence):  # without one there is no pronoun: skip the tokenizer
            found += sum(map(_PRONOUNS.__contains__, english.sentence_tokens(sentence)))
    return found >= N


@verifier(
    "count:punctuation",
    instruction="Use every one of these punctuation marks at least once: . , ! ? ; : and the "
    "interrobang (?! or ‽).",
    example=Example({}, "Oh; well, see: it works! Does it? Good. Really?!", "Oh, well. Does it?!"),
)
def punctuation(text: Text) -> bool:
    rest = text.raw
    if "?!" in rest:
        rest = rest.replace("?!", "", 1)
    elif "!?" in rest:
        rest = rest.replace("!?", "", 1)
    elif "‽" not in rest:
        return False
    return all(mark in rest for mark in ".,!?;:")


@verifier(
    "count:keywords_multiple",
    instruction="Use the word {keyword1} once, {keyword2} twice, {keyword3} three times, "
    "{keyword4} five times and {keyword5} seven times.",
    example=Example(
        {f"keyword{i}": word for i, word in enumerate(("ant", "bee", "cow", "dog", "elk"), 1)},
        "ant bee bee cow cow cow dog dog dog dog dog elk elk elk elk elk elk elk",
        "ant bee cow dog elk",
    ),
    defect="Keywords are counted inside longer words too (`art` in `start`).",
)
def keywords_multiple(
    text: Text,
    keyword1: AnyText,
    keyword2: AnyText,
    keyword3: AnyText,
    keyword4: AnyText,
    keyword5: AnyText,
) -> bool:
    due = zip((keyword1, keyword2, keyword3, keyword4, keyword5), (1, 2, 3, 5, 7), strict=True)
    return all(text.lower.count(word.strip().lower()) == times for word, times in due)


@repairs(
    keywords_multiple,
    "Counts whole words.",
    lost="want bee bee cow cow cow dog dog dog dog dog elk elk elk elk elk elk elk",
    gained="want ant bee bee cow cow cow dog dog dog dog dog elk elk elk elk elk elk elk",
)
def keywords_multiple_repaired(
    text: Text, keyword1: str, keyword2: str, keyword3: str, keyword4: str, keyword5: str
) -> bool:
    due = zip((keyword1, keyword2, keyword3, keyword4, keyword5), (1, 2, 3, 5, 7), strict=True)
    return all(patterns.count_literal(word.strip(), text) == times for word, times in due)


# --- ratio -----------------------------------------------------------------------------------
@verifier(
    "ratio:stop_words",
    instruction="Keep stop words (the, is, of, ...) to at most {percentage:g}% of your words.",
    example=Example({"percentage": 25}, "Bright stars shine above", "It is what it is"),
)
def stop_words(text: Text, percentage: Percent) -> bool:
    if not text.words:
        return False
    n_stop_words = sum(map(_STOP_WORDS.__contains__, map(str.lower, text.words)))
    return n_stop_words / len(text.words) * 100 <= percentage


@verifier(
    "ratio:sentence_type",
    instruction="Write exactly twice as many statements (ending in a period) as questions.",
    example=Example({}, "It rains. We stay. Why not?", "It rains. Why not?"),
    defect="A text with neither statements nor questions passes (0 = 2 x 0), and a sentence that "
    "ends in a quote counts as neither.",
)
def sentence_type(text: Text) -> bool:
    ends = _endings(text)
    return ends["."] == 2 * ends["?"]


@repairs(
    sentence_type,
    "Asks for a question and looks through closing quotes and brackets.",
    lost="Run!",
    gained='He said "no." We left. "Why?"',
)
def sentence_type_repaired(text: Text) -> bool:
    ends = _endings(text, ignore=CLOSERS)
    return ends["."] == 2 * ends["?"] > 0


@verifier(
    "ratio:sentence_balance",
    instruction="Write as many statements as questions and as exclamations.",
    example=Example({}, "It rains. Why now? Run!", "It rains. Why now?"),
    defect="A text with no period, question or exclamation mark at a sentence end passes "
    "(0 = 0 = 0), and a sentence that ends in a quote counts as none.",
)
def sentence_balance(text: Text) -> bool:
    ends = _endings(text)
    return ends["."] == ends["?"] == ends["!"]


@repairs(
    sentence_balance,
    "Asks for one of each and looks through closing quotes and brackets.",
    lost="no end",
    gained='"It rains." Why now? Run!',
)
def sentence_balance_repaired(text: Text) -> bool:
    ends = _endings(text, ignore=CLOSERS)
    return ends["."] == ends["?"] == ends["!"] > 0


@verifier(
    "ratio:overlap",
    instruction="Let {percentage:g}% (give or take 2) of the trigrams of your response occur in "
    "this text too: {reference_text}",
    example=Example(
        {"reference_text": "the cat sat on the mat", "percentage": 100},
        "the cat sat on",
        "a dog ran off",
    ),
    defect="Trigrams are runs of three characters.",
)
def overlap(text: Text, reference_text: AnyText, percentage: Percent) -> bool:
    return _overlap_is_near(_trigrams(text.raw), _reference_trigrams(reference_text), percentage)


_reference_trigrams = lru_cache(maxsize=64)(_trigrams)  # all variants of a response need them


@repairs(
    overlap,
    "Takes runs of three words.",
    lost="he cat s",
    gained="The cat sat on the mat.",
    kwargs={"reference_text": "the cat sat on the mat", "percentage": 100},
)
def overlap_repaired(text: Text, reference_text: str, percentage: float) -> bool:
    own = [word.lower() for word in text.words]
    reference = [word.lower() for word in Text(reference_text).words]
    return _overlap_is_near(_trigrams(own), _trigrams(reference), percentage)


def _overlap_is_near(own: set, reference: set, percentage: float) -> bool:
    if not own:
        return False
    share = len(own & reference) / len(own) * 100
    return percentage - 2 <= share <= percentage + 2


@verifier(
    "ratio:sentence_words",
    instruction="Answer in three sentences of the same number of characters, all their words "
    "different.",
    example=Example({}, "He sat. We ran. It hid.", "He sat. We walked. It hid."),
    defect="It is never checked that the words differ.",
)
def sentence_words(text: Text) -> bool:
    lengths = [len(sentence.strip()) for sentence in islice(text.iter_sentences(), 4)]
    return len(lengths) == 3 and len(set(lengths)) == 1


@repairs(sentence_words, "Checks it.", lost="I am. I am. I am.")
def sentence_words_repaired(text: Text) -> bool:
    words = bare_words(text.lower)
    return sentence_words(text) and len(set(words)) == len(words)


# --- words -----------------------------------------------------------------------------------
@verifier(
    "words:alphabet",
    instruction="Start each word with the letter after the first letter of the word before; "
    "A follows Z.",
    example=Example({}, "Young zebras always bounce.", "Zebras bounce always."),
)
def alphabet(text: Text) -> bool:
    words = ps_strip(text.depunct).split()
    if not words:
        return False
    # find() of a two-character lower() (İ) is -1 like that of a digit.
    start = _ALPHABET.find(words[0][0].lower())
    return start >= 0 and all(
        word.lower()[0] == _ALPHABET[(start + i) % 26] for i, word in enumerate(words) if i
    )


@verifier(
    "words:vowel",
    instruction="Write a single paragraph with at most three different vowels in it.",
    example=Example({}, "Pat ran at ten.", "Our rule is to wait."),
)
def vowel(text: Text) -> bool:
    return "\n" not in text.stripped and sum(v in text.lower for v in "aeiou") <= 3


@verifier(
    "words:consonants",
    instruction="Let every word hold two consonants in a row.",
    example=Example({}, "Bright stars glimmer", "Bright stars are"),
)
def consonants(text: Text) -> bool:
    return all(map(_CLUSTER.search, text.lower.split()))


@verifier(
    "words:palindrome",
    instruction="Use at least ten palindromes, each at least five letters long.",
    example=Example({}, "Level " * 10, "level radar civic"),
)
def palindrome(text: Text) -> bool:
    hits = (1 for w in text.depunct.lower().split() if len(w) >= 5 and w == w[::-1])
    return len(list(islice(hits, 10))) == 10


@verifier(
    "words:prime_lengths",
    instruction="Use only words whose length is a prime number.",
    example=Example({}, "An elder sat.", "Four elders sat."),
    defect="A response without any word (punctuation only) passes.",
)
def prime_lengths(text: Text) -> bool:
    return all(len(word) in _PRIMES for word in text.depunct.split())


@repairs(prime_lengths, "Asks for a word.", lost="?!")
def prime_lengths_repaired(text: Text) -> bool:
    return prime_lengths(text) and bool(text.depunct.split())


@verifier(
    "words:repeats",
    instruction="Use no word more than {small_n} times.",
    example=Example({"small_n": 1}, "Birds sing loudly.", "Sing, birds, sing!"),
)
def repeats(text: Text, small_n: Count) -> bool:
    counts = Counter(depunct(text.lower).split())
    return max(counts.values(), default=0) <= small_n


@verifier(
    "words:no_consecutive",
    instruction="Never let two neighbouring words start with the same letter.",
    example=Example({}, "Big dogs run.", "Big brown dogs run."),
)
def no_consecutive(text: Text) -> bool:
    return all(a[0] != b[0] for a, b in pairwise(depunct(text.lower).split()))


@verifier(
    "words:odd_even_syllables",
    instruction="Alternate between words with an odd and words with an even number of syllables.",
    example=Example({}, "the table", "the cat"),
)
def odd_even_syllables(text: Text) -> bool:
    import syllapy  # reads its dictionary when imported

    words = text.depunct.lower().split()
    parities = (syllapy.count(word) % 2 for word in words)
    return len(words) < 2 or all(a != b for a, b in pairwise(parities))


@verifier(
    "words:last_first",
    instruction="Begin each sentence with the last word of the sentence before.",
    example=Example({}, "I like tea. Tea is hot.", "I like tea. It is hot."),
)
def last_first(text: Text) -> bool:
    return all(_last_is_first(a, b) for a, b in pairwise(text.iter_sentences()))


def _last_is_first(sentence: str, following: str) -> bool:
    last = rps_strip(sentence).rsplit(maxsplit=1)
    first = lps_strip(following).split(maxsplit=1)
    return bool(last and first) and last[-1].lower() == first[0].lower()


@verifier(
    "words:paragraph_last_first",
    instruction="End each paragraph with the word it begins with; a line break ends a paragraph.",
    example=Example({}, "Time heals all in time.", "Time heals all."),
)
def paragraph_last_first(text: Text) -> bool:
    # lower() before the split, as published: a word's lower case can depend on its neighbours.
    paragraphs = (ps_strip(line.strip().lower()).split() for line in text.lines)
    return all(words[0] == words[-1] for words in paragraphs if words)


@verifier(
    "words:keywords_specific_position",
    instruction="Make {keyword} word number {m} of sentence number {n}.",
    example=Example(
        {"keyword": "tea", "n": 2, "m": 3}, "Hello. I like tea.", "Hello. Tea is what I like."
    ),
)
def keywords_specific_position(text: Text, keyword: str, n: Positive, m: Positive) -> bool:
    sentence = next(islice(text.iter_sentences(), n - 1, None), "")
    words = [token for token in word_tokens(sentence) if any(map(str.isalnum, token))]
    return len(words) >= m and words[m - 1].lower() == keyword.strip().lower()


@verifier(
    "words:words_position",
    instruction="Make {keyword} both the second and the second to last word of your response.",
    example=Example({"keyword": "tea"}, "Hot tea beats cold tea always.", "Hot tea is tea."),
    defect="Punctuation marks, but for one closing one, and parts of contractions count as words: "
    "`Well, tea ...` has the comma as its second word.",
)
def words_position(text: Text, keyword: AnyText) -> bool:
    tokens = text.outer_tokens(3)
    if len(tokens) < 2:
        return False
    second_last = 3 if tokens[-1] in string.punctuation else 2
    if len(tokens) < second_last:
        return False
    return tokens[1].lower() == keyword.strip().lower() == tokens[-second_last].lower()


@repairs(
    words_position,
    "Counts whole words only.",
    lost="Hot tea beats tea!!",
    gained="Hot tea beats cold tea always...",
)
def words_position_repaired(text: Text, keyword: str) -> bool:
    words = bare_words(text.lower)
    return len(words) > 1 and words[1] == bare(keyword.lower()) == words[-2]


def _tagger_data() -> None:
    from califkit.verifiers import tagger

    tagger.require()


@verifier(
    "words:start_verb",
    instruction="Begin your response with a verb.",
    example=Example({}, "Running is healthy for everyone.", "The dog runs."),
    needs=_tagger_data,
)
def start_verb(text: Text) -> bool:
    from califkit.verifiers import tagger

    return tagger.starts_with_verb(tuple(islice(text.iter_tokens(), 3)))


# --- sentence --------------------------------------------------------------------------------
@verifier(
    "sentence:alliteration_increment",
    instruction="Give each sentence a longer run of alliterating neighbours than the one before.",
    example=Example({}, "Dogs run. Big bears run.", "Big bears run. Dogs run."),
)
def alliteration_increment(text: Text) -> bool:
    return all(a < b for a, b in pairwise(map(_alliteration, text.iter_sentences())))


def _alliteration(sentence: str) -> int:
    """Alliterating words: a run of k words that share their first character counts k."""
    firsts = [word[0] for word in map(lps_strip, sentence.lower().split()) if word]
    count, matched = 0, False
    for a, b in pairwise(firsts):
        count += (1 if matched else 2) if a == b else 0
        matched = a == b
    return count


@verifier(
    "sentence:increment",
    instruction="Give each sentence exactly {small_n} more words than the sentence before.",
    example=Example({"small_n": 1}, "I ran. I ran home.", "I ran. I ran home today."),
)
def increment(text: Text, small_n: Count) -> bool:
    lengths = (len(depunct(sentence).split()) for sentence in text.iter_sentences())
    return all(b - a == small_n for a, b in pairwise(lengths))


@verifier(
    "sentence:keyword",
    instruction="Use the word {word} in sentence number {N}.",
    example=Example({"word": "tea", "N": 2}, "Hello. I like tea.", "I like tea. Bye."),
    defect="N = 0 looks at the last sentence, and a word that ends in a symbol (`C++`) is not "
    "found before a blank.",
)
def keyword_in_sentence(text: Text, word: str, N: Count) -> bool:
    first = list(islice(text.iter_sentences(), N)) if N else text.sentences
    return len(first) >= max(N, 1) and bool(
        re.search(rf"\b{re.escape(word)}\b", first[-1], re.IGNORECASE)
    )


@repairs(
    keyword_in_sentence,
    "Fails N = 0 and finds the word.",
    gained="I like C++ a lot.",
    kwargs={"word": "C++", "N": 1},
)
def keyword_in_sentence_repaired(text: Text, word: str, N: int) -> bool:
    if not 0 < N <= len(text.sentences):
        return False
    return patterns.found_literal(word, Text(text.sentences[N - 1]))
