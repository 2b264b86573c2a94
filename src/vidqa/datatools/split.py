"""Splits a data set into training and validation by video, stratified and seeded, and writes both as data sets."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vidqa.data import fingerprint
from vidqa.data.record import Record
from vidqa.data.split import draw_of, groups_sharing_media
from vidqa.datatools.duplicates import answer_class, same_content, same_content_problems
from vidqa.datatools.outputs import json_list, json_page, write_new
from vidqa.datatools.problems import OUTPUT_EXISTS, OUTPUT_UNWRITABLE, SHARE, SPLIT_OFF, SPLIT_ONE_VIDEO
from vidqa.datatools.rows import Annotated, Pair, read_annotated
from vidqa.files import write_link
from vidqa.problem import Problem

STRATIFY = ("kind", "answer")
PARTS = ("train", "val")
MOST_STRATA = 40  # listed in the result; split.json has all
OFF_BY = 0.5  # a validation part this much smaller or larger than asked for is worth a warning


@dataclass(frozen=True)
class Split:
    """What became of a split. `roots` tells whether the two folders can be used in root mode."""

    facts: dict[str, Any]
    warnings: list[Problem]
    written: bool
    roots: bool
    media_path: str


def split_dataset(
    annotation_path: str | Path, media_path: str | Path, out: Path, share: float, seed: int, stratify: str
) -> Split:
    """Write OUT/train/annotations.json, OUT/val/annotations.json and OUT/split.json.

    The rows are those of the file, unchanged; one without an id is given the one it had by its place. Where all media
    are named relative to a folder, links beside the annotations lead to them, and each part is a data set of its own.
    Raises DATATOOLS_SHARE, DATATOOLS_SPLIT_ONE_VIDEO, DATATOOLS_OUTPUT_* and everything that is wrong with the data.
    """
    if not 0 < share < 1:
        raise SHARE.error("--share", f"{share:g} is not between 0 and 1")
    read = read_annotated(annotation_path, media_path)
    records = [pair.record for pair in read.pairs]
    copies = same_content({medium.key: medium for record in records for medium in record.media}.values())
    chosen = choose(as_one_file(records, copies), share, seed, stratify)
    parts = {
        "train": [pair for at, pair in enumerate(read.pairs) if at not in chosen],
        "val": [pair for at, pair in enumerate(read.pairs) if at in chosen],
    }
    links = _links(read)
    facts = _facts(read, parts, share, seed, stratify)
    files = {out / name / "annotations.json": json_list(map(_row, pairs)) for name, pairs in parts.items()}
    _check_links(out, links or {})
    written = write_new({**files, out / "split.json": json_page(facts)})
    _write_links(out, links or {})
    warnings = [*read.warnings, *same_content_problems(copies), *_off(facts, out)]
    return Split(facts, warnings, written, links is not None, read.media_path)


def as_one_file(records: Sequence[Record], copies: Sequence[Sequence[str]]) -> list[Record]:
    """The records as if media of the same content, given by their keys, were one file."""
    first = {key: group[0] for group in copies for key in group}
    if not first:
        return list(records)
    by_key = {medium.key: medium for record in records for medium in record.media}
    return [
        replace(record, media=tuple(by_key[first.get(medium.key, medium.key)] for medium in record.media))
        for record in records
    ]


def choose(records: Sequence[Record], share: float, seed: int, stratify: str) -> set[int]:
    """Indices of the validation records: whole groups that share media, near `share` of every stratum.

    Groups are gone through in an order drawn from the seed and their ids. One is taken when that brings the counts of
    the strata nearer to what they should be. At least one group is taken and one left.
    """
    groups = groups_sharing_media(records)
    if len(groups) < 2:
        raise SPLIT_ONE_VIDEO.error("annotations", f"all {len(records)} records share one video or image")
    strata = [stratum(record, stratify) for record in records]
    targets = {name: share * count for name, count in Counter(strata).items()}
    drawn = sorted(groups, key=lambda group: draw_of(seed, min(records[at].id for at in group)))
    counted = [Counter(strata[at] for at in group) for group in drawn]
    taken: Counter[str] = Counter()
    chosen: list[list[int]] = []
    for group, counts in zip(drawn, counted, strict=True):
        if _gain(counts, taken, targets) > 0 and len(chosen) < len(drawn) - 1:
            chosen.append(group)
            taken.update(counts)
    if not chosen:  # every group is too large: the one that does the least harm
        best = max(range(len(drawn)), key=lambda at: _gain(counted[at], taken, targets))
        chosen.append(drawn[best])
    return {at for group in chosen for at in group}


def _gain(counts: Counter[str], taken: Counter[str], targets: dict[str, float]) -> float:
    """How much nearer the strata come to their targets with these records: squared distances, rare strata as heavy."""
    return math.fsum(  # exact, so that the order of the records decides nothing
        ((taken[name] - targets[name]) ** 2 - (taken[name] + count - targets[name]) ** 2) / targets[name]
        for name, count in counts.items()
    )


def stratum(record: Record, stratify: str) -> str:
    """What must be spread evenly: the record's kind, or its kind and what its answer comes to."""
    kind = record.kind or "(no kind)"
    return kind if stratify == "kind" else f"{kind}: {answer_class(record)}"


