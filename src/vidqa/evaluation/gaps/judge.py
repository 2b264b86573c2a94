"""Reads results files and judges each answer by the item's own ground truth, in a second process when they are large.

Whoever reads the annotations meanwhile only has to match the two: on two cores that nearly halves the time.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import IO, Any

from vidqa.contract.problem import Problem, ProblemError, raise_errors
from vidqa.evaluation.gaps.compare import comparer
from vidqa.evaluation.gaps.storage import is_remote, opened, storage_problems
from vidqa.evaluation.json_items import json_items
from vidqa.evaluation.results import Bounded, usable

LARGE = 64 << 20  # bytes of results from which a second process pays for its start
_BATCH = 5_000


# One result: (index, video_id, sample_id, kind, question, gt, response, finish_reason, answer_kind, verdict). The index
# is its place in the file; the verdict is the fields of a `Verdict`, or None where the annotation has to give what the
# result lacks, question or answer. Plain tuples, because a million of them go through a pipe.
Judged = tuple[int, str, str, str, str, str, str | None, str, str, tuple[Any, ...] | None]
Batch = tuple[str, list[Judged]]  # a results file and some of its results, in order


@contextmanager
def judging(sources: Sequence[str], mode: str, faults: Bounded) -> Iterator[Iterator[Batch]]:
    """All results of the files, judged by `mode`; work may begin before the first batch is asked for.

    What is wrong with single results goes to `faults`. Raises ProblemError (GAPS_STORAGE) while batches are taken.
    """
    if any(is_remote(source) for source in sources) or sum(map(os.path.getsize, sources)) < LARGE:
        yield _batches(sources, mode, faults)
        return
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe(duplex=False)
    with tempfile.NamedTemporaryFile(prefix="vidqa-judged-") as file, ours:
        process = spawn.Process(target=_serve, args=(theirs, file.name, sources, mode), daemon=True)
        process.start()
        theirs.close()
        try:
            yield _received(ours, file, faults)
        finally:
            process.kill()
            process.join()


def _batches(sources: Sequence[str], mode: str, faults: Bounded) -> Iterator[Batch]:
    compare = comparer(mode)
    for source in sources:
        batch: list[Judged] = []
        with storage_problems(source), opened(source) as stream:
            for index, value in json_items(stream, source, faults):
                if (item := usable(value, source, index, faults)) is None:
                    continue
                get = item.get
                question, gt, response = item["question"], item["gt"], item["response"]
                more = get("finish_reason", ""), get("answer_kind", "")
                verdict = tuple(compare(response or "", gt, question, *more)) if question and gt.strip() else None
                named = item["video_id"], get("sample_id", ""), get("kind", "")
                batch.append((index, *named, question, gt, response, *more, verdict))
                if len(batch) >= _BATCH:
                    yield source, batch
                    batch = []
        yield source, batch


def _serve(pipe: Connection, file: str, sources: Sequence[str], mode: str) -> None:
    """The second process: writes each batch to `file` and sends its length, then the problems of single results and
    those that stopped it. A pipe would hold too little of what is judged while the annotations are read."""
    gc.disable()
    faults, stopped = Bounded(), list[Problem]()
    try:
        try:
            with storage_problems(file), open(file, "wb") as out:
                for batch in _batches(sources, mode, faults):
                    length = out.write(pickle.dumps(batch))
                    out.flush()
                    pipe.send(length)
        except ProblemError as wrong:
            stopped = wrong.problems
        pipe.send((faults, stopped))
    except BrokenPipeError:  # nobody wants the rest
        pass


def _received(pipe: Connection, file: IO[bytes], faults: Bounded) -> Iterator[Batch]:
    try:
        while isinstance(message := pipe.recv(), int):
            yield pickle.loads(file.read(message))
    except EOFError:
        raise RuntimeError("the process that reads the results ended before it was done") from None
    found, stopped = message
    faults.extend(found)
    faults.counts.update(found.counts)
    raise_errors(stopped)
