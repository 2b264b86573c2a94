"""The run folder: its name, its files before the engine starts, and the folder that a resumed run continues."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from vidqa.core import files
from vidqa.core.cli import refused_writes
from vidqa.core.locks import BUSY
from vidqa.core.run_folder import RUN_SCHEMA, RunFolder
from vidqa.jobs.platforms._base import State
from vidqa.jobs.records import MOST_NUMBER


def new_name(fingerprint: str, used_names: set[str]) -> str:
    """A run's name: the time and the beginning of the spec's fingerprint, with a number if it is in `used_names`."""
    first = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{fingerprint[:6]}"
    name, count = first, 1
    while name in used_names:
        count += 1
        name = f"{first}-{count}"
    return name


def newest_run(output_dir: Path, **values: str) -> Path | None:
    """The last launched run in `output_dir` whose run.json has these values. Runs of earlier versions have no launch
    number: they come first, ordered by name, which begins with the time."""
    fit = [(_sequence(run), folder.name) for folder, run in _runs(output_dir) if values.items() <= run.items()]
    return output_dir / max(fit)[1] if fit else None


def last_sequence(output_dir: Path) -> int:
    """The highest launch number in `output_dir`; 0 without any."""
    return max((_sequence(run) for _, run in _runs(output_dir)), default=0)


def _runs(output_dir: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Each run folder in `output_dir`, and its run.json."""
    for path in output_dir.glob("*/run.json"):
        yield path.parent, RunFolder(path.parent).read_run()


def _sequence(run: dict[str, Any]) -> int:
    number = run.get("sequence")
    return number if isinstance(number, int) and 0 <= number < MOST_NUMBER else 0


def producing_run(model: Path) -> str | None:
    """The run whose folder contains this model, as <run>/safetensors/<name>."""
    for folder in list(model.parents)[:3]:
        run_id = RunFolder(folder).read_run().get("run_id")
        if run_id:
            return str(run_id)
    return None


def prepare(run_dir: Path, texts: dict[str, str], facts: dict[str, Any], job_id: str) -> None:
    """Write the files `texts`, run.json and a PENDING status.json; remove the problems of an earlier job in it.

    Raises ENV_FILE_REFUSED, and BUSY if another launch has created the folder of a new run meanwhile.
    """
    run = RunFolder(run_dir).read_run() or {"schema_version": RUN_SCHEMA, "created": files.now(), **facts}
    run["jobs"] = [*run.get("jobs", []), job_id]
    run["preflight"] = facts["preflight"]  # of the newest job
    with refused_writes(run_dir):
        try:
            run_dir.mkdir(parents=True, exist_ok=run_dir.name != job_id)
        except FileExistsError as exists:  # launches with another state folder, in the same second, do not see this one
            raise BUSY.error(run_dir, "another launch has just created it", "run the same command again") from exists
        for name, text in texts.items():
            files.write_text(run_dir / name, text)
        files.write_json(run_dir / "run.json", run)
        RunFolder(run_dir).write_status(State.PENDING)
        files.remove(run_dir / "problems.json", owner=run_dir)
        (run_dir / "log.txt").touch()
        with files.open_plain(run_dir / "log.txt"):
            pass  # the log must be writable before the job starts
