"""The 29 constraint ids added for training (IFEvalG in open-instruct; Pyatkin et al., 2025)."""

from __future__ import annotations

import re

from califkit.verifiers import patterns
from califkit.verifiers.ifeval import (
    COUNT,
    DIVIDER,
    LETTER_PARAMS,
    TEXT,
    count_filled,
    count_literal,
    frequency,
    frequency_literal,
    letter_frequency,
)
from califkit.verifiers.registry import (
    RELATION,
    Example,
    Param,
    compare,
    constraint,
    repairs,
)
from califkit.verifiers.text import PUNCTUATION, Text, rule_sentences, word_tokens

POSITIVE = Param(int, minimum=1)
TEXT_OR_LIST = Param(str | list)


def first_of(value: str | list[str]) -> str:
    """The word of an argument that may come as a list, of which upstream reads the first item."""
    return (value if isinstance(value, str) else value[0]).strip()


# --- copy --------------------------------------------------------------------------------------
@constraint(
    "copy:repeat_phrase",
    family="iftrain",
    instruction='Use the phrase "{phrase}" exactly {small_n} times, and each time replace one '
    "word in the middle of it by another word.",
    params={"phrase": TEXT, "small_n": POSITIVE},
    example=Example(
        {"phrase": "the quick fox jumps", "small_n": 1},
        "See how the slow fox jumps!",
        "See how the quick fox jumps!",
    ),
    defect="The first and last word are found inside words and act as patterns; repaired: they "
    "are found as literal whole words.",
)
def repeat_phrase(text: Text, phrase: str, small_n: int) -> bool:
    words = phrase.split()
    found = phrase_spans(text, words[0], words[-1])
    return len(found) == small_n and all(differ_in_one(span.split(), words) for span in found)


def phrase_spans(text: Text, first: str, last: str) -> list[str]:
    """Matches of the pattern ``first .*? last``; in one pass when both words are literal."""
    if not (is_literal(first) and is_literal(last)):
        return [m.group() for m in patterns.matches("", f"{first} .*? {last}", "", text.raw)]
    spans = []
    for line in text.lines:
        start = line.find(f"{first} ")
        while start >= 0:
            end = line.find(f" {last}", start + len(first) + 1)
            if end < 0:
                break
            end += 1 + len(last)
            spans.append(line[start:end])
            start = line.find(f"{first} ", end)
    return spans


def is_literal(word: str) -> bool:
    """Whether a word means itself in a regular expression."""
    return re.escape(word) == word


def differ_in_one(words: list[str], others: list[str]) -> bool:
    """Equally many words, different in exactly one place."""
    return len(words) == len(others) and sum(map(str.__ne__, words, others)) == 1


@repairs("copy:repeat_phrase")
def repeat_phrase_of_words(text: Text, phrase: str, small_n: int) -> bool:
    words = phrase.split()
    bare = [token.strip(PUNCTUATION) for token in text.ws_tokens]
    wanted = [word.strip(PUNCTUATION) for word in words]
    windows = (bare[i : i + len(words)] for i in range(len(bare) - len(words) + 1))
    return small_n == sum(
        window[0] == wanted[0] and window[-1] == wanted[-1] and differ_in_one(window, wanted)
        for window in windows
    )


@constraint(
    "copy:copy",
    family="iftrain",
    instruction="Do not answer the request. Copy the following text word for word and write "
    "nothing else: {prompt_to_repeat}",
    params={"prompt_to_repeat": TEXT},
    example=Example({"prompt_to_repeat": "Name a tree."}, "Name a tree.", "Oak."),
)
@constraint(
    "copy:copying_simple",
    family="iftrain",
    instruction="Repeat this request without change, and do not answer it. "
    "The request to repeat: {prompt_to_repeat}",
    params={"prompt_to_repeat": TEXT},
    example=Example({"prompt_to_repeat": "Name a tree."}, "Name a tree.", "Name a tree. Oak."),
)
def copy(text: Text, prompt_to_repeat: str) -> bool:
    return text.stripped.lower() == prompt_to_repeat.strip().lower()


