"""Data sets of the Hugging Face hub: hf_dataset://organisation/name[@revision][#SUBSET:SPLIT], fetched before a job.

A snapshot in the hub's cache is an ordinary data set folder, and is read by `data.sources.data_folder`.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from vidqa.core import environment
from vidqa.core.cli import note
from vidqa.core.files import name_error
from vidqa.core.problem import ProblemError
from vidqa.data.problems import DISK_SPACE, NOT_FOUND, UNREACHABLE
from vidqa.data.splits import subset_and_cuts
from vidqa.data.storage import hub
from vidqa.data.storage.hub import DATA_SET_PREFIX as PREFIX

SPARE = 1 << 30  # bytes that stay free on the disk


class RemoteFile(NamedTuple):
    """One file of a repository, with a name that is safe to write. Large files have `sha256`; for the others `blob` is
    the hash of git."""

    name: str
    size: int
    sha256: str | None
    blob: str | None

    def fault(self, folder: Path) -> str:
        """An error message if the file in a folder differs from the listing; "" if it matches."""
        return hub.file_fault(folder / self.name, self.size, self.sha256, self.blob)


class Listing(NamedTuple):
    """The files of a repository at one commit."""

    commit: str
    files: list[RemoteFile]


def is_hub_dataset(path: str) -> bool:
    return path.startswith(PREFIX)


def stage_dataset(written: str) -> str:
    """Fetch the data set of an address. Returns its folder, with `#SUBSET:SPLIT` if given, as an annotation path.

    If the hub cannot be reached, a snapshot in the cache is used. Raises STORAGE_DENIED, STORAGE_NOT_FOUND,
    STORAGE_UNREACHABLE, ENV_DISK_SPACE, DATA_SPLIT.
    """
    name, part = _parted(written)
    subset, _ = subset_and_cuts(part, written)
    try:
        remote = listing(name)
    except ProblemError as refused:
        cached = _cached(name) if refused.problems[0].code == UNREACHABLE.name else None
        if cached is None:
            raise
        note(f"the hub is unreachable: using {cached}, the last download of {name}")
        return _with_part(cached, part)
    return _with_part(_fetched(name, remote, files_of_subset(remote.files, subset)), part)


def expected_dataset(written: str) -> str:
    """Predict the result of `stage_dataset` as far as possible without fetching. Raises STORAGE_NOT_FOUND."""
    name, part = _parted(written)
    try:
        commit = hub.ask(name, token=environment.hf_token(), pauses_s=())
    except ProblemError:
        cached = _cached(name)
        commit = cached.name if cached else hub.UNKNOWN
    return _with_part(hub.snapshots(name) / commit, part)


def listing(name: str) -> Listing:
    """List the files of a "hf_dataset://" name, after checking that the token may read them.

    Raises STORAGE_DENIED, STORAGE_NOT_FOUND, STORAGE_UNREACHABLE, HUB_ANSWER.
    """
    import huggingface_hub
    from huggingface_hub.errors import HTTPError

    commit = hub.ask(name, token=environment.hf_token())
    repository = hub.parse(name).repository
    api = huggingface_hub.HfApi(endpoint=environment.hf_endpoint(), token=environment.hf_token())
    try:
        with hub.answer_of(repository):
            entries = list(api.list_repo_tree(repository, recursive=True, revision=commit, repo_type="dataset"))
            files = [_remote_file(entry) for entry in entries if isinstance(entry, huggingface_hub.RepoFile)]
            _require_distinct_names(files)
    except HTTPError as failed:
        raise ProblemError([hub.refusal(name, failed)]) from failed
    return Listing(commit, files)


def _remote_file(entry: Any) -> RemoteFile:
    """Check an entry of a listing. Raises ValueError for an unsafe name, or values that no hub sends."""
    sha256 = entry.lfs.sha256 if entry.lfs is not None else None
    if wrong := name_error(entry.path):
        raise ValueError(f"it lists {entry.path!r}; {wrong}")
    if type(entry.size) is not int or entry.size < 0:
        raise ValueError(f"the size of {entry.path} is {entry.size!r}; a size is a count of bytes")
    if not isinstance(entry.blob_id, str) or not isinstance(sha256, str | None):
        raise ValueError(f"a hash of {entry.path} is not a text")
    return RemoteFile(entry.path, entry.size, sha256, entry.blob_id)


def _require_distinct_names(files: list[RemoteFile]) -> None:
    """Raise ValueError if a file has the name of another one, or of a folder."""
    names = Counter(file.name for file in files)
    names.update({str(folder) for file in files for folder in PurePosixPath(file.name).parents})
    for file in files:
        if names[file.name] > 1:
            raise ValueError(f"it lists {file.name} twice, or as a file and as a folder")


def _fetched(name: str, listing: Listing, files: list[RemoteFile]) -> Path:
    folder = hub.snapshots(name) / listing.commit
    due = [file for file in files if not (folder / file.name).is_file()]
    require_room(folder, sum(file.size for file in due), name)
    if due:
        note(f"fetching {len(due)} files of {name}, {sum(file.size for file in due) / 1e6:,.1f} MB, into {folder}")
    return download(listing, files, name)


def download(listing: Listing, files: Sequence[RemoteFile], name: str, folder: Path | None = None) -> Path:
    """Fetch these files into the hub's cache, or into `folder`; returns the folder. Raises STORAGE_DENIED,
    STORAGE_NOT_FOUND, STORAGE_UNREACHABLE, ENV_DISK_SPACE."""
    names = [_literal(file.name) for file in files]
    return hub.download(name, listing.commit, names, environment.hf_token(), folder=folder)


def require_room(folder: Path, needed: int, name: str) -> None:
    """Raise ENV_DISK_SPACE if the folder's disk has no room for `needed` bytes."""
    place = folder
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if needed and needed + SPARE > free:
        raise DISK_SPACE.error(folder, f"{name} needs {needed / 1e9:.1f} GB more, {free / 1e9:.1f} GB are free")


def _literal(name: str) -> str:
    """A glob pattern that matches only this name."""
    return "".join(f"[{character}]" if character in "*?[" else character for character in name)


def files_of_subset(files: list[RemoteFile], subset: str) -> list[RemoteFile]:
    """The files at the top level, and those in the folder of a subset; all if there is no such folder."""
    if not any(file.name.startswith(f"{subset}/") for file in files):
        return files
    return [file for file in files if "/" not in file.name or file.name.startswith(f"{subset}/")]


def _cached(name: str) -> Path | None:
    """The snapshot of the commit in the name; without a commit the latest fetched one."""
    revision, folder = hub.parse(name).revision, hub.snapshots(name)
    if revision and hub.is_commit(revision):
        return folder / revision if (folder / revision).is_dir() else None
    snapshots = [snapshot for snapshot in folder.iterdir() if snapshot.is_dir()] if folder.is_dir() else []
    return max(snapshots, key=lambda snapshot: snapshot.stat().st_mtime, default=None)


def _parted(written: str) -> tuple[str, str]:
    """Split an address into the name with its prefix, and the part after `#`. Raises STORAGE_NOT_FOUND."""
    name, _, part = written.partition("#")
    if not is_hub_dataset(name):
        raise NOT_FOUND.error(written, f"it is not of the form {PREFIX}organisation/name")
    hub.parse(name)
    return name, part


def _with_part(folder: Path, part: str) -> str:
    return f"{os.fspath(folder)}#{part}" if part else os.fspath(folder)
