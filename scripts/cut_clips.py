"""Cut clips of the benchmark from their raw sets: python scripts/cut_clips.py holoassist --raw RAW --data DATA"""

import sys
from argparse import Namespace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from vidqa.core.cli import Parser, Result, command, run

parser = Parser(
    "Cut the clips of a subset of Cosmos-Reason1's benchmark out of its raw set; resumes where it stopped.",
    examples=[
        "python scripts/cut_clips.py holoassist --raw raw/holoassist --data data/benchmark",
        "python scripts/cut_clips.py bridgev2 --raw raw/bridge_dataset/1.0.0 --data data/benchmark --json",
    ],
)
parser.add_argument("name", choices=("holoassist", "agibot", "bridgev2"), help="subset")
parser.add_argument("--raw", type=Path, required=True, metavar="DIR", help="raw set; see benchmarks.md")
parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="benchmark folder of fetch_data.py")


def main(options: Namespace) -> Result:
    from vidqa.benchmark.cutting import cut
    from vidqa.core.files import absolute

    clips = cut(options.name, absolute(options.raw), absolute(options.data))
    failed = [problem.where for problem in clips.problems]
    data = {
        "folder": str(clips.folder),
        "written": len(clips.written),
        "kept": len(clips.existing),
        "failed": failed,
    }
    text = f"{len(clips.written)} clips cut, {len(clips.existing)} were there, {len(failed)} failed; in {clips.folder}"
    onward = command("run_benchmark", "--data", options.data, "--datasets", options.name, "--model", "MODEL")
    return Result(data, text, clips.problems, [] if failed else [onward])


if __name__ == "__main__":
    sys.exit(run(parser, main))