def _row(pair: Pair) -> dict[str, Any]:
    return pair.row if pair.row.get("id") is not None else {**pair.row, "id": pair.record.id}


def _facts(read: Annotated, parts: dict[str, list[Pair]], share: float, seed: int, stratify: str) -> dict[str, Any]:
    """The content of split.json."""
    records = {name: [pair.record for pair in pairs] for name, pairs in parts.items()}
    strata = {name: Counter(stratum(record, stratify) for record in part) for name, part in records.items()}
    return {
        "annotations": str(read.path),
        "media_path": read.media_path,
        "share": share,
        "seed": seed,
        "stratify": stratify,
        "fingerprint": fingerprint(pair.record for pair in read.pairs),
        "parts": {
            name: {
                "records": len(part),
                "media": len({medium.key for record in part for medium in record.media}),
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
    wanted = facts["share"] * sum(counts.values())
    if abs(counts["val"] - wanted) <= max(1.0, OFF_BY * wanted):
        return []
    message = f"{counts['val']} of {sum(counts.values())} records are in the validation part, {wanted:g} were wanted"
    return [SPLIT_OFF.at(out / "split.json", message, severity="warning")]


def _links(read: Annotated) -> dict[str, Path] | None:
    """Names beside the annotations and what they lead to; None where some medium could not be reached in that way."""
    folder = read.source.folder
    links: dict[str, Path] = {}
    for ref in {medium.key: medium for pair in read.pairs for medium in pair.record.media}.values():
        name = os.path.normpath(ref.written.removeprefix("file://"))
        if folder is None or os.path.isabs(name) or name.startswith(os.pardir):
            return None
        if ref.path == os.path.join(folder, name):
            first = name.split(os.sep, 1)[0]
            links[first] = Path(folder) / first
        else:  # inside one of the folder's archives
            links.update({path.name: path for path in read.source.archive_paths})
    return links


def _check_links(out: Path, links: dict[str, Path]) -> None:
    for place, target in _placed(out, links):
        if os.path.lexists(place) and not (place.is_symlink() and os.readlink(place) == str(target)):
            raise OUTPUT_EXISTS.error(place, f"it is there, and is not a link to {target}")


def _write_links(out: Path, links: dict[str, Path]) -> None:
    for place, target in _placed(out, links):
        if not place.is_symlink():
            try:
                write_link(place, str(target))
            except OSError as refused:
                raise OUTPUT_UNWRITABLE.error(place, f"no link can be made: {refused.strerror}") from refused


def _placed(out: Path, links: dict[str, Path]) -> list[tuple[Path, Path]]:
    return [(out / part / name, target) for part in PARTS for name, target in sorted(links.items())]


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
    return "\n".join([*lines, "" if split.written else "nothing new: the same split is there already"]).rstrip()
