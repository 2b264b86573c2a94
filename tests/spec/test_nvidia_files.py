"""Files as NVIDIA's examples have them are override files: what is taken over, moved, or refused with a reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vidqa.contract.problem import ProblemError
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
    assert errors_of(bare) == ["SPEC_BARE_MODEL_ID"]


def test_older_names_of_validation_are_moved(root: Path) -> None:
    text = LLAVA.format(root=root, vision=VISION).replace(
        "[train]", "[train]\nenable_validation = true\nvalidation_step = 30\nvalidation_batch_per_replica = 2"
    )
    spec = built(root, text + "[train.train_policy.dataset]\ntest_size = 100\n").spec
    assert isinstance(spec, TrainSpec)
    valid = spec.validation
    assert (valid.enable, valid.freq, valid.freq_in_epoch, valid.batch_size) == (True, 30, 0, 2)


@pytest.mark.parametrize("line", ["custom.dataset.path = 'data/sft'", "custom.dataset = {path = 'data/sft'}"])
def test_a_folder_of_arrow_files_is_refused_with_a_way_out(root: Path, line: str) -> None:
    with pytest.raises(ProblemError) as wrong:
        built(root, line)
    said = {problem.code: problem for problem in wrong.value.problems}
    assert "annotations.json" in said["SPEC_UNKNOWN_KEY"].remedy and "sft.toml" in said["SPEC_UNKNOWN_KEY"].where


@pytest.mark.parametrize(
    "key", ["min_pixels", "resized_height", "resized_width", "min_frames", "max_frames", "video_start", "video_end"]
)
def test_other_keys_of_their_vision_table_are_explained(root: Path, key: str) -> None:
    with pytest.raises(ProblemError) as wrong:
        built(root, LLAVA.format(root=root, vision=f"{VISION}\n{key} = 4"))
    problem = next(problem for problem in wrong.value.problems if problem.severity == "error")
    assert (
        errors_of(wrong) == ["SPEC_UNKNOWN_KEY"] and "did you mean" not in problem.remedy and "here" in problem.message
    )


def test_an_empty_or_unknown_table_is_still_a_problem(root: Path) -> None:
    for line in ("custom.dataset = {}", "custom.dataset = 3", "custom.dataset.other = 3", "custom.dataset.path.x = 1"):
        with pytest.raises(ProblemError) as wrong:
            built(root, line)
        assert "SPEC_UNKNOWN_KEY" in {problem.code for problem in wrong.value.problems}


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
