"""Upload a run's outputs to S3 or to the hub: python scripts/upload.py outputs/train/RUN"""

import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from vidqa.core.cli import USAGE, Parser, Result, command, run
from vidqa.core.run_folder import run_path

parser = Parser(
    "Upload a run's results and exports to S3 and its best export to the Hugging Face hub; safe to repeat.",
    examples=[
        "python scripts/upload.py outputs/train/20260101T120000Z-1a2b3c",
        "python scripts/upload.py outputs/evaluate/RUN --s3 s3://bucket/scores",
    ],
)
parser.add_argument(
    "run", type=run_path, help="run folder or job id, whose spec may name the destination, or a folder of export.py"
)
parser.add_argument("--s3", metavar="ADDRESS", help="s3://bucket/prefix; the run is put into a folder of its name")
parser.add_argument("--all", action="store_true", help="upload every export to S3, not only the best and the newest")
parser.add_argument("--hub", metavar="NAME", help="organisation/name on the hub; a new one is private")
parser.add_argument("--public", action="store_true", help="agree that the repository on the hub is public")


def main(options: Namespace) -> Result:
    from vidqa.core import environment
    from vidqa.jobs.upload import Destinations, spec_destinations, upload

    run_dir = options.run.absolute()
    if not run_dir.is_dir():
        raise USAGE.error(run_dir, "there is no such folder", "name a run folder or a job")
    named = bool(options.s3 or options.hub)
    to = Destinations(options.s3, hub=options.hub) if named else spec_destinations(run_dir)
    to = replace(to, public=options.public, which="all" if options.all else to.which)
    done, problems = upload(run_dir, to, environment.hf_token())
    lines = [f"{there['state']:<9} {address}" for address, there in done.items()]
    again = [command("upload", *sys.argv[1:])] if problems else []
    return Result({"run": str(run_dir), "destinations": done}, "\n".join(lines), problems, again)


if __name__ == "__main__":
    sys.exit(run(parser, main))
