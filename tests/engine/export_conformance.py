"""What every export format does: one list of scenarios, run against whatever the fixture `kind` brings.

    from export_conformance import *    # in a test module that has a fixture `kind`, the format and its spec

A model of the real loader, its weights changed, is written by the real writer.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from clips import decode_frames
from huggingface_hub import ModelCard
from in_process import one_rank
from safetensors.torch import load_file, save_file
from tiny_world import tiny_data, tiny_model, tiny_spec
from transformers import AutoModelForImageTextToText

from vidqa.core.problem import ProblemError
from vidqa.core.run_folder import MERGED_LORA, OF_ONE_EXPORT, RunFolder
from vidqa.data import load_records
from vidqa.data.hub_card import front_matter_text
from vidqa.engine import distributed
from vidqa.engine.data.collate import Collator
from vidqa.engine.data.pixels import resize_frames
from vidqa.engine.distributed import World, local_part
from vidqa.engine.export._base import ExportFormat, Trained
from vidqa.engine.export.adapter import ADAPTER, MERGED, merged_adapter
from vidqa.engine.export.proof import prove_loss, stock_loss
from vidqa.engine.loading.load import load_sharded
from vidqa.engine.training.checkpoint import run_weights, sharded_parameters
from vidqa.planning.adapters import CONFIG
from vidqa.planning.budget.activation_checkpointing import NO_RECOMPUTE
from vidqa.planning.samples import Planner, Sample, training_planner
from vidqa.spec import load
from vidqa.spec.run_lookup import find_export

CPU = torch.device("cpu")
CARD = {"license": "apache-2.0", "base_model": ["organisation/older"], "tags": ["base"]}  # of the base


@dataclass(frozen=True)
class Kind:
    """A format, and the part of a spec that asks for it."""

    format: ExportFormat
    spec: dict[str, Any]


@dataclass(frozen=True)
class Place:
    """A run with one published export, `folder`, of a model with the loss `loss` on one sample."""

    format: ExportFormat
    trained: Trained
    world: World
    folder: Path
    planner: Planner
    sample: Sample
    frames: list[np.ndarray]
    loss: float

    def load(self, export: Path) -> Any:
        return self.format.load(export, self.trained.base, torch.float32, CPU)

    def loss_of(self, model: Any) -> float:
        return stock_loss(model.eval(), self.planner, self.sample, self.frames)

    def prove(self, loss: float) -> dict[str, Any]:
        proved = (self.planner, self.sample, self.frames, torch.float32, CPU)
        return prove_loss(self.format, self.folder, self.trained.base, loss, *proved)

    def copy(self, to: Path, change: Any) -> Path:
        """The export once more, its tensors changed."""
        to.mkdir()
        for path in self.folder.iterdir():
            (to / path.name).write_bytes(path.read_bytes())
        weights = to / f"{self.format.stem}.safetensors"
        save_file(change(load_file(weights)), weights, metadata={"format": "pt"})
        return to


@pytest.fixture(scope="module")
def place(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("exports")
    # The base is in the hub's cache.
    base, root = tiny_model(folder / "models--organisation--base/snapshots"), tiny_data(folder, clips=1)
    for name in OF_ONE_EXPORT:  # the base is an export, of a merged adapter
        (base / name).write_text("{}")
    (base / "README.md").write_text(f"{front_matter_text(CARD)}\n\n# The base\n")
    spec = load(tiny_spec(folder, base, root, kind.spec), "train")
    planner = training_planner(spec, base)
    sample = planner.plan(load_records(root / "annotations.json", root))[0][0]
    (ref,), (plan,) = sample.record.media, sample.plans
    frames = [resize_frames(decode_frames(ref.path, None, plan.indices), plan.height, plan.width)]
    with one_rank():
        world = distributed.start(1, 1, 60)
        with load_sharded(base, spec.policy, spec.train, world, NO_RECOMPUTE) as model:
            pass
        changes = torch.Generator().manual_seed(1)
        for weights in run_weights(model).values():
            local = local_part(weights)
            local.add_(torch.randn(local.shape, generator=changes), alpha=0.1)
        batch = Collator(planner, planner.family.sizes_of(base).vision, "cpu", share=False)([0], [sample], [frames])
        with torch.no_grad():
            loss = model.eval().packed(batch).mean().item()
        run = RunFolder(folder / "run")
        parameters, own = sharded_parameters(model), run_weights(model)
        trained = Trained(run.exports, base, spec.policy.lora, torch.float32, parameters, own)
        if kind.format is MERGED:
            adapter = ADAPTER.write(replace(trained, exports=folder / "adapters"), "step_1", world)
            trained = merged_adapter(run.exports, base, adapter, torch.float32, None)
        export = run.publish(kind.format.write(trained, "step_1", world))
        yield Place(kind.format, trained, world, export, planner, sample, frames, loss)


def test_an_export_has_the_files_of_its_format_and_none_about_its_base(place: Place) -> None:
    held = {path.name for path in place.folder.iterdir()}
    config = CONFIG if place.format is ADAPTER else "config.json"
    assert {config, f"{place.format.stem}.safetensors"} <= held
    assert held & set(OF_ONE_EXPORT) == ({MERGED_LORA} if place.format is MERGED else set())
    assert {"tokenizer.json", "tokenizer_config.json", "processor_config.json", "chat_template.jinja"} <= held
    card = ModelCard.load(place.folder / "README.md")
    assert card.data.to_dict() == {"license": "apache-2.0", "base_model": ["organisation/base"]}
    assert "The base" not in card.text
    assert find_export(place.trained.exports.parent, "step_1") == place.folder


def test_stock_libraries_load_what_the_trainer_had(place: Place) -> None:
    stock = AutoModelForImageTextToText.from_pretrained(place.folder, dtype=torch.float32)
    assert place.loss_of(stock) == pytest.approx(place.loss, rel=1e-5)
    assert place.loss_of(place.load(place.folder)) == pytest.approx(place.loss, rel=1e-5)
    untrained = AutoModelForImageTextToText.from_pretrained(place.trained.base, dtype=torch.float32)
    assert place.loss_of(untrained) != pytest.approx(place.loss, rel=1e-3)
    place.format.check(place.folder, place.trained.base)


def test_an_export_is_proved_by_the_trainers_loss_alone(place: Place) -> None:
    with pytest.raises(ProblemError) as refused:
        place.prove(place.loss + 0.01)
    assert [problem.code for problem in refused.value.problems] == ["ENGINE_UNPROVEN"]
    assert not (place.folder / "proof.json").exists()
    assert place.prove(place.loss)["reloaded_loss"] == pytest.approx(place.loss, rel=1e-5)
    assert (place.folder / "proof.json").is_file()


@pytest.mark.parametrize("change", ["missing", "surplus", "shape"])
def test_an_export_with_other_tensors_is_refused(place: Place, tmp_path: Path, change: str) -> None:
    def changed(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        name = next(name for name in sorted(tensors) if "q_proj" in name)
        if change == "surplus":
            return {**tensors, name.replace("layers.0", "layers.9"): tensors[name].clone()}
        tensor = tensors.pop(name)
        return tensors if change == "missing" else {**tensors, name: torch.cat([tensor, tensor])}

    export = place.copy(tmp_path / "export", changed)
    with pytest.raises(ProblemError):
        place.format.check(export, place.trained.base)
        place.load(export)


@pytest.mark.parametrize(("call", "number"), [("pwrite", errno.ENOSPC), ("fsync", errno.EIO)])
def test_a_disk_that_takes_nothing_leaves_the_older_export(
    place: Place, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    before = {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in place.folder.iterdir()}

    def refuse(*_: Any) -> Any:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(ProblemError) as failed:
        place.format.write(place.trained, "step_1", place.world)
    monkeypatch.undo()
    assert [problem.code for problem in failed.value.problems] == ["ENGINE_SAVE_FAILED"]
    assert os.strerror(number) in failed.value.problems[0].message
    assert {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in place.folder.iterdir()} == before
    assert [path.name for path in place.trained.exports.iterdir()] == ["step_1"]
