"""Compare two evaluations of the same questions: python scripts/compare.py BEFORE AFTER --html comparison.html"""

import sys
from argparse import Namespace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from vidqa.contract.cli import Parser, Result, run
from vidqa.contract.run_folder import run_path

parser = Parser(
    "Say whether the second of two evaluations is better, question by question, and what it fixed and broke.",
    examples=[
        "python scripts/compare.py outputs/eval/BEFORE outputs/eval/AFTER",
        "python scripts/compare.py BEFORE AFTER --by answer_kind --html comparison.html --json",
    ],
)
parser.add_argument(
    "before", type=run_path, metavar="BEFORE", help="an evaluation: its run folder, job id, or results.json"
)
parser.add_argument("after", type=run_path, metavar="AFTER", help="another one, of the same questions")
parser.add_argument("--by", choices=("kind", "answer_kind"), default="kind", help="slices (default kind)")
parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with the frames of what changed")
parser.add_argument("--fail-if-worse", action="store_true", help="exit with 3 if it is worse")


def main(options: Namespace) -> Result:
    from vidqa.evaluation.comparison import compare
    from vidqa.evaluation.comparison_page import comparison_page, comparison_text
    from vidqa.evaluation.problems import COMPARISON_WORSE

    found = compare(options.before, options.after, options.by)
    problems = list(found.problems)
    if options.html:
        from vidqa.datatools.outputs import write_page

        write_page(options.html, comparison_page(found))
    text = comparison_text(found)
    if options.fail_if_worse and found.whole.verdict == "worse":
        problems.append(COMPARISON_WORSE.at(options.after, text.splitlines()[0]))
    return Result({**found.as_dict(), "html": options.html}, text, problems)


if __name__ == "__main__":
    sys.exit(run(parser, main))
