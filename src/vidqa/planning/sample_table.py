"""Planned samples as an Arrow table: a row for each record, and a `Sample` made only when somebody asks for it.

A medium is planned once: its plan stands, under `shows`, in the row of the first record that shows it, and `media` of
every record are numbers of media in that order.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from functools import lru_cache, partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

import numpy as np

from vidqa.contract.gc_pause import paused
from vidqa.dataset.record import MediaRef, Record, Turn
from vidqa.planning.samples import Prompting, Sample
from vidqa.video.types import FramePlan

if TYPE_CHECKING:
    import pyarrow

T = TypeVar("T")
KEPT = 1 << 12  # samples and media that stay made: a step asks for its samples several times
AT_ONCE = 1 << 10  # rows that are made together where all are asked for
Identity = tuple[int, int] | None  # size in bytes and time of change in nanoseconds; None of a file that is not there
COUNTS = {"length": "tokens", "supervised": "supervised", "prefix": "prefix", "prefix_key": "prefix_key"}
REF = ("kind", "written", "path", "member", "size", "span", "keys")
PLAN = ("indices", "times_s", "height", "width", "grid", "tokens", "patches", "patch_times_s")


def schema() -> pyarrow.Schema:
    import pyarrow as pa

    numbers, seconds = pa.list_(pa.int32()), pa.list_(pa.float64())
    medium = {
        **{"kind": pa.string(), "written": pa.string(), "path": pa.string(), "member": pa.string()},
        **{"size": pa.int64(), "span": seconds, "keys": pa.string()},
        **{"file_bytes": pa.int64(), "file_mtime_ns": pa.int64()},
        **{"indices": numbers, "times_s": seconds, "height": pa.int32(), "width": pa.int32(), "grid": numbers},
        **{"tokens": pa.int32(), "patches": pa.int64(), "patch_times_s": seconds},
    }
    record = {
        **{"set": pa.string(), "id": pa.string(), "source": pa.string(), "kind": pa.string()},
        **{"video_fps": pa.float64(), "turns": pa.large_string(), "media": numbers},
        **{"tokens": pa.int64(), "supervised": pa.int64(), "prefix": pa.int64(), "prefix_key": pa.binary()},
        "shows": pa.list_(pa.struct(list(medium.items()))),
    }
    return pa.schema(list(record.items()))


def table_of(
    sets: Mapping[str, tuple[Sequence[Record], Sequence[Sample]]], identities: Mapping[str, Identity]
) -> pyarrow.Table:
    """The table of records and of the samples that some of them became, both in one order. Raises UnicodeEncodeError
    for names of files that are no text."""
    import pyarrow as pa

    with paused():
        records = list(chain.from_iterable(found for found, _ in sets.values()))
        samples = list(chain.from_iterable(_aligned(*found) for found in sets.values()))
        plans: dict[MediaRef, FramePlan] = {}
        for sample in filter(None, samples):
            plans |= zip(sample.record.media, sample.plans, strict=True)
        numbers: dict[MediaRef, int] = {}
        shows = []
        for record in records:
            new = [ref for ref in dict.fromkeys(record.media) if ref not in numbers]
            numbers |= {ref: len(numbers) + at for at, ref in enumerate(new)}
            shows.append([_medium(ref, plans.get(ref), identities.get(ref.path)) for ref in new])
        encode = json.JSONEncoder(ensure_ascii=False).encode
        columns = {
            "set": [name for name, (found, _) in sets.items() for _ in found],
            **{name: [getattr(record, name) for record in records] for name in ("id", "source", "kind", "video_fps")},
            "turns": [encode([(turn.role, turn.parts, turn.learned) for turn in record.turns]) for record in records],
            "media": [[numbers[ref] for ref in record.media] for record in records],
            **{name: [sample and getattr(sample, each) for sample in samples] for each, name in COUNTS.items()},
            "shows": shows,
        }
        return pa.Table.from_pydict(columns, schema=schema())


def _aligned(records: Sequence[Record], samples: Sequence[Sample]) -> Iterator[Sample | None]:
    """For every record its sample, or None."""
    left = iter(samples)
    sample = next(left, None)
    for record in records:
        if sample is None or sample.record is not record:
            yield None
        else:
            yield sample
            sample = next(left, None)


def _medium(ref: MediaRef, plan: FramePlan | None, identity: Identity) -> dict[str, Any]:
    row = {name: getattr(ref, name) for name in REF} | {"keys": json.dumps(ref.keys) if ref.keys else None}
    row["file_bytes"], row["file_mtime_ns"] = identity or (None, None)
    return row | {name: getattr(plan, name) for name in PLAN if plan}


class StoredRows:
    """The rows of a table, which become objects."""

    def __init__(self, table: pyarrow.Table) -> None:
        import pyarrow as pa

        names = [name for name in table.column_names if name != "shows"]
        self.batch = pa.RecordBatch.from_arrays([_whole(table[name]) for name in names], names)
        shows = _whole(table["shows"]).flatten()
        self._media = {shows.type.field(at).name: shows.field(at) for at in range(shows.type.num_fields)}
        self.ref = lru_cache(KEPT)(self._ref)
        self.plan = lru_cache(KEPT)(self._plan)

    def of(self, name: str, *, planned: bool) -> np.ndarray:
        """The row numbers of a set; with `planned` of those that are samples."""
        import pyarrow.compute as pc

        names = self.batch["set"].dictionary_encode()
        code = names.dictionary.to_pylist().index(name) if name in names.dictionary.to_pylist() else -1
        found = np.flatnonzero(np.from_dlpack(names.indices) == code)
        if not planned:
            return found
        return np.intersect1d(found, np.from_dlpack(pc.indices_nonzero(pc.is_valid(self.batch["tokens"]))))

    def column(self, name: str, numbers: np.ndarray) -> list[Any]:
        return self.batch[name].take(_positions(numbers)).to_pylist()

    def identities(self) -> dict[str, Identity]:
        """The path of each medium's file with its identity when it was planned."""
        found = zip(*(self._media[name].to_pylist() for name in ("path", "file_bytes", "file_mtime_ns")), strict=True)
        return {path: None if size is None else (size, changed) for path, size, changed in found}

    def records(self, numbers: np.ndarray) -> list[Record]:
        return [self._record(row) for row in self._read(numbers)]

    def samples(self, numbers: np.ndarray, prompting: Prompting) -> list[Sample]:
        return [self._sample(row, prompting) for row in self._read(numbers)]

    def _read(self, numbers: np.ndarray) -> list[dict[str, Any]]:
        return self.batch.take(_positions(numbers)).to_pylist()

    def _record(self, row: Mapping[str, Any]) -> Record:
        turns = tuple(Turn(role, tuple(parts), learned) for role, parts, learned in json.loads(row["turns"]))
        media = tuple(map(self.ref, row["media"]))
        return Record(row["id"], turns, media, row["video_fps"], row["kind"], row["source"])

    def _sample(self, row: Mapping[str, Any], prompting: Prompting) -> Sample:
        plans = tuple(map(self.plan, row["media"]))
        return Sample(self._record(row), plans, prompting, *(row[name] for name in COUNTS.values()))

    def _ref(self, number: int) -> MediaRef:
        values: dict[str, Any] = {name: self._media[name][number].as_py() for name in REF}
        keys = tuple((name, value) for name, value in json.loads(values["keys"] or "[]"))
        return MediaRef(**values | {"span": values["span"] and tuple(values["span"]), "keys": keys})

    def _plan(self, number: int) -> FramePlan:
        found = [self._media[name][number].as_py() for name in ("kind", *PLAN)]
        values: list[Any] = [tuple(value) if isinstance(value, list) else value for value in found]
        return FramePlan(*values)


