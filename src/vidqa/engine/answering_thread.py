"""The thread that owns the model: it takes orders from a queue, passes them to the generator, and answers them.

An order with decoded frames overtakes one that is still decoding, so that a slow file delays only its own order.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import torch

from vidqa.contract.problem import Code, Problem, ProblemError
from vidqa.dataset.record import MediaRef
from vidqa.engine.data.frames import FrameSource
from vidqa.engine.generators._base import Request, Result, Sampling, Session
from vidqa.planning.samples import Planner
from vidqa.serving._base import Mask, Order, Outcome
from vidqa.serving.problems import FAILED, STOPPING
from vidqa.video.pool import DecodePool, HeaderRequest

Ticket = list[list[Any]]


class AnsweringThread(threading.Thread):
    """A `serving.Backend`. `opened` is set once the model is loaded or has failed to load; `ended` is called when the
    thread stops answering."""

    def __init__(
        self,
        open_session: Callable[[], Session],
        planner: Planner,
        source: FrameSource,
        *,
        longest: int,
        most: int,
    ) -> None:
        super().__init__(name="answerer", daemon=True)
        self.planner, self.longest, self.most = planner, longest, most
        self.opened = threading.Event()
        self.problems: list[Problem] = []
        self.ended: Callable[[], None] = lambda: None
        self.has_failed = False
        self._open, self._source = open_session, source
        self._probes = DecodePool(1, source.pool.timeout_s)
        self._waiting: deque[tuple[Order, Ticket]] = deque()  # orders whose media are being decoded
        self._orders: deque[Order] = deque()  # orders behind these
        self._given: dict[str, Order] = {}
        self._lock, self._news = threading.Lock(), threading.Event()
        self._closing = False

    @property
    def is_answering(self) -> bool:
        return self.is_alive() and self.opened.is_set() and not self._closing

    @property
    def waiting(self) -> int:
        return len(self._orders) + len(self._waiting)

    def headers(self, media: Sequence[MediaRef]) -> list[Future[Any]]:
        return [self._probes.submit(HeaderRequest(ref.path, ref.member, ref.kind)) for ref in media]

    def submit(self, order: Order) -> None:
        with self._lock:
            if not self._closing:
                self._orders.append(order)
                self._news.set()
                return
        order.done(Outcome("error", problems=[STOPPING.at("server", "it is ending")]))

    def run(self) -> None:
        try:
            with closing(self._open()) as session:
                self.opened.set()
                for results in session.generate(self._coming()):
                    for result in results:
                        self._end(result)
                    if not results:
                        self._news.wait()
                        self._news.clear()
        except ProblemError as refused:  # the model cannot be loaded
            self.problems = refused.problems
        finally:
            self._leave()

    def close(self) -> None:
        self.stop()
        self.join()
        self._probes.close()

    def stop(self) -> None:
        """Stop: running answers end with SERVE_STOPPING."""
        with self._lock:
            self._closing = True
            for order in [*self._given.values(), *self._orders, *(order for order, _ in self._waiting)]:
                order.unwanted = True
        self._news.set()

    def _leave(self) -> None:
        with self._lock:
            self.has_failed, self._closing = not self._closing, True
            left = [*self._given.values(), *(order for order, _ in self._waiting), *self._orders]
            for held in (self._given, self._waiting, self._orders):
                held.clear()
        for order in left:
            order.done(Outcome("error", problems=[_cut_off(FAILED if self.has_failed else STOPPING)]))
        self.opened.set()
        self.ended()

    def _coming(self) -> Iterator[Request | None]:
        while not self._closing:
            yield self._next()

    def _next(self) -> Request | None:
        """The first order with decoded frames, if any."""
        with self._lock:
            while self._orders and len(self._waiting) < self.most:
                order = self._orders.popleft()
                self._waiting.append((order, self._begin(order)))
            for pair in list(self._waiting):
                order, ticket = pair
                if order.unwanted:
                    self._waiting.remove(pair)
                    order.done(Outcome("cancelled"))
                elif self._source.has(ticket):
                    self._waiting.remove(pair)
                    self._given[order.id] = order
                    return self._request(order, ticket)
        return None

    def _begin(self, order: Order) -> Ticket:
        """Start decoding its media."""
        ticket = [] if order.unwanted else self._source.request([order.sample])
        for item in (item for media in ticket for item in media if isinstance(item, Future)):
            item.add_done_callback(lambda _: self._news.set())
        return ticket

    def _request(self, order: Order, ticket: Ticket) -> Request:
        sample = order.sample
        return Request(
            order.id,
            order.token_ids,
            Sampling(**asdict(order.drawing)),
            tuple(sorted(self.planner.chat.eos_ids)),
            sample.plans,
            partial(self._frames, ticket),
            logprobs=order.logprobs,
            prefix=sample.prefix,
            prefix_key=sample.prefix_key,
            on_token=order.take,
            cancelled=lambda: order.unwanted,
            constraint=Constrained(order.mask) if order.mask else None,
            top_logprobs=order.top_logprobs,
            draws=order.draws,
        )

    def _frames(self, ticket: Ticket) -> Sequence[np.ndarray]:
        (frames,), problems = self._source.collect(ticket)
        ticket.clear()
        if problems:
            raise ProblemError(problems)
        return frames

    def _end(self, result: Result) -> None:
        with self._lock:
            order = self._given.pop(result.id)
        if self._closing and result.finish_reason == "cancelled":
            order.done(Outcome("error", problems=[_cut_off(STOPPING)]))
        else:
            order.done(Outcome(result.finish_reason, result.top_logprobs, result.problems))


def _cut_off(code: Code) -> Problem:
    return code.at("server", "it ended before the answer did")


class Constrained:
    """A mask as a constraint of generators."""

    def __init__(self, mask: Mask) -> None:
        self.mask = mask

    def allowed(self, token_ids: Sequence[int]) -> torch.Tensor:
        return torch.from_numpy(self.mask.allowed(token_ids))
