"""Templates that print today's date render the same text on every day."""

import copy
import datetime
import os
import subprocess
import sys

import pytest
from transformers.utils import chat_template_utils

from califkit.models import chat
from califkit.models.chat import pin_date, pinned, render, template_date
from califkit.models.engines import chat_texts
from califkit.models.likelihood import ReferenceScorer

CHAT = "{% for turn in messages %}[{{ turn['role'] }}] {{ turn['content'] }}\n{% endfor %}"
GRANITE = "{{ \"Today's Date: \" + strftime_now('%B %d, %Y') + '.\n' }}" + CHAT
LLAMA = """
    {%- if not date_string is defined %}
        {%- if strftime_now is defined %}
            {%- set date_string = strftime_now("%d %b %Y") %}
        {%- else %}
            {%- set date_string = "none" %}
        {%- endif %}
    {%- endif %}
{{- "Today Date: " + date_string + "\n" }}"""
LLAMA += CHAT
IN_A_MACRO = "  {% macro head() %}{{ strftime_now('%H:%M %Z') }}|{% endmacro %}{{ head() }}" + CHAT
RENDERED = {
    GRANITE: "Today's Date: July 26, 2024.\n[user] Tea?\n",
    LLAMA: "Today Date: 26 Jul 2024\n[user] Tea?\n",
    IN_A_MACRO: "00:00 |[user] Tea?\n",
}
TURNS = [{"role": "user", "content": "Tea?"}]


@pytest.fixture
def tokenizer(tiny):
    return copy.deepcopy(tiny.tokenizer)


@pytest.fixture
def clock(monkeypatch):
    """Sets the day that transformers thinks it is."""

    def set_to(day: datetime.datetime) -> None:
        class Clock(datetime.datetime):
            @classmethod
            def now(cls, tz=None):
                return day

        monkeypatch.setattr(chat_template_utils, "datetime", Clock)

    return set_to


@pytest.mark.parametrize("template", RENDERED)
def test_a_chat_has_the_same_text_on_every_day(tiny, tokenizer, clock, template):
    tokenizer.chat_template = template
    scorer = ReferenceScorer(tiny.model, tokenizer)
    seen = []
    for day in (datetime.datetime(2026, 12, 1, 23, 59), datetime.datetime(2027, 1, 2, 9, 30)):
        clock(day)
        as_before = tokenizer.apply_chat_template(TURNS, tokenize=False)
        seen.append((render(tokenizer, TURNS), scorer.prefix_ids("Tea?")))
        assert chat_texts(tokenizer, ["Tea?"], thinking=False) == [RENDERED[template]]
        assert as_before != RENDERED[template], "without the date pinned it is another text"
    assert seen[0] == seen[1]
    assert seen[0][0] == RENDERED[template]
    assert tokenizer.decode(seen[0][1]) == RENDERED[template]
    assert tokenizer.chat_template == template
    assert template_date(tokenizer) == "2024-07-26"


@pytest.mark.parametrize("template", RENDERED)
def test_whoever_renders_with_a_pinned_tokenizer_gets_that_text(tokenizer, template):
    tokenizer.chat_template = {"default": template, "tool_use": CHAT}
    pin_date(tokenizer)
    assert tokenizer.apply_chat_template(TURNS, tokenize=False) == RENDERED[template]
    assert tokenizer.chat_template["tool_use"] == CHAT
    again = copy.deepcopy(tokenizer)
    pin_date(again)
    assert again.chat_template == tokenizer.chat_template


def test_a_template_without_a_clock_is_left_alone(tokenizer):
    template = tokenizer.chat_template
    assert pinned(template) is template
    assert template_date(tokenizer) is None
    expected = tokenizer.apply_chat_template(TURNS, tokenize=False)
    assert render(tokenizer, TURNS) == expected


def test_a_date_that_was_pinned_before_stays(tokenizer, monkeypatch):
    tokenizer.chat_template = GRANITE
    pin_date(tokenizer)
    monkeypatch.setattr(chat, "DATE", "2031-01-01")
    assert template_date(tokenizer) == "2024-07-26"
    assert render(tokenizer, TURNS) == RENDERED[GRANITE]


def test_every_directive_is_what_strftime_makes_of_it(tokenizer):
    midnight = datetime.datetime(2024, 7, 26, tzinfo=datetime.UTC)
    assert midnight.date().isoformat() == chat.DATE
    for name in chat._DIRECTIVES.keys() - {"%z", "%Z", "%s"}:
        assert chat._DIRECTIVES[name] == midnight.strftime(name), name
    assert chat._DIRECTIVES["%s"] == str(int(midnight.timestamp()))
    tokenizer.chat_template = "{{ strftime_now('100%% of %A the %-d, %%Y is %Y') }}"
    assert render(tokenizer, TURNS) == "100% of Friday the 26, %Y is 2024"


def test_the_time_zone_does_not_matter(tiny_folder):
    """In processes of their own, 26 hours apart by the calendar."""
    program = (
        "import sys; from califkit.models.chat import render\n"
        "from califkit.models.resolve import load_tokenizer\n"
        "from pathlib import Path\n"
        "tokenizer = load_tokenizer(Path(sys.argv[1]))\n"
        "tokenizer.chat_template = sys.argv[2]\n"
        "turns = [{'role': 'user', 'content': 'Tea?'}]\n"
        "print(render(tokenizer, turns), tokenizer.apply_chat_template(turns, tokenize=False))"
    )
    template = "{{ strftime_now('%d %s %H|') }}"
    outputs = [
        subprocess.run(
            [sys.executable, "-c", program, tiny_folder, template],
            env=os.environ | {"TZ": zone},
            capture_output=True,
            check=True,
            text=True,
        ).stdout.split("|")
        for zone in ("Etc/GMT+12", "Etc/GMT-14")
    ]
    (ours, theirs, _), (ours_there, theirs_there, _) = outputs
    assert ours == ours_there == "26 1721952000 00"
    assert theirs != theirs_there
