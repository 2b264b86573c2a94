"""Selective activation checkpointing: the parts of decoder layers and vision blocks that backward recomputes. Levels:

    none          nothing; all activations are kept
    projections   query, key and value; attention's output is kept
    linear        everything but attention; a layer's input and attention's output are kept
    layer         everything; a layer's input alone is kept

Freeing a byte costs the fewest FLOPs in the vision tower, then in the decoder's projections, then in its other linear
layers, and the most in attention, whose FLOPs grow with the length of samples. `recompute_path` follows this order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from vidqa.families import Sizes

RecomputeLevel = Literal["none", "projections", "linear", "layer"]  # of one layer, least first
RecomputeChoice = Literal["none", "vision", "all"]  # values of engine.recompute besides "auto"


@dataclass(frozen=True)
class RecomputedLayers:
    """The recompute levels of a tower's layers: for each level, the number of first layers with at least this level. A
    higher level has at most as many layers as a lower one: projections >= linear >= layer."""

    projections: int = 0
    linear: int = 0
    layer: int = 0

    def level(self, index: int) -> RecomputeLevel:
        """The level of the layer with this index, from 0."""
        if index < self.layer:
            return "layer"
        if index < self.linear:
            return "linear"
        return "projections" if index < self.projections else "none"

    def counts(self, layers: int) -> dict[RecomputeLevel, int]:
        """The number of layers at each level, in a tower of `layers` layers."""
        return {
            "none": layers - self.projections,
            "projections": self.projections - self.linear,
            "linear": self.linear - self.layer,
            "layer": self.layer,
        }


@dataclass(frozen=True)
class Recompute:
    """The recomputation in a model's decoder and vision tower."""

    decoder: RecomputedLayers = RecomputedLayers()
    vision: RecomputedLayers = RecomputedLayers()

    def record(self) -> dict[str, Any]:
        """The JSON record for runs and benchmarks; `read_recompute` reads it."""
        return asdict(self)

    def __str__(self) -> str:
        towers = {"decoder layers": self.decoder, "vision blocks": self.vision}
        parts = [
            f"{LEVEL_NAMES[level]} of {count} {name}"
            for name, layers in towers.items()
            for level, count in layers.counts(layers.projections).items()
            if count and level != "none"
        ]
        return "; ".join(parts) or "nothing"


LEVEL_NAMES: dict[RecomputeLevel, str] = {
    "none": "nothing",
    "projections": "the projections before attention",
    "linear": "all but attention",
    "layer": "everything",
}
NO_RECOMPUTE = Recompute()


def fixed_recompute(name: RecomputeChoice, sizes: Sizes) -> Recompute:
    """The recomputation of a fixed choice: none, all vision blocks entirely, or also all decoder layers entirely."""
    layers, blocks = (sizes.text.layers if name == "all" else 0), (0 if name == "none" else sizes.vision.blocks)
    return Recompute(RecomputedLayers(layers, layers, layers), RecomputedLayers(blocks, blocks, blocks))


def read_recompute(record: Mapping[str, Any] | RecomputeChoice, sizes: Sizes) -> Recompute:
    """Read a record of `Recompute.record`, or the name of a fixed choice (written by earlier versions)."""
    if isinstance(record, str):
        return fixed_recompute(record, sizes)
    return Recompute(RecomputedLayers(**record["decoder"]), RecomputedLayers(**record["vision"]))


def recompute_path(sizes: Sizes, *, vision_trains: bool) -> list[Recompute]:
    """All choices from no recomputation to full recomputation, each with one more layer, ordered by FLOPs per saved
    byte. A frozen vision tower has no backward and nothing to recompute."""
    layers, blocks = sizes.text.layers, sizes.vision.blocks if vision_trains else 0
    decoder, vision, choices = RecomputedLayers(), RecomputedLayers(), [NO_RECOMPUTE]
    for tower, total, layers_with in (
        ("vision", blocks, lambda count: RecomputedLayers(count, count)),
        ("decoder", layers, RecomputedLayers),
        ("decoder", layers, lambda count: RecomputedLayers(layers, count)),
        ("vision", blocks, lambda count: RecomputedLayers(blocks, blocks, count)),
        ("decoder", layers, lambda count: RecomputedLayers(layers, layers, count)),
    ):
        for count in range(1, total + 1):
            if tower == "decoder":
                decoder = layers_with(count)
            else:
                vision = layers_with(count)
            choices.append(Recompute(decoder, vision))
    return choices
