"""The part of a GPU that a process may take: what counts as free, and the limit that PyTorch is given."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.cuda._utils import _get_device_index

from vidqa.engine.memory import free_memory, share_of_gpu, use_memory
from vidqa.planning.budget.memory import GIB
from vidqa.planning.budget.memory_constants import CONSTANTS

DEVICE = torch.device("cuda:0")
HAS = 80 * GIB


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A GPU of 80 GiB, as torch.cuda tells of one: `free` of it, `reserved` by this process."""
    found = SimpleNamespace(free=HAS, reserved=0, share=1.0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=HAS))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (found.free, HAS))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: found.reserved)
    # Both take a device with a number, and refuse "cuda" alone.
    monkeypatch.setattr(
        torch.cuda, "get_per_process_memory_fraction", lambda device: _get_device_index(device) or found.share
    )
    monkeypatch.setattr(
        torch.cuda,
        "set_per_process_memory_fraction",
        lambda share, device: vars(found).update(share=share, number=_get_device_index(device)),
    )
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    return found


def test_a_process_with_a_limit_leaves_the_rest_to_others(card: SimpleNamespace) -> None:
    assert use_memory(DEVICE, None) == 80 and use_memory(DEVICE, 100.0) == 80 and share_of_gpu(DEVICE) == 1.0
    card.free, card.reserved = 60 * GIB, 10 * GIB
    assert free_memory(DEVICE) == 60 * GIB, "others have 10"
    assert use_memory(DEVICE, 40.0) == 40.0
    assert share_of_gpu(DEVICE) == pytest.approx((40 - CONSTANTS.outside_gib) / 80)
    assert free_memory(DEVICE) / GIB == pytest.approx(40 - CONSTANTS.outside_gib - 10), "its own part, less what it has"
    card.free = 5 * GIB
    assert free_memory(DEVICE) == 5 * GIB, "no more than there is"


def test_a_device_without_a_number_is_the_present_one(card: SimpleNamespace) -> None:
    with pytest.raises(ValueError, match="specified index"):
        torch.cuda.get_per_process_memory_fraction(torch.device("cuda"))
    assert share_of_gpu(torch.device("cuda")) == 1.0 and free_memory(torch.device("cuda")) == HAS
    assert use_memory(torch.device("cuda"), 40.0) == 40.0
