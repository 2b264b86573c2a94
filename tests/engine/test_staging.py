"""Batches on their way: one area, the same values, nothing lost when areas take turns; and the queue they wait in."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from vidqa.engine.data.host_to_device import BatchSender, mapped
from vidqa.engine.data.pixels import Pixels, patchify, pixels_of
from vidqa.engine.data.prefetch import BoundedQueue
from vidqa.video.types import PixelRules

UNEVEN = PixelRules(16, 2, 2, 1, 1 << 20, mean=(122.8, 116.7, 104.1), std=(68.5, 66.6, 70.3))
HALF = PixelRules(16, 2, 2, 1, 1 << 20)
DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]
    ),
]


@dataclass(frozen=True)
class Load:
    """Tensors of every dtype and shape that a batch has, at every depth."""

    ids_T: torch.Tensor
    grid_2P: torch.Tensor
    nothing: torch.Tensor
    pixels: Pixels
    spans: tuple[tuple[int, int], ...]
    number: int


def load_of(seed: int) -> Load:
    drawn = np.random.default_rng(seed)
    media = [
        (drawn.integers(0, 256, (count, 3, 32, 64), dtype=np.uint8), rules)
        for count, rules in ((4, HALF), (5, UNEVEN), (1, UNEVEN))
    ]
    media[0][0].flags.writeable = False  # a map of the frame cache
    return Load(
        torch.from_numpy(drawn.integers(0, 1 << 40, 7 + seed)),
        torch.from_numpy(drawn.random((2, 5), dtype=np.float32)),
        torch.zeros(0, dtype=torch.int64),
        pixels_of(media),
        ((0, 3), (3, 4)),
        seed,
    )


def flat(load: Load) -> list[torch.Tensor]:
    return [load.ids_T, load.grid_2P, load.nothing, *load.pixels.frames, *load.pixels.scales]


@pytest.mark.parametrize("name", DEVICES)
def test_sent_batch_arrives_equal_and_in_one_area(name: str) -> None:
    device = torch.device(name)
    staging = BatchSender(device)
    loads = [load_of(seed) for seed in range(9)]
    arrived = [staging.send(load).received() for load in loads]
    for load, other in zip(loads, arrived, strict=True):
        assert (other.spans, other.number, other.pixels.rules) == (load.spans, load.number, load.pixels.rules)
        for mine, theirs in zip(flat(load), flat(other), strict=True):
            assert theirs.device.type == name and theirs.dtype == mine.dtype and torch.equal(mine, theirs.cpu())
        assert len({tensor.untyped_storage().data_ptr() for tensor in flat(other)}) == 1
        assert all(tensor.data_ptr() % 64 == 0 for tensor in flat(other) if len(tensor))


def test_sent_batch_does_not_follow_changes_of_its_tensors() -> None:
    load = load_of(3)
    before = load.ids_T.clone()
    sent = BatchSender(torch.device("cpu")).send(load)
    load.ids_T.zero_()
    assert torch.equal(sent.received().ids_T, before)


@pytest.mark.parametrize("name", DEVICES)
def test_patches_of_bytes_are_those_of_floats_to_the_bit(name: str) -> None:
    """On any device: normalised as float32 first and put in order then, as the processors do it."""
    load = load_of(1)
    expected = []
    for frames, rules in zip(load.pixels.frames, load.pixels.rules, strict=True):
        mean, std = (torch.tensor(values, dtype=torch.float32).view(3, 1, 1) for values in (rules.mean, rules.std))
        pixels = (frames.to(torch.float32) - mean) / std
        pixels = torch.cat([pixels, pixels[-1:]]) if len(pixels) % 2 else pixels
        blocks = pixels.view(len(pixels) // 2, 2, 3, 1, 2, 16, 2, 2, 16)
        expected.append(blocks.permute(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(-1, 1536))
    pixels = BatchSender(torch.device(name)).send(load).received().pixels
    assert torch.equal(pixels.patches().cpu(), torch.cat(expected))
    assert pixels.patches().dtype == torch.float32


def test_normalising_takes_mean_and_std_as_numbers_or_tensors() -> None:
    frames = torch.randint(0, 256, (3, 3, 32, 32), dtype=torch.uint8)
    mean, std = torch.tensor(UNEVEN.mean), torch.tensor(UNEVEN.std)
    assert torch.equal(patchify(frames, UNEVEN, mean, std), patchify(frames, UNEVEN, UNEVEN.mean, UNEVEN.std))


def test_mapped_changes_every_tensor_and_nothing_else() -> None:
    load = load_of(2)
    doubled = mapped(load, lambda tensor: tensor * 2)
    assert all(torch.equal(2 * mine, theirs) for mine, theirs in zip(flat(load), flat(doubled), strict=True))
    assert (doubled.spans, doubled.number) == (load.spans, load.number)


def test_queue_keeps_order_and_limit() -> None:
    queue, taken, put = BoundedQueue(100), [], []

    def fill() -> None:
        for number in range(50):
            assert queue.put(number, 40)
            put.append(number)

    filler = threading.Thread(target=fill)
    filler.start()
    deadline = time.monotonic() + 120
    while len(put) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.1)
    assert len(put) == 2  # a third one would be 120 bytes
    for _ in range(50):
        taken.append(queue.get())
        assert len(put) - len(taken) <= 2
    filler.join()
    assert taken == list(range(50)) and queue.is_empty()


def test_queue_takes_an_item_above_its_limit_alone() -> None:
    queue, order = BoundedQueue(100), []
    assert queue.put("large", 1000)
    other = threading.Thread(target=lambda: order.append(queue.put("next", 1)))
    other.start()
    other.join(0.2)
    assert other.is_alive() and not order
    assert queue.get() == "large"
    other.join(20)
    assert order == [True] and queue.get() == "next"


def test_queue_close_wakes_a_waiting_put() -> None:
    queue, told = BoundedQueue(1), []
    queue.put("first", 1)
    waiting = threading.Thread(target=lambda: told.append(queue.put("second", 1)))
    waiting.start()
    time.sleep(0.1)
    queue.close()
    waiting.join(20)
    assert told == [False] and queue.put("third", 1) is False and queue.is_empty()
