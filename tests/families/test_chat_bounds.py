"""Chat templates and tokenizers that would fill the memory or run for minutes are refused; the usual ones are not,
however long a conversation is."""

from __future__ import annotations

import json
import resource
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from vidqa.core.problem import ProblemError
from vidqa.families.chat import load_chat
from vidqa.families.chat_template import Template

REPLACE = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
ROUNDS = "{% set n = namespace(x='ab' * 99, l=[1], i=3, o=0) %}{% for _ in range(40) %}{% set n.x = BODY %}{% endfor %}"
EACH = "{% set a = 'a' * 100000 %}{% for _ in range(99999) %}{% set b = BODY %}{% endfor %}"
BOMBS = [
    *(
        ROUNDS.replace("BODY", body) + "{{ n.x | length }}"
        for body in (
            *("n.x + n.x", "n.x ~ n.x", "'%s%s' % (n.x, n.x)", "n.x | replace('a', n.x)", "n.x.replace('a', n.x)"),
            *("[n.x, n.x] | join", "[n.x, n.x] | join(n.x)", "n.x.join([n.x, n.x])", "n.x.join('abc' * 99)"),
            *("'{}{}'.format(n.x, n.x)", "'%s%s' | format(n.x, n.x)", "n.x | map('upper') | join(n.x)"),
            *(
                "(n.x ~ '\\n' ~ n.x) | indent(n.x)",
                "(n.x | list) + (n.x | list)",
                "[n.x, n.x] | tojson",
                "[n.x, n.x] | string",
            ),
            *("n.x.translate({97: n.x})", "n.x | list | map('replace', 'a', n.x) | join", "(n.x, n.x) | string"),
            *("n.x | center(10 ** 9)", "(n.x ~ '\\n') * 2", "{'a': n.x, 'b': n.x} | tojson(indent=10 ** 9)"),
        )
    ),
    *(
        EACH.replace("BODY", body)
        for body in (
            "a[1:]",
            "a == a ~ 'b'",
            "a | upper",
            "a.find('b')",
            "'b' in a",
            "a is eq('b' ~ a)",
            "a.split('b')",
        )
    ),
    *(
        ROUNDS.replace("n.x = BODY", "n.l = [n.l, n.l]") + end
        for end in ("{{ n.l }}", "{{ n.l | tojson }}", "{{ n.l ~ '' }}", "{{ n.l == [n.l] }}", "{{ n.l is eq([n.l]) }}")
    ),
    ROUNDS.replace("n.x = BODY", "n.i = n.i * n.i"),
    ROUNDS.replace("n.x = BODY", "n.o = namespace(a=n.o, b=n.o)") + "{{ n.o }}",
    "{% set a = 'a' * 1000000 %}{% for _ in range(99999) %}{{ a }}{% endfor %}",
    "{% set a %}{% for _ in range(99999) %}{{ 'a' * 9999 }}{% endfor %}{% endset %}{{ a }}",
    "{% set a %}{{ 'a' * 1000000 }}{% endset %}{% for b in a %}{% for c in a %}{% endfor %}{% endfor %}",
    *(
        "{{ (1).to_bytes(10 ** 10, 'big') }}",
        "{{ 'a'.zfill(10 ** 10) }}",
        "{{ '%999999999d' % 1 }}",
        "{{ '%*d' % (1, 2) }}",
    ),
    *("{{ lipsum(10 ** 9) }}", "{{ strftime_now('%999999999d') }}", "{{ '\\t' | list | tojson(indent=10 ** 9) }}"),
    "{% set l = range(99999) | list %}{{ l | sort(attribute='a') | join('a' * 99999) }}",
]
USUAL = (
    "{%- set n = namespace(text='', thoughts=[]) -%}"
    "{%- for message in messages[0:] -%}{%- if message.content is string and '</think>' in message.content -%}"
    "{%- set n.thoughts = n.thoughts + [message.content.split('</think>')[0].rstrip('\\n')] -%}{%- endif -%}"
    "{%- set n.text = n.text ~ '<|im_start|>' + message['role'] + '\\n' ~ (message.content | trim) -%}"
    "{%- if loop.index0 % 2 == 1 and loop.index0 < messages | length - 1 -%}{%- set n.text = n.text + ' ' -%}"
    "{%- endif -%}{%- endfor -%}{{ n.text }}{{ n.thoughts | length }}{{ '%s of %d' % ('a', 9 ** 9) }}"
)


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_template_can_neither_run_for_minutes_nor_fill_the_memory(bomb: str) -> None:
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with pytest.raises(ProblemError, match="CHAT_TEMPLATE_BROKEN"):
        Template(bomb, "chat_template.jinja", {}).render([], add_generation_prompt=True)
    assert time.process_time() - began < 60
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 700_000  # kB


@pytest.mark.parametrize(("turns", "letters"), [(2, 3_000_000), (100, 1000), (1000, 20)])
def test_a_long_conversation_is_rendered(turns: int, letters: int) -> None:
    messages = [{"role": "user", "content": "é" + "x" * letters} for _ in range(turns)]
    text = Template(USUAL, "chat_template.jinja", {}).render(messages, add_generation_prompt=True)
    assert text.count("<|im_start|>user") == turns and text.endswith(f"0a of {9**9}")


def test_a_template_of_a_megabyte_is_not_compiled() -> None:
    with pytest.raises(ProblemError, match="characters"):
        Template("{{ 1 }}" * 200_000, "chat_template.jinja", {})


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("normalizer", {"type": "Prepend", "prepend": "x" * 10_000_000}),
        ("normalizer", {"type": "Sequence", "normalizers": [REPLACE] * 40}),
        (
            "normalizer",
            {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Sequence", "normalizers": [REPLACE]}]},
        ),
        ("normalizer", {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": ""}),
        (
            "pre_tokenizer",
            {"type": "Split", "pattern": {"Regex": "a|" * 20_000}, "behavior": "Isolated", "invert": False},
        ),
    ],
)
def test_a_part_without_bounds_is_refused_at_once(model_folder: Path, tmp_path: Path, part: str, value: Any) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model_folder, folder)
    described = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps({**described, part: value}))
    began = time.process_time()
    with pytest.raises(ProblemError, match=f"MODEL_UNSUPPORTED.*\n.*{part}"):
        load_chat(folder)
    assert time.process_time() - began < 60  # seconds; a quadratic tokenizer takes many minutes


def test_the_normalizer_of_published_tokenizers_is_taken(model_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model_folder, folder)
    described = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps({**described, "normalizer": {"type": "NFC"}}))
    assert load_chat(folder).text_ids("e\u0301") == load_chat(folder).text_ids("\u00e9")
