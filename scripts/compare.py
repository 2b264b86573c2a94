"""Compare two evaluations of the same questions: python scripts/compare.py BEFORE AFTER --html comparison.html"""

import sys
from argparse import Namespace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from vidqa.core.cli import Parser, Result, number, run
from vidqa.core.run_folder import run_path

parser = Parser(
    "Compare two evaluations question by question: is the second better, and what did it fix and break?",
    examples=[
        "python scripts/compare.py outputs/eval/BEFORE outputs/eval/AFTER",
        "python scripts/compare.py BEFORE AFTER --by answer_kind --html comparison.html --json",
        "python scripts/compare.py BEFORE AFTER --max-drop 1.0",
    ],
)
parser.add_argument("before", type=run_path, metavar="BEFORE", help="evaluation: run folder, job id, or results.json")
parser.add_argument("after", type=run_path, metavar="AFTER", help="evaluation of the same questions")
parser.add_argument("--by", choices=("kind", "answer_kind"), default="kind", help="slices (default kind)")
parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with frames of changed questions")
parser.add_argument("--fail-if-worse", action="store_true", help="exit with 3 if AFTER is worse")
parser.add_argument(
    "--max-drop",
    type=number(float, 0, 100),
    metavar="POINTS",
    help="exit with 3 if accuracy falls by more points, overall or in a slice with at least 50 questions",
)


def main(options: Namespace) -> Result:
    from vidqa.evaluation.comparison import compare, judge_drop
    from vidqa.evaluation.pages import comparison_page, comparison_text
    from vidqa.evaluation.problems import COMPARISON_WORSE

    comparison = compare(options.before, options.after, options.by)
    problems = list(comparison.problems)
    gate = None if options.max_drop is None else judge_drop(comparison, options.max_drop)
    if options.html:
        from vidqa.datatools.outputs import write_page

        write_page(options.html, comparison_page(comparison, gate))
    text = comparison_text(comparison, gate)
    if options.fail_if_worse and comparison.whole.verdict == "worse":
        problems.append(COMPARISON_WORSE.at(options.after, text.splitlines()[0]))
    if gate and gate.failed:
        problems.append(COMPARISON_WORSE.at(options.after, "; ".join(gate.lines)))
    data = {**comparison.as_dict(), "gate": gate and gate.as_dict(), "html": options.html}
    return Result(data, text, problems)


if __name__ == "__main__":
    sys.exit(run(parser, main))
