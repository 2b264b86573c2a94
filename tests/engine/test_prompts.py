"""Videos of prompts are decoded ahead, as many as fit into the window of bytes; the first ones before anybody asks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from vidqa.engine.answering.prompts import Prompts
from vidqa.engine.data import prefetch
from vidqa.planning.requests import Sampling

FRAMES = SimpleNamespace(indices=range(10), height=1000, width=1000)
VIDEO_BYTES = 3 * 10 * 1000 * 1000


class Begun(list):
    """A source of frames that notes whose decoding has begun."""

    def request(self, samples: list[Any]) -> list[list[Any]]:
        self.extend(sample.record.id for sample in samples)
        return [[] for _ in samples]


def sample(name: str, video: str) -> Any:
    record = SimpleNamespace(id=name, media=[SimpleNamespace(view=video)])
    return SimpleNamespace(record=record, plans=[FRAMES], prefix=0, prefix_key=b"")


def seen(samples: list[Any], begun: Any) -> tuple[int, list[tuple[str, int]]]:
    """How many videos have begun before the first request is taken, and with each request."""
    encoded = SimpleNamespace(token_ids=())
    planner: Any = SimpleNamespace(chat=SimpleNamespace(eos_ids=(1,)), encode=lambda sample: encoded)
    requests = Prompts(planner, begun, Sampling(1)).requests(samples)
    return len(begun), [(request.id, len(begun)) for request in requests]


def test_the_first_videos_are_decoded_before_the_first_request_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch, "DECODE_AHEAD", 2 * VIDEO_BYTES)
    first, later = seen([sample(name, f"video {name}") for name in "012345"], Begun())
    assert first == 3
    assert later == [("0", 3), ("1", 4), ("2", 5), ("3", 6), ("4", 6), ("5", 6)]


def test_many_questions_about_a_video_count_its_frames_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch, "DECODE_AHEAD", 5 * VIDEO_BYTES // 2)
    samples = [sample(f"{video}.{question}", video) for video in "abcd" for question in range(8)]
    first, _ = seen(samples, Begun())
    assert first == 17  # all of two videos, and the first question about the third


def test_a_video_larger_than_the_window_does_not_stop_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch, "DECODE_AHEAD", VIDEO_BYTES // 2)
    first, later = seen([sample(name, f"video {name}") for name in "012"], Begun())
    assert first == 2
    assert later == [("0", 2), ("1", 3), ("2", 3)]
