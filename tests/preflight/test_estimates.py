"""GPU memory and time: what does not fit is told with a change that was tried, and the change helps."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.preflight.conftest import records
from tests.preflight.corpus import Case, machine
from vidqa import spec as specs
from vidqa.core.problem import Problem
from vidqa.jobs.resources import Resources
from vidqa.planning.budget.memory_constants import CONSTANTS
from vidqa.planning.packing import Steps
from vidqa.planning.plan import load_sets
from vidqa.planning.samples import training_planner
from vidqa.preflight import memory_checks
from vidqa.preflight.budget_checks import validations
from vidqa.preflight.gpus import Declared
from vidqa.preflight.inputs import Inputs
from vidqa.preflight.memory_checks import peak_within
from vidqa.preflight.report import Report, preflight
from vidqa.spec.models import TrainSpec

LARGE = {  # the sizes of an 8B model
    "text_config": {
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
    },
    "vision_config": {"hidden_size": 1152, "depth": 27, "intermediate_size": 4304, "out_hidden_size": 4096},
}

KEPT = {"policy.model_gradient_checkpointing": False}


@pytest.fixture
def case(tmp_path: Path, clips: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    """A training of an 8B model (its sizes only) on small clips."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    case = Case(tmp_path, clips, tiny_model, monkeypatch)
    config = json.loads((case.model / "config.json").read_text())
    for table, sizes in LARGE.items():
        config[table] |= sizes
    config["vision_config"]["deepstack_visual_indexes"] = [8, 16, 24]
    (case.model / "config.json").write_text(json.dumps(config))
    case.train = records(range(4), 6)
    case.spec |= {"train.train_batch_per_replica": 4, "policy.parallelism.dp_shard_size": 2}
    return case


def budget(
    case: Case, gib: float | None = None, arch: str | None = None, gpus: int | None = None
) -> tuple[Report, list[Problem]]:
    case.options["declared"] = Declared(gpus or (gib and 64), gib, arch)
    report = case.report("budget")
    return report, [problem for problem in report.problems if problem.where == "GPU memory"]


def test_the_estimate_is_always_there_and_is_of_the_heaviest_pack(case: Case) -> None:
    report, problems = budget(case)
    assert problems == [] and report.facts["memory"]["gpu_gib"] is None
    asked = specs.load(case.write(), "train")
    samples, _ = training_planner(asked, case.model).plan(load_sets(asked)["train"])
    steps = Steps(asked, samples, 2, "cuda")
    sizes = [steps.size(pack) for step in range(9) for packs in steps.packs(step) for pack in packs]
    assert report.facts["memory"]["heaviest_pack_tokens"] == max(sizes)[0] > 0
    assert report.facts["memory"]["heaviest_pack_patches"] == max(sizes)[1]
    assert "no GPU is visible here; by estimate about" in report.text and "heaviest pack" in report.text
    assert "\ntime             no estimate without a known GPU" in report.text and report.facts["time_unknown"]


def test_features_of_a_frozen_tower_are_counted_beside_frames(case: Case) -> None:
    def found(**more: Any) -> tuple[Report, list[Problem]]:
        case.spec |= {"engine.keep_features": True, "policy.freeze_pattern": ["visual"], **more}
        report = case.report("budget")
        return report, [problem for problem in report.problems if problem.code == "ENV_DISK_SPACE"]

    report, problems = found()
    asked = specs.load(case.write(), "train")
    samples, _ = training_planner(asked, case.model).plan(load_sets(asked)["train"])
    plans = {sample.record.media[0].key: sample.plans[0] for sample in samples if sample.plans}
    needed = sum(plan.tokens for plan in plans.values()) * 32 * 1024  # four levels of 4,096 numbers in bf16
    assert (report.facts["feature_bytes"], report.facts["features_kept"], problems) == (needed, 1.0, [])
    assert "of the frozen vision tower, kept for 100% of the videos" in report.text
    room = (report.facts["frame_bytes"] + needed / 2) / 0.95 / 1024**3
    report, (problem,) = found(**{"engine.frame_cache_gb": room})
    assert report.facts["features_kept"] == pytest.approx(0.5, abs=0.01) and "50% of the videos fit" in problem.message
    _, (problem,) = found(**{"policy.freeze_pattern": None})
    assert problem.severity == "warning" and "the vision tower trains" in problem.message


