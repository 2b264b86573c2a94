"""The samples that a run will use: what the engine keeps of what was planned."""

from __future__ import annotations

from vidqa.planning.samples import Sample
from vidqa.preflight._base import Context


def usable(context: Context, name: str) -> list[Sample]:
    """The samples of a set that fit; of the training set those that also teach something."""
    fitting = [sample for sample in context.planned[name][0] if sample.length <= context.longest_allowed]
    return [sample for sample in fitting if sample.supervised or name != "train"]
