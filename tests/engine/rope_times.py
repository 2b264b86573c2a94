"""Times of videos that only rope positions tell: what generators make of unusual ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
from generator_conformance import Only
from generator_world import GREEDY, Answering, World, changed

from vidqa.planning.requests import Request


def slower(world: World, step_s: float) -> list[Request]:
    """The prompts with videos, whose patches are `step_s` seconds apart."""
    found = []
    for request in world.prompts:
        times = [tuple(step_s * i for i in range(plan.grid[0])) for plan in request.plans]
        plans = [replace(plan, patch_times_s=each) for plan, each in zip(request.plans, times, strict=True)]
        if any(plan.kind == "video" for plan in plans):
            found.append(replace(request, plans=plans))
    return found


# A third of a second, the rate of a film, that of a camera, and videos longer than the text behind them.
@pytest.mark.parametrize("step_s", [1 / 3, 2 * 1001 / 24000, 0.08, 1.7, 7.5, 61.0])
def test_times_of_a_video_are_those_of_the_plan(world: World, answers: Answering, step_s: float) -> None:
    requests = slower(world, step_s)
    found = answers(requests)
    for request in requests:
        result = found[request.id]
        assert list(result.token_ids) == world.expected(request), request.id
        assert result.logprobs == pytest.approx(world.logprobs(request, result.token_ids), abs=1e-4)
    usual = answers(slower(world, 0.5))
    assert all(usual[name].logprobs != pytest.approx(result.logprobs, abs=1e-4) for name, result in found.items())


def test_a_constrained_answer_goes_on_behind_the_text_of_a_long_video(world: World, answers: Answering) -> None:
    sampling = replace(GREEDY, max_tokens=3)
    for request in changed(slower(world, 61.0), sampling=sampling):
        bound = answers([replace(request, constraint=Only((40, 41), (50, 51), (60, 61)))])[request.id]
        assert bound.logprobs == pytest.approx(world.logprobs(request, bound.token_ids), abs=1e-4)
