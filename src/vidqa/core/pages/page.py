"""Pages of a single HTML file, which loads nothing, runs only its own scripts, and escapes all its values."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from vidqa.core.cli import duration_text
from vidqa.core.problem import ProblemError

TEMPLATES = Path(__file__).parents[2]  # each template is beside its code, and extends core/pages/page.html.j2


def page(template: str, *, title: str, filters: Mapping[str, Callable[..., str]] | None = None, **values: Any) -> str:
    """Render a template, such as "core/pages/training.html.j2"; every value is escaped. The filters number, percent,
    duration and sha256 are always available."""
    html = _template(template, tuple((filters or {}).items())).render(title=title, **values)
    return html.encode("utf-8", "replace").decode() + "\n"  # lone surrogates cannot be written


@cache  # compiling one takes 0.2 s
def _template(name: str, filters: tuple[tuple[str, Callable[..., str]], ...]) -> Template:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        number=number, percent=_unbroken_percent, duration=duration_text, sha256=_sha256, **dict(filters)
    )
    return environment.get_template(name)


def _sha256(text: str) -> str:
    """SHA-256 in base64, as a content security policy names a script."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def image_url(image: bytes) -> str:
    """Encode a PNG or JPEG as a data URL."""
    kind = "png" if image.startswith(b"\x89PNG") else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(image).decode()}"


def card_images(read: Callable[[], list[bytes]]) -> dict[str, Any]:
    """{"frames": data URLs of the images that `read` returns, "fault": ""}; if it raises a ProblemError, no frames and
    the reason."""
    try:
        return {"frames": list(map(image_url, read())), "fault": ""}
    except ProblemError as error:
        return {"frames": [], "fault": error.problems[0].message}


def percent(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{100 * value:.{digits}f} %"


def _unbroken_percent(value: float | None, digits: int = 1) -> str:
    """A percentage with a no-break space before its sign."""
    return percent(value, digits).replace(" ", "\N{NO-BREAK SPACE}")


def number(value: float | None) -> str:
    """Format a measured number with three digits, an integer with all digits."""
    return "–" if value is None else f"{value:.3g}" if isinstance(value, float) else f"{value:,}"
