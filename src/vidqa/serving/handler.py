"""Handles one request: its media and sample, the generator's request, and the pieces of its answers."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, TypeVar

from vidqa.core.problem import Problem, ProblemError
from vidqa.data.record import Record
from vidqa.planning.problems import SAMPLE_TOO_LONG
from vidqa.planning.requests import Request, Result, Sampling
from vidqa.planning.samples import Planner, Sample
from vidqa.serving._base import Backend
from vidqa.serving.detokenizer import OPENS, Detokenizer, Piece
from vidqa.serving.grammar import Form, Grammars
from vidqa.serving.media import MediaAccess
from vidqa.serving.problems import TOO_LARGE
from vidqa.serving.schema import ChatRequest, conversation
from vidqa.video import with_keys
from vidqa.video.types import ImageMeta, VideoMeta

LETTERS_PER_TOKEN = 16  # more than any text has; longer texts are refused before they are tokenized
MOST_PIXELS = 8192 * 8192  # of an image; the video reader bounds those of videos
Value = TypeVar("Value")


@dataclass(eq=False)
class Answer:
    """One answer; `on_token` and `on_end` are called in the generator thread. `send` passes a piece or the result on to
    the event loop, where `pieces` and `result` collect them."""

    detokenizer: Detokenizer
    form: Form | None
    send: Callable[[Piece | Result], None]
    is_cancelled: bool = False
    pieces: list[Piece] = field(default_factory=list)
    result: Result | None = None

    @property
    def count(self) -> int:
        """Its tokens, with the one that ends the turn."""
        return self.detokenizer.count

    def on_token(self, token_id: int, logprob: float) -> None:
        piece = self.detokenizer.take(token_id, logprob)
        self.is_cancelled |= self.detokenizer.stopped
        if piece:
            self.send(piece)

    def on_end(self, result: Result) -> None:
        if result.finish_reason != "error" and self.form and self.form.problem:
            result = replace(result, finish_reason="error", problems=(self.form.problem,))
        if result.finish_reason != "error":
            self.send(self.detokenizer.end())
        self.send(replace(result, finish_reason="stop") if self.detokenizer.stopped else result)


@dataclass(eq=False)
class Answers:
    """The answers to one request; `pieces` streams (number of the choice, a piece or its result)."""

    sample: Sample
    max_tokens: int
    queue: asyncio.Queue[tuple[int, Piece | Result]] = field(default_factory=asyncio.Queue)
    choices: list[Answer] = field(default_factory=list)
    began: float = field(default_factory=time.perf_counter)

    async def pieces(self) -> AsyncIterator[tuple[int, Piece | Result]]:
        """Ends with the last choice. Raises the problems of an answer that failed."""
        while any(choice.result is None for choice in self.choices):
            number, item = await self.queue.get()
            if isinstance(item, Piece):
                self.choices[number].pieces.append(item)
            elif item.finish_reason == "error":
                raise ProblemError(item.problems)
            else:
                self.choices[number].result = item
            yield number, item

    def cancel(self) -> None:
        """Stop all answers: the client has left."""
        for answer in self.choices:
            answer.is_cancelled = True


class RequestHandler:
    """Plans requests and submits them to the backend. `defaults` holds for what a request leaves open; of `choices` a
    request that names no form of its own may have one, any answer where there are none."""

    def __init__(self, backend: Backend, access: MediaAccess, defaults: Sampling, choices: Sequence[str] = ()) -> None:
        self.backend, self.access, self.defaults, self.choices = backend, access, defaults, list(choices)
        self.grammars = Grammars(backend.planner.chat)
        self.threads = ThreadPoolExecutor(backend.batch_size + access.limits.queue, "request")  # one for each request
        self.compiling = ThreadPoolExecutor(1, "grammar")  # grammars take one core, whoever sends them

    async def plan(self, request: ChatRequest, held: ExitStack) -> Sample:
        """The planned sample of a request; its media exist until `held` is closed. Raises the problems of the
        request."""
        turns, named_media = conversation(request.messages)
        letters = sum(len(turn.text) for turn in turns)
        if letters > (most_letters := LETTERS_PER_TOKEN * self.backend.longest):
            raise SAMPLE_TOO_LONG.error(
                "messages", f"{letters} characters; at most {most_letters} allowed", "Shorten the text."
            )
        media = [await self.in_thread(self.access.fetch, medium, held) for medium in named_media]
        places = {ref.path: ref.written for ref in media}
        headers = [await asyncio.wrap_future(header) for header in self.backend.headers(media)]
        problems = [header for header in headers if isinstance(header, Problem)]
        problems += [
            TOO_LARGE.at(ref.written, f"{header.width} x {header.height} pixels; at most {MOST_PIXELS:,} allowed")
            for ref, header in zip(media, headers, strict=True)
            if isinstance(header, (ImageMeta, VideoMeta)) and header.width * header.height > MOST_PIXELS
        ]
        if problems:
            raise ProblemError([_in_request(problem, places) for problem in problems])
        planner = self._planner(request)
        planner.set_headers({ref.key: header for ref, header in zip(media, headers, strict=True)})
        record = Record("request", turns, tuple(media), source="messages")
        samples, problems = await self.in_thread(planner.plan, [record])
        if problems:
            raise ProblemError([_in_request(problem, places) for problem in problems])
        return samples[0]

    def _planner(self, request: ChatRequest) -> Planner:
        """A new planner with the frame options of the request."""
        planner, options = self.backend.planner, request.mm_processor_kwargs
        return planner.with_vision(with_keys(planner.vision, options.model_dump()) if options else planner.vision)

    async def begin(self, request: ChatRequest, sample: Sample) -> Answers:
        """Start the answers to a planned request. Raises SAMPLE_TOO_LONG, SERVE_REQUEST."""
        chat, answers = self.backend.planner.chat, Answers(sample, self._max_tokens(request, sample))
        request = self._with_form(request)
        encoded = await self.in_thread(self.backend.planner.encode, sample)
        thinking = encoded.text.rstrip().endswith(OPENS)
        compiled = partial(self.grammars.forms, request, request.n or 1, thinking=thinking)
        forms = await self.in_thread(compiled, threads=self.compiling)
        loop, logprobs = asyncio.get_running_loop(), bool(request.logprobs)
        shared = Request(
            secrets.token_hex(8),
            encoded.token_ids,
            self._sampling(request, answers.max_tokens),
            tuple(sorted(chat.eos_ids)),
            sample.plans,
            logprobs=logprobs,
            prefix=sample.prefix,
            prefix_key=sample.prefix_key,
            top_logprobs=request.top_logprobs or 0,
        )
        for number, form in enumerate(forms):
            detokenizer = Detokenizer(chat, request.stops, thinking=thinking, logprobs=logprobs)
            answers.choices.append(Answer(detokenizer, form, partial(_send, loop, answers.queue, number)))
        for number, answer in enumerate(answers.choices):
            own = replace(
                shared,
                id=f"{shared.id}-{number}",
                draws=str(number),
                constraint=answer.form,
                on_token=answer.on_token,
                cancelled=partial(getattr, answer, "is_cancelled"),
            )
            self.backend.submit(sample, own, answer.on_end)
        return answers

    def _with_form(self, request: ChatRequest) -> ChatRequest:
        if not self.choices or request.names_form:
            return request
        return request.model_copy(update={"guided_choice": self.choices})

    def _max_tokens(self, request: ChatRequest, sample: Sample) -> int:
        """The most tokens of an answer; a number in the request is never reduced."""
        longest, named_tokens = self.backend.longest, request.max_completion_tokens or request.max_tokens
        left = longest - sample.length
        if left < (named_tokens or 1):
            beside = f"; with {named_tokens} for the answer {sample.length + named_tokens}" if named_tokens else ""
            message = f"{sample.length} tokens, {sample.media_tokens} of them video or image{beside}; {longest} allowed"
            remedy = "Ask for fewer frames (mm_processor_kwargs) or a shorter answer, or cut the video."
            raise SAMPLE_TOO_LONG.error("messages", message, remedy)
        return named_tokens or min(left, self.defaults.max_tokens)

    def _sampling(self, request: ChatRequest, max_tokens: int) -> Sampling:
        names = {field.name for field in fields(Sampling)} - {"max_tokens", "seed"}
        sampling = replace(self.defaults, max_tokens=max_tokens, **request.model_dump(include=names, exclude_none=True))
        seed = secrets.randbits(62) if request.seed is None else request.seed
        return replace(sampling, seed=seed, top_k=max(0, sampling.top_k))

    async def in_thread(
        self, work: Callable[..., Value], *arguments: Any, threads: ThreadPoolExecutor | None = None
    ) -> Value:
        """Run a slow call in a thread. When cancelled, it waits for the end of the call, so that its results are
        cleaned up; a call that has not begun is dropped."""
        call = (threads or self.threads).submit(work, *arguments)
        running = asyncio.wrap_future(call)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            if not call.cancel():
                await asyncio.wait([running])
            raise


def _send(loop: asyncio.AbstractEventLoop, queue: asyncio.Queue[Any], number: int, item: Piece | Result) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(queue.put_nowait, (number, item))


def _in_request(problem: Problem, places: dict[str, str]) -> Problem:
    """A problem with the request's names of media in place of file paths."""
    where, message = problem.where, problem.message
    for path, place in places.items():
        where, message = where.replace(path, place), message.replace(path, place)
    where = where.removeprefix("messages (id request): ").removeprefix("messages (id request)") or "messages"
    return replace(problem, where=where, message=message)
