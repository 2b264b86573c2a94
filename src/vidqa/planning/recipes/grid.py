"""The recipes: those that were published with their results, and a grid of models, methods and numbers of GPUs.

A grid point is a base file of `recipes/`, a profile, and the GPUs: no file of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vidqa import actions
from vidqa.contract.cli import SKILL_ROOT
from vidqa.planning.budget.cards import CARDS
from vidqa.planning.recipes.estimate import Data, Estimate, estimate
from vidqa.spec import Layer, read_layer, resolve
from vidqa.spec.models import TrainSpec

FOLDER = SKILL_ROOT / "recipes"
MODELS = (
    "nvidia/Cosmos-Reason2-2B",
    "Qwen/Qwen2.5-VL-3B-Instruct",
    "nvidia/Cosmos-Reason1-7B",
    "nvidia/Cosmos-Reason2-8B",
)
PROFILES = ("full", "frozen-vision", "lora")
GPUS = (1, 2, 4, 8)
BATCH = 32  # of a step, over all GPUs
MEMORY_GIB = {name: CARDS[name].memory_gib for name in ("H100", "A100")}
BASES = {"short-video": Data(1000, 10, 1280, 720), "long-video": Data(1000, 120, 1280, 720)}
# Every spec names its data; the estimate does not read it.
UNREAD = Layer("data", {"custom.train_dataset.annotation_path": "annotations.json"})


@dataclass(frozen=True)
class PublishedRecipe:
    """A recipe of others: its file, what its data is taken to be like, where it ran, and what came out."""

    file: str
    title: str
    data: Data
    gpu: str
    setting: str
    time: str
    result: str
    source: str


@dataclass(frozen=True)
class Point:
    """One point of the grid."""

    base: str
    model: str
    profile: str
    gpus: int

    @property
    def sets(self) -> dict[str, int]:
        """The keys beside base, model and profile: adapters are copied to every GPU, whole models are sharded."""
        name = "dp_replicate_size" if self.profile == "lora" else "dp_shard_size"
        return {f"policy.parallelism.{name}": self.gpus, "train.train_batch_per_replica": BATCH // self.gpus}

    @property
    def spec(self) -> TrainSpec:
        layers = [
            Layer(self.profile, dict(actions.action("train").profiles[self.profile])),
            read_layer(FOLDER / f"{self.base}.toml"),
            UNREAD,
            Layer("point", {"policy.model_name_or_path": f"hf_model://{self.model}", **self.sets}),
        ]
        return _train_spec(layers)

    def estimate(self, gpu: str = "H100") -> Estimate:
        return estimate(self.spec, BASES[self.base], gpu, MEMORY_GIB[gpu])


def _train_spec(layers: list[Layer]) -> TrainSpec:
    spec = resolve("train", layers).spec
    assert isinstance(spec, TrainSpec)  # of the action train
    return spec


def points(base: str) -> Iterator[Point]:
    """The grid of one base file."""
    return (Point(base, model, profile, gpus) for model in MODELS for profile in PROFILES for gpus in GPUS)


def recipe_spec(file: Path) -> TrainSpec:
    """The spec of a recipe's file."""
    return _train_spec([UNREAD, read_layer(file)])


PUBLISHED = (
    PublishedRecipe(
        "traffic-questions",
        "traffic questions, 8 frames",
        Data(5600, 10, 1920, 1080),
        "A100",
        "8 frames, 3 epochs, 2e-5 cosine, 32 a GPU",
        "8 x A100, 1 h 16 min",
        "93.65 %",
        "WTS with Cosmos-Reason2-2B",
    ),
    PublishedRecipe(
        "traffic-questions-long",
        "traffic questions, 1 frame a second",
        Data(5600, 60, 1920, 1080),
        "A100",
        "1 frame a second, total_pixels 8,388,608, 7.7k tokens a sample",
        "8 x A100, 4 h",
        "> 92 % after one epoch",
        "WTS with Cosmos-Reason2-2B",
    ),
    PublishedRecipe(
        "traffic-questions-reason1",
        "traffic questions, Cosmos-Reason1",
        Data(5000, 10, 1920, 1080),
        "A100",
        "81,920 pixels a frame, 1 epoch",
        "8 x A100, 35 min",
        "> 90 %",
        "WTS with Cosmos-Reason1-7B",
    ),
    PublishedRecipe(
        "warehouse-images",
        "warehouse images",
        Data(80_000, 0, 960, 540),
        "A100",
        "3 epochs, 1e-5, batch 256",
        "8 x A100, 7 h (20,000 images: 2 h; 500,000: 36 h)",
        "> 90 %",
        "spatial warehouse with Cosmos-Reason1",
    ),
    PublishedRecipe(
        "driving-blend",
        "driving, blended",
        Data(1_100_000, 10, 1280, 720),
        "A100",
        "2e-7 cosine, warm-up 0.03, 16 frames",
        "not published",
        "multiple choice 80.2 -> 80.9, LingoQA 63.2 -> 77.0",
        "Uber with Cosmos-Reason2-8B",
    ),
    PublishedRecipe(
        "robovqa",
        "robots' tasks",
        Data(10_000, 10, 1280, 720),
        "A100",
        "2e-6, 32 a GPU, shard 2, 81,920 pixels a frame",
        "2 x 80 GB",
        "not published",
        "job of cosmos-reason1, 7B",
    ),
)
