"""Uploads a run's files and exports, or one export, to a bucket and to the hub: python -m vidqa.data.storage.upload RUN

[train.ckpt] of the run's spec names the destinations. uploads.json in the run folder records what was uploaded and what
failed; an upload never changes the state of the run. Safe to run again: it sends only what is missing.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from vidqa.core import files
from vidqa.core.cli import note
from vidqa.core.problem import Problem, ProblemError
from vidqa.core.run_folder import RunFolder
from vidqa.data.problems import OPTION
from vidqa.data.storage.hub_upload import upload_export
from vidqa.data.storage.s3 import parse
from vidqa.data.storage.s3_upload import send

RECORD = "uploads.json"
EXPORT = "export.json"  # the facts file of a complete export
FINAL = "final"  # the export of a run of quantizing
HUB_NAME = re.compile(r"([\w.-]+/)?[\w.-]+")


@dataclass(frozen=True)
class Destinations:
    """Where a run is uploaded. `s3` is the address below which the run gets a folder of its name; `which` are the
    exports sent there: final (the best and the newest) or all; `hub` is organisation/name, or a name in the
    token's own namespace, and gets the best one."""

    s3: str | None = None
    which: str = "final"
    hub: str | None = None
    public: bool = False

    def __bool__(self) -> bool:
        return bool(self.s3 or self.hub)


def spec_destinations(run_dir: Path) -> Destinations:
    """The destinations in [train.ckpt] of the run's spec.toml. Raises DATA_OPTION without a spec.toml."""
    try:
        tables = tomllib.loads((run_dir / "spec.toml").read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as failed:
        raise OPTION.error(run_dir, f"its spec.toml cannot be read: {failed}") from failed
    ckpt = tables.get("train", {}).get("ckpt", {})
    s3 = f"s3://{ckpt.get('s3_bucket')}/{ckpt.get('s3_prefix', 'outputs')}" if ckpt.get("upload_s3") else None
    hub = str(ckpt.get("hf_repo_name")) if ckpt.get("upload_hf") else None
    return Destinations(s3, "all" if ckpt.get("upload_s3") == "all" else "final", hub)


def upload(run_dir: Path, to: Destinations, token: str | None) -> tuple[dict[str, Any], list[Problem]]:
    """Upload a run to every destination. Returns the outcome of each by its address, and all problems.

    Raises DATA_OPTION before anything is sent.
    """
    if not to:
        raise OPTION.error(run_dir, "neither the run's spec nor the command line names a destination")
    chosen = exports(run_dir, to.which)
    if to.hub and not HUB_NAME.fullmatch(to.hub):
        raise OPTION.error("--hub", f"{to.hub!r} is not of the form organisation/name or name")
    if to.hub and not chosen:
        raise OPTION.error(run_dir, "the run has no export for the hub")
    places: dict[str, Callable[[], dict[str, Any]]] = {}
    if to.s3:
        address = f"{parse(to.s3)}/{run_dir.name}"
        places[address] = lambda: send(address, run_dir, run_files(run_dir, chosen))
    if to.hub:
        best = best_export(run_dir, chosen)
        name, public = to.hub, to.public
        places[f"hub:{name}"] = lambda: upload_export(
            best, name, f"Export {best.name} of {run_dir.name}", token=token, public=public, without=RECORD
        )
    return _carry_out(run_dir, places)


def _carry_out(run_dir: Path, places: dict[str, Callable[[], dict[str, Any]]]) -> tuple[dict[str, Any], list[Problem]]:
    """Each destination in turn; a failure of one does not keep the next from being tried."""
    done: dict[str, Any] = {}
    problems: list[Problem] = []
    for address, carry_out in places.items():
        note(f"uploading {run_dir.name} to {address}")
        try:
            done[address] = {"state": "COMPLETE", "when": _now(), **carry_out(), "problems": []}
        except ProblemError as failed:
            done[address] = {"state": "ERROR", "when": _now(), "problems": [p.as_dict() for p in failed.problems]}
            problems += failed.problems
        _write_record(run_dir, {address: done[address]})
    return done, problems


def exports(run_dir: Path, which: str) -> list[Path]:
    """The complete exports of a run, oldest first: all, or the best and the newest. A folder that is an export itself,
    such as scripts/export.py writes, is its own."""
    if (run_dir / EXPORT).is_file():
        return [run_dir]
    run = RunFolder(run_dir)
    folders = [*run.complete(run.exports, EXPORT), *(path.parent for path in run.exports.glob(f"{FINAL}/{EXPORT}"))]
    if which == "all" or len(folders) < 2:
        return folders
    return [path for path in folders if path in (best_export(run_dir, folders), folders[-1])]


def best_export(run_dir: Path, among: list[Path]) -> Path:
    """The export that best.json names, otherwise the newest."""
    try:
        name = json.loads((run_dir / "best.json").read_text(encoding="utf-8"))["name"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        name = None
    return next((path for path in among if path.name == name), among[-1])


def run_files(run_dir: Path, chosen: list[Path]) -> list[Path]:
    """The files for a bucket: those of the run folder itself (spec, metrics, results, log ...), and the exports.
    Checkpoints are left out: they are three times the size, and of use only to resume the run."""
    own = [
        path for path in run_dir.iterdir() if path.is_file() and not path.name.startswith(".") and path.name != RECORD
    ]
    inside = [path for folder in chosen if folder != run_dir for path in folder.rglob("*") if path.is_file()]
    return sorted(own) + sorted(inside)


def _write_record(run_dir: Path, done: dict[str, Any]) -> None:
    """Add to the record of earlier uploads. A full disk costs the record, not the upload."""
    path = run_dir / RECORD
    try:
        before = dict(json.loads(path.read_text(encoding="utf-8"))["destinations"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        before = {}
    try:
        files.write_json(path, {"schema_version": 1, "destinations": {**before, **done}})
    except OSError as failed:
        note(f"{path} cannot be written: {failed}")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def main(run_dir: Path) -> int:
    """Upload at the end of a training. Problems go to the log and into the record, and make the exit code 1."""
    from vidqa.core import environment

    try:
        _, problems = upload(run_dir, spec_destinations(run_dir), environment.hf_token())
    except ProblemError as stopped:
        problems = stopped.problems
    for problem in problems:
        note(str(problem))
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
