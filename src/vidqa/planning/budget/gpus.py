"""GPUs by name: what their vendor's data sheets say, and how much of its peak a training reaches on one that was not
measured.

A step is matrix products and attention, which follow the peak, and element-wise work, which follows the bandwidth of
memory. Their shares were measured (`BANDWIDTH_SHARE`); on another card each part takes as much longer as the card is
slower at it. What a card's power limit or cooling takes away is not in any data sheet, and not in the estimate.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Gpu:
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
GPUS = {
    "H200": Gpu("H200 141 GB", 989e12, 4.8e12, 139.8, "NVIDIA H200 data sheet", ("H200",)),
    "H100": Gpu("H100 80 GB (SXM)", 989e12, 3.35e12, 79.6, "NVIDIA H100 data sheet", ("H100 80GB HBM3",)),
    "H100 PCIe": Gpu("H100 80 GB (PCIe)", 756e12, 2.0e12, 79.6, "NVIDIA H100 data sheet", ("H100 PCIe",)),
    "H100 NVL": Gpu("H100 94 GB (NVL)", 835e12, 3.9e12, 93.1, "NVIDIA H100 NVL data sheet", ("H100 NVL",)),
    "H20": Gpu("H20 96 GB", 148e12, 4.0e12, 95.0, "NVIDIA H20 data sheet", ("H20",)),
    "B200": Gpu(
        "B200 180 GB", 2250e12, 7.67e12, 178.0, "NVIDIA HGX B200 data sheet, bandwidth by its driver", ("B200",)
    ),
    "A100": Gpu("A100 80 GB (SXM)", 312e12, 2.039e12, 79.2, "NVIDIA A100 data sheet", ("A100-SXM4-80GB",)),
    "A100 PCIe": Gpu("A100 80 GB (PCIe)", 312e12, 1.935e12, 79.2, "NVIDIA A100 data sheet", ("A100 80GB PCIe",)),
    "A100 40 GB": Gpu(
        "A100 40 GB", 312e12, 1.555e12, 39.4, "NVIDIA A100 data sheet", ("A100-SXM4-40GB", "A100-PCIE-40GB")
    ),
    "L40S": Gpu("L40S 48 GB", 362e12, 0.864e12, 44.4, "NVIDIA L40S data sheet", ("L40S",)),
    "RTX 4090": Gpu(
        "RTX 4090 24 GB", 165.2e12, 1.008e12, 23.5, "NVIDIA Ada GPU architecture paper", ("GeForce RTX 4090",)
    ),
    "RTX PRO 6000": Gpu(
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
BANDWIDTH_SHARE, MEASURED_ON = 0.118, "H200"


def find_gpu(name: str) -> Gpu | None:
    """The card of a device's name, or of a word of CARDS; None where it is not known."""
    device = name.removeprefix("NVIDIA ")
    return GPUS.get(name) or next((card for card in GPUS.values() if device in card.devices), None)


def gpu_peak_flops(name: str) -> float | None:
    """The bf16 peak of a GPU by its name, FLOP/s; None where it is not known."""
    return card.peak if (card := find_gpu(name)) else None


def mfu_on(card: Gpu, mfu: float, measured_on: Gpu) -> float:
    """The share of its peak that a training reaches on `card` which reached `mfu` on another one."""
    return mfu * _relative_step_time(measured_on) / _relative_step_time(card)


def _relative_step_time(card: Gpu) -> float:
    """Time of a step in that of the card the shares were measured on, each at the same peak."""
    base = GPUS[MEASURED_ON]
    return 1 - BANDWIDTH_SHARE + BANDWIDTH_SHARE * (card.peak / base.peak) * (base.bandwidth / card.bandwidth)
