"""Brings published data sets into a folder: listed first, then fetched file by file, verified, and unpacked.

    fetch(published_set("cosmos-reason1-benchmark"), ["av", "robovqa"], Path("data"))

What a kill leaves is gone on with: a file is there under its name only when its length and its hash are right, and
`fetched.jsonl` says which ones are.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vidqa.contract import environment
from vidqa.contract.cli import note
from vidqa.contract.files import remove
from vidqa.contract.problem import Problem, ProblemError
from vidqa.dataset.archive import is_archive
from vidqa.storage import hub, hub_dataset
from vidqa.storage.http_download import WebFile, fetch_web, length_of
from vidqa.storage.hub_dataset import Listing, RemoteFile
from vidqa.storage.problems import DAMAGED, HUB_NOT_FOUND, NO_SPACE, OCCUPIED, SUBSET
from vidqa.storage.unpack import unpack

RECORD = "fetched.jsonl"
BLOCK = 8 << 20
COCO = "http://images.cocodataset.org/zips/train2017.zip"


@dataclass(frozen=True)
class Published:
    """A published data set. `subsets` are those that it has, "" where it has none; `files` are the ones that are
    wanted of it, all where none is named; `web` lies elsewhere, by the folder that it is unpacked into."""

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
    """What is in the folder now; `new` of the files were not there before."""

    folder: Path
    commit: str
    files: int
    new: int
    bytes: int
    unpacked: int


def published_set(name: str) -> Published:
    """A published set by its short name, or any data set of the hub by its own. Raises HUB_NOT_FOUND."""
    if name in PUBLISHED:
        return PUBLISHED[name]
    if "/" not in name:
        message = f"{name!r} is no set that is known by a short name, and not of the form organisation/name"
        raise HUB_NOT_FOUND.error(name, message, f"name one of {', '.join(PUBLISHED)}, or organisation/name")
    return Published(hub.parse(f"{hub_dataset.PREFIX}{name.removeprefix(hub_dataset.PREFIX)}").repository)


def fetch(published: Published, subsets: Sequence[str], folder: Path) -> Fetched:
    """Bring the data set, or these subsets of it, into `folder`, and unpack its archives beside themselves.

    Nothing is written before the hub has agreed, every subset is known, and the disk has room.
    Raises STORAGE_DENIED, HUB_NOT_FOUND, STORAGE_UNREACHABLE, HUB_ANSWER, STORAGE_SUBSET, STORAGE_OCCUPIED,
    STORAGE_NO_SPACE,     STORAGE_DAMAGED, REMOVAL_OUTSIDE.
    """
    name = f"{hub_dataset.PREFIX}{published.repository}"
    listing = hub_dataset.listing(name)
    files = _chosen(published, subsets, listing)
    web = [WebFile(address, folder / inner, length_of(address)) for address, inner in published.web]
    arrived = _arrived(folder)
    due = [file for file in files if not _is_here(file, folder, arrived)]
    _require_ours(due, folder, arrived)
    archives = sum(file.size for file in due if _is_packed(file.name))
    hub_dataset.require_room(folder, sum(file.size for file in due) + archives + sum(2 * w.missing for w in web), name)
    note(f"{len(files)} files, {len(due)} of them due, {sum(file.size for file in due) / 1e6:,.1f} MB, into {folder}")
    problems: list[Problem] = []
    for file in due:
        problems += _fetch_one(listing, file, folder)
    if problems:
        raise ProblemError(problems)
    packed = [folder / file.name for file in files if _is_packed(file.name)]
    packed += [fetch_web(web_file) for web_file in web]
    unpacked = sum(unpack(archive) for archive in packed)
    return Fetched(folder, listing.commit, len(files), len(due), sum(file.size for file in files), unpacked)


def _chosen(published: Published, subsets: Sequence[str], listing: Listing) -> list[RemoteFile]:
    """The files of these subsets, or all; hidden ones aside. Raises STORAGE_SUBSET."""
    there = sorted({file.name.split("/")[0] for file in listing.files if "/" in file.name})
    known_subsets = [*published.subsets, *(name for name in there if name not in published.subsets)]
    if missing := [subset for subset in subsets if subset not in there]:
        message = f"{published.repository} has no {' and no '.join(missing)}; it has: {', '.join(there) or 'no subset'}"
        raise SUBSET.error(", ".join(missing), message)
    if published.subsets and not subsets:
        raise SUBSET.error(published.repository, f"no subset is named; it has: {', '.join(known_subsets)}")
    files = [file for file in listing.files if not any(part.startswith(".") for part in file.name.split("/"))]
    if published.files:
        return [file for file in files if file.name in published.files]
    return [file for file in files if not subsets or "/" not in file.name or file.name.split("/")[0] in subsets]


def _require_ours(due: list[RemoteFile], folder: Path, arrived: dict[str, tuple[int, str, int]]) -> None:
    """Raises STORAGE_OCCUPIED for a file in the place of one that is to be fetched, unless an earlier fetch put it
    there, or it is that file."""
    problems = []
    for file in due:
        path = folder / file.name
        if file.name in arrived:
            continue
        try:
            same = not path.is_symlink() and (not path.exists() or (path.is_file() and not _differs(path, file)))
        except OSError as refused:
            problems.append(OCCUPIED.at(path, f"it cannot be read: {refused.strerror}"))
            continue
        if file.name == RECORD or not same:
            problems.append(OCCUPIED.at(path, "it is not the published file, and no earlier fetch has put it there"))
    if problems:
        raise ProblemError(problems)


def _is_packed(name: str) -> bool:
    return is_archive(name) or name.lower().endswith(".zip")


def _fetch_one(listing: Listing, file: RemoteFile, folder: Path) -> list[Problem]:
    """One file, which is verified and written down; a cut-off one is gone on with. Its problems."""
    import huggingface_hub
    from huggingface_hub.errors import HTTPError, LocalEntryNotFoundError

    name = f"{hub_dataset.PREFIX}{listing.repository}"
    path = folder / file.name
    if path.is_file() and _differs(path, file):
        remove(path, owner=folder)  # changed since, or of another commit: the client would take it as it is
    try:
        path = Path(
            huggingface_hub.hf_hub_download(
                listing.repository,
                file.name,
                repo_type=hub_dataset.KIND,
                revision=listing.commit,
                endpoint=environment.hf_endpoint(),
                token=environment.hf_token(),
                local_dir=folder,
            )
        )
    except (HTTPError, LocalEntryNotFoundError) as failed:
        return [hub.refusal(name, failed)]
    except OSError as failed:
        return [NO_SPACE.at(str(folder / file.name), f"storing it failed: {failed}")]
    wrong = _differs(path, file)
    if wrong:
        remove(path, owner=folder)
        return [DAMAGED.at(f"{name}/{file.name}", f"{wrong}; what arrived was removed")]
    with (folder / RECORD).open("a", encoding="utf-8") as record:
        line = {
            "name": file.name,
            "bytes": file.size,
            "hash": file.sha256 or file.blob,
            "mtime": path.stat().st_mtime_ns,
        }
        record.write(json.dumps(line) + "\n")
    return []


def _differs(path: Path, file: RemoteFile) -> str:
    """What is wrong with a file that has arrived; "" where it is what the hub lists."""
    size = path.stat().st_size
    if size != file.size:
        return f"it has {size:,} bytes, the hub lists {file.size:,}"
    digest = hashlib.sha256() if file.sha256 else hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    with path.open("rb") as content:
        while block := content.read(BLOCK):
            digest.update(block)
    listed = file.sha256 or file.blob
    return "" if listed in (None, digest.hexdigest()) else f"its hash is {digest.hexdigest()}, the hub lists {listed}"


def _arrived(folder: Path) -> dict[str, tuple[int, str, int]]:
    """(bytes, hash, time of change) of every file that was verified. A line that was cut off by a kill is left out."""
    try:
        lines = (folder / RECORD).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    arrived = {}
    for line in lines:
        try:
            entry = json.loads(line)
            arrived[str(entry["name"])] = (int(entry["bytes"]), str(entry["hash"]), int(entry["mtime"]))
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            continue
    return arrived


def _is_here(file: RemoteFile, folder: Path, arrived: dict[str, tuple[int, str, int]]) -> bool:
    try:
        stat = os.stat(folder / file.name)
    except OSError:
        return False
    return arrived.get(file.name) == (stat.st_size, file.sha256 or file.blob, stat.st_mtime_ns)
