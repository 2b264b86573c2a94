"""Run Cosmos-Reason1's benchmark: python scripts/run_benchmark.py --data DATA --datasets robovqa av --model RUN"""

import sys
from argparse import Namespace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from vidqa.core.cli import Parser, Result, command, number, run
from vidqa.core.run_folder import run_named

parser = Parser(
    "Run Cosmos-Reason1's benchmark by its protocol: scores without and with retries.",
    examples=[
        "python scripts/run_benchmark.py --data data/benchmark --datasets robovqa av --model outputs/train/RUN",
        "python scripts/run_benchmark.py --data data --config eval_config.yaml --set num_gpus=4",
    ],
)
parser.usage = "run_benchmark.py --data DIR --datasets SUBSET ... --model MODEL [options]"
parser.add_argument("--data", "--data_dir", type=Path, required=True, metavar="DIR", help="folder of fetch_data.py")
parser.add_argument("--datasets", nargs="+", default=(), metavar="SUBSET", help="av, robovqa, agibot, bridgev2, ...")
parser.add_argument("--answer-type", choices=("letter", "reasoning"), help="default: reasoning")
parser.add_argument(
    "--model", "--model_name", type=run_named, help="run or job id (best export), folder, or hf_model://org/name"
)
parser.add_argument("--which", help="export of a run: best, latest, step_N or epoch_N")
parser.add_argument("--config", type=Path, metavar="FILE", help="a YAML file of Cosmos-Reason1's evaluation")
parser.add_argument(
    "--results-dir", "--results_dir", type=Path, default=Path("outputs/benchmark"), metavar="DIR", help="output folder"
)
parser.add_argument("--limit", type=number(int, 1), metavar="N", help="only the first N questions of each subset")
parser.add_argument("--retries", type=number(int, 0), metavar="N", help="retries of an empty answer (10)")
parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="see parameters_evaluate.md")
parser.add_argument("--platform", default="local", help="local (default), docker, slurm, kubernetes")
parser.add_argument("--nodes", type=number(int, 1), default=1, help="number of nodes")
parser.add_argument("--gpus", type=number(int, 0), help="GPUs per node, if not visible here")
parser.add_argument("--image", help="engine image")
parser.add_argument("--site", type=Path, metavar="FILE", help="site settings; see site_template.toml")
parser.add_argument("--yes", action="store_true", help="agree to the image that config.json records")


def main(options: Namespace) -> Result:
    from vidqa.benchmark.running import as_text, report, run_benchmark, settle, write_files
    from vidqa.jobs.resources import Resources

    if options.limit is not None and options.limit < 1:
        parser.error("--limit is a number of questions, 1 or more")
    settings = settle(
        options.data,
        options.results_dir,
        options.platform,
        Resources(nodes=options.nodes, gpus=options.gpus, image=options.image, site=options.site, agreed=options.yes),
        datasets=options.datasets,
        model=options.model,
        which=options.which,
        answer_type=options.answer_type,
        retries=options.retries,
        limit=options.limit,
        config=options.config,
        sets=options.set,
    )
    outcome = run_benchmark(settings)
    scores = report(settings, outcome)
    write_files(settings, outcome, scores)
    first = settings.folder / "job/questions.json"
    words_of_gaps = ("--results-dir", outcome.run, "--gaps-parquet", settings.folder / "gaps.parquet")
    onward = command("analyze_gaps", *words_of_gaps, "--kpi-ann-path", first, "--kpi-media-path", settings.home)
    return Result(scores, as_text(scores), outcome.problems, [onward])


if __name__ == "__main__":
    sys.exit(run(parser, main))
