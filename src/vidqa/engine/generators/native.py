"""Our own forward: prompts packed without padding, a paged cache, and decode steps that a GPU replays as one graph.

Prompts with a common beginning stand in a pack behind it, as in training: its video and its tokens are computed once,
and all of them read its pages. Rows that are finished leave, prompts that wait take their places.

Shape letters: B rows of a decode step, P pages of a row.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from transformers import LogitsProcessorList

from vidqa.engine.batch.collate import Collator
from vidqa.engine.batch.layout import Layout, lay_out
from vidqa.engine.exports import load_export
from vidqa.engine.families import family_of
from vidqa.engine.generators._base import Generator, Request, Result, Settings, ready
from vidqa.engine.generators.reference import processors_of
from vidqa.engine.model.paged_cache import PAGE, PagedCache, Pages

PACK_TOKENS = {"cuda": 16384, "cpu": 2048}  # of prompts that are read together
ROWS_ON_GPU = 64  # prompts that a GPU answers at a time; fewer leave it waiting for its memory
CACHE_SHARE = 0.7  # of the memory that the model leaves free; packs take the rest
Prompt = tuple[Request, Sequence[np.ndarray]]  # a request with its frames
CAPTURED = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)  # rows of the decode steps that are captured


@dataclass(eq=False)
class Row:
    """A prompt that is being answered: its pages, the tokens that they hold, and the position of the next one."""

    request: Request
    pages: list[int]
    held: int
    scores: LogitsProcessorList
    position: int = 0
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def result(self) -> Result | None:
        """What came of it, once it is finished."""
        stopped = self.token_ids[-1] in self.request.stop_ids
        if not stopped and len(self.token_ids) < self.request.sampling.max_tokens:
            return None
        logprobs = tuple(self.logprobs) if self.request.logprobs else ()
        return Result(self.request.id, "stop" if stopped else "length", tuple(self.token_ids), logprobs)


def pages_of(request: Request) -> int:
    """Pages for a prompt and its answer."""
    return -(-request.most // PAGE)


class PromptCollator(Collator):
    """Batches of prompts, whose tokens are given; nothing of them has a label."""

    def _tokens(self, sample: Any, usable: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        ids = sample.token_ids.astype(np.int64)
        merge = self.geometry.video.merge_size
        position = self.planner.family.rope_positions(ids, self.image_id, self.video_id, sample.plans, merge)
        return ids, np.zeros(len(ids), bool), position


class NativeSession:
    """Answers with a model that this process holds."""

    def __init__(self, model: Any, settings: Settings) -> None:
        family, self.device = family_of(model), settings.device
        self.forward, heads = family.cached_forward(model), family.attention_heads(model.config)[0]
        self.planner, self.longest = settings.planner, settings.longest
        on_gpu = self.device.type == "cuda"
        self.most = max(settings.batch_size, ROWS_ON_GPU) if on_gpu else settings.batch_size
        self.pack_tokens = PACK_TOKENS[self.device.type]
        sizes = family.tables.sizes_of(settings.base or settings.folder)
        self.collator = PromptCollator(settings.planner, sizes.vision, self.device.type, share=True)
        shape = (sizes.text.layers, heads.keys, heads.width, settings.dtype)
        width = -(-self.longest // PAGE)
        count = self.most * width
        if on_gpu:
            free = torch.cuda.mem_get_info(self.device)[0] * CACHE_SHARE
            count = max(width, min(count, int(free / (PagedCache.bytes_per_token(*shape) * PAGE))))
        else:
            count = min(count, max(width, 2 * self.most))
        self.pages = Pages(count + 1)
        self.cache = PagedCache.of(count + 1, *shape, self.device)
        self.rows: list[Row] = []
        zeros = partial(torch.zeros, self.most, device=self.device)
        self.token_B, self.position_B = zeros(dtype=torch.int64), zeros(dtype=torch.int64)
        self.held_B, self.alive_B = zeros(dtype=torch.int32), zeros(dtype=torch.int32)
        self.table_BP = torch.zeros(self.most, width, device=self.device, dtype=torch.int32)
        self.graphs: dict[int, tuple[Any, torch.Tensor]] = {}

    @torch.no_grad()
    def generate(self, requests: Iterable[Request]) -> Iterator[list[Result]]:
        source, waiting = iter(requests), deque[Request]()
        while True:
            waiting.extend(islice(source, self.most - len(waiting)))
            if not waiting and not self.rows:
                return
            pack, results = self._next_pack(waiting)
            if pack:
                results += self._admit(pack)
            elif self.rows:
                results += self._advance()
            if results:
                yield results

    def close(self) -> None:
        self.graphs.clear()
        del self.forward, self.cache

    def _next_pack(self, waiting: deque[Request]) -> tuple[list[Prompt], list[Result]]:
        """The first of the prompts that wait, as many as a pack, the rows and the cache take; none while the pack would
        be a small one and others are being answered. And the results of those that cannot be answered."""
        chosen: list[Request] = []
        tokens, pages, key = 0, len(self.pages.free), b""
        for request in waiting:
            shared = request.prefix if request.prefix_key and request.prefix_key == key else 0
            new, need = request.length - shared, pages_of(request) - shared // PAGE
            is_too_long = request.most > self.longest
            full = len(self.rows) + len(chosen) >= self.most or (need > pages and not is_too_long)
            if full or (chosen and tokens + new > self.pack_tokens):
                break
            chosen.append(request)
            if not is_too_long:
                tokens, pages, key = tokens + new, pages - need, request.prefix_key
        if self.rows and tokens < self.pack_tokens // 2 and len(chosen) < len(waiting):
            return [], []
        pack, results = [], []
        for _ in chosen:
            request = waiting.popleft()
            frames = ready(request, self.longest)
            if isinstance(frames, Result):
                results.append(frames)
            else:
                pack.append((request, frames))
        return pack, results

    def _admit(self, pack: Sequence[Prompt]) -> list[Result]:
        """Read the prompts of a pack, and choose the first token of each."""
        requests: Any = [request for request, _ in pack]  # laid out and collated as samples are
        layout = lay_out(requests, self.collator.padded, share=True)
        batch = self.collator(range(len(pack)), requests, [frames for _, frames in pack])
        rows, source, target = self._placed(requests, layout)
        last = np.array([layout.rows[i][-1] for i in range(len(pack))])
        for row, position in zip(rows, batch.position_3T[:, last].amax(0).tolist(), strict=True):
            row.position = position + 1  # a prompt ends in text, whose positions are behind those of all media
        places = (torch.from_numpy(each).to(self.device) for each in (source, target, last))
        return self._choose(rows, self.forward.prefill(batch.to(self.device), self.cache, *places), new=True)

    def _placed(self, requests: Sequence[Request], layout: Layout) -> tuple[list[Row], np.ndarray, np.ndarray]:
        """A row for every prompt, and which rows of the pack go to which rows of the cache. Full pages of a common
        beginning are held once; what of it lies in a page that is not full, each prompt has in a page of its own."""
        rows: dict[int, Row] = {}
        source, target = [], []
        for unit in layout.units:
            shared = requests[unit[0]].prefix // PAGE if len(unit) > 1 else 0
            common = self.pages.take(shared)
            for number in unit:
                request, first = requests[number], 0
                if number != unit[0]:
                    self.pages.share(common)
                    first = shared * PAGE
                pages = [*common, *self.pages.take(pages_of(request) - shared)]
                at = np.arange(first, request.length)
                source.append(layout.rows[number][first:])
                target.append(np.array(pages)[at // PAGE] * PAGE + at % PAGE)
                rows[number] = Row(request, pages, request.length, processors_of([request], self.device))
        return [rows[number] for number in range(len(requests))], np.concatenate(source), np.concatenate(target)

    def _advance(self) -> list[Result]:
        """One more token of every row."""
        logits = self._step()
        for row in self.rows:
            row.held += 1
            row.position += 1
        return self._choose(list(self.rows), logits, new=False)

    def _step(self) -> torch.Tensor:
        count = len(self.rows)
        if self.device.type != "cuda":
            return self._forward(count)
        size = min(self.most, next((size for size in CAPTURED if size >= count), self.most))
        if size not in self.graphs:
            self._capture(size)
        graph, logits = self.graphs[size]
        graph.replay()
        return logits[:count]

    def _forward(self, count: int) -> torch.Tensor:
        """Logits of the first rows, which then are where the likeliest token puts them."""
        token, position, held, alive = (
            each[:count] for each in (self.token_B, self.position_B, self.held_B, self.alive_B)
        )
        logits = self.forward.step(token, position, held, self.table_BP[:count], alive, self.cache)
        token.copy_(logits.argmax(-1))
        position.add_(alive)
        held.add_(alive)
        return logits

    def _capture(self, size: int) -> None:
        buffers = (self.token_B, self.position_B, self.held_B, self.alive_B)
        kept = [buffer.clone() for buffer in buffers]
        self.alive_B.zero_()
        self.held_B.zero_()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # kernels are compiled and libraries set up before the capture
            self._forward(size)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            logits = self._forward(size)
        self.graphs[size] = graph, logits
        for buffer, values in zip(buffers, kept, strict=True):
            buffer.copy_(values)

    def _choose(self, rows: Sequence[Row], logits: torch.Tensor, *, new: bool) -> list[Result]:
        """The next token of each row; rows that are finished leave."""
        chosen = logits.argmax(-1)
        drawn = [i for i, row in enumerate(rows) if row.scores]
        for i in drawn:
            row = rows[i]
            seen = torch.tensor([[*row.request.token_ids.tolist(), *row.token_ids]], device=self.device)
            chosen[i] = row.scores(seen, logits[i : i + 1]).argmax()
        values = [chosen.double()]
        if any(row.request.logprobs for row in rows):
            values.append((logits.gather(1, chosen[:, None])[:, 0] - logits.logsumexp(-1)).double())
        tokens, *logprobs = torch.stack(values).tolist()  # the one time that the host waits for a step
        results = []
        for i, row in enumerate(rows):
            row.token_ids.append(int(tokens[i]))
            row.logprobs += [each[i] for each in logprobs]
            if result := row.result():
                results.append(result)
                self.pages.give_back(row.pages)
                if not new:
                    self.rows.remove(row)
            elif new:
                self.rows.append(row)
        if new or results or drawn:
            self._write_rows()
        return results

    def _write_rows(self) -> None:
        """The rows as they are now, on the device."""
        table = np.zeros(tuple(self.table_BP.shape), np.int32)
        numbers = np.zeros((4, self.most), np.int64)
        for place, row in enumerate(self.rows):
            table[place, : len(row.pages)] = row.pages
            numbers[:, place] = row.token_ids[-1], row.position, row.held, 1
        self.table_BP.copy_(torch.from_numpy(table))
        buffers = (self.token_B, self.position_B, self.held_B, self.alive_B)
        for buffer, values in zip(buffers, torch.from_numpy(numbers).to(self.device), strict=True):
            buffer.copy_(values)


def _open(settings: Settings) -> NativeSession:
    model = load_export(settings.folder, settings.base, settings.dtype, settings.device)
    return NativeSession(model, settings)


NATIVE = Generator("native", _open)
