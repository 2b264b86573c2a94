"""Media that lie in the folder or archive of a data set and that no record names."""

from __future__ import annotations

import os
from collections.abc import Iterator

from vidqa.dataset.media import MediaSource
from vidqa.dataset.sources.media_files import kind_of


def unused_media(source: MediaSource) -> list[str]:
    """Their names, relative to the folder (archive!member inside an archive), in order.

    What a record names counts as used, also where something else is wrong with the record.
    """
    used = {ref.path for ref in source.found()}
    real = {os.path.realpath(path) for path in used}
    found = [
        os.path.relpath(path, source.folder)
        for path in _files(source.folder)
        if path not in used and os.path.realpath(path) not in real
    ]
    members = {ref.member or ref.path for ref in source.found()}
    for archive in source.archives if source.archive_paths else ():
        own = {name for name, member in archive.members.items() if (member.name or member.path) not in members}
        found += [f"{os.path.basename(archive.path)}!{name}" for name in own if _is_medium(name)]
    return sorted(found)


def _files(folder: str | None) -> Iterator[str]:
    for above, inner, names in os.walk(folder) if folder else ():
        inner[:] = [name for name in inner if not name.startswith(".")]
        yield from (os.path.join(above, name) for name in names if _is_medium(name))


def _is_medium(name: str) -> bool:
    return not os.path.basename(name).startswith(".") and kind_of(name) is not None
