"""Renders a model's chat template the way transformers does: same syntax, same helpers, sandboxed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from vidqa.chat.problems import TEMPLATE_BROKEN
from vidqa.families._base import read_json
from vidqa.families.problems import MODEL_FILE_MISSING

Message = dict[str, Any]


class Template:
    """One compiled template; `names` are the special tokens it may refer to, e.g. bos_token."""

    def __init__(self, source: str, place: str, names: Mapping[str, str]) -> None:
        self.source = source
        self.place = place
        try:
            self._compiled = _environment().from_string(source, globals=dict(names))
        except jinja2.TemplateError as broken:
            raise TEMPLATE_BROKEN.error(place, f"the chat template is not valid Jinja: {broken}") from broken
        self._compiled.globals = dict(self._compiled.globals)  # copied by every render, which is slow for a chain

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        try:
            return self._compiled.render(
                messages=messages, tools=None, documents=None, add_generation_prompt=add_generation_prompt
            )
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError) as broken:
            roles = ", ".join(message["role"] for message in messages)
            message = f"the chat template fails on a conversation of {roles}: {broken}"
            raise TEMPLATE_BROKEN.error(self.place, message) from broken


def load_template(folder: Path, tokenizer_config: Mapping[str, Any], names: Mapping[str, str]) -> Template:
    """The folder's chat template, looked for where transformers puts it. Raises MODEL_FILE_MISSING."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            return Template(path.read_text(encoding="utf-8"), str(path), names)
        except (OSError, UnicodeDecodeError) as broken:
            raise MODEL_FILE_MISSING.error(path, f"the chat template cannot be read: {broken}") from broken
    for name in ("chat_template.json", "processor_config.json", "preprocessor_config.json"):
        if (folder / name).is_file():
            source = _named_default(read_json(folder, name).get("chat_template"))
            if source:
                return Template(source, str(folder / name), names)
    source = _named_default(tokenizer_config.get("chat_template"))
    if source is None:
        raise MODEL_FILE_MISSING.error(folder, "the model folder has no chat template (chat_template.jinja or .json)")
    return Template(source, str(folder / "tokenizer_config.json"), names)


def _named_default(found: Any) -> str | None:
    """A template is a text, or several named ones of which `default` is meant."""
    if isinstance(found, list):
        found = {entry.get("name"): entry.get("template") for entry in found if isinstance(entry, dict)}
    if isinstance(found, dict):
        found = found.get("default")
    return found if isinstance(found, str) else None


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as models saw it in training: Jinja's own filter would escape < and > for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


class GenerationBlock(Extension):
    """{% generation %}...{% endgeneration %} renders its body; what is learned is found from the turns instead."""

    tags = {"generation"}  # noqa: RUF012  the name and type are Jinja's

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body).set_lineno(line)
