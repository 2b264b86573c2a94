"""FLOPs of a training step, from shapes alone.

Strict accounting: a multiply-add is two operations, backward costs twice forward, recomputation is not counted,
causal attention counts half of the square. Frozen parts save their weight gradients.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from vidqa.families import Sizes
from vidqa.planning.budget.activation_checkpointing import Recompute
from vidqa.planning.budget.memory import MicroStep, ParamCounts
from vidqa.planning.packing.prefix_sharing import Workload
from vidqa.spec.models import TrainSpec


@dataclass(frozen=True)
class FlopsModel:
    """Operations per token, token pair, patch and patch pair of one model. Pairs of blocks that attend inside windows,
    of `window` patches a side, count apart."""

    per_token: float
    per_pair: float
    per_supervised: float
    per_patch: float
    per_patch_pair: float
    per_window_pair: float = 0.0
    window: int = 0

    def training_flops(self, works: Iterable[Workload], *, halved: bool = True) -> float:
        """Operations of forward and backward. `halved` counts the half of a square that causal attention needs; the
        whole square is what others often report."""
        return sum(
            self.per_token * work.tokens
            + self.per_pair * work.pairs * (1 if halved else 2)
            + self.per_supervised * work.supervised
            + self.per_patch * work.patches
            + self.per_patch_pair * work.patch_pairs
            + (self.per_window_pair * window_pairs(work.grids, self.window) if self.window else 0.0)
            for work in works
        )


def window_pairs(grids: Iterable[tuple[int, int, int]], window: int) -> int:
    """Pairs of patches inside the windows of every frame; the last window of a side is what is left of it."""

    def squares(side: int) -> int:
        whole, rest = divmod(side, window)
        return whole * window**2 + rest**2

    return sum(t * squares(h) * squares(w) for t, h, w in grids)


def flops_model(sizes: Sizes, *, vision_trains: bool, decoder_trains: bool) -> FlopsModel:
    """`decoder_trains` is False for LoRA, where the base has no weight gradients, nor has that of a vision tower with
    adapters."""
    text, vision = sizes.text, sizes.vision
    layer = text.hidden * (2 * text.queries + 2 * text.keys + 3 * text.intermediate)
    block = vision.hidden * (4 * vision.hidden + (3 if vision.gated else 2) * vision.intermediate)
    mergers = (1 + vision.taps) * vision.merged * (vision.merged + vision.out)
    embed = vision.patch_values * vision.hidden
    whole = vision.whole if vision.window else vision.blocks
    decoder_passes = 3 if decoder_trains else 2
    vision_passes = decoder_passes if vision_trains else 1
    attention_passes = 3 if vision_trains else 1  # which has no weights
    return FlopsModel(
        per_token=2 * decoder_passes * text.layers * layer,
        per_pair=3 * 2 * text.layers * text.queries,
        per_supervised=2 * decoder_passes * text.hidden * text.vocabulary,
        per_patch=2 * vision_passes * (vision.blocks * block + embed + mergers / vision.merge**2),
        per_patch_pair=4 * attention_passes * whole * vision.hidden,
        per_window_pair=4 * attention_passes * (vision.blocks - whole) * vision.hidden,
        window=vision.window,
    )


def flops_of(spec: TrainSpec, model: ParamCounts) -> FlopsModel:
    """The `flops_model` of a TrainSpec."""
    return flops_model(model.sizes, vision_trains=model.vision.trained > 0, decoder_trains=spec.policy.lora is None)


def recomputed_flops_share(spec: TrainSpec, model: ParamCounts, recompute: Recompute, pack: MicroStep) -> float:
    """FLOPs that backward repeats in a pack, as a share of the pack's own. Attention over tokens counts as that
    of samples half as long as the pack; attention over patches, which is little, and the head are left out."""
    text, vision = model.sizes.text, model.sizes.vision
    vision_trains, decoder_trains = model.vision.trained > 0, spec.policy.lora is None
    ranks = spec.policy.parallelism.cp_size  # which have a part of the pack each
    tokens, patches = pack.tokens * ranks, pack.patches * ranks
    layer = {
        "projections": text.hidden * (text.queries + 2 * text.keys),
        "linear": text.hidden * (text.queries + 2 * text.intermediate),
        "layer": text.hidden * text.intermediate + text.queries * tokens / 2,
    }
    block = {
        "projections": 3 * vision.hidden**2,
        "linear": vision.hidden * (vision.hidden + (2 if vision.gated else 1) * vision.intermediate),
        "layer": vision.hidden * vision.intermediate,
    }
    own = tokens * (3 if decoder_trains else 2) * text.layers * sum(layer.values())
    own += patches * (3 if vision_trains else 1) * vision.blocks * sum(block.values())
    repeated = tokens * sum(layer[part] * count for part, count in vars(recompute.decoder).items())
    repeated += patches * sum(block[part] * count for part, count in vars(recompute.vision).items()) * vision_trains
    return repeated / own
