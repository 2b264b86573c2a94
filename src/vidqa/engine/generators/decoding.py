"""Decode steps of the native generator: one token of every row that is being answered, replayed as one graph on a GPU.

What a step needs of its rows stays on the device, and the step itself moves it on and draws the next tokens; the host
writes the places whose row has changed, and tokens that it chose itself.

Shape letters: B rows of a step, P pages of a row, V tokens that the model knows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from vidqa.engine.generators.choosing import Draft
from vidqa.engine.generators.drawing import draw
from vidqa.engine.model.paged_cache import PagedCache
from vidqa.planning.budget.answering import CAPTURED

SPARE = 8  # times the rows of a step that its graph may be for


@dataclass(eq=False)
class DecodingRow:
    """A prompt that is being answered: its pages, the tokens that they hold, and the position of the next one."""

    draft: Draft
    pages: list[int]
    held: int
    position: int = 0


class Decoder:
    """Steps of at most `most` rows of at most `width` pages each. `rows` are those of the next step."""

    def __init__(self, forward: Any, cache: PagedCache, most: int, width: int, device: torch.device) -> None:
        self.forward, self.cache, self.most, self.device = forward, cache, most, device
        self.rows: list[DecodingRow] = []
        self.written: list[DecodingRow | None] = [None] * most  # the row that each place on the device is for
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
        self.draws = False  # whether any row's token is drawn: else the likeliest ones are taken, which is faster
        self.graphs: dict[int, tuple[Any, torch.Tensor]] = {}
        self.drawing_graphs: dict[int, tuple[Any, torch.Tensor]] = {}

    def leave(self, rows: Collection[DecodingRow]) -> None:
        """Take rows out; the last ones move to their places."""
        for place in reversed(range(len(self.rows))):
            if self.rows[place] in rows:
                last = self.rows.pop()
                if place < len(self.rows):
                    self.rows[place] = last

    def step(self) -> torch.Tensor:
        """Logits [B, V] behind the newest token of each row. On the device, rows go on with the tokens drawn from them,
        which `token_B` holds then."""
        self._write(place for place in range(self.most) if self.written[place] is not self._row(place))
        count = len(self.rows)
        self.draws = any(row.draft.temperature > 0 for row in self.rows)
        for row in self.rows:
            row.held += 1
            row.position += 1
        if self.device.type != "cuda":
            return self.run(count)
        graph, logits = self.graph_for(count)
        graph.replay()
        return logits[:count]

    def graph_for(self, count: int) -> tuple[Any, torch.Tensor]:
        """The graph of a step of `count` rows. A larger one serves as well, so rows that leave one after the other cost
        few captures: up to there a step takes the time in which the weights are read."""
        graphs = self.drawing_graphs if self.draws else self.graphs
        fitting = [size for size in graphs if count <= size <= count * SPARE]
        size = min(fitting, default=min([*(size for size in CAPTURED if size >= count), self.most]))
        if size not in graphs:
            self.capture(size)
        return graphs[size]

    def go_on_with(self, token_B: torch.Tensor) -> None:
        """The tokens that were chosen behind the last step, where the host chose some of them."""
        self.token_B[: len(token_B)] = token_B

    def run(self, count: int) -> torch.Tensor:
        """The step itself, of the first places."""
        token, position, held, alive, table, temperature, key, drawn = (buffer[:count] for buffer in self.buffers)
        logits = self.forward.step(token, position, held, table, alive, self.cache)
        token.copy_(draw(logits, temperature, key, drawn) if self.draws else logits.argmax(-1))
        position.add_(alive)
        held.add_(alive)
        drawn.add_(alive)
        return logits

    def capture(self, size: int) -> None:
        """Make the graph of a step of `size` rows, which draws or does not."""
        with self.nobody():
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):  # kernels are compiled and libraries set up before the capture
                self.run(size)
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                logits = self.run(size)
        (self.drawing_graphs if self.draws else self.graphs)[size] = graph, logits

    @contextmanager
    def nobody(self) -> Iterator[None]:
        """Meanwhile no place has a row: a step changes nothing but page 0, which belongs to no prompt."""
        kept = [buffer.clone() for buffer in self.buffers]
        for buffer in self.buffers:
            buffer.zero_()
        yield
        for buffer, values in zip(self.buffers, kept, strict=True):
            buffer.copy_(values)

    def _row(self, place: int) -> DecodingRow | None:
        return self.rows[place] if place < len(self.rows) else None

    def _write(self, changed: Iterable[int]) -> None:
        """Bring places of the device up to date; those without a row hold nothing, in page 0."""
        places = list(changed)
        if not places:
            return
        table = np.zeros((len(places), self.table_BP.shape[1]), np.int32)
        numbers = np.zeros((6, len(places)), np.int64)
        temperature = np.zeros(len(places), np.float32)
        for i, place in enumerate(places):
            if row := self._row(place):
                table[i, : len(row.pages)] = row.pages
                draft = row.draft
                numbers[:, i] = draft.token_ids[-1], row.position, row.held, 1, draft.key, len(draft.token_ids)
                temperature[i] = draft.temperature
            self.written[place] = self._row(place)
        at = torch.tensor(places, device=self.device)
        self.table_BP[at] = torch.from_numpy(table).to(self.device)
        self.temperature_B[at] = torch.from_numpy(temperature).to(self.device)
        written = (self.token_B, self.position_B, self.held_B, self.alive_B, self.key_B, self.count_B)
        for buffer, values in zip(written, torch.from_numpy(numbers).to(self.device), strict=True):
            buffer[at] = values.to(buffer.dtype)
