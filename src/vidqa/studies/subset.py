"""The records of a study by what they are for, as annotation files of its own: held out, all others, a share of these.

A training holds out records by the seed of its data's order. Re-runs have other seeds, and have to be measured on what
the search was measured on; so they read the two parts from files. Trials may learn from a share of the training videos:
they are cheaper, and the best are trained again with all. Whole videos are drawn, by a fixed seed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vidqa.contract.files import write_text
from vidqa.contract.problem import ProblemError
from vidqa.dataset.load import Pair, load_pairs
from vidqa.dataset.record import Record
from vidqa.dataset.sources import open_source
from vidqa.dataset.video_split import drawn_groups, split_by_video
from vidqa.spec import TrainSpec
from vidqa.studies.study_problems import STUDY_SETTINGS

SEED = 0
FOLDER, SHARE, ALL, HELD_OUT = "data", "share.json", "all.json", "held_out.json"


def write(folder: Path, base: TrainSpec, share: float | None) -> None:
    """Write the parts that the study needs. Without a share, data that cannot be split here stay as they are: preflight
    says what is wrong with them, and re-runs hold out records of their own.

    Raises STUDY_SETTINGS where no file can hold a share, what reading the records raises, OSError."""
    try:
        _write_parts(folder / FOLDER, base, share)
    except ProblemError:
        if share is not None:
            raise


def of_trials(folder: Path, base: TrainSpec) -> dict[str, Any]:
    """What the spec of a trial has otherwise than the template's, where it learns from a share."""
    return _changes(folder / FOLDER, base, SHARE)


def of_reruns(folder: Path, base: TrainSpec) -> dict[str, Any]:
    """What the spec of a re-run has otherwise; nothing where the template has a validation set of its own."""
    return _changes(folder / FOLDER, base, ALL)


def _changes(folder: Path, base: TrainSpec, part: str) -> dict[str, Any]:
    if not (folder / part).is_file():
        return {}
    asked = base.custom.train_dataset
    media = str(open_source(asked.annotation_path, asked.media_path).media.root)
    made = {"custom.train_dataset.annotation_path": str(folder / part), "custom.train_dataset.media_path": media}
    if (held := folder / HELD_OUT).is_file():
        made |= {"custom.val_dataset.annotation_path": str(held), "custom.val_dataset.media_path": media}
        return {**made, "train.train_policy.dataset.test_size": None}
    return made


def _write_parts(folder: Path, base: TrainSpec, share: float | None) -> None:
    asked, policy = base.custom.train_dataset, base.train.train_policy
    splits = bool(policy.dataset.test_size) and not base.custom.val_dataset.annotation_path
    if not splits and share is None:
        return
    if base.custom.loader:
        raise STUDY_SETTINGS.error("data_share", "the records come from a function (custom.loader), not from a file")
    pairs, _ = load_pairs(open_source(asked.annotation_path, asked.media_path))
    trains, held = [pair.record for pair in pairs], list[Record]()
    if splits and policy.dataset.test_size:
        trains, held = split_by_video(trains, policy.dataset.test_size, policy.dataloader_seed)
        _write(folder / ALL, pairs, (record.id for record in trains))
        _write(folder / HELD_OUT, pairs, (record.id for record in held))
    if share is not None:
        _write(folder / SHARE, pairs, (trains[at].id for at in _drawn(trains, share)))


def _drawn(records: list[Record], share: float) -> list[int]:
    """Indices of about this share of the records: whole groups that share a video, at least one."""
    chosen: list[int] = []
    for group in drawn_groups(records, SEED):
        if chosen and len(chosen) + len(group) > share * len(records):
            continue
        chosen += group
    return sorted(chosen)


def _write(path: Path, pairs: list[Pair], ids: Iterable[str]) -> None:
    wanted = set(ids)
    rows = [{**pair.row, "id": pair.record.id} for pair in pairs if pair.record.id in wanted]
    try:
        text = json.dumps(rows, ensure_ascii=False, indent=0)
    except TypeError as wrong:
        raise STUDY_SETTINGS.error("data_share", f"a row of the annotations is not for a JSON file: {wrong}") from wrong
    write_text(path, text + "\n")
