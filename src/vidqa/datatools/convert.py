"""Converts a data set from one format to another, says which fields had no place, and can put prompts into a form."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vidqa.core.problem import Problem, ProblemError, raise_errors
from vidqa.data import fingerprint
from vidqa.data.load import Pair, load_pairs, read_pairs
from vidqa.data.media import media_source
from vidqa.data.parse import RowReader
from vidqa.data.problems import FILE_MISSING, LEFT_OUT, OPTION, SPLIT, ProblemCollector
from vidqa.data.reader import NAMES
from vidqa.data.record import MediaRef, Record
from vidqa.data.sources import Source, kind_of_source, open_source
from vidqa.data.sources._base import address_of
from vidqa.data.sources.captions import CAPTIONS_FOLDER
from vidqa.data.sources.data_folder import DATA_FOLDER
from vidqa.data.sources.files import ANNOTATION_FILE, CSV_FILE
from vidqa.data.sources.user_function import USER_FUNCTION
from vidqa.data.sources.web_dataset import WEB_DATASET
from vidqa.data.splits import holds_tables
from vidqa.datatools import prompts, tao
from vidqa.datatools.merge import Imported, merged
from vidqa.datatools.outputs import json_lines, json_list, write_new
from vidqa.datatools.problems import FORMAT, PROMPT
from vidqa.datatools.written_rows import count_fields, hub_folder, llava_row, messages_row, other_fields, parquet_bytes

JSON_FORMATS = ("llava", "messages", "jsonl")
SUFFIX = {"llava": ".json", "messages": ".json", "jsonl": ".jsonl", "parquet": ".parquet"}
KINDS = {**dict.fromkeys(JSON_FORMATS, ANNOTATION_FILE), "csv": CSV_FILE, "parquet": DATA_FOLDER, "hf": DATA_FOLDER}
AS_SOURCES = (USER_FUNCTION, CAPTIONS_FOLDER, WEB_DATASET)  # kinds of which one form alone is known
MOST_NAMED = 20  # dropped fields in the warning; the facts have all


@dataclass(frozen=True)
class Converted:
    """`files` are the written ones, the one to give to other scripts first."""

    facts: dict[str, Any]
    files: list[Path]
    media_path: str
    problems: list[Problem]


def convert(
    path: str | Path | Sequence[str | Path],
    out: Path,
    to: str,
    form: str = "auto",
    media_path: str | Sequence[str] = "",
    forms: Sequence[str] = (),
    columns: Mapping[str, str] | None = None,
) -> Converted:
    """Read the data set at `path`, or several that become one, and write it to `out` as `to`.

    `media_path` is that of all sets, or one for each. `columns` gives columns (fields of a row) the names that they are
    read by. `out` is a file where it has the format's own ending (.json, .jsonl, .parquet), otherwise a folder. Media
    keep the names they have, relative to the media path that is given back (of several sets see `merged`); nothing is
    copied.
    Raises everything that is wrong with the records, DATATOOLS_FORMAT, DATATOOLS_PROMPT,
    DATA_OPTION, DATA_OUTPUT_EXISTS, STORAGE_NO_SPACE.
    """
    paths = [path] if isinstance(path, str | Path) else list(path)
    places = [media_path] if isinstance(media_path, str) else list(media_path) or [""]
    if len(places) not in (1, len(paths)):
        raise OPTION.error(
            "--media-path", f"{len(places)} are given for {len(paths)} inputs", "give none, one, or one an input"
        )
    places = places * len(paths) if len(places) == 1 else places
    read = [read_source(item, form, place, columns or {}) for item, place in zip(paths, places, strict=True)]
    source = merged(read, _output(out, to).parent if to in SUFFIX else out)
    dropped = Counter(source.dropped)
    fields = []
    for pair in source.pairs:
        other, lost = other_fields(pair.row, pair.record)
        count_fields(lost, dropped)
        fields.append(other)
    records, used = _prompted([pair.record for pair in source.pairs], fields, list(forms))
    if to not in JSON_FORMATS:
        for other in fields:
            count_fields(other, dropped)
    files = _outputs(out, to, records, fields)
    written = write_new(files)
    facts = {
        "from": source.form,
        "to": to,
        "records": len(records),
        "files": list(files),
        "media_path": source.media_path,
        "written": written,
        "prompts": used,
        "new_ids": list(source.new_ids[:MOST_NAMED]),
        "new_ids_count": len(source.new_ids),
        "dropped": dict(dropped.most_common()),
        "fingerprint": fingerprint(records),
    }
    unused = [form for form, count in used.items() if not count]
    problems = [PROMPT.at("--prompt", f"{form} fits none of the records", severity="warning") for form in unused]
    return Converted(facts, list(files), source.media_path, [*source.warnings, *problems, *_dropped(dropped, out)])


def _dropped(dropped: Counter[str], out: Path) -> list[Problem]:
    if not dropped:
        return []
    named = ", ".join(f"{name} ({count} records)" for name, count in dropped.most_common(MOST_NAMED))
    more = f" and {len(dropped) - MOST_NAMED} more" if len(dropped) > MOST_NAMED else ""
    return [LEFT_OUT.at(out, f"not written: {named}{more}", severity="warning")]


def _prompted(
    records: Iterable[Record], fields: list[dict[str, Any]], forms: list[str]
) -> tuple[list[Record], dict[str, int]]:
    """The records in the prompt forms asked for, and how many took each. Raises every answer that fits no option."""
    used = dict.fromkeys(forms, 0)
    formed_records, collector = [], ProblemCollector("--prompt")
    for record, other in zip(records, fields, strict=True):
        try:
            formed, form = prompts.apply(record, other, forms)
        except ProblemError as wrong:
            for problem in wrong.problems:
                collector.add(PROMPT, problem.where, problem.message)
            continue
        formed_records.append(formed)
        if form:
            used[form] += 1
    raise_errors(collector.problems)
    return formed_records, used


def _outputs(out: Path, to: str, records: list[Record], fields: list[dict[str, Any]]) -> dict[Path, bytes]:
    file = _output(out, to)
    if to == "hf":
        return hub_folder(file, records)
    if to == "parquet":
        return {file: parquet_bytes(records)}
    shape = messages_row if to == "messages" else llava_row
    rows = [{**shape(record), **other} for record, other in zip(records, fields, strict=True)]
    return {file: json_lines(rows) if to == "jsonl" else json_list(rows)}


def _output(out: Path, to: str) -> Path:
    """The folder for Hugging Face's layout; otherwise a file: `out` where it has the format's ending, or one in it."""
    ending = SUFFIX.get(to)
    if ending and out.suffix == ending:
        return out
    if out.suffix in (*SUFFIX.values(), ".csv") and not out.is_dir():
        file = f"a file that ends in {ending}, or " if ending else ""
        raise OPTION.error(out, f"{to} is written to {file}a folder", "change --out, or --to")
    return out / f"annotations{ending}" if ending else out


def read_source(path: str | Path, form: str, media_path: str, columns: Mapping[str, str]) -> Imported:
    """The data set at `path`. Raises what is wrong with it."""
    kind = kind_of_source(str(path))
    if form == "auto" and kind in AS_SOURCES:
        return _of_source(kind.name, open_source(path, media_path, kind, columns))
    place, part = address_of(str(path))
    place = os.path.abspath(place)
    if not os.path.exists(place):
        raise FILE_MISSING.error(place, "there is no such file or folder")
    form = detected(Path(place)) if form == "auto" else form
    if form in KINDS:
        return _of_source(form, open_source(f"{place}#{part}" if part else place, media_path, KINDS[form], columns))
    if part:
        raise SPLIT.error(place, f"{form} has no splits: {part!r} is not there")
    return _tao(Path(place), form, media_path)


def _of_source(form: str, source: Source) -> Imported:
    """What a source gives. Raises what is wrong with it."""
    pairs, warnings = load_pairs(source)
    root = source.media.root
    if source.media.named is not None:
        pairs = [Pair(pair.row, _named_from(pair.record, root)) for pair in pairs]
    return Imported(form, pairs, root, Counter(), warnings)


def _named_from(record: Record, root: str) -> Record:
    """The record with names by which an annotation file reaches media that were found by their last names."""
    media = [replace(ref, written=_name_from(ref, root)) for ref in record.media]
    return replace(record, media=tuple(media))


def _name_from(ref: MediaRef, root: str) -> str:
    if os.path.join(root, ref.written) in (ref.path, f"{ref.path}!{ref.member}"):
        return ref.written
    return os.path.relpath(ref.file, root) if ref.file.startswith(root + os.sep) else ref.file


def _tao(path: Path, form: str, media_path: str) -> Imported:
    """The samples of one of TAO's formats. Problems name the file they are in, ids are unique over all files."""
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
        reader = RowReader(file.name, source, collector, need_answers=True, ids=ids)
        pairs += read_pairs(rows, reader)
        problems += collector.problems
    raise_errors(problems)
    return Imported(form, pairs, source.root, dropped, problems)


