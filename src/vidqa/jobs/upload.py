"""Upload a run's files and exports, or one export, to a bucket and to the hub: python -m vidqa.jobs.upload RUN

[train.ckpt] of the run's spec names the destinations. uploads.json in the run folder records uploaded files and
failures; an upload never changes the state of the run. Safe to run again: only missing files are sent.
"""

from __future__ import annotations

import hashlib
import re
import sys
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vidqa.core import environment, files
from vidqa.core.cli import NOT_AGREED, USAGE, note
from vidqa.core.problem import Problem, ProblemError
from vidqa.core.run_folder import EXPORT, UPLOADS, RunFolder
from vidqa.data.problems import DENIED, UNREACHABLE
from vidqa.data.storage.hub import file_fault
from vidqa.data.storage.s3 import (
    MOST_NAMED,
    Object,
    connect,
    described,
    errors_at,
    hides_its_hash,
    objects_below,
    parse,
    transfers,
)
from vidqa.jobs.release import for_others

FINAL = "final"  # name of the export of a quantization run
PART = 64 << 20  # bytes of one part; a file below two parts is sent whole
MOST_PARTS = 9000  # S3 allows 10,000
HUB_NAME = re.compile(r"([\w.-]+/)?[\w.-]+")


@dataclass(frozen=True)
class Destinations:
    """Destinations of an upload. `s3` is the address below which the run gets a folder of its name; `which` selects the
    exports sent there: final (the best and the newest) or all; `hub` is organisation/name, or a name in the token's own
    namespace, and gets the best export."""

    s3: str | None = None
    which: str = "final"
    hub: str | None = None
    public: bool = False

    def __bool__(self) -> bool:
        return bool(self.s3 or self.hub)


def spec_destinations(run_dir: Path) -> Destinations:
    """The destinations in [train.ckpt] of the run's spec.toml. Raises USAGE without a spec.toml."""
    try:
        ckpt = tomllib.loads((run_dir / "spec.toml").read_text(encoding="utf-8")).get("train", {}).get("ckpt", {})
        s3 = f"s3://{ckpt.get('s3_bucket')}/{ckpt.get('s3_prefix', 'outputs')}" if ckpt.get("upload_s3") else None
        hub = str(ckpt.get("hf_repo_name")) if ckpt.get("upload_hf") else None
        return Destinations(s3, "all" if ckpt.get("upload_s3") == "all" else "final", hub)
    except (OSError, ValueError, AttributeError) as failed:
        raise USAGE.error(run_dir, f"its spec.toml cannot be read: {failed}") from failed


def upload(run_dir: Path, to: Destinations, token: str | None) -> tuple[dict[str, Any], list[Problem]]:
    """Upload a run to every destination. Returns the outcome of each by its address, and all problems.

    Raises USAGE before anything is sent.
    """
    if not to:
        raise USAGE.error(run_dir, "neither the run's spec nor the command line names a destination")
    chosen = exports(run_dir, to.which)
    if to.hub and not HUB_NAME.fullmatch(to.hub):
        raise USAGE.error("--hub", f"{to.hub!r} is not of the form organisation/name or name")
    if to.hub and not chosen:
        raise USAGE.error(run_dir, "the run has no export for the hub")
    places: dict[str, Callable[[], dict[str, Any]]] = {}
    if to.s3:
        address = f"{parse(to.s3)}/{run_dir.name}"
        places[address] = lambda: _send_to_bucket(address, run_dir, chosen)
    if to.hub:
        best = best_export(run_dir, chosen)
        name, public = to.hub, to.public
        message = f"Export {best.name} of {run_dir.name}"
        places[f"hub:{name}"] = lambda: upload_export(best, name, message, token=token, public=public)
    done: dict[str, Any] = {}
    problems: list[Problem] = []
    for place, send_to in places.items():  # after a failure of one, the next is still tried
        note(f"uploading {run_dir.name} to {place}")
        try:
            done[place] = {"state": "COMPLETE", "when": files.now(), **send_to(), "problems": []}
        except ProblemError as failed:
            done[place] = {"state": "ERROR", "when": files.now(), "problems": [p.as_dict() for p in failed.problems]}
            problems += failed.problems
        _write_record(run_dir, {place: done[place]})
    return done, problems


