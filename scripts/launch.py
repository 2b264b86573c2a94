"""Start the job of a spec: python scripts/launch.py train --spec spec.toml --platform local"""

import sys
from argparse import Namespace
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from vidqa.core.actions import names
from vidqa.core.cli import Parser, Result, note, number, run

parser = Parser(
    "Start the job of a spec, detached from this terminal; the same spec attaches to an existing job.",
    examples=[
        "python scripts/launch.py train --spec spec.toml --platform local --wait",
        "python scripts/launch.py evaluate --spec evaluate.toml --platform local --dry-run",
        "python scripts/launch.py grpo --spec RUN/spec.toml --verify",
    ],
)
parser.add_argument("action", choices=names())
parser.add_argument("--spec", type=Path, required=True, help="TOML, YAML or JSON file (scripts/build_spec.py)")
parser.add_argument("--platform", default="local", help="local (default), docker, slurm, kubernetes")
parser.add_argument("--nodes", type=number(int, 1), default=1, help="number of nodes")
parser.add_argument("--gpus", type=number(int, 0), help="GPUs per node, if not visible here; 0: CPU")
parser.add_argument("--image", help="engine image; default: of config.json, with --yes")
parser.add_argument("--site", type=Path, metavar="FILE", help="site settings; see site_template.toml")
parser.add_argument("--yes", action="store_true", help="agree to the image that config.json records")
parser.add_argument("--engine", choices=["vidqa", "cosmos-rl"], default="vidqa", help="cosmos-rl: NVIDIA's container")
parser.add_argument("--dry-run", action="store_true", help="print the exact commands and files; start nothing")
parser.add_argument("--out", type=Path, metavar="DIR", help="with --dry-run: write the files to submit there")
parser.add_argument("--skip-preflight", action="store_true", help="start without preflight; recorded")
parser.add_argument("--new-run", action="store_true", help="start a new run even if the same job runs or is done")
parser.add_argument("--verify", action="store_true", help="check losses or a replayed step instead of training")
parser.add_argument("--wait", action="store_true", help="show the log until the job ends; exit with its code")
parser.add_argument("--timeout", type=number(float, 0), metavar="S", help="time limit of --wait; the job continues")


def main(options: Namespace) -> Result:
    from vidqa.jobs import api, cosmos_container, job_results, launch
    from vidqa.jobs.platforms import platform
    from vidqa.jobs.resources import Resources
    from vidqa.preflight import launch_gate

    if options.out and not options.dry_run:
        parser.error("--out needs --dry-run: a launch writes the files into its run folder")
    if options.verify:
        return proved(options)
    if options.timeout is not None and not options.wait:
        parser.error("--timeout needs --wait: without it a launch returns at once")
    if options.dry_run and options.wait:
        parser.error("--wait has no job to wait for: --dry-run starts none")
    if options.engine == "cosmos-rl" and (options.wait or options.new_run):
        parser.error("--wait and --new-run have no job: --engine cosmos-rl writes files, which a person submits")
    ready = launch_gate.skipped if options.skip_preflight else partial(launch_gate.ready, engine=options.engine)
    resources = Resources(
        nodes=options.nodes, gpus=options.gpus, image=options.image, site=options.site, agreed=options.yes
    )
    arguments = (options.action, options.spec, options.platform, resources)
    if options.engine == "cosmos-rl":
        return job_results.of_files(
            cosmos_container.prepare(*arguments, write=not options.dry_run, ready=ready), options.out
        )
    if options.dry_run:
        rendered = launch.dry_run(*arguments, new_run=options.new_run, ready=ready)
        return job_results.of_dry_run(rendered, platform(options.platform), options.out)
    job = api.submit(*arguments, new_run=options.new_run, restart=True, ready=ready)
    another = "" if job.how == "started" else "; nothing was started: --new-run starts another"
    note(f"{job.how}: job {job.job_id}; run folder {job.record().run_dir}{another}")
    return job_results.of_launch(job, job.wait(options.timeout, note) if options.wait else None)


def proved(options: Namespace) -> Result:
    from vidqa.core.actions import action
    from vidqa.core.files import read_object
    from vidqa.jobs.local_job import prove

    if not action(options.action).proof or options.platform != "local":
        parser.error(f"--verify is for train and grpo, on this machine; not for {options.action} on {options.platform}")
    parser.refuse_unused(options, {"action", "spec", "platform", "verify", "wait"}, "--verify")
    folder = prove(options.action, options.spec)
    facts = {
        path.stem: read_object(path) for path in (folder / "replay.json", folder / "sharing.json") if path.exists()
    }
    return Result({"run_dir": str(folder), **facts}, f"proved; see {folder}")


if __name__ == "__main__":
    sys.exit(run(parser, main))