@constraint(
    "copy:copying_multiple",
    family="iftrain",
    instruction="Repeat this request without change {N} times, with six asterisks ****** "
    "between the copies, and do not answer it. The request to repeat: {prompt_to_repeat}",
    params={"prompt_to_repeat": TEXT, "N": POSITIVE},
    example=Example(
        {"prompt_to_repeat": "Name a tree.", "N": 2},
        "Name a tree.\n******\nName a tree.",
        "Name a tree.",
    ),
)
def copying_multiple(text: Text, prompt_to_repeat: str, N: int) -> bool:
    copies = text.raw.split("******")
    wanted = prompt_to_repeat.strip().lower()
    return len(copies) == N and all(copy.strip().lower() == wanted for copy in copies)


SPAN_PARAMS = {"prompt_to_repeat": TEXT, "n_start": Param(int), "n_end": Param(int)}


@constraint(
    "new:copy_span_idx",
    family="iftrain",
    instruction="Copy the part of the following text from character number {n_start} up to, but "
    "not including, character number {n_end}, counted from 0, and write nothing else: "
    "{prompt_to_repeat}",
    params=SPAN_PARAMS,
    example=Example(
        {"prompt_to_repeat": "Name a tree.", "n_start": 5, "n_end": 11}, "a tree", "a tree."
    ),
    defect="The end index is exclusive, although the published instruction includes it; "
    "repaired: it is inclusive.",
)
def copy_span_idx(text: Text, prompt_to_repeat: str, n_start: int, n_end: int) -> bool:
    return text.stripped.lower() == prompt_to_repeat[n_start:n_end].strip().lower()


# --- count -------------------------------------------------------------------------------------
@constraint(
    "count:lowercase_counting",
    family="iftrain",
    instruction="Use at most {N} words that are written in lowercase letters only.",
    params={"N": POSITIVE},
    example=Example({"N": 2}, "TEA with milk", "Tea with some milk"),
)
def lowercase_counting(text: Text, N: int) -> bool:
    return len(LOWERCASE_WORD.findall(text.raw)) <= N


LOWERCASE_WORD = re.compile(r"\b[a-z]+\b")


@constraint(
    "letters:letter_counting",
    family="iftrain",
    instruction="Write {relation} {N} letters in all.",
    params={"N": POSITIVE, "relation": Param(str)},
    example=Example({"N": 5, "relation": "less than"}, "Tea!", "Black tea."),
    defect="A relation other than the two known ones fails every response; repaired: it is "
    "reported as an error.",
)
def letter_counting(text: Text, N: int, relation: str) -> bool:
    return relation in ("less than", "at least") and compare(n_letters(text), relation, N)


@repairs("letters:letter_counting")
def letter_counting_checked(text: Text, N: int, relation: str) -> bool:
    return compare(n_letters(text), relation, N)


def n_letters(text: Text) -> int:
    """Number of ASCII letters."""
    return len(re.findall("[a-zA-Z]", text.raw))


@constraint(
    "count:counting_composition",
    family="iftrain",
    instruction="Write exactly 3 paragraphs with the divider *** between them. Each paragraph "
    "has exactly {n_sent} sentences, and each sentence exactly {n_words} words, where every "
    "punctuation mark counts as a word.",
    params={"n_sent": POSITIVE, "n_words": POSITIVE},
    example=Example(
        {"n_sent": 1, "n_words": 2}, "Drink tea\n***\nEat cake\n***\nSit down", "Drink tea"
    ),
    defect="Punctuation marks count as words; repaired: only words count.",
)
def counting_composition(text: Text, n_sent: int, n_words: int) -> bool:
    return composition(text, n_sent, n_words, word_tokens)


def composition(text: Text, n_sent: int, n_words: int, words_of) -> bool:
    """Three paragraphs of `n_sent` sentences of `n_words` words, as `words_of` finds them."""
    pieces = DIVIDER.split(text.raw)
    return len(pieces) == 3 and all(
        len(sentences) == n_sent and all(len(words_of(s)) == n_words for s in sentences)
        for sentences in map(rule_sentences, pieces)
    )


@repairs("count:counting_composition")
def composition_of_words(text: Text, n_sent: int, n_words: int) -> bool:
    return composition(text, n_sent, n_words, re.compile(r"\w[\w'’-]*").findall)


