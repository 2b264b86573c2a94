"""Splits a data set into training and validation by video, stratified and seeded, and writes both as data sets."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vidqa.core.files import remove
from vidqa.core.problem import Problem
from vidqa.data import fingerprint
from vidqa.data.load import Pair, load_pairs
from vidqa.data.media import MediaSource
from vidqa.data.problems import OPTION, OUTPUT_EXISTS
from vidqa.data.problems import SPLIT as DATA_SPLIT
from vidqa.data.record import Record, media_by_key
from vidqa.data.record_groups import drawn_groups, groups_sharing_media, stratified
from vidqa.data.sources import Source, open_source
from vidqa.data.splits import SPLITS
from vidqa.datatools.duplicates import (
    CONTENT,
    SplitGroups,
    answer_class,
    find_split_groups,
    same_content_problems,
    torn_recordings,
)
from vidqa.datatools.outputs import json_list, json_page, write_new
from vidqa.datatools.problems import SPLIT

ANNOTATIONS = "annotations.json"
Links = dict[str, str]  # names in the part's folder and the files they stand for
PARTS = ("train", "val")
PARTS_NAMED = (*SPLITS, "kpi", "selection")  # folders of one part of a data set
MOST_STRATA = 40  # listed in the result; split.json has all
UNLINKED = (
    "the parts cannot be used in root mode: use the command that the result names, which gives the media path; for "
    "parts of their own, put --out on the disk of the media, in a folder where you may make links to them"
)
OFF_BY = 0.5  # a validation part this much smaller or larger than asked for is worth a warning


@dataclass(frozen=True)
class Split:
    """What became of a split. `roots` tells whether the two folders can be used in root mode."""

    facts: dict[str, Any]
    warnings: list[Problem]
    written: bool
    roots: bool
    media_path: str
    together: SplitGroups


def split_dataset(
    annotation_path: str | Path,
    media_path: str | Path,
    out: Path,
    share: float,
    seed: int,
    stratify: str,
    group_by: str = "",
    *,
    ignore_looks: bool = False,
) -> Split:
    """Write OUT/train/annotations.json, OUT/val/annotations.json, OUT/split.json and OUT/together.json.

    The rows are those of the file, unchanged; one without an id is given the one it had by its place. Where all media
    are named relative to a folder, each part gets hard links to its own, and is a data set of its own. Raises
    DATA_OPTION, DATA_SPLIT, DATA_OUTPUT_EXISTS, STORAGE_NO_SPACE and everything that is wrong
    with the data.
    """
    if not 0 < share < 1:
        raise OPTION.error("--share", f"{share:g} is not between 0 and 1", "give for example 0.1")
    source = open_source(annotation_path, media_path)
    pairs, warnings_read = load_pairs(source)
    together = find_split_groups(pairs, group_by, ignore_looks=ignore_looks)
    chosen = choose([pair.record for pair in pairs], share, seed, stratify, together.ties)
    parts = {
        "train": [pair for at, pair in enumerate(pairs) if at not in chosen],
        "val": [pair for at, pair in enumerate(pairs) if at in chosen],
    }
    own = {name: links(source.media, part) for name, part in parts.items()}
    facts = _facts(source, pairs, parts, share, seed, stratify)
    facts |= {"group_by": group_by, "ignore_looks": ignore_looks, "together": together.facts()}
    files = {out / name / "annotations.json": json_list(map(_row, part)) for name, part in parts.items()}
    for name in PARTS:
        check_part(out / name, own[name])
    written = write_new(
        {**files, out / "split.json": json_page(facts), out / "together.json": json_page(together.lists())}
    )
    warnings = [*warnings_read, *same_content_problems(together.named.get(CONTENT, [])), *_off(facts, out)]
    if not group_by:
        warnings += torn_recordings({name: [pair.record for pair in part] for name, part in parts.items()}, out)
    linked = own["train"] is not None and own["val"] is not None
    if linked and (refused := write_links({out / name: own[name] or {} for name in PARTS})):
        linked, warnings = False, [*warnings, refused]
    return Split(facts, warnings, written, linked, source.media.root, together)


def part_named(annotations: str) -> str | None:
    """The name of the part that a data set is, by the split in its address or by its folder's name, beside which lies
    split.json or another part; None for a whole set."""
    place, _, part = annotations.partition("#") if not os.path.exists(annotations) else (annotations, "", "")
    split = re.match(r"(?:[\w.-]+:)?([\w.-]*)", part)
    if split and split[1] in PARTS_NAMED:
        return split[1]
    path = Path(os.path.abspath(place))
    folder = path if path.is_dir() else path.parent
    others = (other for other in PARTS_NAMED if other != folder.name)
    beside = (folder.parent / "split.json").is_file() or any((folder.parent / other).is_dir() for other in others)
    return folder.name if folder.name in PARTS_NAMED and beside else None


def choose(
    records: Sequence[Record], share: float, seed: int, stratify: str, together: Iterable[Sequence[int]] = ()
) -> set[int]:
    """Indices of the validation records (see `stratified`). Records that stay `together` are in one group. Raises
    DATA_SPLIT."""
    drawn = drawn_groups(records, seed, together)
    if len(drawn) < 2:
        what = "share one video or image" if len(groups_sharing_media(records)) < 2 else "are to be kept together"
        remedy = "Have at least two videos; where all clips are of one fixed camera, give --ignore-looks."
        raise DATA_SPLIT.error("annotations", f"all {len(records)} records {what}", remedy)
    return stratified([stratum(record, stratify) for record in records], drawn, share)


def stratum(record: Record, stratify: str) -> str:
    """What must be spread evenly: the record's kind, or its kind and what its answer comes to."""
    kind = record.kind or "(no kind)"
    return kind if stratify == "kind" else f"{kind}: {answer_class(record)}"


