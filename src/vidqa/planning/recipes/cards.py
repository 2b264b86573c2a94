"""What fits on one card, and how fast it would be: a table of estimates for cards that were and were not measured."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from vidqa.planning.budget.cards import CARDS, Card
from vidqa.planning.recipes.estimate import equal_samples
from vidqa.planning.recipes.grid import MODELS, Point
from vidqa.spec.models import TrainSpec
from vidqa.spec.pages import row

SMALL, LARGE = MODELS[0], MODELS[-1]
WAYS = (("2B LoRA", SMALL, "lora"), ("2B full", SMALL, "full"), ("8B LoRA", LARGE, "lora"), ("8B full", LARGE, "full"))
SHOWN = ("A100", "H100", "H200", "B200", "L40S", "RTX PRO 6000", "RTX 4090")
LENGTHS = tuple(1024 * 2**power for power in range(8))  # 1k to 128k tokens
USUAL = 4096  # tokens of the samples whose speed is told
LONG = 8192  # tokens of a sample of recipes/long-video.toml


def cards_page() -> Iterator[str]:
    """Lines of Markdown."""
    yield row("card", "bf16 TFLOP/s", "TB/s", *(name for name, _, _ in WAYS), "8 of them: 8B full", "begin with")
    yield row(*["---"] * (len(WAYS) + 5))
    for word in SHOWN:
        card = CARDS[word]
        cells = [_cell(model, profile, 1, card) for _, model, profile in WAYS]
        many, figures = _cell(LARGE, "full", 8, card), (f"{card.peak / 1e12:.0f}", f"{card.bandwidth / 1e12:.1f}")
        yield row(card.name, *figures, *cells, many, _begin(card))
    yield ""
    yield f"Sources: {'; '.join(dict.fromkeys(CARDS[word].source for word in SHOWN))}."


def _cell(model: str, profile: str, gpus: int, card: Card) -> str:
    if not (longest := longest_sample(model, profile, gpus, card)):
        return "-"
    told = equal_samples(_spec(model, profile, gpus, USUAL), min(longest, USUAL), card)
    again = f" +{told.again:.0%}" if told.again >= 0.005 else ""
    return f"to {longest // 1024}k; {told.tokens_per_s:,.0f}{again}"


def longest_sample(model: str, profile: str, gpus: int, card: Card) -> int:
    """The longest of LENGTHS with which a GPU has room; 0 if none has."""
    longest = 0
    for length in LENGTHS:
        if not equal_samples(_spec(model, profile, gpus, length), length, card).fits:
            break
        longest = length
    return longest


def _begin(card: Card) -> str:
    """The largest training on one card that long videos fit into; failing that, one of short videos."""
    for name, model, profile in reversed(WAYS[:3]):
        if longest_sample(model, profile, 1, card) >= LONG:
            return f"`long-video.toml`, {name}"
    return f"`short-video.toml`, {WAYS[0][0]}"


@cache
def _spec(model: str, profile: str, gpus: int, length: int) -> TrainSpec:
    """Packs as large as usual, or as the sample."""
    spec = Point("long-video", model, profile, gpus).spec
    longest = max(length, spec.policy.model_max_length)
    return spec.model_copy(update={"policy": spec.policy.model_copy(update={"model_max_length": longest})})
