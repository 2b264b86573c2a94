"""Inspect a data set: python scripts/inspect_dataset.py --annotations DATA --html data.html"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from vidqa.core.actions import action
from vidqa.core.cli import Parser, Result, command, number, run

parser = Parser(
    "Summarize a data set: counts, answers and their balance, durations, sizes, tokens, duplicates, problems.",
    examples=[
        "python scripts/inspect_dataset.py --annotations DATA --html data.html",
        "python scripts/inspect_dataset.py --annotations a.json --media-path VIDEOS --model MODEL --nframes 8 --json",
    ],
)
parser.add_argument(
    "--annotations", required=True, metavar="PATH", help="annotation file, folder, or another data source"
)
parser.add_argument("--media-path", default="", metavar="PATH", help="folder or tar of media; default: beside the file")
parser.add_argument("--model", metavar="MODEL", help="count tokens: a model folder, or hf_model://org/name")
frames = parser.add_mutually_exclusive_group()
frames.add_argument("--nframes", type=number(int, 1, 999_999), help="frames per video (default 8)")
frames.add_argument("--fps", type=number(float, most=999_999, above=0), help="frames per second of video")
parser.add_argument("--skip-near-duplicates", action="store_true", help="decode nothing: no search for near duplicates")
parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with frames and histograms")


def onward(annotations: str, media: str) -> str:
    """The next command: build the spec for a set that is one part of a split; split a whole set."""
    from vidqa.datatools.split import part_named

    part = part_named(annotations)
    if part is None:
        words = ["--annotations", annotations, "--out", "split", *(["--media-path", media] if media else [])]
        return command("split_dataset", *words)
    name, out = ("train", "train.toml") if part.startswith("train") else ("evaluate", "before.toml")
    return command("build_spec", name, *action(name).data[0].options(annotations, media), "--out", out)


def main(options: argparse.Namespace) -> Result:
    from vidqa.core import environment
    from vidqa.core.problem import bounded
    from vidqa.data.storage import hub, stage_set
    from vidqa.datatools.inspection import facts_text, inspect_dataset, inspection_page

    if not options.model and (options.fps or options.nframes):
        parser.error("--fps and --nframes say how tokens are counted, which takes --model")
    model = options.model and hub.resolve_model(options.model, token=environment.hf_token(), weights=False)
    nframes = options.nframes or (None if options.fps else 8)
    settings = {"model": model, "fps": options.fps, "nframes": nframes}
    settings["skip_near_duplicates"] = options.skip_near_duplicates
    inspection = inspect_dataset(*stage_set(options.annotations, options.media_path), **settings)
    if options.html:
        from vidqa.datatools.outputs import write_page

        write_page(options.html, inspection_page(inspection))
    problems = bounded(inspection.problems)
    text = facts_text(inspection.facts) if inspection.records else ""
    result = Result({**inspection.facts, "html": options.html}, text, problems)
    if result.code == 0:
        result.next = [onward(options.annotations, options.media_path)]
    return result


if __name__ == "__main__":
    sys.exit(run(parser, main))
