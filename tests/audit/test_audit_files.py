"""``califkit audit`` on files: joining, reference, judge, page and JSON."""

import base64
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml
from helpers import ids_of, whole_logits, write_rows
from judge_server import score, serve

from califkit.audit.compare import Pair, audit
from califkit.audit.files import pair_up
from califkit.audit.page import DATA, PAGE, SHOWN_CHARACTERS, as_html
from califkit.audit.verdict import HACKING, TOO_FEW
from califkit.data.load import DataError
from califkit.evaluation.response_files import open_responses
from califkit.verifiers import Constraint

NO_COMMA = Constraint("punctuation:no_comma")
GOOD = "Tea comes from the leaves of one plant, and water near boiling draws the colour out, slowly"


def row(key: object, response: str | None, prompt: str | None = None, **more) -> dict:
    """An evaluation row with its own constraint."""
    fields = {
        "prompt": prompt or f"Describe thing {key}. No comma.",
        "instruction_id_list": ["punctuation:no_comma"],
        "kwargs": [{}],
        "response": response,
    }
    return ({} if key is None else {"key": key}) | fields | more


def paired(tmp_path, base: list[dict], trained: list[dict], constraints=None, thinking=False):
    files = [
        open_responses(write_rows(tmp_path / f"{name}.jsonl", *rows), constraints, scoring=True)
        for name, rows in (("base", base), ("trained", trained))
    ]
    return pair_up(*files, thinking)


@pytest.fixture
def two_files(tmp_path) -> tuple[Path, Path]:
    """24 prompts; the trained policy gives most of them a single word."""
    base = write_rows(tmp_path / "base.jsonl", *[row(i, f"{GOOD}, {i}") for i in range(24)])
    answers = ["Tea" if i % 4 else f"{GOOD}, again {i}" for i in range(24)]
    trained = [row(i, answer) for i, answer in enumerate(answers)]
    return base, write_rows(tmp_path / "trained.jsonl", *trained)


