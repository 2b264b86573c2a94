"""How a stage does its work: a function of this library, or a job that is waited for.

The command that does the same is printed first. A job is submitted by its spec, so that a killed loop finds it again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import Field, fields
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from vidqa import spec
from vidqa.core.cli import command, note
from vidqa.gaps.deft.state import Cost, Fact, Where
from vidqa.gaps.problems import DEFT_SETTING
from vidqa.jobs import api
from vidqa.jobs.launch import Resources
from vidqa.preflight import launch_gate
from vidqa.spec.build import Request, build
from vidqa.spec.serialization import write_spec

T = TypeVar("T")


def announce(script: str, *words: object) -> None:
    """Print the command that does what follows."""
    note(f"$ {command(script, *words)}")


def words_of(request: Any) -> list[object]:
    """The options of a script, one for each field of a dataclass that differs from its default."""
    words: list[object] = []
    for field in fields(request):
        value, option = getattr(request, field.name), _option(field).replace("_", "-")
        if value == field.default:
            continue
        if isinstance(value, bool):
            words.append(f"--{option}" if value else f"--no-{option}")
        else:
            words += [f"--{option}", *(value if isinstance(value, tuple) else [value])]
    return words


def _option(field: Field[Any]) -> str:
    return str(field.metadata.get("option", field.name))


def options_of(words: Sequence[str]) -> dict[str, list[str]]:
    """The values of each option by its name, as argparse reads --name value and --name=value. Raises DEFT_SETTING."""
    options: dict[str, list[str]] = {}
    values: list[str] | None = None
    for word in words:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            values = options.setdefault(name.replace("-", "_"), [])
            values += [value] if equals else []
        elif values is None:
            raise DEFT_SETTING.error("words", f"{word!r} is the value of no option", "write it as --per-gap 5")
        else:
            values.append(word)
    return options


def with_options(request: T, words: Sequence[str], script: str) -> T:
    """The request with further options of a script; those of a list are added to the loop's. Raises DEFT_SETTING."""
    field_of = {_option(field): field for field in fields(request)}  # type: ignore[arg-type]
    table = {field.name: getattr(request, field.name) for field in field_of.values()}
    for name, values in options_of(words).items():
        field = field_of.get(name.removeprefix("no_"))
        if field is None:
            raise DEFT_SETTING.error("words", f"{script}.py has no option --{name.replace('_', '-')} for the loop")
        if isinstance(value := table[field.name], tuple):
            table[field.name] = (*(value if value != field.default else ()), *values)
        else:
            table[field.name] = values[-1] if values else not name.startswith("no_")
    try:
        return TypeAdapter(type(request)).validate_python(table)
    except ValidationError as wrong:
        first = wrong.errors()[0]
        raise DEFT_SETTING.error("words", f"{script}.py {first['loc']}: {first['msg']}, {first['input']!r}") from wrong


def announced(request: T, words: Sequence[str], script: str) -> T:
    """The request with further options of a script, whose command is printed. Raises DEFT_SETTING."""
    request = with_options(request, words, script)
    announce(script, *words_of(request))
    return request


def settings_words(keys: Mapping[str, object]) -> tuple[str, ...]:
    """KEY=VALUE for keys of a spec."""
    texts = {key: value if isinstance(value, str) else json.dumps(value, default=str) for key, value in keys.items()}
    return tuple(f"{key}={text}" for key, text in texts.items())


def write_recipe(request: Request, out: Path) -> Path:
    """Build the spec of a request and write it. Raises its problems."""
    words: list[object] = [word for path in request.overrides for word in ("--override", path)]
    words += ["--model", request.model] if request.model else []
    words += [word for text in request.sets for word in ("--set", text)]
    announce("build_spec", request.action, *words, "--results-dir", request.results_dir, "--out", out)
    write_spec(out, spec.dump(build(request).spec), request.action)
    return out


def job(action: str, spec_path: Path, where: Where) -> tuple[Path, dict[str, Fact], Cost]:
    """Run folder, facts and cost of the job of a spec, once it is complete: it is started, found running, found done,
    or resumed. Raises its problems."""
    announce("launch", action, "--spec", spec_path, "--platform", where.platform, "--wait")
    resources = Resources(where.nodes, where.gpus, where.image, Path(where.site) if where.site else None, where.agreed)
    handle = api.completed(action, spec_path, where.platform, resources, ready=launch_gate.ready)
    record, cost = handle.record(), handle.cost()
    facts: dict[str, Fact] = {"run_dir": record.run_dir, "job": record.job_id}
    return Path(record.run_dir), facts, Cost(seconds=cost.seconds, gpu_seconds=cost.gpu_seconds)
