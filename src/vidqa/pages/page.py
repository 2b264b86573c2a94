"""One page as one file: it loads nothing, runs no script but its own, and shows whatever it is given as text."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping
from typing import Any

from jinja2 import Environment, StrictUndefined

from vidqa.pages.look import STYLE

HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{{ title }}</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'
 {%- if script_hash %}; script-src 'sha256-{{ script_hash }}'{% endif %}">
<style>{{ style | safe }}</style></head><body><main>
<h1>{{ title }}</h1>
"""
FOOT = "</main>{% if script %}<script>{{ script | safe }}</script>{% endif %}</body></html>\n"
PROBLEMS = """
{% for problem in problems %}<div class="panel notice"><strong>{{ problem.code }}</strong> at {{ problem.where }}:
{{ problem.message }}. {{ problem.remedy }}</div>{% endfor %}
"""
TILE = """
{%- macro tile(name, value, note="", bad=false) -%}
<div class="panel tile"><div class="name">{{ name }}</div><div class="value{{ ' bad' if bad }}">{{ value }}</div>
<div class="note">{{ note }}</div></div>
{%- endmacro -%}
"""


def page(
    body: str,
    *,
    title: str,
    style: str = "",
    script: str = "",
    filters: Mapping[str, Callable[..., str]] | None = None,
    **values: Any,
) -> str:
    """The page with `body`, a Jinja template; every value is escaped. `style` and `script` are our own text. The
    filters number and percent are there in any case."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(number=number, percent=percent, **(filters or {}))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() if script else ""
    html = environment.from_string(HEAD + body + FOOT).render(
        title=title, style=STYLE + style, script=script, script_hash=digest, **values
    )
    return html.encode("utf-8", "replace").decode()  # JSON may hold half of a surrogate pair, which no file can


def image_url(image: bytes) -> str:
    """A PNG or JPEG as a data URL."""
    kind = "png" if image.startswith(b"\x89PNG") else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(image).decode()}"


def percent(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{100 * value:.{digits}f} %"


def number(value: float | None) -> str:
    """Three digits of a measured number, all of a count."""
    return "–" if value is None else f"{value:.3g}" if isinstance(value, float) else f"{value:,}"
