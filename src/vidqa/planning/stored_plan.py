"""The plan of a run as a parquet file: written by preflight, put into the run folder by a launch, read by the engine.

The file says what it was made of: the keys of the spec that matter, the annotations' bytes, the files of the model's
processor and tokenizer, this program, and every medium by size and time of change. Where one of them is another, the
plan is made again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import vidqa
from vidqa.actions import action_for
from vidqa.contract.files import content_hash, replacing
from vidqa.contract.problem import Problem, ProblemError
from vidqa.dataset import open_source
from vidqa.dataset.archive import archives_in, is_archive
from vidqa.dataset.record import Record
from vidqa.dataset.sources import made_absolute
from vidqa.planning.plan import Plan, PlannedSet, mode_of
from vidqa.planning.sample_table import Identity, RecordTable, SampleTable, StoredRows, schema, table_of
from vidqa.planning.samples import Planner, Prompting
from vidqa.planning.sets import looked_in, sources

if TYPE_CHECKING:
    import pyarrow

SCHEMA_VERSION = 3
FACTS = b"vidqa.plan"  # in the metadata of the table: all that is no row
MODEL_FILES = ("*.json", "*.jinja")
CODE = ("actions", "contract", "video", "dataset", "families", "planning")  # packages that decide what a plan is
LIBRARIES = ("av", "jinja2", "numpy", "tokenizers")
OTHERS = {
    "spec": "the spec asks for other records, frames or texts",
    "annotations": "the annotations have changed",
    "model": "the model's processor or tokenizer has changed",
    "program": "it was made by another version of the program or of a library",
}
THREADS = 8  # a network file system takes its time for each file that it is asked about
BROKEN = "it is damaged"


class Stale(Exception):
    """A stored plan is not the one that would be made now; the text says why."""


def inputs_of(spec: Any, planner: Planner) -> dict[str, str]:
    """What a plan is made of, the media left out: a hash for each key of OTHERS. Empty where that cannot be read, which
    whoever plans reports."""
    try:
        return _inputs(spec, planner)
    except (OSError, ProblemError):
        return {}


def _inputs(spec: Any, planner: Planner) -> dict[str, str]:
    found, action = sources(spec), action_for(spec)
    sampling = action.sampling
    counted = [sampling.held_out(spec), sampling.limit(spec), sampling.windows(spec)] if sampling else []
    places = [[made_absolute(each.annotation_path), _absolute(each.media_path)] for each in found]
    modes = {data.name: mode_of(spec, data.name) for data in action.data}
    sets = [modes, *((each.name, each.how) for each in found)]
    seen = [asdict(planner.prompting), asdict(planner.vision)]
    files = sorted(path for pattern in MODEL_FILES for path in planner.folder.glob(pattern) if path.is_file())
    here = Path(vidqa.__file__).parent
    code = [path for name in CODE for path in sorted((here / name).rglob("*.py"))]
    return {
        "spec": _hash([counted, places, sets, seen]),
        "annotations": _hash([open_source(each.annotation_path).fingerprint() for each in found]),
        "model": _hash([(path.name, content_hash(path)) for path in files]),
        "program": _hash([[content_hash(path) for path in code], [(name, version(name)) for name in LIBRARIES]]),
    }


def media_of(spec: Any, records: Iterable[Record]) -> list[str]:
    """The paths whose files decide what is planned: those of the media, archives that media are looked for in, and
    places where a file, were it there, would come before what an archive holds. Raises ProblemError."""
    refs = dict.fromkeys(ref for record in records for ref in record.media)
    found = dict.fromkeys(ref.path for ref in refs)
    for place in looked_in(spec):
        if is_archive(place):
            found[str(place)] = None
            continue
        found |= dict.fromkeys(map(str, archives_in(place)))
        found |= dict.fromkeys(os.path.join(place, os.path.normpath(ref.written)) for ref in refs)
    return list(found)


def identities_of(paths: Sequence[str]) -> dict[str, Identity]:
    """Size and time of change of files."""
    parts = [paths[first::THREADS] for first in range(THREADS)]
    with ThreadPoolExecutor(THREADS) as pool:
        found = pool.map(lambda part: [(path, _identity(path)) for path in part], parts)
        by_path = dict(pair for pairs in found for pair in pairs)
    return {path: by_path[path] for path in paths}


def as_table(plan: Plan, inputs: Mapping[str, str], identities: Mapping[str, Identity]) -> pyarrow.Table:
    """The plan with what it was made of. Raises UnicodeEncodeError for names of files that are no text."""
    table = table_of({name: (part.records, part.samples) for name, part in plan.sets.items()}, identities)
    own = {ref.path for part in plan.sets.values() for record in part.records for ref in record.media}
    facts = {
        "schema_version": SCHEMA_VERSION,
        "inputs": inputs,
        "data_fingerprint": plan.data_fingerprint,
        "sets": {name: _facts(part) for name, part in plan.sets.items()},
        "other_files": {path: identity for path, identity in identities.items() if path not in own},
    }
    return table.replace_schema_metadata({FACTS: json.dumps(facts).encode()})


def of_table(table: pyarrow.Table) -> Plan:
    """The plan whose `as_table` this is."""
    facts, rows = _facts_of(table), StoredRows(table)
    sets = {}
    for name, part in facts["sets"].items():
        samples = SampleTable(rows, rows.of(name, planned=True), Prompting(**part["prompting"]))
        problems = [Problem(**problem) for problem in part["problems"]]
        sets[name] = PlannedSet(RecordTable(rows, rows.of(name, planned=False)), samples, problems)
    return Plan(sets, facts["data_fingerprint"])


def write(path: Path, table: pyarrow.Table) -> None:
    """Replace the file. Raises OSError."""
    import pyarrow.parquet

    with replacing(path) as temporary:
        pyarrow.parquet.write_table(table, temporary, compression="zstd", write_page_checksum=True)


def read(path: Path, inputs: Mapping[str, str]) -> pyarrow.Table | None:
    """The stored plan, which is that of `inputs` and of media as they are now; None where there is none. Raises
    Stale."""
    import pyarrow
    import pyarrow.parquet

    if not path.is_file():
        return None
    try:
        with pyarrow.parquet.ParquetFile(path, page_checksum_verification=True) as file:
            _require(inputs, _facts_of(file.schema_arrow))
            table = file.read()
        facts = _facts_of(table)
        if not table.schema.equals(schema()):
            raise Stale(BROKEN)
        others = {place: identity and tuple(identity) for place, identity in facts["other_files"].items()}
        before = {**StoredRows(table).identities(), **others}
        of_table(table)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, pyarrow.ArrowException) as broken:
        raise Stale(BROKEN) from broken
    now = identities_of(list(before))
    if changed := [place for place, identity in before.items() if now[place] != identity]:
        raise Stale(f"{len(changed)} media files have changed, {changed[0]} among them")
    return table


def _require(inputs: Mapping[str, str], facts: Mapping[str, Any]) -> None:
    """Raises Stale."""
    if facts["schema_version"] != SCHEMA_VERSION:
        raise Stale(OTHERS["program"])
    if changed := [what for key, what in OTHERS.items() if facts["inputs"][key] != inputs.get(key)]:
        raise Stale("; ".join(changed))


def _facts(part: PlannedSet) -> dict[str, Any]:
    prompting = part.samples[0].prompting if part.samples else Prompting()
    return {"prompting": asdict(prompting), "problems": [problem.as_dict() for problem in part.problems]}


def _facts_of(table: Any) -> dict[str, Any]:
    """Raises KeyError, ValueError, TypeError where there are none."""
    metadata = getattr(table, "schema", table).metadata
    return json.loads(metadata[FACTS])


def _absolute(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path)) if path else ""


def _identity(path: str) -> Identity:
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_size, found.st_mtime_ns


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
