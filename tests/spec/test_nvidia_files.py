"""Files as NVIDIA's examples have them are override files: what is taken over, moved, or refused with a reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vidqa.core.problem import ProblemError
from vidqa.spec import Resolved, load
from vidqa.spec.build import Request, build
from vidqa.spec.models import EvaluateSpec, TrainSpec

MODEL = "hf_model://nvidia/Cosmos-Reason2-2B"
# Keys and values of the LLaVA example; the data's paths are the test's own.
LLAVA = """
#:schema ../../../configs/schemas/cosmos_rl_config.json
redis = "12800"
[custom.dataset]
annotation_path = "{root}/annotations.json"
media_path = "{root}"
system_prompt = "Answer the questions."
{vision}
[train]
output_dir = "outputs/sft"
compile = false
train_batch_per_replica = 32
[policy]
model_name_or_path = "nvidia/Cosmos-Reason2-2B"
model_max_length = 4096
[logging]
logger = ['console', 'wandb']
project_name = "cosmos_reason2"
experiment_name = "post_training_llava/sft"
[train.train_policy]
type = "sft"
mini_batch = 4
[train.ckpt]
enable_checkpoint = true
[policy.parallelism]
tp_size = 1
cp_size = 1
dp_shard_size = 4
pp_size = 1
"""
VISION = "[custom.vision]\nfps = 1\nmax_pixels = 81920"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "annotations.json").write_text(json.dumps([{"id": 1, "video": "a.mp4"}]))
    return tmp_path


def test_the_configuration_of_the_benchmark_names_the_script_that_takes_it(tmp_path: Path) -> None:
    """The keys of Cosmos-Reason1's eval_config.yaml."""
    path = tmp_path / "eval_config.yaml"
    path.write_text(
        "datasets: [av, robovqa]\n"
        "model: {model_name: nvidia/Cosmos-Reason1-7B, tokenizer_model_name: qwen2.5-vl-7b, tp_size: 4}\n"
        "evaluation: {answer_type: reasoning, num_processes: 80, skip_saved: false, fps: 4, seed: 1}\n"
        "generation: {max_retries: 10, max_tokens: 1024, temperature: 0.6, top_p: 0.95}\n"
    )
    with pytest.raises(ProblemError) as refused:
        build(Request("evaluate", overrides=(path,)))
    (problem,) = [found for found in refused.value.problems if found.code == "SPEC_FILE"]
    assert f"run_benchmark.py --data DATA --config {path}" in problem.remedy


def built(root: Path, text: str, **more: object) -> Resolved:
    (root / "sft.toml").write_text(text)
    return build(Request("train", overrides=(root / "sft.toml",), **{"model": MODEL, **more}))  # type: ignore[arg-type]


def errors_of(wrong: pytest.ExceptionInfo[ProblemError]) -> list[str]:
    return [problem.code for problem in wrong.value.problems if problem.severity == "error"]


def test_the_llava_example_works_with_the_model_named(root: Path) -> None:
    resolved = built(root, LLAVA.format(root=root, vision=VISION))
    spec = resolved.spec
    assert isinstance(spec, TrainSpec)
    data = spec.custom.train_dataset
    assert (data.annotation_path, data.media_path) == (f"{root}/annotations.json", str(root))
    assert (spec.custom.system_prompt, spec.custom.vision.fps) == ("Answer the questions.", 1.0)
    assert (spec.custom.vision.max_pixels, spec.custom.vision.nframes) == (81920, None)
    assert resolved.origins["custom.train_dataset.media_path"] == str(root / "sft.toml")
    assert {warning.code for warning in resolved.warnings} == {"SPEC_MODEL_MAX_LENGTH", "SPEC_NO_EFFECT"}
    with pytest.raises(ProblemError) as bare:
        built(root, LLAVA.format(root=root, vision=VISION), model=None)
    assert errors_of(bare) == ["SPEC_MODEL"]


def test_older_names_of_validation_are_moved(root: Path) -> None:
    text = LLAVA.format(root=root, vision=VISION).replace(
        "[train]", "[train]\nenable_validation = true\nvalidation_step = 30\nvalidation_batch_per_replica = 2"
    )
    spec = built(root, text + "[train.train_policy.dataset]\ntest_size = 100\n").spec
    assert isinstance(spec, TrainSpec)
    valid = spec.validation
    assert (valid.enable, valid.freq, valid.freq_in_epoch, valid.batch_size) == (True, 30, 0, 2)


@pytest.mark.parametrize("line", ["custom.dataset.path = 'data/sft'", "custom.dataset = {path = 'data/sft'}"])
def test_a_folder_of_save_to_disk_is_the_training_set(root: Path, line: str) -> None:
    spec = built(root, line).spec
    assert isinstance(spec, TrainSpec) and spec.custom.train_dataset.annotation_path == "data/sft"


