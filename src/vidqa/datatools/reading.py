"""Read data sets of all formats as rows with their records, and merge several into one, with media names that are
valid in one file and with unique ids."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from vidqa.core.cli import USAGE, command
from vidqa.core.files import annotations_in_folder
from vidqa.core.problem import Problem, ProblemError, raise_errors
from vidqa.data.load import Pair, load_pairs, read_pairs
from vidqa.data.media import media_source
from vidqa.data.parse import RowReader
from vidqa.data.problems import FILE_MISSING, SPLIT, ProblemCollector
from vidqa.data.record import MediaRef, media_by_key
from vidqa.data.sources import Source, kind_of_source, open_source
from vidqa.data.sources._base import address_of
from vidqa.data.sources.captions import CAPTIONS_FOLDER
from vidqa.data.sources.data_folder import DATA_FOLDER
from vidqa.data.sources.files import ANNOTATION_FILE, CSV_FILE, USER_FUNCTION
from vidqa.data.sources.web_dataset import WEB_DATASET
from vidqa.data.splits import holds_tables
from vidqa.datatools import tao
from vidqa.datatools.problems import FORMAT

JSON_FORMATS = ("llava", "messages", "jsonl")
KINDS = {**dict.fromkeys(JSON_FORMATS, ANNOTATION_FILE), "csv": CSV_FILE, "parquet": DATA_FOLDER, "hf": DATA_FOLDER}
TABLES = {".csv": "csv", ".tsv": "csv", ".parquet": "parquet", ".arrow": "hf"}
AS_SOURCES = (USER_FUNCTION, CAPTIONS_FOLDER, WEB_DATASET)  # kinds with a single format each
NAMED = 5
MEDIA_FOLDER = "media"  # beside the output, for media from table columns
UNPACK = "unpack the archive (tar -xf videos.tar) beside its annotations, and merge again"


@dataclass(frozen=True)
class Imported:
    """A data set that was read: its format, rows with their records, and the location of the media."""

    form: str
    pairs: list[Pair]
    media_path: str
    dropped: Counter[str]
    warnings: list[Problem]
    new_ids: tuple[str, ...] = ()  # of merged sets, in place of ids that occurred twice
    in_tables: bool = False  # whether the media path is a cache folder with media from table columns


def read_source(path: str | Path, form: str, media_path: str, columns: Mapping[str, str]) -> Imported:
    """Read the data set at `path`. Raises its errors, and USAGE for `columns` of a format with fixed field names."""
    kind = kind_of_source(str(path))
    if form == "auto" and kind in AS_SOURCES:
        return _import_source(kind.name, open_source(path, media_path, kind, columns))
    place, part = address_of(str(path))
    place = os.path.abspath(place)
    if not os.path.exists(place):
        raise FILE_MISSING.error(place, "there is no such file or folder")
    form = detected(Path(place)) if form == "auto" else form
    if form in KINDS:
        return _import_source(form, open_source(f"{place}#{part}" if part else place, media_path, KINDS[form], columns))
    if part:
        raise SPLIT.error(place, f"{form} has no splits, so {part!r} does not exist")
    if columns:
        raise USAGE.error("--column", f"{form} has fixed field names: there is none to rename", "leave it out")
    return _tao(Path(place), form, media_path)


def _import_source(form: str, source: Source) -> Imported:
    """Read all rows of a source. Raises its errors."""
    pairs, warnings = load_pairs(source)
    return Imported(form, pairs, source.media.root, Counter(), warnings, in_tables=source.media.in_tables)


def _tao(path: Path, form: str, media_path: str) -> Imported:
    """Read one of TAO's formats. Problems name the file; ids are unique over all files."""
    folder = path if path.is_dir() else path.parent
    files = [folder / "meta.json"] if form == tao.COSMOS else tao.tao_vl_files(path)
    if not files:
        raise FORMAT.error(path, f"no file of the folder has the format {tao.TAO_VL}")
    source = media_source(folder / "annotations", media_path, root_mode=False)
    dropped: Counter[str] = Counter()
    pairs, problems, ids = [], [], dict[str, int]()
    for file in files:
        collector = ProblemCollector(str(file))
        if form == tao.COSMOS:
            rows = tao.cosmos_rows(folder, collector, dropped)
        else:
            rows = tao.tao_vl_rows(file, collector, dropped, own_root=not media_path, alone=len(files) == 1)
        reader = RowReader(file.name, source, collector, ids=ids)
        pairs += read_pairs(rows, reader)
        problems += collector.problems
    raise_errors(problems)
    return Imported(form, pairs, source.root, dropped, problems)


def detected(path: Path) -> str:
    """The format of the file or folder at `path`. Raises DATATOOLS_FORMAT."""
    if path.is_file():
        suffix = path.suffix.lower()
        if suffix in (".json", ".jsonl"):
            return _json_format(path)
        if suffix not in TABLES:
            raise FORMAT.error(path, f"{suffix or 'no ending'} is not .json, .jsonl, {' or '.join(TABLES)}")
        return TABLES[suffix]
    if annotations_in_folder(path):
        return "llava"
    if (path / "meta.json").is_file():
        return tao.COSMOS
    if holds_tables(path):
        return "hf"
    if tao.tao_vl_files(path):
        return tao.TAO_VL
    message = "the folder contains no annotations.json(l), meta.json, parquet or Arrow files"
    raise FORMAT.error(path, message)