@pytest.mark.parametrize(
    ("gib", "more", "helps"),
    [
        (60.0, {}, "policy.parallelism.dp_shard_size = 4"),
        (30.0, {}, "policy.parallelism.dp_shard_size = 8"),
        (88.0, {**KEPT, "custom.vision.nframes": 768, "train.compile": False}, "model_gradient_checkpointing = true"),
    ],
)
def test_what_does_not_fit_is_told_what_helps(case: Case, gib: float, more: dict, helps: str) -> None:
    case.spec |= more
    report, (problem,) = budget(case, gib)
    assert problem.severity == "error" and str(gib) in problem.message and helps in problem.remedy
    assert report.facts["memory"]["peak_gib"] + CONSTANTS.outside_gib > gib
    for pair in problem.remedy.removeprefix("set ").split("; "):
        key, _, value = pair.partition(" = ")
        case.spec[key] = json.loads(value)
    assert budget(case, gib)[1] == []


@pytest.mark.parametrize(
    ("gpus", "nodes", "gib", "remedy"),
    [
        (4, 1, 30.0, "; or, with more GPUs, policy.parallelism.dp_shard_size = 8"),
        (4, 2, 30.0, "set policy.parallelism.dp_shard_size = 8"),
        (2, 1, 30.0, "; or, with more GPUs, policy.parallelism.dp_shard_size = 8"),
    ],
)
def test_more_gpus_than_the_job_can_have_are_named_as_such(
    case: Case, gpus: int, nodes: int, gib: float, remedy: str
) -> None:
    case.options["resources"] = Resources(nodes=nodes)
    assert remedy in budget(case, gib, gpus=gpus)[1][0].remedy


def test_the_model_that_validation_gathers_to_answer_is_counted(case: Case) -> None:
    """Sharded over many GPUs a step takes little, and answering takes the whole model on each of them."""
    case.spec |= {"policy.parallelism.dp_shard_size": 32, "train.train_batch_per_replica": 1}
    case.train, case.spec["validation.enable"] = records(range(4), 16), True
    case.spec["train.train_policy.dataset.test_size"] = 2
    without = budget(case)[0].facts["memory"]
    case.spec["engine.validation_generate"] = 2
    report, (problem,) = budget(case, without["peak_gib"] * 1.05 + CONSTANTS.outside_gib + 0.1)
    counted = report.facts["memory"]
    whole_gib = 8.76e9 * 2 / 2**30  # parameters of an 8B model in bf16
    assert (without["moment"] != "generation", counted["moment"]) == (True, "generation")
    assert whole_gib < counted["peak_gib"] - counted["weights_and_optimizer_gib"] < 1.2 * whole_gib
    assert "gathers the whole model" in problem.message and problem.remedy == "set engine.validation_generate = 0"
    case.spec["validation.enable"] = False
    assert budget(case)[0].facts["memory"]["moment"] != "generation"


def test_a_sample_that_one_gpu_cannot_hold_is_for_several(case: Case) -> None:
    """GPUs that share each pack hold their part of it, and of the weights."""
    sides = {"custom.vision.nframes": 16, "custom.vision.resized_height": 1600, "custom.vision.resized_width": 1600}
    case.train = records(range(4), 1)
    case.spec |= {**sides, "policy.model_max_length": 40960, "policy.lora.r": 8, "train.optm_lr": 1e-4}
    case.spec |= {"policy.parallelism.dp_shard_size": 1, "train.train_batch_per_replica": 1}
    report, (problem,) = budget(case, 20.0)
    assert problem.severity == "error" and problem.remedy == "set policy.parallelism.cp_size = 2"
    (problem,) = budget(case, 13.0, gpus=1)[1]
    assert problem.remedy == "with more GPUs, set policy.parallelism.cp_size = 4"
    alone = report.facts["memory"]
    case.spec["policy.parallelism.cp_size"] = 2
    report, problems = budget(case, 20.0)
    part = report.facts["memory"]
    assert problems == [] and report.facts["effective_batch"] == 1
    assert part["heaviest_pack_tokens"] == alone["heaviest_pack_tokens"] / 2 == alone["pack_tokens"] / 2
    assert alone["heaviest_pack_patches"] / 2 < part["heaviest_pack_patches"] < alone["heaviest_pack_patches"]
    assert part["weights_and_optimizer_gib"] == pytest.approx(alone["weights_and_optimizer_gib"] / 2, abs=0.05)


