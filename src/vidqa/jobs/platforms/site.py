"""Site settings: one TOML file with a table per platform, validated before a launch.

    [docker]
    shm_gb = 32

Read from `--site FILE`, else from site.toml in the state folder, if any. references/site_template.toml,
which is generated from the models, documents every key.
"""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from vidqa.core import environment
from vidqa.core.files import open_plain
from vidqa.core.problem import Problem, ProblemError
from vidqa.jobs.platforms import NAMES, platform
from vidqa.jobs.platforms._base import Submitted
from vidqa.jobs.platforms.job_store import record_file
from vidqa.jobs.problems import JOB_RECORD_BROKEN, SITE_SETTINGS

MAX_PROBLEMS = 50


AbsolutePath = Annotated[str, Field(pattern=r"^/[\P{Cc}\t]*$")]
Interface = Annotated[str, Field(pattern=r"^[\w.-]{0,15}$")]


class SiteSettings(BaseModel):
    """The settings of one platform: strict types, no unknown keys, every field with a description."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


def is_unseen(settings: Any, path: str | Path) -> bool:
    """Whether the platform settings declare that a path is only on the cluster."""
    return any(Path(path).is_relative_to(folder) for folder in getattr(settings, "cluster_paths", ()))


def cache_folder(settings: Any, output_dir: Path) -> Path:
    """The cache folder of a job: this machine's, or one beside the runs if only the cluster sees them."""
    return output_dir / "cache" if is_unseen(settings, output_dir) else environment.cache_folder()


def read(name: str, file: Path | None = None) -> Any:
    """The settings of a platform, or its defaults. None for a platform without settings.

    Raises ProblemError with every problem of the file's table, and with unknown tables.
    """
    path = file or environment.state_folder() / "site.toml"
    tables = _tables(path) if file or path.is_file() else {}
    unknown = [name for name in tables if name not in NAMES]
    problems = [SITE_SETTINGS.at(path, f"there is no table [{name}]{_nearest(name, NAMES)}") for name in unknown]
    table = tables.get(name, {})
    if not isinstance(table, dict):
        problems.append(SITE_SETTINGS.at(f"{path} [{name}]", "this is a value; it must be a table"))
    if problems:
        raise ProblemError(problems)
    return validate(platform(name).settings, table, f"{path} [{name}]")


def settings_of(job: Submitted, model: type[Any] | None) -> Any:
    """The platform settings of a job as recorded at its launch; keys of other versions are dropped. None for a platform
    without settings. Raises JOB_RECORD_BROKEN."""
    if model is None:
        return None
    values = {name: value for name, value in (job.settings or {}).items() if name in model.model_fields}
    try:
        return model.model_validate(values)
    except ValueError as wrong:
        message = f"its settings are not valid for {model.__name__}: {str(wrong)[:500]}"
        raise JOB_RECORD_BROKEN.error(record_file(job.job_id), message) from wrong


def validate(model: type[Any] | None, table: dict[str, Any], where: str) -> Any:
    """A table as its settings model, None for a platform without one. Raises ProblemError with every unknown key and
    invalid value."""
    if model is None:
        if table:
            raise SITE_SETTINGS.error(where, f"this platform has no settings; here are: {', '.join(table)}")
        return None
    try:
        return model.model_validate(table)
    except ValidationError as wrong:
        errors = wrong.errors(include_url=False, include_context=False)[:MAX_PROBLEMS]
        raise ProblemError([_problem(model, error, where) for error in errors]) from wrong


def _tables(path: Path) -> dict[str, Any]:
    try:
        with open_plain(path) as file:
            return tomllib.load(file)
    except FileNotFoundError:
        remedy = "write it from references/site_template.toml, or omit --site"
        raise SITE_SETTINGS.error(path, "there is no such file", remedy) from None
    except (OSError, ValueError, RecursionError) as broken:
        raise SITE_SETTINGS.error(path, f"it cannot be read as TOML: {broken}") from broken


def _problem(model: type[Any], error: Any, where: str) -> Problem:
    place = ".".join(map(str, error["loc"]))
    if error["type"] != "extra_forbidden":
        value = environment.redacted(repr(error.get("input")))
        fields = [model.model_fields[name] for name in error["loc"][:1]]  # none if values contradict each other
        meant = "".join(f". Meaning: {field.description}" for field in fields)
        return SITE_SETTINGS.at(f"{where} {place}", f"{error['msg']}; it is {value:.100}{meant}")
    names = list(model.model_fields) if len(error["loc"]) == 1 else []
    return SITE_SETTINGS.at(f"{where} {place}", f"there is no key {error['loc'][-1]!r}{_nearest(place, names)}")


def _nearest(name: str, names: Any) -> str:
    close = difflib.get_close_matches(name, list(names), n=3, cutoff=0.5)
    return f"; near it: {', '.join(close)}" if close else f"; there are: {', '.join(names)}" if names else ""
