"""Ranks that share every pack beside one that has it whole: torchrun ... context_ranks.py MODEL ROOT OUT

Each rank computes all packs in both ways, whatever is recomputed, and with products in 8-bit floats. OUT gets one
row for each way: how far loss and gradient, summed over the ranks, lie from those of the whole pack, as shares of them,
and what each rank had."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from transformers import AutoConfig

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from clips import decode_frames

from vidqa.data import load_records
from vidqa.engine import distributed
from vidqa.engine.data.collate import Collator
from vidqa.engine.data.pixels import resize_frames
from vidqa.engine.distributed import WHOLE, Context
from vidqa.engine.families import torch_half
from vidqa.engine.families.tiny_qwen3_vl import initialise
from vidqa.engine.model.float8 import use_float8
from vidqa.planning.budget.activation_checkpointing import NO_RECOMPUTE, Recompute, RecomputedLayers, fixed_recompute
from vidqa.planning.samples import Planner, Prompting, Sample
from vidqa.video.image import decode_image

PACKS = ([0, 1, 2, 3, 4], [5, 6], [12], [13], [7, 8, 9, 10, 11], [])  # videos, an image, a text, nothing


def decoded(sample: Sample) -> list[np.ndarray]:
    found = []
    for ref, plan in zip(sample.record.media, sample.plans, strict=True):
        pixels = decode_image(ref.path) if ref.kind == "image" else decode_frames(ref.path, None, plan.indices)
        found.append(resize_frames(pixels.reshape(-1, *pixels.shape[-3:]), plan.height, plan.width))
    return found


def fresh_model(model_class: Any, folder: Path) -> Any:
    """The same on every rank, with two key heads or more."""
    config = AutoConfig.from_pretrained(folder)
    config.text_config.num_key_value_heads = 2
    torch.manual_seed(0)
    model = model_class(config).float()
    initialise(model)
    return model


def main(folder: Path, root: Path, out: Path) -> None:
    world = distributed.start(1, 1, 60, 2)
    planner = Planner(folder, SimpleNamespace(fps=None, nframes=5, total_pixels=None), Prompting("Be brief."))
    samples, _ = planner.plan(load_records(root / "annotations.json", root))
    frames = [decoded(sample) for sample in samples]
    family, sizes = torch_half(planner.family), planner.family.sizes_of(folder)
    model = fresh_model(family.model_class, folder)

    def computed(context: Context, share: bool, way: Any) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
        """Loss of all packs, its gradient, and rows, patches and supervised tokens of all packs."""
        forward = family.packed_forward(model, recompute=way, context=context)
        collator = Collator(planner, sizes.vision, "cpu", share=share, context=context)
        model.zero_grad()
        loss, had = torch.zeros(()), [0, 0, 0]
        for pack in PACKS:
            batch = collator(pack, [samples[i] for i in pack], [frames[i] for i in pack])
            nll = forward(batch).sum()
            nll.backward()
            loss += nll.detach()
            own = (len(batch.input_ids_T), len(batch.patches_PC), len(batch.target_N))
            had = [before + more for before, more in zip(had, own, strict=True)]
        found = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
        return loss, torch.cat([gradient.flatten() for gradient in found]), had

    some = Recompute(
        RecomputedLayers(2, 1), RecomputedLayers(2, 1)
    )  # the projections before attention, and all but attention
    everything = fixed_recompute("all", sizes)
    rows = []
    for share, rounded, ways in (
        (False, False, (NO_RECOMPUTE, some, everything)),
        (True, False, (NO_RECOMPUTE, some, everything)),
        (True, True, (some,)),
    ):
        if rounded:
            use_float8(family.units(model.train()), "tensorwise")
        loss, gradient, had = computed(WHOLE, share, NO_RECOMPUTE)
        for way in ways:
            ours, own, mine = computed(world.context, share, way)
            dist.all_reduce(ours)
            dist.all_reduce(own)
            rows.append(
                {
                    "share": share,
                    "rounded": rounded,
                    "way": str(way),
                    "loss": ((ours - loss).abs() / loss).item(),
                    "gradient": ((own - gradient).norm() / gradient.norm()).item(),
                    "whole": had,
                    "parts": world.gather(mine),
                }
            )
    if world.is_main:
        out.write_text(json.dumps(rows))
    distributed.stop()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
