"""The summary of a gap analysis for a person, and the command that comes next."""

from __future__ import annotations

import shlex
from argparse import Namespace

from vidqa.contract.cli import command
from vidqa.evaluation.gaps.analyze import ERROR_TYPES, Gaps
from vidqa.evaluation.gaps.storage import is_remote


def summary_text(gaps: Gaps, table: str) -> str:
    """Gaps by kind and error type, what these mean, and where the table is."""
    used = [error for error in ERROR_TYPES if gaps.by_error[error]]
    rows = [("kind", "samples", "gaps", *used)]
    for kind, errors in sorted(gaps.by_kind.items(), key=lambda item: -item[1].total()):
        rows.append((kind, *map(str, (gaps.samples_by_kind[kind], errors.total(), *(errors[e] for e in used)))))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) if at == 0 else cell.rjust(width) for at, (cell, width) in enumerate(cells))
        for cells in ([*zip(row, widths, strict=True)] for row in rows[:40])
    ]
    more = [f"... {len(rows) - 40} more kinds"] if len(rows) > 40 else []
    meanings = [f"{error}: {ERROR_TYPES[error]}" for error in used]
    return "\n".join([f"{gaps.count} gaps among {gaps.results} results, written to {table}", *lines, *more, *meanings])


def next_commands(gaps: Gaps, args: Namespace) -> list[str]:
    """With gaps: the same analysis as readable lines, then their first rows. Without: nothing is left to do here."""
    if not gaps.count or (args.jsonl and is_remote(args.jsonl)):
        return []
    if args.jsonl:
        return [shlex.join(["head", "-n", "5", args.jsonl])]
    words = ["--results-dir", args.results_dir, "--gaps-parquet", args.gaps_parquet]
    words += ["--kpi-ann-path", args.kpi_ann_path, "--mode", args.mode]
    words += ["--kpi-media-path", args.kpi_media_path] if args.kpi_media_path else []
    return [command("analyze_gaps", *words, "--jsonl", f"{args.gaps_parquet.removesuffix('.parquet')}.jsonl")]
