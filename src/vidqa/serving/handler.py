"""Handling of a chat request: fetch the media, plan the prompt as a sample, submit one generator request for each
choice (the OpenAI API's `n`), and pass on pieces of text as they are generated.

The generator calls back in its own thread; everything else runs in the event loop.
"""

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
from vidqa.video.types import ImageMeta, VideoMeta, with_keys

MAX_CHARACTERS_PER_TOKEN = 16  # more than in any text; longer texts are refused before they are tokenized
MAX_PIXELS = 8192 * 8192  # of an image or frame; the video reader has a separate limit
Value = TypeVar("Value")


@dataclass(eq=False)
class Answer:
    """One answer of a request. The generator thread calls `on_token` and `on_end`, which `send` pieces of text and the
    result to the event loop; there `Answers.pieces` collects them in `pieces` and `result`. `form` is the grammar that
    constrains it, if any; `is_cancelled` tells the generator to stop."""

    detokenizer: Detokenizer
    form: Form | None
    send: Callable[[Piece | Result], None]
    is_cancelled: bool = False
    pieces: list[Piece] = field(default_factory=list)
    result: Result | None = None

    def on_token(self, token_id: int, logprob: float) -> None:
        """Send the text that a new token completes."""
        piece = self.detokenizer.take(token_id, logprob)
        self.is_cancelled |= self.detokenizer.stopped
        if piece:
            self.send(piece)

    def on_end(self, result: Result) -> None:
        """Send the rest of the text, then the result; an error if the grammar became too complex."""
        if result.finish_reason != "error" and self.form and self.form.problem:
            result = replace(result, finish_reason="error", problems=(self.form.problem,))
        if result.finish_reason != "error":
            self.send(self.detokenizer.end())
        self.send(replace(result, finish_reason="stop") if self.detokenizer.stopped else result)


@dataclass(eq=False)
class Answers:
    """The answers to one request, in `choices`. `max_tokens` is the limit of each; `began` is on the clock of
    time.perf_counter. `queue` gets (number of the choice, piece or result) from the generator thread."""

    sample: Sample
    max_tokens: int
    queue: asyncio.Queue[tuple[int, Piece | Result]] = field(default_factory=asyncio.Queue)
    choices: list[Answer] = field(default_factory=list)
    began: float = field(default_factory=time.perf_counter)

    async def pieces(self) -> AsyncIterator[tuple[int, Piece | Result]]:
        """Stream (number of the choice, piece of text or result) until every choice has its result. Raises the problems
        of the first answer that failed."""
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
        """Stop all answers after the client has disconnected."""
        for answer in self.choices:
            answer.is_cancelled = True


