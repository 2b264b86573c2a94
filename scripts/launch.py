"""Start the job of a spec: python scripts/launch.py train --spec spec.toml --platform local"""

import sys
from argparse import Namespace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from vidqa.cli import Parser, Result, command, note, run

parser = Parser(
    "Start the job of a spec, detached from this terminal; the same spec again attaches to the job there is.",
    examples=[
        "python scripts/launch.py train --spec spec.toml --platform local --wait",
        "python scripts/launch.py evaluate --spec evaluate.toml --platform local --dry-run",
    ],
)
parser.add_argument("action", choices=["train", "evaluate"])
parser.add_argument("--spec", type=Path, required=True, help="TOML, YAML or JSON file (scripts/build_spec.py)")
parser.add_argument("--platform", default="local", help="where it runs: local")
parser.add_argument("--dry-run", action="store_true", help="print exactly what would run; start nothing")
parser.add_argument("--new-run", action="store_true", help="start anew even if the same job runs or is done")
parser.add_argument("--wait", action="store_true", help="show the log until the job is over; exit as it did")
parser.add_argument("--timeout", type=float, metavar="S", help="wait no longer than this; the job goes on")


def main(options: Namespace) -> Result:
    return dry_run(options) if options.dry_run else start(options)


def dry_run(options: Namespace) -> Result:
    from vidqa.platforms import launch

    job, rendered, spec_toml, problems = launch.dry_run(options.action, options.spec, options.platform)
    data = {
        "run_dir": str(job.run_dir),
        "command": rendered.command,
        "environment": rendered.environment,
        "secrets": rendered.secrets,
        "spec_toml": spec_toml,
    }
    secrets = f"# inherited where set: {', '.join(rendered.secrets)}"
    return Result(data, f"# {job.spec}\n{spec_toml}\n{secrets}\n{rendered.shown}", problems)


def start(options: Namespace) -> Result:
    from vidqa.platforms import jobs, launch

    launched = launch.launch(options.action, options.spec, options.platform, new_run=options.new_run)
    record, problems, exit_code = launched.record, launched.problems, None
    said = {"started": "started", "attached": "is running already", "done": "has done this already"}[launched.how]
    note(f"job {record.job_id} {said}; run folder {record.run_dir}")
    if options.wait:
        record = jobs.wait(record, options.timeout, note)
        problems, exit_code = [*problems, *jobs.verdict(record)], jobs.exit_code(record)
    data = {"how": launched.how, **record.as_dict()}
    text = f"job      {record.job_id}\nstate    {record.state}\nrun      {record.run_dir}\nlog      {record.log}"
    return Result(
        data, text, problems, [command("jobs", verb, record.job_id) for verb in ("status", "logs")], exit_code
    )


if __name__ == "__main__":
    sys.exit(run(parser, main))