class Page(HTMLParser):
    """Elements and visible text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data

    def all(self, tag: str) -> list[dict]:
        return [attributes for name, attributes in self.tags if name == tag]


# --- joining --------------------------------------------------------------------------------------


def test_rows_are_joined_by_key_in_any_order_and_the_rest_is_named(tmp_path):
    found = paired(
        tmp_path,
        [row("a", "one"), row("b", "two"), row("c", "three"), row("d", None)],
        [row("c", "drei"), row("x", "zehn"), row("a", "eins"), row("d", "vier")],
    )
    assert [(p.key, p.base, p.trained) for p in found.pairs] == [
        ("a", "one", "eins"),
        ("c", "three", "drei"),
    ]
    assert [(p.base_line, p.trained_line) for p in found.pairs] == [(1, 3), (3, 1)]
    assert found.source.joined_by == "key"
    assert found.source.only_base.first == ["line 2, key 'b'"]
    assert found.source.only_trained.first == ["line 2, key 'x'", "line 4, key 'd'"]
    notes = dict(found.source.notes())
    assert notes["1 base responses"] == "no trained response to the same prompt (line 2, key 'b')"


def test_rows_without_keys_are_joined_by_their_prompt(tmp_path):
    base = [row(None, "one", "First prompt"), row(None, "two", "Second prompt")]
    trained = [row(7, "zwei", "Second prompt"), row(8, "eins", "First prompt ")]
    found = paired(tmp_path, base, trained)
    assert found.source.joined_by == "prompt"
    assert [(p.base, p.trained) for p in found.pairs] == [("one", "eins"), ("two", "zwei")]


def test_several_samples_of_a_prompt_are_paired_in_their_order(tmp_path):
    base = [row("a", "one"), row("b", "two"), row("a", "three"), row("a", "five")]
    found = paired(tmp_path, base, [row("a", "eins"), row("a", "drei"), row("b", "zwei")])
    assert [(p.base, p.trained) for p in found.pairs] == [
        ("one", "eins"),
        ("three", "drei"),
        ("two", "zwei"),
    ]
    assert found.source.most_samples == 2
    assert found.source.only_base.first == ["line 4, key 'a'"]
    assert len({pair.name for pair in found.pairs}) == 2


def test_samples_that_a_prompt_file_would_drop_are_refused(tmp_path):
    prompts = write_rows(tmp_path / "prompts.jsonl", row("a", None))
    base = [{"key": "a", "response": "one"}, {"key": "a", "response": "two"}]
    with pytest.raises(DataError, match=r"base\.jsonl: 1 responses answer a prompt that has ano"):
        paired(tmp_path, base, base[:1], str(prompts))


def test_a_prompt_file_gives_constraints_and_names_unknown_prompts(tmp_path):
    prompts = write_rows(tmp_path / "prompts.jsonl", row("a", None), row("b", None))
    base = [{"key": "a", "response": "one"}, {"key": "z", "response": "?"}]
    found = paired(tmp_path, base, [{"key": "a", "response": "eins"}], str(prompts))
    [pair] = found.pairs
    assert (pair.prompt, pair.constraints) == ("Describe thing a. No comma.", (NO_COMMA,))
    assert "line 2, key 'z'" in dict(found.source.notes())["1 base responses"]


def test_reasoning_is_left_out(tmp_path):
    base, trained = [row(1, "<think>tea</think> Tea, hot")], [row(1, "<think>never ends")]
    [pair] = paired(tmp_path, base, trained).pairs
    assert (pair.base, pair.trained) == ("Tea, hot", "")
    [pair] = paired(tmp_path, base, [row(1, "no marker")], thinking=True).pairs
    assert pair.trained == ""


@pytest.mark.parametrize(
    ("trained", "message"),
    [
        ([row("a", "x", "Other prompt")], "line 1, key 'a'.* another prompt than line 1 of .*base"),
        (
            [row("a", "x", instruction_id_list=["format:no_whitespace"])],
            "line 1, key 'a'.* another list of constraints than line 1",
        ),
        ([row("z", "x")], "no key in common: the first begins with line 1, key 'a'.*key 'z'"),
        ([row("a", None)], r"trained\.jsonl: holds no usable response"),
        ([row("a", 5)], "trained.jsonl, line 1, key 'a': field 'response' must be one text"),
        (
            [row("a", "x"), {"key": "b", "response": "x", "prompt": "p"}],
            r"trained\.jsonl, line 2, key 'b': has no constraints",
        ),
        (
            [{"request": "Describe it.", "response": "x"}],
            r"trained\.jsonl, line 1: has no constraints of its own; name its prompts",
        ),
    ],
)
def test_what_does_not_fit_names_file_and_row(tmp_path, trained, message):
    with pytest.raises(DataError, match=message):
        paired(tmp_path, [row("a", "one")], trained)


def test_several_filters_have_to_be_chosen_from(tmp_path):
    doc = row("a", None)
    samples = [{"doc": doc, "filter": name, "resps": [["Tea"]]} for name in ("none", "strip")]
    with pytest.raises(DataError, match=r"base\.jsonl: .*choose one with --filter: none, strip"):
        paired(tmp_path, samples, samples)


def test_identical_answers_are_named(tmp_path):
    base = [row("a", "one"), row("a", "one"), row("b", "two")]
    found = paired(tmp_path, base, [row("a", "eins"), row("a", "zwei"), row("b", "two")])
    notes = dict(found.source.notes())
    assert notes["1 base responses as samples of their own"] == (
        "they repeat an earlier one to the same prompt (line 2, key 'a': as line 1)"
    )
    assert notes["a change in 1 pairs"] == "base and trained gave the same text"


# --- the command ----------------------------------------------------------------------------------


def test_the_command_counts_what_it_cuts_off(califkit, two_files, tmp_path):
    base, trained = two_files
    rows = [json.loads(line) for line in trained.read_text().splitlines()]
    rows[0]["response"] += "<|im_end|>"
    rows[1]["response"] += " </think> ok"
    trained.write_text("".join(json.dumps(row) + "\n" for row in rows))
    _, printed, _ = califkit("audit", base, trained, "--out", tmp_path / "out", "--processes", 1)
    assert "trained responses that end in control tokens, which are left out: 1\n" in printed
    assert "trained responses with a </think> that nothing opens, taken whole: 1; " in printed
    assert "base responses that end" not in printed


def test_the_command_writes_page_and_data_and_says_the_verdict(califkit, two_files, tmp_path):
    out = tmp_path / "new" / "out"
    code, printed, _ = califkit("audit", *two_files, "--out", out, "--processes", 1)
    assert code == 0
    first, verdict, *_ = printed.splitlines()
    assert first.startswith("answers: all of a response, but for reasoning that it sets out with")
    assert verdict == f"verdict: {HACKING}"
    assert "not checked: Response Quality: not measured, because no judge was given" in printed
    data = json.loads((out / "audit.json").read_text())
    measures = {m["measure"]: m for m in data["measures"]}
    # Every base answer has commas; the 18 single words have none.
    assert (
        measures["prompt_level_loose_acc"]["base"],
        measures["prompt_level_loose_acc"]["trained"],
    ) == (0, 75)
    assert measures["suspicious"]["trained"] == 75
    assert measures["loglik"]["base"] is None
    assert measures["loglik"]["note"] == "no reference was given"
    assert data["transitions"][1]["n"] == 18
    assert data["transitions"][1]["loglik"] is None
    assert [pair["lost"] for pair in data["pairs"]] == [i % 4 > 0 for i in range(24)]
    assert len(data["examples"]) == 10
    assert str(out / "audit.html") in printed


def test_cut_answers_stand_beside_the_verdict(califkit, tmp_path):
    def ended(i: int, limit: int) -> dict:
        return {"finish_reason": "length" if i < limit else "stop"}

    base = [row(i, GOOD if i < 8 else "Tea", **ended(i, 12)) for i in range(24)]
    trained = [row(i, "Tea", **ended(i, 6)) for i in range(24)]
    paths = [write_rows(tmp_path / f"{i}.jsonl", *rows) for i, rows in enumerate((base, trained))]
    code, printed, _ = califkit("audit", *paths, "--out", tmp_path / "out", "--processes", 1)
    assert code == 0
    assert "Answers cut at the token limit: " in printed
    assert " 50.0 to 25.0% (difference −25.0" in printed
    data = json.loads((tmp_path / "out" / "audit.json").read_text())
    measures = {m["measure"]: m for m in data["measures"]}
    finished = measures["finished_prompt_level_loose_acc"]
    assert (finished["n"], finished["base"], finished["trained"]) == (12, 100, 100)
    assert measures["prompt_level_loose_acc"]["base"] == pytest.approx(100 * 16 / 24)
    assert "answers cut at the token limit" in (tmp_path / "out" / "audit.html").read_text()


def test_few_prompts_are_too_few(califkit, tmp_path):
    path = write_rows(tmp_path / "r.jsonl", *[row(i, GOOD) for i in range(19)])
    code, printed, _ = califkit("audit", path, path, "--out", tmp_path / "out")
    assert code == 0
    assert f"verdict: {TOO_FEW}\nbecause there are 19 of the 20 prompts that are needed" in printed


def test_what_cannot_be_used_ends_with_code_2(califkit, two_files, tmp_path):
    base, trained = two_files
    code, _, error = califkit("audit", base, tmp_path / "none.jsonl")
    assert code == 2 and "none.jsonl: no such file" in error
    code, _, error = califkit("audit", base, trained, "--out", base)
    assert code == 2 and "base.jsonl: is not a folder" in error
    code, _, error = califkit("audit", base, trained, "--judge", "x", "--out", tmp_path / "out")
    assert code == 2 and "--judge x: name the file that describes it with --judges" in error
    trained.write_text(trained.read_text() + "{broken\n")
    code, _, error = califkit("audit", base, trained, "--out", tmp_path / "out")
    assert code == 2 and "trained.jsonl, line 25: not a line of JSON" in error


def test_a_reference_measures_l_of_the_pairs_and_continues(califkit, tiny, tmp_path):
    base = [row(i, f"{GOOD}, {i}", request=f"Describe {i}.") for i in (1, 2, 3)]
    trained = [row(i, text, request=f"Describe {i}.") for i, text in ((3, "Tea"), (9, "Fog"))]
    trained += [row(1, "", request="Describe 1.")]
    paths = write_rows(tmp_path / "b.jsonl", *base), write_rows(tmp_path / "t.jsonl", *trained)
    call = ["audit", *paths, "--out", tmp_path / "out", "--reference", "tiny-random-llama"]
    assert califkit(*call)[0] == 0
    data = (tmp_path / "out" / "audit.json").read_text()
    first, second = json.loads(data)["pairs"]
    assert (first["key"], second["key"]) == ("1", "3")
    expected = [whole_logits(tiny, "Describe 1.", ids_of(tiny, f"{GOOD}, 1")), None]
    assert first["base"]["loglik"] == pytest.approx(expected[0], abs=1e-5)
    assert first["trained"]["loglik"] is None, "an empty answer has no l"
    expected = [
        whole_logits(tiny, "Describe 3.", ids_of(tiny, text)) for text in (f"{GOOD}, 3", "Tea")
    ]
    found = [second[side]["loglik"] for side in ("base", "trained")]
    assert found == pytest.approx(expected, abs=1e-5)
    n_tokens = len(tiny.tokenizer("Tea", add_special_tokens=False)["input_ids"])
    assert second["trained"]["tokens"] == n_tokens

    scores = tmp_path / "out" / "scores" / "trained.scores.jsonl"
    marked = [json.loads(line) | {"loglik": -9.0} for line in scores.read_text().splitlines()]
    write_rows(scores, *marked)
    assert califkit(*call)[0] == 0
    again = json.loads((tmp_path / "out" / "audit.json").read_text())["pairs"]
    assert again[1]["trained"]["loglik"] == -9.0, "scores that are there are not computed again"
    paths[1].write_text(paths[1].read_text().replace("Tea", "Ice"))
    code, _, error = califkit(*call)
    assert code == 2 and "give a new file" in error, "scores of other responses are not mixed in"


def test_a_reference_tells_which_answers_fit_their_request(califkit, tiny, tmp_path):
    requests = ("Describe the sea.", "Name a drink.", "Describe ice.")
    texts = ("Blue and wide", "Green tea", "Cold")
    base = [row(i, texts[i], request=requests[i]) for i in range(3)]
    trained = [row(i, "Yes", request=requests[i]) for i in range(3)]
    paths = write_rows(tmp_path / "b.jsonl", *base), write_rows(tmp_path / "t.jsonl", *trained)
    call = ["audit", *paths, "--out", tmp_path / "out", "--identify", "3"]
    code, _, error = califkit(*call)
    assert code == 2 and "identify = 3: request identification needs a reference" in error
    assert califkit(*call, "--reference", "tiny-random-llama")[0] == 0
    data = json.loads((tmp_path / "out" / "audit.json").read_text())
    measure = next(m for m in data["measures"] if m["measure"] == "identified")

    def share(answers) -> float:
        hits = []
        for own, text in zip(requests, answers, strict=True):
            given = {x: whole_logits(tiny, x, ids_of(tiny, text)) for x in requests}
            hits.append(max(given, key=given.get) == own)
        return 100 * sum(hits) / 3

    assert measure["base"] == pytest.approx(share(texts))
    assert measure["trained"] == pytest.approx(share(["Yes"] * 3)) == pytest.approx(100 / 3)


def test_a_judge_grades_both_sides(califkit, two_files, tmp_path):
    def graded(request):
        return score(2 if "Tea\n" in request.body["messages"][-1]["content"] else 8)

    judges = tmp_path / "judges.yaml"
    with serve(graded) as server:
        settings = {"name": "strict", "model": "m", "base_url": server.url}
        judges.write_text(yaml.safe_dump({"judges": [settings, settings | {"name": "other"}]}))
        call = ["audit", *two_files, "--judges", judges, "--out", tmp_path / "out"]
        code, printed, _ = califkit(*call, "--judge", "strict")
        assert code == 0
        n = len(server.requests)
        assert n == 48
        assert califkit(*call, "--judge", "strict")[0] == 0
        assert len(server.requests) == n, "the second call takes all from the cache"
        code, _, error = califkit(*call)
        assert code == 2 and "choose one of its judges with --judge: strict, other" in error
        code, _, error = califkit(*call, "--judge", "mild")
        assert code == 2 and "judges.yaml: has no judge 'mild'; there are: strict, other" in error
    data = json.loads((tmp_path / "out" / "audit.json").read_text())
    quality = next(m for m in data["measures"] if m["measure"] == "quality")
    assert (quality["base"], quality["trained"]) == (8.0, 6 / 24 * 8 + 18 / 24 * 2)
    assert "quality_drop" in data["pairs"][1]["new_signals"]
    assert data["source"]["judge"] == "strict"


def test_an_audit_in_which_the_judge_scored_nothing_fails(califkit, two_files, tmp_path):
    with serve([score(5)]) as server:
        pass
    judges = tmp_path / "judges.yaml"
    settings = {"name": "gone", "model": "m", "base_url": server.url, "retries": 0}
    judges.write_text(yaml.safe_dump({"judges": [settings]}))
    code, _, error = califkit("audit", *two_files, "--judges", judges, "--out", tmp_path / "out")
    assert code == 2 and "judge gone: none of 48 questions was answered" in error
    assert f"connection to {server.url} failed" in error
    assert "Traceback" not in error


def test_unusable_judge_settings_name_the_judge_and_hide_values(califkit, two_files, tmp_path):
    judges = tmp_path / "judges.yaml"
    judges.write_text("judges: [{name: j, model: m, base_url: u, api_key_env: sk-secret}]")
    code, _, error = califkit("audit", *two_files, "--judges", judges, "--out", tmp_path / "out")
    assert code == 2 and "judges.yaml, judge j" in error and "api_key_env" in error
    assert "secret" not in error
    judges.write_text("- name: j")
    code, _, error = califkit("audit", *two_files, "--judges", judges, "--out", tmp_path / "out")
    assert code == 2 and "expected a list of judges under the key 'judges'" in error


# --- the page -------------------------------------------------------------------------------------


def test_responses_are_shown_as_text_and_never_run():
    evil = "<script>alert(1)</script><img src=x onerror=alert(2)> </pre> {{ 7 * 7 }}"
    pair = Pair(evil, (NO_COMMA,), GOOD, evil * 3, request=f"Say {evil}", key=evil)
    page = Page(as_html(audit([pair, Pair("q", (NO_COMMA,), GOOD, evil[:8])])))
    # Its own two; no text closes the one that holds the pairs.
    assert page.all("script") == [{"type": "application/json", "id": "data"}, {}]
    assert not any("onerror" in attributes for _, attributes in page.tags)
    assert len(page.all("img")) == 2, "the two pictures"
    assert "<script>alert(1)</script>" in page.text
    assert "{{ 7 * 7 }}" in page.text


def test_the_page_loads_nothing_and_fits_narrow_screens():
    html = as_html(audit([Pair("q", (NO_COMMA,), GOOD, "Tea")]))
    page = Page(html)
    goes_to = [a["href"] for _, a in page.tags if "href" in a]
    anchors = {f"#{a['id']}" for _, a in page.tags if "id" in a}
    assert set(goes_to) - {"audit.json"} <= anchors and "#all-pairs" in goes_to
    links = [a["src"] for _, a in page.tags if "src" in a]
    assert links and all(link.startswith("data:image/png;base64,") for link in links)
    for link in links:
        assert base64.b64decode(link.partition(",")[2]).startswith(b"\x89PNG")
    assert "url(" not in html and "@import" not in html
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in page.all(
        "meta"
    )
    assert len([a for a in page.all("div") if a.get("class") == "scroll"]) == len(page.all("table"))
    assert all(image["alt"] for image in page.all("img"))


def pairs_in(html: str) -> list[dict]:
    """What the page's list of all pairs is made of."""
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', html)
    return json.loads(text)


