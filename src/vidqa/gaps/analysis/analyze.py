"""Results and annotations in, gap table out: results are gone through one by one, and wrong ones alone are kept."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from vidqa.core.gc_pause import paused
from vidqa.core.problem import Code, Problem, raise_errors
from vidqa.data.problems import ProblemCollector
from vidqa.evaluation.problems import METRIC_OTHER_KIND, RESULTS_TWICE
from vidqa.evaluation.results import Item, is_scored, json_items, usable
from vidqa.evaluation.text import normalise
from vidqa.gaps.analysis.annotations import AnnotationIndex, annotation_file, read_annotations
from vidqa.gaps.analysis.scored_answers import (
    ERROR_TYPES,
    Answered,
    Mode,
    ScoredAnswer,
    ScoredAnswers,
    Verdict,
    comparer,
    own_verdict,
)
from vidqa.gaps.analysis.storage import (
    Row,
    find_results,
    is_judged,
    keep_apart,
    read_bytes,
    storage_problems,
    write_gaps,
)
from vidqa.gaps.problems import GAPS_ANNOTATIONS, GAPS_NO_GROUND_TRUTH, GAPS_NO_RESULT

OTHER_KIND = "ground truths are not of the kind that the mode asks for; they are compared as in mode normalized"
REPEATED = "samples have more than one result; equal ones are counted once, different ones are all kept"
SAME_ID = "annotations have one id; their results are told apart by video and question"
OTHER_TRUTH = "results were evaluated against another ground truth than the annotations now hold; the results' is used"


@dataclass
class Gaps:
    """The summary of an analysis. `by_kind` maps a kind to its gaps per error type; `samples_by_kind` to the count of
    all its samples."""

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
class _Remarks:
    """Warnings that many rows share: the number of rows, and the first place."""

    counts: Counter[tuple[Code, str]] = field(default_factory=Counter)
    first: dict[tuple[Code, str], str] = field(default_factory=dict)

    def add(self, code: Code, source: str, index: int | None = None, says: str = "") -> None:
        self.counts[code, says] += 1
        if self.counts[code, says] == 1:
            self.first[code, says] = source if index is None else f"{source}[{index}]"

    def problems(self) -> list[Problem]:
        problems = []
        for (code, says), where in self.first.items():
            message = f"{self.counts[code, says]} in all, this is the first: {says or code.meaning}"
            problems.append(code.at(where, message, severity="warning"))
        return problems


def analyze(
    results_dir: str,
    gaps_parquet: str,
    kpi_ann_path: str,
    kpi_media_path: str = "",
    *,
    mode: Mode = "normalized",
    jsonl: str | None = None,
    audited: Mapping[str, Answered] = MappingProxyType({}),
    scored: ScoredAnswers | None = None,
    written_later: Sequence[Path] = (),
) -> Gaps:
    """Write the gap table of an evaluation and return its summary; every path may be local or s3://. `audited` are a
    person's answers by sample id, which take the place of labels. `scored` gets the annotations and every answer.
    No file may be named twice, `written_later` among them.

    Raises ProblemError (GAPS_*, RESULTS_*) and then leaves no table. Warnings are in `problems` of what is returned.
    """
    gaps = Gaps(find_results(results_dir))
    annotated = annotation_file(kpi_ann_path)
    keep_apart([*gaps.sources, annotated, gaps_parquet, *([jsonl] if jsonl else []), *written_later])
    with paused():
        annotations = read_annotations(annotated, kpi_media_path, with_extras=scored is not None)
        if scored is not None:
            scored.annotations = annotations
        rows: list[Row] = []
        _Analysis(gaps, annotations, rows, mode, audited, scored).run()
        write_gaps(rows, gaps_parquet, jsonl)
    return gaps


@dataclass
class _Analysis:
    """One pass over all results files, then over the annotations that no result named."""

    gaps: Gaps
    annotations: AnnotationIndex
    rows: list[Row]
    mode: Mode
    audited: Mapping[str, Answered]
    scored: ScoredAnswers | None
    remarks: _Remarks = field(default_factory=_Remarks)

    def __post_init__(self) -> None:
        self.compare = comparer(self.mode)
        self.answered = bytearray(len(self.annotations.rows))
        self.responses = array("q", bytes(8 * len(self.annotations.rows)))  # a hash of each row's response

    def run(self) -> None:
        """Book every result and every annotation without one. Raises ProblemError with the errors of single results."""
        for name, rows in self.annotations.by_id.items():
            if len(rows) > 1:
                self.remarks.add(GAPS_ANNOTATIONS, name, says=SAME_ID)
        faults = ProblemCollector(str(self.gaps.sources[0]))
        for source in self.gaps.sources:
            with storage_problems(source):
                data = read_bytes(source)
            is_own = self.mode == "normalized" and is_judged(source)
            for index, value in json_items(data, source, faults):
                if (item := usable(value, source, index, faults)) is not None:
                    self._result(item, source, index, is_own and is_scored(item))
        raise_errors(faults.problems)
        self._missing()
        self.gaps.problems = faults.problems + self.remarks.problems()

    def _result(self, item: Item, source: str, index: int, is_own: bool) -> None:
        """Book one result; with `is_own` its own verdict holds as long as question and ground truth do."""
        video_id, question, gt, response = item["video_id"], item["question"], item["gt"], item["response"]
        sample_id, kind = item.get("sample_id", ""), item.get("kind", "")
        row, remark = self.annotations.find(item, self.answered)
        if remark:
            self.remarks.add(GAPS_ANNOTATIONS, source, index, remark)
        if row < 0:
            video = self.annotations.full_path(video_id)
        else:
            if self._repeated(row, response, source, index):
                return
            annotation = self.annotations.rows[row]
            video, question = annotation.video, question or annotation.question
            sample_id, kind = sample_id or annotation.id, kind or annotation.kind
            if gt != annotation.answer:
                gt = self._truth(gt, annotation.answer, source, index)
        self.gaps.results += 1
        if reply := self.audited.get(sample_id):
            if not reply.is_usable:
                self.gaps.excluded += 1
                return
            gt = reply.answer or gt
        if not gt.strip():
            self.remarks.add(GAPS_NO_GROUND_TRUTH, source, index)
            return
        verdict = self._verdict(item, question, gt, is_own)
        if not verdict.fits_mode:
            self.remarks.add(METRIC_OTHER_KIND, source, index, OTHER_KIND)
        kind = kind or verdict.kind
        if self.scored is not None:
            self.scored.answers.append(ScoredAnswer(row, video, question, gt, sample_id, kind, *verdict[:4]))
        if self._count(verdict.error, kind):
            fields = (video, question, gt, sample_id, kind, response, verdict.parsed_response, verdict.parsed_gt)
            self.rows.append((*fields, verdict.error, self.mode, source, index))

    def _verdict(self, item: Item, question: str, gt: str, is_own: bool) -> Verdict:
        if is_own and gt == item["gt"] and question == item["question"]:
            return own_verdict(item)
        reason, answer_kind = item.get("finish_reason", ""), item.get("answer_kind", "")
        return self.compare(item["response"] or "", gt, question, reason, answer_kind)

    def _repeated(self, row: int, response: str | None, source: str, index: int) -> bool:
        """Whether this row already had this very response; a second, different one is kept."""
        digest = hash(response)
        if not self.answered[row]:
            self.answered[row] = 1
            self.responses[row] = digest
            return False
        self.remarks.add(RESULTS_TWICE, source, index, REPEATED)
        return self.responses[row] == digest

    def _truth(self, gt: str, annotated: str, source: str, index: int) -> str:
        if gt and annotated and normalise(gt) != normalise(annotated):
            self.remarks.add(GAPS_ANNOTATIONS, source, index, OTHER_TRUTH)
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
        for annotation, is_answered in zip(self.annotations.rows, self.answered, strict=True):
            if is_answered:
                continue
            name, question, answer = annotation.id, annotation.question, annotation.answer
            self.remarks.add(GAPS_NO_RESULT, name)
            verdict = self.compare("", answer, question, "stop", "")
            kind = annotation.kind or verdict.kind
            self._count("missing", kind)
            fields = (annotation.video, question, answer, name, kind)
            self.rows.append((*fields, None, None, verdict.parsed_gt, "missing", self.mode, None, None))
