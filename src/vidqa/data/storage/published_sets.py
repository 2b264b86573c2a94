"""Download published data sets into a folder: list, fetch, verify, unpack. The Nexar set has no questions; its
annotations are made from its metadata table: weather, another column, or the collision label.

    fetch(published_set("cosmos-reason1-benchmark"), ["av", "robovqa"], Path("data"))

The hub's client resumes an interrupted fetch; a file is kept only if its length and its hash are right.
"""

from __future__ import annotations

import csv
import os
import shutil
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from vidqa.core.cli import USAGE, note
from vidqa.core.files import name_error, remove, write_json
from vidqa.core.problem import Problem, ProblemError
from vidqa.data.archive import is_archive, unpack_beside
from vidqa.data.problems import EMPTY, FIELD, LEFT_OUT, NOT_FOUND, OUTPUT_EXISTS, SYNTAX, UNREACHABLE
from vidqa.data.storage import hub, hub_dataset
from vidqa.data.storage.hub_dataset import Listing, RemoteFile

TIMEOUT_S = 30.0  # of a server other than the hub
BLOCK = 1 << 20
COCO = "http://images.cocodataset.org/zips/train2017.zip"
GOES_ON = "run this again: it continues"
METADATA = "metadata.csv"
COLLISION = "collision"  # not a column but the folder's name; only the training part has both classes
LABELS = {"positive": "Yes", "negative": "No"}
QUESTIONS = {
    "weather": "What is the weather in this video? Choose from ['Rain', 'Cloudy', 'Snow', 'Clear'].",
    COLLISION: "Does a collision, or nearly one, happen in this video? Answer with Yes or No.",
}


@dataclass(frozen=True)
class Published:
    """A published data set. `subsets` are its subsets, empty if it has none; `files` are the files to fetch, empty for
    all; `web` are (address, folder for unpacking) pairs of archives outside of the hub."""

    repository: str
    subsets: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    web: tuple[tuple[str, str], ...] = ()


REASON1 = ("av", "agibot", "bridgev2", "holoassist", "robovqa")
PUBLISHED = {
    "nexar": Published("nexar-ai/nexar_collision_prediction"),
    "cosmos-reason1-sft": Published("nvidia/Cosmos-Reason1-SFT-Dataset", REASON1),
    "cosmos-reason1-rl": Published("nvidia/Cosmos-Reason1-RL-Dataset", ("agibot", "bridgev2", "holoassist", "robovqa")),
    "cosmos-reason1-benchmark": Published("nvidia/Cosmos-Reason1-Benchmark", (*REASON1, "robofail")),
    "llava-detail-23k": Published("liuhaotian/LLaVA-Instruct-150K", (), ("detail_23k.json",), ((COCO, "images"),)),
}


@dataclass(frozen=True)
class Fetched:
    """Counts of the files in the folder; `new` of them were not there before."""

    folder: Path
    commit: str
    files: int
    new: int
    bytes: int
    unpacked: int


def published_set(name: str) -> Published:
    """A published set by its short name, or any data set of the hub by its full name. Raises STORAGE_NOT_FOUND."""
    if name in PUBLISHED:
        return PUBLISHED[name]
    if "/" not in name:
        message = f"{name!r} is neither a known short name nor of the form organisation/name"
        raise NOT_FOUND.error(name, message, f"name one of {', '.join(PUBLISHED)}, or organisation/name")
    return Published(hub.parse(f"{hub_dataset.PREFIX}{name.removeprefix(hub_dataset.PREFIX)}").repository)


