"""Annotation files of a study: the held-out records, all others, and a share of these.

A training holds out records by its data seed. Re-runs have other seeds but must be measured on the same records as the
search, so they read both parts from files. Trials may train on a share of the videos, drawn by a fixed seed; the best
are retrained with all.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from vidqa.automl.problems import STUDY_SETTINGS
from vidqa.core.files import remove, write_text
from vidqa.core.problem import ProblemError
from vidqa.data.load import Pair, load_pairs
from vidqa.data.record import Record
from vidqa.data.record_groups import drawn_groups, split_by_video
from vidqa.data.sources import open_source
from vidqa.spec import TrainSpec

SEED = 0
FOLDER, SHARE, ALL, HELD_OUT = "data", "share.json", "all.json", "held_out.json"


def write(folder: Path, base: TrainSpec, share: float | None) -> None:
    """Write the parts that the study needs. Without a share, data that cannot be split stay as they are: preflight
    reports them, and re-runs hold out other records. Raises STUDY_SETTINGS if no file can hold a share, the problems of
    reading the records, OSError."""
    remove(folder / FOLDER, owner=folder)  # from an earlier plan, with a split of other data
    with nullcontext() if share is not None else suppress(ProblemError):
        _write_parts(folder / FOLDER, base, share)


def data_changes(folder: Path, base: TrainSpec, part: str) -> dict[str, Any]:
    """Changes of the template for trials (part SHARE) or re-runs (ALL); empty if the study has no such file."""
    path, held_out = folder / FOLDER / part, folder / FOLDER / HELD_OUT
    if not path.is_file():
        return {}
    train = base.custom.train_dataset
    media = str(open_source(train.annotation_path, train.media_path).media.root)
    changes = {"custom.train_dataset.annotation_path": str(path), "custom.train_dataset.media_path": media}
    if held_out.is_file():
        changes |= {"custom.val_dataset.annotation_path": str(held_out), "custom.val_dataset.media_path": media}
        return {**changes, "train.train_policy.dataset.test_size": None}
    return changes


def _write_parts(folder: Path, base: TrainSpec, share: float | None) -> None:
    train, policy = base.custom.train_dataset, base.train.train_policy
    splits = bool(policy.dataset.test_size) and not base.custom.val_dataset.annotation_path
    if not splits and share is None:
        return
    if base.custom.loader:
        raise STUDY_SETTINGS.error("data_share", "the records come from a function (custom.loader), not from a file")
    pairs, _ = load_pairs(open_source(train.annotation_path, train.media_path))
    records = [pair.record for pair in pairs]
    if splits and policy.dataset.test_size:
        records, held_out = split_by_video(records, policy.dataset.test_size, policy.dataloader_seed)
        _write(folder / ALL, pairs, (record.id for record in records))
        _write(folder / HELD_OUT, pairs, (record.id for record in held_out))
    if share is not None:
        _write(folder / SHARE, pairs, (records[index].id for index in _drawn(records, share)))


def _drawn(records: list[Record], share: float) -> list[int]:
    """Indices of about this share of the records: whole groups with a common video, at least one."""
    chosen: list[int] = []
    for group in drawn_groups(records, SEED):
        if not chosen or len(chosen) + len(group) <= share * len(records):
            chosen += group
    return sorted(chosen)


def _write(path: Path, pairs: list[Pair], ids: Iterable[str]) -> None:
    selected = set(ids)
    rows = [{**pair.row, "id": pair.record.id} for pair in pairs if pair.record.id in selected]
    try:
        text = json.dumps(rows, ensure_ascii=False, indent=0)
    except TypeError as wrong:
        raise STUDY_SETTINGS.error("data_share", f"an annotation row cannot be written as JSON: {wrong}") from wrong
    write_text(path, text + "\n")
