"""Fetch a published data set: python scripts/fetch_data.py cosmos-reason1-sft robovqa --out data/reason1"""

import sys
from argparse import Namespace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from vidqa.core.cli import Parser, Result, command, run

parser = Parser(
    "Download a published data set into a folder: verified, resumed after an interruption, archives unpacked.",
    examples=[
        "python scripts/fetch_data.py cosmos-reason1-benchmark av robovqa --out data/benchmark",
        "python scripts/fetch_data.py nexar --answer-column collision --out data/nexar",
        "python scripts/fetch_data.py org/name --out data/name",
    ],
)
parser.add_argument(
    "name",
    help="nexar, cosmos-reason1-sft, cosmos-reason1-rl, cosmos-reason1-benchmark, llava-detail-23k, or a data set of "
    "the hub as organisation/name",
)
parser.add_argument("subsets", nargs="*", metavar="SUBSET", help="subsets to fetch, if the set has any")
parser.add_argument("--question", default="", metavar="TEXT", help="nexar: question about each video")
parser.add_argument(
    "--answer-column",
    default="",
    metavar="NAME",
    help="nexar: answer column of metadata.csv, or collision (Yes, No); default weather",
)
parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="output folder")


def main(options: Namespace) -> Result:
    from vidqa.core.files import absolute
    from vidqa.data.storage.published_sets import fetch, published_set, write_annotations

    if options.name != "nexar" and (options.question or options.answer_column):
        parser.error(f"--question and --answer-column are for nexar; {options.name} brings its own annotations")
    folder = absolute(options.out)
    fetched = fetch(published_set(options.name), options.subsets, folder)
    data = {"folder": str(folder), "commit": fetched.commit, "files": fetched.files, "new": fetched.new}
    data |= {"bytes": fetched.bytes, "unpacked": fetched.unpacked, "annotations": str(folder)}
    warnings = []
    if options.name == "nexar":
        annotated = write_annotations(folder, options.answer_column or "weather", options.question)
        data |= {"annotations": str(annotated.path), "records": annotated.records}
        warnings = annotated.warnings
    elif options.name == "llava-detail-23k":
        data["annotations"] = str(folder / "detail_23k.json")
    elif options.subsets:
        data["annotations"] = f"{folder}#{options.subsets[0]}:"
    text = f"{fetched.files} files, {fetched.new} of them new, {fetched.bytes / 1e6:,.1f} MB, in {folder}"
    look = ["--annotations", data["annotations"]]
    look += ["--media-path", folder / "images/train2017"] if options.name == "llava-detail-23k" else []
    return Result(data, text, warnings, next=[command("inspect_dataset", *look)])


if __name__ == "__main__":
    sys.exit(run(parser, main))
