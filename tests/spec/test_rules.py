"""Rules across keys, rules that know the data, and the arithmetic of steps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vidqa.core.problem import ProblemError
from vidqa.spec import (
    DataFacts,
    Layer,
    check,
    check_with_data,
    check_with_gpus,
    effective_batch,
    resolve,
    steps_per_epoch,
    total_steps,
    warmup_steps,
)


def found(action: str, *layers: Layer) -> dict[str, str]:
    """Codes and severities, errors and warnings alike."""
    try:
        problems = resolve(action, layers).warnings
    except ProblemError as raised:
        problems = raised.problems
    return {problem.code: problem.severity for problem in problems}


@pytest.mark.parametrize(
    ("keys", "code", "severity"),
    [
        ({"engine.share_video_prefix": True, "engine.packing": False}, "SPEC_CONFLICT", "error"),
        ({"policy.lora.r": 8, "train.fp8.enable_fp8": True}, "SPEC_CONFLICT", "error"),
        ({"train.train_batch_per_replica": 6, "train.train_policy.mini_batch": 4}, "SPEC_CONFLICT", "error"),
        ({"train.train_batch_per_replica": 1, "train.train_policy.mini_batch": 4}, "SPEC_CONFLICT", "error"),
        ({"policy.model_max_length": 4096}, "SPEC_MODEL_MAX_LENGTH", "warning"),
        ({"validation.enable": True}, "SPEC_CONFLICT", "error"),
        (
            {"validation": {"enable": True, "freq_in_epoch": 0}, "train.train_policy.dataset.test_size": 0.1},
            "SPEC_VALUE",
            "error",
        ),
        (
            {"train.train_policy.dataset.test_size": 0.1, "validation.enable": False},
            "SPEC_CONFLICT",
            "warning",
        ),
        ({"train.train_policy.dataset.test_size": 1.0}, "SPEC_VALUE", "error"),
        ({"policy.model_name_or_path": "nvidia/Cosmos-Reason2-8B"}, "SPEC_MODEL", "error"),
        ({"policy.model_name_or_path": "hf_model://nvidia"}, "SPEC_MODEL", "error"),
        ({"policy.model_name_or_path": __file__}, "SPEC_MODEL", "error"),
        ({"policy.model_name_or_path": ""}, "SPEC_VALUE", "error"),
        ({"train.ckpt.upload_s3": "final"}, "SPEC_VALUE", "error"),
        ({"train.ckpt.upload_s3": "often", "train.ckpt.s3_bucket": "b"}, "SPEC_NOT_SUPPORTED", "error"),
        ({"train.ckpt.upload_hf": True}, "SPEC_VALUE", "error"),
        ({"train.ckpt.upload_hf": True, "train.ckpt.hf_repo_name": "two/slashes/here"}, "SPEC_VALUE", "error"),
        ({"train.optm_lr": 0}, "SPEC_VALUE", "error"),
        ({"train.optm_lr": 1e-3}, "SPEC_VALUE", "warning"),
        ({"policy.lora.target_modules": []}, "SPEC_VALUE", "error"),
        (
            {"policy.lora": {"target_modules": "all-linear", "modules_to_save": ["visual"]}},
            "SPEC_CONFLICT",
            "error",
        ),
        (
            {"policy.lora": {"target_modules": ["lm_head"], "modules_to_save": ["lm_head"]}},
            "SPEC_CONFLICT",
            "error",
        ),
        ({"policy.lora.r_pattern": {"(": 4}}, "SPEC_VALUE", "error"),
        ({"policy.freeze_pattern": ["["]}, "SPEC_VALUE", "error"),
        ({"policy": {"freeze_pattern": ["a"], "trainable_pattern": ["b"]}}, "SPEC_CONFLICT", "error"),
    ],
)
def test_rules_of_training(data: Layer, keys: dict, code: str, severity: str) -> None:
    assert found("train", data, Layer("x", keys)) == {code: severity}


def test_an_adapter_and_a_run_are_no_whole_model(data: Layer, eval_data: Layer, tmp_path: Path) -> None:
    """Wherever a model is named. The remedy is the command that makes one."""
    run = tmp_path / "a run"
    export = run / "safetensors/step_4"
    export.mkdir(parents=True)
    (export / "adapter_config.json").write_text("{}")
    (run / "best").symlink_to("safetensors/step_4")
    best = str(run / "best")
    for action, layer, key in (
        ("train", data, "policy.model_name_or_path"),
        ("evaluate", eval_data, "model.model_name"),
        ("evaluate", Layer("x", {**eval_data.table, "model.enable_lora": True}), "model.base_model_path"),
    ):
        assert found(action, layer, Layer("x", {key: best})) == {"SPEC_MODEL": "error"}, key
        assert found(action, layer, Layer("x", {key: str(run)})) == {"SPEC_MODEL": "error"}, key
    with pytest.raises(ProblemError, match=f"export.py '{best}' --merge"):
        resolve("train", [data, Layer("x", {"policy.model_name_or_path": best})])
    with pytest.raises(ProblemError, match=f"--model '{best}'"):  # both for an adapter and for whole weights
        resolve("train", [data, Layer("x", {"policy.model_name_or_path": str(run)})])
    as_adapter = {"model.enable_lora": True, "model.model_name": best, "model.base_model_path": "hf_model://a/b"}
    assert found("evaluate", eval_data, Layer("x", as_adapter)) == {}
    (export / "config.json").write_text("{}")
    assert found("train", data, Layer("x", {"policy.model_name_or_path": best})) == {}


@pytest.mark.parametrize(
    ("config", "header", "code"),
    [
        ({"target_modules": ".*q_proj"}, b"[1]", "SPEC_PARENT_RUN"),
        ({"target_modules": ["q_proj"], "modules_to_save": [1, "visual"]}, b"{}", "SPEC_CONFLICT"),
        ({"alpha_pattern": {".*": 2.0, "q_proj": 1.0}}, b"{}", ""),
        ({"alpha_pattern": {"q_proj": 1.0, ".*": 2.0}}, b"{}", "SPEC_CONFLICT"),
    ],
)
def test_what_differs_or_is_odd_in_an_adapters_files_is_a_problem(
    data: Layer, tmp_path: Path, config: dict, header: bytes, code: str
) -> None:
    config = {"target_modules": ["q_proj"], "modules_to_save": ["visual"], **config}
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 16, "lora_alpha": 32, **config}))
    (tmp_path / "adapter_model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    lora = {"lora_path": str(tmp_path), "modules_to_save": ["visual"], "target_modules": ["q_proj"]}
    lora["alpha_pattern"] = {".*": 2.0, "q_proj": 1.0}
    keys = {f"policy.lora.{key}": value for key, value in lora.items()}
    assert set(found("train", data, Layer("x", keys))) == ({code} if code else set())


@pytest.mark.parametrize("keys", [{"overlap_s": 5}, {"window_s": 30, "overlap_s": 30}, {"window_s": 1e-9}])
def test_windows_go_on_by_more_than_nothing(eval_data: Layer, keys: dict) -> None:
    windows = Layer("x", {f"inference.{name}": float(value) for name, value in keys.items()})
    assert found("inference", eval_data, windows) == {"SPEC_CONFLICT": "error"}
    assert found("inference", eval_data, Layer("x", {"inference.window_s": 1.0, "inference.overlap_s": 0.9})) == {}


def test_a_name_too_long_for_a_file_is_no_model_of_this_machine(data: Layer) -> None:
    assert found("train", data, Layer("x", {"policy.model_name_or_path": "x" * 300})) == {}


def test_a_hub_name_may_leave_the_organisation_to_the_token(data: Layer) -> None:
    asked = {"train.ckpt.upload_hf": True, "train.ckpt.hf_repo_name": "tuned"}
    assert found("train", data, Layer("x", asked)) == {}


def test_lora_may_have_a_higher_learning_rate(data: Layer) -> None:
    assert found("train", data, Layer("x", {"policy.lora": {}, "train.optm_lr": 1e-3})) == {}


@pytest.mark.parametrize("rate", [1e-2, 2e-3])
def test_lora_too_has_a_learning_rate_that_is_too_high(data: Layer, rate: float) -> None:
    assert found("train", data, Layer("x", {"policy.lora": {}, "train.optm_lr": rate})) == {"SPEC_VALUE": "warning"}


def test_steps_that_the_epochs_do_not_reach_are_said_with_the_arithmetic(data: Layer) -> None:
    spec = resolve("train", [data, Layer("x", {"train.max_num_steps": 60})]).spec
    assert total_steps(spec, 80) == 30  # an upper bound, as in cosmos-rl
    (warning,) = check_with_data(spec, DataFacts(80, 0))
    assert (warning.code, warning.severity) == ("SPEC_CONFLICT", "warning")
    assert "3 epochs of 10 steps (80 samples in batches of 8) are 30 steps" in warning.message
    assert "train.epoch to 6" in warning.remedy
    enough = resolve("train", [data, Layer("x", {"train.max_num_steps": 60, "train.epoch": 6})]).spec
    assert check_with_data(enough, DataFacts(80, 0)) == []


def test_data_is_required(eval_data: Layer) -> None:
    assert found("train") == {"SPEC_VALUE": "error"}
    assert found("evaluate") == {"SPEC_VALUE": "error"}


def test_rules_of_evaluation(eval_data: Layer) -> None:
    assert found("evaluate", eval_data, Layer("x", {"model.enable_lora": True})) == {"SPEC_VALUE": "error"}
    assert found("evaluate", eval_data, Layer("x", {"metrics.names": ["bertscore"]})) == {"SPEC_NO_EFFECT": "warning"}
    named = {"metrics.names": ["bertscore"], "metrics.bertscore_model": "microsoft/deberta-xlarge-mnli"}
    assert found("evaluate", eval_data, Layer("x", named)) == {"SPEC_NO_EFFECT": "warning"}
    assert found("evaluate", eval_data, Layer("x", {**named, "metrics.bertscore_model": "./deberta"})) == {}


def test_vllm_is_refused_with_what_to_do_instead(eval_data: Layer) -> None:
    """The empty key is what earlier versions wrote into every spec."""
    for table, remedy in (
        ({"evaluation.generator": "vllm"}, 'set evaluation.generator to one of "transformers", "native"'),
        ({"engine": {"vllm": {"python": "/opt/vllm/bin/python"}}}, "references/serving.md"),
    ):
        with pytest.raises(ProblemError) as refused:
            resolve("evaluate", [eval_data, Layer("x", table)])
        (problem,) = refused.value.problems
        assert remedy in problem.remedy
    assert found("evaluate", eval_data, Layer("x", {"engine": {"vllm": {"python": ""}}})) == {}


def test_a_folder_that_looks_like_an_id_is_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: Layer
) -> None:
    (tmp_path / "models" / "mine").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert found("train", data, Layer("x", {"policy.model_name_or_path": "models/mine"})) == {}


def test_steps_of_a_shipped_log(data: Layer) -> None:
    """23,240 samples in batches of 32 on 4 ranks are 181.56 steps: 181 whole ones, 182 with the rest."""
    mesh = {"policy.parallelism.dp_shard_size": 4, "train.train_batch_per_replica": 32, "train.epoch": 2}
    dropped = resolve("train", [data, Layer("x", mesh)]).spec
    kept = resolve("train", [data, Layer("x", {**mesh, "train.train_policy.dataloader_drop_last": False})]).spec
    assert effective_batch(kept) == 128
    assert (steps_per_epoch(dropped, 23_240), steps_per_epoch(kept, 23_240)) == (181, 182)
    assert (total_steps(kept, 23_240), steps_per_epoch(kept, 128), steps_per_epoch(kept, 0)) == (364, 1, 0)


@pytest.mark.parametrize(
    ("keys", "steps"),
    [
        ({}, 2),
        ({"train.optm_warmup_steps": 7}, 7),
        ({"train.optm_warmup_steps": 1}, 1),
        ({"train.optm_warmup_steps": 1.0}, 30),
        ({"train.optm_warmup_steps": 0.001}, 1),
        ({"train.optm_warmup_steps": 0}, 0),
        ({"train.optm_warmup_steps": 900}, 30),
        ({"train.optm_warmup_epochs": 0.5}, 5),
        ({"train.max_num_steps": 10, "train.optm_warmup_steps": 0.5}, 5),
    ],
)
def test_warmup_in_steps_shares_and_epochs(data: Layer, keys: dict, steps: int) -> None:
    assert warmup_steps(resolve("train", [data, Layer("x", keys)]).spec, 80) == steps  # 10 steps in each of 3 epochs


def test_no_warmup_survives_being_written(tmp_path: Path, data: Layer) -> None:
    from vidqa.spec import dump, load

    spec = resolve("train", [data, Layer("x", {"train.optm_warmup_steps": None})]).spec
    (tmp_path / "s.toml").write_text(dump(spec))
    assert warmup_steps(load(tmp_path / "s.toml", "train"), 80) == warmup_steps(spec, 80) == 0


def test_rules_with_data(data: Layer) -> None:
    def codes(facts: DataFacts, **keys: object) -> list[str]:
        spec = resolve("train", [data, Layer("x", {k.replace("__", "."): v for k, v in keys.items()})]).spec
        return [problem.code for problem in check_with_data(spec, facts)]

    assert codes(DataFacts(100, 0)) == []
    assert codes(DataFacts(7, 0)) == ["SPEC_ZERO_STEPS"]
    assert codes(DataFacts(7, 0), train__train_policy__dataloader_drop_last=False) == []
    assert codes(DataFacts(0, 0), train__train_policy__dataloader_drop_last=False) == ["SPEC_ZERO_STEPS"]
    assert codes(DataFacts(100, 0, 50_000)) == ["SPEC_MODEL_MAX_LENGTH"]
    assert codes(DataFacts(100, 0), policy__model_max_length=4096) == ["SPEC_MODEL_MAX_LENGTH"]
    assert codes(DataFacts(100, 0, 4096), policy__model_max_length=4096) == []
    assert codes(DataFacts(100, 0, 4097), policy__model_max_length=4096) == ["SPEC_MODEL_MAX_LENGTH"]
    assert codes(DataFacts(100, 0, 2000), engine__pack_tokens=1000) == ["SPEC_MODEL_MAX_LENGTH"]
    assert codes(DataFacts(100, 0), train__optm_warmup_steps=99) == ["SPEC_CONFLICT"]
    split = {"validation__enable": True, "train__train_policy__dataset__test_size": 0.001}
    assert codes(DataFacts(100, 0), **split) == ["SPEC_CONFLICT"]
    assert codes(DataFacts(99, 1), **split) == []


def test_too_long_is_an_error_and_maybe_too_long_is_a_warning(data: Layer) -> None:
    spec = resolve("train", [data, Layer("x", {"policy.model_max_length": 4096})]).spec
    assert [p.severity for p in check(spec)] == ["warning"]
    assert [p.severity for p in check_with_data(spec, DataFacts(100, 0, 5000))] == ["error"]


def test_ranks_against_gpus(data: Layer, eval_data: Layer) -> None:
    spec = resolve("train", [data, Layer("x", {"policy.parallelism.dp_shard_size": 4})]).spec
    assert check_with_gpus(spec, 4) == []
    assert [p.code for p in check_with_gpus(spec, 8)] == ["SPEC_DP_MISMATCH"]
    answer = resolve("evaluate", [eval_data, Layer("x", {"num_gpus": 4})]).spec
    assert (check_with_gpus(answer, 8), [p.code for p in check_with_gpus(answer, 2)]) == ([], ["SPEC_DP_MISMATCH"])
