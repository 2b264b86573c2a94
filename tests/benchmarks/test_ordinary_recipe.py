"""The compared recipe does the work it is said to do: the same samples, and packs in which none sees another."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def records(small: SimpleNamespace) -> list[dict[str, Any]]:
    return json.loads((small.data / "annotations.json").read_text())


def test_the_recipe_sees_the_tokens_that_our_planner_counts(
    small: SimpleNamespace, records: list[dict[str, Any]]
) -> None:
    from processor_batches import COUNTS, PackedCollator, PaddedCollator, planned_lengths

    from vidqa.dataset import load_records
    from vidqa.planning.samples import Planner, Prompting

    lengths = planned_lengths(small.model, small.data, 1.4)
    planner = Planner(small.model, SimpleNamespace(fps=1.4), Prompting())
    samples, _ = planner.plan(load_records(str(small.data / "annotations.json"), str(small.data)))
    expected = {
        "samples": len(samples),
        "tokens": sum(lengths),
        "pairs": sum(length**2 for length in lengths),
        "supervised": sum(sample.supervised for sample in samples),
        "patches": sum(sample.patches for sample in samples),
        "patch_pairs": sum(p.grid[0] * (p.grid[1] * p.grid[2]) ** 2 for s in samples for p in s.plans),
    }
    padded = PaddedCollator(small.model, small.data, 1.4)(records)
    packed = PackedCollator(small.model, small.data, 1.4)([records])
    for batch in (padded, packed):
        assert dict(zip(COUNTS, batch["counts"].tolist(), strict=True)) == expected


def test_a_pack_gives_every_sample_the_loss_it_has_alone(small: SimpleNamespace, records: list[dict[str, Any]]) -> None:
    from packed_attention import install_packed_attention, set_bounds
    from processor_batches import IGNORE, PackedCollator, PaddedCollator
    from transformers import Qwen3VLForConditionalGeneration

    model = Qwen3VLForConditionalGeneration.from_pretrained(small.model, dtype=torch.float32)
    alone, supervised = [], []
    for record in records:
        batch = PaddedCollator(small.model, small.data, 1.4)([record])
        batch.pop("counts")
        supervised.append(int((batch["labels"] != IGNORE).sum()))
        with torch.no_grad():
            alone.append(float(model(**batch).loss))
    install_packed_attention(model)
    batch = PackedCollator(small.model, small.data, 1.4)([records])
    labels, at = batch.pop("labels"), batch.pop("predict_at")
    batch.pop("counts")
    set_bounds(batch.pop("lengths"), torch.device("cpu"))
    with torch.no_grad():
        logits = model(**batch, logits_to_keep=at).logits[0]
    nll = F.cross_entropy(logits, labels[at + 1], reduction="none")
    assert [float(part.mean()) for part in nll.split(supervised)] == pytest.approx(alone, rel=1e-5)
