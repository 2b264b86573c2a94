"""GPUs by name: what their vendor's data sheets say, and how much of its peak a training reaches on one that was not
measured.

A step is matrix products and attention, which follow the peak, and element-wise work, which follows the bandwidth of
memory. Their shares were measured (`BY_BANDWIDTH`); on another card each part takes as much longer as the card is
slower at it. What a card's power limit or cooling takes away is not in any data sheet, and not in the estimate.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Card:
    """Dense bf16 FLOP/s with sums in float32, memory bandwidth in bytes/s, GiB that a process sees, and the source."""

    name: str
    peak: float
    bandwidth: float
    memory_gib: float
    source: str


# By a word in the device's name; the first that is found in a name counts.
CARDS = {
    "H200": Card("H200 141 GB", 989e12, 4.8e12, 139.8, "NVIDIA H200 data sheet"),
    "H100": Card("H100 80 GB (SXM)", 989e12, 3.35e12, 79.6, "NVIDIA H100 data sheet"),
    "H20": Card("H20 96 GB", 148e12, 4.0e12, 95.0, "NVIDIA H20 data sheet"),
    "B200": Card("B200 180 GB", 2250e12, 7.67e12, 178.0, "NVIDIA HGX B200 data sheet, bandwidth by its driver"),
    "A100": Card("A100 80 GB (SXM)", 312e12, 2.039e12, 79.2, "NVIDIA A100 data sheet"),
    "L40S": Card("L40S 48 GB", 362e12, 0.864e12, 44.4, "NVIDIA L40S data sheet"),
    "RTX 4090": Card("RTX 4090 24 GB", 165.2e12, 1.008e12, 23.5, "NVIDIA Ada GPU architecture paper"),
    "RTX PRO 6000": Card("RTX PRO 6000 96 GB", 503.8e12, 1.792e12, 95.0, "NVIDIA RTX Blackwell PRO architecture paper"),
}
# Share of a step's time that is element-wise work, norms and copies on an H200 (benchmarks/README.md, "Where a step
# goes").
BY_BANDWIDTH, MEASURED_ON = 0.118, "H200"


def card_of(name: str) -> Card | None:
    """The card that a device's name tells of; None where it is not known."""
    return next((card for word, card in CARDS.items() if word in name), None)


def peak_of(name: str) -> float | None:
    """The bf16 peak of a GPU by its name, FLOP/s; None where it is not known."""
    return card.peak if (card := card_of(name)) else None


def mfu_on(card: Card, mfu: float, measured_on: Card) -> float:
    """The share of its peak that a training reaches on `card` which reached `mfu` on another one."""
    return mfu * _stretch(measured_on) / _stretch(card)


def _stretch(card: Card) -> float:
    """Time of a step in that of the card the shares were measured on, each at the same peak."""
    base = CARDS[MEASURED_ON]
    return 1 - BY_BANDWIDTH + BY_BANDWIDTH * (card.peak / base.peak) * (base.bandwidth / card.bandwidth)
