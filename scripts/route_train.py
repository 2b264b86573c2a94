"""Decide whether a request to train goes to AutoML or straight to training."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
from vidqa.contract.cli import SKILL_ROOT, Parser, Result, command, run

parser = Parser(
    "Decide whether a request to train goes to AutoML or straight to training. The decision never enters a spec.",
    examples=[
        'python scripts/route_train.py --request "fine-tune on my videos, no HPO"',
        "python scripts/route_train.py --automl-policy off",
    ],
)
parser.add_argument(
    "--automl-policy", choices=["auto", "on", "off"], default="auto", help="for this run (default auto)"
)
parser.add_argument("--request", default="", metavar="WORDS", help="what the user asked for, word by word")


def main(args: argparse.Namespace) -> Result:
    from vidqa.spec.route import route_train

    made = route_train(args.automl_policy, args.request, SKILL_ROOT)
    data = {
        "decision": made.decision,
        "runnable": made.runnable,
        "reason": made.reason,
        "policy": args.automl_policy,
        "cost": vars(made.cost) if made.cost else None,
    }
    text = f"decision: {made.decision}\nrunnable: {'yes' if made.runnable else 'no'}\nreason: {made.reason}"
    spec = command("build_spec", "train", "--train-root", "DATA/train", "--out", "train.toml")
    plan = command("run_automl", "plan", "--study", "outputs/study", "--spec", "train.toml", "--json")
    onward = {
        "direct": [spec],
        "automl": [*([spec, plan] if made.runnable else []), command("route_train", "--automl-policy", "off")],
        "unclear": [command("route_train", "--automl-policy", policy) for policy in ("off", "on")],
    }
    return Result(data, text, list(made.problems), onward[made.decision])


if __name__ == "__main__":
    sys.exit(run(parser, main))
