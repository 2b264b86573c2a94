"""Builds the gap table from results and annotations; results are streamed, and only wrong ones are kept in memory."""

from __future__ import annotations

import os
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
from vidqa.gaps.analysis.annotations import UNKNOWN, AnnotationIndex, annotation_file, read_annotations
from vidqa.gaps.analysis.scored_answers import (
    ERROR_TYPES,
    Answered,
    Mode,
    ScoredAnswer,
    ScoredAnswers,
    compare,
    error_of,
    fits,
    stored_judgement,
)
from vidqa.gaps.analysis.storage import (
    find_results,
    is_judged,
    is_remote,
    read_bytes,
    require_distinct_paths,
    storage_problems,
    write_gaps,
)
from vidqa.gaps.problems import GAPS_ANNOTATIONS, GAPS_NO_GROUND_TRUTH, GAPS_NO_RESULT

OTHER_KIND = "ground truths are not of the kind that the mode needs; they are compared as in mode normalized"
REPEATED = "samples have more than one result; equal ones are counted once, different ones are all kept"
NO_VIDEO = "videos that were evaluated are not in the media folder (--kpi-media-path)"
SAME_ID = "annotations have one id; their results are told apart by video and question"
OTHER_TRUTH = "results were evaluated against another ground truth than the annotations now have; the results' is used"


@dataclass
class Gaps:
    """The summary of an analysis. `by_kind` maps a kind to its gaps per error type; `samples_by_kind` to the count of
    all its samples."""

    sources: list[str]
    results: int = 0  # rows read, without repeated ones
    correct: int = 0
    excluded: int = 0  # samples whose label a person judged wrong or unclear without giving the right one
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


