"""Mining of a million rows: python benchmarks/mining.py --out DIR

A pool of random vectors, 512 dimensions for a clip and 512 for its question, as with embed.dimensions = 512; 200 rows
near each of ten directions are the targets of 1,000 gaps. It measures seconds of the search and the choice, memory, and
the number of chosen rows near the gaps' directions.
"""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from ledger import Ledger, arguments, table

from vidqa.gaps.curation import selection
from vidqa.gaps.curation.embeddings import Table, schema, table_of
from vidqa.gaps.curation.mining import TEXTS
from vidqa.gaps.curation.search import nearest, pool_mean
from vidqa.gaps.curation.selection import Limits

WIDTH, KINDS, PER_KIND = 512, 10, 200
FACTS = {"schema_version": 1, "widths": {"media": WIDTH, "text": WIDTH}}


def main() -> None:
    options = arguments(__doc__).parse_args()
    rows, gaps = (20_000, 50) if options.tiny else (1_000_000, 1_000)
    place = options.out / f"pool-{rows}.parquet"
    directions = np.random.default_rng(1).standard_normal((KINDS, 2 * WIDTH)).astype(np.float32)
    if not place.exists():
        write_pool(place, rows, directions)
    ledger = Ledger("mining", options)
    ledger.add(mined(place, gaps, directions))
    print(table(ledger.rows))


def write_pool(place: Path, rows: int, directions: np.ndarray) -> None:
    """Write a pool: rows near a direction (`kind_of`), the others noise about a mean."""
    place.parent.mkdir(parents=True, exist_ok=True)
    draw, columns = np.random.default_rng(0), schema(FACTS)
    with pq.ParquetWriter(place, columns, compression="none", use_dictionary=False) as writer:
        for start in range(0, rows, 10_000):
            numbers = np.arange(start, min(start + 10_000, rows))
            vectors = draw.standard_normal((len(numbers), 2 * WIDTH), np.float32) + 1
            near = kind_of(numbers, rows)
            vectors[near >= 0] = 3 * directions[near[near >= 0]] + vectors[near >= 0]
            names = [f"p{number}" for number in numbers]
            texts: dict[str, list[str | None]] = {"sample_id": names, "media": names, "question": ["Why?"] * len(names)}
            texts["answer"] = ["yes" if number % 2 else "no" for number in numbers]
            texts |= dict.fromkeys(("kind", "problem"), [None] * len(names))
            media, text = (list(_unit(part)) for part in np.split(vectors, 2, 1))
            writer.write_table(table_of(texts, media, text, columns))


def kind_of(numbers: np.ndarray, rows: int) -> np.ndarray:
    """The direction near a row; -1 for noise."""
    step = rows // (KINDS * PER_KIND)
    return np.where(numbers % step == 0, numbers // step % KINDS, -1)


def _unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def mined(place: Path, gaps: int, directions: np.ndarray) -> dict[str, Any]:
    draw, pool = np.random.default_rng(2), Table(place)
    before, cpu = time.perf_counter(), time.process_time()
    mean = pool_mean(pool, 0.5)
    vectors = 3 * directions[np.arange(gaps) % KINDS] + draw.standard_normal((gaps, 2 * WIDTH), np.float32)
    queries = np.ascontiguousarray(_unit(vectors), np.float32)
    neighbours = nearest(pool, queries, 80, mean)
    searched, searching = time.perf_counter(), time.process_time() - cpu
    texts = pool.texts_at(neighbours.row[neighbours.row >= 0], TEXTS)
    classes = {row: str(text["answer"]) for row, text in texts.items()}
    choice = selection.choose(neighbours, texts, classes, Limits(per_gap=20, threshold=0.0), frozenset())
    ended = time.perf_counter()
    chosen = np.array([text.row for text in choice.rows])
    return {
        "pool": pool.rows,
        "gaps": gaps,
        "search_s": round(searched - before, 1),
        "search_cpu_s": round(searching, 1),
        "choice_s": round(ended - searched, 1),
        "peak_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
        "chosen": len(chosen),
        "planted_found": int((kind_of(chosen, pool.rows) >= 0).sum()),
        "planted": KINDS * PER_KIND,
    }


if __name__ == "__main__":
    main()
