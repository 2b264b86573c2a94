"""The keys of a spec as dotted paths: listing them, finding one, and naming the nearest known ones."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, get_args

from pydantic.fields import FieldInfo

from vidqa.spec._field import Table
from vidqa.spec.models import SPECS

SHORTHAND = {
    "train": {
        "dp_shard_size": "policy.parallelism.dp_shard_size",
        "dp_replicate_size": "policy.parallelism.dp_replicate_size",
        "num_epochs": "train.epoch",
        "batch_size": "train.train_batch_per_replica",
        "learning_rate": "train.optm_lr",
        "mini_batch": "train.train_policy.mini_batch",
        "weight_decay": "train.optm_weight_decay",
        "warmup_epochs": "train.optm_warmup_epochs",
    },
    "evaluate": {},
}


def table_of(field: FieldInfo) -> type[Table] | None:
    """The table class that a field holds, also where it may be absent; None for a leaf."""
    for kind in (field.annotation, *get_args(field.annotation)):
        if isinstance(kind, type) and issubclass(kind, Table):
            return kind
    return None


def _walk(cls: type[Table], prefix: str) -> Iterator[tuple[str, FieldInfo]]:
    for name, field in cls.model_fields.items():
        inner = table_of(field)
        if inner is None:
            yield prefix + name, field
        else:
            yield from _walk(inner, f"{prefix}{name}.")


@cache
def leaves(action: str) -> Mapping[str, FieldInfo]:
    """Every key of an action's spec, by dotted path, in the order of the models."""
    return dict(_walk(SPECS[action], ""))


def flat(spec: Table) -> dict[str, Any]:
    """Every key of a validated spec with its value; a table that is absent is one key with None."""
    found: dict[str, Any] = {}

    def visit(part: Table, prefix: str) -> None:
        for name in type(part).model_fields:
            value = getattr(part, name)
            if isinstance(value, Table):
                visit(value, f"{prefix}{name}.")
            else:
                found[prefix + name] = value

    visit(spec, "")
    return found


def nearest(action: str, path: str) -> list[str]:
    """Up to three known keys that look like `path`: whole path first, then the last name alone."""
    known = [*leaves(action), *SHORTHAND[action]]
    close = difflib.get_close_matches(path, known, n=3, cutoff=0.75)
    last = path.rsplit(".", 1)[-1]
    same = [name for name in known if name.rsplit(".", 1)[-1] == last]
    by_last = difflib.get_close_matches(last, {name.rsplit(".", 1)[-1] for name in known}, n=2, cutoff=0.7)
    like = [name for end in by_last for name in known if name.rsplit(".", 1)[-1] == end]
    return list(dict.fromkeys([*same, *close, *like]))[:3]
