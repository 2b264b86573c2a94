"""What every family of the engine must do, on a tiny model of its own and real clips.

A test module imports the fixture and the tests:  from family_conformance import *
A new family is registered in `vidqa.engine.families.FAMILIES` and named in TINY here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from clips import decode_frames
from tiny_qwen2_5_vl import write_tiny_model as tiny_qwen2_5_vl
from tiny_world import QUESTIONS, tiny_data
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from vidqa.data import load_records
from vidqa.engine.data.collate import Collator, stock_inputs
from vidqa.engine.data.pixels import resize_frames
from vidqa.engine.export.proof import stock_loss
from vidqa.engine.families import FAMILIES, family_of
from vidqa.engine.families.tiny_qwen3_vl import write_tiny_model as tiny_qwen3_vl
from vidqa.planning.budget.activation_checkpointing import NO_RECOMPUTE, Recompute
from vidqa.planning.prefix_sharing import workload
from vidqa.planning.samples import Planner, Prompting
from vidqa.spec.policy_tables import DECODER_PROJECTIONS
from vidqa.video.image import decode_image

__all__ = [
    "test_adapters_find_linear_layers",
    "test_flops_are_those_of_the_products",
    "test_gradients_are_those_of_stock_transformers",
    "test_packed_samples_have_the_loss_of_stock_transformers",
    "test_rope_positions_are_those_of_transformers",
    "test_shard_units_and_root_are_the_whole_model",
    "test_shared_videos_change_no_loss_and_no_gradient",
    "world",
]
TINY: dict[str, Callable[..., Path]] = {"qwen3_vl": tiny_qwen3_vl, "qwen2_5_vl": tiny_qwen2_5_vl}
CASES = [(family, tie) for family in FAMILIES for tie in (False, True)]


@pytest.fixture(
    scope="module", params=CASES, ids=[f"{f.tables.name}-{'tied' if tie else 'untied'}" for f, tie in CASES]
)
def world(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> SimpleNamespace:
    family, tie = request.param
    folder = tmp_path_factory.mktemp("family")
    model_folder = TINY[family.tables.name](folder / "model", [text for pair in QUESTIONS for text in pair], tie=tie)
    root = tiny_data(folder)
    planner = Planner(model_folder, SimpleNamespace(fps=None, nframes=5, total_pixels=None), Prompting("Be brief."))
    samples, problems = planner.plan(load_records(root / "annotations.json", root))
    assert not problems
    frames = [[_frames(ref, plan) for ref, plan in zip(s.record.media, s.plans, strict=True)] for s in samples]
    model = family.model_class.from_pretrained(model_folder, dtype=torch.float32).eval()
    assert family_of(model) is family and planner.family is family.tables
    sizes = planner.family.sizes_of(model_folder)
    return SimpleNamespace(family=family, model=model, planner=planner, sizes=sizes, samples=samples, frames=frames)


def _frames(ref, plan) -> np.ndarray:
    pixels = decode_image(ref.path)[None] if ref.kind == "image" else decode_frames(ref.path, None, plan.indices)
    return resize_frames(pixels.reshape(-1, *pixels.shape[-3:]), plan.height, plan.width)


def packed(
    world: SimpleNamespace,
    numbers: list[int],
    *,
    recompute: Recompute = NO_RECOMPUTE,
    compile: bool = False,
    share: bool = False,
    align: int = 8,
) -> dict[int, torch.Tensor]:
    """nll of every sample, by number, from one packed forward."""
    forward = world.family.packed_forward(world.model, recompute=recompute, compile=compile)
    collator = Collator(world.planner, world.sizes.vision, "cpu", share=share)
    collator.padded = lambda length: -(-length // align) * align
    batch = collator(numbers, [world.samples[i] for i in numbers], [world.frames[i] for i in numbers])
    nll = forward(batch)
    return {number: nll[batch.owner_N == place] for place, number in enumerate(batch.samples)}


def gradient(world: SimpleNamespace, groups: list[list[int]], **how: object) -> torch.Tensor:
    world.model.zero_grad()
    for group in groups:
        torch.cat(list(packed(world, group, **how).values())).sum().backward()
    return torch.cat([p.grad.flatten() for p in world.model.parameters()])


@pytest.mark.parametrize("align", [1, 8, 64])
def test_packed_samples_have_the_loss_of_stock_transformers(world: SimpleNamespace, align: int) -> None:
    found = packed(world, list(range(len(world.samples))), align=align)
    for number, sample in enumerate(world.samples):
        expected = stock_loss(world.model, world.planner, sample, world.frames[number])
        assert found[number].mean().item() == pytest.approx(expected, rel=1e-5), sample.record.id


def test_gradients_are_those_of_stock_transformers(world: SimpleNamespace) -> None:
    numbers = list(range(len(world.samples)))
    ours = gradient(world, [numbers])
    world.model.zero_grad()
    for sample, frames in zip(world.samples, world.frames, strict=True):
        encoded = world.planner.encode(sample)
        inputs = stock_inputs(world.planner, [encoded.token_ids], [sample.plans], [frames], torch.device("cpu"))
        at = torch.from_numpy(np.flatnonzero(encoded.supervised))
        logits = world.model(**inputs, use_cache=False).logits[0, at - 1]
        torch.nn.functional.cross_entropy(logits, inputs["input_ids"][0, at], reduction="sum").backward()
    theirs = torch.cat([p.grad.flatten() for p in world.model.parameters()])
    assert (ours - theirs).norm() / theirs.norm() < 1e-5


def test_shared_videos_change_no_loss_and_no_gradient(world: SimpleNamespace) -> None:
    numbers = list(range(len(world.samples)))
    alone, shared = packed(world, numbers), packed(world, numbers, share=True)
    for number in numbers:
        assert torch.allclose(alone[number], shared[number], rtol=1e-5, atol=1e-5)
    # A pack of two questions about each of six videos holds each video once.
    collator = Collator(world.planner, world.sizes.vision, "cpu", share=True)
    batch = collator(numbers, world.samples, world.frames)
    assert batch.suffixes is not None and len(batch.suffixes.lengths) == 12
    videos = sum(plan.tokens for sample in world.samples for plan in sample.plans if plan.kind == "video")
    assert len(batch.visual_at_V) == sum(sample.media_tokens for sample in world.samples) - videos // 2
    plain, together = gradient(world, [numbers]), gradient(world, [numbers], share=True)
    assert torch.nn.functional.cosine_similarity(plain, together, dim=0) > 0.999999
    assert (plain - together).norm() / plain.norm() < 1e-5


def test_shard_units_and_root_are_the_whole_model(world: SimpleNamespace) -> None:
    """Parameters, their shapes and their units are those that memory is estimated from without torch."""
    names = {id(module): name for name, module in world.model.named_modules()}
    units = {names[id(unit)] for unit in world.family.units(world.model)}
    assert len(units) == len(world.family.units(world.model))
    expected = {tensor.name: (tensor.shape, tensor.unit) for tensor in world.planner.family.tensors(world.sizes)}
    assert {unit for _, unit in expected.values()} - {""} == units
    found = {
        name: (tuple(p.shape), next((unit for unit in units if name.startswith(f"{unit}.")), ""))
        for name, p in world.model.named_parameters()
    }
    assert found == expected
    tower = {id(p) for p in world.family.vision(world.model).parameters()}
    inside = {id(p) for block in world.family.vision_units(world.model) for p in block.parameters()}
    assert inside < tower and len(world.family.trained_vision(world.model)) == len(tower)
    parameters = dict(world.model.named_parameters(remove_duplicate=False))
    tied = parameters[world.family.embeddings] is parameters[world.family.head]
    assert tied == world.model.config.tie_word_embeddings


def test_adapters_find_linear_layers(world: SimpleNamespace) -> None:
    """The modules that LoRA may stand on by name, and by "all-linear"."""
    linear = {name for name, module in world.model.named_modules() if isinstance(module, nn.Linear)}
    weights = {t.name for t in world.planner.family.tensors(world.sizes) if t.linear and t.name.endswith(".weight")}
    assert {f"{name}.weight" for name in linear} == weights | {world.family.head}
    for target in (*DECODER_PROJECTIONS, "attn.qkv", "attn.proj"):
        assert any(name.endswith(f".{target}") for name in linear), target


def test_flops_are_those_of_the_products(world: SimpleNamespace) -> None:
    """What PyTorch counts in a forward pass of one sample without padding; a step counts it three times."""
    flops = world.family.flops(world.model.config, vision_trains=True, decoder_trains=True)
    for number in (0, 7):
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            packed(world, [number], align=1)
        found = flops.training_flops([workload((number,), world.samples)], halved=False)
        assert found > 0 and found == pytest.approx(3 * counter.get_total_flops())
    frozen = world.family.flops(world.model.config, vision_trains=False, decoder_trains=False)
    assert 0 < frozen.per_token < flops.per_token and 0 < frozen.per_patch < flops.per_patch
    adapters = world.family.flops(world.model.config, vision_trains=True, decoder_trains=False)
    assert adapters.per_patch == pytest.approx(flops.per_patch * 2 / 3)  # no weight gradients of the base
    assert (adapters.per_patch_pair, adapters.per_window_pair) == (flops.per_patch_pair, flops.per_window_pair)


def test_rope_positions_are_those_of_transformers(world: SimpleNamespace) -> None:
    image_id, video_id = (world.planner.chat.slot_ids[kind] for kind in ("image", "video"))
    theirs = world.model.model.get_rope_index
    for sample, frames in zip(world.samples, world.frames, strict=True):
        prompt = world.planner.encode(sample).token_ids
        inputs = stock_inputs(world.planner, [prompt], [sample.plans], [frames], torch.device("cpu"))
        known = inspect.signature(theirs).parameters
        expected, _ = theirs(**{name: value for name, value in inputs.items() if name in known})
        ids = inputs["input_ids"][0].numpy()
        found = world.planner.family.rope_positions(ids, image_id, video_id, sample.plans, world.planner.geometry)
        assert (found == expected[:, 0].numpy()).all(), sample.record.id