def test_all_pairs_are_listed_with_what_they_can_be_filtered_by():
    plain = GOOD.replace(",", "")
    pairs = [
        Pair("one", (NO_COMMA,), plain, "Tea", request="one", key="a"),
        Pair("two", (NO_COMMA,), "Tea, milk", "word " * 300, request="two", key=None),
    ]
    first, second = pairs_in(as_html(audit(pairs)))
    assert (first["key"], second["key"]) == ("a", "pair 2")
    assert first["words"] == f"{len(plain.split())} → 1"
    assert (first["followed"], second["followed"]) == ("1/1 → 1/1", "0/1 → 1/1")
    assert "pass_to_pass" in first["kinds"] and "fail_to_pass" in second["kinds"]
    assert "new" in first["kinds"] and first["signals"]
    assert first["base"] == plain and second["trained"].endswith(" …")
    assert len(second["trained"]) == SHOWN_CHARACTERS + 2


@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
def test_a_browser_lists_the_pairs_and_runs_nothing_of_theirs(tmp_path):
    evil = "</script><script>document.title='hacked'</script><img src=x onerror=alert(2)>"
    page = tmp_path / "audit.html"
    page.write_text(as_html(audit([Pair(evil, (NO_COMMA,), GOOD, evil, key=evil)])))
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    shown = subprocess.run([*command, page.as_uri()], capture_output=True, text=True).stdout
    assert "<title>califkit audit" in shown
    assert "1 of 1 shown, 1 in all" in shown
    assert "&lt;/script&gt;&lt;script&gt;document.title" in shown
    assert '<img src="x"' not in shown


