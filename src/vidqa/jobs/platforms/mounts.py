"""Folders to mount into a container, at the same paths."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from vidqa.jobs.platforms._base import Job


@dataclass(frozen=True)
class Mount:
    path: Path
    read_only: bool


def mounts(job: Job) -> list[Mount]:
    """The mounts of a job, outermost first, without those inside another mount of the same mode, including `read_only`
    folders of site.toml.

    Links are followed: a snapshot in the hub's cache contains links to files elsewhere in the cache.
    """
    writable = _outermost([job.run_dir, *job.writes])
    read = [*job.reads, *map(Path, getattr(job.settings, "read_only", ()))]
    targets = [place for path in read for place in with_targets(path)]
    readable = [path for path in _outermost(targets) if not _inside_any(path, writable)]
    all_mounts = [Mount(path, True) for path in readable] + [Mount(path, False) for path in writable]
    return sorted(all_mounts, key=lambda mount: mount.path.parts)


def media_folders(paths: Iterable[str], mounted: Iterable[Path]) -> list[Path]:
    """The folders of media files outside the mounted folders, including those of link targets."""
    folders: dict[Path, None] = {}
    for path in paths:
        folders[Path(path).parent] = None
        folders[Path(os.path.realpath(path)).parent] = None
    mounted = list(mounted)
    return _outermost([folder for folder in folders if not _inside_any(folder, mounted)])


def shadowed_image_paths(mounted: Iterable[Mount], places: Iterable[str]) -> list[Path]:
    """The mounts that cover one of these folders of an image, or are inside one."""
    own = [Path(place) for place in places]
    return [
        mount.path
        for mount in mounted
        if any(place.is_relative_to(mount.path) or mount.path.is_relative_to(place) for place in own)
    ]


def with_targets(path: Path) -> list[Path]:
    """The path, and the folders of link targets, if it or one of its entries is a link."""
    entries = [path, *path.iterdir()] if path.is_dir() and _is_small(path) else [path]
    targets = [entry.resolve() for entry in entries if entry.is_symlink()]
    return [path, *dict.fromkeys(target if target.is_dir() else target.parent for target in targets)]


def _is_small(folder: Path, limit: int = 10_000) -> bool:
    with os.scandir(folder) as entries:
        return all(number < limit for number, _ in enumerate(entries))


def _outermost(paths: Iterable[Path]) -> list[Path]:
    outermost: list[Path] = []
    for path in sorted({Path(os.path.normpath(path)) for path in paths}, key=lambda path: path.parts):
        if not _inside_any(path, outermost):
            outermost.append(path)
    return outermost


def _inside_any(path: Path, folders: Iterable[Path]) -> bool:
    return any(path.is_relative_to(folder) for folder in folders)
