"""Decide whether a request to train goes to AutoML or straight to training."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
from vidqa.core.cli import SKILL_ROOT, Parser, Result, command, run

parser = Parser(
    "Choose between AutoML and plain training for a request, and estimate the cost of a search. The decision never "
    "enters a spec.",
    examples=["python scripts/route_train.py --json", "python scripts/route_train.py --automl off"],
)
parser.add_argument(
    "--automl",
    choices=["auto", "on", "off"],
    default="auto",
    help="the user's request: off = no search, on = a search, auto = not mentioned (default)",
)


def main(args: argparse.Namespace) -> Result:
    from vidqa.spec.route import route_train

    route = route_train(args.automl, SKILL_ROOT)
    data = {
        "decision": route.decision,
        "runnable": route.runnable,
        "reason": route.reason,
        "automl": args.automl,
        "cost": route.cost,
    }
    text = f"decision: {route.decision}\nrunnable: {'yes' if route.runnable else 'no'}\nreason: {route.reason}"
    sets = ("--train-root", "DATA/train", "--val-root", "DATA/val")  # a search measures its trials by validation
    steps = [command("build_spec", "train", *sets, "--out", "train.toml")] if route.runnable else []
    if route.decision == "automl":
        if route.runnable:
            steps.append(command("run_automl", "plan", "--study", "outputs/study", "--spec", "train.toml", "--json"))
        steps.append(command("route_train", "--automl", "off"))
    return Result(data, text, list(route.problems), steps)


if __name__ == "__main__":
    sys.exit(run(parser, main))
