"""Results and annotations in, gap table out: streams the results, so that a million rows fit in little memory."""

from __future__ import annotations

import gc
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow.parquet as pq

from vidqa.contract.problem import Code, Problem, raise_errors
from vidqa.evaluation.gaps.annotations import Annotations, annotation_file, read_annotations
from vidqa.evaluation.gaps.compare import Compare, comparer
from vidqa.evaluation.gaps.judge import Batch, Judged, judging
from vidqa.evaluation.gaps.problems import (
    GAPS_ANNOTATION_ID_TWICE,
    GAPS_GROUND_TRUTH_DIFFERS,
    GAPS_MODE,
    GAPS_NO_GROUND_TRUTH,
    GAPS_NO_RESULT,
    GAPS_RESULT_REPEATED,
    GAPS_RESULT_UNKNOWN,
    GAPS_SAME_FILE,
)
from vidqa.evaluation.gaps.storage import find_results, is_same, publishing, storage_problems
from vidqa.evaluation.gaps.table import SCHEMA, GapTable
from vidqa.evaluation.results import Bounded
from vidqa.evaluation.text import normalise

ERROR_TYPES = {  # in the order of summaries
    "wrong": "an answer was given, and it is not the ground truth",
    "truncated": "the answer was cut off: a larger generation.max_tokens lets it end",
    "unparsed": "the response does not say one answer of the kind that is asked for",
    "empty": "the model said nothing, or its video could not be decoded (finish_reason is then error)",
    "missing": "an annotated sample has no result: the evaluation was not finished, or limited",
}


@dataclass
class Gaps:
    """What was found. `by_kind` maps a kind to its gaps per error type; `samples_by_kind` to all of its samples."""

    sources: list[str]
    results: int = 0  # rows read, repeated ones not counted
    correct: int = 0
    by_error: Counter[str] = field(default_factory=Counter)
    by_kind: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    samples_by_kind: Counter[str] = field(default_factory=Counter)
    problems: list[Problem] = field(default_factory=list)

    @property
    def count(self) -> int:
        return self.by_error.total()

    def as_dict(self) -> dict[str, Any]:
        return {
            "gaps": self.count,
            "results": self.results,
            "correct": self.correct,
            "by_error_type": {error: self.by_error[error] for error in ERROR_TYPES},
            "by_kind": {
                kind: {"n": self.samples_by_kind[kind], "gaps": errors.total(), **dict(errors)}
                for kind, errors in sorted(self.by_kind.items())
            },
            "error_types": {error: meaning for error, meaning in ERROR_TYPES.items() if self.by_error[error]},
            "source_results": self.sources,
        }


@dataclass
class _Remarks:
    """Warnings that many rows share: how many rows, and the first place."""

    counts: Counter[Code] = field(default_factory=Counter)
    first: dict[Code, str] = field(default_factory=dict)

    def add(self, code: Code, source: str, index: int | None = None) -> None:
        self.counts[code] += 1
        if code not in self.first:
            self.first[code] = source if index is None else f"{source}[{index}]"

    def problems(self) -> list[Problem]:
        return [
            code.at(self.first[code], f"{count} in all, this is the first: {code.meaning}", severity="warning")
            for code, count in self.counts.items()
        ]


def analyze(
    results_dir: str,
    gaps_parquet: str,
    kpi_ann_path: str,
    kpi_media_path: str = "",
    *,
    mode: str = "normalized",
    jsonl: str | None = None,
) -> Gaps:
    """Write the gap table of an evaluation and return its summary; every path may be local or s3://.

    Raises ProblemError (GAPS_*, RESULTS_*) and then leaves no table. Warnings are in `problems` of what is returned.
    """
    gaps = Gaps(find_results(results_dir))
    annotated = annotation_file(kpi_ann_path)
    _keep_apart([*gaps.sources, annotated, gaps_parquet, *([jsonl] if jsonl else [])])
    with _no_collection(), storage_problems(gaps_parquet), ExitStack() as outputs:
        faults = Bounded()
        batches = outputs.enter_context(judging(gaps.sources, mode, faults))  # reads while we read the annotations
        annotations = read_annotations(annotated, kpi_media_path)
        lines = None
        if jsonl:
            lines = outputs.enter_context(open(outputs.enter_context(publishing(jsonl)), "w", encoding="utf-8"))
        parquet = outputs.enter_context(publishing(gaps_parquet))
        table = GapTable(outputs.enter_context(pq.ParquetWriter(parquet, SCHEMA)), lines)
        _Analysis(gaps, annotations, table, mode).run(batches, faults)
        table.flush()
    return gaps


