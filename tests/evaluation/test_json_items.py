"""Large lists are read many elements at a time: the same values, places and problems as one by one."""

import io
import json
import math
import random

import pytest

from vidqa.evaluation import json_items as module
from vidqa.evaluation.json_items import json_items

HALF = {"video_id": "half \ud800 pair"}  # no file can hold it but escaped
ELEMENTS = [
    {"video_id": "a.mp4", "response": "Yes", "n": [1, 2.5, -3e4, None, True]},
    {"video_id": 'a "b" }, {"video_id": "c', "response": "}, {"},
    {"video_id": "ä\u2028\x7f", "turns": [{"video_id": 1}, {"video_id": 2}, {"from": "x"}]},
    {"other": {}, "video_id": "d"},
    {"video_id": 123456789012345678901234567890},
    HALF,
    {"video_id": float("inf"), "deep": [[[[{}]]]]},
    "text",
    7,
    [],
]


def read(text):
    problems = []
    return list(json_items(io.StringIO(text), "r.json", problems)), problems


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("block", [7, 64, 500, 1 << 18])
def test_values_are_those_of_the_json_module(monkeypatch, indent, block):
    monkeypatch.setattr(module, "BLOCK", block)
    chance = random.Random(block)
    for _ in range(60):
        escaped = chance.random() < 0.5
        choice = ELEMENTS if escaped else [each for each in ELEMENTS if each != HALF]
        wanted = [chance.choice(choice) for _ in range(chance.randrange(1, 40))]
        found, problems = read(json.dumps(wanted, indent=indent, ensure_ascii=escaped))
        assert [value for _, value in found] == wanted and problems == []
        assert [index for index, _ in found] == list(range(len(wanted)))


def test_most_of_a_large_list_is_read_at_once(monkeypatch):
    patient = []
    decode = module._decode
    monkeypatch.setattr(module, "_decode", lambda buffer, at: patient.append(at) or decode(buffer, at))
    found, _ = read(
        json.dumps([{"id": str(number), "turns": [{"from": "a"}, {"from": "b"}]} for number in range(20_000)])
    )
    assert len(found) == 20_000 and len(patient) < 100


@pytest.mark.parametrize("block", [64, 1 << 18])
@pytest.mark.parametrize("wrong", ["{'id': 1}", '{"id": 01}', '{"id": "a\nb"}', '{"id": 1]', "{", "nul"])
def test_the_first_wrong_element_is_named_and_the_ones_before_it_are_given(monkeypatch, block, wrong):
    monkeypatch.setattr(module, "BLOCK", block)
    sound = [f'{{"id": "{number}"}}' for number in range(300)]
    found, problems = read(f"[{', '.join([*sound, wrong, *sound])}]")
    assert [value["id"] for _, value in found] == [str(number) for number in range(300)]
    assert [(problem.code, problem.where) for problem in problems] == [("RESULTS_SYNTAX", "r.json[300]")]


def test_not_a_number_is_read_as_the_json_module_reads_it():
    found, problems = read('[{"id": 1}, {"id": NaN}, {"id": 3}]')
    assert math.isnan(found[1][1]["id"]) and len(found) == 3 and problems == []