@constraint(
    "count:count_unique",
    family="iftrain",
    instruction="Use every word and every punctuation mark at most once in your response.",
    example=Example({}, "Drink some tea.", "Tea and milk and cake."),
    defect="Punctuation marks count as words, and `The` and `the` as two; repaired: only words "
    "count, without regard to case.",
)
def count_unique(text: Text) -> bool:
    return len(set(text.tokens)) == len(text.tokens)


@repairs("count:count_unique")
def words_unique(text: Text) -> bool:
    words = [token.strip(PUNCTUATION).lower() for token in text.ws_tokens]
    words = [word for word in words if word]
    return len(set(words)) == len(words)


@constraint(
    "count:count_increment_word",
    family="iftrain",
    instruction='Use the word "{keyword1}" exactly once and the word "{keyword2}" exactly twice '
    "in your response.",
    params={"keyword1": TEXT, "keyword2": TEXT},
    example=Example(
        {"keyword1": "tea", "keyword2": "milk"}, "Milk, tea and milk.", "Milk and tea."
    ),
    defect="Keywords are counted as patterns and inside words; repaired: as literal words.",
)
def count_increment_word(text: Text, keyword1: str, keyword2: str) -> bool:
    return (
        patterns.count(keyword1.strip(), text.raw, re.IGNORECASE) == 1
        and patterns.count(keyword2.strip(), text.raw, re.IGNORECASE) == 2
    )


@repairs("count:count_increment_word")
def increment_literal(text: Text, keyword1: str, keyword2: str) -> bool:
    return count_literal(keyword1, text) == 1 and count_literal(keyword2, text) == 2


# --- keywords and letters ----------------------------------------------------------------------
@constraint(
    "keywords:word_once",
    family="iftrain",
    instruction='Use the word "{keyword}" exactly once in your response.',
    params={"keyword": TEXT},
    example=Example({"keyword": "tea"}, "Drink tea.", "Tea, tea."),
    defect="The keyword is counted as a pattern and inside words; repaired: as a literal word.",
)
def word_once(text: Text, keyword: str) -> bool:
    return patterns.count(keyword.strip(), text.raw, re.IGNORECASE) == 1


@repairs("keywords:word_once")
def word_once_literal(text: Text, keyword: str) -> bool:
    return count_literal(keyword, text) == 1


constraint(
    "keywords:word_count_different_numbers",
    family="iftrain",
    instruction='Use the word "{keyword}" {relation} {frequency} times in your response.',
    params={"keyword": TEXT, "frequency": COUNT, "relation": RELATION},
    example=Example(
        {"keyword": "tea", "frequency": 2, "relation": "less than"}, "Drink tea.", "Tea, tea."
    ),
    defect="The keyword is counted as a pattern and inside words; repaired: as a literal word.",
)(frequency)
repairs("keywords:word_count_different_numbers")(frequency_literal)

constraint(
    "letters:letter_counting2",
    family="iftrain",
    instruction='Use the letter "{letter}" {let_relation} {let_frequency} times.',
    params=LETTER_PARAMS,
    example=Example(
        {"letter": "z", "let_frequency": 1, "let_relation": "less than"}, "Tea.", "Pizza."
    ),
)(letter_frequency)


@constraint(
    "keywords:exclude_word_harder",
    family="iftrain",
    instruction='Do not use the word "{keyword}" in your response.',
    params={"keyword": TEXT, "instruction": Param(str, required=False, allow_empty=True)},
    example=Example({"keyword": "tea"}, "Drink some milk.", "Drink tea today."),
    defect="The word is only seen between two blanks and in the same case, not at the ends or "
    "before punctuation; repaired: seen anywhere as a word, without regard to case.",
)
def exclude_word_harder(text: Text, keyword: str, instruction: str | None = None) -> bool:
    return f" {keyword.strip()} " not in text.raw


@repairs("keywords:exclude_word_harder")
def exclude_word(text: Text, keyword: str, instruction: str | None = None) -> bool:
    return count_literal(keyword, text) == 0


