"""The conformance suite for every export format."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch
from export_conformance import *  # noqa: F403
from export_conformance import Kind
from tiny_world import tiny_model, tiny_spec

from vidqa.engine.distributed import alone
from vidqa.engine.exports import FORMATS, format_for
from vidqa.engine.exports._base import Trained
from vidqa.engine.exports.adapter import ADAPTER
from vidqa.engine.exports.merged import MERGED, adapted_model
from vidqa.engine.exports.weights import WEIGHTS
from vidqa.engine.model.trainable import is_adapter
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


def test_a_training_exports_what_its_spec_trains() -> None:
    assert (format_for(None), format_for({"r": 4})) == (WEIGHTS, ADAPTER)
