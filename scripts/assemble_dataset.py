"""Make the next training set: python scripts/assemble_dataset.py --base train --add mined --kpi kpi --out round-1"""

import sys
from argparse import Namespace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from vidqa.contract.cli import Parser, Result, run

RUN = "python scripts/assemble_dataset.py --base train --add mined --kpi kpi/annotations.json"
parser = Parser(
    "Join a base set and new rows, after a look for leaks from the KPI, validation and test sets.",
    examples=[f"{RUN} --out round-1", f"{RUN} --add augmented --replay 1 --out round-2 --round 2"],
)
parser.add_argument("--base", type=Path, required=True, help="annotations of the present training set")
parser.add_argument("--base-media", default="", help="where their media are (default: beside the annotations)")
parser.add_argument(
    "--add", type=Path, nargs="+", action="extend", required=True, help="folders that mining or augmentation wrote"
)
parser.add_argument("--out", type=Path, required=True, help="folder for annotations.json, assembly.json, leaks.json")
for name in ("kpi", "validation", "test"):
    what = f"annotations of the {name} set, and their media"
    parser.add_argument(f"--{name}", nargs="+", action="append", default=[], metavar="PATH", help=what)
parser.add_argument("--replay", type=float, help="rows of the base set for each added one (default: all of them)")
parser.add_argument("--cap", type=int, default=0, help="most new rows of one kind (0: all)")
parser.add_argument("--no-balance", action="store_true", help="keep all answers")
parser.add_argument("--group-by", default="", help="pattern that names a file's recording")
parser.add_argument("--round", type=int, default=1, help="round of the loop")
parser.add_argument("--seed", type=int, default=0, help="what is drawn")


def main(options: Namespace) -> Result:
    from vidqa.curation.assembly import Assembly, Source, assemble, warnings

    given = vars(options)
    named = {name: given[name] for name in ("kpi", "validation", "test") if given[name]}
    if any(len(sets) > 1 or len(sets[0]) > 2 for sets in named.values()):
        parser.error("--kpi, --validation and --test take one set each: annotations, and where their media are")
    protected = {name: Source(Path(places[0]), *places[1:]) for name, (places,) in named.items()}
    asked = Assembly(
        Source(options.base, options.base_media),
        tuple(Source(place) for place in options.add),
        options.out,
        protected,
        replay=options.replay,
        cap=options.cap,
        balance=not options.no_balance,
        round=options.round,
        group_by=options.group_by,
        seed=options.seed,
    )
    made = assemble(asked)
    found = made.as_dict()
    text = "\n".join([*(f"{name}: {value}" for name, value in found.items()), str(options.out / "annotations.json")])
    return Result({**found, "annotations": str(options.out / "annotations.json")}, text, warnings(made, asked))


if __name__ == "__main__":
    sys.exit(run(parser, main))