VISION_KEYS = {"fps": 2.0, "min_pixels": 4096, "max_pixels": 81920, "min_frames": 2, "max_frames": 64}
OTHERS = {"nframes": 8, "resized_height": 224, "resized_width": 448, "video_start": 1.5, "video_end": 9.0}


@pytest.mark.parametrize("keys", [VISION_KEYS, OTHERS])
def test_all_keys_of_their_vision_table_are_taken(root: Path, keys: dict[str, float]) -> None:
    written = "".join(f"\n{key} = {value}" for key, value in keys.items())
    spec = built(root, LLAVA.format(root=root, vision=f"[custom.vision]{written}")).spec
    assert isinstance(spec, TrainSpec)
    assert {key: getattr(spec.custom.vision, key) for key in keys} == keys


@pytest.mark.parametrize(
    "keys",
    [
        "resized_height = 224",
        "resized_height = 224\nresized_width = 224\nmax_pixels = 9000",
        "min_pixels = 9000\nmax_pixels = 8000",
        "video_start = 3\nvideo_end = 3.0",
        "min_frames = 8\nmax_frames = 4",
    ],
)
def test_keys_of_the_vision_table_that_contradict_each_other_are_named(root: Path, keys: str) -> None:
    with pytest.raises(ProblemError) as wrong:
        built(root, LLAVA.format(root=root, vision=f"[custom.vision]\nfps = 1\n{keys}"))
    assert errors_of(wrong) == ["SPEC_CONFLICT"]


def test_media_paths_may_be_empty_where_names_are_absolute(root: Path) -> None:
    text = LLAVA.format(root=root, vision=VISION).replace(f'media_path = "{root}"', 'media_path = ""')
    spec = built(root, text).spec
    assert isinstance(spec, TrainSpec) and spec.custom.train_dataset.media_path == ""


def test_a_loader_is_given_the_annotation_path(root: Path) -> None:
    spec = built(root, LLAVA.format(root=root, vision=VISION) + "[custom]\nloader = 'mine.py:records'\n").spec
    assert isinstance(spec, TrainSpec)
    assert spec.custom.train_dataset.annotation_path == f"mine.py:records#{root}/annotations.json"
    assert spec.custom.val_dataset.annotation_path == spec.custom.loader == ""
    alone = built(root, "[custom]\nloader = 'mine.py:records'\nval_dataset.annotation_path = 'held.json'\n").spec
    assert isinstance(alone, TrainSpec) and alone.custom.train_dataset.annotation_path == "mine.py:records"
    assert alone.custom.val_dataset.annotation_path == "mine.py:records#held.json"


def test_an_empty_or_unknown_table_is_still_a_problem(root: Path) -> None:
    for line in ("custom.dataset = {}", "custom.dataset = 3", "custom.dataset.other = 3", "custom.dataset.path.x = 1"):
        with pytest.raises(ProblemError) as wrong:
            built(root, line)
        assert {"SPEC_UNKNOWN_KEY", "SPEC_VALUE"} & {problem.code for problem in wrong.value.problems}


def test_an_evaluation_takes_over_the_largest_frame(root: Path) -> None:
    from vidqa.spec import dump

    run = root / "run"
    (run / "safetensors" / "epoch_1").mkdir(parents=True)
    (run / "safetensors" / "epoch_1" / "model.safetensors").write_bytes(b"")
    (run / "safetensors" / "epoch_1" / "config.json").write_text("{}")
    (run / "best").symlink_to("safetensors/epoch_1")
    (run / "run.json").write_text("{}")
    (run / "spec.toml").write_text(dump(built(root, LLAVA.format(root=root, vision=VISION)).spec))
    assert load(run / "spec.toml", "train").custom.vision.max_pixels == 81920
    spec = build(Request("evaluate", parent_run=run, roots=(("eval", str(root)),))).spec
    assert isinstance(spec, EvaluateSpec)
    assert (spec.vision.fps, spec.vision.max_pixels) == (1.0, 81920)


@pytest.mark.parametrize(("key", "option"), [("parent_job_id", "--parent-job-id"), ("automl_policy", "--automl")])
def test_an_argument_of_a_workflow_names_the_option_that_takes_it(key: str, option: str) -> None:
    with pytest.raises(ProblemError) as refused:
        build(Request("evaluate", sets=(f"{key}=on",)))
    (problem,) = [found for found in refused.value.problems if key in found.message]
    assert problem.code == "SPEC_UNKNOWN_KEY" and option in problem.remedy


def test_the_evaluators_newer_name_for_the_number_of_frames_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "evaluate.toml"
    path.write_text('results_dir = "out"\n[vision]\nnum_frames = 12\n[dataset]\nannotation_path = "a.json"\n')
    spec = build(Request("evaluate", overrides=(path,))).spec
    assert isinstance(spec, EvaluateSpec) and spec.vision.nframes == 12
