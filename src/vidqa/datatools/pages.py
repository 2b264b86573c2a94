"""What the pages of the data tools share: the look of the evaluation report, escaped texts, frames as data URLs."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from jinja2 import Environment, StrictUndefined

from vidqa.data.record import MediaRef
from vidqa.problem import ProblemError
from vidqa.scoring.posters import poster_frames
from vidqa.scoring.report_page import STYLE

HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{{ title }}</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<style>{{ style | safe }}</style></head><body><main>
<h1>{{ title }}</h1>
"""
FOOT = "</main></body></html>\n"
PROBLEMS = """
{% for problem in problems %}<div class="panel notice"><strong>{{ problem.code }}</strong> at {{ problem.where }}:
{{ problem.message }}. {{ problem.remedy }}</div>{% endfor %}
"""


def page(body: str, style: str, **values: Any) -> str:
    """A page of one file that opens offline and runs no script; every value is escaped."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["number"] = lambda value: f"{value:,}"
    return environment.from_string(HEAD + body + FOOT).render(style=STYLE + style, **values)


def frame_urls(ref: MediaRef, indices: Sequence[int], width: int = 200) -> tuple[list[str], str]:
    """(frames of a medium as data URLs, what is wrong with it or "")."""
    try:
        frames = poster_frames(ref.path, ref.member, indices, width)
    except ProblemError as unreadable:
        return [], unreadable.problems[0].message
    return [f"data:image/jpeg;base64,{base64.b64encode(frame).decode()}" for frame in frames], ""