@pytest.mark.parametrize(
    ("gib", "more"),
    [
        (12.0, {"policy.lora.r": 8, "train.optm_lr": 1e-4, "policy.quantization": "nf4"}),
        (180.0, {"train.train_policy.type": "grpo", "train.train_batch_per_replica": 8, "rollout.n_generation": 4}),
        (60.0, {"train.train_policy.type": "grpo", "train.train_batch_per_replica": 8, "rollout.n_generation": 4}),
    ],
)
def test_no_change_is_suggested_that_the_rules_refuse(case: Case, gib: float, more: dict) -> None:
    """Samples are long enough for cp_size, which neither a base in few bits nor GRPO may have."""
    sides = {"custom.vision.nframes": 16, "custom.vision.resized_height": 1600, "custom.vision.resized_width": 1600}
    case.train = records(range(4), 1)
    case.spec |= {**sides, "policy.model_max_length": 40960, "policy.parallelism.dp_shard_size": 1}
    case.spec |= {"train.train_batch_per_replica": 1, **more}
    (problem,) = budget(case, gib)[1]
    adapters, changes = {"policy.lora.r": 8, "policy.lora.lora_dropout": 0.0}, problem.remedy.removeprefix("set ")
    for change in changes.split("; ") if changes != problem.remedy else []:
        key, _, value = change.partition(" = ")
        case.spec |= {key: json.loads(value)} if value else adapters
    assert all(problem.severity == "warning" for problem in budget(case)[0].problems)
    assert "cp_size" not in problem.remedy and "train_batch_per_replica" not in problem.remedy


def test_of_two_keys_that_cost_memory_each_is_tried_and_then_both() -> None:
    gather, again = {"train.fsdp_reshard_after_forward": "default"}, {"engine.recompute": "auto"}
    table = {"train": {"fsdp_reshard_after_forward": "never"}, "engine": {"recompute": "none"}}
    assert list(memory_checks._recompute(TrainSpec.model_validate(table), [])) == [gather, again, gather | again]
    assert list(memory_checks._recompute(TrainSpec.model_validate({}), [])) == []


def test_where_nothing_else_helps_it_is_adapters_or_another_gpu(case: Case) -> None:
    case.train, case.spec["train.train_batch_per_replica"] = records(range(4), 1), 1
    _, (problem,) = budget(case, 20.5)
    assert "policy.lora" in problem.remedy
    _, (problem,) = budget(case, 3.0)
    assert "more memory" in problem.remedy


def test_the_margin_of_the_prediction_is_for_updates_and_not_for_rollouts(case: Case) -> None:
    """As the engine chooses its packs: beside rollouts, whose memory is reserved."""
    case.train = records(range(4), 1)
    case.spec |= {"train.train_policy.type": "grpo", "policy.lora.r": 8, "policy.lora.lora_dropout": 0.0}
    case.spec |= {"train.train_batch_per_replica": 64, "rollout.n_generation": 16, "train.optm_lr": 1e-5}
    for gib in (40.0, 44.0, 48.0):
        report, problems = budget(case, gib)
        assert problems == [] and report.facts["memory"]["peak_gib"] > 0.9 * gib
    (problem,) = budget(case, 36.0)[1]
    assert problem.severity == "error"


def test_a_close_call_is_a_warning(case: Case) -> None:
    report, _ = budget(case)
    peak = report.facts["memory"]["peak_gib"]
    _, (problem,) = budget(case, peak + CONSTANTS.outside_gib + 0.5)
    assert problem.severity == "warning"
    assert budget(case, peak * 1.1 + CONSTANTS.outside_gib + 0.5)[1] == []


def evaluated(case: Case, gib: float | None, **keys: Any) -> tuple[Report, list[Problem]]:
    """The budget of an evaluation of the same model and clips."""
    case.write()
    asked = {"model.model_name": str(case.model), "generation.max_tokens": 16, "vision.nframes": 256, **keys}
    case.options["spec_path"] = case.evaluation(**asked)
    case.options["declared"] = Declared(None, gib, None)
    report = preflight(platform="local", group="budget", **case.options)
    return report, [problem for problem in report.problems if problem.where == "GPU memory"]


