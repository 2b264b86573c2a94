"""Stage a data set from S3: fetch its annotations, and only the media that they name.

    annotation_path, media_path = stage_set("s3://bucket/set/annotations.json", "s3://bucket/set/videos")

Every file is verified and recorded, one line each, in staged.jsonl of the set's cache folder. A file whose object has
not changed is not fetched again, and an interrupted transfer continues.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from vidqa.core import environment, files
from vidqa.core.cli import note
from vidqa.core.files import ANNOTATION_NAMES
from vidqa.core.locks import locked
from vidqa.core.problem import Problem, ProblemError
from vidqa.data.archive import SUFFIXES
from vidqa.data.media import MediaSource, NotFound
from vidqa.data.parse import RowReader
from vidqa.data.problems import NOT_FOUND, UNREACHABLE, ProblemCollector
from vidqa.data.record import MediaRef
from vidqa.data.sources import open_source
from vidqa.data.storage import hub_dataset
from vidqa.data.storage.s3 import (
    MOST_NAMED,
    Object,
    connect,
    errors_at,
    hides_its_hash,
    is_remote,
    object_at,
    objects_below,
    parse,
    transfers,
)

RECORD = "staged.jsonl"
ANNOTATIONS, MEDIA = "annotations", "media"  # the two folders of a staged set
FILES = (".json", ".jsonl", ".csv", ".tsv", ".parquet")
BLOCK = 8 << 20
LOCK_WAIT_S = 6 * 3600.0  # for another process that stages the same set, which may have terabytes


class Staged(msgspec.Struct, frozen=True):
    """One line of the record: source, path and verified content of a fetched file."""

    source: str
    path: str  # relative to the set's folder
    bytes: int
    etag: str
    sha256: str


def stage_set(annotation_path: str, media_path: str) -> tuple[str, str]:
    """Fetch a data set. Returns its two paths on this machine; local paths are returned unchanged.

    Raises ProblemError with every missing object, and STORAGE_DENIED, STORAGE_UNREACHABLE, ENV_DISK_SPACE.
    """
    if hub_dataset.is_hub_dataset(annotation_path):
        annotation_path = hub_dataset.stage_dataset(annotation_path)
    if not is_remote(annotation_path) and not is_remote(media_path):
        return annotation_path, media_path
    folder = folder_of(annotation_path, media_path)
    bucket = connect()
    with staging_lock(folder):
        arrived = read_record(folder)
        annotations = annotation_path
        if is_remote(annotation_path):
            address, part = _parted(annotation_path)
            annotations = f"{_stage_annotations(bucket, parse(address), folder, arrived)}{part}"
        if not is_remote(media_path):
            return annotations, media_path
        return annotations, str(_stage_media(bucket, parse(media_path), annotations, folder, arrived))


def _parted(annotation_path: str) -> tuple[str, str]:
    """Split a path into (address, the split from `#` on, or "")."""
    address, mark, part = annotation_path.partition("#")
    return address, mark + part


def expected_set(annotation_path: str, media_path: str) -> tuple[str, str]:
    """Predict the paths that `stage_set` returns, without a request: an address is an annotation file or an archive by
    its suffix, and otherwise a folder with annotations.json."""
    if hub_dataset.is_hub_dataset(annotation_path):
        annotation_path = hub_dataset.expected_dataset(annotation_path)
    folder, annotations, media = folder_of(annotation_path, media_path), annotation_path, media_path
    if is_remote(annotation_path):
        address, part = _parted(annotation_path)
        name = PurePosixPath(address).name
        annotations = f"{folder / ANNOTATIONS / (name if name.endswith(FILES) else ANNOTATION_NAMES[0])}{part}"
    if is_remote(media_path):
        media = str(folder / MEDIA / (PurePosixPath(media_path).name if media_path.endswith(SUFFIXES) else ""))
    return annotations, media


def folder_of(annotation_path: str, media_path: str) -> Path:
    """The cache folder of a set: one for each pair of addresses, shared by all splits."""
    address = _parted(annotation_path)[0] if is_remote(annotation_path) else annotation_path
    name = hashlib.sha256(f"{address}\n{media_path}".encode()).hexdigest()[:16]
    return environment.cache_folder() / "staged" / name


def read_record(folder: Path) -> dict[str, Staged]:
    """The fetched files, by address. A line truncated by a kill is ignored."""
    by_address = {}
    try:
        lines = (folder / RECORD).read_bytes().splitlines()
    except FileNotFoundError:
        return {}
    for line in lines:
        try:
            staged = msgspec.json.decode(line, type=Staged)
        except ValueError:
            continue
        by_address[staged.source] = staged
    return by_address


def staging_lock(folder: Path) -> AbstractContextManager[int]:
    """A lock for staging a set; later processes find it staged. Raises LOCK_HELD, ENV_FILE_REFUSED."""
    folder.mkdir(parents=True, exist_ok=True)
    return locked(folder / ".lock", wait_s=LOCK_WAIT_S)


def _stage_annotations(bucket: Any, address: str, folder: Path, arrived: dict[str, Staged]) -> Path:
    """Fetch the annotation file: the object itself, or annotations.json(l) below the address."""
    choices = [address, *(f"{address}/{name}" for name in ANNOTATION_NAMES)]
    remote = next((there for choice in choices if (there := object_at(bucket, choice))), None)
    if remote is None:
        raise NOT_FOUND.error(address, f"neither this object nor {' nor '.join(ANNOTATION_NAMES)} below it exists")
    place = f"{ANNOTATIONS}/{PurePosixPath(remote.address).name}"
    _fetch(bucket, [(remote, place)], folder, arrived)
    return folder / place


def _stage_media(bucket: Any, address: str, annotations: str, folder: Path, arrived: dict[str, Staged]) -> Path:
    """Fetch the media that the annotations name, or the archive at the address. Returns the folder or archive."""
    archive = object_at(bucket, address) if address.endswith(SUFFIXES) else None
    if archive:
        place = f"{MEDIA}/{PurePosixPath(address).name}"
        _fetch(bucket, [(archive, place)], folder, arrived)
        return folder / place
    names, problems = named_media(annotations)
    there = {item.address: item for item in objects_below(bucket, address)}
    archives = [item for item in there.values() if item.address.endswith(SUFFIXES)]
    items, missing = [], []
    for name in names:
        remote = there.get(f"{address}/{name}")
        if remote:
            items.append((remote, f"{MEDIA}/{name}"))
        else:
            missing.append(name)
    if missing and archives:  # as for a local folder: media that the folder lacks are searched in its archives
        items += [(item, f"{MEDIA}/{PurePosixPath(item.address).name}") for item in archives]
    elif missing:
        problems += [NOT_FOUND.at(f"{address}/{name}", "the annotations name it") for name in missing[:MOST_NAMED]]
        if len(missing) > MOST_NAMED:
            problems.append(NOT_FOUND.at(address, f"and {len(missing) - MOST_NAMED} more that the annotations name"))
    if problems:
        raise ProblemError(problems)
    _fetch(bucket, items, folder, arrived)
    (folder / MEDIA).mkdir(exist_ok=True)
    return folder / MEDIA


class _Names(MediaSource):
    """A media source that collects names without looking for files."""

    def find(self, kind: str, written: str) -> MediaRef | NotFound:
        self._results.setdefault((kind, written), MediaRef(kind, written, written, size=0))
        return self._results[kind, written]

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(written for _, written in self._results))


def named_media(annotations: str | Path) -> tuple[list[str], list[Problem]]:
    """The media named in an annotation file, or in a split of it, as normalised relative names, and problems of names
    that cannot be staged.

    Absolute names are files of this machine and left out. Problems of records are left to preflight.
    Raises DATA_FILE_MISSING, DATA_SPLIT.
    """
    source = _Names(None)
    collector = ProblemCollector(str(annotations), need_answers=False)
    reader = RowReader(Path(annotations).name, source, collector)
    for index, row in open_source(annotations).rows(collector):
        reader.read(index, row)
    names, problems = [], []
    for written in source.names:
        name = os.path.normpath(written)
        if "://" in written or name.split("/", 1)[0] == os.pardir:
            message = f"the medium {written!r} has a path that is not relative to the media path"
            problems.append(NOT_FOUND.at(annotations, message))
        elif not os.path.isabs(written):
            names.append(name)
    return list(dict.fromkeys(names)), problems[:MOST_NAMED]


def _fetch(bucket: Any, items: Iterable[tuple[Object, str]], folder: Path, arrived: dict[str, Staged]) -> None:
    """Fetch missing files, several at once; every file is recorded as soon as it is complete."""
    due = [(item, place) for item, place in items if not _is_current(item, folder, arrived)]
    if not due:
        return
    total = sum(item.size for item, _ in due)
    hub_dataset.require_room(folder, total, "the set")
    note(f"staging {len(due)} file(s), {total / 1e6:.1f} MB, into {folder}")
    problems: list[Problem] = []
    with (folder / RECORD).open("ab+") as record:
        if record.tell():
            record.seek(-1, os.SEEK_END)
            if record.read(1) != b"\n":  # a truncated line would corrupt the next one
                record.write(b"\n")
        for staged in transfers(lambda job: _fetch_one(bucket, *job, folder), due, at_once=8):
            if isinstance(staged, Staged):
                record.write(msgspec.json.encode(staged) + b"\n")
                record.flush()
                arrived[staged.source] = staged
            else:
                problems += staged
    if problems:
        raise ProblemError(problems[:MOST_NAMED])


def _is_current(item: Object, folder: Path, arrived: dict[str, Staged]) -> bool:
    """Whether the object is unchanged since it was fetched, and its file has the same length."""
    staged = arrived.get(item.address)
    if staged is None or (staged.etag, staged.bytes) != (item.etag, item.size):
        return False
    path = folder / staged.path
    return path.is_file() and path.stat().st_size == item.size


def _fetch_one(bucket: Any, item: Object, place: str, folder: Path) -> Staged:
    """Fetch one object into a complete file, or none. An ETag that is an MD5 must match the received bytes."""
    sha256, md5, size = hashlib.sha256(), hashlib.md5(usedforsecurity=False), 0
    with errors_at(item.address), files.replacing(folder / place) as temporary:
        with bucket.open(item.address, "rb", cache_type="none") as source, temporary.open("wb") as target:
            while block := source.read(BLOCK):
                target.write(block)
                sha256.update(block)
                md5.update(block)
                size += len(block)
        if size != item.size:
            raise UNREACHABLE.error(item.address, f"{size} bytes arrived of {item.size}")
        if len(item.etag) == 32 and item.etag != md5.hexdigest() and not hides_its_hash(bucket, item.address):
            raise UNREACHABLE.error(item.address, f"its MD5 is {md5.hexdigest()}, the storage says {item.etag}")
    return Staged(item.address, place, size, item.etag, sha256.hexdigest())
