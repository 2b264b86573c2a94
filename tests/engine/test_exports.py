"""The conformance suite for every export format."""

from __future__ import annotations

import pytest
from export_conformance import *  # noqa: F403
from export_conformance import Kind

from vidqa.engine.exports import FORMATS
from vidqa.engine.exports.adapter import ADAPTER
from vidqa.engine.exports.weights import WEIGHTS

LORA = {
    "policy.lora.r": 4,
    "policy.lora.target_modules": ["q_proj", "attn.qkv"],
    "policy.lora.modules_to_save": ["merger.norm"],
}
KINDS = (Kind(WEIGHTS, {"policy.freeze_pattern": ["visual"]}), Kind(ADAPTER, LORA))


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind.format.name)
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param


def test_every_format_is_tested() -> None:
    assert {kind.format.name for kind in KINDS} == {each.name for each in FORMATS}
