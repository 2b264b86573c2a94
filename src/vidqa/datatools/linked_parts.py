"""The media of a part of a data set: hard links to its own files, so that its folder is a set by itself."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from vidqa.core.files import remove
from vidqa.core.problem import Problem
from vidqa.data.load import Pair
from vidqa.data.media import MediaSource
from vidqa.data.problems import OUTPUT_EXISTS
from vidqa.datatools.problems import NOT_LINKED

ANNOTATIONS = "annotations.json"
Links = dict[str, str]  # names in the part's folder and the files they stand for


def links(media: MediaSource, pairs: Sequence[Pair]) -> Links | None:
    """What the folder of a part must hold beside its annotations; None where some name could not be reached in it.

    A file is its own entry; of an archive, in which files cannot be linked one by one, the whole archive is.
    """
    folder = media.folder
    names: Links = {}
    for ref in {medium.key: medium for pair in pairs for medium in pair.record.media}.values():
        name = os.path.normpath(ref.written.removeprefix("file://"))
        if folder is None or os.path.isabs(name) or name.startswith(os.pardir):
            return None
        if ref.path == os.path.join(folder, name):
            names[name] = ref.path
        else:  # inside one of the folder's archives
            names.update({path.name: str(path) for path in media.archive_paths})
    return None if ANNOTATIONS in names else names


def check_part(folder: Path, own: Links | None) -> None:
    """Raises DATA_OUTPUT_EXISTS where the folder holds anything that is not of this part."""
    begun = (folder / ANNOTATIONS).exists()
    for above, inner, files in os.walk(folder):
        for name in [*files, *inner]:
            path = Path(above, name)
            expected = (own or {}).get(str(path.relative_to(folder)))
            if not begun or path.is_symlink():
                raise OUTPUT_EXISTS.error(path, "it is there, and is not of this split")
            if name in files and path != folder / ANNOTATIONS and not (expected and os.path.samefile(path, expected)):
                raise OUTPUT_EXISTS.error(path, "it is there, and is no file of this part")


def write_links(parts: Mapping[Path, Links]) -> Problem | None:
    """Makes the hard links that are not there yet; what refuses them, after taking back what was made."""
    created: list[tuple[Path, Path]] = []
    try:
        for folder, own in parts.items():
            for name, file in own.items():
                path = folder / name
                if not path.exists():
                    path.parent.mkdir(parents=True, exist_ok=True)
                    os.link(os.path.realpath(file), path)
                    created.append((path, folder))
    except OSError as refused:
        for link, owner in created:
            remove(link, owner=owner)
        return NOT_LINKED.at(path, f"no link to {file} can be made: {refused.strerror}", severity="warning")
    return None
