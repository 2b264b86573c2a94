"""Our own forward: prompts packed without padding, a paged cache, then decode steps of all prompts (`decoding`).

Prompts with a common beginning stand in a pack behind it, as in training: its video and its tokens are computed once,
and all of them read its pages. Rows that are finished leave, prompts that wait take their places. Candidates to be
scored stand in the pack behind their prompt; they take no pages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from vidqa.engine.batch.collate import Collator
from vidqa.engine.batch.layout import Layout, lay_out
from vidqa.engine.exports import load_export
from vidqa.engine.families import family_of
from vidqa.engine.generators._base import Generator, Request, Result, Settings, ready
from vidqa.engine.generators.choosing import Draft, next_tokens, write_tokens
from vidqa.engine.generators.decoding import Decoder, DecodingRow
from vidqa.engine.generators.scoring import heads_of, scored
from vidqa.engine.memory_policy import free_memory
from vidqa.engine.model.attention import Call, attend_zeros
from vidqa.engine.model.paged_cache import PAGE, PagedCache, Pages
from vidqa.planning.budget import answering

PACK_TOKENS = {"cuda": answering.PACK_TOKENS, "cpu": 2048}  # of prompts that are read together
Prompt = tuple[Request, Sequence[np.ndarray]]  # a request with its frames


def pages_of(request: Request) -> int:
    """Pages for a prompt and its answer."""
    return 0 if request.candidates else -(-request.most // PAGE)


def read_for(request: Request) -> list[Request]:
    """What stands in a pack for a request: its prompt, or the prompt with each head of its candidates behind it, which
    share the prompt's media or, where it shares nothing with other prompts, all but its last token."""
    if not request.candidates:
        return [request]
    heads = heads_of(request)
    if len(heads) > 1 and not request.prefix_key:
        request = replace(request, prefix=request.length - 1, prefix_key=f"candidates of {request.id}".encode())
    ids = [np.concatenate([request.token_ids, np.array(head, np.int32)]) for head in heads]
    return [replace(request, token_ids=each) for each in ids]


