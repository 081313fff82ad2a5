"""The 29 constraint ids added for training (IFEvalG in open-instruct; Pyatkin et al., 2025).

The ids on copying are in `iftrain_copy`.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterator
from functools import partial
from itertools import islice, pairwise

from califkit.verifiers import ifeval, patterns, registry
from califkit.verifiers.ifeval import count_filled, divided
from califkit.verifiers.registry import (
    RELATIONS,
    AnyText,
    Count,
    Example,
    Positive,
    Relation,
    compare,
    repairs,
)
from califkit.verifiers.text import (
    Text,
    bare,
    bare_words,
    iter_rule_sentences,
    rule_sentences,
    word_tokens,
)

verifier = partial(registry.verifier, suite="iftrain")


def first_of(value: str | list[str]) -> str:
    """The word of an argument that may come as a list, of which upstream reads the first item."""
    return (value if isinstance(value, str) else value[0]).strip()


# --- count -------------------------------------------------------------------------------------
@verifier(
    "count:lowercase_counting",
    instruction="Use at most {N} words that are written in lowercase letters only.",
    example=Example({"N": 2}, "TEA with milk", "Tea with some milk"),
)
def lowercase_counting(text: Text, N: Positive) -> bool:
    too_many = islice(LOWERCASE_WORD.finditer(text.raw), N, None)
    return next(too_many, None) is None


LOWERCASE_WORD = re.compile(r"\b[a-z]+\b")


@verifier(
    "letters:letter_counting",
    instruction="Write {relation} {N} letters in all.",
    example=Example({"N": 5, "relation": "less than"}, "Tea!", "Black tea."),
    defect="A relation other than `less than` and `at least` fails every response.",
)
def letter_counting(text: Text, N: Positive, relation: str) -> bool:
    return relation in RELATIONS and compare(n_letters(text), relation, N)


def n_letters(text: Text) -> int:
    return sum(map(text.raw.count, string.ascii_letters))


@repairs(
    letter_counting,
    "Takes `at most` as well; another relation is an error.",
    gained="Tea!",
    kwargs={"N": 5, "relation": "at most"},
)
def letter_counting_at_most(text: Text, N: int, relation: str) -> bool:
    return n_letters(text) <= N if relation == "at most" else compare(n_letters(text), relation, N)


@verifier(
    "count:counting_composition",
    instruction="Write exactly 3 paragraphs with the divider *** between them. Each paragraph "
    "has exactly {n_sent} sentences, and each sentence exactly {n_words} words.",
    example=Example(
        {"n_sent": 1, "n_words": 2}, "Drink tea\n***\nEat cake\n***\nSit down", "Drink tea"
    ),
    defect="Punctuation marks count as words.",
)
def counting_composition(text: Text, n_sent: Positive, n_words: Positive) -> bool:
    return composition(text, n_sent, n_words, word_tokens)


def composition(text: Text, n_sent: int, n_words: int, words_of) -> bool:
    """Three paragraphs of `n_sent` sentences of `n_words` words, as `words_of` finds them."""
    pieces = divided(text)
    return len(pieces) == 3 and all(
        len(sentences) == n_sent and all(len(words_of(s)) == n_words for s in sentences)
        for sentences in map(rule_sentences, pieces)
    )


@repairs(
    counting_composition,
    "Counts words only.",
    lost="Drink!\n***\nEat!\n***\nSit!",
    gained="Drink tea.\n***\nEat cake.\n***\nSit down.",
)
def composition_of_words(text: Text, n_sent: int, n_words: int) -> bool:
    return composition(text, n_sent, n_words, bare_words)


@verifier(
    "count:count_unique",
    instruction="Use every word at most once in your response.",
    example=Example({}, "Drink some tea.", "Tea and milk and cake."),
    defect="Punctuation marks count as words, and `The` and `the` as two.",
)
def count_unique(text: Text) -> bool:
    seen: set[str] = set()
    for token in text.iter_tokens():
        if token in seen:
            return False
        seen.add(token)
    return True


@repairs(
    count_unique,
    "Compares words only, without regard to case.",
    lost="Tea or tea.",
    gained="Sit down. Drink tea.",
)
def words_unique(text: Text) -> bool:
    words = bare_words(text.lower)
    return len(set(words)) == len(words)


@verifier(
    "count:count_increment_word",
    instruction='Use the word "{keyword1}" exactly once and the word "{keyword2}" exactly twice '
    "in your response.",
    example=Example(
        {"keyword1": "tea", "keyword2": "milk"}, "Milk, tea and milk.", "Milk and tea."
    ),
    defect="Keywords are counted as patterns and inside longer words.",
)
def count_increment_word(text: Text, keyword1: str, keyword2: str) -> bool:
    return [patterns.count(word.strip(), text) for word in (keyword1, keyword2)] == [1, 2]


@repairs(
    count_increment_word,
    "Counts literal words.",
    lost="Tea, milk and milkshake.",
    gained="Milk, tea and milk in a teapot.",
)
def increment_literal(text: Text, keyword1: str, keyword2: str) -> bool:
    counts = [patterns.count_literal(word.strip(), text) for word in (keyword1, keyword2)]
    return counts == [1, 2]


# --- keywords and letters ----------------------------------------------------------------------
@verifier(
    "keywords:word_once",
    instruction='Use the word "{keyword}" exactly once in your response.',
    example=Example({"keyword": "tea"}, "Drink tea.", "Tea, tea."),
    defect="The keyword is counted as a pattern and inside longer words.",
)
def word_once(text: Text, keyword: str) -> bool:
    return patterns.count(keyword.strip(), text) == 1


@repairs(word_once, "Counts the literal word.", lost="A teapot.", gained="Tea in a teapot.")
def word_once_literal(text: Text, keyword: str) -> bool:
    return patterns.count_literal(keyword.strip(), text) == 1


@verifier(
    "keywords:word_count_different_numbers",
    instruction='Use the word "{keyword}" {relation} {frequency} times in your response.',
    example=Example(
        {"keyword": "tea", "frequency": 2, "relation": "less than"}, "Drink tea.", "Tea, tea."
    ),
    defect="The keyword is counted as a pattern and inside longer words.",
)
def word_count(text: Text, keyword: str, frequency: Count, relation: Relation) -> bool:
    return ifeval.frequency(text, keyword, frequency, relation)


repairs(word_count, "Counts the literal word.", gained="Tea in a teapot.")(ifeval.frequency_literal)


verifier(
    "letters:letter_counting2",
    instruction='Use the letter "{letter}" {let_relation} {let_frequency} times.',
    example=Example(
        {"letter": "z", "let_frequency": 1, "let_relation": "less than"}, "Tea.", "Pizza."
    ),
)(ifeval.letter_frequency)


@verifier(
    "keywords:exclude_word_harder",
    instruction='Do not use the word "{keyword}" in your response.',
    example=Example({"keyword": "tea"}, "Drink some milk.", "Drink tea today."),
    defect="The word is only seen between two blanks and in the same case, not at the ends or "
    "before punctuation.",
)
def exclude_word_harder(text: Text, keyword: str, instruction: AnyText | None = None) -> bool:
    return f" {keyword.strip()} " not in text.raw


@repairs(exclude_word_harder, "Sees the word anywhere, without regard to case.", lost="Drink tea.")
def exclude_word(text: Text, keyword: str, instruction: str | None = None) -> bool:
    return not patterns.found_literal(keyword.strip(), text)


@verifier(
    "keywords:no_adjacent_consecutive",
    instruction="Two words next to each other must not start with letters that follow each "
    "other in the alphabet, such as a and b.",
    example=Example({}, "Big apples.", "Apples bend."),
    defect="Any characters count, such as 1 and 2, and quotes hide the letter.",
)
def no_adjacent_consecutive(text: Text) -> bool:
    words = text.ws_tokens
    if "İ" in text.raw and len(words) > 1 and any(word[0] == "İ" for word in words):
        return False  # It lowers to two characters, and upstream's comparison fails.
    first = (word[0].lower() for word in words)
    return not any(ord(b) - ord(a) == 1 for a, b in pairwise(first))


@repairs(
    no_adjacent_consecutive,
    "Compares the first letters of the words without outer punctuation.",
    lost='A "big" day',
    gained="Room 1 2",
)
def no_adjacent_letters(text: Text) -> bool:
    words = bare_words(text.lower)
    pairs = zip(words, words[1:], strict=False)
    return not any(
        a[0].isalpha() and b[0].isalpha() and ord(b[0]) - ord(a[0]) == 1 for a, b in pairs
    )


@verifier(
    "keywords:palindrome",
    instruction="Use at least one palindrome: a word that reads the same backwards, such as level.",
    example=Example({}, "Keep the level low", "Keep the height low"),
    defect="A single character passes; case and punctuation hide a palindrome.",
)
def palindrome(text: Text) -> bool:
    return any(token == token[::-1] for token in text.ws_tokens)


@repairs(
    palindrome,
    "Asks for a word of at least three letters, without outer punctuation and regard to case.",
    lost="I like tea.",
    gained="Level!",
)
def palindrome_word(text: Text) -> bool:
    words = bare_words(text.lower)
    return any(len(word) > 2 and word.isalpha() and word == word[::-1] for word in words)


@verifier(
    "keywords:keyword_specific_position",
    instruction='Use the word "{keyword}" as word number {m} of sentence number {n}.',
    example=Example(
        {"keyword": "tea", "n": 2, "m": 3}, "Sit down. Drink black tea.", "Drink black tea."
    ),
    defect="Punctuation marks and parts of contractions count as words, and case matters.",
)
def keyword_specific_position(
    text: Text, keyword: str | list[str], n: Positive, m: Positive
) -> bool:
    sentence = next(islice(iter_rule_sentences(text.raw), n - 1, None), "")
    tokens = word_tokens(sentence)
    return len(tokens) >= m and tokens[m - 1] == first_of(keyword)


@repairs(
    keyword_specific_position,
    "Counts whole words, without regard to case.",
    lost="Sit down. Drink, tea!",
    gained="Sit down. Well, drink tea!",
)
def keyword_among_words(text: Text, keyword: str | list[str], n: int, m: int) -> bool:
    if len(text.rule_sentences) < n:
        return False
    words = bare_words(text.rule_sentences[n - 1].lower())
    return len(words) >= m and words[m - 1] == bare(first_of(keyword).lower())


@verifier(
    "keywords:start_end",
    instruction="Start and end your response with the same word, and write no punctuation "
    "mark after it.",
    example=Example({}, "Tea is just tea", "Tea is hot"),
    defect="Quotes and parts of contractions count as words (`Don't` is `Do` and `n't`).",
)
def start_end(text: Text) -> bool:
    tokens = text.outer_tokens(1)
    return len(tokens) > 1 and tokens[0].lower() == tokens[-1].lower()


@repairs(
    start_end,
    "Compares the first and the last whole word; behind the last nothing may stand.",
    lost="Don't say what I do",
    gained="Don't say don't",
)
def start_end_words(text: Text) -> bool:
    words = bare_words(text.lower)
    return len(words) > 1 and words[0] == words[-1] and text.stripped[-1].isalnum()


# --- format ------------------------------------------------------------------------------------
@verifier(
    "detectable_format:sentence_hyphens",
    instruction="Connect all sentences with hyphens: put a hyphen and no blank between one "
    "sentence and the next.",
    example=Example({}, "Sit down.-Drink tea.", "Sit down. - Drink tea."),
    defect="A hyphen too many at the end passes, as only as many pieces are looked at as there are "
    "sentences.",
)
def sentence_hyphens(text: Text) -> bool:
    pieces, sentences = hyphen_parts(text)
    return all(a == a.strip() == b for a, b in zip(pieces, sentences, strict=False))


@repairs(sentence_hyphens, "Asks for as many pieces as sentences.", lost="Sit down.-Drink tea.-")
def sentence_hyphens_all(text: Text) -> bool:
    pieces, sentences = hyphen_parts(text)
    return pieces == list(sentences)


def hyphen_parts(text: Text) -> tuple[list[str], Iterator[str]]:
    """Pieces between hyphens, and the sentences of the text with blanks for hyphens."""
    return text.raw.split("-"), iter_rule_sentences(text.raw.replace("-", " "))


@verifier(
    "detectable_format:square_brackets",
    instruction="Put every single word of your response into square brackets, "
    "such as [like] [this].",
    example=Example({}, "[Drink] [tea.]", "[Drink tea.]"),
)
def square_brackets(text: Text) -> bool:
    return all(token[0] == "[" and token[-1] == "]" for token in text.ws_tokens)


@verifier(
    "detectable_format:bigram_wrapping",
    instruction="Wrap every two words of your response in double angular brackets, "
    "such as <<like this>> <<one here>>.",
    example=Example({}, "<<Drink tea>> <<with milk>>", "Drink tea with milk"),
    defect="A last word that has no partner is not looked at.",
)
def bigram_wrapping(text: Text) -> bool:
    pairs = zip(text.ws_tokens[::2], text.ws_tokens[1::2], strict=False)
    return all(a.startswith("<<") and b.endswith(">>") for a, b in pairs)


@repairs(bigram_wrapping, "Asks for brackets around it too.", lost="Tea")
def bigram_wrapping_all(text: Text) -> bool:
    groups = [text.ws_tokens[i : i + 2] for i in range(0, len(text.ws_tokens), 2)]
    return all(g[0].startswith("<<") and g[-1].endswith(">>") for g in groups)


@verifier(
    "paragraphs:paragraphs",
    instruction="Write exactly 2 paragraphs, and put the divider *** between them.",
    example=Example({}, "First.\n***\nSecond.", "First.\n\nSecond."),
)
def paragraphs(text: Text) -> bool:
    return count_filled(divided(text)) == 2


@verifier(
    "paragraphs:paragraphs2",
    instruction="Write exactly 2 paragraphs with one empty line between them.",
    example=Example({}, "First.\n\nSecond.", "First.\nSecond."),
    defect="More than one empty line between the two paragraphs fails.",
)
def paragraphs2(text: Text) -> bool:
    return count_filled(text.raw.split("\n\n")) == 2


@repairs(paragraphs2, "Takes any number of empty lines.", gained="First.\n\n\n\nSecond.")
def paragraphs2_blank_lines(text: Text) -> bool:
    paragraphs, inside = 0, False
    for line in text.lines:
        paragraphs += bool(line.strip()) and not inside
        inside = bool(line.strip())
    return paragraphs == 2


# --- first and last words ----------------------------------------------------------------------
@verifier(
    "first_word:first_word_sent",
    instruction='Start every sentence with the word "{first_word}".',
    example=Example({"first_word": "tea"}, "Tea warms. Tea helps!", "Tea warms. It helps!"),
    defect="Punctuation at the word hides it.",
)
def first_word_sent(text: Text, first_word: str | list[str]) -> bool:
    word = first_of(first_word).lower()
    return all(opens_with(sentence, word) for sentence in iter_rule_sentences(text.raw))


def opens_with(sentence: str, word: str) -> bool:
    """Whether the first blank-separated token is the word (lower-cased), punctuation included."""
    return sentence.split(maxsplit=1)[:1] != [] and sentence.split(maxsplit=1)[0].lower() == word


@verifier(
    "first_word:first_word_answer",
    instruction='Start your response with the word "{first_word}".',
    example=Example({"first_word": "tea"}, "Tea warms.", "Hot tea warms."),
    defect="Punctuation at the word hides it.",
)
def first_word_answer(text: Text, first_word: str) -> bool:
    return opens_with(text.raw, first_word.strip().lower())


@verifier(
    "last_word:last_word_sent",
    instruction='End every sentence with the word "{last_word}".',
    example=Example({"last_word": "tea"}, "I like tea. You make tea!", "I like tea. You too!"),
    defect="`?!` and stray quotes make a sentence of punctuation alone, which fails.",
)
def last_word_sent(text: Text, last_word: str | list[str]) -> bool:
    word = first_of(last_word).lower()
    return all(last_word_of(sentence) == word for sentence in iter_rule_sentences(text.raw))


def last_word_of(sentence: str) -> str:
    """Last blank-separated token, lower-cased, without what is neither word nor blank."""
    return re.sub(r"[^\w\s]", "", sentence.rsplit(maxsplit=1)[-1]).lower() if sentence else ""


@verifier(
    "last_word:last_word_answer",
    instruction='End your response with the word "{last_word}".',
    example=Example({"last_word": "tea"}, "I like tea.", "I like tea most."),
    defect="Punctuation that stands alone at the end hides the word.",
)
def last_word_answer(text: Text, last_word: str) -> bool:
    return last_word_of(text.stripped) == last_word.strip().lower()


def sentence_words(text: Text) -> list[list[str]]:
    """The words of each sentence that has any, lower-cased."""
    return [words for s in text.rule_sentences if (words := bare_words(s.lower()))]


@repairs(first_word_sent, "Leaves outer punctuation out.", gained="Tea, of course. Tea!")
def first_word_sent_bare(text: Text, first_word: str | list[str]) -> bool:
    word = bare(first_of(first_word).lower())
    return all(words[0] == word for words in sentence_words(text))


@repairs(first_word_answer, "Leaves outer punctuation out.", gained='"Tea", we said.')
def first_word_answer_bare(text: Text, first_word: str) -> bool:
    return bare_words(text.lower)[:1] == [bare(first_word.lower())]


@repairs(last_word_sent, "Leaves such pieces out.", gained="You like tea?!")
def last_word_sent_bare(text: Text, last_word: str | list[str]) -> bool:
    word = bare(first_of(last_word).lower())
    return all(words[-1] == word for words in sentence_words(text))


@repairs(last_word_answer, "Leaves it out.", gained="I like tea !")
def last_word_answer_bare(text: Text, last_word: str) -> bool:
    return bare_words(text.lower)[-1:] == [bare(last_word.lower())]


# --- punctuation -------------------------------------------------------------------------------
@verifier(
    "punctuation:punctuation_dot",
    instruction="Do not use any periods (the character .) in your response.",
    example=Example({}, "Tea, please!", "Tea, please."),
    defect="Only the ASCII period is seen.",
)
def punctuation_dot(text: Text) -> bool:
    return "." not in text.raw


@repairs(punctuation_dot, "Sees full-width periods and the ellipsis character too.", lost="Tea…")
def no_dot_of_any_script(text: Text) -> bool:
    return not any(dot in text.raw for dot in ".…。．｡")


@verifier(
    "punctuation:punctuation_exclamation",
    instruction="Do not use any exclamation marks in your response.",
    example=Example({}, "Tea, please.", "Tea, please!"),
    defect="Only the ASCII mark is seen.",
)
def punctuation_exclamation(text: Text) -> bool:
    return "!" not in text.raw


@repairs(punctuation_exclamation, "Sees full-width and doubled marks too.", lost="Tea！")
def no_exclamation_of_any_script(text: Text) -> bool:
    return not any(mark in text.raw for mark in "!！‼⁉﹗")