@constraint(
    "keywords:no_adjacent_consecutive",
    family="iftrain",
    instruction="Two words next to each other must not start with letters that follow each "
    "other in the alphabet, such as a and b.",
    example=Example({}, "Big apples.", "Apples bend."),
    defect="Any characters count, such as 1 and 2, and quotes hide the letter; repaired: the "
    "first letters of the words without outer punctuation.",
)
def no_adjacent_consecutive(text: Text) -> bool:
    first = [token[0].lower() for token in text.ws_tokens]
    if len(first) > 1 and any(len(c) > 1 for c in first):  # `İ` lowers to two characters.
        return False
    return not any(ord(b) - ord(a) == 1 for a, b in zip(first, first[1:], strict=False))


@repairs("keywords:no_adjacent_consecutive")
def no_adjacent_letters(text: Text) -> bool:
    words = [word for token in text.ws_tokens if (word := token.strip(PUNCTUATION).lower())]
    pairs = zip(words, words[1:], strict=False)
    return not any(
        a[0].isalpha() and b[0].isalpha() and ord(b[0]) - ord(a[0]) == 1 for a, b in pairs
    )


@constraint(
    "keywords:palindrome",
    family="iftrain",
    instruction="Use at least one palindrome: a word that reads the same backwards, such as level.",
    example=Example({}, "Keep the level low", "Keep the height low"),
    defect="A single character passes, case and punctuation hide a palindrome; repaired: words "
    "of at least three letters without outer punctuation, without regard to case.",
)
def palindrome(text: Text) -> bool:
    return any(token == token[::-1] for token in text.ws_tokens)


@repairs("keywords:palindrome")
def palindrome_word(text: Text) -> bool:
    words = (token.strip(PUNCTUATION).lower() for token in text.ws_tokens)
    return any(len(word) > 2 and word.isalpha() and word == word[::-1] for word in words)


@constraint(
    "keywords:keyword_specific_position",
    family="iftrain",
    instruction='Use the word "{keyword}" as word number {m} of sentence number {n}, where '
    "punctuation marks count as words.",
    params={"keyword": TEXT_OR_LIST, "n": POSITIVE, "m": POSITIVE},
    example=Example(
        {"keyword": "tea", "n": 2, "m": 3}, "Sit down. Drink black tea.", "Drink black tea."
    ),
    defect="Punctuation marks count as words and case matters; repaired: only words count, "
    "without regard to case.",
)
def keyword_specific_position(text: Text, keyword: str | list[str], n: int, m: int) -> bool:
    if len(text.rule_sentences) < n:
        return False
    tokens = word_tokens(text.rule_sentences[n - 1])
    return len(tokens) >= m and tokens[m - 1] == first_of(keyword)


@repairs("keywords:keyword_specific_position")
def keyword_among_words(text: Text, keyword: str | list[str], n: int, m: int) -> bool:
    if len(text.rule_sentences) < n:
        return False
    tokens = word_tokens(text.rule_sentences[n - 1])
    words = [token.lower() for token in tokens if any(map(str.isalnum, token))]
    return len(words) >= m and words[m - 1] == first_of(keyword).lower()


@constraint(
    "keywords:start_end",
    family="iftrain",
    instruction="Start and end your response with the same word, and write no punctuation "
    "mark after it.",
    example=Example({}, "Tea is just tea", "Tea is hot"),
    defect="A closing period or quote counts as the last word; repaired: punctuation around "
    "the words is left out.",
)
def start_end(text: Text) -> bool:
    return len(text.tokens) > 1 and text.tokens[0].lower() == text.tokens[-1].lower()


@repairs("keywords:start_end")
def start_end_words(text: Text) -> bool:
    words = [word.lower() for token in text.ws_tokens if (word := token.strip(PUNCTUATION))]
    return len(words) > 1 and words[0] == words[-1]


# --- format ------------------------------------------------------------------------------------
@constraint(
    "detectable_format:sentence_hyphens",
    family="iftrain",
    instruction="Connect all sentences with hyphens: put a hyphen and no blank between one "
    "sentence and the next.",
    example=Example({}, "Sit down.-Drink tea.", "Sit down. - Drink tea."),
    defect="A hyphen too many at the end passes, as only as many pieces are looked at as there "
    "are sentences; repaired: pieces and sentences have to be the same.",
)
def sentence_hyphens(text: Text) -> bool:
    pieces, sentences = hyphen_parts(text)
    return all(a == a.strip() == b for a, b in zip(pieces, sentences, strict=False))


