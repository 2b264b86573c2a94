"""Keys and values of what has been read, in pages that prompts may share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from vidqa.planning.budget import answering

PAGE = answering.PAGE  # tokens of a page


@dataclass(frozen=True)
class PagedCache:
    """`keys` and `values` are [layers, pages * PAGE, key heads, values per head]. Page 0 belongs to no prompt: rows of
    a decode step that hold no prompt write there."""

    keys: torch.Tensor
    values: torch.Tensor

    @staticmethod
    def bytes_per_token(layers: int, heads: int, width: int, dtype: torch.dtype) -> int:
        return 2 * layers * heads * width * dtype.itemsize

    @staticmethod
    def empty(pages: int, layers: int, heads: int, width: int, dtype: torch.dtype, device: torch.device) -> PagedCache:
        shape = (layers, pages * PAGE, heads, width)
        return PagedCache(*(torch.zeros(shape, dtype=dtype, device=device) for _ in range(2)))


class Pages:
    """Counts who uses each page; those that nobody uses are free."""

    def __init__(self, count: int) -> None:
        self.free = list(range(count - 1, 0, -1))
        self.users = [0] * count

    def take(self, count: int) -> list[int]:
        pages = [self.free.pop() for _ in range(count)]
        for page in pages:
            self.users[page] = 1
        return pages

    def share(self, pages: Sequence[int]) -> None:
        for page in pages:
            self.users[page] += 1

    def give_back(self, pages: Iterable[int]) -> None:
        for page in pages:
            self.users[page] -= 1
            if not self.users[page]:
                self.free.append(page)
