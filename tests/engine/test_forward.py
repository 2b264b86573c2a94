"""Our packed forward: packing, recomputing, compiling and neighbours change nothing."""

# ruff: noqa: F811

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from family_conformance import gradient, packed, world  # noqa: F401

from vidqa.engine.data import dataloader
from vidqa.engine.data.collate import Collator
from vidqa.engine.data.dataloader import FEW_BITS, choose_calls
from vidqa.engine.families import family_of
from vidqa.engine.families.qwen_vl_layers import compiled
from vidqa.engine.model.float8 import FLOAT8, use_float8
from vidqa.planning.budget.activation_checkpointing import (
    NO_RECOMPUTE,
    Recompute,
    RecomputedLayers,
    fixed_recompute,
    recompute_path,
)


def test_gradients_of_a_pack_are_those_of_its_samples_one_by_one(world: SimpleNamespace) -> None:
    numbers = list(range(len(world.samples)))

    alone = gradient(world, [[n] for n in numbers])
    together = gradient(world, [numbers])
    assert torch.nn.functional.cosine_similarity(alone, together, dim=0) > 0.999999
    assert (alone - together).norm() / alone.norm() < 1e-5


@pytest.mark.parametrize("share", [False, True])
def test_what_is_computed_again_changes_no_gradient(world: SimpleNamespace, share: bool) -> None:
    numbers = [0, 1, 2, 5, 12, 13]  # two questions about one video, one about each of two, an image and text alone
    kept, ways = gradient(world, [numbers], share=share), recompute_path(world.sizes, vision_trains=True)
    assert ways[0] == NO_RECOMPUTE and ways[-1] == fixed_recompute("all", world.sizes)
    for way in ways[1:]:
        found = gradient(world, [numbers], share=share, recompute=way)
        # Not the same bits: three gradients meet at a layer's input, and are added in another order.
        assert (kept - found).norm() / kept.norm() < 1e-6, str(way)
    assert torch.equal(kept, gradient(world, [numbers], share=share, recompute=ways[-1]))


