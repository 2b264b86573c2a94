"""The cached plan of a run: written by preflight, copied into the run folder by a launch, read by the engine.

The file records its inputs: the relevant keys of the spec, the annotations' bytes, the files of the model's processor
and tokenizer, this program, and every medium by size and modification time. If one of them differs, the plan is made
again. A medium and its frame plan are stored once.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import msgspec

import vidqa
from vidqa.core.actions import action_for
from vidqa.core.files import absolute, content_hash, replacing, size_and_mtime
from vidqa.core.gc_pause import paused
from vidqa.core.problem import Problem, ProblemError
from vidqa.data import open_source
from vidqa.data.archive import archives_in, is_archive
from vidqa.data.record import MediaRef, Provenance, Record, Turn
from vidqa.data.sources import absolute_source
from vidqa.planning.pairs import PairSample, learns_pairs
from vidqa.planning.plan import Plan, PlannedSet, media_roots, response_mode, sources
from vidqa.planning.samples import Planner, Prompting, Sample
from vidqa.spec.models import Spec
from vidqa.video.types import FramePlan

Identity = tuple[int, int] | None  # size in bytes and modification time in nanoseconds; None for a missing file
SCHEMA_VERSION = 5
MODEL_FILES = ("*.json", "*.jinja")
CODE = ("core", "video", "data", "families", "planning")  # packages whose code decides the content of a plan
LIBRARIES = ("av", "jinja2", "numpy", "tokenizers")
OTHERS = {
    "spec": "the spec asks for other records, frames or texts",
    "annotations": "the annotations have changed",
    "model": "the model's processor or tokenizer has changed",
    "program": "it was made by another version of the program or of a library",
}
THREADS = 8  # a network file system has a high latency, but serves many requests at a time
DAMAGED = "it is damaged"


class Stale(Exception):
    """A stored plan is out of date; the text says why."""


def plan_inputs(spec: Spec, planner: Planner) -> dict[str, str]:
    """Hashes of the inputs of a plan without its media, by the keys of OTHERS. Empty if an input cannot be read;
    planning reports that."""
    try:
        return _inputs(spec, planner)
    except (OSError, ProblemError):
        return {}


def _inputs(spec: Spec, planner: Planner) -> dict[str, str]:
    set_sources, action = sources(spec), action_for(spec)
    sampling = action.sampling
    counted = [sampling.held_out(spec), sampling.limit(spec), sampling.windows(spec)] if sampling else []
    places = [
        [absolute_source(source.annotation_path), str(absolute(source.media_path)) if source.media_path else ""]
        for source in set_sources
    ]
    modes = {data.name: response_mode(spec, data.name) for data in action.data}
    sets = [modes, learns_pairs(spec), *((source.name, source.how) for source in set_sources)]
    rendering = [asdict(planner.prompting), asdict(planner.vision)]
    files = sorted(path for pattern in MODEL_FILES for path in planner.folder.glob(pattern) if path.is_file())
    here = Path(vidqa.__file__).parent
    code = [path for name in CODE for path in sorted((here / name).rglob("*.py"))]
    return {
        "spec": _hash([counted, places, sets, rendering]),
        "annotations": _hash([open_source(source.annotation_path).fingerprint() for source in set_sources]),
        "model": _hash([(path.name, content_hash(path)) for path in files]),
        "program": _hash([[content_hash(path) for path in code], [(name, version(name)) for name in LIBRARIES]]),
    }


def media_paths(spec: Spec, records: Iterable[Record]) -> list[str]:
    """The paths whose files decide the plan: the media, archives that media are looked up in, and paths where a file,
    if it existed, would take precedence over an archive's member. Raises ProblemError."""
    refs = dict.fromkeys(ref for record in records for ref in record.media)
    media = dict.fromkeys(ref.path for ref in refs)
    for place in media_roots(spec):
        if is_archive(place):
            media[str(place)] = None
            continue
        media |= dict.fromkeys(map(str, archives_in(place)))
        media |= dict.fromkeys(os.path.join(place, os.path.normpath(ref.written)) for ref in refs)
    return list(media)


def file_identities(paths: Sequence[str]) -> dict[str, Identity]:
    """Size and modification time of files."""
    parts = [paths[first::THREADS] for first in range(THREADS)]
    with ThreadPoolExecutor(THREADS) as pool:
        identities = pool.map(lambda part: [(path, size_and_mtime(path)) for path in part], parts)
        by_path = dict(pair for pairs in identities for pair in pairs)
    return {path: by_path[path] for path in paths}


