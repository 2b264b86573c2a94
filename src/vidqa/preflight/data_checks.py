"""Data: every annotation is valid, and what is validated on was not trained on."""

from __future__ import annotations

import os

from vidqa.preflight._base import Annotations, Context
from vidqa.preflight.problems import SPLIT_IDS, SPLIT_LEAK
from vidqa.problem import Problem


def records(context: Context) -> list[Problem]:
    for part in context.annotations:
        context.facts[f"{part.name}_records"] = len(part.records)
    return [problem for part in context.annotations for problem in part.problems]


def disjoint(context: Context) -> list[Problem]:
    """Training and validation share no file and no id. An id that is only a number may be a mere position."""
    if len(context.annotations) < 2:
        return []
    train, validation = context.annotations
    problems = []
    if shared := sorted(_files(train) & _files(validation)):
        message = f"{len(shared)} files are in both sets, such as {', '.join(shared[:3])}"
        problems.append(SPLIT_LEAK.at("custom.val_dataset", message))
    ids = {record.id for record in train.records} & {record.id for record in validation.records}
    if named := sorted(name for name in ids if not name.isdigit()):
        message = f"{len(named)} ids are in both sets, such as {', '.join(named[:3])}"
        problems.append(SPLIT_IDS.at("custom.val_dataset", message, severity="warning"))
    return problems


def _files(part: Annotations) -> set[str]:
    keys = {(ref.path, ref.member) for record in part.records for ref in record.media}
    return {os.path.realpath(path) + (f"!{member}" if member else "") for path, member in keys}
