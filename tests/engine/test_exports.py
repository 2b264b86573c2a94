"""The conformance suite for every export format."""

from __future__ import annotations

import gc
import json
from pathlib import Path

import pytest
import torch
from export_conformance import *  # noqa: F403
from export_conformance import Kind
from tiny_world import tiny_model, tiny_spec

from vidqa.engine.distributed import alone
from vidqa.engine.export import FORMATS, format_for
from vidqa.engine.export._base import Trained
from vidqa.engine.export.adapter import ADAPTER
from vidqa.engine.export.merged import MERGED, adapted_model
from vidqa.engine.export.weights import WEIGHTS
from vidqa.engine.export.writing import copy_settings
from vidqa.engine.loading.freeze import is_adapter
from vidqa.families import family_of
from vidqa.spec import load

LORA = {
    "policy.lora.r": 4,
    "policy.lora.target_modules": ["q_proj", "attn.qkv"],
    "policy.lora.modules_to_save": ["merger.norm"],
}
KINDS = (Kind(WEIGHTS, {"policy.freeze_pattern": ["visual"]}), Kind(ADAPTER, LORA), Kind(MERGED, LORA))


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind.format.name)
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param


def test_every_format_is_tested() -> None:
    assert {kind.format.name for kind in KINDS} == {each.name for each in FORMATS}


def test_merging_holds_a_few_matrices_and_never_the_model(tmp_path: Path) -> None:
    """Of a model of a fifth of a gigabyte, most of it six matrices, with adapters on every linear layer."""
    base = tiny_model(tmp_path, hidden=2048)
    spec = load(tiny_spec(tmp_path, base, tmp_path, {"policy.lora.target_modules": ["all-linear"]}), "train")
    added = {name: each.shape for name, each in adapted_model(base, spec.policy.lora)[0].named_parameters()}
    own = {name: torch.full(shape, 0.01) for name, shape in added.items() if is_adapter(name)}
    size = (base / "model.safetensors").stat().st_size
    gc.collect()
    before = _memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    MERGED.write(Trained(tmp_path, base, spec.policy.lora, torch.float32, {}, own), "merged", alone())
    largest = 4 * max(shape.numel() for shape in added.values())
    assert _memory("VmHWM") - before < 5 * largest < size  # base, product, sum, and a file's pages


def _memory(kind: str) -> int:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{kind}:"))
    return int(line.split()[1]) << 10


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
    copy_settings(Trained(tmp_path, base, None, torch.float32, {}, {}, asked), export)
    written = json.loads((export / place.name).read_text())
    capped = bool(by_base if asked is None else asked)
    assert written["video_processor"].pop("cap_pixels_per_frame") is capped
    settings["video_processor"].pop("cap_pixels_per_frame")
    assert written == settings and family_of(export).geometry(export).video.capped is capped


def test_a_training_exports_what_its_spec_trains() -> None:
    assert (format_for(None), format_for({"r": 4})) == (WEIGHTS, ADAPTER)
