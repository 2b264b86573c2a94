"""Splits of data sets: their syntax, as in Hugging Face's `datasets` (train, train[:100], train[10%:20%],
train+test[-5:]), and the files of a split in a folder: by the files that `save_to_disk` writes, by the card's
`configs`, or by file names.
"""

from __future__ import annotations

import glob
import json
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, NamedTuple

from vidqa.core.files import objects_in
from vidqa.data.hub_card import front_matter
from vidqa.data.problems import SPLIT, missing_file

ONE = re.compile(r"(?P<name>[\w.-]*)(?:\[(?P<low>-?\d{1,18}%?)?:(?P<high>-?\d{1,18}%?)?\])?")
SHARD = re.compile(r"(.+)-\d{5}-of-(\d{5})")  # the hub's names: train-00000-of-00002
ENDINGS = (".parquet", ".arrow", ".jsonl", ".json", ".csv", ".tsv")
OWN = {"dataset_info.json", "state.json", "dataset_dict.json", "dataset_infos.json"}
SPLITS = ("train", "training", "test", "testing", "validation", "valid", "val", "dev", "eval", "evaluation")
NO_SPLITS = ("part", "data", "shard", "default", "annotations")  # file names that do not name a split
MOST_NAMED = 20


class Cut(NamedTuple):
    """Rows of one split: `low` and `high` as they are written, a number or a percentage such as "10%", None if absent.
    `name` is empty for the only split."""

    name: str
    low: str | None
    high: str | None

    def range_of(self, rows: int) -> range:
        """Positions of its rows among `rows`. Percentages are rounded to the nearest row, a half to the even one."""
        return range(rows)[slice(_bound(self.low, rows), _bound(self.high, rows))]

    @property
    def needs_count(self) -> bool:
        """Whether a bound is counted from the end, or is a percentage."""
        return any(bound.startswith("-") or bound.endswith("%") for bound in (self.low, self.high) if bound)


def _bound(written: str | None, rows: int) -> int | None:
    if written is None:
        return None
    if not written.endswith("%"):
        return int(written)
    share = int(written[:-1])
    place = round(abs(share) * rows / 100)
    return max(0, rows - place) if share < 0 else min(rows, place)


def subset_and_cuts(part: str, where: str) -> tuple[str, list[Cut]]:
    """Parse `robovqa:train[:9]+test` -> ("robovqa", two cuts). Raises DATA_SPLIT for a syntax error."""
    subset, _, splits = part.partition(":") if re.match(r"[\w.-]+:", part) else ("", "", part)
    cuts = []
    for written in splits.split("+") if splits else [""]:
        match = ONE.fullmatch(written.strip())
        if match is None:
            example = "train, train[:100], train[10%:20%], train+test, or SUBSET:train"
            raise SPLIT.error(where, f"{part!r} is not a split: write {example}")
        cuts.append(Cut(match["name"], match["low"], match["high"]))
    return subset, cuts


