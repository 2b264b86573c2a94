"""Jinja's sandbox with limits, so that a template can neither run for minutes nor fill the memory.

Loop iterations and calls count as steps. Results of operators, filters, methods and output count as bytes, before they
are created. Both counts start at zero with each conversation. Filters and methods whose result can exceed the size of
their arguments are removed; no published template of these models uses them.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from datetime import datetime
from functools import wraps
from typing import Any, NoReturn, cast

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MAX_STEPS = 2_000_000  # for one conversation; templates take about ten per turn
MAX_BYTES = 1 << 27  # limit of created bytes for one conversation, in addition to COPIES times its own size
COPIES = 256
MAX_BITS = 4096  # of an integer
CALL_STEPS = 10  # steps of a call, by its approximate time
PART_STEPS = 4  # steps for each part of a traversed value
SHORT_CHARS = 256  # characters of a text that takes less time than a step
ITEM_BYTES = 8  # bytes of a list item
# Names of the filters that are inserted into a parsed template.
ROUNDS, WHOLE, SLICED = "counted_rounds", "counted_whole", "counted_slice"
# Filters by what they read of their value: neither items nor content, only its items, or all of its content.
GLANCING = {"attr", "count", "d", "default", "first", "items", "last", "length", "map", "safe"}
GLANCING |= {"reject", "rejectattr", "select", "selectattr"}
LISTING = {"list", "reverse"}
READING = {"abs", "capitalize", "dictsort", "e", "escape", "float", "indent", "int", "join", "lower", "max", "min"}
READING |= {"replace", "round", "sort", "string", "title", "tojson", "trim", "unique", "upper"}
INDENTING = {"indent", "tojson"}  # their arguments are line widths
COMPARING = {"==", "!=", "<", "<=", ">", ">=", "eq", "equalto", "ne", "lt", "lessthan", "le", "gt", "greaterthan"}
COMPARING |= {"ge", "in"}
METHODS = {"capitalize", "casefold", "copy", "count", "endswith", "find", "get", "index", "isalnum", "isalpha"}
METHODS |= {"isascii", "isdecimal", "isdigit", "islower", "isnumeric", "isspace", "isupper", "items", "join", "keys"}
METHODS |= {"lower", "lstrip", "partition", "removeprefix", "removesuffix", "replace", "rfind", "rindex", "rpartition"}
METHODS |= {"rsplit", "rstrip", "split", "splitlines", "startswith", "strip", "swapcase", "title", "upper", "values"}
BUILT_IN = (str, bytes, int, float, list, tuple, dict, set, frozenset, range)
PLAIN_FORM = re.compile(r"(?:[^%]|%[sdr%])*")  # without widths
PLAIN_TIME = re.compile(r"(?:[^%]|%-?[a-zA-Z%])*")


class _Budget(threading.local):
    """Steps and bytes used by one conversation. Thread-local, because threads render in parallel."""

    steps = 0
    bytes = 0
    most_bytes = MAX_BYTES


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)

    def __init__(self) -> None:
        self.budget = _Budget()
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, loopcontrols], finalize=self._whole
        )
        self.filters["tojson"] = _to_json
        self.filters = {name: self._filter(name, self.filters[name]) for name in GLANCING | LISTING | READING}
        self.filters |= {ROUNDS: self._rounds, WHOLE: self._whole, SLICED: self._sliced}
        self.tests |= {name: self._comparison(cast(Any, self.tests[name])) for name in COMPARING}
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now
        del self.globals["lipsum"]

    def begin(self, messages: object) -> None:
        """Reset the counts for a conversation."""
        self.budget.steps, self.budget.bytes, self.budget.most_bytes = 0, 0, 1 << 62
        self._whole(messages)
        self.budget.most_bytes = MAX_BYTES + COPIES * self.budget.bytes
        self.budget.steps, self.budget.bytes = 0, 0

    def step(self, steps: int = 1) -> None:
        self.budget.steps += steps
        if self.budget.steps > MAX_STEPS:
            raise jinja2.TemplateError(f"it takes more than {MAX_STEPS} steps")

    def make(self, size: int) -> None:
        """Count bytes that are about to be created."""
        self.budget.bytes += size
        if self.budget.bytes > self.budget.most_bytes:
            raise jinja2.TemplateError(f"it makes more than {self.budget.most_bytes} bytes")

    def concat(self, pieces: Iterable[str]) -> str:
        """Join the output of a template, a macro or a block."""
        parts = list(pieces)  # these exist already
        self.make(sum(map(_size, parts)))
        return "".join(parts)

    def call(self, context: Any, called: Any, *args: Any, **kwargs: Any) -> Any:
        self.step(CALL_STEPS)
        owner, name = getattr(called, "__self__", None), getattr(called, "__name__", "")
        if isinstance(owner, BUILT_IN):
            reads = isinstance(owner, str) or name in ("count", "index")
            (self._whole if reads else self._sliced)(owner)
            for arg in (*args, *kwargs.values()):
                self._whole(arg)
            if name == "replace" and isinstance(owner, str):
                self._replaced(owner, *args)
            if name == "join":
                args = (self._joined(args[0], owner), *args[1:]) if args else args
        elif called is self.globals["range"]:
            self.step(sum(abs(arg) for arg in args if isinstance(arg, int)))
        result = super().call(context, called, *args, **kwargs)
        self.make(_size(result))
        return result

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
            if bits > MAX_BITS:
                raise jinja2.TemplateError(f"it has a number of more than {MAX_BITS} bits")
        elif operator == "%" and isinstance(left, str):
            if not PLAIN_FORM.fullmatch(left):
                raise jinja2.TemplateError("it formats a text with more than %s, %d, %r")
            self.make(_size(left))
            for _ in range(left.count("%")):
                self._whole(right)
        elif operator == "*":
            for times, value in ((left, right), (right, left)):
                if isinstance(times, int):
                    self.make(max(times, 0) * _size(value))
        else:
            self.make(_size(left) + _size(right))
        return super().call_binop(context, operator, left, right)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, BUILT_IN) and callable(value) and attr not in METHODS:
            return False
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> None:
        """Do nothing: `format` is not an allowed method, although Jinja would allow it."""

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """Parse a template, and insert counting filters at loops, concatenations, comparisons and slices."""
        tree = super()._parse(source, name, filename)
        for loop in list(tree.find_all(nodes.For)):
            loop.iter = _filtered(cast(nodes.Expr, loop.iter), ROUNDS)
        for joined in list(tree.find_all(nodes.Concat)):
            joined.nodes = [_filtered(node, WHOLE) for node in joined.nodes]
        for compared in list(tree.find_all(nodes.Compare)):
            compared.expr = _filtered(compared.expr, WHOLE)
            for operand in compared.ops:
                operand.expr = _filtered(operand.expr, WHOLE)
        for item in list(tree.find_all(nodes.Getitem)):
            if isinstance(item.arg, nodes.Slice):
                item.node = _filtered(item.node, SLICED)
        return tree

    def _rounds(self, values: Iterable[Any]) -> Iterable[Any]:
        """Count the iterations of a loop, at once if their number is known."""
        if isinstance(values, Sized):
            self.step(len(values))
            return values
        return self._one_by_one(values)

    def _one_by_one(self, values: Iterable[Any]) -> Iterator[Any]:
        for value in values:
            self.step()
            yield value

    def _sliced(self, value: Any) -> Any:
        self.make(_size(value))
        return value

    def _whole(self, value: Any) -> Any:
        """Count the value with all its content: the size of its text, and the time to compare it. Returns the value."""
        if type(value) is str:  # the most frequent type
            if len(value) > SHORT_CHARS:
                self.make(_size(value))
            return value
        values = [value]
        while values:
            part = values.pop()
            self.step(PART_STEPS)
            self.make(_size(part))
            if isinstance(part, (list, tuple, set, frozenset)):
                values += part
            elif isinstance(part, dict):
                values += [*part.keys(), *part.values()]
            elif isinstance(part, Namespace):
                values += vars(part).values()
        return value

    def _filter(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        at = 1 if hasattr(function, "jinja_pass_arg") else 0  # position of the value among the arguments

        @wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.step()
            value, others = args[at], [*args[at + 1 :], *kwargs.values()]
            if name not in GLANCING and isinstance(value, Iterable) and not isinstance(value, Sized):
                value = list(self._one_by_one(value))
            if name in LISTING:
                self._sliced(value)
            elif name in READING:
                for part in (value, *others):
                    self._whole(part)
                value = self._prepared(name, value, args[at + 1 :], kwargs)
            result = function(*args[:at], value, *args[at + 1 :], **kwargs)
            self.make(_size(result))
            return result

        return counted

    def _prepared(self, name: str, value: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Count the output of a filter before it is created. Returns the value."""
        if name == "replace":
            self._replaced(str(value), *args[:2], *(kwargs[key] for key in ("old", "new") if key in kwargs))
        if name == "join":
            return self._joined(value, args[0] if args else kwargs.get("d", ""))
        if name in INDENTING:
            width = sum(arg if isinstance(arg, int) else _size(arg) for arg in (*args, *kwargs.values()))
            before = self.budget.bytes
            self._whole(value)
            self.make(abs(width) * (self.budget.bytes - before))
        return value

    def _replaced(self, text: str, old: Any = "", new: Any = "", *_: Any) -> None:
        self.make(text.count(str(old)) * _size(str(new)))

    def _joined(self, values: Any, separator: Any) -> Any:
        """Count the items with a separator each. Returns the values."""
        if not isinstance(values, Sized):
            values = list(self._one_by_one(values))
        self.make(len(values) * _size(str(separator)))
        for value in values:
            self._whole(value)
        return values

    def _comparison(self, test: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(test)
        def counted(*args: Any) -> Any:
            for arg in args:
                self._whole(arg)
            return test(*args)

        return counted


def _filtered(node: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _size(value: Any) -> int:
    """Approximate size of a value in bytes, without its items."""
    if isinstance(value, str):
        return len(value) if value.isascii() else 2 * len(value)
    if isinstance(value, int):
        return value.bit_length() // 8 + 1
    return ITEM_BYTES * (1 + len(value)) if isinstance(value, (list, tuple, dict, set, frozenset)) else ITEM_BYTES


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON in the format of the models' training: Jinja's own filter would escape < and > for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    if not PLAIN_TIME.fullmatch(form):
        raise jinja2.TemplateError("it formats a time with widths")
    return datetime.now().strftime(form)


class GenerationBlock(Extension):
    """{% generation %}...{% endgeneration %} renders its body; supervised tokens are found by turns instead."""

    tags = {"generation"}  # noqa: RUF012  the name and type are Jinja's

    def parse(self, parser: jinja2.parser.Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)
