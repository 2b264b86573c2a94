"""Quantized folders in the native generator and in transformers: the same answers and log-probabilities."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from generator_world import *  # noqa: F403
from generator_world import CPU, GREEDY, World, changed
from packaging.version import Version
from quantized_folder import VISION, quantized
from tiny_world import SOURCE, run_engine, tiny_spec

from vidqa.core.problem import ProblemError
from vidqa.engine.export import load_export
from vidqa.engine.export.weights import load_weights
from vidqa.engine.generators._base import Generator, Session
from vidqa.engine.generators.hf import open_transformers
from vidqa.engine.generators.native import NativeSession, open_native
from vidqa.engine.kernels import plain
from vidqa.engine.loading.load import meta_model
from vidqa.engine.model.quantized import FusedLinear, InputQuantization, dequantize, fuse_linear, linear
from vidqa.planning.requests import Request, Result
from vidqa.planning.samples import training_planner
from vidqa.spec import Layer, dump, load, resolve

# Where a row's largest number lies between two codes of these (an int8 step is that number over 127.5), float noise
# decides which it becomes.
NOISY = ("W8A8", "NVFP4")
SCHEMES = ("FP8_DYNAMIC", "FP8", "W8A8", "W4A16", "NVFP4A16", "NVFP4")


@pytest.fixture(scope="module")
def folders(world: World, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("quantized")
    return {scheme: quantized(root / scheme, world.folder, scheme) for scheme in SCHEMES}


@pytest.fixture(scope="module")
def prompts(world: World) -> list[Request]:
    """One about each kind of media."""
    kinds = {tuple(plan.kind for plan in request.plans): request for request in world.prompts}
    return changed(kinds.values(), sampling=replace(GREEDY, max_tokens=4))


def answered(generator: Generator, world: World, folder: Path, prompts: list[Request]) -> dict[str, Result]:
    with closing(generator(world.settings(folder=folder))) as session:
        return by_id(session, prompts)


def by_id(session: Session, prompts: list[Request]) -> dict[str, Result]:
    return {result.id: result for some in session.generate(iter(prompts)) for result in some}


def assert_same(ours: dict[str, Result], theirs: dict[str, Result], tolerance: float) -> None:
    assert ours.keys() == theirs.keys()
    for name, result in theirs.items():
        assert ours[name].token_ids == result.token_ids, name
        assert ours[name].logprobs == pytest.approx(result.logprobs, abs=tolerance)
        assert ours[name].scores == pytest.approx(result.scores, abs=tolerance)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_answers_of_a_quantized_folder_are_those_of_transformers(
    world: World, folders: dict[str, Path], prompts: list[Request], scheme: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if scheme in NOISY:
        candidates = tuple(world.planner.chat.text_ids(text) for text in ("Yes.", "B"))
        prompts = changed(prompts, candidates=candidates)
    ours = answered(open_native, world, folders[scheme], prompts)
    assert_same(ours, answered(open_transformers, world, folders[scheme], prompts), 2e-2 if scheme in NOISY else 1e-4)
    assert "14 layers are dequantized to float32" in capsys.readouterr().err


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_product_is_that_of_the_layers_that_it_joins(world: World, folders: dict[str, Path], scheme: str) -> None:
    model = load_export(folders[scheme], None, torch.float32, CPU)
    attention = model.model.language_model.layers[0].self_attn
    hidden_TD = torch.randn(5, 64, generator=torch.Generator().manual_seed(0)) * torch.arange(1, 6)[:, None]
    separate = [layer(hidden_TD[None])[0] for layer in (attention.q_proj, attention.k_proj, attention.v_proj)]
    matrix = fuse_linear(attention.q_proj, attention.k_proj, attention.v_proj)
    together = linear(plain, hidden_TD, matrix, torch.float32)
    assert torch.allclose(together, torch.cat(separate, 1), atol=1e-6)
    assert (matrix.fake_quantize is None) == scheme.endswith("A16")


by_rows = pytest.mark.skipif(
    Version(torch.__version__) < Version("2.15"),
    reason="this PyTorch multiplies 8-bit floats on a CPU with one scale for all rows alone",
)


@pytest.mark.parametrize(
    ("scheme", "words", "owner", "name", "steps"),
    [
        *(
            pytest.param(scheme, "8-bit floats", plain, "scaled_mm", 4, marks=by_rows)
            for scheme in ("FP8_DYNAMIC", "FP8")
        ),
        ("W4A16", "4-bit integers", plain, "int4_product", 4),
    ],
)
def test_products_of_few_bits_give_the_answers_of_the_dequantized_model(
    world: World,
    folders: dict[str, Path],
    prompts: list[Request],
    scheme: str,
    words: str,
    owner: Any,
    name: str,
    steps: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also on a CPU, where the engine would not use those of 8 bits."""
    settings = world.settings(folder=folders[scheme])
    model = load_weights(folders[scheme], torch.float32)
    said = dequantize(model, torch.float32, model.model.language_model.layers)
    assert said == f"quantized weights: 14 layers multiply in {words}"
    session, products = NativeSession(model, settings), []
    matrices = [of for layer in session.forward.layers for of in layer if isinstance(of, FusedLinear)]
    assert all((of.scale is None) == (scheme == "W4A16") == (of.scale_zero is not None) for of in matrices)
    product = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *args, **more: products.append(1) or product(*args, **more))
    ours = by_id(session, prompts)
    assert len(products) % 8 == 0 and len(products) >= 8 * steps, "four products of each of two layers in every step"
    assert_same(ours, answered(open_native, world, folders[scheme], prompts), 1e-4)