def detected(path: Path) -> str:
    """The format of what lies at `path`. Raises DATATOOLS_FORMAT."""
    if path.is_file():
        suffix = path.suffix.lower()
        if suffix in (".csv", ".tsv", ".parquet"):
            return "csv" if suffix != ".parquet" else "parquet"
        if suffix in (".json", ".jsonl"):
            return _of_json(path)
        raise FORMAT.error(path, f"{suffix or 'no ending'} is not .json, .jsonl, .csv, .tsv or .parquet")
    if any((path / name).is_file() for name in NAMES):
        return "llava"
    if (path / "meta.json").is_file():
        return tao.COSMOS
    if holds_tables(path):
        return "hf"
    if tao.tao_vl_files(path):
        return tao.TAO_VL
    message = "the folder holds no annotations.json(l), no meta.json, no parquet or Arrow files"
    raise FORMAT.error(path, message)


def _of_json(path: Path) -> str:
    """A list and lines of JSON are read alike; an object is one of TAO's formats if it says so."""
    with path.open("rb") as file:
        start = file.read(4096).lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
    whole = tao.read_object(path) if start == b"{" and path.suffix.lower() == ".json" else None
    if whole and whole.get("format") == tao.TAO_VL:
        return tao.TAO_VL
    if whole and whole.get("version") == tao.COSMOS and path.name == "meta.json":
        return tao.COSMOS
    return "jsonl" if path.suffix.lower() == ".jsonl" else "llava"
