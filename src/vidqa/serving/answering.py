"""One request, from its fields to the pieces of its answers."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from vidqa.contract.problem import Problem, ProblemError
from vidqa.dataset.record import Record
from vidqa.planning.problems import SAMPLE_TOO_LONG
from vidqa.planning.samples import Planner, Sample
from vidqa.serving._base import Backend, Drawing, Order, Outcome
from vidqa.serving.conversation import conversation
from vidqa.serving.grammar import Grammars
from vidqa.serving.media import Gate
from vidqa.serving.problems import MEDIA_TOO_LARGE
from vidqa.serving.schema import ChatRequest
from vidqa.serving.transcript import OPENS, Piece, Transcript
from vidqa.video import with_keys
from vidqa.video.types import ImageMeta, VideoMeta

LETTERS_PER_TOKEN = 16  # more than any text has; longer texts are not tokenized to be refused
MOST_PIXELS = 8192 * 8192  # of an image; the video reader bounds those of videos
Value = TypeVar("Value")


@dataclass(frozen=True)
class Defaults:
    """The defaults of requests: the spec's [generation], and `choices`, the answers that a request which names no form
    of its own may have; all where there are none."""

    max_tokens: int
    temperature: float
    repetition_penalty: float
    top_p: float = 1.0
    top_k: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    choices: tuple[str, ...] = ()


@dataclass(eq=False)
class Answers:
    """The answers to one request as a stream: `pieces` gives (number of the choice, a piece or its end)."""

    sample: Sample
    max_tokens: int
    orders: list[Order]
    transcripts: list[Transcript]
    queue: asyncio.Queue[tuple[int, Piece | Outcome]]
    began: float = field(default_factory=time.perf_counter)

    async def pieces(self) -> AsyncIterator[tuple[int, Piece | Outcome]]:
        """Ends with the last choice. Raises the problems of an answer that failed."""
        left = len(self.orders)
        while left:
            number, found = await self.queue.get()
            if isinstance(found, Outcome):
                left -= 1
                if found.reason == "error":
                    raise ProblemError(found.problems)
            yield number, found

    def leave(self) -> None:
        """Stop all answers: the client has left."""
        for order in self.orders:
            order.unwanted = True


class Answerer:
    """Turns requests into orders for the backend."""

    def __init__(self, backend: Backend, gate: Gate, defaults: Defaults) -> None:
        self.backend, self.gate, self.defaults = backend, gate, defaults
        self.grammars = Grammars(backend.planner.chat)
        self.threads = ThreadPoolExecutor(backend.most + gate.limits.queue, "request")  # one for each request
        self.compiling = ThreadPoolExecutor(1, "grammar")  # grammars take one core, whoever sends them

    async def plan(self, request: ChatRequest, held: ExitStack) -> Sample:
        """The planned sample of a request; its media exist until `held` is closed. Raises the problems of the
        request."""
        turns, named_media = conversation(request.messages)
        letters = sum(len(turn.text) for turn in turns)
        if letters > (most := LETTERS_PER_TOKEN * self.backend.longest):
            raise SAMPLE_TOO_LONG.error("messages", f"{letters} characters; {most} are taken", "Shorten the text.")
        media = [await self.in_thread(self.gate.fetch, each, held) for each in named_media]
        places = {ref.path: ref.written for ref in media}
        headers = [await asyncio.wrap_future(each) for each in self.backend.headers(media)]
        problems = [each for each in headers if isinstance(each, Problem)]
        problems += [
            MEDIA_TOO_LARGE.at(ref.written, f"{header.width} x {header.height} pixels; {MOST_PIXELS:,} are taken")
            for ref, header in zip(media, headers, strict=True)
            if isinstance(header, (ImageMeta, VideoMeta)) and header.width * header.height > MOST_PIXELS
        ]
        if problems:
            raise ProblemError([in_request(each, places) for each in problems])
        planner = self._planner(request)
        planner.take({ref.key: header for ref, header in zip(media, headers, strict=True)})
        record = Record("request", turns, tuple(media), source="messages")
        samples, problems = await self.in_thread(planner.plan, [record])
        if problems:
            raise ProblemError([in_request(each, places) for each in problems])
        return samples[0]

    def _planner(self, request: ChatRequest) -> Planner:
        """A new planner with the frame options of the request."""
        planner = self.backend.planner
        options = request.mm_processor_kwargs
        if options is None:
            return planner.anew(planner.vision)
        return planner.anew(with_keys(planner.vision, options.model_dump()))

    async def begin(self, request: ChatRequest, sample: Sample) -> Answers:
        """Start the answers to a planned request. Raises SAMPLE_TOO_LONG, SERVE_CONSTRAINT."""
        most = self._most(request, sample)
        request = self._with_form(request)
        encoded = await self.in_thread(self.backend.planner.encode, sample)
        thinking = encoded.text.rstrip().endswith(OPENS)
        compiled = partial(self.grammars.masks, request, request.n or 1, thinking=thinking)
        masks = await self.in_thread(compiled, threads=self.compiling)
        loop, answers = asyncio.get_running_loop(), Answers(sample, most, [], [], asyncio.Queue())
        drawing, tell = self._drawing(request, most), partial(_tell, loop, answers.queue)
        for number, mask in enumerate(masks):
            transcript = Transcript(
                self.backend.planner.chat, request.stops, thinking=thinking, logprobs=bool(request.logprobs)
            )
            order = Order(
                f"{secrets.token_hex(8)}-{number}",
                str(number),
                sample,
                encoded.token_ids,
                drawing,
                lambda token_id, logprob: None,
                lambda outcome: None,
                bool(request.logprobs),
                request.top_logprobs or 0,
                mask,
            )
            order.take, order.done = _listeners(order, transcript, partial(tell, number))
            answers.orders.append(order)
            answers.transcripts.append(transcript)
        for order in answers.orders:
            self.backend.submit(order)
        return answers

    def _with_form(self, request: ChatRequest) -> ChatRequest:
        if not self.defaults.choices or request.names_form:
            return request
        return request.model_copy(update={"guided_choice": list(self.defaults.choices)})

    def _most(self, request: ChatRequest, sample: Sample) -> int:
        """The most tokens of an answer; a number in the request is never reduced."""
        longest, named_tokens = self.backend.longest, request.max_completion_tokens or request.max_tokens
        left = longest - sample.length
        if left < (named_tokens or 1):
            beside = f"; with {named_tokens} for the answer {sample.length + named_tokens}" if named_tokens else ""
            message = f"{sample.length} tokens, {sample.media_tokens} of them video or image{beside}; {longest} allowed"
            remedy = "Ask for fewer frames (mm_processor_kwargs) or a shorter answer, or cut the video."
            raise SAMPLE_TOO_LONG.error("messages", message, remedy)
        return named_tokens or min(left, self.defaults.max_tokens)

    def _drawing(self, request: ChatRequest, most: int) -> Drawing:
        names = ("temperature", "top_p", "top_k", "repetition_penalty", "presence_penalty", "frequency_penalty")
        requested = {name: getattr(request, name) for name in names}
        values = {name: getattr(self.defaults, name) if value is None else value for name, value in requested.items()}
        seed = secrets.randbits(62) if request.seed is None else request.seed
        return Drawing(most, seed=seed, **{**values, "top_k": max(0, values["top_k"])})

    async def in_thread(
        self, work: Callable[..., Value], *given: Any, threads: ThreadPoolExecutor | None = None
    ) -> Value:
        """Run a slow call in a thread. When cancelled, it waits for the end of the call, so that its results are
        cleaned up; a call that has not begun is dropped."""
        call = (threads or self.threads).submit(work, *given)
        running = asyncio.wrap_future(call)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            if not call.cancel():
                await asyncio.wait([running])
            raise


def _listeners(
    order: Order, transcript: Transcript, tell: Callable[[Piece | Outcome], None]
) -> tuple[Callable[[int, float], None], Callable[[Outcome], None]]:
    """The callbacks of one answer, called by the generator thread."""

    def take(token_id: int, logprob: float) -> None:
        piece = transcript.take(token_id, logprob)
        if transcript.stopped:
            order.unwanted = True
        if piece:
            tell(piece)

    def done(outcome: Outcome) -> None:
        if outcome.reason != "error" and order.mask and order.mask.problem:
            outcome = Outcome("error", problems=[order.mask.problem])
        if outcome.reason != "error":
            tell(transcript.end())
        tell(replace(outcome, reason="stop") if transcript.stopped else outcome)

    return take, done


def _tell(loop: asyncio.AbstractEventLoop, queue: asyncio.Queue[Any], number: int, found: Piece | Outcome) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(queue.put_nowait, (number, found))


def in_request(problem: Problem, places: dict[str, str]) -> Problem:
    """A problem with the request's names of media in place of file paths."""
    where, message = problem.where, problem.message
    for path, place in places.items():
        where, message = where.replace(path, place), message.replace(path, place)
    where = where.removeprefix("messages (id request): ").removeprefix("messages (id request)") or "messages"
    return replace(problem, where=where, message=message)