def fetch(published: Published, subsets: Sequence[str], folder: Path) -> Fetched:
    """Download the data set, or these subsets of it, into `folder`, and unpack its archives there.

    Nothing is written before access, all subset names and the free disk space are checked.
    Raises STORAGE_DENIED, STORAGE_NOT_FOUND, STORAGE_UNREACHABLE, HUB_ANSWER, USAGE, OUTPUT_EXISTS,
    ENV_DISK_SPACE, REMOVAL_OUTSIDE.
    """
    name = f"{hub_dataset.PREFIX}{published.repository}"
    listing = hub_dataset.listing(name)
    files = _chosen(published, subsets, listing)
    web = [WebFile(address, folder / inner, length_of(address)) for address, inner in published.web]
    due = [file for file in files if file.fault(folder)]
    _require_ours(due, folder)
    archives = sum(file.size for file in due if _is_packed(file.name))
    hub_dataset.require_room(folder, sum(file.size for file in due) + archives + sum(2 * w.missing for w in web), name)
    note(f"{len(files)} files, {len(due)} of them due, {sum(file.size for file in due) / 1e6:,.1f} MB, into {folder}")
    for file in due:  # changed since, or of another commit: the client would keep it unchanged
        remove(folder / file.name, owner=folder)
    if due:
        hub_dataset.download(listing, due, name, folder)
    faults = {file.name: fault for file in due if (fault := file.fault(folder))}
    for damaged in faults:
        remove(folder / damaged, owner=folder)
    if faults:
        removed = "what arrived was removed"
        raise ProblemError(UNREACHABLE.at(f"{name}/{file}", f"{fault}; {removed}") for file, fault in faults.items())
    packed = [folder / file.name for file in files if _is_packed(file.name)]
    packed += [fetch_web(web_file) for web_file in web]
    unpacked = sum(unpack_beside(archive) for archive in packed)
    return Fetched(folder, listing.commit, len(files), len(due), sum(file.size for file in files), unpacked)


def _chosen(published: Published, subsets: Sequence[str], listing: Listing) -> list[RemoteFile]:
    """The files of these subsets, or all, except hidden ones. Raises USAGE, STORAGE_NOT_FOUND."""
    there = sorted({file.name.split("/")[0] for file in listing.files if "/" in file.name})
    known_subsets = [*published.subsets, *(name for name in there if name not in published.subsets)]
    if missing := [subset for subset in subsets if subset not in there]:
        message = f"{published.repository} has no {' and no '.join(missing)}; it has: {', '.join(there) or 'no subset'}"
        raise USAGE.error(", ".join(missing), message)
    if published.subsets and not subsets:
        raise USAGE.error(published.repository, f"no subset is given; it has: {', '.join(known_subsets)}")
    files = [file for file in listing.files if not any(part.startswith(".") for part in file.name.split("/"))]
    if published.files:
        files = [file for file in files if file.name in published.files]
    elif subsets:
        files = [file for file in files if "/" not in file.name or file.name.split("/")[0] in subsets]
    if not files:
        raise NOT_FOUND.error(published.repository, "it has none of the expected files")
    return files


def _require_ours(due: Sequence[RemoteFile], folder: Path) -> None:
    """Raise OUTPUT_EXISTS for a file in the place of one to fetch, unless an earlier fetch wrote it."""
    fetched = folder / ".cache" / "huggingface" / "download"  # the client's records of fetched files
    occupied = [
        folder / file.name
        for file in due
        if os.path.lexists(folder / file.name) and not (fetched / f"{file.name}.metadata").is_file()
    ]
    if occupied:
        message = "it is not the published file, and no earlier fetch has put it there"
        raise ProblemError(OUTPUT_EXISTS.at(path, message) for path in occupied)


def _is_packed(name: str) -> bool:
    return is_archive(name) or name.lower().endswith(".zip")


class WebFile(NamedTuple):
    """A file of `size` bytes at an address, to be stored in `folder`."""

    address: str
    folder: Path
    size: int

    @property
    def path(self) -> Path:
        return self.folder / PurePosixPath(self.address).name

    @property
    def missing(self) -> int:
        """Number of bytes to fetch."""
        return 0 if self.path.is_file() else self.size


def length_of(address: str) -> int:
    """Size in bytes of the file at an address. Raises STORAGE_UNREACHABLE."""
    try:
        with urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=TIMEOUT_S) as answer:
            return int(answer.headers["Content-Length"])
    except (OSError, HTTPException, ValueError, TypeError) as failed:
        raise UNREACHABLE.error(address, f"its list of files is unavailable: {failed}") from failed


