"""Execution of a stage: a function of this library, or a job that is waited for.

The equivalent command is printed first. A job is identified by its spec, so that a killed loop finds it again.
"""

from __future__ import annotations

import runpy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vidqa import spec
from vidqa.core.cli import SKILL_ROOT, USAGE, chosen, command, note
from vidqa.core.problem import ProblemError
from vidqa.gaps.deft.state import Cost, Fact, Where
from vidqa.jobs import api
from vidqa.preflight import launch_gate
from vidqa.spec.build import Request, build
from vidqa.spec.layers import text_of
from vidqa.spec.serialization import write_spec

SETTINGS_PAGE = "workflow/deft/deft.md lists the settings"


def announce(script: str, *words: object) -> None:
    """Print the command that is equivalent to the following step."""
    note(f"$ {command(script, *words)}")


def words_of(options: Mapping[str, object]) -> list[str]:
    """The options of a script by name as words; a list becomes several values, and missing values (None, "") are
    dropped."""
    words: list[str] = []
    for name, value in options.items():
        values = value if isinstance(value, (list, tuple)) else [value]
        if present := [str(item) for item in values if item not in (None, "")]:
            words += [f"--{name}", *present]
    return words


def options_of(script: str, own: Sequence[str], further: Sequence[str]) -> dict[str, Any]:
    """Parse the loop's words and a user's further ones with the script's own parser. Returns the fields of its request;
    `fields` of a script checks them together. Raises USAGE for options that the script refuses, and for those that the
    loop itself sets."""
    program = runpy.run_path(str(SKILL_ROOT / "scripts" / f"{script}.py"))
    parser = program["parser"]
    where = f"options of {script}.py"
    try:
        if further and not further[0].startswith("-"):
            parser.error(f"{further[0]!r} does not belong to an option")
        decided, options = vars(parser.parse_args(own)), parser.parse_args([*own, *further])
        fields: dict[str, Any] = program.get("fields", chosen)(options)
    except ProblemError as refused:
        raise USAGE.error(where, refused.problems[0].message, SETTINGS_PAGE) from refused
    for name, value in vars(options).items():
        is_decided = decided[name] != parser.get_default(name) and not isinstance(value, list)
        if value != decided[name] and (is_decided or name not in fields):
            raise USAGE.error(where, f"--{name.replace('_', '-')} is set by the loop itself", "leave it out")
    return fields


def announced_options(script: str, own: Mapping[str, object], further: Sequence[str]) -> dict[str, Any]:
    """Call `options_of` with the loop's options by name, and print the command."""
    words = words_of(own)
    fields = options_of(script, words, further)
    announce(script, *words, *further)
    return fields


def settings_words(keys: Mapping[str, object]) -> tuple[str, ...]:
    """KEY=VALUE for keys of a spec."""
    return tuple(f"{key}={text_of(value)}" for key, value in keys.items())


def write_recipe(request: Request, out: Path) -> Path:
    """Build the spec of a request and write it. Raises its problems."""
    words = [word for path in request.overrides for word in ("--override", path)]
    words += [word for text in request.sets for word in ("--set", text)]
    options = words_of({"model": request.model, "results-dir": request.results_dir, "out": out})
    announce("build_spec", request.action, *words, *options)
    write_spec(out, spec.dump(build(request).spec), request.action)
    return out


def launch_words(where: Where) -> list[str]:
    """The options of launch.py for platform and resources, without those at their defaults."""
    resources = where.model_dump(exclude={"platform", "agreed"}, exclude_defaults=True)
    return [*words_of({"platform": where.platform, **resources}), *(["--yes"] if where.agreed else [])]


def job(action: str, spec_path: Path, where: Where) -> tuple[Path, dict[str, Fact], Cost]:
    """Run folder, facts and cost of the job of a spec, once it is complete: it is started, resumed, or an existing one
    is reused. Raises its problems."""
    announce("launch", action, "--spec", spec_path, *launch_words(where), "--wait")
    handle = api.completed(action, spec_path, where.platform, where, ready=launch_gate.ready)
    record, cost = handle.record(), handle.cost()
    facts: dict[str, Fact] = {"run_dir": record.run_dir, "job": record.job_id}
    return Path(record.run_dir), facts, Cost(seconds=cost.seconds, gpu_seconds=cost.gpu_seconds)
