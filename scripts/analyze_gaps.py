#!/usr/bin/env python3
"""Write a table of an evaluated model's errors.

python scripts/analyze_gaps.py --results-dir outputs/eval --gaps-parquet gaps.parquet --kpi-ann-path kpi.json
"""

import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from vidqa.core.cli import Parser, Result, chosen, run
from vidqa.core.run_folder import run_named, run_path

RUN = "python scripts/analyze_gaps.py --results-dir outputs/eval --gaps-parquet gaps.parquet"
parser = Parser(
    "Compare evaluation results with the KPI annotations and write the gaps: the model's errors.",
    examples=[
        f"{RUN} --kpi-ann-path kpi/annotations.json --kpi-media-path kpi",
        f"{RUN} --kpi-ann-path s3://bucket/kpi/annotations.json --jsonl gaps.jsonl --fail-on-gaps",
    ],
)
parser.usage = "analyze_gaps.py --results-dir RUN --gaps-parquet FILE --kpi-ann-path PATH [options]"
parser.add_argument(
    "--results-dir", type=run_named, required=True, help="run folder or job id of an evaluation, or s3://"
)
parser.add_argument("--gaps-parquet", required=True, help="gap table to write, local or s3://; replaces an earlier one")
parser.add_argument("--kpi-ann-path", required=True, help="evaluated annotations: file or folder")
parser.add_argument("--kpi-media-path", default="", help="where their videos are (default: beside the annotations)")
parser.add_argument(
    "--mode", choices=("exact", "normalized", "bcq", "mcq"), default="normalized", help="comparison of answers"
)
parser.add_argument("--jsonl", help="also write the table as JSON lines")
parser.add_argument("--slices", type=Path, metavar="FILE", help="write slices with more errors than average, as JSON")
parser.add_argument("--audit", type=Path, metavar="FILE", help="write suspected label errors as JSON and review page")
parser.add_argument("--embeddings", type=run_path, metavar="FILE", help="embeddings, for clusters and the audit")
parser.add_argument(
    "--other-results",
    nargs="+",
    action="extend",
    default=[],
    type=run_path,
    metavar="DIR",
    help="other evaluations, for the audit",
)
parser.add_argument("--audit-answers", type=Path, metavar="FILE", help="answers saved by the review page")
parser.add_argument("--fail-on-gaps", action="store_true", help="exit with 3 if there are gaps")


def fields(options: Namespace) -> dict[str, Any]:
    """Build the fields of a `GapAnalysis`. Raises USAGE for options that do not fit together."""
    for name in ("slices", "audit"):
        if (place := getattr(options, name)) and place.is_dir():
            parser.error(f"--{name} {place} is a folder: name a file in it")
    if options.other_results and not options.audit:
        parser.error("--other-results is for the audit: add --audit FILE")
    if options.embeddings and not (options.audit or options.slices):
        parser.error("--embeddings is for the slices and the audit: add --slices FILE or --audit FILE")
    return {name: value for name, value in chosen(options).items() if name != "fail_on_gaps"}


def main(options: Namespace) -> Result:
    from vidqa.gaps.analysis.report import GapAnalysis, find_gaps
    from vidqa.gaps.problems import GAPS_FOUND

    result = find_gaps(GapAnalysis(**fields(options)))
    if options.fail_on_gaps and (count := result.data["gaps"]):
        result.problems.append(GAPS_FOUND.at(options.gaps_parquet, f"{count} gaps"))
    return result


if __name__ == "__main__":
    sys.exit(run(parser, main))
