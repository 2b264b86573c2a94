"""Convert a record to chat text: messages with a system prompt and a response mode, rendered by the model's template as
transformers does, sandboxed and bounded."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from vidqa.data.conversation import split_thinking
from vidqa.data.record import Record, Turn
from vidqa.families.model_files import read_json
from vidqa.families.problems import MODEL_BROKEN, SAMPLE_ANSWERS, TEMPLATE_BROKEN
from vidqa.families.template_sandbox import BoundedEnvironment

Message = dict[str, Any]
RESPONSE_MODES = ("answer", "think", "hybrid")
ANSWER = re.compile(r"\s*<answer>(.*?)</answer>\s*", re.DOTALL)
MAX_CHARS = 1 << 20  # characters of a template
# Exceptions of Python for errors in a template.
TEMPLATE_ERRORS = (
    *(TypeError, ValueError, KeyError, IndexError, AttributeError, ArithmeticError, MemoryError),
    *(RecursionError, NotImplementedError),
)


def messages_of(record: Record, system_prompt: str, response_mode: str, *, for_generation: bool) -> list[Message]:
    """Convert the record's turns to role/content messages.

    A turn without media has its text as content, one with media a list of parts. `system_prompt` is used if the record
    has no system turn. With `for_generation` the last assistant turn is left out, since the model generates it.
    """
    if response_mode not in RESPONSE_MODES:
        raise ValueError(f"response_mode is {response_mode!r}; known: {', '.join(RESPONSE_MODES)}")
    turns = list(record.turns)
    if for_generation and turns and turns[-1].role == "assistant":
        turns.pop()
    if system_prompt and (not turns or turns[0].role != "system"):
        turns.insert(0, Turn("system", (system_prompt,)))
    learned = not for_generation
    return [{"role": turn.role, "content": _content(record, turn, response_mode, learned)} for turn in turns]


def _content(record: Record, turn: Turn, response_mode: str, learned: bool) -> str | list[dict[str, str]]:
    if turn.role == "assistant":
        return _answer(record, turn.text, response_mode, learned and turn.learned)
    if all(isinstance(part, str) for part in turn.parts):
        return turn.text
    return [
        {"type": "text", "text": part} if isinstance(part, str) else {"type": record.media[part].kind}
        for part in turn.parts
    ]


def _answer(record: Record, text: str, response_mode: str, learned: bool) -> str:
    """The assistant's text in a response mode: for `answer` without its reasoning, else as written."""
    thinking, plain = split_thinking(text)
    if response_mode == "think" and learned and not thinking:
        message = f"response_mode is think, but the answer begins with {text[:40]!r}"
        raise SAMPLE_ANSWERS.error(record.source or record.id, message)
    if response_mode != "answer":
        return text
    wrapped = ANSWER.fullmatch(plain)
    plain = wrapped.group(1).strip() if wrapped else plain
    if learned and not plain.strip():
        message = f"response_mode is answer, but the text is only reasoning: {text[:40]!r}"
        raise SAMPLE_ANSWERS.error(record.source or record.id, message)
    return plain


class Template:
    """One compiled template; `names` are the special tokens that it may use, e.g. bos_token."""

    def __init__(self, source: str, place: str, names: Mapping[str, str]) -> None:
        self.source = source
        self.place = place
        if len(source) > MAX_CHARS:
            raise TEMPLATE_BROKEN.error(place, f"it has {len(source)} characters; the limit is {MAX_CHARS}")
        try:
            self._environment = BoundedEnvironment()
            self._compiled = self._environment.from_string(source, globals=dict(names))
        except (jinja2.TemplateError, RecursionError) as broken:
            raise TEMPLATE_BROKEN.error(place, f"the chat template is not valid Jinja: {broken}") from broken
        self._compiled.globals = dict(self._compiled.globals)  # every render copies it, which is slow for a ChainMap

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
    """Load the folder's chat template, in the order of transformers. Raises MODEL_BROKEN."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            return Template(path.read_text(encoding="utf-8"), str(path), names)
        except (OSError, UnicodeDecodeError) as broken:
            raise MODEL_BROKEN.error(path, f"the chat template cannot be read: {broken}") from broken
    for name in ("chat_template.json", "processor_config.json", "preprocessor_config.json"):
        if (folder / name).is_file():
            source = _named_default(read_json(folder, name).get("chat_template"))
            if source:
                return Template(source, str(folder / name), names)
    source = _named_default(tokenizer_config.get("chat_template"))
    if source is None:
        raise MODEL_BROKEN.error(folder, "the model folder has no chat template (chat_template.jinja or .json)")
    return Template(source, str(folder / "tokenizer_config.json"), names)


def _named_default(templates: Any) -> str | None:
    """The text of a template, or of the one named `default` in a list or table of templates."""
    if isinstance(templates, list):
        templates = {entry.get("name"): entry.get("template") for entry in templates if isinstance(entry, dict)}
    if isinstance(templates, dict):
        templates = templates.get("default")
    return templates if isinstance(templates, str) else None
