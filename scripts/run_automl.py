"""Search for a better train spec: python scripts/run_automl.py plan|start|status|suggest|enqueue|tell|stop|report"""

import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from vidqa.core.cli import Parser, Result, note, number, run

VERBS = ["plan", "start", "status", "suggest", "enqueue", "tell", "stop", "report"]
parser = Parser(
    "Search for a better train spec: trials are jobs, and all state is in the study folder.",
    examples=[
        "python scripts/run_automl.py plan --study study --spec train.toml --trials 20 --concurrent 2",
        "python scripts/run_automl.py start --study study",
    ],
)
parser.usage = "run_automl.py VERB --study DIR [options]"
parser.add_argument("verb", choices=VERBS, metavar="VERB", help=", ".join(VERBS))
parser.add_argument("--study", type=Path, required=True, metavar="DIR", help="folder of the study")
parser.add_argument("--spec", type=Path, metavar="FILE", help="plan: training spec to improve; its values are trial 0")
parser.add_argument("--evaluate", type=Path, metavar="FILE", help="plan: spec of the evaluation for the metric")
parser.add_argument("--test", type=Path, metavar="FILE", help="plan: spec of the final evaluation of the winner")
parser.add_argument(
    "--metric", action="append", default=[], metavar="M", help="plan: metric, such as accuracy or val/avg_loss"
)
parser.add_argument("--algorithm", metavar="NAME", help="plan: search algorithm (default bayesian)")
parser.add_argument("--trials", type=int, metavar="N", help="plan: number of trials (default 20); start: more")
parser.add_argument("--runs", type=int, metavar="N", help="plan: trials and re-runs together, instead of --trials")
parser.add_argument("--concurrent", type=int, metavar="N", help="plan: concurrent trials (default 1)")
parser.add_argument("--range", action="append", default=[], metavar="KEY=RANGE", help="plan: LOW..HIGH:log or A,B,C")
parser.add_argument("--fix", action="append", default=[], metavar="KEY=VALUE", help="plan: a key that is not searched")
parser.add_argument("--only", action="append", default=[], metavar="KEYS", help="plan: search only A,B")
parser.add_argument(
    "--set", action="append", default=[], metavar="KEY=VALUE", help="plan: settings, as platform=slurm; else: values"
)
parser.add_argument("--objective", type=float, action="append", default=[], metavar="X", help="tell: trial result")
parser.add_argument(
    "--proposer", default="agent", metavar="WHO", help="enqueue, tell: who chose the values (default agent)"
)
parser.add_argument("--count", type=number(int, 1), default=1, help="suggest: number of trials (default 1)")
parser.add_argument("--wait", action="store_true", help="start: show the log until the study ends or stops")
parser.add_argument(
    "--timeout", type=number(float, 0), metavar="S", help="start --wait: time limit in seconds; the study continues"
)

# Options of each verb besides --study; others are refused, because they would be silently ignored.
OF_A_PLAN = {"spec", "evaluate", "test", "metric", "algorithm", "trials", "runs", "concurrent"}
OF_A_PLAN |= {"range", "fix", "only", "set"}
TAKES = {
    "plan": OF_A_PLAN,
    "start": {"trials", "wait", "timeout"},
    "suggest": {"count"},
    "enqueue": {"set", "proposer"},
    "tell": {"set", "objective", "proposer"},
}


def fields(options: Namespace) -> dict[str, Any]:
    """Build the fields of a `PlanRequest`. Raises USAGE for options that the verb does not use."""
    parser.refuse_unused(options, {"verb", "study", *TAKES.get(options.verb, ())}, options.verb)
    if options.verb == "plan" and not options.spec:
        parser.refuse_unused(options, {"verb", "study"}, "plan without --spec, which shows the study that is there,")
    return {name: getattr(options, name) for name in OF_A_PLAN}


def main(options: Namespace) -> Result:
    request = fields(options)
    folder = options.study.absolute()
    if options.verb == "plan":
        from vidqa.automl.plan import PlanRequest, plan

        return plan(folder, PlanRequest(**request) if options.spec else None)
    if options.verb == "report":
        from vidqa.automl.report import report

        return report(folder)
    from vidqa.automl import commands
    from vidqa.automl.status import status

    if options.verb == "suggest":
        return commands.suggest(folder, options.count)
    if options.verb == "enqueue":
        return commands.enqueue(folder, options.set, options.proposer)
    if options.verb == "tell":
        return commands.tell(folder, options.set, options.objective, options.proposer)
    if options.verb == "start":
        position = commands.start(folder, options.trials)
        if options.wait:
            return commands.wait(folder, options.timeout, note, position)
    if options.verb == "stop":
        commands.stop(folder)
    return status(folder)


if __name__ == "__main__":
    sys.exit(run(parser, main))