@pytest.mark.parametrize(
    ("gib", "keys", "helps"),
    [
        (30.0, {"model.dtype": "float32"}, "model.dtype"),
        (20.0, {"evaluation.batch_size": 512}, "evaluation.batch_size = "),
        (20.0, {"evaluation.generator": "native", "vision.nframes": 512}, "evaluation.batch_size = "),
        (20.0, {"inference.batch_size": 512}, "inference.batch_size = "),
    ],
)
def test_an_evaluation_that_does_not_fit_is_told_what_helps(case: Case, gib: float, keys: dict, helps: str) -> None:
    case.held = records(range(4), 6)
    report, (problem,) = evaluated(case, gib, **keys)
    assert problem.severity == "error" and str(gib) in problem.message and helps in problem.remedy
    memory = report.facts["memory"]
    assert memory["peak_gib"] + CONSTANTS.outside_gib > gib and memory["cache_gib"] > 0
    assert "of it weights" in report.text
    for pair in problem.remedy.removeprefix("set ").split("; "):
        key, _, value = pair.partition(" = ")
        keys = {**keys, key: json.loads(value)}
    assert evaluated(case, gib, **keys)[1] == []


def test_an_evaluation_of_a_model_that_is_too_large_is_refused(case: Case) -> None:
    _, (problem,) = evaluated(case, 10.0)
    assert "more memory" in problem.remedy and "16.3 are weights" in problem.message
    assert evaluated(case, None)[1] == []