def _send_to_bucket(address: str, run_dir: Path, chosen: list[Path]) -> dict[str, Any]:
    """Copy a run as it is; an export alone is for others, and changed as for the hub."""
    if chosen != [run_dir]:
        return send(address, run_dir, run_files(run_dir, chosen))
    with for_others(run_dir, run_dir.name) as folder:
        return send(address, folder, sorted(folder.iterdir()))


def exports(run_dir: Path, which: str) -> list[Path]:
    """The complete exports of a run, oldest first: all, or the best and the newest. A folder that is an export itself,
    such as scripts/export.py writes, is its only export."""
    if (run_dir / EXPORT).is_file():
        return [run_dir]
    run = RunFolder(run_dir)
    folders = [*run.complete(run.exports, EXPORT), *(path.parent for path in run.exports.glob(f"{FINAL}/{EXPORT}"))]
    return [path for path in folders if which == "all" or path in (best_export(run_dir, folders), folders[-1])]


def best_export(run_dir: Path, among: list[Path]) -> Path:
    """The export named in best.json, otherwise the newest."""
    name = files.read_object(run_dir / "best.json").get("name")
    return next((path for path in among if path.name == name), among[-1])


def run_files(run_dir: Path, chosen: list[Path]) -> list[Path]:
    """The files for a bucket: those of the run folder itself (spec, metrics, results, log ...), and the exports.
    Checkpoints are left out: they are three times the size, and only needed to resume the run."""
    own = [
        path for path in run_dir.iterdir() if path.is_file() and not path.name.startswith(".") and path.name != UPLOADS
    ]
    inside = [path for folder in chosen if folder != run_dir for path in folder.rglob("*") if path.is_file()]
    return sorted(own) + sorted(inside)


def _write_record(run_dir: Path, done: dict[str, Any]) -> None:
    """Add to the record of earlier uploads. On a full disk only the record is lost, not the upload."""
    path = run_dir / UPLOADS
    before = files.read_object(path).get("destinations")
    before = before if isinstance(before, dict) else {}
    try:
        files.write_json(path, {"schema_version": 1, "destinations": {**before, **done}})
    except OSError as failed:
        note(f"{path} cannot be written: {failed}")


def upload_export(export: Path, name: str, message: str, *, token: str | None, public: bool) -> dict[str, Any]:
    """Commit the files of an export, with a model card, to the repository organisation/name, or to a name in the
    token's own namespace; it is created if necessary. Returns {"repository", "commit", "export", "files", "bytes"}.

    Files that the hub already has are not sent again. Raises NOT_AGREED, STORAGE_DENIED, STORAGE_UNREACHABLE.
    """
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError, HTTPError

    api = huggingface_hub.HfApi(endpoint=environment.hf_endpoint(), token=token)
    huggingface_hub.utils.disable_progress_bars()
    try:
        name = str(api.create_repo(name, private=not public, exist_ok=True).repo_id)
        if not public and not api.model_info(name).private:
            raise NOT_AGREED.error(name, "the repository is public", "make it private, name another, or add --public")
        with for_others(export, name) as folder:
            commit = api.upload_folder(repo_id=name, folder_path=folder, commit_message=message)
            sizes = {path: path.stat().st_size for path in sorted(folder.iterdir())}
            damaged = _differences(api, name, str(commit.oid), list(sizes))
    except HfHubHTTPError as answer:
        remedy = f"set HF_TOKEN to a token that may write there, and run: python scripts/upload.py RUN --hub {name}"
        raise DENIED.error(name, _short(answer), remedy) from answer
    except (HTTPError, OSError) as away:
        raise UNREACHABLE.error(name, f"{type(away).__name__}: {_short(away)}") from away
    except ValueError as refused:  # an invalid repository name
        raise DENIED.error(name, _short(refused), "correct the name") from refused
    if damaged:
        raise UNREACHABLE.error(name, f"differs from {export}: {', '.join(damaged[:10])}")
    return {
        "repository": name,
        "commit": str(commit.oid),
        "export": export.name,
        "files": len(sizes),
        "bytes": sum(sizes.values()),
    }


