"""Score answers that any program wrote, by the rules of this one: python scripts/score_results.py FOLDER"""

import sys
from argparse import Namespace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from vidqa.contract.cli import Parser, Result, run

parser = Parser(
    "Score the results of an evaluation, ours, TAO's or cosmos-reason1's, by the same rules for all.",
    examples=[
        "python scripts/score_results.py outputs/eval/RUN",
        "python scripts/score_results.py cosmos-reason1/results --out outputs/scored/reason1 --json",
    ],
)
parser.add_argument("results", type=Path, metavar="FOLDER", help="folder of results, or a results file")
parser.add_argument("--task", default="", choices=("", "its_directionality"), help="as task.type of an evaluation")
parser.add_argument("--out", type=Path, metavar="DIR", help="write results.json and metrics.json here")


def main(options: Namespace) -> Result:
    from vidqa.contract.files import write_json
    from vidqa.evaluation import score
    from vidqa.evaluation.other_results import read_evaluation, require_empty, score_text
    from vidqa.evaluation.results import judged

    items, problems = read_evaluation(options.results)
    items = [judged(item, options.task) for item in items]
    metrics = score(items, options.task)
    if options.out:
        require_empty(options.out)
        write_json(options.out / "results.json", items)
        write_json(options.out / "metrics.json", metrics)
    data = {"metrics": metrics, "out": options.out}
    return Result(data, score_text(metrics), problems)


if __name__ == "__main__":
    sys.exit(run(parser, main))
