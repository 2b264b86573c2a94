"""The native generator: prompts packed without padding, a paged cache, then decode steps of all rows (`decode_graph`).

Prompts with a common prefix share it in a pack, as in training: its video and its tokens are computed once, and all of
them read its pages. Finished rows leave, waiting prompts take their slots. Candidates to be scored follow their prompt
in the pack and need no pages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from vidqa.engine.data.collate import Collator
from vidqa.engine.data.layout import Layout, lay_out
from vidqa.engine.export import load_export
from vidqa.engine.families import family_of
from vidqa.engine.families._base import PagedCache
from vidqa.engine.generators._base import Settings, ready
from vidqa.engine.generators.decode_graph import Decoder, DecodingRow
from vidqa.engine.generators.sampler import (
    SequenceState,
    append_tokens,
    candidate_prefixes,
    next_tokens,
    score_candidates,
)
from vidqa.engine.memory import free_memory
from vidqa.engine.model.attention import Call, attend_zeros
from vidqa.planning.budget import answering
from vidqa.planning.budget.answering import PAGE
from vidqa.planning.requests import Request, Result

PACK_TOKENS = {"cuda": answering.PACK_TOKENS, "cpu": 2048}  # tokens of a pack
Prompt = tuple[Request, Sequence[np.ndarray]]  # a request with its frames


class Pages:
    """Counts the users of each page; pages without a user are free."""

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


def pages_of(request: Request) -> int:
    """The number of pages for a prompt and its answer."""
    return 0 if request.candidates else -(-request.most // PAGE)


def pack_parts(request: Request) -> list[Request]:
    """The parts of a pack for a request: its prompt, or one copy of it for each prefix of its candidates. Copies share
    the prompt's media or, if it shares nothing with other prompts, all but its last token."""
    if not request.candidates:
        return [request]
    prefixes = candidate_prefixes(request)
    if len(prefixes) > 1 and not request.prefix_key:
        request = replace(request, prefix=request.length - 1, prefix_key=f"candidates of {request.id}".encode())
    rows = [np.concatenate([request.token_ids, np.array(prefix, np.int32)]) for prefix in prefixes]
    return [replace(request, token_ids=token_ids) for token_ids in rows]


class PromptCollator(Collator):
    """Builds batches of prompts from their token ids, without labels."""

    def _encoded(self, sample: Any) -> tuple[np.ndarray, np.ndarray]:
        return sample.token_ids.astype(np.int64), np.zeros(len(sample.token_ids), bool)


