"""Videos of prompts are decoded ahead: the first ones before anybody asks, then one for each that is taken."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from vidqa.engine.answering.prompts import Prompts
from vidqa.planning.requests import Sampling


class Begun(list):
    """A source of frames that notes whose decoding has begun."""

    def request(self, samples: list[Any]) -> list[list[Any]]:
        self.extend(sample.record.id for sample in samples)
        return [[] for _ in samples]


def test_the_first_videos_are_decoded_before_the_first_request_is_taken() -> None:
    names = [str(number) for number in range(6)]
    samples = [SimpleNamespace(record=SimpleNamespace(id=n), plans=(), prefix=0, prefix_key=b"") for n in names]
    encode = SimpleNamespace(token_ids=())
    planner: Any = SimpleNamespace(chat=SimpleNamespace(eos_ids=(1,)), encode=lambda sample: encode)
    begun: Any = Begun()
    requests = Prompts(planner, begun, Sampling(1), ahead=2).requests(samples)
    assert begun == names[:2]
    seen = [(request.id, len(begun)) for request in requests]
    assert seen == [("0", 3), ("1", 4), ("2", 5), ("3", 6), ("4", 6), ("5", 6)]
