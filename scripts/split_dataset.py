"""Split annotations into training and validation: python scripts/split_dataset.py --annotations DATA --out OUT"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from vidqa.core.actions import action
from vidqa.core.cli import Parser, Result, command, number, run

parser = Parser(
    "Split annotations into training and validation, without common or look-alike videos.",
    examples=[
        "python scripts/split_dataset.py --annotations DATA --out DATA_split --share 0.1",
        "python scripts/split_dataset.py --annotations a.json --media-path VIDEOS --out split --group-by camera",
    ],
)
parser.add_argument("--annotations", required=True, metavar="PATH", help="annotation file, or its folder")
parser.add_argument("--media-path", default="", metavar="PATH", help="folder or tar of media; default: beside the file")
parser.add_argument("--out", type=Path, required=True, help="folder for train/, val/ and split.json")
parser.add_argument("--share", type=float, default=0.1, help="share of the records for validation (default 0.1)")
parser.add_argument("--seed", type=number(int, 0), default=0, help="random seed (default 0)")
parser.add_argument(
    "--stratify", choices=["kind", "answer"], default="kind", help="field balanced over both parts (default kind)"
)
parser.add_argument(
    "--group-by",
    default="",
    metavar="FIELD|REGEX",
    help="also keep records together by a field's value, or by a match in media names: '(.*)_[0-9]+[.]mp4'",
)
parser.add_argument("--skip-near-duplicates", action="store_true", help="allow near duplicates in both parts")


def main(options: argparse.Namespace) -> Result:
    from vidqa.data.storage import stage_set
    from vidqa.datatools.split import split_dataset, table

    o = options
    arguments = (*stage_set(o.annotations, o.media_path), o.out, o.share, o.seed, o.stratify, o.group_by)
    split = split_dataset(*arguments, skip_near_duplicates=o.skip_near_duplicates)
    lists = o.out / "together.json"
    shown = {**split.facts, "written": split.written, "root_mode": split.is_rooted, "together_file": lists}
    shown["strata"] = dict(list(split.facts["strata"].items())[:40])
    places = {part: (str(o.out / part), "") for part in ("train", "val")}
    if not split.is_rooted:
        places = {part: (f"{folder}/annotations.json", split.media_path) for part, (folder, _) in places.items()}
    # The held-out part is for evaluation scores, so that no training chooses its best weights by it.
    onward = [
        command("build_spec", "evaluate", *action("evaluate").data[0].options(*places["val"]), "--out", "before.toml"),
        command("build_spec", "train", *action("train").data[0].options(*places["train"]), "--out", "train.toml"),
    ]
    text = table(split) + (f"\nall that was kept together: {lists}" if split.groups.named else "")
    return Result(shown, text, split.warnings, onward)


if __name__ == "__main__":
    sys.exit(run(parser, main))
