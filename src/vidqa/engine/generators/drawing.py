"""Draws of the next token for all rows of a decode step at once, on the device.

A draw is a function of the row's key, of the number of tokens drawn before it and of the row's logits: neither the rows
beside it nor the order of requests change it.

Shape letters: B rows, V tokens that the model knows, C chunks of the vocabulary, K tokens of a chunk.
"""

from __future__ import annotations

import hashlib

import torch
import torch.nn.functional as F

CHUNK = 256  # tokens whose probabilities are summed together before one of them is looked for


def draw_key(seed: int, name: str) -> int:
    """The key of one answer's draws: a signed 64-bit integer, a hash of `seed` and `name`."""
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def uniform(key_B: torch.Tensor, count_B: torch.Tensor) -> torch.Tensor:
    """Uniform variates in [0, 1), float64 [B]: a hash (splitmix64's mixing) of key and count, both int64 [B]."""
    mixed = key_B + (count_B + 1) * -7046029254386353131
    for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685)):
        mixed = (mixed ^ _shifted(mixed, shift)) * factor
    mixed = mixed ^ _shifted(mixed, 31)
    return _shifted(mixed, 11).double() * 2.0**-53


def _shifted(number: torch.Tensor, bits: int) -> torch.Tensor:
    """`number` shifted right, zeros coming in: torch's own shift of int64 copies the sign."""
    return (number >> bits) & ((1 << (64 - bits)) - 1)


def draw(
    logits_BV: torch.Tensor, temperature_B: torch.Tensor, key_B: torch.Tensor, count_B: torch.Tensor
) -> torch.Tensor:
    """The next token of each row, int64 [B], drawn from softmax(logits / temperature); the likeliest where the
    temperature is 0. Logits are float32; -inf is never drawn.

    The cumulative distribution is inverted in two steps, over chunks of the vocabulary and inside one of them; sums
    are float64.
    """
    greedy_B = temperature_B == 0
    scaled_BV = logits_BV / temperature_B.masked_fill(greedy_B, 1.0)[:, None]
    weight_BV = (scaled_BV - scaled_BV.amax(-1, keepdim=True)).exp()
    weight_BCK = F.pad(weight_BV, (0, -weight_BV.shape[1] % CHUNK)).unflatten(1, (-1, CHUNK))
    upto_BC = weight_BCK.sum(-1, dtype=torch.float64).cumsum(-1)
    threshold_B1 = (uniform(key_B, count_B) * upto_BC[:, -1])[:, None]
    chunk_B1 = torch.searchsorted(upto_BC, threshold_B1, right=True).clamp(max=upto_BC.shape[1] - 1)
    before_B1 = upto_BC.gather(1, (chunk_B1 - 1).clamp(min=0)) * (chunk_B1 > 0)
    inside_BK = weight_BCK.gather(1, chunk_B1[..., None].expand(-1, -1, CHUNK))[:, 0]
    upto_BK = inside_BK.double().cumsum(-1)
    # Sums of a chunk and of its parts may round differently: never behind the chunk's last token that can be drawn.
    last_B = CHUNK - 1 - (inside_BK > 0).flip(-1).to(torch.uint8).argmax(-1)
    within_B = torch.minimum((upto_BK <= threshold_B1 - before_B1).sum(-1), last_B)
    return torch.where(greedy_B, logits_BV.argmax(-1), chunk_B1[:, 0] * CHUNK + within_B)
