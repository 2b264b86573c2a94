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
parser.add_argument("--platform", default="local", help="where it runs: local (default), docker, slurm, kubernetes")
parser.add_argument("--nodes", type=int, default=1, help="machines that share the processes of the spec (default 1)")
parser.add_argument("--gpus", type=int, help="GPUs of a node, where they cannot be seen from here; 0 is the CPU")
parser.add_argument("--image", help="engine image; otherwise the one that config.json records, with --yes")
parser.add_argument("--site", type=Path, metavar="FILE", help="settings of your place; see site_template.toml")
parser.add_argument("--yes", action="store_true", help="agree to the image that config.json records")
parser.add_argument("--engine", choices=["vidqa", "cosmos-rl"], default="vidqa", help="cosmos-rl: NVIDIA's container")
parser.add_argument("--dry-run", action="store_true", help="print exactly what would run; start nothing")
parser.add_argument("--new-run", action="store_true", help="start anew even if the same job runs or is done")
parser.add_argument("--wait", action="store_true", help="show the log until the job is over; exit as it did")
parser.add_argument("--timeout", type=float, metavar="S", help="wait no longer than this; the job goes on")


def main(options: Namespace) -> Result:
    from vidqa.platforms.launch import Wanted

    wanted = Wanted(options.nodes, options.gpus, options.image, options.site, options.yes)
    if options.engine == "cosmos-rl":
        return render_cosmos_rl(options, wanted)
    return dry_run(options, wanted) if options.dry_run else start(options, wanted)


def render_cosmos_rl(options: Namespace, wanted) -> Result:
    """The files of a training for NVIDIA's container; they are submitted by hand."""
    from vidqa.platforms import cosmos_container

    write = not options.dry_run
    made = cosmos_container.prepare(options.action, options.spec, options.platform, wanted, write=write)
    text = "\n".join(f"# {made.folder / name}\n{content}" for name, content in made.files.items())
    data = {"folder": str(made.folder), "files": made.files, "submit": made.submit, "written": write}
    return Result(data, text, made.problems, [made.submit] * write)


def dry_run(options: Namespace, wanted) -> Result:
    from vidqa.platforms import launch

    job, rendered, spec_toml, problems = launch.dry_run(options.action, options.spec, options.platform, wanted)
    data = {
        "run_dir": str(job.run_dir),
        "command": rendered.command,
        "environment": rendered.environment,
        "secrets": rendered.secrets,
        "files": rendered.files,
        "spec_toml": spec_toml,
    }
    secrets = f"# passed on by name where set: {', '.join(rendered.secrets)}"
    return Result(data, f"# {job.spec}\n{spec_toml}\n{secrets}\n{rendered.shown}", problems)


def start(options: Namespace, wanted) -> Result:
    from vidqa.platforms import jobs, launch

    launched = launch.launch(options.action, options.spec, options.platform, wanted, new_run=options.new_run)
    record, problems, exit_code = launched.record, launched.problems, None
    said = {"started": "started", "attached": "is running already", "done": "has done this already"}[launched.how]
    note(f"job {record.job_id} {said}; run folder {record.run_dir}")
    if options.wait:
        record = jobs.wait(record, options.timeout, note)
        problems, exit_code = [*problems, *jobs.problems_of(record)], jobs.exit_code(record)
    data = {"how": launched.how, **record.as_dict()}
    text = f"job      {record.job_id}\nstate    {record.state}\nrun      {record.run_dir}\nlog      {record.log}"
    follow = [command("jobs", verb, record.job_id) for verb in ("status", "logs")]
    return Result(data, text, problems, follow, exit_code)


if __name__ == "__main__":
    sys.exit(run(parser, main))
