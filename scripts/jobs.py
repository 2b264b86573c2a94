"""Look at jobs, wait for them, cancel them: python scripts/jobs.py list|status|logs|wait|cancel|retry [JOB]"""

import sys
from argparse import Namespace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from vidqa.cli import Parser, Result, command, note, run

parser = Parser(
    "Look at jobs, wait for them, follow their logs, cancel them, launch them again.",
    examples=["python scripts/jobs.py status latest --json", "python scripts/jobs.py cancel 20260101T120000Z-1a2b3c"],
)
parser.add_argument("verb", choices=["list", "status", "logs", "wait", "cancel", "retry"])
parser.add_argument("job", nargs="?", default="latest", help='a job id, or "latest" (default)')
parser.add_argument("--follow", action="store_true", help="logs: go on until the job is over")
parser.add_argument("--lines", type=int, default=50, help="logs: how many of the last lines (default 50)")
parser.add_argument("--timeout", type=float, metavar="S", help="wait, logs --follow: give up after this long")
parser.add_argument("--grace", type=float, default=300, metavar="S", help="cancel: time to save in (default 300)")
parser.add_argument("--yes", action="store_true", help="retry: also what would fail again")


def main(options: Namespace) -> Result:
    from vidqa.platforms import jobs

    if options.verb == "list":
        records, broken = jobs.listing()
        shown = [f"{r.job_id}  {r.action:<8}  {r.platform}  {r.state:<8}  {r.run_dir}" for r in records[:50]]
        return Result({"jobs": [r.as_dict() for r in records]}, "\n".join(shown) or "no jobs yet", broken)
    record = jobs.find(options.job)
    if options.verb == "retry":
        return retry(record, options.yes)
    if options.verb == "logs":
        if not options.follow:
            text = jobs.tail(record, options.lines)
            return Result({"log": str(record.log), "lines": text.splitlines()}, text)
        record = jobs.wait(record, options.timeout, note)
    elif options.verb == "wait":
        record = jobs.wait(record, options.timeout)
    elif options.verb == "cancel":
        record = jobs.cancel(record.job_id, options.grace)
    return report(options.verb, record)


def retry(record, agreed: bool) -> Result:
    """The job again, from its newest checkpoint and in its run folder."""
    from vidqa.platforms import jobs, launch

    launched = launch.retry(record, agreed=agreed)
    follow = [command("jobs", verb, launched.record.job_id) for verb in ("status", "logs")]
    return Result(launched.record.as_dict(), jobs.describe(launched.record), launched.problems, follow)


def report(verb: str, record) -> Result:
    """One job: its record, what its engine says, and what is wrong with it where that was waited for."""
    from vidqa.platforms import jobs

    data = {**record.as_dict(), "progress": jobs.progress(record)}
    text = jobs.describe(record)
    if verb == "status" or (verb == "cancel" and record.state == "CANCELED"):
        return Result(data, text, next=[command("jobs", "logs", record.job_id)])
    return Result(
        data, text, jobs.problems_of(record), [command("jobs", "logs", record.job_id)], jobs.exit_code(record)
    )


if __name__ == "__main__":
    sys.exit(run(parser, main))
