"""A training that goes on from what cosmos-rl exports: numbered chunks, their index, and its resolved configuration."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from in_process import train_here
from safetensors.torch import load_file, save_file
from tiny_world import losses, tiny_data, tiny_model, tiny_spec

from vidqa.core.problem import ProblemError
from vidqa.spec import dump
from vidqa.spec.build import Request, build


def exported(model: Path, run: Path) -> Path:
    """The model as `safetensors/final` of a run of theirs."""
    export = run / "safetensors/final"
    shutil.copytree(model, export, ignore=shutil.ignore_patterns("*.safetensors*"))
    weights = {name: tensor for file in model.glob("*.safetensors") for name, tensor in load_file(file).items()}
    names, chunks = sorted(weights), ("00000.safetensors", "00001.safetensors")
    parts = {chunk: names[at::2] for at, chunk in enumerate(chunks)}
    for chunk, part in parts.items():
        save_file({name: weights[name] for name in part}, export / chunk, metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": {name: chunk for chunk, part in parts.items() for name in part}}
    (export / "model.safetensors.index.json").write_text(json.dumps(index))
    return export


def test_a_training_goes_on_from_an_export_of_cosmos_rl(tmp_path: Path) -> None:
    model, root = tiny_model(tmp_path), tiny_data(tmp_path, clips=2, images=0, texts=0)
    run = tmp_path / "outputs/20260101120000"
    export = exported(model, run)
    (run / "checkpoints/step_4/policy").mkdir(parents=True)
    (run / "checkpoints/step_4/policy/model_rank_0.pth").write_bytes(b"\0")
    shutil.copy(tiny_spec(tmp_path, model, root, {"train.max_num_steps": 1}), run / "config.toml")
    with pytest.raises(ProblemError) as refused:
        build(Request("train", parent_run=run))
    (problem,) = refused.value.problems
    assert problem.code == "SPEC_PARENT_RUN" and f"--override {run / 'config.toml'}" in problem.remedy

    first: list[float] = []
    for name, weights in (("theirs", export), ("base", model)):
        spec = build(Request("train", overrides=(run / "config.toml",), model=str(weights))).spec
        (tmp_path / f"{name}.toml").write_text(dump(spec))
        first += losses(train_here(tmp_path / f"{name}.toml", tmp_path / name))
    assert len(first) == 2 and first[0] == first[1], "the weights are the same ones"
    evaluation = build(Request("evaluate", parent_run=run.parent, which="final", roots=(("eval", str(root)),))).spec
    assert evaluation.model.model_name == str(export)  # type: ignore[attr-defined]