def _row(pair: Pair) -> dict[str, Any]:
    return pair.row if pair.row.get("id") is not None else {**pair.row, "id": pair.record.id}


def _facts(
    source: Source, pairs: list[Pair], parts: dict[str, list[Pair]], share: float, seed: int, stratify: str
) -> dict[str, Any]:
    """The content of split.json."""
    records = {name: [pair.record for pair in part] for name, part in parts.items()}
    strata = {name: Counter(stratum(record, stratify) for record in part) for name, part in records.items()}
    return {
        "annotations": os.path.abspath(source.path),
        "media_path": source.media.root,
        "share": share,
        "seed": seed,
        "stratify": stratify,
        "fingerprint": fingerprint(pair.record for pair in pairs),
        "parts": {
            name: {
                "records": len(part),
                "media": len(media_by_key(part)),
                "fingerprint": fingerprint(part),
            }
            for name, part in records.items()
        },
        "strata": {
            name: {part: strata[part][name] for part in PARTS} for name in sorted(strata["train"] | strata["val"])
        },
    }


def _off(facts: dict[str, Any], out: Path) -> list[Problem]:
    counts = {name: facts["parts"][name]["records"] for name in PARTS}
    target = facts["share"] * sum(counts.values())
    if abs(counts["val"] - target) <= max(1.0, OFF_BY * target):
        return []
    message = f"{counts['val']} of {sum(counts.values())} records are in the validation part, {target:g} were wanted"
    return [SPLIT.at(out / "split.json", message, severity="warning")]


def table(split: Split) -> str:
    """The counts for a person."""
    lines = [f"{'':<28}{'train':>8}{'val':>8}"]
    parts = split.facts["parts"]
    for what in ("records", "media"):
        lines.append(f"{what:<28}{parts['train'][what]:>8}{parts['val'][what]:>8}")
    for name, counts in list(split.facts["strata"].items())[:MOST_STRATA]:
        lines.append(f"  {name[:25]:<26}{counts['train']:>8}{counts['val']:>8}")
    if len(split.facts["strata"]) > MOST_STRATA:
        lines.append(f"  and {len(split.facts['strata']) - MOST_STRATA} more strata in split.json")
    lines += split.together.text()
    return "\n".join([*lines, "" if split.written else "nothing new: the same split is there already"]).rstrip()


def links(media: MediaSource, pairs: Sequence[Pair]) -> Links | None:
    """What the folder of a part must hold beside its annotations; None where some name could not be reached in it.

    A file is its own entry; of an archive, in which files cannot be linked one by one, the whole archive is.
    """
    folder = media.folder
    names: Links = {}
    for ref in media_by_key(pair.record for pair in pairs).values():
        name = os.path.normpath(ref.written.removeprefix("file://"))
        if folder is None or os.path.isabs(name) or name.startswith(os.pardir):
            return None
        if ref.path == os.path.join(folder, name):
            names[name] = ref.path
        else:  # inside one of the folder's archives
            names.update({path.name: str(path) for path in media.archive_paths})
    return None if ANNOTATIONS in names else names


def check_part(folder: Path, own: Links | None) -> None:
    """Raises DATA_OUTPUT_EXISTS where the folder holds anything that is not of this part."""
    begun = (folder / ANNOTATIONS).exists()
    for above, inner, files in os.walk(folder):
        for name in [*files, *inner]:
            path = Path(above, name)
            expected = (own or {}).get(str(path.relative_to(folder)))
            if not begun or path.is_symlink():
                raise OUTPUT_EXISTS.error(path, "it is there, and is not of this split")
            if name in files and path != folder / ANNOTATIONS and not (expected and os.path.samefile(path, expected)):
                raise OUTPUT_EXISTS.error(path, "it is there, and is no file of this part")


def write_links(parts: Mapping[Path, Links]) -> Problem | None:
    """Makes the hard links that are not there yet; what refuses them, after taking back what was made."""
    created: list[tuple[Path, Path]] = []
    try:
        for folder, own in parts.items():
            for name, file in own.items():
                path = folder / name
                if not path.exists():
                    path.parent.mkdir(parents=True, exist_ok=True)
                    os.link(os.path.realpath(file), path)
                    created.append((path, folder))
    except OSError as refused:
        for link, owner in created:
            remove(link, owner=owner)
        return SPLIT.at(path, f"no link to {file} can be made: {refused.strerror}", UNLINKED, severity="warning")
    return None
