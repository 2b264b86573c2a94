"""How many samples a training has, whatever kind of source its records come from."""

from __future__ import annotations

from functools import lru_cache
from typing import cast

from vidqa import actions
from vidqa.contract.problem import ProblemError
from vidqa.spec.models import Spec, TrainSpec


def train_samples(spec: Spec) -> int | None:
    """Records that train, without those that `test_size` holds out; None where there are none or they cannot be read
    here. Samples that are too long, or whose media are broken, are found by preflight alone."""
    if not actions.action_for(spec).trains:
        return None
    from vidqa.dataset import open_source  # readers of tables and archives, which most scripts do without

    train_spec = cast(TrainSpec, spec)
    policy, asked = train_spec.train.train_policy, train_spec.custom.train_dataset
    held_out = None if train_spec.custom.val_dataset.annotation_path else policy.dataset.test_size
    try:
        source = open_source(asked.annotation_path, asked.media_path)
        if not source.is_annotated:
            return None
        place = (asked.annotation_path, asked.media_path)
        return _count(*place, held_out or 0, policy.dataloader_seed, source.fingerprint())
    except (ProblemError, OSError):
        return None


@lru_cache(maxsize=64)
def _count(annotations: str, media: str, test_size: int | float, seed: int, fingerprint: str) -> int | None:
    """`fingerprint` is that of the source: a count holds as long as the rows stay. Raises ProblemError."""
    from vidqa.dataset import check_records, open_source, split_by_video
    from vidqa.dataset.findings import Findings

    if not test_size:
        findings = Findings(annotations)
        rows = sum(1 for _ in open_source(annotations, media).rows(findings))
        is_whole = not any(problem.severity == "error" for problem in findings.problems)
        return rows if rows and is_whole else None
    records, _ = check_records(annotations, media, keep_missing=True)
    return len(split_by_video(records, test_size, seed)[0]) or None