def _json_format(path: Path) -> str:
    """The format of a JSON file: one of TAO's if the object says so; lists and lines of JSON are read alike."""
    with path.open("rb") as file:
        start = file.read(4096).lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
    whole = tao.read_object(path) if start == b"{" and path.suffix.lower() == ".json" else None
    if whole and whole.get("format") == tao.TAO_VL:
        return tao.TAO_VL
    if whole and whole.get("version") == tao.COSMOS and path.name == "meta.json":
        return tao.COSMOS
    return "jsonl" if path.suffix.lower() == ".jsonl" else "llava"


def require_media_files(source: Source, written: str | Path) -> None:
    """Raise DATATOOLS_FORMAT for a set, called `written`, whose tables hold the media: their copies in the cache may
    be emptied, so that a file written to last must not name them."""
    if source.media.in_tables:
        convert = command("convert_dataset", "--in", written, "--to", "llava", "--out", "DATA/annotations.json")
        message, remedy = "its media are in the table, not in separate files", f"{convert} writes files; use that set"
        raise FORMAT.error(source.path, message, remedy)


def with_media_files(one: Imported, folder: Path) -> tuple[Imported, dict[Path, str]]:
    """Rename the media of a set whose tables hold them to `folder`/media, because the cache may be emptied. Returns the
    set, and the cached file for each of these paths. Other sets are unchanged."""
    if not one.in_tables:
        return one, {}
    root, files, pairs = os.path.abspath(folder), dict[Path, str](), []
    for pair in one.pairs:
        media = []
        for ref in pair.record.media:
            if ref.path == os.path.join(one.media_path, ref.written):
                name = os.path.join(MEDIA_FOLDER, ref.written)
                files[Path(root, name)] = ref.path
                ref = replace(ref, written=name, path=os.path.join(root, name))
            media.append(ref)
        pairs.append(Pair(pair.row, replace(pair.record, media=tuple(media))))
    return replace(one, pairs=pairs, media_path=root), files


def merged(sets: Sequence[Imported], folder: Path) -> Imported:
    """Merge the sets, for an annotation file in `folder`.

    Media keep their names if all sets have one media path. Otherwise names are relative to `folder` if all media are
    below it, else absolute; the returned media path is then `folder` or "". An id that an earlier set has gets the
    number of its own set as a suffix. Raises DATATOOLS_FORMAT.
    """
    if len(sets) == 1:
        return sets[0]
    places = {one.media_path for one in sets}
    media_path = places.pop() if len(places) == 1 else _renamed(sets, folder)
    used_ids: set[str] = set()
    new_ids: list[str] = []
    pairs: list[Pair] = []
    for number, one in enumerate(sets, start=1):
        own = {pair.record.id for pair in one.pairs}
        for pair in one.pairs:
            record = pair.record
            if record.id in used_ids:
                record = replace(record, id=_free(record.id, number, used_ids | own))
                new_ids.append(record.id)
            pairs.append(Pair(pair.row, record))
        used_ids |= {pair.record.id for pair in pairs[len(pairs) - len(one.pairs) :]}
    return Imported(
        " + ".join(dict.fromkeys(one.form for one in sets)),
        pairs,
        media_path,
        sum((one.dropped for one in sets), Counter()),
        [problem for one in sets for problem in one.warnings],
        tuple(new_ids),
    )


def _free(name: str, number: int, used: set[str]) -> str:
    new = f"{name}-{number}"
    while new in used:
        new += f"-{number}"
    return new


def _renamed(sets: Sequence[Imported], folder: Path) -> str:
    """Rename the media of all sets to names valid in one file. Returns the media path, "" for absolute names."""
    archived = [ref for one in sets for ref in _refs(one) if not _is_named_file(ref, one.media_path)]
    if archived:
        shown = ", ".join(dict.fromkeys(ref.key for ref in archived[:NAMED]))
        raise ProblemError([FORMAT.at(shown, f"{len(archived)} media are inside an archive", UNPACK)])
    root = os.path.abspath(folder)
    below = all(ref.path.startswith(root + os.sep) for one in sets for ref in _refs(one))
    for one in sets:
        for at, pair in enumerate(one.pairs):
            names = [os.path.normpath(ref.path) for ref in pair.record.media]
            names = [os.path.relpath(name, root) for name in names] if below else names
            media = [replace(ref, written=name) for ref, name in zip(pair.record.media, names, strict=True)]
            one.pairs[at] = Pair(pair.row, replace(pair.record, media=tuple(media)))
    return root if below else ""


def _refs(one: Imported) -> Iterable[MediaRef]:
    return media_by_key(pair.record for pair in one.pairs).values()


def _is_named_file(ref: MediaRef, media_path: str) -> bool:
    """Whether the medium is the file of that name, not a member of an archive."""
    written = ref.written.removeprefix("file://")
    return ref.member is None and ref.path in (written, os.path.join(media_path, os.path.normpath(written)))
