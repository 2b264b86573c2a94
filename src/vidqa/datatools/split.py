"""Split a data set into training and validation by video, stratified and seeded, and write both parts as data sets.

Records that share a video or image, and records that seem to be of one recording, stay in one part (`SplitGroups`).
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vidqa.core.cli import USAGE
from vidqa.core.files import remove
from vidqa.core.problem import Problem
from vidqa.data import fingerprint
from vidqa.data.archive import archive_and_member
from vidqa.data.foreign_rows import is_json
from vidqa.data.load import Pair, load_pairs
from vidqa.data.media import MediaSource
from vidqa.data.problems import OUTPUT_EXISTS
from vidqa.data.problems import SPLIT as DATA_SPLIT
from vidqa.data.record import Record, media_by_key
from vidqa.data.record_groups import drawn_groups, groups_sharing_media, stratified
from vidqa.data.sources import Source, open_source
from vidqa.data.splits import SPLITS
from vidqa.datatools.duplicates import (
    CONTENT,
    SplitGroups,
    answer_class,
    duplicate_problems,
    find_split_groups,
    torn_recordings,
)
from vidqa.datatools.outputs import count_fields, json_list, json_page, left_out, write_new
from vidqa.datatools.problems import SPLIT
from vidqa.datatools.reading import require_media_files

ANNOTATIONS = "annotations.json"
Links = dict[str, str]  # name in the folder of a part -> target file of the link
PARTS = ("train", "val")
PART_NAMES = (*SPLITS, "kpi", "selection")  # names of folders that hold one part of a data set
MAX_STRATA = 40  # listed on the terminal; split.json has all
LINKS_REFUSED = (
    "the parts cannot be used in root mode: use the command that the result names, which gives the media path; for "
    "parts of their own, put --out on the disk of the media, in a folder where you may make links to them"
)
SIZE_TOLERANCE = 0.5  # relative deviation of the validation part from its target size that causes a warning


@dataclass(frozen=True)
class Split:
    """The outcome of a split.

    facts          the content of split.json
    written        false if the same split was there already
    is_rooted      whether each part's folder has its own media, so that the folder alone is a data set
    media_path     the media path of the source, for parts that are not rooted
    groups         records that stay in one part, and why
    """

    facts: dict[str, Any]
    warnings: list[Problem]
    written: bool
    is_rooted: bool
    media_path: str
    groups: SplitGroups


def split_dataset(
    annotation_path: str | Path,
    media_path: str | Path,
    out: Path,
    share: float,
    seed: int,
    stratify: str,
    group_by: str = "",
    *,
    skip_near_duplicates: bool = False,
) -> Split:
    """Write OUT/train/annotations.json, OUT/val/annotations.json, OUT/split.json and OUT/together.json.

    `share` is the fraction of records for validation, `stratify` "kind" or "answer" (see `stratum`); `group_by` and
    `skip_near_duplicates` determine which records stay together (`find_split_groups`). Rows are unchanged, with three
    exceptions: a row without an id gets its position as id, fields that are not JSON (a datetime in a table) are left
    out, and media that were matched by file name are named by path. If all media names are relative to one folder, each
    part gets hard links to its media, and is a complete data set.

    Raises USAGE, DATA_SPLIT, OUTPUT_EXISTS, ENV_DISK_SPACE and every error of the data.
    """
    if not 0 < share < 1:
        raise USAGE.error("--share", f"{share:g} is not between 0 and 1", "give for example 0.1")
    source = open_source(annotation_path, media_path)
    pairs, warnings_read = load_pairs(source)
    groups = find_split_groups(pairs, group_by, skip_near_duplicates=skip_near_duplicates)
    validation = choose_validation([pair.record for pair in pairs], share, seed, stratify, groups.ties)
    parts = {
        "train": [pair for index, pair in enumerate(pairs) if index not in validation],
        "val": [pair for index, pair in enumerate(pairs) if index in validation],
    }
    part_links = {name: media_links(source.media, part) for name, part in parts.items()}
    if source.media.in_tables and None in part_links.values():
        require_media_files(source, annotation_path)
    facts = _facts(source, pairs, parts, share, seed, stratify)
    facts |= {"group_by": group_by, "skip_near_duplicates": skip_near_duplicates, "together": groups.facts()}
    dropped: Counter[str] = Counter()
    files = {out / name / ANNOTATIONS: json_list(_row(pair, dropped) for pair in part) for name, part in parts.items()}
    for name in PARTS:
        check_part(out / name, part_links[name], may_be_copies=source.media.in_tables)
    places = {out / name / link: file for name, links in part_links.items() for link, file in (links or {}).items()}
    written = write_new(
        {**files, out / "split.json": json_page(facts), out / "together.json": json_page(groups.lists())},
        places if source.media.in_tables else {},
    )
    warnings = [*warnings_read, *left_out(dropped, out), *duplicate_problems(groups.named.get(CONTENT, []), CONTENT)]
    warnings += _size_warnings(facts, out)
    if not group_by:
        warnings += torn_recordings({name: [pair.record for pair in part] for name, part in parts.items()}, out)
    is_rooted = all(links is not None for links in part_links.values())
    if is_rooted and (refused := write_links({out / name: part_links[name] or {} for name in PARTS})):
        is_rooted, warnings = False, [*warnings, refused]
    return Split(facts, warnings, written, is_rooted, source.media.root, groups)


def choose_validation(
    records: Sequence[Record], share: float, seed: int, stratify: str, ties: Iterable[Sequence[int]] = ()
) -> set[int]:
    """Indices of the validation records, about `share` of every stratum. Records that share media, and those of one of
    the `ties` (lists of indices), stay in one part. Raises DATA_SPLIT if there is only a single group."""
    shuffled_groups = drawn_groups(records, seed, ties)
    if len(shuffled_groups) < 2:
        reason = "share one video or image" if len(groups_sharing_media(records)) < 2 else "must stay together"
        remedy = "Use at least two videos; if all clips are from one fixed camera, add --skip-near-duplicates."
        raise DATA_SPLIT.error("annotations", f"all {len(records)} records {reason}", remedy)
    return stratified([stratum(record, stratify) for record in records], shuffled_groups, share)


def stratum(record: Record, stratify: str) -> str:
    """The class for stratification: the record's kind, or with `stratify` "answer" its kind and the class of its answer
    (such as yes, no, a number, text)."""
    kind = record.kind or "(no kind)"
    return kind if stratify == "kind" else f"{kind}: {answer_class(record)}"


def _row(pair: Pair, dropped: Counter[str]) -> dict[str, Any]:
    """The row as it was read, without fields that are not JSON; a row without an id gets that of its record."""
    lost = [name for name, value in pair.row.items() if not is_json(value)]
    count_fields(lost, dropped)
    row = {name: value for name, value in pair.row.items() if name not in lost}
    return row if row.get("id") is not None else {**row, "id": pair.record.id}


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


def _size_warnings(facts: dict[str, Any], out: Path) -> list[Problem]:
    counts = {name: facts["parts"][name]["records"] for name in PARTS}
    target = facts["share"] * sum(counts.values())
    if abs(counts["val"] - target) <= max(1.0, SIZE_TOLERANCE * target):
        return []
    message = f"{counts['val']} of {sum(counts.values())} records are in the validation part, the target is {target:g}"
    return [SPLIT.at(out / "split.json", message, severity="warning")]


def media_links(media: MediaSource, pairs: Sequence[Pair]) -> Links | None:
    """The links that make the folder of a part a complete data set; None if a medium has an absolute name or is outside
    the data set's folder.

    A file gets a link of its own; for a member of an archive the whole archive gets one.
    """
    folder = media.folder
    links: Links = {}
    for ref in media_by_key(pair.record for pair in pairs).values():
        name = os.path.normpath(ref.written.removeprefix("file://"))
        if folder is None or os.path.isabs(name) or name.startswith(os.pardir):
            return None
        if ref.path == os.path.join(folder, name):
            links[name] = ref.path
        elif named := archive_and_member(name):
            links[named[0]] = os.path.join(folder, named[0])
        else:  # a member of one of the folder's archives
            links.update({path.name: str(path) for path in media.archive_paths})
    return None if ANNOTATIONS in links else links


def check_part(folder: Path, links: Links | None, *, may_be_copies: bool = False) -> None:
    """Raise OUTPUT_EXISTS if the folder holds anything but an earlier run's annotations and links of this part. With
    `may_be_copies` a file of the same name and size counts as one of these links."""
    was_written = (folder / ANNOTATIONS).exists()
    for parent, subfolders, files in os.walk(folder):
        for name in [*files, *subfolders]:
            path = Path(parent, name)
            expected = (links or {}).get(str(path.relative_to(folder)))
            if not was_written or path.is_symlink():
                raise OUTPUT_EXISTS.error(path, "it exists and does not belong to this split")
            same = os.path.samefile if not may_be_copies else lambda *both: len(set(map(os.path.getsize, both))) == 1
            if name in files and path != folder / ANNOTATIONS and not (expected and same(path, expected)):
                raise OUTPUT_EXISTS.error(path, "it exists and is not a file of this part")


def write_links(parts: Mapping[Path, Links]) -> Problem | None:
    """Make the missing hard links. If the system refuses one, the new links are removed again, and a warning is
    returned."""
    created: list[tuple[Path, Path]] = []
    try:
        for folder, links in parts.items():
            for name, file in links.items():
                path = folder / name
                if os.path.exists(file) and not path.exists():
                    path.parent.mkdir(parents=True, exist_ok=True)
                    os.link(os.path.realpath(file), path)
                    created.append((path, folder))
    except OSError as refused:
        for link, owner in created:
            remove(link, owner=owner)
        return SPLIT.at(path, f"linking to {file} failed: {refused.strerror}", LINKS_REFUSED, severity="warning")
    return None


def table(split: Split) -> str:
    """Format records, media and strata of both parts, and the groups, as text."""
    lines = [f"{'':<28}{'train':>8}{'val':>8}"]
    parts = split.facts["parts"]
    for counted in ("records", "media"):
        lines.append(f"{counted:<28}{parts['train'][counted]:>8}{parts['val'][counted]:>8}")
    for name, counts in list(split.facts["strata"].items())[:MAX_STRATA]:
        lines.append(f"  {name[:25]:<26}{counts['train']:>8}{counts['val']:>8}")
    if len(split.facts["strata"]) > MAX_STRATA:
        lines.append(f"  and {len(split.facts['strata']) - MAX_STRATA} more strata in split.json")
    lines += split.groups.text()
    return "\n".join([*lines, "" if split.written else "nothing new: the same split is there already"]).rstrip()


def part_named(annotations: str) -> str | None:
    """The part of a data set that `annotations` (an address or a path) names: by the split in the address, or by its
    folder's name if split.json or another part is beside that folder. None for a whole data set."""
    address, _, selection = annotations.partition("#") if not os.path.exists(annotations) else (annotations, "", "")
    split = re.match(r"(?:[\w.-]+:)?([\w.-]*)", selection)
    if split and split[1] in PART_NAMES:
        return split[1]
    path = Path(os.path.abspath(address))
    folder = path if path.is_dir() else path.parent
    others = (other for other in PART_NAMES if other != folder.name)
    beside = (folder.parent / "split.json").is_file() or any((folder.parent / other).is_dir() for other in others)
    return folder.name if folder.name in PART_NAMES and beside else None