def holds_tables(folder: Path) -> bool:
    """Whether the folder was written by `save_to_disk`, or has parquet or Arrow files where the hub has them."""
    if (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file():
        return True
    patterns = ("*.parquet", "*.arrow", "data/*.parquet", "*/*.parquet", "*/*/*.parquet")
    return any(next(folder.glob(pattern), None) for pattern in patterns)


def files_of(folder: Path, subset: str, split: str) -> list[Path]:
    """The files of one split, in order; without a name, of the only split. Raises DATA_SPLIT, DATA_FILE_MISSING."""
    if folder.is_file():
        require_split_of(folder, subset, split)
        return [folder]
    by_split = _saved(folder / subset) or _files_in_card(folder, subset) or _by_name(folder, subset)
    names = ", ".join(sorted(by_split)[:MOST_NAMED]) or "none"
    if not split and len(by_split) > 1:
        raise SPLIT.error(folder, f"it contains several splits: {names}")
    if not by_split or (split and split not in by_split):
        if subset and not by_split:
            there = ", ".join(_subsets(folder)[:MOST_NAMED]) or "none"
            raise SPLIT.error(folder, f"subset {subset!r} does not exist; there are: {there}")
        what = f"subset {subset!r}, " if subset else ""
        raise SPLIT.error(folder, f"{what}split {split or 'any'!r} does not exist; there are: {names}")
    files = by_split[split] if split else next(iter(by_split.values()))
    if missing := [file for file in files if not file.is_file()]:
        raise missing_file(missing[0], f"state.json lists it, but {len(missing)} of {len(files)} are missing")
    return files


def incomplete(files: list[Path]) -> list[str]:
    """A message for each split whose numbered files are incomplete."""
    counts = Counter((shard[1], int(shard[2])) for file in set(files) if (shard := SHARD.fullmatch(file.stem)))
    missing = sorted((name, count, there) for (name, count), there in counts.items() if there < count)
    return [f"only {there} of {count} files {name}-* exist" for name, count, there in missing]


def require_split_of(file: Path, subset: str, split: str) -> None:
    """Raise DATA_SPLIT if a subset is requested of a single list of rows, or a split other than its own: `train`, as in
    the `datasets` library, or the split in its file name."""
    own = sorted({"train", _split_of(Path(file.name), "")})
    if subset or split not in ("", *own):
        what = f"subset {subset!r}" if subset else f"split {split!r}"
        raise SPLIT.error(file, f"{what} does not exist; the file is one list of rows, the split {' or '.join(own)}")


def _subsets(folder: Path) -> list[str]:
    """Names of the subsets in the card, and of folders with data files."""
    named = [str(config["config_name"]) for config in _configs(folder) if "config_name" in config]
    folders = [inner.name for inner in folder.iterdir() if inner.is_dir() and _by_name(inner, "")]
    return sorted({*named, *folders})


def _saved(folder: Path) -> dict[str, list[Path]]:
    """Files by split as written by `save_to_disk`, of a data set or of several splits."""
    if (folder / "dataset_dict.json").is_file():
        parts = sorted(path.parent for path in folder.glob("*/state.json"))
        return {part.name: _arrow_files(part) for part in parts}
    arrow_files = _arrow_files(folder)
    return {"train": arrow_files} if arrow_files else {}


def _arrow_files(folder: Path) -> list[Path]:
    """The Arrow files that state.json lists, or else all of them, by name."""
    try:
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        return [folder / Path(entry["filename"]).name for entry in state["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return sorted(folder.glob("*.arrow"))


def _files_in_card(folder: Path, subset: str) -> dict[str, list[Path]]:
    """The files of a subset by split, as listed in README.md; empty where it lists none."""
    named = _configs(folder)
    chosen = [config for config in named if not subset or config.get("config_name") == subset]
    if not subset and len(chosen) > 1:
        chosen = [config for config in chosen if config.get("default") or config.get("config_name") == "default"]
        if not chosen:
            names = ", ".join(str(config.get("config_name")) for config in named)
            raise SPLIT.error(folder, f"it has several subsets: {names}", "choose one, such as FOLDER#SUBSET:train")
    if not chosen or "data_files" not in chosen[0]:
        return {}
    files_by_split: dict[str, list[Path]] = defaultdict(list)
    for split, written in _patterns(chosen[0]["data_files"]):
        pattern = Path(str(chosen[0].get("data_dir", ".")), written)
        if ".." not in pattern.parts and not pattern.is_absolute():
            matches = sorted(glob.glob(str(pattern), root_dir=folder, recursive=True))
            if glob.has_magic(str(pattern)):
                matches = [name for name in matches if name.endswith(ENDINGS)]
            files_by_split[split] += [folder / name for name in matches if (folder / name).is_file()]
    return {split: files for split, files in files_by_split.items() if files}


def _patterns(written: Any) -> list[tuple[str, str]]:
    """(split, pattern) pairs of a card entry: a pattern, a list of them, or a list of splits with their patterns."""
    if isinstance(written, str):
        return [("train", written)]
    patterns = []
    for entry in written if isinstance(written, list) else ():
        if isinstance(entry, str):
            patterns.append(("train", entry))
        elif isinstance(entry, dict):
            paths = entry.get("path")
            names = [paths] if isinstance(paths, str) else paths if isinstance(paths, list) else []
            patterns += [(str(entry.get("split", "train")), name) for name in names if isinstance(name, str)]
    return patterns


def _configs(folder: Path) -> list[dict[str, Any]]:
    """The subsets described in the front matter of the folder's README.md."""
    return objects_in(front_matter(folder / "README.md").get("configs"))


def _by_name(folder: Path, subset: str) -> dict[str, list[Path]]:
    """Data files by split: a folder or a part of the file name that names a split, or else the file's stem."""
    inner = folder / subset if subset and (folder / subset).is_dir() else folder
    files = [path for path in sorted(inner.rglob("*")) if path.suffix in ENDINGS and path.name not in OWN]
    files = [path for path in files if not any(part.startswith(".") for part in path.relative_to(inner).parts)]
    if subset and inner == folder:
        files = [path for path in files if subset in re.split(r"[-_.]", path.stem)]
    tables = [path for path in files if path.suffix in (".parquet", ".arrow")]
    files_by_split: dict[str, list[Path]] = defaultdict(list)
    for path in tables or files:
        files_by_split[_split_of(path.relative_to(inner), subset)].append(path)
    return dict(files_by_split)


def _split_of(file: Path, subset: str) -> str:
    shard = SHARD.fullmatch(file.stem)
    stem = shard[1] if shard else file.stem
    words = [stem, *file.parts[:-1], *re.split(r"[-_.]", stem)]
    if split := next((word for word in words if word in SPLITS), None):
        return split
    stem = re.sub(r"[-_.]?\d+$", "", stem.removeprefix(f"{subset}_").removeprefix(f"{subset}-"))
    return stem if stem and stem not in NO_SPLITS else "train"