class RequestHandler:
    """Plans requests and submits them to the backend. `defaults` are the sampling settings that a request may override.
    With `choices`, a request without a grammar is answered by one of these texts."""

    def __init__(self, backend: Backend, access: MediaAccess, defaults: Sampling, choices: Sequence[str] = ()) -> None:
        self.backend, self.access, self.defaults, self.choices = backend, access, defaults, list(choices)
        self.grammars = Grammars(backend.planner.chat)
        self.threads = ThreadPoolExecutor(backend.batch_size + access.limits.queue, "request")  # one for each request
        self.compiling = ThreadPoolExecutor(1, "grammar")  # grammars use one core, for all clients

    async def plan(self, request: ChatRequest, media_files: ExitStack) -> Sample:
        """The planned sample of a request. Its media are downloaded to files that closing `media_files` deletes: keep
        it open until the answers are complete. Raises the problems of the request."""
        turns, named_media = conversation(request.messages)
        characters, limit = sum(len(turn.text) for turn in turns), MAX_CHARACTERS_PER_TOKEN * self.backend.longest
        if characters > limit:
            message = f"{characters} characters; at most {limit} allowed"
            raise SAMPLE_TOO_LONG.error("messages", message, "Shorten the text.")
        media = [await self.in_thread(self.access.fetch, medium, media_files) for medium in named_media]
        names = {ref.path: ref.written for ref in media}
        headers = [await asyncio.wrap_future(header) for header in self.backend.headers(media)]
        problems = [header for header in headers if isinstance(header, Problem)]
        problems += [
            TOO_LARGE.at(ref.written, f"{header.width} x {header.height} pixels; at most {MAX_PIXELS:,} allowed")
            for ref, header in zip(media, headers, strict=True)
            if isinstance(header, (ImageMeta, VideoMeta)) and header.width * header.height > MAX_PIXELS
        ]
        if problems:
            raise ProblemError([_in_terms_of_request(problem, names) for problem in problems])
        planner = self._planner(request)
        planner.set_headers({ref.key: header for ref, header in zip(media, headers, strict=True)})
        record = Record("request", turns, tuple(media), source="messages")
        samples, problems = await self.in_thread(planner.plan, [record])
        if problems:
            raise ProblemError([_in_terms_of_request(problem, names) for problem in problems])
        return samples[0]

    def _planner(self, request: ChatRequest) -> Planner:
        """A new planner with the frame options of the request."""
        planner, options = self.backend.planner, request.mm_processor_kwargs
        return planner.with_vision(with_keys(planner.vision, options.model_dump()) if options else planner.vision)

    async def begin(self, request: ChatRequest, sample: Sample) -> Answers:
        """Submit a planned request to the generator, once for each choice, and return its answers, which arrive later.
        Raises SAMPLE_TOO_LONG, and SERVE_REQUEST for a grammar that cannot be compiled."""
        chat, answers = self.backend.planner.chat, Answers(sample, self._max_tokens(request, sample))
        request = self._with_default_choices(request)
        encoded = await self.in_thread(self.backend.planner.encode, sample)
        thinking = encoded.text.rstrip().endswith(OPENS)
        compile_forms = partial(self.grammars.forms, request, request.n or 1, thinking=thinking)
        forms = await self.in_thread(compile_forms, threads=self.compiling)
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
            choice_request = replace(
                shared,
                id=f"{shared.id}-{number}",
                draws=str(number),
                constraint=answer.form,
                on_token=answer.on_token,
                cancelled=partial(getattr, answer, "is_cancelled"),
            )
            self.backend.submit(sample, choice_request, answer.on_end)
        return answers

    def _with_default_choices(self, request: ChatRequest) -> ChatRequest:
        if not self.choices or request.names_form:
            return request
        return request.model_copy(update={"guided_choice": self.choices})

    def _max_tokens(self, request: ChatRequest, sample: Sample) -> int:
        """The limit of an answer, in tokens: the request's own, else the smaller of default and remaining context.
        Raises SAMPLE_TOO_LONG rather than reduce a limit that the request sets."""
        longest, requested = self.backend.longest, request.max_completion_tokens or request.max_tokens
        left = longest - sample.length
        if left < (requested or 1):
            total = f"; with {requested} for the answer {sample.length + requested}" if requested else ""
            message = f"{sample.length} tokens, {sample.media_tokens} of them video or image{total}; {longest} allowed"
            remedy = "Ask for fewer frames (mm_processor_kwargs) or a shorter answer, or cut the video."
            raise SAMPLE_TOO_LONG.error("messages", message, remedy)
        return requested or min(left, self.defaults.max_tokens)

    def _sampling(self, request: ChatRequest, max_tokens: int) -> Sampling:
        """The request's sampling settings over the defaults; without a seed, a random one."""
        names = {field.name for field in fields(Sampling)} - {"max_tokens", "seed"}
        sampling = replace(self.defaults, max_tokens=max_tokens, **request.model_dump(include=names, exclude_none=True))
        seed = secrets.randbits(62) if request.seed is None else request.seed
        return replace(sampling, seed=seed, top_k=max(0, sampling.top_k))

    async def in_thread(
        self, work: Callable[..., Value], *arguments: Any, threads: ThreadPoolExecutor | None = None
    ) -> Value:
        """Run a slow call in a thread. If this task is cancelled, a call that has not started is dropped, and a running
        one is waited for: a download that it has registered for deletion must be complete before that happens."""
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


def _in_terms_of_request(problem: Problem, names: dict[str, str]) -> Problem:
    """A problem with media named as in the request, not by the paths of downloaded files: `names` by path."""
    where, message = problem.where, problem.message
    for path, name in names.items():
        where, message = where.replace(path, name), message.replace(path, name)
    where = where.removeprefix("messages (id request): ").removeprefix("messages (id request)") or "messages"
    return replace(problem, where=where, message=message)
