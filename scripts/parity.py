"""Compare generators on the same samples: python scripts/parity.py --model RUN --generators transformers,native"""

import sys
from argparse import Namespace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from vidqa.contract.cli import Parser, Result, run
from vidqa.contract.run_folder import run_named

NAMES = ("transformers", "native", "vllm")
parser = Parser(
    "Answer the same samples with several generators and say how far their answers and log-probabilities are apart.",
    examples=[
        "python scripts/parity.py --model outputs/train/RUN --annotations DATA/kpi/annotations.json --media DATA/kpi",
        "python scripts/parity.py --model FOLDER --generators native,vllm,transformers --set model.dtype=float32",
    ],
)
parser.add_argument(
    "--model",
    type=run_named,
    required=True,
    help="a run or its job id (its best export), an export, or a folder of weights",
)
parser.add_argument("--which", help="of a run: best, latest, step_N or epoch_N")
parser.add_argument("--generators", default="transformers,native", metavar="NAMES", help="two or more, with commas")
parser.add_argument("--annotations", default="", metavar="PATH", help="samples; default: clips that are made for it")
parser.add_argument("--media", default="", metavar="PATH", help="where their videos are (default: beside them)")
parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="see parameters_inference.md")
parser.add_argument("--least-same", type=float, metavar="SHARE", help="equal answers (float32 1, else 0.99)")
parser.add_argument("--largest-difference", type=float, metavar="D", help="of a log-probability (float32 1e-4)")


def main(options: Namespace) -> Result:
    from vidqa.jobs.parity import ParityRequest, compare, shown

    names = tuple(dict.fromkeys(options.generators.split(",")))
    if len(names) < 2 or not set(names) <= set(NAMES):
        parser.error(f"--generators takes two or more of {', '.join(NAMES)}, not {options.generators!r}")
    figures, problems = compare(
        ParityRequest(
            options.model,
            names,
            options.which,
            options.annotations,
            options.media,
            tuple(options.set),
            options.least_same,
            options.largest_difference,
        )
    )
    return Result(figures, shown(figures), problems)


if __name__ == "__main__":
    sys.exit(run(parser, main))
