"""Convert answers to annotations: python scripts/label_samples.py --tasks mined/tasks.json --labels labels.json"""

import sys
from argparse import Namespace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from vidqa.core.cli import Parser, Result, run

parser = Parser(
    "Convert answers to mined clips to annotations, from annotate.html, Label Studio or FiftyOne.",
    examples=[
        "python scripts/label_samples.py --tasks mined/tasks.json --labels labels.json --out mined/labelled.json"
    ],
)
parser.add_argument("--tasks", type=Path, required=True, help="tasks.json of mine_samples.py")
parser.add_argument("--labels", type=Path, required=True, help="saved or exported answers, JSON")
parser.add_argument("--out", type=Path, required=True, help="annotations to write")


def main(options: Namespace) -> Result:
    from vidqa.datatools.outputs import json_list, write_new
    from vidqa.gaps.curation.labels import labelled

    rows, left = labelled(options.tasks, options.labels)
    write_new({options.out: json_list(rows)})
    data = {"labelled": len(rows), "not_answered": left, "out": str(options.out)}
    return Result(data, f"{len(rows)} answered, {left} not: {options.out}")


if __name__ == "__main__":
    sys.exit(run(parser, main))
