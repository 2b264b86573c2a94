"""Renders a model's chat template the way transformers does: same syntax, same helpers, sandboxed and bounded."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence, Sized
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from vidqa.families._base import read_json
from vidqa.families.chat.problems import TEMPLATE_BROKEN
from vidqa.families.problems import MODEL_FILE_MISSING

Message = dict[str, Any]
MOST_STEPS = 2_000_000  # for one conversation; templates take some ten a turn
A_CALL = 10  # steps: about the time that it takes
COUNTED = "counted_rounds"
# What Python raises for the mistakes that a template can make.
BY_A_TEMPLATE = (
    *(TypeError, ValueError, KeyError, IndexError, AttributeError, ArithmeticError, MemoryError),
    *(RecursionError, NotImplementedError),
)


class Template:
    """One compiled template; `names` are the special tokens it may refer to, e.g. bos_token."""

    def __init__(self, source: str, place: str, names: Mapping[str, str]) -> None:
        self.source = source
        self.place = place
        try:
            self._environment = BoundedEnvironment()
            self._compiled = self._environment.from_string(source, globals=dict(names))
        except (jinja2.TemplateError, RecursionError) as broken:
            raise TEMPLATE_BROKEN.error(place, f"the chat template is not valid Jinja: {broken}") from broken
        self._compiled.globals = dict(self._compiled.globals)  # copied by every render, which is slow for a chain

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        self._environment.steps = 0
        try:
            return self._compiled.render(
                messages=messages, tools=None, documents=None, add_generation_prompt=add_generation_prompt
            )
        except (jinja2.TemplateError, *BY_A_TEMPLATE) as broken:
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


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, in which a template can neither run for minutes nor fill the memory.

    Rounds of loops, calls, and characters and items that are multiplied count as steps; `render` sets them to 0.
    """

    intercepted_binops = frozenset(["*", "**"])

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, loopcontrols])
        self.steps = 0
        self.filters["tojson"] = _to_json
        self.filters[COUNTED] = self._counted
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda form: datetime.now().strftime(form)

    def count(self, steps: int) -> None:
        self.steps += steps
        if self.steps > MOST_STEPS:
            raise jinja2.TemplateError(f"it takes more than {MOST_STEPS} steps")

    def call(self, context: Any, called: Any, *args: Any, **kwargs: Any) -> Any:
        self.count(
            A_CALL + sum(len(arg) if isinstance(arg, Sized) else _size(arg) for arg in (*args, *kwargs.values()))
        )
        return super().call(context, called, *args, **kwargs)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**":
            self.count(_size(left) * _size(right) if isinstance(right, int) else 1)
        for times, many in ((left, right), (right, left)):
            if isinstance(times, int) and isinstance(many, Sized):
                self.count(max(times, 0) * len(many))
        return super().call_binop(context, operator, left, right)

    def _parse(self, source: str, name: str | None, filename: str | None) -> jinja2.nodes.Template:
        tree = super()._parse(source, name, filename)
        for loop in list(tree.find_all(jinja2.nodes.For)):
            loop.iter = jinja2.nodes.Filter(loop.iter, COUNTED, [], [], None, None, lineno=loop.lineno)
        return tree

    def _counted(self, rounds: Iterable[Any]) -> Iterable[Any]:
        """What a loop goes over, its rounds counted at once where their number is known."""
        if isinstance(rounds, Sized):
            self.count(len(rounds))
            return rounds
        return self._one_by_one(rounds)

    def _one_by_one(self, rounds: Iterable[Any]) -> Iterable[Any]:
        for each in rounds:
            self.count(1)
            yield each


def _size(value: Any) -> int:
    """What a number may make grow: as a count of repeats, or as an exponent."""
    return abs(value) if isinstance(value, int) else 0


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
