"""Inspect jobs, wait for them, cancel them: python scripts/jobs.py list|status|logs|wait|cancel|retry [JOB]"""

import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from vidqa.core.cli import USAGE, Parser, Result, note, number, run

if TYPE_CHECKING:
    from vidqa.jobs.records import JobRecord

parser = Parser(
    "Show jobs, wait for them, follow their logs, cancel them, launch them again.",
    examples=["python scripts/jobs.py status --json", "python scripts/jobs.py cancel 20260101T120000Z-1a2b3c"],
)
parser.add_argument("verb", choices=["list", "status", "logs", "wait", "cancel", "retry"])
parser.add_argument("job", nargs="?", default="latest", help='job id, run folder, or "latest" in this folder (default)')
parser.add_argument("--follow", action="store_true", help="logs: follow until the job ends")
parser.add_argument("--lines", type=number(int, 1), default=50, help="logs: number of last lines (default 50)")
parser.add_argument("--timeout", type=number(float, 0), metavar="S", help="wait, logs --follow: time limit in seconds")
parser.add_argument(
    "--grace", type=number(float, 0), default=300, metavar="S", help="cancel: seconds to save in (default 300)"
)
parser.add_argument("--yes", action="store_true", help="retry: even if it would fail again")
parser.add_argument("--skip-preflight", action="store_true", help="retry: even if preflight refuses; recorded")
parser.add_argument("--site", type=Path, metavar="FILE", help="retry: site settings, instead of the job's")

USED = {  # options of each verb besides JOB
    "logs": ("lines", "follow"),
    "wait": ("timeout",),
    "cancel": ("grace",),
    "retry": ("yes", "skip_preflight", "site"),
}


def main(options: Namespace) -> Result:
    from vidqa.jobs import job_results, watch

    used = {*USED.get(options.verb, ()), *(["timeout"] if options.follow else [])}
    parser.refuse_unused(options, {"verb", "job", *used}, options.verb)
    if options.verb == "list":
        if options.job != "latest":
            remedy = f"python scripts/jobs.py status {options.job}"
            raise USAGE.error("list", f"it lists every job, not {options.job!r}", remedy)
        return job_results.of_listing(*watch.listing())
    if options.job != "latest":
        return carry_out(watch.find(options.job), options)
    if options.verb in ("cancel", "retry"):
        raise watch.id_needed(options.verb)
    record, warnings = watch.latest()
    result = carry_out(record, options)
    return replace(result, problems=[*warnings, *result.problems])


def carry_out(record: "JobRecord", options: Namespace) -> Result:
    """Run the verb on one job."""
    from vidqa.jobs import job_results, watch

    if options.verb == "logs" and not options.follow:
        text = watch.tail(record, options.lines)
        nothing = f"{record.log} is empty or not on this machine"
        return Result({"log": str(record.log), "lines": text.splitlines()}, text or nothing)
    if options.verb == "logs":
        return job_results.of_wait(watch.wait(record, options.timeout, note, lines=options.lines))
    if options.verb == "wait":
        return job_results.of_wait(watch.wait(record, options.timeout))
    if options.verb == "cancel":
        return job_results.of_cancel(watch.cancel(record.job_id, options.grace))
    if options.verb == "retry":
        from vidqa.jobs import api
        from vidqa.preflight import launch_gate

        ready = launch_gate.skipped if options.skip_preflight else launch_gate.ready
        return job_results.of_launch(api.attach(record.job_id).retry(options.site, agreed=options.yes, ready=ready))
    return job_results.of_job(record)


if __name__ == "__main__":
    sys.exit(run(parser, main))
