"""Our packed forward equals transformers' own, sample by sample; packing changes nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tiny_world import tiny_data, tiny_model
from transformers import Qwen3VLForConditionalGeneration

from vidqa.dataset import load_records
from vidqa.engine.batch.collate import Collator
from vidqa.engine.batch.resize import resize_frames
from vidqa.engine.exports.proof import stock_loss
from vidqa.engine.model import ahead
from vidqa.engine.model.ahead import FEW_DIGITS, choose_calls
from vidqa.engine.model.float8 import use_float8
from vidqa.engine.model.qwen3_vl import install_forward, stock_forward
from vidqa.planning.samples import Planner, Prompting
from vidqa.video import decode_frames, decode_image


@pytest.fixture(scope="module", params=[False, True], ids=["untied", "tied"])
def world(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> SimpleNamespace:
    folder = tmp_path_factory.mktemp("forward")
    model_folder, root = tiny_model(folder, tie=request.param), tiny_data(folder)
    planner = Planner(model_folder, SimpleNamespace(fps=None, nframes=5, total_pixels=None), Prompting("Be brief."))
    samples, problems = planner.plan(load_records(root / "annotations.json", root))
    assert not problems
    frames = [[_frames(ref, plan) for ref, plan in zip(s.record.media, s.plans, strict=True)] for s in samples]
    model = Qwen3VLForConditionalGeneration.from_pretrained(model_folder, dtype=torch.float32).eval()
    sizes = planner.family.sizes_of(model_folder)
    return SimpleNamespace(model=model, planner=planner, sizes=sizes, samples=samples, frames=frames)


def _frames(ref, plan) -> np.ndarray:
    whole = decode_image(ref.path)[None] if ref.kind == "image" else decode_frames(ref.path, None, plan.indices)
    return resize_frames(whole.reshape(-1, *whole.shape[-3:]), plan.height, plan.width)


def _packed(
    world: SimpleNamespace,
    numbers: list[int],
    *,
    recompute: str = "none",
    compile: bool = False,
    share: bool = False,
    align: int = 8,
) -> dict[int, torch.Tensor]:
    """nll of every sample, by number, from one packed forward."""
    install_forward(world.model, recompute=recompute, compile=compile)
    collator = Collator(world.planner, world.sizes.vision, "cpu", share=share)
    collator.padded = lambda length: -(-length // align) * align
    batch = collator(numbers, [world.samples[i] for i in numbers], [world.frames[i] for i in numbers])
    nll = world.model(batch)
    return {number: nll[batch.owner_N == place] for place, number in enumerate(batch.samples)}


@pytest.mark.parametrize("align", [1, 8, 64])
def test_every_sample_of_a_pack_has_the_loss_of_stock_transformers(world: SimpleNamespace, align: int) -> None:
    packed = _packed(world, list(range(len(world.samples))), align=align)
    with stock_forward(world.model):
        for number, sample in enumerate(world.samples):
            expected = stock_loss(world.model, world.planner, sample, world.frames[number])
            assert packed[number].mean().item() == pytest.approx(expected, rel=1e-5), sample.record.id


def test_gradients_of_a_pack_are_those_of_its_samples_one_by_one(world: SimpleNamespace) -> None:
    numbers = list(range(len(world.samples)))

    alone = _gradient(world, [[n] for n in numbers])
    together = _gradient(world, [numbers])
    assert torch.nn.functional.cosine_similarity(alone, together, dim=0) > 0.999999
    assert (alone - together).norm() / alone.norm() < 1e-5
    assert torch.equal(together, _gradient(world, [numbers], recompute="all"))
    assert torch.equal(together, _gradient(world, [numbers], recompute="vision"))


def _gradient(world: SimpleNamespace, groups: list[list[int]], **how: object) -> torch.Tensor:
    world.model.zero_grad()
    for group in groups:
        torch.cat(list(_packed(world, group, **how).values())).sum().backward()
    return torch.cat([p.grad.flatten() for p in world.model.parameters()])


def test_compiled_layers_give_the_gradients_of_eager_ones(world: SimpleNamespace) -> None:
    groups = [[0, 1], [2, 3, 4], [5]]  # several lengths through the same graphs
    eager, fused = _gradient(world, groups), _gradient(world, groups, compile=True)
    assert torch.nn.functional.cosine_similarity(eager, fused, dim=0) > 0.999999
    assert (eager - fused).norm() / eager.norm() < 1e-5


@pytest.mark.parametrize("granularity", ["rowwise", "tensorwise"])
def test_products_in_8_bits_are_nearly_those_of_32_and_only_in_training(
    world: SimpleNamespace, granularity: str
) -> None:
    numbers = list(range(len(world.samples)))
    exact, exact_gradient = torch.cat(list(_packed(world, numbers).values())), _gradient(world, [numbers])
    layers = [m for m in world.model.model.language_model.layers.modules() if isinstance(m, torch.nn.Linear)]
    use_float8(world.model, granularity, torch.device("cpu"))
    try:
        assert torch.equal(torch.cat(list(_packed(world, numbers).values())), exact)  # the model is in eval mode
        world.model.train()
        rounded = torch.cat(list(_packed(world, numbers).values()))
        assert 1e-4 < (rounded - exact).norm() / exact.norm() < 0.02
        gradient = _gradient(world, [numbers])
        assert torch.nn.functional.cosine_similarity(gradient, exact_gradient, dim=0) > 0.99
        if granularity == "tensorwise" and not world.model.config.tie_word_embeddings:  # compiling takes a while: once
            fused = _gradient(world, [numbers], compile=True)
            assert torch.nn.functional.cosine_similarity(gradient, fused, dim=0) > 0.999
    finally:
        world.model.eval()
        for layer in layers:
            del layer.float8


def test_shared_videos_change_no_loss_and_no_gradient(world: SimpleNamespace) -> None:
    numbers = list(range(len(world.samples)))
    alone, shared = _packed(world, numbers), _packed(world, numbers, share=True)
    for number in numbers:
        assert torch.allclose(alone[number], shared[number], rtol=1e-5, atol=1e-5)
    # A pack of two questions about each of six videos holds each video once.
    collator = Collator(world.planner, world.sizes.vision, "cpu", share=True)
    batch = collator(numbers, world.samples, world.frames)
    assert batch.tails is not None and len(batch.tails.lengths) == 12
    assert len(batch.input_ids_T) < 0.7 * sum(sample.length for sample in world.samples)
    plain, together = _gradient(world, [numbers]), _gradient(world, [numbers], share=True)
    assert torch.nn.functional.cosine_similarity(plain, together, dim=0) > 0.999999
    assert (plain - together).norm() / plain.norm() < 1e-5


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
        steps=SimpleNamespace(packs=[[packs[:1], packs[1:2]], [packs[2:3], packs[3:]]].__getitem__),
    )
    assert [set(calls) for calls in choose_calls(schedule, collator)] == list(seen) and collator.digits is None
    monkeypatch.setattr(ahead, "MOST_SHAPES", 1)
    choose_calls(schedule, collator)
    assert collator.digits == FEW_DIGITS


def test_a_sample_does_not_see_its_neighbours(world: SimpleNamespace) -> None:
    before = _packed(world, [0, 1, 2])[0]
    after = _packed(world, [0, 3, 5, 7, 9])[0]
    assert torch.allclose(before, after, atol=1e-5)


def test_a_pack_without_media_still_runs_the_vision_tower(world: SimpleNamespace) -> None:
    text_only = [n for n, sample in enumerate(world.samples) if not sample.plans]
    world.model.zero_grad()
    _packed(world, text_only)[text_only[0]].sum().backward()
    touched = [p.grad for name, p in world.model.named_parameters() if ".visual." in name]
    assert touched and all(g is not None and not g.any() for g in touched)
    # A pack of no sample at all (fewer samples than ranks) works too.
    install_forward(world.model)
    batch = Collator(world.planner, world.sizes.vision, "cpu")([], [], [])
    assert world.model(batch).shape == (0,)
