"""Find the media that records name, in a folder, by absolute path, or inside a tar; tell their kind by file name."""

from __future__ import annotations

import os
import stat
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from vidqa.core.files import ANNOTATION_NAMES, absolute
from vidqa.core.problem import Code
from vidqa.data.archive import Archive, archive_and_member, archives_in, is_archive, open_archive
from vidqa.data.problems import FILE_MISSING, MEDIA_MISSING, MEDIA_OUTSIDE_ROOT
from vidqa.data.record import MediaRef

VIDEOS = (".mp4", ".mov", ".m4v", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".ts", ".wmv", ".flv", ".3gp", ".ogv")
IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff")
LONGEST_PATH = 4096  # Linux's PATH_MAX; a longer name is the medium itself, in base64
MEDIA_FOLDER = "--media-path of a data tool, media_path or media_dir of a spec"
WITHOUT = "without such records: python scripts/preflight.py --spec SPEC --fix FILE, or engine.on_bad_sample=quarantine"


def kind_of(name: str) -> str | None:
    """Kind of medium by file suffix, "video" or "image"; None for other files."""
    lower = name.lower()
    return "video" if lower.endswith(VIDEOS) else "image" if lower.endswith(IMAGES) else None


def is_medium(name: str) -> bool:
    """Whether a file is a video or an image by its name, and neither hidden nor in a hidden folder: some systems store
    hidden metadata files with such names."""
    parts = name.split("/")
    return not any(part.startswith(".") and part != "." for part in parts) and kind_of(name) is not None


@dataclass(frozen=True, slots=True)
class NotFound:
    """The reason why a medium was not found, from which the record's problem is made. `path` is the expected path of a
    missing file."""

    code: Code
    message: str
    remedy: str
    path: str = ""


@dataclass
class MediaSource:
    """The media of one annotation file. Every name is looked up once, however many records use it.

    `folder` is absolute. With `closed` (root mode) absolute names must be inside it, too. With `own` the folder holds
    the annotations as well, as a received data set does: its links are followed only if they stay inside.
    Archives are opened when a name is not found in the folder. Members of compressed archives are readable after
    `unpack`, which reads each archive once for all found members. `named` maps file names to paths, for sets whose
    records name no folder; with it, members of archives are matched by file name, too. `in_tables`: the folder is in
    the cache, which may be emptied, and holds media from table columns.
    """

    folder: str | None
    archive_paths: list[Path] = field(default_factory=list)
    closed: bool = False
    own: bool = False
    named: Mapping[str, Sequence[str]] | None = None
    in_tables: bool = False
    _results: dict[tuple[str, str], MediaRef | NotFound] = field(default_factory=dict)
    _folders: dict[str, str] = field(default_factory=dict)
    _due: dict[str, tuple[Archive, set[str]]] = field(default_factory=dict)  # members found but not yet unpacked
    _named: dict[str, Archive] = field(default_factory=dict)

    @cached_property
    def archives(self) -> list[Archive]:
        return [open_archive(path) for path in self.archive_paths]

    @cached_property
    def homes(self) -> tuple[str, ...]:
        """Allowed targets of links: the folder, and for a snapshot in the hub's cache the files behind it."""
        real = Path(os.path.realpath(self.folder or os.sep))
        repositories = [above.parent for above in (real, *real.parents) if above.name == "snapshots"]
        return (str(real), *(str(repository / "blobs") for repository in repositories))

    def find(self, kind: str, written: str) -> MediaRef | NotFound:
        """The medium for the name `written` in an annotation."""
        result = self._results.get((kind, written))
        if result is None:
            result = self._results[kind, written] = self._look_up(kind, written)
        return result

    def unpack(self) -> None:
        """Unpack the members found in compressed archives so far. Raises DATA_TAR_BROKEN, ENV_DISK_SPACE."""
        due, self._due = self._due, {}
        for archive, names in due.values():
            archive.unpack(names)

    def resolved(self) -> list[MediaRef]:
        """Every medium that was looked up and found."""
        return [ref for ref in self._results.values() if isinstance(ref, MediaRef)]

    def _look_up(self, kind: str, written: str) -> MediaRef | NotFound:
        name = written.removeprefix("file://")
        if "://" in name or name.startswith("data:") or len(name) >= LONGEST_PATH:
            remedy = f"write the medium to a local file and name that; {WITHOUT}"
            return NotFound(MEDIA_MISSING, f"{written[:100]} is not a local file", remedy)
        if os.path.isabs(name):
            path, outside = name, self.closed and not _inside(name, self.folder or "/")
        else:
            name = os.path.normpath(name)
            path, outside = os.path.join(self.folder or "", name), name.split(os.sep, 1)[0] == os.pardir
        if outside:
            remedy = f"move the file into {self._place} and name it relative to that folder, without `..`"
            if os.path.isabs(name):
                remedy += "; or give the annotation file instead of its folder, which allows absolute paths"
            return NotFound(MEDIA_OUTSIDE_ROOT, f"{written} lies outside {self._place}", remedy)
        if os.path.isabs(path) and (ref := self._file(kind, written, path)):
            return ref
        inside = self._in_named_archive(kind, written, path) or self._by_last_name(kind, written, name)
        return inside or self._in_archives(kind, written, name) or self._missing(written, name, path)

    def _file(self, kind: str, written: str, path: str) -> MediaRef | NotFound | None:
        size = _file_size(path)
        return None if size is None else self._led_out(written, path) or MediaRef(kind, written, path, size=size)

    def _member(self, kind: str, written: str, archive: Archive, member: str | None) -> MediaRef | NotFound | None:
        if member is None:
            return None
        if refused := self._led_out(written, archive.path):
            return refused
        self._due.setdefault(archive.path, (archive, set()))[1].add(member)
        unpacked = archive.members[member].name is None
        archived = f"{archive.path}!{member}" if unpacked else ""
        return MediaRef(kind, written, *archive.members[member], archived=archived)

    def _in_named_archive(self, kind: str, written: str, path: str) -> MediaRef | NotFound | None:
        """The medium for a name written as archive.tar!member, as in results and gap tables."""
        parts = archive_and_member(path)
        if parts is None or not os.path.isabs(path) or not os.path.isfile(parts[0]):
            return None
        place, name = parts
        if refused := self._led_out(written, place):
            return refused
        if place not in self._named:
            self._named[place] = open_archive(Path(place))
        return self._member(kind, written, self._named[place], self._named[place].find(name))

    def _in_archives(self, kind: str, written: str, name: str) -> MediaRef | NotFound | None:
        members = (self._member(kind, written, archive, archive.find(name)) for archive in self.archives)
        return next((member for member in members if member), None)

    def _by_last_name(self, kind: str, written: str, name: str) -> MediaRef | NotFound | None:
        """The one file whose path ends like the name, or else the only one with its file name; archives included."""
        if self.named is None:
            return None
        last = os.path.basename(name)
        paths = self.named.get(last, ())
        paths = [path for path in paths if path.endswith(f"{os.sep}{name}")] or paths
        if len(paths) == 1 and (ref := self._file(kind, written, paths[0])):
            return ref
        archives = () if paths else self.archives
        members = (self._member(kind, written, tar, tar.find(name) or tar.by_file_name.get(last)) for tar in archives)
        return next((member for member in members if member), None)

    def _led_out(self, written: str, path: str) -> NotFound | None:
        """The error for a link that leads out of the data set's own folder; such a set may come from a third party."""
        if not self.own or not _inside(path, self.folder or os.sep):
            return None
        above, name = os.path.split(path)
        real = os.path.realpath(path) if os.path.islink(path) else os.path.join(self._real(above), name)
        if any(_inside(real, home) for home in self.homes):
            return None
        remedy = f"put the file itself there (a hard link will do), or give {os.path.dirname(real)} as media path"
        return NotFound(MEDIA_OUTSIDE_ROOT, f"{written} is a link that leads out of {self._place}, to {real}", remedy)

    def _real(self, folder: str) -> str:
        if folder not in self._folders:
            self._folders[folder] = os.path.realpath(folder)
        return self._folders[folder]

    def _missing(self, written: str, name: str, path: str) -> NotFound:
        message = f"there is no file {path}" if self.folder else f"{self._place} has no member {name!r}"
        for spelled, why in _other_spellings(name) if self.folder else ():
            if _file_size(os.path.join(self.folder or "", spelled)) is not None:
                return NotFound(MEDIA_MISSING, message, f"{why}: write {spelled!r}", path)
        remedy = f"put the file there, correct {written!r}, or name the folder of the media ({MEDIA_FOLDER}); {WITHOUT}"
        return NotFound(MEDIA_MISSING, message, remedy, os.path.join(self._place, name))

    @property
    def root(self) -> str:
        """The folder or archive to which names are relative."""
        return self.folder or str(self.archive_paths[0])

    @property
    def _place(self) -> str:
        return self.folder or ", ".join(map(str, self.archive_paths))