def fetch_web(file: WebFile) -> Path:
    """Fetch the whole file, resuming a partial one. Returns its path. Raises STORAGE_UNREACHABLE."""
    if file.path.is_file() and file.path.stat().st_size == file.size:
        return file.path
    partial = file.path.with_name(f"{file.path.name}.part")
    partial.parent.mkdir(parents=True, exist_ok=True)
    begun = partial.stat().st_size if partial.is_file() else 0
    if begun > file.size:  # a part of another file
        begun = 0
    if begun < file.size:
        request = urllib.request.Request(file.address, headers={"Range": f"bytes={begun}-"} if begun else {})
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                mode = "ab" if answer.status == 206 else "wb"  # a server without byte ranges sends the whole file
                with partial.open(mode) as out:
                    shutil.copyfileobj(answer, out, BLOCK)
        except (OSError, HTTPException) as failed:
            raise UNREACHABLE.error(file.address, f"the download was interrupted: {failed}", GOES_ON) from failed
    if (size := partial.stat().st_size) != file.size:
        raise UNREACHABLE.error(file.address, f"{size:,} of {file.size:,} bytes have arrived", GOES_ON)
    os.replace(partial, file.path)
    return file.path


class Annotated(NamedTuple):
    """The annotation file, its number of records, and a warning for each kind of row without a record."""

    path: Path
    records: int
    warnings: list[Problem]


def write_annotations(folder: Path, column: str = "weather", question: str = "") -> Annotated:
    """Write annotations.json: a question about each training video, answered by its value in `column` of metadata.csv,
    or Yes or No for `collision`. Every folder with a metadata.csv is read.

    Raises DATA_FIELD if no table has the column, or there is no question for it, DATA_EMPTY if no row makes a record,
    DATA_SYNTAX for an unreadable table.
    """
    prompt = question or QUESTIONS.get(column, "")
    if not prompt:
        raise FIELD.error("--answer-column", f"no question is known for the column {column!r}", "give --question")
    rows: list[dict[str, Any]] = []
    training = folder / "train"
    left_out: Counter[str] = Counter()
    columns: dict[str, None] = {}
    for table, row in _rows(training):
        columns |= dict.fromkeys([*(str(name) for name in row if name), COLLISION])
        name = row.get("file_name") or ""
        answer = LABELS.get(table.parent.name, "") if column == COLLISION else row.get(column) or ""
        if name_error(name) or not (table.parent / name).is_file():
            left_out["name a missing file"] += 1
        elif not answer.strip():
            left_out[f"have no {column}"] += 1
        else:
            video = str((table.parent / name).relative_to(folder))
            turns = [{"from": "human", "value": f"<video>\n{prompt}"}, {"from": "gpt", "value": answer.strip()}]
            rows.append({"id": video, "video": video, "kind": column, "conversations": turns})
    if columns and column not in columns:
        message = f"there is no column {column!r}; there are: {', '.join(columns)}"
        raise FIELD.error("--answer-column", message, "Name one of them.")
    total = len(rows) + left_out.total()
    reasons = [f"{count} of {total} rows {why}" for why, count in left_out.items()]
    if not rows:
        raise EMPTY.error(training, "; ".join(reasons) or f"there is no {METADATA}")
    write_json(folder / "annotations.json", rows)
    warnings = [LEFT_OUT.at(training, message, severity="warning") for message in reasons]
    return Annotated(folder / "annotations.json", len(rows), warnings)


def _rows(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    for table in sorted(folder.rglob(METADATA)):
        try:
            with table.open(encoding="utf-8-sig", newline="") as file:
                yield from ((table, row) for row in csv.DictReader(file))
        except (OSError, UnicodeDecodeError, csv.Error) as broken:
            raise SYNTAX.error(table, f"the CSV cannot be read: {broken}") from broken
