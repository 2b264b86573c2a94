"""Check a spec before any GPU starts: python scripts/preflight.py --spec spec.toml --platform local"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from vidqa.cli import Parser, Result, command, run


def sample(text: str) -> int | None:
    if text == "all":
        return None
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor all")
    return int(text)


parser = Parser(
    "Check a spec, its model, data, videos and this machine before any GPU starts. Every problem in one report.",
    examples=[
        "python scripts/preflight.py --spec spec.toml --platform local",
        "python scripts/preflight.py --spec spec.toml --only data --json",
    ],
)
GROUPS = ["environment", "model", "spec", "data", "media", "budget", "platform"]
parser.add_argument("--spec", type=Path, required=True, help="TOML, YAML or JSON file (scripts/build_spec.py)")
parser.add_argument("--action", choices=["train", "evaluate"], help="default: what the spec's keys belong to")
parser.add_argument("--platform", default="local", help="where it will run: local")
parser.add_argument("--only", choices=GROUPS, metavar="GROUP", help=f"one group: {', '.join(GROUPS)}")
parser.add_argument("--probe-sample", type=sample, metavar="N", help="decode N files only; default: all")


def main(options: argparse.Namespace) -> Result:
    from vidqa.preflight.report import preflight

    report = preflight(options.spec, options.platform, options.action, options.only, options.probe_sample)
    result = Result(report.as_dict(), report.text, report.problems)
    if result.code == 0:
        place = ("--spec", options.spec, "--platform", options.platform)
        result.next = [command("preflight", *place) if options.only else command("launch", report.action, *place)]
    return result


if __name__ == "__main__":
    sys.exit(run(parser, main))
