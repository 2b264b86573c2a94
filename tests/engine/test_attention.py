"""Every way of attention equals one dense masked softmax over the whole pack, forward and backward."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

from vidqa.engine.model import attention
from vidqa.engine.model.attention import attend, segments_of
from vidqa.engine.model.suffixes import Suffixes, suffixes_of

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def _reference(query, key, value, visible_TT: torch.Tensor) -> torch.Tensor:
    """Softmax over what each row may see, in float64."""
    group = query.shape[1] // key.shape[1]
    query, key, value = query.double(), *(part.double().repeat_interleave(group, dim=1) for part in (key, value))
    scores = torch.einsum("thd,shd->hts", query, key) / math.sqrt(query.shape[-1])
    weights = scores.masked_fill(~visible_TT, -math.inf).softmax(-1)
    return torch.einsum("hts,shd->thd", weights, value).flatten(1)


def _visible(lengths: list[int], causal: bool) -> torch.Tensor:
    blocks = [torch.ones(n, n, dtype=torch.bool) for n in lengths]
    whole = torch.block_diag(*blocks).bool()
    return whole.tril() if causal else whole


def _suffixes(prefixes: list[int], owns: list[tuple[int, int]], device: str) -> tuple[Suffixes, torch.Tensor]:
    """Suffixes (prefix number, or -1 for none, and tokens) behind segments of the prefixes' lengths, and what every row
    may see."""
    starts = [int(start) for start in np.cumsum([0, *prefixes])]
    total = starts[-1] + sum(own for _, own in owns)
    visible = torch.zeros(total, total, dtype=torch.bool)
    visible[: starts[-1], : starts[-1]] = _visible(prefixes, causal=True)
    at, shared = starts[-1], dict[int, tuple[int, int, int]]()
    for prefix, own in owns:
        if prefix >= 0:
            used = prefixes[prefix] - 3  # the prefix's last rows are padding
            shared[prefix] = (starts[prefix], used, shared.get(prefix, (0, 0, 0))[2] + own)
            visible[at : at + own, starts[prefix] : starts[prefix] + used] = True
        visible[at : at + own, at : at + own] = torch.ones(own, own, dtype=torch.bool).tril()
        at += own
    suffixes = suffixes_of(list(shared.values()), [own for _, own in owns])
    bounds = {name: getattr(suffixes, name).to(device) for name in ("prefix_bounds", "reader_bounds", "own_bounds")}
    return replace(suffixes, **bounds), visible


def _check(segments, visible, suffixes=None, *, causal: bool, heads: tuple[int, int], size: int, device: str) -> None:
    """Output and the three gradients against the reference; the error allowed is that of the number format."""
    dtype, allowed = (torch.bfloat16, 2e-2) if device == "cuda" else (torch.float32, 1e-5)
    torch.manual_seed(len(visible))
    shapes = [(len(visible), count, size) for count in (heads[0], heads[1], heads[1])]
    inputs = [torch.randn(shape, device=device, dtype=dtype).requires_grad_() for shape in shapes]
    output = attend(*inputs, segments, suffixes, causal=causal)
    expected = _reference(*inputs, visible.to(device))
    gradient = torch.randn_like(expected)
    ours = torch.autograd.grad(output, inputs, gradient.to(dtype))
    theirs = torch.autograd.grad(expected, inputs, gradient)
    for got, want in zip((output, *ours), (expected, *theirs), strict=True):
        assert ((got.double() - want).norm() / want.norm()).item() < allowed


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("heads", [(4, 4), (8, 2)], ids=["equal heads", "grouped heads"])
@pytest.mark.parametrize("causal", [True, False])
def test_segments_equal_a_masked_softmax(device: str, heads: tuple[int, int], causal: bool) -> None:
    lengths = [64, 64, 48, 16, 16, 8]
    _check(segments_of(lengths), _visible(lengths, causal), causal=causal, heads=heads, size=64, device=device)


@pytest.mark.parametrize("device", DEVICES)
def test_attention_that_is_computed_again_in_backward(device: str) -> None:
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    segments = segments_of([64, 64, 48, 16])
    inputs = [torch.randn(192, count, 64, device=device, dtype=dtype).requires_grad_() for count in (8, 2, 2)]
    gradient = torch.randn(192, 8 * 64, device=device, dtype=dtype)
    run = partial(attend, segments=segments, causal=True)
    kept = torch.autograd.grad(run(*inputs), inputs, gradient)
    again = torch.autograd.grad(checkpoint(run, *inputs, use_reentrant=False), inputs, gradient)
    for one, other in zip(kept, again, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-2, atol=1e-2)


@pytest.mark.parametrize("count", [1, 7, 8, 9, 45, 63, 64, 1000])
def test_few_counts_of_equal_segments_are_planned(count: int) -> None:
    segments = segments_of([32, *[16] * count], count_bits=3)
    assert segments[0] == (0, 1, 32)
    covered = [(start + n * length, length) for start, many, length in segments for n in range(many)]
    assert covered[1:] == [(32 + n * 16, 16) for n in range(count)]
    assert all(len(f"{many:b}".rstrip("0")) <= 3 for _, many, _ in segments)


@pytest.mark.parametrize("device", DEVICES)
def test_heads_of_the_vision_tower(device: str) -> None:
    _check(segments_of([96] * 3), _visible([96] * 3, False), causal=False, heads=(4, 4), size=72, device=device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("heads", [(4, 4), (8, 2)], ids=["equal heads", "grouped heads"])
@pytest.mark.parametrize(
    "owns",
    [[(0, 5), (0, 17), (1, 1), (2, 9), (2, 8)], [(2, 4), (2, 4), (-1, 6)], [(-1, 3)]],
    ids=["three prefixes", "padding behind", "padding alone"],
)
def test_suffixes_see_their_prefix_and_themselves(
    device: str, heads: tuple[int, int], owns: list[tuple[int, int]]
) -> None:
    prefixes = [64, 64, 24]
    suffixes, visible = _suffixes(prefixes, owns, device)
    _check(segments_of(prefixes), visible, suffixes, causal=True, heads=heads, size=64, device=device)


def test_suffixes_gradient_in_float64() -> None:
    prefixes = [8, 5]
    suffixes, _ = _suffixes(prefixes, [(0, 2), (0, 3), (1, 2)], "cpu")
    torch.manual_seed(0)
    inputs = [torch.randn(20, heads, 4, dtype=torch.float64, requires_grad=True) for heads in (4, 2, 2)]
    run = partial(attend, segments=segments_of(prefixes), suffixes=suffixes, causal=True)
    assert torch.autograd.gradcheck(run, inputs)


def test_cudnn_is_asked_for_every_segment_and_what_is_slower_is_said_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tensors of a GPU that no machine needs to have; only what cuDNN answers is decided here."""
    lengths: list[int] = []

    def has_kernel(call: attention.SDPAParams) -> bool:
        lengths.append(call.query.shape[2])
        return lengths[-1] != 24

    monkeypatch.setattr(attention, "can_use_cudnn_attention", has_kernel)
    monkeypatch.setattr(attention, "_CUDNN_KERNELS", {})
    with FakeTensorMode():
        parts = [torch.empty(64, heads, 16, device="cuda", dtype=torch.bfloat16) for heads in (4, 2, 2)]
        assert attention.takes_cudnn(parts, ((0, 2, 16), (32, 4, 8)), None, causal=True) and lengths == [16, 8]
        for _ in range(2):
            assert not attention.takes_cudnn(parts, ((0, 2, 16), (32, 1, 24), (56, 1, 8)), None, causal=True)
    assert lengths == [16, 8, 24] and capsys.readouterr().err.count("cuDNN has no kernel for segments of 24") == 1
