"""The Markdown of the repository as tests look at it: pages, links, anchors, paragraphs, commands."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from programs import program

from vidqa.core.cli import SKILL_ROOT, Parser

PATTERNS = ("*.md", "references/*.md", "workflow/**/*.md", "docker/**/*.md")
PAGES = sorted(path for pattern in PATTERNS for path in SKILL_ROOT.glob(pattern))
SCRIPTS = sorted((SKILL_ROOT / "scripts").glob("*.py"))
_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\n(?P<body>.*?)^(?P=indent)```", re.MULTILINE | re.DOTALL)


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def prose_of(page: Path) -> str:
    """The page without its fenced blocks."""
    return _FENCE.sub("", text_of(page))


def shell_lines(page: Path) -> Iterator[str]:
    """The commands in the page's bash blocks, joined where a backslash continues them, and those of plain blocks."""
    for block in _FENCE.finditer(text_of(page)):
        if block["language"] in ("bash", "sh", "console", ""):
            for line in block["body"].replace("\\\n", " ").splitlines():
                words = line.strip().removeprefix("$ ")
                if words.startswith(("python ", ".venv/bin/python ", "make ")):
                    yield words


def inline_code(page: Path) -> list[str]:
    """The code between single backquotes outside fenced blocks, in one line each."""
    return [" ".join(code.split()) for code in re.findall(r"(?<!`)`([^`]+)`(?!`)", prose_of(page))]


def anchors(page: Path) -> set[str]:
    """The anchors of the page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ +(.+?) *$", prose_of(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(page: Path) -> list[str]:
    return re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", prose_of(page))


def paragraphs(page: Path) -> list[str]:
    """Blocks of prose, list items and table rows of some length, in one line each."""
    blocks = re.split(r"\n\s*\n|\n(?=[*|\d])", prose_of(page))
    return [" ".join(block.split()) for block in blocks if len(block) > 90]


@cache
def parser_of(script: Path) -> Parser:
    """The option parser that a script builds when it is loaded."""
    return program(script).parser


def words_of(command: str) -> list[str]:
    return shlex.split(command, comments=True)