def _whole(chunked: pyarrow.ChunkedArray) -> pyarrow.Array:
    found = chunked.combine_chunks()
    return found.chunk(0) if hasattr(found, "chunk") else found


def _positions(numbers: np.ndarray) -> pyarrow.Array:
    """What `take` takes; pyarrow's own way from numpy to an array, as that of scalars, imports pandas."""
    import pyarrow as pa

    values = np.ascontiguousarray(numbers, dtype=np.int64)
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])


class _Table(Sequence[T]):
    """Some rows of a table as objects, each made when it is asked for; a slice makes none."""

    def __init__(self, numbers: np.ndarray, make: Callable[[np.ndarray], list[T]]) -> None:
        self.numbers, self._make = numbers, make
        self._one = lru_cache(KEPT)(lambda number: make(np.array([number]))[0])

    def at(self, places: Any) -> Self:
        """Those at these places of this one, or of a slice of it."""
        some = copy(self)
        some.numbers = self.numbers[places]
        return some

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[T]:
        for first in range(0, len(self), AT_ONCE):
            yield from self._make(self.numbers[first : first + AT_ONCE])

    @overload
    def __getitem__(self, at: int) -> T: ...
    @overload
    def __getitem__(self, at: slice) -> Self: ...
    def __getitem__(self, at: int | slice) -> T | Self:
        return self.at(at) if isinstance(at, slice) else self._one(int(self.numbers[at]))


class RecordTable(_Table[Record]):
    """Records, as `StoredRows` makes them."""

    def __init__(self, rows: StoredRows, numbers: np.ndarray) -> None:
        super().__init__(numbers, rows.records)


class SampleTable(_Table[Sample]):
    """Samples, as `StoredRows` makes them; their counts are read without making any."""

    def __init__(self, rows: StoredRows, numbers: np.ndarray, prompting: Prompting) -> None:
        super().__init__(numbers, partial(rows.samples, prompting=prompting))
        self.rows = rows

    def column(self, attribute: str) -> list[Any]:
        return self.rows.column(COUNTS[attribute], self.numbers)


def column(samples: Sequence[Sample], attribute: str) -> list[Any]:
    """One of length, supervised, prefix and prefix_key of all samples; those of a table are not made for it."""
    if isinstance(samples, SampleTable):
        return samples.column(attribute)
    return [getattr(sample, attribute) for sample in samples]
