"""Run the DEFT loop, from the gaps of a model to the next better one: python scripts/run_deft.py next LOOP"""

import sys
from argparse import Namespace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from vidqa.core.cli import Parser, Result, run
from vidqa.core.run_folder import run_named

parser = Parser(
    "Find a model's errors, add similar samples from a pool, train, compare, and keep only better models.",
    examples=[
        "python scripts/run_deft.py init LOOP --train-spec train.toml --evaluate-spec before.toml --model RUN "
        "--selection DATA/selection --pool DATA/pool",
        "python scripts/run_deft.py run LOOP --json",
    ],
)
parser.add_argument("verb", choices=["init", "next", "run", "status", "report"], help="next: one stage; run: all")
parser.add_argument("loop", type=Path, metavar="LOOP", help="folder of the loop")
parser.add_argument("--train-spec", type=Path, metavar="FILE", help="init: training spec, with the base set")
parser.add_argument("--evaluate-spec", type=Path, metavar="FILE", help="init: evaluation spec")
parser.add_argument(
    "--model", type=run_named, help="init: initial model: a run, job id or model (default: of the specs)"
)
parser.add_argument("--selection", metavar="DIR", help="init: set on which rounds are accepted")
parser.add_argument("--pool", metavar="DIR", help="init: source of new samples: a set, or a folder of videos")
parser.add_argument("--kpi", metavar="DIR", help="init: set for reporting, without influence on decisions")
parser.add_argument("--test", metavar="DIR", help="init: set that is evaluated once, at the end")
parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="init: see deft.md")
parser.add_argument("--audit-answers", type=Path, metavar="FILE", help="next, run: answers saved by audit.html")
parser.add_argument("--labels", type=Path, metavar="FILE", help="next, run: answers saved by annotate.html")

OF_INIT = ("train_spec", "evaluate_spec", "model", "selection", "pool", "kpi", "test", "set")
OF_STAGES = ("audit_answers", "labels")
USED = {"init": OF_INIT, "next": OF_STAGES, "run": OF_STAGES}  # options of each verb besides LOOP


def main(options: Namespace) -> Result:
    from vidqa.gaps.deft import commands
    from vidqa.gaps.deft.commands import LoopConfig

    parser.refuse_unused(options, {"verb", "loop", *USED.get(options.verb, ())}, options.verb)
    if options.verb == "init":
        needed = ("train_spec", "evaluate_spec", "selection", "pool")
        if missing := [f"--{name.replace('_', '-')}" for name in needed if not getattr(options, name)]:
            parser.error(f"init needs {', '.join(missing)}")
        folders = {name: getattr(options, name) for name in ("selection", "pool", "kpi", "test")}
        config = LoopConfig(options.train_spec, options.evaluate_spec, folders, options.model, options.set)
        return commands.init(options.loop, config)
    if options.verb in ("next", "run"):
        return commands.go_on(options.loop, options.audit_answers, options.labels, once=options.verb == "next")
    return commands.report(options.loop) if options.verb == "report" else commands.status(options.loop)


if __name__ == "__main__":
    sys.exit(run(parser, main))
