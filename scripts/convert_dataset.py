"""Convert annotations: python scripts/convert_dataset.py --in questions.csv --to llava --out DATA/annotations.json"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from vidqa.core.cli import Parser, Result, command, run


def column(text: str) -> tuple[str, str]:
    name, _, written = (part.strip() for part in text.partition("="))
    if not name or not written:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=COLUMN, such as video=recording")
    return name.lower(), written


JSON = ["llava", "messages", "jsonl"]
TABLES = ["parquet", "hf"]
parser = Parser(
    "Convert annotations between formats, and report dropped fields. Media are not copied, except those inside a "
    "table, which are written to media/ beside the output.",
    examples=[
        "python scripts/convert_dataset.py --in questions.csv --to llava --out DATA/annotations.json --prompt mcq",
        "python scripts/convert_dataset.py --in OLD --in NEW --to llava --out DATA/annotations.json",
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
parser.add_argument(
    "--in",
    dest="paths",
    required=True,
    action="append",
    metavar="PATH",
    help="file or data set folder; repeat it to merge sets",
)
parser.add_argument(
    "--out", type=Path, required=True, metavar="PATH", help="file with the format's extension, or a folder"
)
parser.add_argument(
    "--media-path",
    dest="media_paths",
    default=[],
    action="append",
    metavar="PATH",
    help="folder or tar of media, for all inputs or one per input; default: beside the input",
)
parser.add_argument(
    "--column",
    action="append",
    default=[],
    type=column,
    metavar="NAME=COLUMN",
    help="read a column by another name, such as video=recording; may be repeated",
)
parser.add_argument(
    "--prompt",
    action="append",
    default=[],
    choices=["mcq", "yes_no"],
    help="convert suitable questions to this form; may be repeated",
)


def main(options: argparse.Namespace) -> Result:
    from vidqa.data.storage import stage_set
    from vidqa.datatools.convert import convert

    o = options
    o.paths = [stage_set(path, "")[0] for path in o.paths]
    forms = list(dict.fromkeys(o.prompt))
    converted = convert(o.paths, o.out, o.to, o.form, o.media_paths, forms, dict(o.column))
    facts = converted.facts
    lines = [
        f"{facts['records']} records, {facts['from']} to {facts['to']}",
        *(f"  {file}" for file in converted.files),
    ]
    lines += [f"{facts['media_files']} media of the tables: {converted.media_path}/media"] * bool(facts["media_files"])
    lines += [f"prompt {form}: {count} records" for form, count in facts["prompts"].items()]
    if facts["new_ids_count"]:
        lines.append(
            f"{facts['new_ids_count']} ids were in two sets; the later got a new one: {facts['new_ids'][0]}, ..."
        )
    lines += [] if facts["written"] else ["nothing new: the same files are there already"]
    result = Result({**facts, "files": list(map(str, converted.files))}, "\n".join(lines), converted.problems)
    if o.to in JSON:
        words = [
            "--annotations",
            converted.files[0],
            *(["--media-path", converted.media_path] if converted.media_path else []),
        ]
        result.next = [command("inspect_dataset", *words)]
    return result


if __name__ == "__main__":
    sys.exit(run(parser, main))
