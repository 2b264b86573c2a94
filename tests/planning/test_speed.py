"""Cards by their data sheets: what is estimated for one agrees with what was measured, and with what is known."""

from __future__ import annotations

import pytest

from vidqa.planning.budget.speed import GPUS, Efficiency, find_gpu, gpu_peak_flops, mfu_on


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("NVIDIA H200", "H200"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX PRO 6000"),
        ("NVIDIA H20", "H20"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("NVIDIA A100-SXM4-40GB", "A100 40 GB"),
        ("A100-PCIE-40GB", "A100 40 GB"),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe"),
        ("H100", "H100"),
    ],
)
def test_a_card_is_known_by_its_name(name: str, word: str) -> None:
    assert find_gpu(name) is GPUS[word] and gpu_peak_flops(name) == GPUS[word].peak


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA GH200 480GB",
        "NVIDIA GB200",
        "NVIDIA H200 NVL",
        "NVIDIA H20-3e",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
        "",
    ],
)
def test_a_card_with_the_name_of_another_in_its_own_is_not_that_one(name: str) -> None:
    assert find_gpu(name) is None


def test_a_card_that_nobody_listed_has_no_peak() -> None:
    assert (
        gpu_peak_flops("Some other GPU") is None and Efficiency(0.4, "measured", "NVIDIA H200").on("another").mfu == 0.4
    )


def test_less_bandwidth_for_a_peak_reaches_less_of_it() -> None:
    """One H200 reached 51.2 % with LoRA on 8B and 46.4 % with 2B in full, one H100 48.5 % and 42.6 %."""
    for on_h200, on_h100 in ((0.512, 0.485), (0.464, 0.426)):
        told = mfu_on(GPUS["H100"], on_h200, GPUS["H200"])
        assert told < on_h200 and told == pytest.approx(on_h100, rel=0.05)
    assert mfu_on(GPUS["A100"], 0.5, GPUS["H200"]) > 0.5 > mfu_on(GPUS["B200"], 0.5, GPUS["H200"])
    assert mfu_on(GPUS["H200"], 0.5, GPUS["H200"]) == 0.5
