"""Embedding: vectors of videos and questions, for similarity search.

    python -P -m vidqa.engine.torchrun --standalone --nproc-per-node 1 -m vidqa.engine embed --spec embed.toml \
        --run-dir results/my-run

A video's vector is the mean of its vision tokens, concatenated with the spread over time of their mean. A question's
vector is the mean of its tokens' embeddings. Vectors are cached next to the run (`Vectors`), so that a file is
embedded only once in all runs. A pool and the queries to search it with can be two sets of one run, each with its own
table.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

import vidqa
from vidqa.core.actions.reading import NO_QUESTION
from vidqa.core.files import replacing, size_and_mtime, write_json
from vidqa.core.problem import Exit, Problem
from vidqa.core.run_folder import EMBEDDINGS, QUERY_EMBEDDINGS, RunFolder
from vidqa.data.record import MediaRef, Record
from vidqa.engine.actions.embedder import Embedder, widths_of
from vidqa.engine.actions.inference import problems_by_record
from vidqa.engine.answering.answers import fingerprint_model
from vidqa.engine.answering.batch_inference import Failed, model_folders, start_answering
from vidqa.engine.data.frames import FrameSource, open_frames
from vidqa.engine.data.planned_samples import end_if_bad, fitting, shared_plan
from vidqa.engine.data.prefetch import decode_ahead
from vidqa.engine.distributed import World
from vidqa.engine.progress import open_evaluation
from vidqa.engine.signals import StopRequest
from vidqa.gaps.curation.embeddings import SCHEMA_VERSION, VECTORS, schema, table_of
from vidqa.planning.resume_compat import weights_hash
from vidqa.planning.samples import Planner, Sample, evaluation_planner
from vidqa.spec.models import EmbedSpec
from vidqa.video.types import FramePlan

TABLES = {"embedded": EMBEDDINGS, "queries": QUERY_EMBEDDINGS}  # by the name of the set
FOLDER = ".embeddings"  # the folder of all cached vectors, beside the runs
TEXTS = 256  # per batch
ROWS = 1024  # per write
KEY_BYTES = 16
ENDING = ".rows"
Keys = tuple[bytes, ...]


@dataclass(frozen=True)
class Stores:
    """The stored vectors of media and of questions."""

    media: Vectors
    text: Vectors

    def look(self) -> None:
        self.media.look()
        self.text.look()


def embed(spec: EmbedSpec, run: RunFolder) -> int:
    """Embed the sets of an EmbedSpec in `run`. Returns 0, or 6 when a signal stopped it (vectors so far are kept)."""
    stop = StopRequest()
    world = start_answering(spec)
    folder, base = model_folders(spec)

    planner = evaluation_planner(spec, base or folder)
    sets = shared_plan(spec, planner, world, run).sets
    fit = {name: fitting(spec, part) for name, part in sets.items()}
    facts = world.on_main(lambda: facts_of(spec, planner, folder, base))
    stores = open_stores(run, world, facts)

    embedder = Embedder(spec, planner, world.device)
    failed: dict[Keys, list[Problem]] = {}
    units = {keys: sample for samples, _ in fit.values() for sample in samples if (keys := keys_of(sample))}
    left = [keys for keys in units if not all(key in stores.media for key in keys)][world.rank :: world.size]
    with (
        open_evaluation(run, world, -(-len(left) // spec.embed.batch_size)) as progress,
        open_frames(spec.engine, spec.engine.decode_workers) as source,
    ):
        for number, batch in enumerate(batches(left, units, source, spec.embed.batch_size), 1):
            vectors, bad = embedder.media(batch)
            end_if_bad(
                [problem for problems in bad.values() for problem in problems],
                fails=spec.engine.on_bad_sample == "fail",
            )
            stores.media.append(vectors)
            failed |= bad
            progress.log(number, {}, line=f"{min(number * spec.embed.batch_size, len(left))} of {len(left)} videos")
            if stop.signal_name:
                break
    if not stop.signal_name:
        _embed_texts(chain.from_iterable(part.records for part in sets.values()), stores, embedder, world)
    everyone = world.gather((stop.signal_name is not None, failed))
    if any(stopped for stopped, _ in everyone):
        return int(Exit.NOT_DONE)
    bad = {keys: problems for _, own in everyone for keys, problems in own.items()}

    def conclude() -> None:
        stores.look()
        counts, summaries = Counter[str](), []
        for name, (samples, problems) in fit.items():
            why = problems_by_record(sets[name], problems)
            why |= {sample.record.id: bad[keys] for sample in samples if (keys := keys_of(sample)) in bad}
            counts += write_table(run.path / TABLES[name], sets[name].records, samples, stores, facts, why)
            summaries += [first.as_dict() for first, *_ in why.values()]
        write_json(run.path / "summary.json", {"counts": dict(counts), "facts": facts, "problems": summaries})

    world.on_main(conclude)
    return int(Exit.OK)


def facts_of(spec: EmbedSpec, planner: Planner, folder: Path, base: Path | None) -> dict[str, Any]:
    """The settings that determine the vectors: tables with equal settings can be compared."""
    text = spec.embed.text_model
    widths = widths_of(spec, planner.family.sizes_of(base or folder))
    return {
        "schema_version": SCHEMA_VERSION,
        "model": fingerprint_model(folder, base)["sha256"],
        "vision": asdict(planner.vision),
        "dimensions": spec.embed.dimensions,
        "dtype": spec.model.dtype,
        "text_model": weights_hash(Path(os.path.expanduser(text))) if text else "",
        "widths": {"media": widths[0], "text": widths[1]},
        "vidqa_version": vidqa.__version__,
    }


def open_stores(run: RunFolder, world: World, facts: dict[str, Any]) -> Stores:
    """Open the cached vectors for these settings, whichever run computed them."""
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:16]
    place = run.path.absolute().parent / FOLDER / digest
    writer = f"{hashlib.sha256(run.path.name.encode()).hexdigest()[:8]}-{world.rank}"
    stores = Stores(*(Vectors(place / name, facts["widths"][name], writer) for name in ("media", "text")))
    world.barrier()
    stores.look()
    world.barrier()
    return stores


def keys_of(sample: Sample) -> Keys:
    """The key of each medium of a sample, from its file in its present state and the planned frames."""
    return tuple(_key(ref, plan) for ref, plan in zip(sample.record.media, sample.plans, strict=True))


def _key(ref: MediaRef, plan: FramePlan) -> bytes:
    stamp = size_and_mtime(ref.path)  # None: decoding reports the error
    return _digest(repr((ref.file, stamp, plan.kind, plan.indices, plan.height, plan.width)))


def _digest(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=KEY_BYTES).digest()


def batches(left: Sequence[Keys], units: dict[Keys, Sample], source: FrameSource, size: int) -> Iterator[list[Any]]:
    """Yield batches of `size` tuples (keys, sample, its frames, problems); videos are decoded ahead."""
    batch = []
    for keys, (sample, ticket) in zip(left, decode_ahead([units[keys] for keys in left], source), strict=True):
        (frames,), problems = source.collect(ticket)
        batch.append((keys, sample, frames, problems))
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def _embed_texts(records: Iterable[Record], stores: Stores, embedder: Embedder, world: World) -> None:
    """Embed the questions without a vector."""
    questions = dict.fromkeys(text for record in records if (text := _question(record)))
    left = [text for text in questions if _digest(text) not in stores.text][world.rank :: world.size]
    for start in range(0, len(left), TEXTS):
        some = left[start : start + TEXTS]
        stores.text.append(dict(zip(map(_digest, some), embedder.texts(some), strict=True)))


def _question(record: Record) -> str:
    return "" if record.question == NO_QUESTION else record.question


def write_table(
    place: Path,
    records: Sequence[Record],
    samples: Sequence[Sample],
    stores: Stores,
    facts: dict[str, Any],
    why: Failed,
) -> Counter[str]:
    """Write a row for every record, in order. Returns the numbers of embedded and of failed records."""
    import pyarrow.parquet

    keys = {sample.record.id: keys_of(sample) for sample in samples}
    columns, counts = schema(facts), Counter[str]()
    with replacing(place) as temporary:
        # Vectors do not repeat and do not compress: neither is tried.
        options = {"compression": "none", "use_dictionary": False, "write_statistics": False}
        with pyarrow.parquet.ParquetWriter(temporary, columns, **options) as writer:
            for start in range(0, len(records), ROWS):
                rows = [_row(record, keys.get(record.id), stores, why) for record in records[start : start + ROWS]]
                counts.update("error" if row["problem"] else "embedded" for row in rows)
                media, text = ([row.pop(name) for row in rows] for name in VECTORS)
                texts = {name: [row[name] for row in rows] for name in rows[0]}
                writer.write_table(table_of(texts, media, text, columns))
    return counts


def _row(record: Record, keys: Keys | None, stores: Stores, why: Failed) -> dict[str, Any]:
    vectors = [vector for key in keys or () if (vector := stores.media.get(key)) is not None]
    mean = np.mean(vectors, axis=0) if vectors and keys and len(vectors) == len(keys) else None
    question = _question(record)
    return {
        "sample_id": record.id,
        "media": record.media[0].file if record.media else "",
        "question": question,
        "answer": record.answer or None,
        "kind": record.kind,
        "media_embedding": None if mean is None else mean / max(float(np.linalg.norm(mean)), 1e-12),
        "text_embedding": stores.text.get(_digest(question)) if question else None,
        "problem": why[record.id][0].code if record.id in why else None,
    }


class Vectors:
    """Vectors on disk by key, with `width` elements each: one append-only file per rank and run. All files of a folder
    are read together; this process appends to the file named by `writer`.

    A row is a key, a vector and a checksum. A partial last row after a kill is truncated before the next write; a row
    with a wrong checksum counts as absent."""

    def __init__(self, folder: Path, width: int, writer: str) -> None:
        self.folder, self.path = folder, folder / f"{writer}{ENDING}"
        self.row = np.dtype([("key", f"V{KEY_BYTES}"), ("vector", "<f4", (width,)), ("checksum", "<u4")])
        folder.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            os.truncate(self.path, self.path.stat().st_size // self.row.itemsize * self.row.itemsize)
        self._files: dict[Path, np.ndarray] = {}
        self._places: dict[bytes, tuple[Path, int]] = {}

    def append(self, vectors: Mapping[bytes, np.ndarray]) -> None:
        """Append vectors, float32 [width] by key; they are on disk when this returns."""
        rows = np.zeros(len(vectors), self.row)
        for at, (key, vector) in enumerate(vectors.items()):
            rows[at] = (np.void(key), vector, zlib.crc32(np.ascontiguousarray(vector, "<f4").tobytes()))
        with self.path.open("ab") as file:
            file.write(rows.tobytes())
            file.flush()
            os.fsync(file.fileno())

    def look(self) -> None:
        """Read the new rows of all files; until then `get` returns no vector of them. A row is verified when it is
        first read. Call it while no rank writes."""
        for path in sorted(self.folder.glob(f"*{ENDING}")):
            checked, count = len(self._files.get(path, ())), path.stat().st_size // self.row.itemsize
            if count <= checked:
                continue
            # As a plain array: each row of a memmap would be a memmap of its own.
            rows = self._files[path] = np.asarray(np.memmap(path, self.row, "r", shape=(count,)))
            columns = (rows["key"][checked:].tolist(), rows["vector"][checked:], rows["checksum"][checked:].tolist())
            for at, (key, vector, checksum) in enumerate(zip(*columns, strict=True), checked):
                if zlib.crc32(vector) == checksum:
                    self._places.setdefault(key, (path, at))

    def __contains__(self, key: bytes) -> bool:
        return key in self._places

    def get(self, key: bytes) -> np.ndarray | None:
        """The vector of a key, float32 [width], or None."""
        if key not in self._places:
            return None
        path, at = self._places[key]
        return np.array(self._files[path]["vector"][at])
