"""Selective activation checkpointing: how much of each decoder layer and vision block backward recomputes.

    none          nothing; all activations are kept
    projections   query, key and value; attention's output is kept
    linear        everything but attention; a layer's input and attention's output are kept
    layer         everything; a layer's input alone is kept

The FLOPs for each saved activation are fewest in the vision tower, then in the projections, then in the decoder's other
linear layers, and most in attention, whose FLOPs grow with the length of samples. `recompute_path` has that order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from vidqa.families import Sizes

RecomputeLevel = Literal["none", "projections", "linear", "layer"]  # how much of one layer is recomputed
RecomputeChoice = Literal["none", "vision", "all"]  # the fixed choices of engine.recompute


@dataclass(frozen=True)
class Layers:
    """How many of a tower's layers, from the first on, recompute at this level or a higher one."""

    projections: int = 0
    linear: int = 0
    layer: int = 0

    def level(self, number: int) -> RecomputeLevel:
        """The level of the layer with this number."""
        if number < self.layer:
            return "layer"
        if number < self.linear:
            return "linear"
        return "projections" if number < self.projections else "none"

    def counts(self, layers: int) -> dict[RecomputeLevel, int]:
        """How many of `layers` layers have each level."""
        return {
            "none": layers - self.projections,
            "projections": self.projections - self.linear,
            "linear": self.linear - self.layer,
            "layer": self.layer,
        }


@dataclass(frozen=True)
class Recompute:
    """The recomputation of a model's two towers."""

    decoder: Layers = Layers()
    vision: Layers = Layers()

    def record(self) -> dict[str, Any]:
        """As runs and benchmarks write it."""
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
NOTHING = Recompute()


def fixed_recompute(name: RecomputeChoice, sizes: Sizes) -> Recompute:
    """A fixed choice: nothing, whole vision blocks, or these and whole decoder layers."""
    layers, blocks = (sizes.text.layers if name == "all" else 0), (0 if name == "none" else sizes.vision.blocks)
    return Recompute(Layers(layers, layers, layers), Layers(blocks, blocks, blocks))


def read_recompute(record: Mapping[str, Any] | RecomputeChoice, sizes: Sizes) -> Recompute:
    """What `Recompute.record` wrote, or the fixed choice that earlier runs wrote by name."""
    if isinstance(record, str):
        return fixed_recompute(record, sizes)
    return Recompute(Layers(**record["decoder"]), Layers(**record["vision"]))


def recompute_path(sizes: Sizes, *, vision_trains: bool) -> list[Recompute]:
    """All choices from nothing to everything, each with one layer more, cheapest savings first."""
    layers, blocks = sizes.text.layers, sizes.vision.blocks if vision_trains else 0
    decoder, vision, choices = Layers(), Layers(), [NOTHING]
    for tower, count, fill in (
        ("vision", blocks, lambda number: Layers(number, number)),
        ("decoder", layers, Layers),
        ("decoder", layers, lambda number: Layers(layers, number)),
        ("vision", blocks, lambda number: Layers(blocks, blocks, number)),
        ("decoder", layers, lambda number: Layers(layers, layers, number)),
    ):
        for number in range(1, count + 1):
            if tower == "decoder":
                decoder = fill(number)
            else:
                vision = fill(number)
            choices.append(Recompute(decoder, vision))
    return choices