def media_source(annotation_path: Path, media_path: str, *, root_mode: bool) -> MediaSource:
    """The source for an annotation file. Without a media path, media are relative to the annotation file's folder."""
    folder = Path(os.path.abspath(annotation_path)).parent
    if not media_path:
        return MediaSource(str(folder), archives_in(folder), closed=root_mode, own=root_mode)
    place = absolute(media_path)
    if os.path.isdir(place):
        own = annotation_path.name in ANNOTATION_NAMES and os.path.realpath(place) == os.path.realpath(folder)
        return MediaSource(str(place), archives_in(place), own=own)
    if not os.path.exists(place):
        raise FILE_MISSING.error(place, "the media path does not exist", "give an existing folder or tar of media")
    if not is_archive(place):
        remedy = "give a folder, or a .tar, .tar.gz or .tgz archive, as media path"
        raise FILE_MISSING.error(place, "the media path is neither a folder nor a tar archive", remedy)
    return MediaSource(None, [place])


def _other_spellings(name: str) -> Iterator[tuple[str, str]]:
    """Yield (other spelling of the name, how it differs): as other systems would write it, or without its folder."""
    yield name.replace("\\", "/"), "folders are separated by / here"
    yield os.path.basename(name.replace("\\", "/")), "the media folder itself has a file of this name"
    for form in ("NFC", "NFD"):
        yield unicodedata.normalize(form, name), f"the file's name has its accents in another Unicode form ({form})"


def _inside(path: str, folder: str) -> bool:
    return os.path.commonpath([os.path.normpath(path), folder]) == folder


def _file_size(path: str) -> int | None:
    """Size of the file in bytes, or None if there is none. Pipes and devices count as files: decoding refuses them."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):  # ValueError: a NUL byte in the name
        return None
    return None if stat.S_ISDIR(status.st_mode) else status.st_size