def _keep_apart(paths: Sequence[str]) -> None:
    for at, path in enumerate(paths):
        if any(is_same(path, other) for other in paths[:at]):
            raise GAPS_SAME_FILE.error(path, "it is named twice")


@contextmanager
def _no_collection() -> Iterator[None]:
    """Pauses the cycle collector: millions of rows hold no cycles, and walking them took a sixth of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class _Analysis:
    """One pass over all results files, then over the annotations that no result named."""

    def __init__(self, gaps: Gaps, annotations: Annotations, table: GapTable, mode: str) -> None:
        self.gaps, self.annotations, self.table, self.mode = gaps, annotations, table, mode
        self.compare: Compare = comparer(mode)
        self.seen = bytearray(len(annotations.ids))
        self.answers_seen = array("q", bytes(8 * len(annotations.ids)))  # a hash of each row's response
        self.remarks = _Remarks()

    def run(self, batches: Iterator[Batch], faults: Bounded) -> None:
        """Book every result and every annotation without one. Raises ProblemError with the errors of single results."""
        for name, rows in self.annotations.by_id.items():
            if isinstance(rows, list):
                self.remarks.add(GAPS_ANNOTATION_ID_TWICE, name)
        for source, batch in batches:
            for judged in batch:
                self._result(judged, source)
        found = faults.closed()
        raise_errors(found)
        self._missing()
        self.gaps.problems = found + self.remarks.problems()

    def _result(self, judged: Judged, source: str) -> None:
        index, video_id, sample_id, kind, question, gt, response, finish_reason, answer_kind, verdict = judged
        known = self.annotations
        row = known.find(sample_id, video_id, question, self.seen)
        if row < 0:
            self.remarks.add(GAPS_RESULT_UNKNOWN, source, index)
            video = known.full_path(video_id)
        else:
            if self._repeated(row, response, source, index):
                return
            video, sample_id, kind = known.videos[row], sample_id or known.ids[row], kind or known.kinds[row]
            question = question or known.questions[row]
            if gt != known.answers[row]:
                gt = self._truth(gt, known.answers[row], source, index)
        self.gaps.results += 1
        if not gt.strip():
            self.remarks.add(GAPS_NO_GROUND_TRUTH, source, index)
            return
        verdict = verdict or self.compare(response or "", gt, question, finish_reason, answer_kind)
        error, said, truth, verdict_kind, fits_mode = verdict
        if not fits_mode:
            self.remarks.add(GAPS_MODE, source, index)
        kind = kind or verdict_kind
        if self._count(error, kind):
            place = (error, self.mode, source, index)
            self.table.add((video, question, gt, sample_id, kind, response, said, truth, *place))

    def _repeated(self, row: int, response: str | None, source: str, index: int) -> bool:
        """Whether this row already had this very response; a second, different one is kept."""
        answer = hash(response)
        if not self.seen[row]:
            self.seen[row] = 1
            self.answers_seen[row] = answer
            return False
        self.remarks.add(GAPS_RESULT_REPEATED, source, index)
        return self.answers_seen[row] == answer

    def _truth(self, gt: str, annotated: str, source: str, index: int) -> str:
        if gt and annotated and normalise(gt) != normalise(annotated):
            self.remarks.add(GAPS_GROUND_TRUTH_DIFFERS, source, index)
        return gt or annotated

    def _count(self, error: str, kind: str) -> bool:
        """Book one sample; True when it is a gap."""
        self.gaps.samples_by_kind[kind] += 1
        errors = self.gaps.by_kind[kind]
        if not error:
            self.gaps.correct += 1
            return False
        self.gaps.by_error[error] += 1
        errors[error] += 1
        return True

    def _missing(self) -> None:
        known = self.annotations
        for row, seen in enumerate(self.seen):
            if seen:
                continue
            self.remarks.add(GAPS_NO_RESULT, known.ids[row])
            verdict = self.compare("", known.answers[row], known.questions[row], "stop", "")
            kind = known.kinds[row] or verdict.kind
            self._count("missing", kind)
            annotated = (known.videos[row], known.questions[row], known.answers[row], known.ids[row], kind)
            self.table.add((*annotated, None, None, verdict.parsed_gt, "missing", self.mode, None, None))