def _differences(api: Any, name: str, commit: str, files: Sequence[Path]) -> list[str]:
    """The names of files whose content differs from the hub's commit."""
    there = {entry.path: entry for entry in api.list_repo_tree(name, recursive=True, revision=commit)}
    return [
        path.name
        for path in files
        if (entry := there.get(path.name)) is None
        or file_fault(path.resolve(), entry.size, entry.lfs and entry.lfs.sha256, entry.blob_id)
    ]


def _short(failed: BaseException) -> str:
    return environment.redacted(" ".join(str(failed).split()))[:300]


def send(address: str, root: Path, paths: Sequence[Path]) -> dict[str, Any]:
    """Store every file below `address` under its path relative to `root`. Identical objects are not sent again.

    Returns {"files": [{"path", "bytes", "sha256", "etag"}, ...], "bytes", "sent"}, "sent" the number of transferred
    files. Raises ProblemError with every file that failed.
    """
    bucket = connect()
    there = {item.address: item for item in objects_below(bucket, address)}

    def send_one(path: Path) -> tuple[dict[str, Any], bool]:
        name = str(path.relative_to(root))
        return _send_one(bucket, address, name, path, there.get(f"{address}/{name}"))

    outcomes = list(transfers(send_one, paths, at_once=4))
    if problems := [problem for outcome in outcomes if isinstance(outcome, list) for problem in outcome]:
        raise ProblemError(problems[:MOST_NAMED])
    files = [outcome for outcome in outcomes if not isinstance(outcome, list)]
    return {
        "files": [stored for stored, _ in files],
        "bytes": sum(stored["bytes"] for stored, _ in files),
        "sent": sum(was_sent for _, was_sent in files),
    }


def _send_one(bucket: Any, root: str, name: str, path: Path, there: Object | None) -> tuple[dict[str, Any], bool]:
    """Store a file. Returns its entry, and whether it had to be sent."""
    address = f"{root}/{name}"
    with errors_at(address):
        size = path.stat().st_size
        part = max(PART, -(-size // MOST_PARTS))
        etag, sha256 = hashes(path, part)
        sent = {"path": name, "bytes": size, "sha256": sha256, "etag": etag}
        if there is not None and (there.size, there.etag) == (size, etag):
            return sent, False
        bucket.put_file(str(path), address, chunksize=part)
        stored = described(bucket.info(address, refresh=True))
        is_whole = stored.size == size and (stored.etag == etag or hides_its_hash(bucket, address))
    if not is_whole:
        message = f"{size} bytes with the tag {etag} were sent, {stored.size} with {stored.etag} are stored"
        raise UNREACHABLE.error(address, message)
    return {**sent, "etag": stored.etag}, True


def hashes(path: Path, part: int) -> tuple[str, str]:
    """The ETag that S3 gives a file sent in parts of `part` bytes, and its SHA-256.

    Source: S3's multipart ETag is the MD5 of the parts' MD5s, a dash, and their number; of a single part it is the MD5.
    """
    sha256, whole, parts, size = hashlib.sha256(), hashlib.md5(usedforsecurity=False), [], path.stat().st_size
    with path.open("rb") as file:
        while data := file.read(part):
            sha256.update(data)
            whole.update(data)
            parts.append(hashlib.md5(data, usedforsecurity=False).digest())
    if size < min(5 << 30, 2 * part):  # s3fs sends such a file in one part
        return whole.hexdigest(), sha256.hexdigest()
    return f"{hashlib.md5(b''.join(parts), usedforsecurity=False).hexdigest()}-{len(parts)}", sha256.hexdigest()


def main(run_dir: Path) -> int:
    """Upload at the end of a training. Problems go to the log and into the record; they make the exit code 1."""
    try:
        _, problems = upload(run_dir, spec_destinations(run_dir), environment.hf_token())
    except ProblemError as stopped:
        problems = stopped.problems
    for problem in problems:
        note(str(problem))
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
