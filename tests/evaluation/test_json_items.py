"""Values of a results file: those of the json module, with their places, whatever else the file holds."""

import json
import math
import random

import pytest

from vidqa.data.problems import ProblemCollector
from vidqa.evaluation.results import json_items

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
    problems = ProblemCollector("r.json")
    return list(json_items(text.encode(), "r.json", problems)), problems.problems


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("infinite", [False, True])
def test_values_are_those_of_the_json_module(indent, infinite):
    chance = random.Random(1)
    for _ in range(120):
        escaped = chance.random() < 0.5
        choice = [each for each in ELEMENTS if (escaped or each != HALF) and (infinite or "deep" not in str(each))]
        wanted = [chance.choice(choice) for _ in range(chance.randrange(1, 40))]
        found, problems = read(json.dumps(wanted, indent=indent, ensure_ascii=escaped))
        assert [value for _, value in found] == wanted and problems == []
        assert [index for index, _ in found] == list(range(len(wanted)))


@pytest.mark.parametrize("wrong", ["{'id': 1}", '{"id": 01}', '{"id": "a\nb"}', '{"id": 1]', "{", "nul"])
def test_the_first_wrong_element_is_named_and_the_ones_before_it_are_given(wrong):
    sound = [f'{{"id": "{number}"}}' for number in range(300)]
    found, problems = read(f"[{', '.join([*sound, wrong, *sound])}]")
    assert [value["id"] for _, value in found] == [str(number) for number in range(300)]
    assert [(problem.code, problem.where) for problem in problems] == [("RESULTS_FORMAT", "r.json[300]")]


def test_not_a_number_is_read_as_the_json_module_reads_it():
    found, problems = read('[{"id": 1}, {"id": NaN}, {"id": 3}]')
    assert math.isnan(found[1][1]["id"]) and len(found) == 3 and problems == []


def test_text_that_is_not_utf8_names_its_first_wrong_byte():
    problems = ProblemCollector("r.json")
    list(json_items(b'[{"id": "a"}, {"id": "\xff"}]', "r.json", problems))
    assert [(problem.code, problem.where) for problem in problems.problems] == [("RESULTS_FORMAT", "r.json")]
    assert "byte 22" in problems.problems[0].message
