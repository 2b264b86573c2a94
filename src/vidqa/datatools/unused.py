"""Media that lie in the folder or archive of a data set and that no record names."""

from __future__ import annotations

import os

from vidqa.dataset.media import MediaSource
from vidqa.dataset.sources.media_files import is_medium, media_below


def unused_media(source: MediaSource) -> list[str]:
    """Their names, relative to the folder (archive!member inside an archive), in order.

    What a record names counts as used, also where something else is wrong with the record.
    """
    used = {ref.path for ref in source.found()}
    real = {os.path.realpath(path) for path in used}
    found = [
        os.path.relpath(path, source.folder)
        for path in (media_below(source.folder) if source.folder else ())
        if path not in used and os.path.realpath(path) not in real
    ]
    members = {ref.member or ref.path for ref in source.found()}
    for archive in source.archives if source.archive_paths else ():
        own = {name for name, member in archive.members.items() if (member.name or member.path) not in members}
        found += [f"{os.path.basename(archive.path)}!{name}" for name in own if is_medium(name)]
    return sorted(found)
