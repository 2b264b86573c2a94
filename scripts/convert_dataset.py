"""Convert annotations: python scripts/convert_dataset.py --in questions.csv --to llava --out DATA/annotations.json"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from vidqa.cli import Parser, Result, command, run

JSON = ["llava", "messages", "jsonl"]
TABLES = ["parquet", "hf"]
parser = Parser(
    "Convert annotations between formats, with a report of the fields that had no place. Media are not copied.",
    examples=[
        "python scripts/convert_dataset.py --in questions.csv --to llava --out DATA/annotations.json --prompt mcq",
        "python scripts/convert_dataset.py --from tao-vl-reason-v1.0 --in TAO --to jsonl --out DATA/annotations.jsonl",
    ],
)
parser.add_argument(
    "--from",
    dest="form",
    default="auto",
    choices=["auto", *JSON, *TABLES, "csv", "cosmos-reason-v1.0", "tao-vl-reason-v1.0"],
    metavar="FORMAT",
    help="auto (default), llava, messages, jsonl, parquet, hf, csv, cosmos-reason-v1.0, tao-vl-reason-v1.0",
)
parser.add_argument("--to", required=True, choices=[*JSON, *TABLES], help="format to write")
parser.add_argument("--in", dest="path", type=Path, required=True, metavar="PATH", help="file or data set folder")
parser.add_argument(
    "--out", type=Path, required=True, metavar="PATH", help="file with the format's ending, or a folder"
)
parser.add_argument(
    "--media-path", default="", metavar="PATH", help="folder or tar of media; default: beside the input"
)
parser.add_argument(
    "--prompt",
    action="append",
    default=[],
    choices=["mcq", "yes_no"],
    help="put fitting questions into this form; may be given twice",
)


def main(options: argparse.Namespace) -> Result:
    from vidqa.datatools.convert import convert

    o = options
    forms = list(dict.fromkeys(o.prompt))
    made = convert(o.path, o.out, o.to, o.form, o.media_path, forms)
    facts = made.facts
    lines = [f"{facts['records']} records, {facts['from']} to {facts['to']}", *(f"  {file}" for file in made.files)]
    lines += [f"prompt {form}: {count} records" for form, count in facts["prompts"].items()]
    lines += [] if facts["written"] else ["nothing new: the same files are there already"]
    result = Result({**facts, "files": list(map(str, made.files))}, "\n".join(lines), made.problems)
    if o.to in JSON:
        words = ["--annotations", made.files[0], "--media-path", made.media_path]
        result.next = [command("inspect_dataset", *words)]
    return result


if __name__ == "__main__":
    sys.exit(run(parser, main))