@pytest.mark.parametrize(
    ("bits", "kind", "generator", "size", "weights_gib"),
    [
        (8, "float", "native", 10.6e9, 9.9),
        (8, "float", "transformers", 10.6e9, 16.3),
        (4, "float", "native", 10.6e9, 16.3),
        (4, "int", "native", 7.23e9, 6.7),
    ],
)
def test_quantized_weights_take_the_bytes_of_their_files_where_they_stay_so(
    case: Case, bits: int, kind: str, generator: str, size: float, weights_gib: float
) -> None:
    """FP8 and groups of int4 stay as they are with the native generator alone; everything else becomes numbers of
    model.dtype."""
    weights: dict[str, Any] = {"num_bits": bits, "type": kind, "strategy": "channel", "dynamic": False}
    inputs: Any = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}
    if kind == "int":
        weights, inputs = {**weights, "strategy": "group", "group_size": 128, "symmetric": True}, None
    groups = {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": inputs}}
    config = json.loads((case.model / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "compressed-tensors", "config_groups": groups}
    (case.model / "config.json").write_text(json.dumps(config))
    index = {"metadata": {"total_size": int(size)}, "weight_map": {"a": "model-1.safetensors"}}
    (case.model / "model.safetensors.index.json").write_text(json.dumps(index))
    report, _ = evaluated(case, 80.0, **{"evaluation.generator": generator})
    assert report.facts["memory"]["weights_gib"] == weights_gib


def test_a_job_counts_on_no_more_than_its_part_of_a_gpu(case: Case) -> None:
    limit = {"engine.gpu_memory_gib": 10.0}
    _, (problem,) = evaluated(case, 80.0, **limit)
    assert "of 10.0 GiB" in problem.message and evaluated(case, 80.0)[1] == []
    assert problem.remedy.startswith("raise engine.gpu_memory_gib")
    (smaller,) = evaluated(case, 8.0, **limit)[1]
    assert "of 8.0 GiB" in smaller.message and "gpu_memory_gib" not in smaller.remedy, "the GPU is the limit then"


def test_what_a_training_takes_within_a_part_of_a_gpu(case: Case) -> None:
    context = Inputs(case.write(), "train", "local")
    whole, half = peak_within(context, 300.0), peak_within(context, 150.0)
    assert whole and half and half <= 150.0 and peak_within(context, 3.0) is None


@pytest.mark.parametrize(
    ("action", "key", "more"),
    [("evaluate", "metrics.bertscore_model", {"metrics.names": ["bertscore"]}), ("embed", "embed.text_model", {})],
)
def test_folders_of_text_encoders_are_looked_into(case: Case, action: str, key: str, more: dict[str, Any]) -> None:
    case.write()
    encoder = case.folder / "encoder"
    case.options |= {"spec_path": case.evaluation(**{key: str(encoder), **more}), "action": action}
    encoder.mkdir()
    for file in ("config.json", "model.safetensors", "tokenizer.json", None):
        problems = preflight(platform="local", group="model", **case.options).problems
        found = [(p.where, str(file) in p.message) for p in problems if p.code == "METRIC_UNAVAILABLE"]
        assert found == ([(key, True)] if file else [])
        if file:
            (encoder / file).touch()


def test_a_scoring_function_is_looked_for(case: Case) -> None:
    case.write()
    (case.folder / "mine.py").write_text("def score(item):\n    return 1\n")
    for name, places in (("score", []), ("other", [str(case.folder / "mine.py")])):
        case.options["spec_path"] = case.evaluation(**{"metrics.functions": f"{case.folder}/mine.py:{name}"})
        problems = preflight(platform="local", group="spec", **case.options).problems
        assert [problem.where for problem in problems if problem.code == "USER_FUNCTION"] == places


def test_time_is_told_for_gpus_whose_speed_is_known(case: Case) -> None:
    case.spec["train.epoch"] = 3000
    times = {arch: budget(case, 141.0, arch)[0].facts["time"] for arch in ("sm_90", "sm_80", "sm_75")}
    assert times["sm_80"]["gpu_hours"] > 2 * times["sm_90"]["gpu_hours"] >= 0 and "hours" not in times["sm_75"]
    assert "H200" in times["sm_90"]["mfu_is"]


def test_an_evaluation_states_its_time_and_doubts_a_limit_for_reasoning(case: Case) -> None:
    case.held = records(range(4), 6)  # yes/no questions

    def answered(**keys: Any) -> tuple[dict[str, Any], list[str], str]:
        case.write()
        asked = {"model.model_name": str(case.model), "vision.nframes": 256, **keys}
        case.options |= {"spec_path": case.evaluation(**asked), "declared": Declared(None, 141.0, "sm_90")}
        report = preflight(platform="local", group="budget", **case.options)
        warnings = [problem.where for problem in report.problems if problem.code == "BUDGET_ANSWER_LENGTH"]
        return report.facts.get("time", {}), warnings, report.text

    usual, warnings, text = answered()  # generation.max_tokens is 1,024
    assert warnings == ["generation.max_tokens"]
    assert "more, if every answer has 1,024 tokens; on H100" in text
    short, warnings, _ = answered(**{"generation.max_tokens": 32})
    assert warnings == [] and usual["reading_s"] == short["reading_s"] >= 0
    assert usual["writing_s_at_most"] == pytest.approx(32 * short["writing_s_at_most"], rel=0.2)
    assert answered(**{"generation.max_tokens": 4096})[1] == []
    again, _, text = answered(**{"evaluation.retries": 10})  # 10 x 1,024 + 55 x 256 more steps
    assert again["again_s_at_most"] == pytest.approx(
        10 * usual["reading_s"] + (10 + 55 / 4) * usual["writing_s_at_most"], rel=0.2
    )
    assert usual["again_s_at_most"] == 0 and "for attempts after empty answers" in text
    scored, warnings, _ = answered(**{"evaluation.method": "score"})
    assert warnings == [] and scored["writing_s_at_most"] == 0


def test_a_short_training_takes_as_long_as_its_start(case: Case) -> None:
    case.spec["train.max_num_steps"] = 1
    report, _ = budget(case, 141.0, "sm_90")
    time = report.facts["time"]
    assert time["start_s"] <= 3600 * time["hours"] < time["start_s"] + 60
    assert time["gpu_hours"] == pytest.approx(2 * time["hours"], abs=0.002)
    (line,) = [line for line in report.text.splitlines() if line.startswith("time ")]
    assert "about 1 min, 1 min of it startup" in line


@pytest.mark.parametrize(
    ("keys", "total", "times"),
    [
        ({"freq_in_epoch": 1}, 30, 3),
        ({"freq_in_epoch": 1}, 4, 1),  # max_num_steps ends it within the first epoch
        ({"freq_in_epoch": 2}, 30, 2),
        ({"freq": 20, "freq_in_epoch": 0, "val_before_train": True}, 30, 3),
    ],
)
def test_validations_are_counted_as_the_engine_makes_them(keys: dict, total: int, times: int) -> None:
    """Of epochs of 10 steps; the last step always validates."""
    training = TrainSpec.model_validate({"validation": keys})
    assert validations(training, total, per_epoch=10) == times


@pytest.mark.parametrize(("questions", "pays"), [(6, True), (1, False)])
def test_sharing_videos_is_suggested_where_it_pays(case: Case, questions: int, pays: bool) -> None:
    case.train = records(range(4), questions)
    case.spec["custom.vision.nframes"] = 16
    case.spec["train.train_batch_per_replica"] = 2
    report, _ = budget(case)
    found = report.facts["sharing"]
    assert found["pays"] is pays and found["on"] is False
    assert ("--set engine.share_video_prefix=true" in report.text) is pays
    case.spec["engine.share_video_prefix"] = True
    shared, _ = budget(case)
    assert shared.facts["sharing"] == {**found, "on": True}
    assert "--set engine.share_video_prefix=true" not in shared.text


def test_what_sharing_saves_is_what_the_steps_take_less(case: Case) -> None:
    """One step that holds every sample: the same work, whatever the order."""
    case.spec |= {"train.train_batch_per_replica": 12, "train.epoch": 1, "custom.vision.nframes": 16}
    report, _ = budget(case)
    asked = specs.load(case.write(), "train")
    samples, _ = training_planner(asked, case.model).plan(load_sets(asked)["train"])
    alone = sum(sample.length for sample in samples)
    shared = alone - sum(5 * samples[first].prefix for first in range(0, 24, 6))
    assert report.facts["sharing"]["tokens_saved"] == pytest.approx(1 - shared / alone, abs=0.001)
    assert report.facts["sharing"]["questions_per_video"] == 6


def test_sharing_is_not_suggested_where_samples_are_not_packed(case: Case) -> None:
    case.spec["engine.packing"] = False
    assert "sharing" not in budget(case)[0].facts


@pytest.mark.parametrize(
    ("tied", "targets", "told"),
    [
        (True, ["q_proj", "lm_head"], 1),
        (True, ["embed_tokens"], 1),
        (True, ["q_proj"], 0),
        (True, "all-linear", 0),
        (False, ["lm_head"], 0),
    ],
)
def test_an_adapter_on_one_of_two_tied_matrices_is_told(case: Case, tied: bool, targets: object, told: int) -> None:
    config = json.loads((case.model / "config.json").read_text())
    (case.model / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": tied}))
    case.spec["policy.lora"] = {"target_modules": targets}
    found = [p for p in case.report("model").problems if p.code == "MODEL_TIED_ADAPTER"]
    assert [p.severity for p in found] == ["warning"] * told


@pytest.mark.parametrize(
    ("keys", "kept"),
    [
        ({}, 3),  # three epochs, a save after each
        ({"train.epoch": 20}, 5),
        ({"train.epoch": 20, "train.ckpt.max_keep": 1}, 3),
        ({"train.epoch": 20, "train.ckpt.max_keep": -1}, 20),
        ({"train.ckpt.save_freq": 10, "train.max_num_steps": 20}, 3),
    ],
)
def test_saves_that_lie_there_at_one_time(case: Case, keys: dict, kept: int) -> None:
    case.spec |= keys
    case.spec["train.output_dir"] = str(case.folder / "runs")
    report = case.report("environment")
    assert report.facts["saves_kept"] == kept
    assert report.facts["checkpoint_bytes"] == 12 * report.facts["trainable_parameters"]
    case.spec["train.optm_name"] = "AdamW8bit"
    coded = case.report("environment").facts["checkpoint_bytes"]
    assert 6 < coded / report.facts["trainable_parameters"] < 7


def test_a_copy_that_the_host_has_no_room_for(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 < memory_checks.available_gib() < 100_000
    machine(case, "NVIDIA H200, 143771, 9.0, 580.159.04", cuda="13.0", count=2)
    for gib, mode, told in ((97.0, "async", 1), (99.0, "async", 0), (97.0, "sync", 0)):
        monkeypatch.setattr(memory_checks, "available_gib", lambda gib=gib: gib)
        case.spec["train.ckpt.save_mode"] = mode
        found = [p for p in case.report("budget").problems if (p.code, p.where) == ("BUDGET_MEMORY", "host memory")]
        assert len(found) == told and all(p.severity == "warning" for p in found)


def test_a_disk_too_small_is_told_in_gigabytes(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(case.folder)._replace(free=200 * 10**9)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    (problem,) = [p for p in case.report("environment").problems if p.code == "ENV_DISK_SPACE"]
    assert "200.00 GB free" in problem.message and "3 checkpoints" in problem.message
    case.spec["policy.lora"] = {"r": 16}
    assert [p for p in case.report("environment").problems if p.code == "ENV_DISK_SPACE"] == []
