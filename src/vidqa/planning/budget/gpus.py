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
    """Dense bf16 FLOP/s with sums in float32, memory bandwidth in bytes/s, GiB that a process sees, and the source.
    `devices` are the names that its driver gives it."""

    name: str
    peak: float
    bandwidth: float
    memory_gib: float
    source: str
    devices: tuple[str, ...]


# By the word that our tables have for a card. A device is known by its whole name: "H100" stands in names of cards that
# are a quarter slower, "H200" in GH200, and a slice of a card has the card's name in its own.
CARDS = {
    "H200": Card("H200 141 GB", 989e12, 4.8e12, 139.8, "NVIDIA H200 data sheet", ("H200",)),
    "H100": Card("H100 80 GB (SXM)", 989e12, 3.35e12, 79.6, "NVIDIA H100 data sheet", ("H100 80GB HBM3",)),
    "H100 PCIe": Card("H100 80 GB (PCIe)", 756e12, 2.0e12, 79.6, "NVIDIA H100 data sheet", ("H100 PCIe",)),
    "H100 NVL": Card("H100 94 GB (NVL)", 835e12, 3.9e12, 93.1, "NVIDIA H100 NVL data sheet", ("H100 NVL",)),
    "H20": Card("H20 96 GB", 148e12, 4.0e12, 95.0, "NVIDIA H20 data sheet", ("H20",)),
    "B200": Card(
        "B200 180 GB", 2250e12, 7.67e12, 178.0, "NVIDIA HGX B200 data sheet, bandwidth by its driver", ("B200",)
    ),
    "A100": Card("A100 80 GB (SXM)", 312e12, 2.039e12, 79.2, "NVIDIA A100 data sheet", ("A100-SXM4-80GB",)),
    "A100 PCIe": Card("A100 80 GB (PCIe)", 312e12, 1.935e12, 79.2, "NVIDIA A100 data sheet", ("A100 80GB PCIe",)),
    "A100 40 GB": Card(
        "A100 40 GB", 312e12, 1.555e12, 39.4, "NVIDIA A100 data sheet", ("A100-SXM4-40GB", "A100-PCIE-40GB")
    ),
    "L40S": Card("L40S 48 GB", 362e12, 0.864e12, 44.4, "NVIDIA L40S data sheet", ("L40S",)),
    "RTX 4090": Card(
        "RTX 4090 24 GB", 165.2e12, 1.008e12, 23.5, "NVIDIA Ada GPU architecture paper", ("GeForce RTX 4090",)
    ),
    "RTX PRO 6000": Card(
        "RTX PRO 6000 96 GB",
        503.8e12,
        1.792e12,
        95.0,
        "NVIDIA RTX Blackwell PRO architecture paper",
        ("RTX PRO 6000 Blackwell Workstation Edition", "RTX PRO 6000 Blackwell Server Edition"),
    ),
}
# Share of a step's time that is element-wise work, norms and copies on an H200 (benchmarks/README.md, "Where a step
# goes").
BY_BANDWIDTH, MEASURED_ON = 0.118, "H200"


def card_of(name: str) -> Card | None:
    """The card of a device's name, or of a word of CARDS; None where it is not known."""
    device = name.removeprefix("NVIDIA ")
    return CARDS.get(name) or next((card for card in CARDS.values() if device in card.devices), None)


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