class _Remarks:
    """Warnings shared by many rows: the number of rows, and the place of the first."""

    def __init__(self) -> None:
        self.rows: dict[tuple[Code, str], tuple[int, str]] = {}

    def add(self, code: Code, where: str, message: str = "") -> None:
        count, first = self.rows.get((code, message), (0, where))
        self.rows[code, message] = count + 1, first

    def problems(self) -> list[Problem]:
        return [
            code.at(first, f"{count} in all, this is the first: {message or code.meaning}", severity="warning")
            for (code, message), (count, first) in self.rows.items()
        ]


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
    person's answers by sample id, which replace labels. `scored` is filled with the annotations and every answer. No
    file may be named twice, including `written_later`.

    Raises ProblemError (GAPS_*, RESULTS_*) and then leaves no table. Warnings are in `problems` of the result.
    """
    gaps = Gaps(find_results(results_dir))
    annotated = annotation_file(kpi_ann_path)
    require_distinct_paths([*gaps.sources, annotated, gaps_parquet, *([jsonl] if jsonl else []), *written_later])
    with paused():
        annotations = read_annotations(annotated, kpi_media_path, with_extras=scored is not None)
        if scored is not None:
            scored.annotations = annotations
        wrong = _Analysis(gaps, annotations, mode, audited, scored).run()
        write_gaps([answer.as_row(mode) for answer in wrong], gaps_parquet, jsonl)
    return gaps


@dataclass
class _Analysis:
    """One pass over all results files, then over the annotations without a result."""

    gaps: Gaps
    annotations: AnnotationIndex
    mode: Mode
    audited: Mapping[str, Answered]
    scored: ScoredAnswers | None
    remarks: _Remarks = field(default_factory=_Remarks)
    wrong: list[ScoredAnswer] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.answered = bytearray(len(self.annotations.rows))
        self.responses = array("q", bytes(8 * len(self.annotations.rows)))  # a hash of each row's response

    def run(self) -> list[ScoredAnswer]:
        """Record every result and every annotation without one, and return the wrong and missing ones. Raises
        ProblemError with the errors of single results."""
        for name, rows in self.annotations.by_id.items():
            if len(rows) > 1:
                self.remarks.add(GAPS_ANNOTATIONS, name, SAME_ID)
        faults = ProblemCollector(str(self.gaps.sources[0]))
        for source in self.gaps.sources:
            with storage_problems(source):
                data = read_bytes(source)
            is_own = self.mode == "normalized" and is_judged(source)
            for index, value in json_items(data, source, faults):
                if (item := usable(value, source, index, faults)) is not None:
                    self._result(item, source, index, is_own and is_scored(item))
        raise_errors(faults.problems)
        unknown, first = self.remarks.rows.get((GAPS_ANNOTATIONS, UNKNOWN), (0, ""))
        if unknown and unknown == self.gaps.results:  # with other annotations than evaluated, all would be gaps
            raise GAPS_ANNOTATIONS.error(first, f"none of the {unknown} results belongs to an annotation")
        self._missing()
        self.gaps.problems = faults.problems + self.remarks.problems()
        return self.wrong

    def _result(self, item: Item, source: str, index: int, is_own: bool) -> None:
        """Record one result; with `is_own` its stored verdict is used if question and ground truth are unchanged."""
        video_id, question, gt, response = item["video_id"], item["question"], item["gt"], item["response"]
        sample_id, kind, where = item.get("sample_id", ""), item.get("kind", ""), f"{source}[{index}]"
        row, remark = self.annotations.find(item, self.answered)
        if remark:
            self.remarks.add(GAPS_ANNOTATIONS, where, remark)
        if row < 0:
            video = self.annotations.full_path(video_id)
        else:
            if self._repeated(row, response, where):
                return
            annotation = self.annotations.rows[row]
            video, question = annotation.video, question or annotation.question
            if video != video_id and os.path.isfile(video_id) and not (is_remote(video) or os.path.exists(video)):
                self.remarks.add(GAPS_ANNOTATIONS, where, NO_VIDEO)
            sample_id, kind = sample_id or annotation.id, kind or annotation.kind
            truth = annotation.answer
            if gt and truth and gt != truth and normalise(gt) != normalise(truth):
                self.remarks.add(GAPS_ANNOTATIONS, where, OTHER_TRUTH)
            gt = gt or truth
        self.gaps.results += 1
        if reply := self.audited.get(sample_id):
            if not reply.is_usable:
                self.gaps.excluded += 1
                return
            gt = reply.answer or gt
        if not gt.strip():
            self.remarks.add(GAPS_NO_GROUND_TRUTH, where)
            return
        if is_own and gt == item["gt"] and question == item["question"]:
            judgement = stored_judgement(item)
        else:
            reason, answer_kind = item.get("finish_reason", ""), item.get("answer_kind", "")
            judgement = compare(self.mode, response or "", gt, question, reason, answer_kind)
            if not fits(self.mode, judgement):
                self.remarks.add(METRIC_OTHER_KIND, where, OTHER_KIND)
        parsed, expected = judgement.parsed, judgement.expected
        about = (row, video, question, gt, sample_id, kind or parsed.kind, error_of(judgement))
        answer = ScoredAnswer(*about, parsed.answer, expected.answer, parsed.kind, response, source, index)
        if self.scored is not None:
            self.scored.answers.append(answer)
        self._count(answer)

    def _repeated(self, row: int, response: str | None, where: str) -> bool:
        """Whether this row already had the same response; a second, different one is kept."""
        digest = hash(response)
        if not self.answered[row]:
            self.answered[row] = 1
            self.responses[row] = digest
            return False
        self.remarks.add(RESULTS_TWICE, where, REPEATED)
        return self.responses[row] == digest

    def _count(self, answer: ScoredAnswer) -> None:
        self.gaps.samples_by_kind[answer.kind] += 1
        errors = self.gaps.by_kind[answer.kind]
        if not answer.error:
            self.gaps.correct += 1
            return
        self.gaps.by_error[answer.error] += 1
        errors[answer.error] += 1
        self.wrong.append(answer)

    def _missing(self) -> None:
        for row, (annotation, is_answered) in enumerate(zip(self.annotations.rows, self.answered, strict=True)):
            if is_answered:
                continue
            name, question, gt = annotation.id, annotation.question, annotation.answer
            self.remarks.add(GAPS_NO_RESULT, name)
            parsed, expected, _ = compare(self.mode, "", gt, question, "stop", "")
            about = (row, annotation.video, question, gt, name, annotation.kind or parsed.kind)
            self._count(ScoredAnswer(*about, "missing", "", expected.answer, parsed.kind))