def encode(plan: Plan, inputs: Mapping[str, str], identities: Mapping[str, Identity]) -> bytes:
    """Encode the plan with its inputs and the identities of its files. Raises UnicodeEncodeError for names of files
    that are no text."""
    with paused():
        plans: dict[MediaRef, FramePlan | None] = {}
        for planned in plan.sets.values():
            plans |= {ref: None for record in planned.records for ref in record.media if ref not in plans}
            for sample in planned.samples:
                plans |= zip(sample.record.media, sample.plans, strict=True)
        numbers = {ref: number for number, ref in enumerate(plans)}
        sets = {name: _StoredSet.from_planned(planned, numbers) for name, planned in plan.sets.items()}
        content = _Content(plan.data_fingerprint, list(plans.items()), sets)
        head = _Head(SCHEMA_VERSION, dict(inputs), dict(identities))
        return msgspec.msgpack.encode((msgspec.msgpack.encode(head), msgspec.msgpack.encode(content)))


def decode(encoded: bytes) -> Plan:
    """Decode the plan that `encode` wrote. Records that show one medium share its objects."""
    with paused():
        content = msgspec.msgpack.decode(_parts(encoded)[1], type=_Content)
        sets = {name: stored.planned(content.media) for name, stored in content.sets.items()}
    return Plan(sets, content.data_fingerprint)


class _Row(msgspec.Struct, array_like=True, gc=False):
    """A record with media by number. `counts` are length, supervised, prefix and prefix_key of its sample; None if it
    has no sample. `rejected` and `chosen` are of pairs."""

    id: str
    turns: tuple[Turn, ...]
    media: tuple[int, ...]
    video_fps: float | None
    kind: str | None
    source: str
    provenance: Provenance | None
    counts: tuple[int, int, int, bytes] | None
    rejected: str | None = None
    chosen: tuple[int, int] | None = None


class _StoredSet(msgspec.Struct):
    prompting: Prompting
    problems: list[Problem]
    rows: list[_Row]

    @classmethod
    def from_planned(cls, planned: PlannedSet, numbers: Mapping[MediaRef, int]) -> _StoredSet:
        counts: dict[int, tuple[int, int, int, bytes]] = {
            id(sample.record): (sample.length, sample.supervised, sample.prefix, sample.prefix_key)
            for sample in planned.samples
        }
        chosen = {id(pair.record): pair.chosen for pair in planned.samples if isinstance(pair, PairSample)}
        rows = [
            _Row(
                record.id,
                record.turns,
                tuple(numbers[ref] for ref in record.media),
                record.video_fps,
                record.kind,
                record.source,
                record.provenance,
                counts.get(id(record)),
                record.rejected,
                chosen.get(id(record)),
            )
            for record in planned.records
        ]
        return cls(planned.samples[0].prompting if planned.samples else Prompting(), planned.problems, rows)

    def planned(self, media: Sequence[tuple[MediaRef, FramePlan | None]]) -> PlannedSet:
        records, samples = [], []
        for row in self.rows:
            refs = tuple(media[number][0] for number in row.media)
            record = Record(row.id, row.turns, refs, row.video_fps, row.kind, row.source, row.provenance, row.rejected)
            records.append(record)
            if row.counts:
                plans = cast(tuple[FramePlan, ...], tuple(media[number][1] for number in row.media))
                values = (record, plans, self.prompting, *row.counts)
                samples.append(PairSample(*values, chosen=row.chosen) if row.chosen else Sample(*values))
        return PlannedSet(records, samples, self.problems)


class _Content(msgspec.Struct):
    data_fingerprint: str
    media: list[tuple[MediaRef, FramePlan | None]]
    sets: dict[str, _StoredSet]


class _Head(msgspec.Struct):
    schema_version: int
    inputs: dict[str, str]
    files: dict[str, Identity]


def _parts(encoded: bytes) -> tuple[bytes, bytes]:
    """Split into head and content, both still encoded."""
    return msgspec.msgpack.decode(encoded, type=tuple[bytes, bytes])


def write(path: Path, encoded: bytes) -> None:
    """Replace the file by a compressed one with a checksum. Raises OSError."""
    with replacing(path) as temporary:
        temporary.write_bytes(zlib.compress(encoded, level=1))


def read(path: Path, inputs: Mapping[str, str]) -> bytes | None:
    """Read the encoded plan of a file, if it was made from `inputs` and the media have not changed; None without a
    file. Raises Stale."""
    if not path.is_file():
        return None
    try:
        encoded = zlib.decompress(path.read_bytes())
        head = msgspec.msgpack.decode(_parts(encoded)[0], type=_Head)
    except (OSError, zlib.error, msgspec.MsgspecError) as damaged:
        raise Stale(DAMAGED) from damaged
    if head.schema_version != SCHEMA_VERSION:
        raise Stale(OTHERS["program"])
    if changed := [reason for key, reason in OTHERS.items() if head.inputs.get(key) != inputs.get(key)]:
        raise Stale("; ".join(changed))
    identities = file_identities(list(head.files))
    if changed := [place for place, identity in head.files.items() if identities[place] != identity]:
        raise Stale(f"{len(changed)} media files have changed, {changed[0]} among them")
    return encoded


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
