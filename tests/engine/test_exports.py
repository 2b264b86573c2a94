"""The conformance suite for every export format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from export_conformance import *  # noqa: F403
from export_conformance import Kind
from tiny_world import tiny_model

from vidqa.engine.export import format_for
from vidqa.engine.export.adapter import ADAPTER, MERGED
from vidqa.engine.export.weights import WEIGHTS
from vidqa.engine.export.writing import copy_settings
from vidqa.families import family_of

LORA = {
    "policy.lora.r": 4,
    "policy.lora.target_modules": ["q_proj", "attn.qkv"],
    "policy.lora.modules_to_save": ["merger.norm"],
}
KINDS = (Kind(WEIGHTS, {"policy.freeze_pattern": ["visual"]}), Kind(ADAPTER, LORA), Kind(MERGED, LORA))


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind.format.name)
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param


@pytest.mark.parametrize("by_base", [None, False, True])
@pytest.mark.parametrize("asked", [None, False, True])
def test_an_export_says_whether_frames_are_capped(tmp_path: Path, asked: bool | None, by_base: bool | None) -> None:
    """A version of transformers with another default, or this program, then sees what the run was trained with."""
    base, export = tiny_model(tmp_path), tmp_path / "export"
    place = base / "processor_config.json"
    settings = json.loads(place.read_text())
    settings["video_processor"]["cap_pixels_per_frame"] = by_base
    place.write_text(json.dumps(settings))
    export.mkdir()
    copy_settings(base, export, asked)
    written = json.loads((export / place.name).read_text())
    capped = bool(by_base if asked is None else asked)
    assert written["video_processor"].pop("cap_pixels_per_frame") is capped
    settings["video_processor"].pop("cap_pixels_per_frame")
    assert written == settings and family_of(export).geometry(export).video.capped is capped


def test_a_training_exports_what_its_spec_trains() -> None:
    assert (format_for(None), format_for({"r": 4})) == (WEIGHTS, ADAPTER)
