"""Quantizing a tiny model: every scheme is written, loads as it was calibrated, and what is planted is caught."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_world import tiny_data, tiny_model

from vidqa.core.problem import ProblemError
from vidqa.core.run_folder import RunFolder
from vidqa.engine.export import load_export
from vidqa.engine.export.weights import load_weights
from vidqa.engine.quantize import recipe, run
from vidqa.engine.quantize.calibration import balanced, choose_calibration, decoder_rows, kind_of
from vidqa.families.weights import quantization_of, read_header
from vidqa.planning.plan import load_sets
from vidqa.planning.quantization import overlap_problems, plan_quantization
from vidqa.planning.samples import calibration_planner
from vidqa.preflight import environment_checks, quantize_checks
from vidqa.preflight.inputs import Inputs
from vidqa.spec import Layer, dump, resolve

# Not importorskip: every process that collects tests would import it, which takes ten seconds.
pytestmark = pytest.mark.skipif(find_spec("llmcompressor") is None, reason="llmcompressor is not installed")
LAYERS = 14  # linear layers of the tiny decoder


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    folder = tmp_path_factory.mktemp("quantize")
    return SimpleNamespace(folder=folder, model=tiny_model(folder), data=tiny_data(folder, clips=7, images=2, texts=2))


def spec_of(world: SimpleNamespace, scheme: str, folder: Path, **changes: Any) -> Any:
    """A QuantizeSpec; `changes` by key with __ for dots."""
    table = {
        "model.model_path": str(world.model),
        "dataset.annotation_path": str(world.data / "annotations.json"),
        "dataset.media_dir": str(world.data),
        "quantize.quantization_scheme": scheme,
        "quantize.group_size": 32,
        "quantize.force": True,
        "quantize.num_calibration_samples": 16,
        "vision.nframes": 4,
        "engine.frame_cache_dir": str(world.folder / "cache"),
        "engine.decode_workers": 1,
        "results_dir": str(folder),
        **{key.replace("__", "."): value for key, value in changes.items()},
    }
    return resolve("quantize", [Layer("test", table)]).spec


def quantized(world: SimpleNamespace, scheme: str, folder: Path, **changes: Any) -> tuple[Path, dict[str, Any]]:
    place = RunFolder(folder / scheme)
    place.path.mkdir(parents=True)
    assert run.quantize(spec_of(world, scheme, folder, **changes), place) == 0
    return place.exports / "final", json.loads((place.path / "quantize.json").read_text())


def decoder_bytes(folder: Path) -> int:
    """Bytes of all that the decoder's linear layers have in a folder's file."""
    header = read_header(folder / "model.safetensors")
    spans = [header[name]["data_offsets"] for name in header if ".language_model.layers." in name and "proj" in name]
    return sum(end - begin for begin, end in spans)


@pytest.mark.parametrize(
    ("scheme", "method", "most"),
    [
        ("FP8_DYNAMIC", "rtn", 0.53),
        ("FP8", "rtn", 0.53),
        ("W8A8", "gptq", 0.53),
        ("W8A16", "rtn", 0.56),
        ("W4A16", "gptq", 0.31),
        ("NVFP4A16", "rtn", 0.29),
        ("NVFP4", "rtn", 0.29),
    ],
)
def test_a_scheme_is_written_smaller_and_loads_as_it_was(
    world: SimpleNamespace, tmp_path: Path, scheme: str, method: str, most: float
) -> None:
    folder, facts = quantized(world, scheme, tmp_path)
    shown = facts["proof"]
    assert (facts["scheme"], facts["method"], len(facts["modules"])) == (scheme, method, LAYERS)
    assert shown["largest_difference"] == 0 and len(shown["samples"]) == 8
    assert abs(shown["quantized_loss"] - shown["loss"]) < 0.2 and 0 < shown["largest_layer_error"]["relative_error"] < 1
    assert (facts["calibration"] is None) == (method == "rtn" and scheme not in ("FP8", "NVFP4"))
    plan, _ = plan_quantization(world.model, spec_of(world, scheme, tmp_path).quantize)
    assert sorted(plan.modules) == facts["modules"] and plan.unquantized == ()
    assert decoder_bytes(folder) <= most * decoder_bytes(world.model) / 2  # which is stored in float32
    assert plan.bytes == pytest.approx(facts["bytes"]["quantized"], rel=0.05)
    assert quantization_of(folder)["quant_method"] == "compressed-tensors"
    with pytest.raises(ProblemError, match="MODEL_QUANTIZED"):
        run.quantize(spec_of(world, scheme, tmp_path, model__model_path=str(folder)), RunFolder(tmp_path / "again"))
    assert {"chat_template.jinja", "processor_config.json", "tokenizer.json", "generation_config.json"} <= {
        path.name for path in folder.iterdir()
    }


def test_awq_is_a_method_of_weights_in_4_bits(world: SimpleNamespace, tmp_path: Path, monkeypatch: Any) -> None:
    """Its library pins memory, which takes a GPU: without one it is refused; here it does not pin."""
    with pytest.raises(ProblemError, match="ENV_GPU_UNFIT"):
        recipe.compress(None, None, spec_of(world, "W4A16", tmp_path, quantize__method="awq").quantize, tmp_path, [])
    monkeypatch.setattr(recipe, "torch", SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: True)))
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    _, facts = quantized(world, "W4A16", tmp_path, quantize__method="awq")
    assert facts["method"] == "awq" and len(facts["modules"]) == LAYERS
    assert facts["proof"]["largest_difference"] == 0 and facts["calibration"]["samples"] == 16
    assert abs(facts["proof"]["quantized_loss"] - facts["proof"]["loss"]) < 0.2


def test_the_second_family_whose_files_have_other_names_is_quantized(tmp_path: Path) -> None:
    model = tiny_model(tmp_path, family="qwen2_5_vl")
    place = SimpleNamespace(folder=tmp_path, model=model, data=tiny_data(tmp_path, clips=7, images=1))
    folder, facts = quantized(place, "FP8", tmp_path)
    ignored = quantization_of(folder)["ignore"]
    assert {"visual.blocks.0.attn.qkv", "model.visual.blocks.0.attn.qkv", "lm_head"} <= set(ignored)
    assert facts["proof"]["largest_difference"] == 0 and len(facts["modules"]) == LAYERS


def test_kept_layers_stay_with_those_that_share_their_product(world: SimpleNamespace, tmp_path: Path) -> None:
    folder, facts = quantized(world, "W8A16", tmp_path, quantize__keep=["layers\\.0\\..*q_proj", "down_proj"])
    attention = "model.language_model.layers.0.self_attn"
    stay = {f"{attention}.{name}_proj" for name in "qkv"}
    stay |= {f"model.language_model.layers.{number}.mlp.down_proj" for number in (0, 1)}
    assert stay <= set(facts["kept"]) and len(facts["modules"]) == LAYERS - len(stay)
    assert f"{attention}.q_proj.weight" in read_header(folder / "model.safetensors")
    card = (folder / "README.md").read_text()
    assert "W8A16" in card and f"{attention}.k_proj" in card and "calibration | none" in card


def test_a_cache_in_8_bits_has_calibrated_scales(world: SimpleNamespace, tmp_path: Path, capsys: Any) -> None:
    folder, facts = quantized(world, "FP8_DYNAMIC", tmp_path, quantize__kv_precision="fp8")
    load_export(folder, None, torch.float32, torch.device("cpu"), keep_few_bits=True)
    assert "the cache of keys and values is not in 8 bits: its scales are not applied" in capsys.readouterr().err
    assert quantization_of(folder)["kv_cache_scheme"]["num_bits"] == 8 and facts["calibration"]["samples"] == 16
    scales = [name for name in read_header(folder / "model.safetensors") if name.endswith(("k_scale", "v_scale"))]
    assert len(scales) == 4


def test_video_image_and_text_all_calibrate(world: SimpleNamespace, tmp_path: Path) -> None:
    """An outlier in a sample of any kind of media widens the scale of the first layer's inputs, though the forward is
    traced with a sample of another kind."""
    spec = spec_of(world, "FP8", tmp_path)
    planner = calibration_planner(spec, world.model)
    samples, _ = planner.plan(load_sets(spec)["calibration"])
    one_of_each = {kind_of(sample).rpartition(", ")[2]: sample for sample in samples}
    assert set(one_of_each) == {"video", "image", "text"}
    plan, _ = plan_quantization(world.model, spec.quantize)

    def scale_of(kind: str) -> float:
        model = load_weights(world.model, torch.bfloat16).eval()
        rows = decoder_rows(model, planner, spec, list(one_of_each.values()))
        for name, row in zip(one_of_each, rows, strict=True):
            row["inputs_embeds"][0, -1, 0] *= 1000 if name == kind else 1
        recipe.compress(model, plan, spec.quantize, world.model, rows)
        return model.model.language_model.layers[0].self_attn.q_proj.input_scale.item()

    usual = scale_of("")
    assert all(scale_of(kind) > 1.2 * usual for kind in one_of_each)


def _double_a_group(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["model.language_model.layers.1.mlp.up_proj.weight_scale"][3, 1] *= 2
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def _lose_a_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.language_model.norm.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize(
    ("damage", "words"), [(_double_a_group, "log-probabilities"), (_lose_a_tensor, "missing or surplus")]
)
def test_a_damaged_folder_is_not_published(
    world: SimpleNamespace, tmp_path: Path, monkeypatch: Any, damage: Callable[[Path], None], words: str
) -> None:
    write = run.write_folder

    def write_damaged(*words: Any) -> Path:
        folder = write(*words)
        damage(folder)
        return folder

    monkeypatch.setattr(run, "write_folder", write_damaged)
    with pytest.raises(ProblemError, match="ENGINE_UNPROVEN") as refused:
        quantized(world, "W8A16", tmp_path)
    assert words in str(refused.value)
    assert not (tmp_path / "W8A16/safetensors/final").exists()


def test_a_layer_that_is_quantized_and_not_planned_is_found(
    world: SimpleNamespace, tmp_path: Path, monkeypatch: Any
) -> None:
    own = recipe.recipe
    monkeypatch.setattr(recipe, "recipe", lambda quantize, kept: own(quantize, []))
    with pytest.raises(ProblemError, match="ENGINE_UNPROVEN") as refused:
        quantized(world, "FP8_DYNAMIC", tmp_path, quantize__keep=["layers\\.0\\.self_attn\\.o_proj"])
    assert "layers.0.self_attn.o_proj" in str(refused.value)


def test_samples_are_balanced_over_kinds_and_drawn_by_seed(world: SimpleNamespace, tmp_path: Path) -> None:
    spec = spec_of(world, "FP8", tmp_path)
    samples, _ = calibration_planner(spec, world.model).plan(load_sets(spec)["calibration"])
    kinds = [kind_of(sample) for sample in balanced(samples, 7, seed=1)]
    assert len(set(kinds)) == min(7, len(set(map(kind_of, samples))))
    drawn = [[sample.record.id for sample in balanced(samples, 9, seed)] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    one, other = (choose_calibration(spec, samples, text).fingerprint for text in ("data", "other data"))
    assert one != other == choose_calibration(spec, samples, "other data").fingerprint


def test_what_calibration_refuses(world: SimpleNamespace, tmp_path: Path) -> None:
    spec = spec_of(world, "FP8", tmp_path)
    samples, _ = calibration_planner(spec, world.model).plan(load_sets(spec)["calibration"])
    with pytest.raises(ProblemError, match=r"QUANTIZE_CALIBRATION(.|\n)*15 calibration samples"):
        choose_calibration(spec, samples[:15], "")
    texts = [sample for sample in samples if not sample.plans] * 10
    with pytest.raises(ProblemError, match=r"QUANTIZE_CALIBRATION(.|\n)*has a video or an image"):
        choose_calibration(spec, texts, "")
    copy = tiny_data(tmp_path, clips=1, images=0, texts=0)
    evaluation = {"dataset.annotation_path": str(copy / "annotations.json"), "dataset.media_dir": str(copy)}
    evaluated = resolve("evaluate", [Layer("test", {"model.model_name": str(world.model), **evaluation})]).spec
    (tmp_path / "evaluate.toml").write_text(dump(evaluated))
    overlapping = spec_of(world, "FP8", tmp_path, quantize__evaluate=str(tmp_path / "evaluate.toml"))
    with pytest.raises(ProblemError, match=r"QUANTIZE_CALIBRATION(.|\n)*are in the evaluation set"):
        choose_calibration(overlapping, samples, "")
    assert overlap_problems([samples[-1].record], load_sets(evaluated)["evaluation"]) == []


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"quantize__quantization_scheme": "fp8_dynamc"}, "SPEC_VALUE", 'did you mean "FP8_DYNAMIC"'),
        ({"model__enable_lora": True}, "SPEC_VALUE", "base_model_path"),
        ({"quantize__num_calibration_samples": 8}, "SPEC_VALUE", "at least 16"),
        ({"quantize__force": False}, "SPEC_VALUE", "quantize.force"),
        ({"quantize__method": "gptq"}, "SPEC_CONFLICT", "auto, rtn"),
        ({"quantize__keep": ["("]}, "SPEC_VALUE", "regular expression"),
        ({"quantize__evaluate": "nowhere.toml"}, "SPEC_VALUE", "nowhere.toml"),
        ({"quantize__search": True}, "SPEC_VALUE", "quantize.evaluate"),
        ({"quantize__search": True, "quantize__quantization_scheme": "W8A8"}, "SPEC_CONFLICT", '"gptq"'),
    ],
)
def test_what_a_spec_refuses(world: SimpleNamespace, tmp_path: Path, changes: Any, code: str, words: str) -> None:
    with pytest.raises(ProblemError) as refused:
        spec_of(world, "FP8", tmp_path, **changes)
    assert code in [problem.code for problem in refused.value.problems] and words in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"quantize__group_size": 128}, "SPEC_VALUE", "layers.0.self_attn.q_proj"),
        ({"quantize__keep": ["visual"]}, "SPEC_VALUE", "matches no linear layer"),
        ({"quantize__keep": ["layers"]}, "SPEC_VALUE", "every linear layer"),
        ({"quantize__max_sequence_length": 40}, "SAMPLE_TOO_LONG", "40 allowed"),
    ],
)
def test_what_a_run_refuses_before_weights_are_read(
    world: SimpleNamespace, tmp_path: Path, monkeypatch: Any, changes: Any, code: str, words: str
) -> None:
    monkeypatch.setattr(run, "load_weights", lambda *_: pytest.fail("weights are read"))
    with pytest.raises(ProblemError) as refused:
        quantized(world, "W4A16", tmp_path, **changes)
    assert code in [problem.code for problem in refused.value.problems] and words in str(refused.value)


def test_an_adapter_on_a_quantized_base_is_refused(world: SimpleNamespace, tmp_path: Path) -> None:
    base = shutil.copytree(world.model, tmp_path / "base")
    settings = json.loads((base / "config.json").read_text())
    settings["quantization_config"] = {"quant_method": "compressed-tensors", "config_groups": {}}
    (base / "config.json").write_text(json.dumps(settings))
    adapter = {"model__enable_lora": True, "model__base_model_path": str(base), "model__model_path": str(tmp_path)}
    with pytest.raises(ProblemError, match="MODEL_QUANTIZED"):
        quantized(world, "FP8_DYNAMIC", tmp_path, **adapter)


def test_without_the_extra_its_command_is_named(world: SimpleNamespace, tmp_path: Path, monkeypatch: Any) -> None:
    context = preflight_of(world, tmp_path)
    monkeypatch.setattr(environment_checks, "installed", lambda name: None)
    (problem,) = environment_checks.optional_packages(context)
    monkeypatch.setitem(sys.modules, "llmcompressor", None)
    with pytest.raises(ProblemError) as refused:
        quantized(world, "FP8_DYNAMIC", tmp_path)
    for missing in (problem, *refused.value.problems):
        assert missing.code == "ENV_PACKAGE_MISSING" and "pip install -e '.[quantize]'" in missing.remedy


def test_a_disk_without_room_for_the_folder(world: SimpleNamespace, tmp_path: Path, monkeypatch: Any) -> None:
    context = preflight_of(world, tmp_path)
    assert quantize_checks.room(context) == []
    free = shutil.disk_usage(tmp_path)._replace(free=400_000)
    monkeypatch.setattr("shutil.disk_usage", lambda _: free)
    (problem,) = quantize_checks.room(context)
    assert problem.code == "ENV_DISK_SPACE" and "for the quantized model" in problem.message


def preflight_of(world: SimpleNamespace, folder: Path) -> Inputs:
    (folder / "spec.toml").write_text(dump(spec_of(world, "FP8_DYNAMIC", folder)))
    return Inputs(folder / "spec.toml", "quantize", "local")
