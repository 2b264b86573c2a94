"""The whole gap analysis: the table, slices and audit queue beside it, and their summary as text.

result = find_gaps(GapAnalysis(results_dir="outputs/eval", gaps_parquet="gaps.parquet", kpi_ann_path="kpi"))
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vidqa.core.cli import Result
from vidqa.gaps.analysis.analyze import Gaps, analyze
from vidqa.gaps.analysis.breakdowns import ON_TERMINAL, slices_sentence, slices_text, write_slices
from vidqa.gaps.analysis.label_errors import read_answers, write_audit
from vidqa.gaps.analysis.scored_answers import ERROR_TYPES, Mode, ScoredAnswers
from vidqa.gaps.analysis.storage import is_remote
from vidqa.gaps.curation.embeddings import unit_vectors

ROWS = 40  # kinds on the terminal


@dataclass(frozen=True, kw_only=True)
class GapAnalysis:
    """The options of analyze_gaps.py. `slices` and `audit` are output files, `embeddings` those of the evaluated set,
    `other_results` evaluations of the same questions by other models, `audit_answers` a person's answers."""

    results_dir: str
    gaps_parquet: str
    kpi_ann_path: str
    kpi_media_path: str = ""
    mode: Mode = "normalized"
    jsonl: str | None = None
    slices: Path | None = None
    audit: Path | None = None
    embeddings: Path | None = None
    other_results: tuple[Path, ...] = ()
    audit_answers: Path | None = None


def find_gaps(request: GapAnalysis) -> Result:
    """Write the files of a request. Raises the problems of `analyze`, and CURATION_INPUT."""
    audited = read_answers(request.audit_answers) if request.audit_answers else {}
    scored = ScoredAnswers() if request.slices or request.audit else None
    places = (request.results_dir, request.gaps_parquet, request.kpi_ann_path, request.kpi_media_path)
    page = request.audit.with_suffix(".html") if request.audit else None
    files = [path for path in (request.slices, request.audit, page) if path]
    gaps = analyze(*places, mode=request.mode, jsonl=request.jsonl, audited=audited, scored=scored, written_later=files)
    outputs = {"mode": request.mode, "gaps_parquet": request.gaps_parquet, "jsonl": request.jsonl}
    data: dict[str, Any] = {**gaps.as_dict(), **outputs}
    lines = [summary_text(gaps, request.gaps_parquet)]
    sample_ids = {answer.sample_id for answer in scored.answers} if scored else ()
    vectors = unit_vectors(request.embeddings, sample_ids)
    if scored and request.slices:
        table = write_slices(request.slices, scored, vectors)
        worst = table["slices"][:ON_TERMINAL]
        data |= {"slices": str(request.slices), "worst_slices": worst, "slices_say": slices_sentence(table)}
        lines.append(slices_text(table))
    if scored and request.audit:
        items = write_audit(request.audit, scored, request.other_results, vectors, audited)
        wrong = sum(item["probability"] >= 0.5 and not item["verdict"] for item in items)
        data |= {"audit": str(request.audit), "audit_page": str(page), "doubtful": len(items), "probably_wrong": wrong}
        lines.append(f"{len(items)} doubtful labels, {wrong} of them probably wrong: {page}")
    return Result(data, "\n".join(lines), gaps.problems, next_commands(request) if gaps.count else [])


def summary_text(gaps: Gaps, table: str) -> str:
    """Gaps by kind and error type, the meaning of the types, and the path of the table."""
    errors = [error for error in ERROR_TYPES if gaps.by_error[error]]
    rows = [("kind", "samples", "gaps", *errors)]
    for kind, counts in sorted(gaps.by_kind.items(), key=lambda item: -item[1].total()):
        cells = (gaps.samples_by_kind[kind], counts.total(), *(counts[error] for error in errors))
        rows.append((kind, *map(str, cells)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])])  # kind, then numbers
        for row in rows[:ROWS]
    ]
    more = [f"... {len(rows) - ROWS} more kinds"] if len(rows) > ROWS else []
    meanings = [f"{error}: {ERROR_TYPES[error]}" for error in errors]
    samples = gaps.samples_by_kind.total()
    return "\n".join([f"{gaps.count} gaps among {samples} samples, written to {table}", *lines, *more, *meanings])


def next_commands(request: GapAnalysis) -> list[str]:
    """The command that shows the first rows."""
    if request.jsonl is None or is_remote(request.jsonl):
        return []
    return [shlex.join(["head", "-n", "5", request.jsonl])]