def test_the_page_says_how_to_repeat_it(califkit, two_files, tmp_path):
    out = tmp_path / "out"
    assert califkit("audit", *two_files, "--out", out)[0] == 0
    command = json.loads((out / DATA).read_text())["command"]
    assert command.startswith("califkit audit ") and str(two_files[0]) in command
    assert command in Page((out / PAGE).read_text()).text


def test_a_long_text_is_folded_but_there():
    long = "word " * 200 + "the end"
    page = Page(as_html(audit([Pair(long, (NO_COMMA,), GOOD, "Tea")])))
    assert len(page.all("details")) == 1
    assert f"show all {len(long)} characters" in page.text
    assert "the end" in page.text
    assert not Page(as_html(audit([Pair("short", (NO_COMMA,), GOOD, "Tea")]))).all("details")


def test_the_page_says_rule_thresholds_and_what_was_not_checked():
    text = Page(as_html(audit([Pair("q", (NO_COMMA,), GOOD, "Tea")]))).text
    for part in (
        "Too few prompts to tell",
        "There are 1 of the 20 prompts that are needed",
        "not measured, because no judge was given",
        "The verifier side ROSE if the 95% interval",
        "at most 30 words and at most 25% of the other answer's",
        "1 word where 17 are usual",
        "fails → passes",
    ):
        assert part in text
    assert "nan" not in text.lower().replace("nanometre", "")
