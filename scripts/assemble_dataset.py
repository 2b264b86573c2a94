"""Merge the next training set: python scripts/assemble_dataset.py --base train --add mined --kpi kpi --out round-1"""

import re
import sys
from argparse import ArgumentTypeError, Namespace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from vidqa.core.cli import Parser, Result, chosen, number, run

RUN = "python scripts/assemble_dataset.py --base train --add mined --kpi kpi/annotations.json"


def pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as wrong:
        raise ArgumentTypeError(f"{text!r} is not a pattern: {wrong}") from wrong
    return text


parser = Parser(
    "Merge a base set and new rows, after a check for leaks from the KPI, validation and test sets.",
    examples=[
        f"{RUN} --out round-1",
        "python scripts/assemble_dataset.py --base train --pairs gaps.parquet --kpi kpi --out pairs",
    ],
)
parser.add_argument("--base", type=Path, required=True, help="annotations of the training set")
parser.add_argument("--base-media", default="", help="folder or tar of their media (default: beside the annotations)")
parser.add_argument(
    "--add", type=Path, nargs="+", action="extend", default=[], help="folders of new rows (also labelled)"
)
what = "gap table of the base set, for preference pairs"
parser.add_argument("--pairs", type=Path, metavar="GAPS", help=what)
parser.add_argument("--out", type=Path, required=True, help="folder for annotations.json, assembly.json, leaks.json")
for name in ("kpi", "validation", "test"):
    what = f"annotations of the {name} set, and their media"
    parser.add_argument(f"--{name}", nargs="+", action="append", default=[], metavar="PATH", help=what)
parser.add_argument("--replay", type=number(float, 0), help="base rows per added row (all)")
parser.add_argument("--max-per-kind", type=number(int, 0), default=0, metavar="N", help="new rows of a kind (0: all)")
parser.add_argument("--no-balance", dest="balance", action="store_false", help="do not balance answers")
parser.add_argument("--group-by", type=pattern, default="", help="pattern of a file's recording in its name")
parser.add_argument("--round", type=number(int, 0), default=1, help="round of the DEFT loop")
parser.add_argument("--seed", type=number(int, 0), default=0, help="random seed")


def fields(options: Namespace) -> dict[str, Any]:
    """Build the fields of an `Assembly`. Raises USAGE for options that do not fit together."""
    table = chosen(options)
    if bool(options.add) == bool(options.pairs):
        parser.error("give --add, or --pairs with a gap table")
    if options.pairs and options.replay is not None:
        parser.error("--replay is of --add: with --pairs no other rows of the base set are written")
    for name in ("kpi", "validation", "test"):
        if len(table[name]) > 1 or any(len(places) > 2 for places in table[name]):
            parser.error("--kpi, --validation and --test take one set each: annotations, and where their media are")
        table[name] = tuple(*table[name])
    return table


def main(options: Namespace) -> Result:
    from vidqa.gaps.curation.assembly import Assembly, assemble, warnings

    assembly = Assembly(**fields(options))
    assembled, path = assemble(assembly), str(options.out / "annotations.json")
    counts = assembled.as_dict()
    text = "\n".join([*(f"{name}: {value}" for name, value in counts.items()), path])
    return Result({**counts, "annotations": path}, text, warnings(assembled, assembly))


if __name__ == "__main__":
    sys.exit(run(parser, main))
