"""What backward computes again so that less is kept: how much of each decoder layer and vision block, for how many.

    none          all that backward needs is kept
    projections   query, key and value are computed again; attention's output is kept
    linear        all but attention is computed again; a layer's input and attention's output are kept
    layer         everything is computed again; a layer's input alone is kept

A number saved costs least work in the vision tower, then in the projections, then in the rest of the decoder's linear
layers, and most in attention, whose work grows with the length of samples. So memory is gained in the order of `path`,
one layer after the other, and no more than is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from vidqa.families.sizes import Sizes

Again = Literal["none", "projections", "linear", "layer"]  # what of one layer is computed again
Named = Literal["none", "vision", "all"]  # the fixed choices of engine.recompute


@dataclass(frozen=True)
class Layers:
    """How many of a tower's layers, from its first on, compute again so much or more."""

    projections: int = 0
    linear: int = 0
    layer: int = 0

    def of(self, number: int) -> Again:
        """What the layer with this number computes again."""
        if number < self.layer:
            return "layer"
        if number < self.linear:
            return "linear"
        return "projections" if number < self.projections else "none"

    def counts(self, layers: int) -> dict[Again, int]:
        """How many of all layers compute each again."""
        return {
            "none": layers - self.projections,
            "projections": self.projections - self.linear,
            "linear": self.linear - self.layer,
            "layer": self.layer,
        }


@dataclass(frozen=True)
class Recompute:
    """What is computed again of a model."""

    decoder: Layers = Layers()
    vision: Layers = Layers()

    def record(self) -> dict[str, Any]:
        """As runs and benchmarks write it."""
        return asdict(self)

    def __str__(self) -> str:
        towers = {"decoder layers": self.decoder, "vision blocks": self.vision}
        said = [
            f"{WORDS[again]} of {count} {name}"
            for name, layers in towers.items()
            for again, count in layers.counts(layers.projections).items()
            if count and again != "none"
        ]
        return "; ".join(said) or "nothing"


WORDS: dict[Again, str] = {
    "none": "nothing",
    "projections": "the projections before attention",
    "linear": "all but attention",
    "layer": "everything",
}
NOTHING = Recompute()


def named(name: Named, sizes: Sizes) -> Recompute:
    """A fixed choice: nothing, whole vision blocks, or these and whole decoder layers."""
    layers, blocks = (sizes.text.layers if name == "all" else 0), (0 if name == "none" else sizes.vision.blocks)
    return Recompute(Layers(layers, layers, layers), Layers(blocks, blocks, blocks))


def recorded(record: Mapping[str, Any] | Named, sizes: Sizes) -> Recompute:
    """What `Recompute.record` wrote, or the fixed choice that earlier runs wrote by name."""
    if isinstance(record, str):
        return named(record, sizes)
    return Recompute(Layers(**record["decoder"]), Layers(**record["vision"]))


def path(sizes: Sizes, *, vision_trains: bool) -> list[Recompute]:
    """All choices from nothing to everything, each with one layer more, cheapest gains first."""
    layers, blocks = sizes.text.layers, sizes.vision.blocks if vision_trains else 0
    decoder, vision, found = Layers(), Layers(), [NOTHING]
    for count in range(1, blocks + 1):
        vision = Layers(count, count)
        found.append(Recompute(decoder, vision))
    for count in range(1, layers + 1):
        decoder = Layers(count)
        found.append(Recompute(decoder, vision))
    for count in range(1, layers + 1):
        decoder = Layers(layers, count)
        found.append(Recompute(decoder, vision))
    for count in range(1, blocks + 1):
        vision = Layers(blocks, blocks, count)
        found.append(Recompute(decoder, vision))
    for count in range(1, layers + 1):
        decoder = Layers(layers, layers, count)
        found.append(Recompute(decoder, vision))
    return found