@repairs("detectable_format:sentence_hyphens")
def sentence_hyphens_all(text: Text) -> bool:
    pieces, sentences = hyphen_parts(text)
    return pieces == sentences


def hyphen_parts(text: Text) -> tuple[list[str], list[str]]:
    """Pieces between hyphens, and the sentences of the text with blanks for hyphens."""
    return text.raw.split("-"), rule_sentences(text.raw.replace("-", " "))


@constraint(
    "detectable_format:square_brackets",
    family="iftrain",
    instruction="Put every single word of your response into square brackets, "
    "such as [like] [this].",
    example=Example({}, "[Drink] [tea.]", "[Drink tea.]"),
)
def square_brackets(text: Text) -> bool:
    return all(token[0] == "[" and token[-1] == "]" for token in text.ws_tokens)


@constraint(
    "detectable_format:bigram_wrapping",
    family="iftrain",
    instruction="Wrap every two words of your response in double angular brackets, "
    "such as <<like this>> <<one here>>.",
    example=Example({}, "<<Drink tea>> <<with milk>>", "Drink tea with milk"),
    defect="A last word that has no partner is not looked at; repaired: it needs brackets too.",
)
def bigram_wrapping(text: Text) -> bool:
    pairs = zip(text.ws_tokens[::2], text.ws_tokens[1::2], strict=False)
    return all(a.startswith("<<") and b.endswith(">>") for a, b in pairs)


@repairs("detectable_format:bigram_wrapping")
def bigram_wrapping_all(text: Text) -> bool:
    groups = [text.ws_tokens[i : i + 2] for i in range(0, len(text.ws_tokens), 2)]
    return all(g[0].startswith("<<") and g[-1].endswith(">>") for g in groups)


@constraint(
    "paragraphs:paragraphs",
    family="iftrain",
    instruction="Write exactly 2 paragraphs, and put the divider *** between them.",
    example=Example({}, "First.\n***\nSecond.", "First.\n\nSecond."),
)
def paragraphs(text: Text) -> bool:
    return count_filled(DIVIDER.split(text.raw)) == 2


@constraint(
    "paragraphs:paragraphs2",
    family="iftrain",
    instruction="Write exactly 2 paragraphs with one empty line between them.",
    example=Example({}, "First.\n\nSecond.", "First.\nSecond."),
    defect="More than one empty line between the two paragraphs fails; repaired: it passes.",
)
def paragraphs2(text: Text) -> bool:
    return count_filled(text.raw.split("\n\n")) == 2


@repairs("paragraphs:paragraphs2")
def paragraphs2_blank_lines(text: Text) -> bool:
    paragraphs, inside = 0, False
    for line in text.lines:
        paragraphs += bool(line.strip()) and not inside
        inside = bool(line.strip())
    return paragraphs == 2


# --- first and last words ----------------------------------------------------------------------
@constraint(
    "first_word:first_word_sent",
    family="iftrain",
    instruction='Start every sentence with the word "{first_word}", without a punctuation mark '
    "after it.",
    params={"first_word": TEXT_OR_LIST},
    example=Example({"first_word": "tea"}, "Tea warms. Tea helps!", "Tea warms. It helps!"),
    defect="Punctuation at the word hides it; repaired: it is left out.",
)
def first_word_sent(text: Text, first_word: str | list[str]) -> bool:
    word = first_of(first_word).lower()
    return all(opens_with(sentence, word) for sentence in text.rule_sentences)


def opens_with(sentence: str, word: str) -> bool:
    """Whether the first blank-separated token is the word (lower-cased), punctuation included."""
    return sentence.split(maxsplit=1)[:1] != [] and sentence.split(maxsplit=1)[0].lower() == word


