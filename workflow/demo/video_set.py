"""The video question set of `make demo`: python workflow/demo/video_set.py --out demo/data --clips 1000 --seed 0"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

WORKFLOW = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(WORKFLOW.parent / "src"), str(WORKFLOW)]

from vidqa.core.cli import Parser, Result, number, run


def main(options: argparse.Namespace) -> Result:
    from demo.clips import write_demo_set

    counts = write_demo_set(options.out, options.clips, options.seed, options.pool, options.each)
    text = "\n".join(f"{options.out / split}: {count} questions" for split, count in counts.items())
    return Result(data={"folder": str(options.out), "questions": counts}, text=text)


parser = Parser(
    "Write the demo's synthetic video-QA set.",
    ["python workflow/demo/video_set.py --out demo/data --clips 1000 --seed 0"],
)
parser.add_argument("--out", type=Path, required=True, help="folder; the sets in it are replaced")
parser.add_argument("--clips", type=number(int, 1), default=1000, help="number of training clips (default 1000)")
parser.add_argument(
    "--pool", type=number(int, 0), default=0, help="also pool/, with so many clips, and selection/ (default 0)"
)
parser.add_argument(
    "--each", type=number(int, 1), default=24, help="clips of each event in eval/ and selection/ (default 24)"
)
parser.add_argument("--seed", type=number(int, 0), default=0, help="another seed gives other clips (default 0)")

if __name__ == "__main__":
    sys.exit(run(parser, main))
