"""What is written for cosmos-rl is read by cosmos-rl's own configuration class, and holds no key that it lacks."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tomllib
import types
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from vidqa.core.actions import action
from vidqa.core.problem import ProblemError
from vidqa.spec import Layer, TrainSpec, dump, resolve
from vidqa.spec.build import Request, build, profile_layer
from vidqa.spec.cosmos import cosmos_table, target_table, video_fps_problems
from vidqa.spec.keys import flat
from vidqa.spec.schedule import train_samples
from vidqa.spec.serialization import render

WHEEL = "cosmos-rl==0.4.7"


@pytest.fixture(scope="session")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[type[BaseModel]]:
    """cosmos-rl's Config, from its wheel. Its package needs CUDA libraries to import; this one file does not."""
    folder = tmp_path_factory.mktemp("cosmos-rl")
    fetch = [sys.executable, "-m", "pip", "download", WHEEL, "--no-deps", "--only-binary", ":all:", "-d", str(folder)]
    try:
        done = subprocess.run(
            [*fetch, "--retries", "0", "--timeout", "15"], capture_output=True, text=True, timeout=120
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"{WHEEL} could not be downloaded in time")
    wheel = next(folder.glob("*.whl"), None)
    if wheel is None:
        pytest.skip(f"{WHEEL} could not be downloaded: {done.stderr.strip().splitlines()[-1:]}")
    with zipfile.ZipFile(wheel) as archive:
        archive.extract("cosmos_rl/policy/config/__init__.py", folder)
    names = {
        "cosmos_rl": {},
        "cosmos_rl.utils": {},
        "cosmos_rl.utils.modelscope": {"update_config_if_modelscope": lambda config: config},
        "cosmos_rl.utils.logging": {
            "configure_logging": lambda level: None,
            "logger": __import__("logging").getLogger(),
        },
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, members in names.items():
            module = types.ModuleType(name)
            vars(module).update(members)
            patch.setitem(sys.modules, name, module)
        place = importlib.util.spec_from_file_location("cosmos_config", folder / "cosmos_rl/policy/config/__init__.py")
        assert place and place.loader
        module = importlib.util.module_from_spec(place)
        patch.setitem(sys.modules, "cosmos_config", module)
        place.loader.exec_module(module)
        yield module.Config


def unknown(cls: Any, table: dict[str, Any], prefix: str = "") -> list[str]:
    """Keys that no field of `cls` takes; a free-form dict takes all."""
    models = [kind for kind in (cls, *get_args(cls)) if isinstance(kind, type) and issubclass(kind, BaseModel)]
    if prefix == "train.train_policy.":
        models = [kind for kind in models if kind.__name__ == "SFTDataConfig"]
    if not models:
        return []
    fields = models[0].model_fields
    found = [prefix + name for name in table if name not in fields]
    for name, value in table.items():
        if name in fields and isinstance(value, dict):
            found += unknown(fields[name].annotation, value, f"{prefix}{name}.")
    return found


CASES: dict[str, dict[str, Any]] = {
    **{f"profile {name}": {} for name in action("train").profiles},
    "fps": {"custom.vision.fps": 2},
    "steps": {"train.ckpt.save_freq": 10, "validation.freq": 5, "train.optm_warmup_steps": 3},
    "epochs": {"train.optm_warmup_epochs": 0.5, "validation": {"enable": True, "freq_in_epoch": 1}},
    "mesh": {"policy.parallelism.dp_shard_size": 8, "policy.parallelism.dp_replicate_size": 2},
    "patterns": {"policy.lora.r_pattern": {"layers.0": 4}, "policy.lora.alpha_pattern": {"layers.0": 4.0}},
    "rates": {"train.optm_lr": {"global": 1e-5, "visual": 1e-6}},
    "theirs": {"policy.parallelism.tp_size": 2, "train.fp8.enable_fp8": True, "train.ema_enable": True},
    "reshard": {"train.fsdp_reshard_after_forward": "true"},
    "test_size": {"train.train_policy.dataset.test_size": 0.1},
}


@pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("train", [None, 100])
def test_their_own_class_takes_it(theirs: Any, data: Layer, case: str, train: int | None) -> None:
    name = case.removeprefix("profile ") if case.startswith("profile ") else "full"
    layers = [
        profile_layer("train", name),
        data,
        Layer("v", {"custom.val_dataset": {"annotation_path": "v", "media_path": "m"}}),
    ]
    spec = resolve("train", [*layers, Layer(case, CASES[case])], "cosmos-rl").spec
    table = tomllib.loads(dump(spec, "toml", "cosmos-rl", train))
    assert "engine" not in table and table["train"]["compile"] is False
    assert unknown(theirs, table) == []
    taken = theirs.from_dict(json.loads(json.dumps(table)))
    assert taken.train.train_policy.type == "sft"
    assert taken.policy.parallelism.tp_size == spec.policy.parallelism.tp_size
    assert taken.train.train_batch_per_replica == spec.train.train_batch_per_replica
    assert (taken.policy.lora is None) == (spec.policy.lora is None)
    assert taken.custom["train_dataset"]["annotation_path"] == "/d/a.json"


@pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20")
def test_a_runs_whole_configuration_is_an_override(theirs: Any, data: Layer, tmp_path: Path) -> None:
    """config.toml in a run folder of theirs holds every key there is; what they ignore too is a warning."""
    asked: dict[str, Any] = {
        "train": {"train_policy": {"type": "sft"}, "epoch": 3, "output_dir": "out"},
        "policy": {"model_name_or_path": "a/b"},
    }
    asked["policy"]["parallelism"] = {"tp_size": 1, "dp_shard_size": 4}
    whole = theirs.from_dict(asked).model_dump(mode="json", exclude_none=True)
    (tmp_path / "config.toml").write_text(render(whole, "toml"))
    keys = {"train_dataset": {"annotation_path": "/d/a.json", "media_path": "/d"}}
    (tmp_path / "data.toml").write_text(render({"custom": keys}, "toml"))
    files = (tmp_path / "config.toml", tmp_path / "data.toml")
    resolved = build(Request("train", overrides=files, model="hf_model://nvidia/Cosmos-Reason2-2B"))
    assert isinstance(resolved.spec, TrainSpec)
    assert (resolved.spec.train.epoch, resolved.spec.policy.parallelism.dp_shard_size) == (3, 4)
    assert {problem.severity for problem in resolved.warnings} == {"warning"}


def test_epochs_become_steps_or_shares(data: Layer) -> None:
    keys = {
        "train.optm_warmup_epochs": 0.5,
        "train.epoch": 4,
        "custom.val_dataset": {"annotation_path": "v", "media_path": "m"},
    }
    spec = resolve("train", [data, Layer("x", {**keys, "validation.enable": True})]).spec
    assert isinstance(spec, TrainSpec)
    table, problems = cosmos_table(spec, 80)
    assert (table["train"]["optm_warmup_steps"], table["validation"]["freq"], problems) == (5, 10, [])
    table, problems = cosmos_table(spec)
    assert table["train"]["optm_warmup_steps"] == 0.125 and "freq" not in table["validation"]
    assert [p.code for p in problems] == ["SPEC_NOT_SUPPORTED"]


def test_what_they_have_no_key_for_is_said(data: Layer) -> None:
    spec = resolve("train", [data, Layer("x", {"engine.packing": False, "custom_script": "a.py"})]).spec
    assert isinstance(spec, TrainSpec)
    found = cosmos_table(spec, 100)[1]
    assert {p.where for p in found} == {"engine.packing", "custom_script"}
    assert {p.severity for p in found} == {"warning"}


def write(folder: Path, records: list[Any]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "annotations.json").write_text(json.dumps(records))
    return folder


def test_video_fps_is_required_where_fps_is_used(tmp_path: Path) -> None:
    bare, full = {"id": 1, "video": "a.mp4"}, {"id": 2, "video": "a.mp4", "video_fps": 25}
    picture = {"id": 3, "image": "a.png"}
    root = str(write(tmp_path / "d", [full, bare, picture, {**full, "video_fps": "25"}]))
    request = Request("train", roots=(("train", root),), sets=("custom.vision.fps=2",), target="cosmos-rl")
    with pytest.raises(ProblemError) as wrong:
        build(request)
    (problem,) = wrong.value.problems
    assert problem.code == "SPEC_NOT_SUPPORTED" and "2 of 4" in problem.message and "index 1, 3" in problem.message
    write(tmp_path / "d", [full, picture])
    resolved = build(request)
    assert isinstance(resolved.spec, TrainSpec)
    assert (resolved.warnings, train_samples(resolved.spec)) == ([], 2)
    assert build(Request("train", roots=(("train", root),), target="cosmos-rl")).warnings == []


def test_annotations_that_are_not_here_are_a_warning(data: Layer) -> None:
    spec = resolve("train", [data, Layer("x", {"custom.vision.fps": 2})]).spec
    assert isinstance(spec, TrainSpec)
    assert [(p.code, p.severity) for p in video_fps_problems(spec)] == [("SPEC_NOT_SUPPORTED", "warning")]


@pytest.mark.parametrize(
    ("model", "own_class"),
    [
        ("hf_model://nvidia/Cosmos-Reason2-8B", False),
        ("hf_model://nvidia/Cosmos-Reason1-7B", True),
        ("qwen3_vl", False),
        ("qwen2_5_vl", True),
    ],
)
def test_what_they_assert_against_for_qwen3_vl_is_not_written(
    data: Layer, tmp_path: Path, model: str, own_class: bool
) -> None:
    """Their HFModel, which Qwen3-VL runs as, asserts against compile, context and pipeline parallelism."""
    if "/" not in model:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": model}))
        model = str(tmp_path)
    asked = {"policy.model_name_or_path": model, "train.compile": True, "policy.parallelism.cp_size": 2}
    spec = resolve("train", [data, Layer("x", asked)], "cosmos-rl").spec
    assert isinstance(spec, TrainSpec)
    table, problems = cosmos_table(spec, 100)
    assert table["train"]["compile"] is own_class
    refused = [problem.where for problem in problems if problem.severity == "error"]
    assert refused == ([] if own_class else ["policy.parallelism.cp_size"])


def test_an_evaluation_holds_only_what_their_evaluator_reads(eval_data: Layer) -> None:
    theirs = json.loads((Path(__file__).parent / "tao_keys.json").read_text())["evaluate"]["current"]
    spec = resolve("evaluate", [eval_data]).spec
    written = tomllib.loads(dump(spec, "toml", "cosmos-rl"))
    assert set(flat(resolve("evaluate", [Layer("their file", written)]).spec)) >= set(theirs)
    assert [path for path in paths(written) if path not in theirs] == []
    assert written["dataset"]["media_dir"] == "/d"


def paths(table: dict[str, Any], prefix: str = "") -> list[str]:
    return [
        path
        for name, value in table.items()
        for path in (paths(value, f"{prefix}{name}.") if isinstance(value, dict) else [prefix + name])
    ]


def test_what_their_evaluator_has_no_key_for_is_said(eval_data: Layer) -> None:
    asked = {"evaluation.method": "score", "metrics.names": ["bleu", "similarity"], "vision.max_pixels": 81920}
    spec = resolve("evaluate", [eval_data, Layer("x", {**asked, "engine.decode_workers": 3})], "cosmos-rl").spec
    table, problems = target_table(spec)
    assert {problem.where for problem in problems} == {*asked, "engine.decode_workers"}
    assert table["metrics"]["names"] == ["bleu"] and "method" not in table["evaluation"]


def test_other_actions_have_no_spec_there(tmp_path: Path) -> None:
    with pytest.raises(ProblemError) as refused:
        build(Request("inference", sets=("media=clips",), target="cosmos-rl"))
    assert [problem.code for problem in refused.value.problems] == ["SPEC_NOT_SUPPORTED"]
