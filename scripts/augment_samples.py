"""Augment training rows: python scripts/augment_samples.py --annotations mined.json --out augmented"""

import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from vidqa.core.cli import Parser, Result, chosen, number, run

RUN = "python scripts/augment_samples.py --annotations mined --out augmented"
parser = Parser(
    "Augment clips without changing their answers, reword questions, add counter-questions; or run a generator.",
    examples=[
        f"{RUN} --each 2",
        f'{RUN} --generator "python make.py" --licence CC-BY-4.0 --source https://example.org',
    ],
)
parser.add_argument("--annotations", type=Path, required=True, help="annotations to augment, or the folder of a mining")
parser.add_argument("--media-root", default="", help="folder or tar of their media (default: beside the annotations)")
parser.add_argument("--out", type=Path, required=True, help="folder for augmented.json, videos/ and preview.html")
parser.add_argument(
    "--each", dest="variants", type=number(int, 0), default=1, metavar="N", help="variants per clip (1)"
)
parser.add_argument(
    "--only",
    nargs="+",
    action="extend",
    default=[],
    choices=("shift", "speed", "crop", "color", "noise", "encode"),
    help="kinds of variants (all)",
)
parser.add_argument("--flip", action="store_true", help="also mirror clips; left and right are swapped in the texts")
parser.add_argument("--no-reword", dest="reword", action="store_false", help="do not reword questions")
parser.add_argument("--no-counter", dest="counter", action="store_false", help="add no counter-questions")
parser.add_argument("--generator", default="", help="command that generates rows; takes a JSON request on stdin")
parser.add_argument("--licence", default="", help="licence of generated rows")
parser.add_argument("--source", default="", help="source of the generator or its model")
parser.add_argument("--round", type=number(int, 0), default=1, help="round of the DEFT loop, for provenance")
parser.add_argument("--seed", type=number(int, 0), default=0, help="random seed")


def fields(options: Namespace) -> dict[str, Any]:
    """Build the fields of an `Augmentation`. Raises USAGE for options that do not fit together."""
    if (options.licence or options.source) and not options.generator:
        parser.error("--licence and --source are of what --generator makes")
    return chosen(options)


def main(options: Namespace) -> Result:
    from vidqa.gaps.curation.augmentation import PREVIEW, Augmentation, augment

    rows, problems = augment(Augmentation(**fields(options)))
    data = {"rows": len(rows), "out": str(options.out), "preview": str(options.out / PREVIEW)}
    return Result(data, f"{len(rows)} rows; look at {options.out / PREVIEW} before they are used", problems)


if __name__ == "__main__":
    sys.exit(run(parser, main))