class NativeSession:
    """Answers with a model in this process. `banned` are token ids that no answer has. `pages` is the size of the
    cache; if it is 0 the size is derived from the GPU's free memory."""

    def __init__(self, model: Any, settings: Settings, *, banned: Sequence[int] = (), pages: int = 0) -> None:
        family, self.device, self.dtype = family_of(model), settings.device, settings.dtype
        self.heads, self.planned_calls = family.attention_heads(model.config), set[tuple[int, Call]]()
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
            per_token = answering.cache_bytes_per_token(sizes, settings.dtype.itemsize)
            count = answering.cache_pages(self.most, self.longest, free_memory(self.device), per_token)
        else:
            count = min(self.most * width, max(width, 2 * self.most))
        self.pages = Pages(count + 1)
        self.cache = PagedCache.empty(count + 1, *shape, self.device)
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
            self._remove(list(self.decoder.rows))

    def close(self) -> None:
        del self.forward, self.cache, self.decoder

    def _take(self, source: Iterator[Request | None], waiting: deque[Request]) -> bool:
        """Take requests until enough wait or none is available. Returns whether the source is exhausted."""
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
        """The next pack of waiting prompts, and the results of those that cannot be answered. The pack is empty if it
        would be small and other rows are active."""
        cancelled = [request for request in waiting if request.cancelled()]
        for request in cancelled:
            waiting.remove(request)
        results = [Result(request.id, "cancelled") for request in cancelled]
        selected, tokens = self._fitting(waiting)
        if self.decoder.rows and tokens < self.pack_tokens // 2 and len(selected) < len(waiting):
            return [], results
        pack = []
        for _ in selected:
            request = waiting.popleft()
            frames = ready(request, self.longest)
            if isinstance(frames, Result):
                results.append(frames)
            else:
                pack.append((request, frames))
        return pack, results

    def _fitting(self, waiting: Iterable[Request]) -> tuple[list[Request], int]:
        """The first waiting prompts that fit into a pack, the free slots and the cache, and their number of tokens."""
        selected: list[Request] = []
        tokens, pages, key = 0, len(self.pages.free), b""
        for request in waiting:
            parts = pack_parts(request)
            shared = request.prefix if request.prefix_key and request.prefix_key == key else 0
            new = sum(part.length for part in parts) - parts[0].prefix * (len(parts) - 1) - shared
            need = pages_of(request) - (0 if selected and selected[-1].candidates else shared // PAGE)
            is_too_long = request.most > self.longest
            full = len(self.decoder.rows) + len(selected) >= self.most or (need > pages and not is_too_long)
            if full or (selected and tokens + new > self.pack_tokens):
                break
            selected.append(request)
            if not is_too_long:
                tokens, pages, key = tokens + new, pages - max(need, 0), request.prefix_key
        return selected, tokens

    def _admit(self, pack: Sequence[Prompt], waiting: Iterable[Request]) -> list[Result]:
        """Prefill a pack; choose the first token of each prompt, or score its candidates. Meanwhile attention kernels
        are planned for the next pack."""
        parts: Any = [part for request, _ in pack for part in pack_parts(request)]  # laid out and collated as samples
        owners = [i for i, (request, _) in enumerate(pack) for _ in pack_parts(request)]
        added = [part.length - pack[i][0].length for part, i in zip(parts, owners, strict=True)]
        layout = lay_out(parts, self.collator.padded, share=True)
        batch = self.collator(range(len(parts)), parts, [pack[i][1] for i in owners])
        rows, source, target = self._placed(parts, layout)
        ends = [layout.rows[i][-added[i] - 1 :] for i in range(len(parts))]
        for i, row in rows.items():
            # After the prompt's last token, as in training and in transformers; positions of a medium may be higher.
            row.position = int(batch.position_3T[:, layout.rows[i][-1]].amax()) + 1
        indices = (torch.from_numpy(rows).to(self.device) for rows in (source, target, np.concatenate(ends)))
        logits = self.forward.prefill(batch.to(self.device), self.cache, *indices)
        self._plan(waiting)
        results, first = [], []
        behind = iter(logits.split([len(end) for end in ends]))
        for request, _ in pack:
            own_logits = [next(behind) for _ in pack_parts(request)]
            if request.candidates:
                results.append(score_candidates(request, candidate_prefixes(request), own_logits))
            else:
                first += own_logits
        if rows:
            self.decoder.rows += rows.values()
            states, logits = [row.state for row in rows.values()], torch.cat(first)
            append_tokens(states, logits, next_tokens(states, logits))
        return results + self._finished(list(rows.values()))

    def _plan(self, waiting: Iterable[Request]) -> None:
        """Let cuDNN plan the new attention shapes of the next pack while the GPU works on this one; later the GPU would
        wait for the host."""
        if self.device.type != "cuda" or self.dtype == torch.float32:
            return
        selected = [request for request in self._fitting(waiting)[0] if request.most <= self.longest]
        parts: Any = [part for request in selected for part in pack_parts(request)]
        for tower, segments in enumerate(self.collator.segments(parts) if parts else ()):
            for _, count, length in segments:
                if (key := (tower, (count, length))) not in self.planned_calls:
                    self.planned_calls.add(key)
                    attend_zeros(key[1], self.heads[tower], self.device, causal=tower == 0, dtype=self.dtype)

    def _placed(
        self, parts: Sequence[Request], layout: Layout
    ) -> tuple[dict[int, DecodingRow], np.ndarray, np.ndarray]:
        """A row for every prompt to be answered, by its index in `parts`, and source rows in the pack and target rows
        in the cache. Full pages of a common prefix are stored once; its last, partly filled page once per prompt."""
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
                rows[number] = DecodingRow(SequenceState.begin(request, self.device), pages, request.length)
        return dict(sorted(rows.items())), np.concatenate(source), np.concatenate(target)

    def _advance(self) -> list[Result]:
        """Generate one more token of every row."""
        rows, logits = list(self.decoder.rows), self.decoder.step()
        states = [row.state for row in rows]
        if any(state.sampler for state in states):
            chosen = next_tokens(states, logits)
            self.decoder.token_B[: len(rows)] = chosen  # replaces the tokens drawn by the step
        else:
            chosen = self.decoder.token_B[: len(rows)]
        append_tokens(states, logits, chosen)
        return self._finished(rows)

    def _finished(self, rows: Sequence[DecodingRow]) -> list[Result]:
        """The results of finished rows, which are removed."""
        results = {row: result for row in rows if (result := row.state.result())}
        self._remove(results)
        return list(results.values())

    def _remove(self, rows: Collection[DecodingRow]) -> None:
        self.decoder.remove(rows)
        for row in rows:
            self.pages.give_back(row.pages)


def open_native(settings: Settings) -> NativeSession:
    model = load_export(settings.folder, settings.base, settings.dtype, settings.device, keep_few_bits=True)
    return NativeSession(model, settings)