@pytest.mark.parametrize("backend", ["aot_eager_decomp_partition", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_layers_give_the_gradients_of_eager_ones(
    world: SimpleNamespace, backend: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """The first backend traces and partitions as the second does, and writes no code."""
    groups = [[0, 1], [2, 3, 4], [5]]  # several lengths through the same graphs
    eager = gradient(world, groups)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    request.addfinalizer(compiled.cache_clear)
    compiled.cache_clear()
    # Only the head is tied, which is in no compiled layer: there compiling, which takes long, is tried once.
    tied = world.model.config.tie_word_embeddings
    for recompute in (
        [NO_RECOMPUTE] if tied else [NO_RECOMPUTE, Recompute(RecomputedLayers(2, 1), RecomputedLayers(1, 1))]
    ):
        fused = gradient(world, groups, compile=True, recompute=recompute)
        assert torch.nn.functional.cosine_similarity(eager, fused, dim=0) > 0.999999
        assert (eager - fused).norm() / eager.norm() < 1e-5


@pytest.mark.parametrize("granularity", ["rowwise", "tensorwise"])
def test_products_in_8_bits_are_nearly_those_of_32_and_only_in_training(
    world: SimpleNamespace, granularity: str
) -> None:
    numbers = list(range(len(world.samples)))
    exact, exact_gradient = torch.cat(list(packed(world, numbers).values())), gradient(world, [numbers])
    family = family_of(world.model)
    layers = [m for unit in family.units(world.model) for m in unit.modules() if isinstance(m, torch.nn.Linear)]
    use_float8(family.decoder_units(world.model), granularity)
    try:
        assert torch.equal(torch.cat(list(packed(world, numbers).values())), exact)  # the model is in eval mode
        world.model.train()
        rounded = torch.cat(list(packed(world, numbers).values()))
        assert 1e-4 < (rounded - exact).norm() / exact.norm() < 0.02
        found = gradient(world, [numbers])
        # Qwen2.5-VL's vision tower alone has gated MLPs; its untied model comes to 0.987, the six others to over 0.99.
        least = 0.98 if world.model.config.model_type == "qwen2_5_vl" else 0.99
        assert torch.nn.functional.cosine_similarity(found, exact_gradient, dim=0) > least
        use_float8(family.vision_units(world.model), granularity)
        found, shared = gradient(world, [numbers]), gradient(world, [numbers], share=True)
        # With the vision tower 0.981 to 0.985 and 0.989 to 0.992.
        assert torch.nn.functional.cosine_similarity(found, exact_gradient, dim=0) > least - 0.005
        assert torch.nn.functional.cosine_similarity(found, shared, dim=0) > 0.999
        again = gradient(world, [numbers], recompute=Recompute(RecomputedLayers(2, 1), RecomputedLayers(1, 1)))
        assert torch.nn.functional.cosine_similarity(found, again, dim=0) > 0.999
        assert packed(world, []) == {}  # a rank may have a pack without a sample
    finally:
        world.model.eval()
        for layer in layers:
            vars(layer).pop(FLOAT8, None)


@pytest.mark.slow
def test_compiled_products_in_8_bits_give_the_gradients_of_eager_ones(world: SimpleNamespace) -> None:
    numbers = list(range(len(world.samples)))
    family = family_of(world.model)
    layers = [m for unit in family.units(world.model) for m in unit.modules() if isinstance(m, torch.nn.Linear)]
    use_float8(family.units(world.model), "tensorwise")
    try:
        world.model.train()
        eager = gradient(world, [numbers])
        if not world.model.config.tie_word_embeddings:  # compiling takes a while: once
            fused = gradient(world, [numbers], compile=True)
            assert torch.nn.functional.cosine_similarity(eager, fused, dim=0) > 0.999
    finally:
        world.model.eval()
        for layer in layers:
            vars(layer).pop(FLOAT8, None)


@pytest.mark.parametrize("share", [False, True])
def test_what_attention_will_be_called_with_is_known_beforehand(
    world: SimpleNamespace, share: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    collator = Collator(world.planner, world.sizes.vision, "cpu", share=share)
    packs = [[0, 1, 2, 3], [4, 5], [6, 0, 7, 9], []]

    def of(numbers: list[int], values: list[Any]) -> list[Any]:
        return [values[number] for number in numbers]

    seen: tuple[set, set] = (set(), set())
    for numbers in packs:
        batch = collator(numbers, of(numbers, world.samples), of(numbers, world.frames))
        for calls, segments in zip(seen, (batch.segments, batch.vision.segments), strict=True):
            calls.update(segment[1:] for segment in segments)
    schedule: Any = SimpleNamespace(
        world=SimpleNamespace(device=torch.device("cuda")),
        spec=SimpleNamespace(train=SimpleNamespace(param_dtype="bfloat16")),
        data=SimpleNamespace(train=world.samples),
        total=2,
        packs=[packs[:2], packs[2:]].__getitem__,  # of this rank
    )
    assert [set(calls) for calls in choose_calls(schedule, collator)] == list(seen) and collator.count_bits is None
    monkeypatch.setattr(dataloader, "MOST_SHAPES", 1)
    choose_calls(schedule, collator)
    assert collator.count_bits == FEW_BITS


def test_a_sample_does_not_see_its_neighbours(world: SimpleNamespace) -> None:
    before = packed(world, [0, 1, 2])[0]
    after = packed(world, [0, 3, 5, 7, 9])[0]
    assert torch.allclose(before, after, atol=1e-5)


def test_a_pack_without_media_still_runs_the_vision_tower(world: SimpleNamespace) -> None:
    text_only = [n for n, sample in enumerate(world.samples) if not sample.plans]
    world.model.zero_grad()
    packed(world, text_only)[text_only[0]].sum().backward()
    touched = [p.grad for name, p in world.model.named_parameters() if ".visual." in name]
    assert touched and all(g is not None and not g.any() for g in touched)
    # A pack of no sample at all (fewer samples than ranks) works too.
    forward = family_of(world.model).packed_forward(world.model)
    batch = Collator(world.planner, world.sizes.vision, "cpu")([], [], [])
    assert forward(batch).shape == (0,)
