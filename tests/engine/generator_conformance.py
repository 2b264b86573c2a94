"""What every generator does with prompts: one list of scenarios, run against whatever the fixture `generator` brings.

    from generator_conformance import *    # in a test module that has a fixture `generator`

Each prompt alone in stock transformers, in float32, is the oracle.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
from generator_world import *  # noqa: F403
from generator_world import DRAWN, GREEDY, Answering, World, changed

from vidqa.core.problem import ProblemError
from vidqa.engine.generators._base import Generator
from vidqa.planning.requests import Request, Result, Sampling
from vidqa.video.problems import MEDIA_UNREADABLE


def test_answers_are_those_of_stock_transformers_to_each_prompt_alone(world: World, answers: Answering) -> None:
    kinds = {tuple(plan.kind for plan in request.plans) for request in world.prompts}
    assert kinds == {(), ("image",), ("video",), ("video",) * 3}
    found = answers(world.prompts)
    for request in world.prompts:
        row, result = world.expected(request), found[request.id]
        assert list(result.token_ids) == row, request.id
        assert result.finish_reason == ("stop" if row[-1] in request.stop_ids else "length")
        assert result.problems == ()


def test_logprobs_are_those_of_a_stock_forward(world: World, answers: Answering) -> None:
    media = set(world.planner.chat.slot_ids.values())
    for sampling in (GREEDY, replace(DRAWN, temperature=0.7, top_p=0.9, top_k=50)):
        requests = changed(world.prompts, sampling=sampling)
        found = answers(requests)
        for request in requests:
            result = found[request.id]
            if not media & set(result.token_ids):  # drawn, they stand for media that the stock model would miss
                assert result.logprobs == pytest.approx(world.logprobs(request, result.token_ids), abs=1e-4)
    silent = answers(changed(world.prompts, logprobs=False)).values()
    assert all(result.logprobs == () and result.token_ids for result in silent)


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_results_do_not_depend_on_batches_or_order(world: World, answers: Answering, sampling: Sampling) -> None:
    requests = changed(world.prompts, sampling=sampling)
    found = answers(requests, batch_size=1)
    for others in (answers(requests, batch_size=4), answers(requests[::-1], batch_size=3), answers(requests[4:5])):
        for name, result in others.items():
            assert (result.token_ids, result.finish_reason) == (found[name].token_ids, found[name].finish_reason)
            assert result.logprobs == pytest.approx(found[name].logprobs, abs=1e-4)


def test_draws_are_those_of_the_seed_and_the_id(world: World, answers: Answering) -> None:
    first = replace(world.prompts[0], sampling=replace(DRAWN, max_tokens=24))
    twins = [replace(first, id=str(number)) for number in range(6)]
    found = answers(twins, batch_size=2)
    assert len({result.token_ids for result in found.values()}) > 1
    assert {name: result.token_ids for name, result in answers(twins[::-1], batch_size=6).items()} == {
        name: result.token_ids for name, result in found.items()
    }
    other = answers(changed(twins, sampling=replace(first.sampling, seed=4)))
    assert {name: result.token_ids for name, result in other.items()} != {
        name: result.token_ids for name, result in found.items()
    }


def test_draws_from_one_token_are_greedy(world: World, answers: Answering) -> None:
    found = answers(world.prompts)
    for narrow in ({"top_k": 1}, {"top_p": 1e-6}):
        drawn = answers(changed(world.prompts, sampling=replace(DRAWN, **narrow)))
        assert {name: r.token_ids for name, r in drawn.items()} == {name: r.token_ids for name, r in found.items()}


def test_an_answer_ends_at_a_stop_id_and_holds_it(world: World, answers: Answering) -> None:
    request = world.prompts[0]
    whole = world.expected(request)
    stop = whole[3]
    other = replace(world.prompts[2], sampling=request.sampling)
    found = answers([replace(request, stop_ids=(stop, *request.stop_ids)), other])
    end = whole.index(stop) + 1
    assert found[request.id].finish_reason == "stop" and list(found[request.id].token_ids) == whole[:end]
    assert len(found[request.id].logprobs) == end
    assert list(found[other.id].token_ids) == world.expected(other)


def test_one_token_is_cut_off_after_it(world: World, answers: Answering) -> None:
    requests = changed(world.prompts, sampling=Sampling(max_tokens=1))
    for name, result in answers(requests).items():
        assert len(result.token_ids) == len(result.logprobs) == 1, name
        assert result.finish_reason == "length"


def test_a_prompt_that_is_too_long_is_an_error_and_the_others_go_on(world: World, answers: Answering) -> None:
    longest = max(map(len, (request.token_ids for request in world.prompts)))
    found = answers(world.prompts, longest=longest + GREEDY.max_tokens - 1)
    (long,) = [request.id for request in world.prompts if len(request.token_ids) == longest]
    assert (found[long].finish_reason, found[long].token_ids) == ("error", ())
    assert [problem.code for problem in found[long].problems] == ["SAMPLE_TOO_LONG"]
    assert str(longest) in found[long].problems[0].message and long in found[long].problems[0].where
    assert_others_answered(world, found, long)


def test_frames_that_cannot_be_had_are_an_error_and_the_others_go_on(world: World, answers: Answering) -> None:
    def broken() -> list[np.ndarray]:
        raise ProblemError([MEDIA_UNREADABLE.at("clip.mp4", "no picture in it")])

    first, *others = world.prompts
    found = answers([replace(first, frames=broken), *others])
    assert (found[first.id].finish_reason, found[first.id].token_ids) == ("error", ())
    assert [problem.where for problem in found[first.id].problems] == ["clip.mp4"]
    assert_others_answered(world, found, first.id)


def assert_others_answered(world: World, found: dict[str, Result], failed: str) -> None:
    for request in world.prompts:
        if request.id != failed:
            assert list(found[request.id].token_ids) == world.expected(request)


def test_requests_are_taken_as_they_can_be_worked_on(generator: Generator, world: World) -> None:
    """A long list is never held, and what is finished comes before the last prompt is looked at."""
    taken: list[str] = []

    def coming() -> Iterable[Request]:
        for number in range(50):
            taken.append(str(number))
            yield replace(world.prompts[0], id=str(number), sampling=Sampling(max_tokens=2))

    with closing(generator(world.settings(batch_size=2))) as session:
        results = session.generate(coming())
        found = next(results)
        assert found and len(taken) < 50
        found += [result for some in results for result in some]
    assert sorted(result.id for result in found) == sorted(taken)


def test_sampling_may_differ_from_request_to_request(world: World, answers: Answering) -> None:
    ways = (
        GREEDY,
        replace(DRAWN, top_k=5),
        Sampling(max_tokens=3),
        replace(DRAWN, seed=9),
        replace(GREEDY, max_tokens=5),
    )
    requests = [replace(request, sampling=ways[i % len(ways)]) for i, request in enumerate(world.prompts)]
    together = answers(requests, batch_size=4)
    alone = answers(requests, batch_size=1)
    for name, result in together.items():
        assert (result.token_ids, result.finish_reason) == (alone[name].token_ids, alone[name].finish_reason)


@pytest.mark.parametrize("penalty", [0.3, 1.5])
def test_a_repetition_penalty_sees_the_prompt_and_nothing_beside_it(
    world: World, answers: Answering, penalty: float
) -> None:
    requests = changed(world.prompts, sampling=replace(GREEDY, repetition_penalty=penalty))
    for name, result in answers(requests, batch_size=4).items():
        (request,) = [request for request in requests if request.id == name]
        assert list(result.token_ids) == world.expected(request), name


@pytest.mark.parametrize(("presence", "frequency"), [(1.5, 0.0), (0.0, 0.7), (-2.0, 0.4)])
def test_presence_and_frequency_penalties_see_the_answer_and_not_the_prompt(
    world: World, answers: Answering, presence: float, frequency: float
) -> None:
    penalties = {"presence_penalty": presence, "frequency_penalty": frequency}
    requests = changed(world.prompts, sampling=replace(GREEDY, **penalties))
    found = answers(requests, batch_size=4)
    for request in requests:
        assert list(found[request.id].token_ids) == world.expected(request), request.id
    if presence + frequency > 0:  # the same text as without them, the test would say nothing
        plain = answers(changed(world.prompts, sampling=GREEDY), batch_size=4)
        assert any(plain[name].token_ids != result.token_ids for name, result in found.items())


def test_tokens_are_heard_as_they_come(world: World, answers: Answering) -> None:
    heard: dict[str, list[tuple[int, float]]] = {request.id: [] for request in world.prompts}

    def ear(name: str) -> Callable[[int, float], None]:
        return lambda token, logprob: heard[name].append((token, logprob))

    requests = [replace(request, on_token=ear(request.id)) for request in world.prompts]
    silent = replace(requests[0], id="silent", logprobs=False, on_token=ear(requests[0].id))
    for name, result in answers(requests).items():
        assert heard[name] == list(zip(result.token_ids, result.logprobs, strict=True))
    heard[requests[0].id].clear()
    (result,) = answers([silent]).values()
    assert [token for token, _ in heard[requests[0].id]] == list(result.token_ids) and result.token_ids
    assert all(math.isnan(logprob) for _, logprob in heard[requests[0].id])


def test_a_cancelled_request_leaves_with_what_it_has(world: World, answers: Answering) -> None:
    """It does so behind the step in which it is cancelled, and before its frames are asked for if it has not begun."""
    heard: list[int] = []
    first, *others = world.prompts
    long = replace(first, sampling=Sampling(max_tokens=50), stop_ids=())
    leaving = replace(long, on_token=lambda token, _: heard.append(token), cancelled=lambda: len(heard) == 3)

    def untouched() -> list[np.ndarray]:
        raise AssertionError("frames were asked for")

    before = replace(first, id="before", frames=untouched, cancelled=lambda: True)
    found = answers([before, leaving, *others], batch_size=4)
    assert (found["before"].finish_reason, found["before"].token_ids) == ("cancelled", ())
    assert (found[first.id].finish_reason, list(found[first.id].token_ids)) == ("cancelled", heard)
    assert heard == world.expected(long)[:3]
    assert_others_answered(world, found, first.id)


def test_requests_may_come_later(generator: Generator, world: World) -> None:
    """A session neither waits for more requests before it answers those it has, nor ends when it has none."""
    first, second = world.prompts[:2]
    found: dict[str, Result] = {}
    idle = 0

    def coming() -> Iterable[Request | None]:
        yield None
        yield first
        while first.id not in found:
            yield None
        while idle < 3:
            yield None
        yield second

    with closing(generator(world.settings())) as session:
        for results in session.generate(coming()):
            idle += not results
            found.update({result.id: result for result in results})
    for request in (first, second):
        assert list(found[request.id].token_ids) == world.expected(request)


def test_a_request_enters_while_others_are_answered(generator: Generator, world: World) -> None:
    first, second = world.prompts[:2]
    heard: list[int] = []
    begun = replace(first, sampling=Sampling(max_tokens=30), stop_ids=(), on_token=lambda token, _: heard.append(token))

    def coming() -> Iterable[Request | None]:
        yield begun
        while not heard:
            yield None
        yield second

    with closing(generator(world.settings())) as session:
        found = {result.id: result for some in session.generate(coming()) for result in some}
    assert list(found[first.id].token_ids) == world.expected(begun) == heard
    assert list(found[second.id].token_ids) == world.expected(second)


class Only:
    """A constraint: at place n of an answer, the tokens of `places[n]`. It knows only the first tokens of the model."""

    def __init__(self, *places: tuple[int, ...]) -> None:
        self.places = places
        self.asked: list[tuple[int, ...]] = []

    def allowed(self, token_ids: Sequence[int]) -> np.ndarray:
        self.asked.append(tuple(token_ids))
        mask = np.zeros(100, bool)
        mask[list(self.places[len(token_ids)])] = True
        return mask


@pytest.mark.parametrize("sampling", [GREEDY, replace(DRAWN, top_p=0.9)], ids=["greedy", "drawn"])
def test_a_constraint_decides_which_tokens_may_come(world: World, answers: Answering, sampling: Sampling) -> None:
    places = ((40, 41, 42, 43), (50, 51), (60,), (70, 71, 72))
    sampling = replace(sampling, max_tokens=len(places))
    free = changed(world.prompts[1:], sampling=sampling)
    bound = Only(*places)
    request = replace(world.prompts[0], sampling=sampling, constraint=bound)
    found = answers([request, *free], batch_size=4)
    result = found[request.id]
    assert all(token in place for token, place in zip(result.token_ids, places, strict=True))
    assert bound.asked == [result.token_ids[:count] for count in range(len(places))]
    table = world.distributions(request, result.token_ids)  # the model's own: nothing is added to what is allowed
    assert result.logprobs == pytest.approx(world.logprobs(request, result.token_ids), abs=1e-4)
    if sampling.temperature == 0:
        likeliest = [max(place, key=lambda token: row[token]) for place, row in zip(places, table, strict=True)]
        assert list(result.token_ids) == likeliest
    alone = answers(free)
    assert all(found[other.id].token_ids == alone[other.id].token_ids for other in free)


def test_the_likeliest_tokens_are_named(world: World, answers: Answering) -> None:
    requests = [replace(request, top_logprobs=i % 3, logprobs=i % 2 == 0) for i, request in enumerate(world.prompts)]
    found = answers(requests)
    for request in requests:
        result, count = found[request.id], request.top_logprobs
        assert list(result.token_ids) == world.expected(request)
        assert bool(result.logprobs) == request.logprobs
        if not count:
            assert result.top_logprobs == ()
            continue
        values, token_ids = world.distributions(request, result.token_ids).topk(count)
        named = [list(zip(*place, strict=True)) for place in result.top_logprobs]
        assert [list(place[0]) for place in named] == token_ids.tolist()
        assert [list(place[1]) for place in named] == [pytest.approx(row, abs=1e-4) for row in values.tolist()]


CANDIDATES = ((40,), (41,), (50, 51), (50, 52, 53), (60, 61))


@pytest.mark.parametrize("candidates", [CANDIDATES[:2], CANDIDATES], ids=["one token", "several"])
def test_candidates_are_scored_as_a_stock_forward_does(
    world: World, answers: Answering, candidates: tuple[tuple[int, ...], ...]
) -> None:
    requests = changed(world.prompts, candidates=candidates)
    for found in (answers(requests, batch_size=4), answers(requests[::-1], batch_size=1)):
        for request in requests:
            result = found[request.id]
            assert (result.finish_reason, result.token_ids) == ("scored", ())
            sums = [sum(world.logprobs(request, candidate)) for candidate in candidates]
            assert result.scores == pytest.approx(sums, abs=1e-4)


def test_scored_and_answered_requests_stand_beside_each_other(world: World, answers: Answering) -> None:
    scored = [replace(request, id=f"{request.id}-scored", candidates=CANDIDATES) for request in world.prompts]
    mixed = [request for pair in zip(world.prompts, scored, strict=True) for request in pair]
    found, alone = answers(mixed, batch_size=4), answers(scored, batch_size=1)
    for request, twin in zip(world.prompts, scored, strict=True):
        assert list(found[request.id].token_ids) == world.expected(request)
        assert found[twin.id].scores == pytest.approx(alone[twin.id].scores, abs=1e-4)


def test_a_candidate_that_is_too_long_is_an_error(world: World, answers: Answering) -> None:
    request = world.prompts[0]
    fits, over = (replace(request, id=str(n), candidates=((40,) * n,)) for n in (4, 5))
    found = answers([fits, over], longest=request.length + 4)
    assert (found["4"].finish_reason, found["5"].finish_reason) == ("scored", "error")
    assert [problem.code for problem in found["5"].problems] == ["SAMPLE_TOO_LONG"]
