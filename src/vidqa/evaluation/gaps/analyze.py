"""Results and annotations in, gap table out: streams the results, so that a million rows fit in little memory."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import pyarrow.parquet as pq

from vidqa.contract.gc_pause import paused
from vidqa.contract.problem import Code, Problem, raise_errors
from vidqa.evaluation.gaps.annotations import AnnotationColumns, annotation_file, read_annotations
from vidqa.evaluation.gaps.audit_answers import Answered
from vidqa.evaluation.gaps.compare import Compare, comparer
from vidqa.evaluation.gaps.judged import Extra, Judged
from vidqa.evaluation.gaps.problems import (
    GAPS_ANNOTATION_ID_TWICE,
    GAPS_GROUND_TRUTH_DIFFERS,
    GAPS_MODE,
    GAPS_NO_GROUND_TRUTH,
    GAPS_NO_RESULT,
    GAPS_RESULT_REPEATED,
    GAPS_SAME_FILE,
)
from vidqa.evaluation.gaps.storage import find_results, is_same, publishing, read_bytes, storage_problems
from vidqa.evaluation.gaps.table import SCHEMA, GapTable
from vidqa.evaluation.json_items import json_items
from vidqa.evaluation.results import Bounded, Item, usable
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
    excluded: int = 0  # samples whose label a person called wrong or unclear, without giving a right one
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
            "excluded": self.excluded,
            "by_error_type": {error: self.by_error[error] for error in ERROR_TYPES},
            "by_kind": {
                kind: {"n": self.samples_by_kind[kind], "gaps": errors.total(), **dict(errors)}
                for kind, errors in sorted(self.by_kind.items())
            },
            "error_types": {error: meaning for error, meaning in ERROR_TYPES.items() if self.by_error[error]},
            "source_results": self.sources,
        }


@dataclass
class Kept:
    """Every judged answer, in the order of the results, and what annotations say beside question and answer, by row."""

    judged: list[Judged] = field(default_factory=list)
    extras: dict[int, Extra] = field(default_factory=dict)
    annotations: AnnotationColumns | None = None


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
    audited: Mapping[str, Answered] = MappingProxyType({}),
    keep: Kept | None = None,
) -> Gaps:
    """Write the gap table of an evaluation and return its summary; every path may be local or s3://. `audited` are a
    person's answers by sample id, which take the place of labels. `keep` gets the annotations and every judged answer.

    Raises ProblemError (GAPS_*, RESULTS_*) and then leaves no table. Warnings are in `problems` of what is returned.
    """
    gaps = Gaps(find_results(results_dir))
    annotated = annotation_file(kpi_ann_path)
    _keep_apart([*gaps.sources, annotated, gaps_parquet, *([jsonl] if jsonl else [])])
    with paused(), storage_problems(gaps_parquet), ExitStack() as outputs:
        annotations = read_annotations(annotated, kpi_media_path, keep.extras if keep else None)
        if keep:
            keep.annotations = annotations
        lines = None
        if jsonl:
            lines = outputs.enter_context(open(outputs.enter_context(publishing(jsonl)), "w", encoding="utf-8"))
        parquet = outputs.enter_context(publishing(gaps_parquet))
        table = GapTable(outputs.enter_context(pq.ParquetWriter(parquet, SCHEMA)), lines)
        _Analysis(gaps, annotations, table, mode, audited, keep).run()
        table.flush()
    return gaps


def _keep_apart(paths: Sequence[str]) -> None:
    for at, path in enumerate(paths):
        if any(is_same(path, other) for other in paths[:at]):
            raise GAPS_SAME_FILE.error(path, "it is named twice")


class _Analysis:
    """One pass over all results files, then over the annotations that no result named."""

    def __init__(
        self,
        gaps: Gaps,
        annotations: AnnotationColumns,
        table: GapTable,
        mode: str,
        audited: Mapping[str, Answered],
        keep: Kept | None,
    ) -> None:
        self.gaps, self.annotations, self.table, self.mode = gaps, annotations, table, mode
        self.audited, self.keep = audited, keep
        self.compare: Compare = comparer(mode)
        self.seen = bytearray(len(annotations.ids))
        self.answers_seen = array("q", bytes(8 * len(annotations.ids)))  # a hash of each row's response
        self.remarks = _Remarks()

    def run(self) -> None:
        """Book every result and every annotation without one. Raises ProblemError with the errors of single results."""
        for name, rows in self.annotations.by_id.items():
            if isinstance(rows, list):
                self.remarks.add(GAPS_ANNOTATION_ID_TWICE, name)
        faults = Bounded()
        for source in self.gaps.sources:
            with storage_problems(source):
                data = read_bytes(source)
            for index, value in json_items(data, source, faults):
                if (item := usable(value, source, index, faults)) is not None:
                    self._result(item, source, index)
        found = faults.closed()
        raise_errors(found)
        self._missing()
        self.gaps.problems = found + self.remarks.problems()

    def _result(self, item: Item, source: str, index: int) -> None:
        video_id, question, gt, response = item["video_id"], item["question"], item["gt"], item["response"]
        sample_id, kind = item.get("sample_id", ""), item.get("kind", "")
        annotated = self.annotations
        row, remark = annotated.find(item, self.seen)
        if remark:
            self.remarks.add(remark, source, index)
        if row < 0:
            video = annotated.full_path(video_id)
        else:
            if self._repeated(row, response, source, index):
                return
            video = annotated.videos[row]
            sample_id, kind = sample_id or annotated.ids[row], kind or annotated.kinds[row]
            question = question or annotated.questions[row]
            if gt != annotated.answers[row]:
                gt = self._truth(gt, annotated.answers[row], source, index)
        self.gaps.results += 1
        if said := self.audited.get(sample_id):
            if not said.is_usable:
                self.gaps.excluded += 1
                return
            gt = said.answer or gt
        if not gt.strip():
            self.remarks.add(GAPS_NO_GROUND_TRUTH, source, index)
            return
        reason, answer_kind = item.get("finish_reason", ""), item.get("answer_kind", "")
        error, parsed, truth, verdict_kind, fits_mode = self.compare(response or "", gt, question, reason, answer_kind)
        if not fits_mode:
            self.remarks.add(GAPS_MODE, source, index)
        kind = kind or verdict_kind
        if self.keep is not None:
            told = (error, parsed, truth, verdict_kind)
            self.keep.judged.append(Judged(row, video, question, gt, sample_id, kind, *told))
        if self._count(error, kind):
            place = (error, self.mode, source, index)
            self.table.add((video, question, gt, sample_id, kind, response, parsed, truth, *place))

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
        annotated = self.annotations
        for row, seen in enumerate(self.seen):
            if seen:
                continue
            name, question, answer = annotated.ids[row], annotated.questions[row], annotated.answers[row]
            self.remarks.add(GAPS_NO_RESULT, name)
            verdict = self.compare("", answer, question, "stop", "")
            kind = annotated.kinds[row] or verdict.kind
            self._count("missing", kind)
            fields = (annotated.videos[row], question, answer, name, kind)
            self.table.add((*fields, None, None, verdict.parsed_gt, "missing", self.mode, None, None))