@pytest.mark.parametrize("group", [8, 32, 64, 128, 256, 512])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_of_4_bits_are_those_of_the_dequantized_weights(group: int, dtype: torch.dtype) -> None:
    """Of a step and of a pack; layers that share an input are one product, and have biases."""
    generator, layers, weights = torch.Generator().manual_seed(0), [], []
    for outputs in (32, 16):
        layer: Any = torch.nn.Linear(512, outputs, dtype=dtype)
        codes = torch.randint(-8, 8, (outputs, 512), generator=generator, dtype=torch.int8)
        scale = (torch.rand(outputs, 512 // group, generator=generator) / 50).to(dtype)
        layer.weight_packed = torch.nn.Parameter(pack_to_int32(codes, 4), requires_grad=False)
        layer.weight_scale = torch.nn.Parameter(scale.clone(), requires_grad=False)
        layers.append(layer)
        weights.append((codes.to(dtype) * scale.repeat_interleave(group, 1)).double())
    matrix = fuse_linear(*layers)
    assert matrix.scale_zero is not None
    assert torch.equal(plain.dequantize_int4(matrix.weight, matrix.scale_zero).double(), torch.cat(weights))
    for rows in (1, 5, 64, 65):
        hidden_TD = torch.randn(rows, 512, generator=generator).to(dtype)
        biases = torch.cat([layer.bias for layer in layers]).double()
        exact = hidden_TD.double() @ torch.cat(weights).t() + biases
        found = linear(plain, hidden_TD, matrix, dtype)
        off = (found.double() - exact).abs().max() / exact.abs().max()
        assert found.dtype == dtype and off < (2e-6 if dtype == torch.float32 else 1e-2)


@by_rows
def test_biases_are_added_to_products_in_8_bits() -> None:
    """Qwen2.5-VL has biases on q, k and v; scales are of whole weights or of their outputs."""
    generator, layers, expected = torch.Generator().manual_seed(0), [], []
    hidden_TD = torch.randn(6, 32, generator=generator)
    rounded = plain.quantize_rows(hidden_TD, InputQuantization(None))
    for outputs, per_output in ((32, True), (16, False)):
        layer = torch.nn.Linear(32, outputs)
        codes = torch.randn(outputs, 32, generator=generator).to(torch.float8_e4m3fn)
        scale = torch.rand(outputs if per_output else 1, 1, generator=generator)
        layer.weight = torch.nn.Parameter(codes, requires_grad=False)
        layer.weight_scale = torch.nn.Parameter(scale.view(-1, 1) if per_output else scale.view(1))
        layers.append(layer)
        expected.append(F.linear(rounded.codes.float() * rounded.scale, codes.float() * scale, layer.bias))
    matrix = fuse_linear(*layers)
    assert matrix.scale is not None and matrix.scale.shape == (1, 48) and matrix.weight.shape == (48, 32)
    found = linear(plain, hidden_TD, matrix, torch.float32)
    torch.testing.assert_close(found, torch.cat(expected, 1), rtol=1e-5, atol=1e-5)


def test_layers_that_share_an_input_must_share_a_scheme(world: World, tmp_path: Path) -> None:
    folder = quantized(tmp_path / "mixed", world.folder, "FP8_DYNAMIC", keep=[VISION, "re:.*layers.1.*k_proj"])
    with pytest.raises(ProblemError, match="layers that share an input are quantized in different ways"):
        open_native(world.settings(folder=folder))


def test_a_tower_whose_inputs_are_rounded_is_refused(world: World, tmp_path: Path) -> None:
    folder = quantized(tmp_path / "whole", world.folder, "FP8_DYNAMIC", keep=[])
    with pytest.raises(ProblemError, match="outside the decoder quantize their inputs"):
        open_native(world.settings(folder=folder))


@by_rows
def test_layers_that_are_kept_stay_as_they_are(world: World, prompts: list[Request], tmp_path: Path) -> None:
    folder = quantized(tmp_path / "kept", world.folder, "FP8_DYNAMIC", keep=[VISION, "re:.*layers.1.mlp.*"])
    model = load_weights(folder, torch.float32)
    assert "11 layers" in dequantize(model, torch.float32, model.model.language_model.layers)
    ours = by_id(NativeSession(model, world.settings(folder=folder)), prompts)
    assert_same(ours, answered(open_transformers, world, folder, prompts), 1e-4)


def test_an_adapter_on_a_quantized_base_is_refused(world: World, folders: dict[str, Path], tmp_path: Path) -> None:
    for refused in (
        lambda: load_export(tmp_path, folders["FP8"], torch.float32, CPU),
        lambda: meta_model(folders["FP8"]),
    ):
        with pytest.raises(ProblemError, match="MODEL_QUANTIZED"):
            refused()


@pytest.mark.slow
def test_the_engine_evaluates_a_quantized_folder(world: World, folders: dict[str, Path], tmp_path: Path) -> None:
    root = world.folder.parent / "data"
    table = {
        "dataset.annotation_path": str(root / "annotations.json"),
        "dataset.media_dir": str(root),
        "model.model_name": str(folders["FP8_DYNAMIC"]),
        "model.dtype": "float32",
        "vision.nframes": 4,
        "evaluation.generator": "native",
        "generation.max_tokens": 4,
        "results_dir": str(tmp_path),
    }
    spec = tmp_path / "spec.toml"
    spec.write_text(dump(resolve("evaluate", [Layer("test", table)]).spec), encoding="utf-8")
    done = run_engine("evaluate", spec, tmp_path / "run")
    assert "14 layers are dequantized to float32" in done.stderr
    items = json.loads((tmp_path / "run" / "results.json").read_text())
    assert len(items) == len(world.prompts) and all(item["finish_reason"] in ("stop", "length") for item in items)


def test_training_begins_with_plain_weights(world: World, folders: dict[str, Path], tmp_path: Path) -> None:
    spec = load(tiny_spec(tmp_path, folders["FP8"], world.folder.parent / "data"), "train")
    with pytest.raises(ProblemError, match="training begins with a model whose weights are quantized") as refused:
        training_planner(spec, folders["FP8"])
    assert "can be evaluated" in refused.value.problems[0].remedy


def test_triton_kernels_round_and_multiply_as_plain_ones() -> None:
    """Interpreted; `pytest -m gpu tests/engine/test_cuda_quantized.py` compiles them."""
    command = [sys.executable, str(Path(__file__).with_name("float8_kernels.py"))]
    place = {"TRITON_INTERPRET": "1", "PYTHONPATH": str(SOURCE)}
    done = subprocess.run(command, env={**os.environ, **place}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
