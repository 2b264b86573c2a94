"""Mine a pool for samples like the gaps: python scripts/mine_samples.py --gaps gaps.parquet --pool RUN --query RUN"""

import sys
from argparse import Namespace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from vidqa.core.cli import Parser, Result, chosen, command, number, run
from vidqa.core.run_folder import run_path

RUN = "python scripts/mine_samples.py --gaps gaps.parquet --pool POOL_RUN --query KPI_RUN"
parser = Parser(
    "Select the clips of a pool that are most similar to a model's errors; both must be embedded first.",
    examples=[
        f"{RUN} --pool-annotations pool/annotations.json --out mined",
        f"{RUN} --out mined --per-gap 40   # a pool of videos alone: writes annotate.html",
    ],
)
parser.usage = "mine_samples.py --gaps FILE --pool RUN --query RUN --out DIR [options]"
parser.add_argument("--gaps", type=Path, required=True, help="table of analyze_gaps.py")
parser.add_argument(
    "--pool", type=run_path, required=True, help="embed run or job id of the pool, or its embeddings.parquet"
)
parser.add_argument(
    "--query", type=run_path, required=True, help="the same for the KPI set; a run of both has its queries"
)
parser.add_argument("--pool-annotations", default="", help="annotations of the pool, if any")
parser.add_argument("--pool-media", default="", help="folder or tar of their media (default: beside the annotations)")
parser.add_argument(
    "--tried",
    nargs="+",
    action="extend",
    default=[],
    type=Path,
    metavar="FILE",
    help="mined.parquet of an earlier round",
)
parser.add_argument("--out", type=Path, required=True, help="folder for mined.json, mined.parquet, mined.html")
parser.add_argument("--per-gap", type=number(int, 1), default=20, help="maximum rows per gap (20)")
parser.add_argument("--max-rows", type=number(int, 0), default=0, help="maximum rows of all gaps; 0 is no limit")
parser.add_argument(
    "--threshold", type=number(float, -1, 1), default=0.5, help="minimum similarity of a mined row (0.5)"
)
parser.add_argument(
    "--duplicate-threshold", type=number(float, 0), default=0.999, help="similarity of near duplicates (0.999)"
)
parser.add_argument(
    "--media-weight", type=number(float, 0, 1), default=0.5, help="0 compares only questions, 1 only videos (0.5)"
)
parser.add_argument("--round", type=number(int, 0), default=1, help="round of the DEFT loop, for provenance (1)")
parser.add_argument(
    "--seed", type=number(int, 0), default=0, help="random seed of the order of gaps and of the random control (0)"
)


def main(options: Namespace) -> Result:
    from vidqa.gaps.curation.mining import Mining, mine

    counts = mine(Mining(**chosen(options))).as_dict()
    page, tasks = options.out / "mined.html", options.out / "tasks.json"
    answers = ("--labels", "labels.json", "--out", options.out / "labelled.json")
    return Result(
        {**counts, "out": str(options.out), "page": str(page)},
        "\n".join([*(f"{name}: {value}" for name, value in counts.items()), str(page)]),
        next=[command("label_samples", "--tasks", tasks, *answers)] if counts["to_label"] else [],
    )


if __name__ == "__main__":
    sys.exit(run(parser, main))
