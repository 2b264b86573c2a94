"""Decode steps of the native generator: one token of every active row, on a GPU replayed as one CUDA graph.

The state of the rows stays on the device: the step itself advances it and draws the next tokens. The host writes the
slots whose row has changed, and tokens chosen on the host.

Shape letters: B rows of a step, P pages of a row, V vocabulary size.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from vidqa.engine.families._base import PagedCache
from vidqa.engine.generators.sampler import SequenceState, draw
from vidqa.planning.budget.answering import CAPTURED

SPARE = 8  # maximum ratio of the rows of a graph to those of the step that it runs


@dataclass(eq=False)
class DecodingRow:
    """An active prompt: its pages, the number of tokens in them, and the position of the next token."""

    state: SequenceState
    pages: list[int]
    held: int
    position: int = 0


class Decoder:
    """Runs steps of up to `most` rows of up to `width` pages each. `rows` are those of the next step, one per slot."""

    def __init__(self, forward: Any, cache: PagedCache, most: int, width: int, device: torch.device) -> None:
        self.forward, self.cache, self.most, self.device = forward, cache, most, device
        self.rows: list[DecodingRow] = []
        self.slots: list[DecodingRow | None] = [None] * most  # the row of each slot on the device
        zeros = partial(torch.zeros, most, device=device)
        self.token_B, self.position_B = zeros(dtype=torch.int64), zeros(dtype=torch.int64)
        self.held_B, self.alive_B = zeros(dtype=torch.int32), zeros(dtype=torch.int32)
        self.table_BP = torch.zeros(most, width, device=device, dtype=torch.int32)
        self.temperature_B = zeros(dtype=torch.float32)
        self.key_B, self.count_B = zeros(dtype=torch.int64), zeros(dtype=torch.int64)  # of draws
        self.buffers = (
            *(self.token_B, self.position_B, self.held_B, self.alive_B, self.table_BP),
            *(self.temperature_B, self.key_B, self.count_B),
        )
        self.is_drawn = False  # whether any row's token is sampled; argmax is faster
        self.graphs: dict[int, tuple[Any, torch.Tensor]] = {}
        self.drawing_graphs: dict[int, tuple[Any, torch.Tensor]] = {}

    def remove(self, rows: Collection[DecodingRow]) -> None:
        """Remove rows; the last ones move into their slots."""
        for slot in reversed(range(len(self.rows))):
            if self.rows[slot] in rows:
                last = self.rows.pop()
                if slot < len(self.rows):
                    self.rows[slot] = last

    def step(self) -> torch.Tensor:
        """Run one step. Returns logits [B, V] after the newest token of each row; on the device, `token_B` then holds
        the next tokens of the rows, sampled or greedy."""
        self._write(slot for slot in range(self.most) if self.slots[slot] is not self._row(slot))
        count = len(self.rows)
        self.is_drawn = any(row.state.temperature > 0 for row in self.rows)
        for row in self.rows:
            row.held += 1
            row.position += 1
        if self.device.type != "cuda":
            return self.run(count)
        graph, logits = self.graph_for(count)
        graph.replay()
        return logits[:count]

    def graph_for(self, count: int) -> tuple[Any, torch.Tensor]:
        """The graph of a step of `count` rows. A larger graph works as well, so that few are captured: up to SPARE
        times the rows, a step takes the time to read the weights."""
        graphs = self.drawing_graphs if self.is_drawn else self.graphs
        fitting = [size for size in graphs if count <= size <= count * SPARE]
        size = min(fitting, default=min([*(size for size in CAPTURED if size >= count), self.most]))
        if size not in graphs:
            self.capture(size)
        return graphs[size]

    def run(self, count: int) -> torch.Tensor:
        """Run the step itself, for the first `count` slots."""
        token, position, held, alive, table, temperature, key, drawn = (buffer[:count] for buffer in self.buffers)
        logits = self.forward.step(token, position, held, table, alive, self.cache)
        token.copy_(draw(logits, temperature, key, drawn) if self.is_drawn else logits.argmax(-1))
        position.add_(alive)
        held.add_(alive)
        drawn.add_(alive)
        return logits

    def capture(self, size: int) -> None:
        """Capture the graph of a step of `size` rows, with sampling or without."""
        with self.without_rows():
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):  # compiles kernels and initialises libraries before the capture
                self.run(size)
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                logits = self.run(size)
        (self.drawing_graphs if self.is_drawn else self.graphs)[size] = graph, logits

    @contextmanager
    def without_rows(self) -> Iterator[None]:
        """Clear all slots inside the block: a step then changes only page 0, which belongs to no prompt."""
        saved = [buffer.clone() for buffer in self.buffers]
        for buffer in self.buffers:
            buffer.zero_()
        yield
        for buffer, values in zip(self.buffers, saved, strict=True):
            buffer.copy_(values)

    def _row(self, slot: int) -> DecodingRow | None:
        return self.rows[slot] if slot < len(self.rows) else None

    def _write(self, changed: Iterable[int]) -> None:
        """Write changed slots to the device; slots without a row hold no tokens and use page 0."""
        slots = list(changed)
        if not slots:
            return
        table = np.zeros((len(slots), self.table_BP.shape[1]), np.int32)
        numbers = np.zeros((6, len(slots)), np.int64)
        temperature = np.zeros(len(slots), np.float32)
        for i, slot in enumerate(slots):
            if row := self._row(slot):
                table[i, : len(row.pages)] = row.pages
                state = row.state
                numbers[:, i] = state.token_ids[-1], row.position, row.held, 1, state.key, len(state.token_ids)
                temperature[i] = state.temperature
            self.slots[slot] = self._row(slot)
        at = torch.tensor(slots, device=self.device)
        self.table_BP[at] = torch.from_numpy(table).to(self.device)
        self.temperature_B[at] = torch.from_numpy(temperature).to(self.device)
        buffers = (self.token_B, self.position_B, self.held_B, self.alive_B, self.key_B, self.count_B)
        for buffer, values in zip(buffers, torch.from_numpy(numbers).to(self.device), strict=True):
            buffer[at] = values.to(buffer.dtype)
