"""WebDataset: tar shards in which the files of one record share a name, such as 0001.json beside 0001.mp4.

shards/train-{000000..000007}.tar      shards/*.tar      a folder that holds only shards      one shard
"""

from __future__ import annotations

import glob
import os
import re
import tarfile
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from vidqa.core.files import content_hash
from vidqa.data.archive import READ_ERRORS, is_archive
from vidqa.data.foreign_rows import MEDIA
from vidqa.data.media import MediaSource, kind_of, media_source
from vidqa.data.media_cache import open_tar, plain_members
from vidqa.data.problems import EMPTY, LEFT_OUT, SYNTAX, TAR_BROKEN, ProblemCollector, missing_file, shown_names
from vidqa.data.reader import loads
from vidqa.data.sources._base import Names, Rows, Source, SourceKind, digest_of

BRACES = re.compile(r"\{(\d{1,18})\.\.(\d{1,18})\}")
MOST_SHARDS = 100_000
MOST_BYTES = 16 << 20  # of a JSON or text file
LOOKED_AT = 8  # first members that distinguish a shard from a tar of videos
TEXTS = {"txt": "text", "question": "question", "answer": "answer"}


def shards_of(path: str) -> list[Path]:
    """The shards of a path, in order; those of a brace pattern need not exist. Raises DATA_FILE_MISSING."""
    if braces := BRACES.search(path):
        low, high = braces.groups()
        numbers = range(int(low), int(high) + 1)
        if len(numbers) > MOST_SHARDS:
            raise missing_file(path, f"it expands to {len(numbers):,} shards, more than {MOST_SHARDS:,}")
        return [Path(f"{path[: braces.start()]}{n:0{len(low)}d}{path[braces.end() :]}") for n in numbers]
    if os.path.isdir(path):
        return sorted(Path(path) / name for name in os.listdir(path) if is_archive(name))
    return [Path(path)] if os.path.isfile(path) else sorted(map(Path, glob.glob(path)))


def _recognises(path: str) -> bool:
    if os.path.isdir(path):
        names = [name for name in os.listdir(path) if not name.startswith(".")]
        if not names or not all(is_archive(name) for name in names):
            return False
    elif not is_archive(path):
        return False
    elif not os.path.isfile(path):
        return BRACES.search(path) is not None or "*" in path
    return any(map(_is_shard, shards_of(path)[:1]))


def _is_shard(tar: Path) -> bool:
    """Whether the first members hold a record's text beside its medium."""
    names: dict[str, set[str]] = {}
    try:
        for at, (name, _) in enumerate(_members(tar)):
            stem, ending = _parts(name)
            names.setdefault(stem, set()).add("text" if ending in ("json", *TEXTS) else kind_of(name) or "")
            if at + 1 == LOOKED_AT:
                break
    except READ_ERRORS:
        return False
    return any("text" in kinds and kinds & {"video", "image"} for kinds in names.values())


def _parts(name: str) -> tuple[str, str]:
    """A member's key and extension: the file name is split at its first dot."""
    above, last = os.path.split(name)
    stem, _, ending = last.partition(".")
    return os.path.join(above, stem), ending.lower()


def _members(tar: Path) -> Iterator[tuple[str, bytes | None]]:
    """Yield (name, content if it is a text file) of each file of a shard. Raises READ_ERRORS."""
    with open_tar(tar) as archive:
        for _, name, member in plain_members(archive, tar.stat().st_size):
            content = archive.extractfile(member) if _parts(name)[1] in ("json", *TEXTS) else None
            if content is not None and member.size > MOST_BYTES:
                raise tarfile.ReadError(f"{name} has {member.size:,} bytes")
            yield name, content.read() if content is not None else None


def _shard_rows(tar: Path, named: str, used: set[str], collector: ProblemCollector) -> Iterator[dict[str, Any]]:
    """Yield the records of one shard, called `named` in the names of its media: consecutive members with one key. Media
    of the shard override media named in a record's text. A key is the record's id; if it is in `used`, the keys of
    earlier shards (shards may all number their records from 0), the shard's name is prepended."""
    keys: set[str] = set()
    without_text: list[str] = []
    try:
        for key, members in groupby(_members(tar), key=lambda member: _parts(member[0])[0]):
            fields, media, has_text = dict[str, Any](), dict[str, list[str]](), False
            for name, content in members:
                if content is None and (kind := kind_of(name)):
                    media.setdefault(f"{kind}s", []).append(f"{named}!{name}")
                elif content is not None:
                    has_text = True
                    more = _fields(f"{tar}!{name}", _parts(name)[1], content, collector)
                    if repeated := fields.keys() & more.keys():
                        collector.add(SYNTAX, f"{tar}!{name}", f"another file of the record has {min(repeated)!r}, too")
                    fields |= more
            if fields:
                own = {field: value for field, value in fields.items() if not media or field not in MEDIA}
                keys.add(key)
                yield {"id": f"{tar.stem}/{key}" if key in used else key, **own, **media}
            elif media and not has_text:
                without_text.append(key)
    except READ_ERRORS as broken:
        collector.add(TAR_BROKEN, str(tar), f"{type(broken).__name__}: {broken}")
    used |= keys
    if without_text:
        message = f"{len(without_text)} media have no text beside them in the shard: {shown_names(without_text)}"
        collector.add(LEFT_OUT, str(tar), message, severity="warning")


def _fields(where: str, ending: str, content: bytes, collector: ProblemCollector) -> dict[str, Any]:
    """The fields in a text file of a record."""
    try:
        text = content.decode("utf-8")
        value = loads(text) if ending == "json" else {TEXTS[ending]: text.strip()}
    except (ValueError, RecursionError) as broken:
        collector.add(SYNTAX, where, f"it cannot be read: {str(broken)[:200]}")
        return {}
    return value if isinstance(value, dict) else {"conversations": value}


def _open(path: str, media_path: str, renamed: Names) -> Source:
    """Open the shards. `media_path` is the folder of media outside of the shards. Raises DATA_FILE_MISSING."""
    shards = shards_of(path)
    if not shards:
        raise missing_file(path, "there is no such shard")
    if missing := [shard for shard in shards if not shard.is_file()]:
        raise missing_file(missing[0], f"{len(missing)} of {len(shards)} shards are missing")
    paths = [Path(os.path.abspath(shard)) for shard in shards]
    folder = Path(os.path.commonpath([shard.parent for shard in paths]))
    media = media_source(folder / "shards", media_path, root_mode=False) if media_path else MediaSource(str(folder))

    def rows(collector: ProblemCollector) -> Rows:
        index, used = 0, set[str]()
        for shard in paths:
            for row in _shard_rows(shard, str(shard if media_path else shard.relative_to(folder)), used, collector):
                yield index, row
                index += 1
        if not index and not collector.errors:
            collector.add(EMPTY, path, "the shards contain no record")

    named = shards[0] if len(shards) == 1 else folder
    return Source(named, media, rows, lambda: digest_of([content_hash(shard) for shard in shards]))


WEB_DATASET = SourceKind("WebDataset", _recognises, _open)
