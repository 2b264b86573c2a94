"""The whole gap analysis: the table, slices and audit queue beside it, and what a person reads of them.

report = find_gaps(GapAnalysis(results_dir="outputs/eval", gaps_parquet="gaps.parquet", kpi_ann_path="kpi"))
"""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from vidqa.core.cli import command
from vidqa.core.files import write_json, write_text
from vidqa.core.problem import Problem
from vidqa.gaps.analysis.analyze import ERROR_TYPES, Gaps, ScoredAnswers, analyze
from vidqa.gaps.analysis.audit import audit_page, read_answers
from vidqa.gaps.analysis.breakdowns import ON_TERMINAL, confusions, slices_of, slices_sentence, slices_text, yes_no
from vidqa.gaps.analysis.embeddings import Vectored, clusters_of, vectors_of
from vidqa.gaps.analysis.label_errors import audit_items
from vidqa.gaps.analysis.scored_answers import ScoredAnswer
from vidqa.gaps.analysis.storage import is_remote
from vidqa.gaps.analysis.video_stats import stats_of

SLICES, AUDIT = "vidqa.slices.v1", "vidqa.audit.v1"
ROWS = 40  # kinds on the terminal


@dataclass(frozen=True, kw_only=True)
class GapAnalysis:
    """The options of analyze_gaps.py. `slices` and `audit` are files to write, `embeddings` those of the evaluated set,
    `other_results` evaluations of the same questions by other models, `audit_answers` a person's answers."""

    results_dir: str
    gaps_parquet: str
    kpi_ann_path: str
    kpi_media_path: str = ""
    mode: Literal["exact", "normalized", "bcq", "mcq"] = "normalized"
    jsonl: str | None = None
    slices: Path | None = None
    audit: Path | None = None
    embeddings: Path | None = None
    other_results: tuple[Path, ...] = ()
    audit_answers: Path | None = None


@dataclass(frozen=True)
class GapReport:
    """`data` is what --json carries, `text` what a person reads; `problems` are warnings."""

    gaps: Gaps
    data: dict[str, Any]
    text: str
    problems: list[Problem]


def find_gaps(request: GapAnalysis) -> GapReport:
    """Write the files of a request. Raises what `analyze` does, CURATION_INPUT."""
    audited = read_answers(request.audit_answers) if request.audit_answers else {}
    scored = ScoredAnswers() if request.slices or request.audit else None
    places = (request.results_dir, request.gaps_parquet, request.kpi_ann_path, request.kpi_media_path)
    gaps = analyze(*places, mode=request.mode, jsonl=request.jsonl, audited=audited, scored=scored)
    outputs = {"mode": request.mode, "gaps_parquet": request.gaps_parquet, "jsonl": request.jsonl}
    data: dict[str, Any] = {**gaps.as_dict(), **outputs}
    lines = [summary_text(gaps, request.gaps_parquet)]
    vectors = vectors_of(scored.answers, request.embeddings) if scored else Vectored({}, {})
    if scored and request.slices:
        table = write_slices(request.slices, scored, vectors)
        worst = table["slices"][:ON_TERMINAL]
        data |= {"slices": str(request.slices), "worst_slices": worst, "slices_say": slices_sentence(table)}
        lines.append(slices_text(table))
    if scored and request.audit:
        items = audit_items(scored, request.other_results, vectors, audited)
        page = request.audit.with_suffix(".html")
        write_json(request.audit, {"schema": AUDIT, "count": len(items), "items": items})
        write_text(page, audit_page(items))
        wrong = sum(item["probability"] >= 0.5 and not item["verdict"] for item in items)
        data |= {"audit": str(request.audit), "audit_page": str(page), "doubtful": len(items), "probably_wrong": wrong}
        lines.append(f"{len(items)} doubtful labels, {wrong} of them probably wrong: {page}")
    return GapReport(gaps, data, "\n".join(lines), gaps.problems)


def write_slices(path: Path, scored: ScoredAnswers, vectors: Vectored) -> dict[str, Any]:
    """Write slices.json, and return its content."""
    clusters = clusters_of(scored.answers, vectors)
    stats = stats_of(answer.video for answer in scored.answers)
    readable = [answer for answer in scored.answers if answer.is_answer]
    wrong = sum(answer.error == "wrong" for answer in readable)
    table = {
        "schema": SLICES,
        "n": len(readable),
        "wrong": wrong,
        "rate": wrong / len(readable) if readable else None,
        "unanswered": _unanswered(scored.answers),
        "videos_looked_at": len(stats),
        "slices": list(map(asdict, slices_of(scored.answers, scored.extras, stats, clusters))),
        "yes_no": yes_no(readable),
        "confusions": confusions(readable),
    }
    write_json(path, table)
    return table


def _unanswered(answers: Sequence[ScoredAnswer]) -> dict[str, dict[str, int]]:
    """Answers that do not show what the model knows, by the reason, then by kind."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for answer in answers:
        if not answer.is_answer:
            counts[answer.error][answer.kind] += 1
    return {error: dict(counts[error].most_common()) for error in ERROR_TYPES if error in counts}


def summary_text(gaps: Gaps, table: str) -> str:
    """Gaps by kind and error type, the meaning of these, and the place of the table."""
    errors = [error for error in ERROR_TYPES if gaps.by_error[error]]
    rows = [("kind", "samples", "gaps", *errors)]
    for kind, counts in sorted(gaps.by_kind.items(), key=lambda item: -item[1].total()):
        cells = (gaps.samples_by_kind[kind], counts.total(), *(counts[error] for error in errors))
        rows.append((kind, *map(str, cells)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])])  # the kind, then numbers
        for row in rows[:ROWS]
    ]
    more = [f"... {len(rows) - ROWS} more kinds"] if len(rows) > ROWS else []
    meanings = [f"{error}: {ERROR_TYPES[error]}" for error in errors]
    return "\n".join([f"{gaps.count} gaps among {gaps.results} results, written to {table}", *lines, *more, *meanings])


def next_commands(gaps: Gaps, request: GapAnalysis) -> list[str]:
    """With gaps: the same analysis as readable lines, then their first rows. Without gaps none."""
    if not gaps.count or (request.jsonl and is_remote(request.jsonl)):
        return []
    if request.jsonl:
        return [shlex.join(["head", "-n", "5", request.jsonl])]
    words = ["--results-dir", request.results_dir, "--gaps-parquet", request.gaps_parquet]
    words += ["--kpi-ann-path", request.kpi_ann_path, "--mode", request.mode]
    words += ["--kpi-media-path", request.kpi_media_path] if request.kpi_media_path else []
    return [command("analyze_gaps", *words, "--jsonl", f"{request.gaps_parquet.removesuffix('.parquet')}.jsonl")]