class PromptCollator(Collator):
    """Batches of prompts, whose tokens are given; nothing of them has a label."""

    def _tokens(self, sample: Any, usable: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        ids = sample.token_ids.astype(np.int64)
        positions = self.planner.family.rope_positions
        position = positions(ids, self.image_id, self.video_id, sample.plans, self.geometry)
        return ids, np.zeros(len(ids), bool), position


class NativeSession:
    """Answers with a model that this process holds. `banned` are token ids that no answer has; `pages` is the size of
    the cache where the caller knows what its requests need, instead of as much as the GPU has."""

    def __init__(self, model: Any, settings: Settings, *, banned: Sequence[int] = (), pages: int = 0) -> None:
        family, self.device, self.dtype = family_of(model), settings.device, settings.dtype
        self.heads, self.planned = family.attention_heads(model.config), set[tuple[int, Call]]()
        self.forward, heads = family.cached_forward(model), self.heads[0]
        self.forward.banned = torch.tensor(banned, dtype=torch.int64, device=self.device)
        self.planner, self.longest = settings.planner, settings.longest
        on_gpu = self.device.type == "cuda"
        self.most = settings.batch_size if pages or not on_gpu else max(settings.batch_size, answering.ROWS)
        self.pack_tokens = PACK_TOKENS[self.device.type]
        sizes = family.tables.sizes_of(settings.base or settings.folder)
        self.collator = PromptCollator(settings.planner, sizes.vision, self.device.type, share=True)
        shape = (sizes.text.layers, heads.keys, heads.width, settings.dtype)
        width = -(-self.longest // PAGE)
        if pages:
            count = pages
        elif on_gpu:
            free = free_memory(self.device)
            count = answering.cache_pages(self.most, self.longest, free, PagedCache.bytes_per_token(*shape))
        else:
            count = min(self.most * width, max(width, 2 * self.most))
        self.pages = Pages(count + 1)
        self.cache = PagedCache.of(count + 1, *shape, self.device)
        self.decoder = Decoder(self.forward, self.cache, self.most, width, self.device)

    @torch.no_grad()
    def generate(self, requests: Iterable[Request | None]) -> Iterator[list[Result]]:
        source, waiting = iter(requests), deque[Request]()
        ended = False
        try:
            while not ended or waiting or self.decoder.rows:
                ended = ended or self._take(source, waiting)
                pack, results = self._next_pack(waiting)
                if pack:
                    results += self._admit(pack, waiting)
                elif self.decoder.rows:
                    results += self._advance()
                if results or not (ended or waiting or self.decoder.rows):
                    yield results
        finally:
            self._leave(list(self.decoder.rows))

    def close(self) -> None:
        del self.forward, self.cache, self.decoder

    def _take(self, source: Iterator[Request | None], waiting: deque[Request]) -> bool:
        """Take requests until enough wait or there is none now. Says whether there will be no more."""
        while len(waiting) < self.most:
            try:
                request = next(source)
            except StopIteration:
                return True
            if request is None:
                break
            waiting.append(request)
        return False

    def _next_pack(self, waiting: deque[Request]) -> tuple[list[Prompt], list[Result]]:
        """The first of the prompts that wait, as many as a pack, the rows and the cache take; none while the pack would
        be a small one and others are being answered. And the results of those that cannot be answered."""
        cancelled = [request for request in waiting if request.cancelled()]
        for request in cancelled:
            waiting.remove(request)
        results = [Result(request.id, "cancelled") for request in cancelled]
        chosen, tokens = self._fitting(waiting)
        if self.decoder.rows and tokens < self.pack_tokens // 2 and len(chosen) < len(waiting):
            return [], results
        pack = []
        for _ in chosen:
            request = waiting.popleft()
            frames = ready(request, self.longest)
            if isinstance(frames, Result):
                results.append(frames)
            else:
                pack.append((request, frames))
        return pack, results

    def _fitting(self, waiting: Iterable[Request]) -> tuple[list[Request], int]:
        """The first of the prompts that wait, as many as a pack, the rows and the cache take, and their tokens."""
        chosen: list[Request] = []
        tokens, pages, key = 0, len(self.pages.free), b""
        for request in waiting:
            parts = read_for(request)
            shared = request.prefix if request.prefix_key and request.prefix_key == key else 0
            new = sum(part.length for part in parts) - parts[0].prefix * (len(parts) - 1) - shared
            need = pages_of(request) - (0 if chosen and chosen[-1].candidates else shared // PAGE)
            is_too_long = request.most > self.longest
            full = len(self.decoder.rows) + len(chosen) >= self.most or (need > pages and not is_too_long)
            if full or (chosen and tokens + new > self.pack_tokens):
                break
            chosen.append(request)
            if not is_too_long:
                tokens, pages, key = tokens + new, pages - max(need, 0), request.prefix_key
        return chosen, tokens

    def _admit(self, pack: Sequence[Prompt], waiting: Iterable[Request]) -> list[Result]:
        """Read the prompts of a pack; choose the first token of each, or score its candidates. Meanwhile kernels are
        planned for those that wait."""
        parts: Any = [part for request, _ in pack for part in read_for(request)]  # laid out and collated as samples are
        of = [i for i, (request, _) in enumerate(pack) for _ in read_for(request)]
        heads = [part.length - pack[i][0].length for part, i in zip(parts, of, strict=True)]
        layout = lay_out(parts, self.collator.padded, share=True)
        batch = self.collator(range(len(parts)), parts, [pack[i][1] for i in of])
        rows, source, target = self._placed(parts, layout)
        ends = [layout.rows[i][-heads[i] - 1 :] for i in range(len(parts))]
        for i, row in rows.items():
            # Behind the prompt's last token, as in training and in transformers; times of a medium may be later.
            row.position = int(batch.position_3T[:, layout.rows[i][-1]].amax()) + 1
        places = (torch.from_numpy(each).to(self.device) for each in (source, target, np.concatenate(ends)))
        logits = self.forward.prefill(batch.to(self.device), self.cache, *places)
        self._plan(waiting)
        results, first = [], []
        found = iter(logits.split([len(end) for end in ends]))
        for request, _ in pack:
            mine = [next(found) for _ in read_for(request)]
            if request.candidates:
                results.append(scored(request, heads_of(request), mine))
            else:
                first += mine
        if rows:
            self.decoder.rows += rows.values()
            drafts, logits = [row.draft for row in rows.values()], torch.cat(first)
            write_tokens(drafts, logits, next_tokens(drafts, logits))
        return results + self._finished(list(rows.values()))

    def _plan(self, waiting: Iterable[Request]) -> None:
        """Let cuDNN plan what attention of the next pack needs and has not met, while the GPU is at work on this one:
        the host would wait for it, and the GPU for the host then."""
        if self.device.type != "cuda" or self.dtype == torch.float32:
            return
        chosen = [request for request in self._fitting(waiting)[0] if request.most <= self.longest]
        parts: Any = [part for request in chosen for part in read_for(request)]
        for tower, segments in enumerate(self.collator.segments(parts) if parts else ()):
            for _, count, length in segments:
                if (key := (tower, (count, length))) not in self.planned:
                    self.planned.add(key)
                    attend_zeros(key[1], self.heads[tower], self.device, causal=tower == 0, dtype=self.dtype)

    def _placed(
        self, parts: Sequence[Request], layout: Layout
    ) -> tuple[dict[int, DecodingRow], np.ndarray, np.ndarray]:
        """A row for every prompt that is to be answered, in the order of `parts`, and which rows of the pack go to
        which rows of the cache. Full pages of a common beginning are held once; what of it lies in a page that is not
        full, each prompt has in a page of its own."""
        rows: dict[int, DecodingRow] = {}
        source, target = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for unit in layout.units:
            answered = [number for number in unit if not parts[number].candidates]
            shared = parts[unit[0]].prefix // PAGE if len(answered) > 1 else 0
            common = self.pages.take(shared)
            for number in answered:
                request, first = parts[number], 0
                if number != answered[0]:
                    self.pages.share(common)
                    first = shared * PAGE
                pages = [*common, *self.pages.take(pages_of(request) - shared)]
                at = np.arange(first, request.length)
                source.append(layout.rows[number][first:])
                target.append(np.array(pages)[at // PAGE] * PAGE + at % PAGE)
                rows[number] = DecodingRow(Draft.of(request, self.device), pages, request.length)
        return dict(sorted(rows.items())), np.concatenate(source), np.concatenate(target)

    def _advance(self) -> list[Result]:
        """One more token of every row."""
        rows, logits = list(self.decoder.rows), self.decoder.step()
        drafts = [row.draft for row in rows]
        if any(draft.chooser for draft in drafts):
            chosen = next_tokens(drafts, logits)
            self.decoder.go_on_with(chosen)
        else:
            chosen = self.decoder.token_B[: len(rows)]
        write_tokens(drafts, logits, chosen)
        return self._finished(rows)

    def _finished(self, rows: Sequence[DecodingRow]) -> list[Result]:
        """The results of rows that are finished, which leave."""
        results = {row: result for row in rows if (result := row.draft.result())}
        self._leave(results)
        return list(results.values())

    def _leave(self, rows: Collection[DecodingRow]) -> None:
        self.decoder.leave(rows)
        for row in rows:
            self.pages.give_back(row.pages)


def _open(settings: Settings) -> NativeSession:
    model = load_export(settings.folder, settings.base, settings.dtype, settings.device, keep_few_bits=True)
    return NativeSession(model, settings)


NATIVE = Generator("native", _open)
