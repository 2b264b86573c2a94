"""Renders a model's chat template the way transformers does: same syntax, same helpers, sandboxed and bounded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from vidqa.families.chat.problems import TEMPLATE_BROKEN
from vidqa.families.chat.sandbox import BoundedEnvironment
from vidqa.families.model_files import read_json
from vidqa.families.problems import MODEL_FILE_MISSING

Message = dict[str, Any]
MAX_CHARS = 1 << 20  # characters of a template
# What Python raises for the mistakes that a template can make.
TEMPLATE_ERRORS = (
    *(TypeError, ValueError, KeyError, IndexError, AttributeError, ArithmeticError, MemoryError),
    *(RecursionError, NotImplementedError),
)


class Template:
    """One compiled template; `names` are the special tokens it may refer to, e.g. bos_token."""

    def __init__(self, source: str, place: str, names: Mapping[str, str]) -> None:
        self.source = source
        self.place = place
        if len(source) > MAX_CHARS:
            raise TEMPLATE_BROKEN.error(place, f"the chat template has {len(source)} characters; {MAX_CHARS} are taken")
        try:
            self._environment = BoundedEnvironment()
            self._compiled = self._environment.from_string(source, globals=dict(names))
        except (jinja2.TemplateError, RecursionError) as broken:
            raise TEMPLATE_BROKEN.error(place, f"the chat template is not valid Jinja: {broken}") from broken
        self._compiled.globals = dict(self._compiled.globals)  # copied by every render, which is slow for a chain

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        self._environment.begin(messages)
        try:
            return self._compiled.render(
                messages=messages, tools=None, documents=None, add_generation_prompt=add_generation_prompt
            )
        except (jinja2.TemplateError, *TEMPLATE_ERRORS) as broken:
            roles = ", ".join(dict.fromkeys(message["role"] for message in messages))
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


def _named_default(templates: Any) -> str | None:
    """A template is a text, or several named ones of which `default` is meant."""
    if isinstance(templates, list):
        templates = {entry.get("name"): entry.get("template") for entry in templates if isinstance(entry, dict)}
    if isinstance(templates, dict):
        templates = templates.get("default")
    return templates if isinstance(templates, str) else None