@constraint(
    "first_word:first_word_answer",
    family="iftrain",
    instruction='Start your response with the word "{first_word}", without a punctuation mark '
    "after it.",
    params={"first_word": TEXT},
    example=Example({"first_word": "tea"}, "Tea warms.", "Hot tea warms."),
    defect="Punctuation at the word hides it; repaired: it is left out.",
)
def first_word_answer(text: Text, first_word: str) -> bool:
    return opens_with(text.raw, first_word.strip().lower())


@constraint(
    "last_word:last_word_sent",
    family="iftrain",
    instruction='End every sentence with the word "{last_word}".',
    params={"last_word": TEXT_OR_LIST},
    example=Example({"last_word": "tea"}, "I like tea. You make tea!", "I like tea. You too!"),
    defect="`?!` and stray quotes make a sentence of punctuation alone, which fails; repaired: "
    "such pieces are left out.",
)
def last_word_sent(text: Text, last_word: str | list[str]) -> bool:
    word = first_of(last_word).lower()
    return all(last_word_of(sentence) == word for sentence in text.rule_sentences)


def last_word_of(sentence: str) -> str:
    """Last blank-separated token, lower-cased, without what is neither word nor blank."""
    return re.sub(r"[^\w\s]", "", sentence.rsplit(maxsplit=1)[-1]).lower() if sentence else ""


@constraint(
    "last_word:last_word_answer",
    family="iftrain",
    instruction='End your response with the word "{last_word}".',
    params={"last_word": TEXT},
    example=Example({"last_word": "tea"}, "I like tea.", "I like tea most."),
    defect="Punctuation that stands alone at the end hides the word; repaired: it is left out.",
)
def last_word_answer(text: Text, last_word: str) -> bool:
    return last_word_of(text.stripped) == last_word.strip().lower()


def has_word(sentence: str) -> bool:
    """Whether a sentence has any word character."""
    return re.search(r"\w", sentence) is not None


@repairs("first_word:first_word_sent")
def first_word_sent_bare(text: Text, first_word: str | list[str]) -> bool:
    word = first_of(first_word).lower()
    return all(bare_words(s)[0] == word for s in text.rule_sentences if has_word(s))


@repairs("first_word:first_word_answer")
def first_word_answer_bare(text: Text, first_word: str) -> bool:
    return bare_words(text.raw)[:1] == [first_word.strip().lower()]


@repairs("last_word:last_word_sent")
def last_word_sent_bare(text: Text, last_word: str | list[str]) -> bool:
    word = first_of(last_word).lower()
    return all(bare_words(s)[-1] == word for s in text.rule_sentences if has_word(s))


@repairs("last_word:last_word_answer")
def last_word_answer_bare(text: Text, last_word: str) -> bool:
    return bare_words(text.raw)[-1:] == [last_word.strip().lower()]


BARE_WORD = re.compile(r"\w(?:.*\w)?", re.DOTALL)


def bare_words(sentence: str) -> list[str]:
    """Tokens between blanks, lower-cased, without outer punctuation, empty ones left out."""
    cores = (BARE_WORD.search(token) for token in sentence.lower().split())
    return [core.group() for core in cores if core]


# --- punctuation -------------------------------------------------------------------------------
@constraint(
    "punctuation:punctuation_dot",
    family="iftrain",
    instruction="Do not use any periods (the character .) in your response.",
    example=Example({}, "Tea, please!", "Tea, please."),
    defect="Only the ASCII period is seen; repaired: also full-width ones and the ellipsis.",
)
def punctuation_dot(text: Text) -> bool:
    return "." not in text.raw


@repairs("punctuation:punctuation_dot")
def no_dot_of_any_script(text: Text) -> bool:
    return not any(dot in text.raw for dot in ".…。．｡")


@constraint(
    "punctuation:punctuation_exclamation",
    family="iftrain",
    instruction="Do not use any exclamation marks in your response.",
    example=Example({}, "Tea, please.", "Tea, please!"),
    defect="Only the ASCII mark is seen; repaired: also full-width and doubled ones.",
)
def punctuation_exclamation(text: Text) -> bool:
    return "!" not in text.raw


@repairs("punctuation:punctuation_exclamation")
def no_exclamation_of_any_script(text: Text) -> bool:
    return not any(mark in text.raw for mark in "!！‼⁉﹗")
