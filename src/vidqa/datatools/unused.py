"""Media that lie in the folder or the archives of a data set and that no record names."""

from __future__ import annotations

import os
from typing import NamedTuple

from vidqa.dataset.media import MediaSource
from vidqa.dataset.sources.media_files import is_medium, media_below


class Unused(NamedTuple):
    """`files` are relative to the folder, in order; a medium of an archive that no record uses is archive!member.
    `members` counts the media of each archive that is in use which no record names: they come with the others, as
    where a split links an archive whole. Copies of what is used, such as an archive beside what was unpacked of it,
    count in neither."""

    files: list[str]
    members: dict[str, int]


def unused_media(source: MediaSource) -> Unused:
    """What a record names counts as used, also where something else is wrong with the record."""
    used = {ref.path for ref in source.found()}
    real = {os.path.realpath(path) for path in used}
    copies = {(os.path.basename(ref.member or ref.path), ref.size) for ref in source.found()}
    files = [
        os.path.relpath(path, source.folder)
        for path in (media_below(source.folder) if source.folder else ())
        if path not in used
        and os.path.realpath(path) not in real
        and (os.path.basename(path), os.path.getsize(path)) not in copies
    ]
    named = {ref.member or ref.path for ref in source.found()}
    counts: dict[str, int] = {}
    for archive in source.archives if source.archive_paths else ():
        media = {name: member for name, member in archive.members.items() if is_medium(name)}
        other = [name for name, member in media.items() if (os.path.basename(name), member.size) not in copies]
        own = [name for name in other if (media[name].name or media[name].path) not in named]
        if len(own) == len(media):
            files += [f"{os.path.basename(archive.path)}!{name}" for name in own]
        elif own:
            counts[os.path.basename(archive.path)] = len(own)
    return Unused(sorted(files), counts)
