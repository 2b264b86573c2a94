"""Headers of safetensors files that are not what they should be: always a problem that names the file."""

import json
import struct

import pytest

from vidqa.core.problem import ProblemError
from vidqa.families import family_of
from vidqa.families.weights import INDEX, check_weights, parameters_by_name, read_header, weight_bytes, weight_files

TENSOR = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}


def write(folder, header, data=bytes(24)):
    text = header if isinstance(header, str) else json.dumps(header)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text.encode() + data)
    return folder / "model.safetensors"


def nested(depth, inner="1"):
    return "[" * depth + inner + "]" * depth


def test_a_sound_header(tmp_path):
    path = write(tmp_path, {"__metadata__": {"format": "pt"}, "a": TENSOR})
    assert read_header(path) == {"a": TENSOR}
    assert parameters_by_name(tmp_path) == {"a": 6} and len(weight_files(tmp_path)) == 1
    assert check_weights(tmp_path) == []


@pytest.mark.parametrize(
    "header",
    [
        nested(200),
        nested(100_000),
        '{"a":' * 100_000 + "1" + "}" * 100_000,
        f'{{"a": {nested(100_000)}}}',
        f'{{"a": {{"dtype": "F32", "shape": {nested(900)}, "data_offsets": [0, 24]}}}}',
        {"a": {**TENSOR, "shape": ["2", 3]}},
        {"a": {**TENSOR, "shape": [2, -3]}},
        {"a": {**TENSOR, "shape": [10**18] * 60}},
        {"a": {**TENSOR, "shape": [1] * 100_000}},
        {"a": {**TENSOR, "shape": None}},
        {"a": {**TENSOR, "dtype": None}},
        {"a": {**TENSOR, "data_offsets": [24]}},
        {"a": {**TENSOR, "data_offsets": [24, 0]}},
        {"a": {**TENSOR, "data_offsets": [0, 24.0]}},
        {"a": {**TENSOR, "data_offsets": [True, 24]}},
        {"a": {"dtype": "F32"}},
        {"a": 3},
        [TENSOR],
    ],
)
def test_a_header_that_describes_no_tensors_is_a_problem(tmp_path, header):
    path = write(tmp_path, header)
    for read in (lambda: read_header(path), lambda: parameters_by_name(tmp_path), lambda: weight_bytes(tmp_path)):
        with pytest.raises(ProblemError) as stopped:
            read()
        assert [(p.code, p.where) for p in stopped.value.problems] == [("MODEL_BROKEN", str(path))]
    assert [problem.code for problem in check_weights(tmp_path)] == ["MODEL_BROKEN"]


@pytest.mark.parametrize(
    "index",
    [
        nested(100_000),
        f'{{"weight_map": {nested(100_000)}}}',
        '{"weight_map": {"a": ["model.safetensors"]}}',
        '{"weight_map": ["a"]}',
        '{"weight_map": {}, "metadata": 3}',
        '{"weight_map": {}, "metadata": {"total_size": "all"}}',
        '{"weight_map": {}, "metadata": {"total_size": 1e999}}',
        '{"weight_map": {}, "metadata": {"total_size": -1}}',
    ],
)
def test_an_index_that_is_none_is_a_problem(tmp_path, index):
    (tmp_path / INDEX).write_text(index)
    with pytest.raises(ProblemError) as stopped:
        weight_bytes(tmp_path)
    assert [(p.code, p.where) for p in stopped.value.problems] == [("MODEL_BROKEN", str(tmp_path / INDEX))]
    assert [problem.code for problem in check_weights(tmp_path)] == ["MODEL_BROKEN"]


@pytest.mark.parametrize(
    ("model_type", "hint"), [("cosmos3_omni", "references/families.md"), ("cosmos3_edge", "no converter")]
)
def test_a_bundle_of_cosmos3_is_refused_with_what_can_be_done(tmp_path, model_type, hint):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    with pytest.raises(ProblemError, match=f"MODEL_UNSUPPORTED(.|\n)*{hint}"):
        family_of(tmp_path)
