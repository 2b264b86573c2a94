"""Score the answers of any program by this program's rules: python scripts/score_results.py FOLDER"""

import sys
from argparse import Namespace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from vidqa.core.cli import Parser, Result, run
from vidqa.core.run_folder import run_path

parser = Parser(
    "Score the results of an evaluation of this program, TAO or cosmos-reason1 by the same rules.",
    examples=[
        "python scripts/score_results.py outputs/eval/RUN",
        "python scripts/score_results.py --result-dir cosmos-reason1/results/MODEL/letter --dataset robovqa --json",
    ],
)
parser.add_argument(
    "results", type=run_path, nargs="?", metavar="FOLDER", help="results folder, job id, or a results file"
)
parser.add_argument(
    "--result-dir", "--result_dir", type=run_path, metavar="FOLDER", help="the same, by cosmos-reason1's name"
)
parser.add_argument("--dataset", help="only the results of this data set, such as robovqa")
parser.add_argument("--task", default="", choices=("", "its_directionality"), help="as task.type of an evaluation")
parser.add_argument("--out", type=Path, metavar="DIR", help="write results.json and metrics.json here")


def main(options: Namespace) -> Result:
    from vidqa.core.files import write_json
    from vidqa.evaluation.cosmos_protocol import protocol_scores, protocol_text
    from vidqa.evaluation.metrics import score, score_text, task_problems
    from vidqa.evaluation.results import judged, read_dataset, read_evaluation, require_empty

    if (options.results is None) == (options.result_dir is None):
        parser.error("one folder of results is needed, as FOLDER or with --result-dir")
    place = options.results or options.result_dir
    items, problems = read_dataset(place, options.dataset) if options.dataset else read_evaluation(place)
    problems += task_problems("--task", options.task, [(item["gt"], item["question"]) for item in items])
    items = [judged(item, options.task) for item in items]
    metrics = score(items, options.task)
    if options.out:
        require_empty(options.out)
        write_json(options.out / "results.json", items)
        write_json(options.out / "metrics.json", metrics)
    protocol = protocol_scores(items)
    data = {"metrics": metrics, "protocol": protocol, "out": options.out}
    return Result(data, f"{score_text(metrics)}\n{protocol_text(protocol)}", problems)


if __name__ == "__main__":
    sys.exit(run(parser, main))
