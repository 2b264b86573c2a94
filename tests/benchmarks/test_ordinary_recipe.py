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

    from vidqa.data import load_records
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


@pytest.mark.parametrize("rows", [1, 7, 1000])
def test_the_fused_head_has_the_loss_and_gradients_of_cross_entropy(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    import careful

    monkeypatch.setattr(careful, "ROWS_AT_ONCE", rows)
    torch.manual_seed(0)
    hidden, weight = torch.randn(20, 16), torch.randn(50, 16)
    target, found = torch.randint(50, (20,)), []
    for fused in (True, False):
        leaves = [part.clone().requires_grad_() for part in (hidden, weight)]
        if fused:
            loss = careful.LinearCrossEntropy.apply(*leaves, target) / 20
        else:
            loss = F.cross_entropy(leaves[0] @ leaves[1].T, target)
        loss.backward()
        found.append([loss.detach(), *(leaf.grad for leaf in leaves)])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_the_careful_recipe_has_the_loss_and_gradients_of_the_plain_one(
    small: SimpleNamespace, records: list[dict[str, Any]]
) -> None:
    """Plain: samples padded to one batch. Careful: the same in one pack, with fused parts."""
    from careful import install_fused_parts
    from packed_attention import install_packed_attention, set_bounds
    from processor_batches import IGNORE, PackedCollator, PaddedCollator
    from transformers import Qwen3VLForConditionalGeneration

    def model() -> Any:
        return Qwen3VLForConditionalGeneration.from_pretrained(small.model, dtype=torch.float32)

    plain, careful = model(), model()
    padded = PaddedCollator(small.model, small.data, 1.4)(records)
    padded.pop("counts")
    theirs = plain(**padded).loss
    theirs.backward()
    install_packed_attention(careful)
    install_fused_parts(careful, compiled=False)
    batch = PackedCollator(small.model, small.data, 1.4)([records])
    labels, at = batch.pop("labels"), batch.pop("predict_at")
    batch.pop("counts")
    set_bounds(batch.pop("lengths"), torch.device("cpu"))
    ours = careful(**batch, predict_at=at, targets=labels[at + 1]) / (padded["labels"] != IGNORE).sum()
    ours.backward()
    assert float(ours) == pytest.approx(float(theirs), rel=1e-6)
    expected = dict(plain.named_parameters())
    for name, parameter in careful.named_parameters():
        apart = (parameter.grad - expected[name].grad).norm() / expected[name].grad.norm()
        assert apart < 1e-4, name
