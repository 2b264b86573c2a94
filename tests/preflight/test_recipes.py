"""The recipes of `recipes/`: each is a sound spec, passes preflight, and stands on its page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.clips import write_clip, write_image
from vidqa.core import actions
from vidqa.core.cli import SKILL_ROOT
from vidqa.preflight.gpus import Declared
from vidqa.preflight.report import preflight
from vidqa.spec import Layer, dump, effective_batch, read_layer, resolve
from vidqa.spec.build import Request, build
from vidqa.spec.keys import with_values
from vidqa.spec.models import TrainSpec

pytestmark = pytest.mark.usefixtures("no_hub")

FOLDER = SKILL_ROOT / "recipes"
REINFORCEMENT = FOLDER / "reason1-rl.toml"
FILES = sorted({*FOLDER.glob("*.toml")} - {REINFORCEMENT})
SAMPLES = 512  # at least one step of every recipe
CARD = 79.6


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recipes")
    write_clip(folder / "clip.mp4", frames=20, fps=2, width=1280, height=720)
    write_image(folder / "image.png", width=960, height=540)
    return folder


def recipe_spec(file: Path, *layers: Layer) -> TrainSpec:
    unread = Layer("data", {"custom.train_dataset.annotation_path": "annotations.json"})
    spec = resolve("train", [*layers[:1], read_layer(file), unread, *layers[1:]]).spec
    assert isinstance(spec, TrainSpec)
    return spec


def test_every_file_stands_on_the_page() -> None:
    page = (SKILL_ROOT / "references" / "recipes.md").read_text(encoding="utf-8")
    assert {path.stem for path in FILES if f"`{path.name}`" not in page} == set()


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.stem)
def test_a_recipe_says_its_schema_and_has_no_warning(file: Path) -> None:
    first = file.read_text(encoding="utf-8").partition("\n")[0]
    assert (file.parent / first.removeprefix("#:schema ")).resolve() == SKILL_ROOT / "schemas/train.schema.json"
    assert recipe_spec(file).train.train_policy.type == "sft"


def test_the_recipe_of_reinforcement_learning_is_that_of_cosmos_reason1() -> None:
    first = REINFORCEMENT.read_text(encoding="utf-8").partition("\n")[0]
    assert first == "#:schema ../schemas/grpo.schema.json"
    resolved = build(Request("grpo", overrides=(REINFORCEMENT,)))
    assert {problem.code for problem in resolved.warnings} <= {"SPEC_MODEL_MAX_LENGTH"}
    assert effective_batch(resolved.spec) == 16 and "<answer>" in resolved.spec.custom.system_prompt  # type: ignore[attr-defined,arg-type]


GRID = {
    "2B full": ("short-video", "nvidia/Cosmos-Reason2-2B", "full", 2),
    "3B frozen": ("long-video", "Qwen/Qwen2.5-VL-3B-Instruct", "frozen-vision", 4),
    "8B LoRA": ("long-video", "nvidia/Cosmos-Reason2-8B", "lora", 1),
}


def grid_spec(base: str, model: str, profile: str, gpus: int) -> TrainSpec:
    keys = {
        "policy.model_name_or_path": f"hf_model://{model}",
        "policy.parallelism.dp_shard_size": gpus,
        "train.train_batch_per_replica": 32 // gpus,
    }
    method = Layer(profile, dict(actions.action("train").profiles[profile]))
    return recipe_spec(FOLDER / f"{base}.toml", method, Layer("grid", keys))


@pytest.mark.parametrize("name", [*(path.stem for path in FILES if not path.stem.endswith("-video")), *GRID])
def test_a_recipe_passes_preflight(tmp_path: Path, media: Path, name: str) -> None:
    """On real media of the kind."""
    spec = grid_spec(*GRID[name]) if name in GRID else recipe_spec(FOLDER / f"{name}.toml")
    kind = "image" if name == "warehouse-images" else "video"
    text = "Which of these is seen at the end? " * 10
    turns = [{"from": "human", "value": f"<{kind}>\n{text}"}, {"from": "gpt", "value": "a red car on the left " * 4}]
    file = {"image": "image.png", "video": "clip.mp4"}[kind]
    records = [{"id": str(number), kind: file, "conversations": turns} for number in range(SAMPLES)]
    (tmp_path / "annotations.json").write_text(json.dumps(records))
    keys = {
        "custom.train_dataset.annotation_path": str(tmp_path / "annotations.json"),
        "custom.train_dataset.media_path": str(media),
        "train.train_policy.dataset.test_size": None,
        "validation.enable": False,
        "train.output_dir": str(tmp_path / "runs"),
        "engine.share_video_prefix": False,  # all questions here are about one clip, of which nothing would be left
    }
    spec = with_values(spec, keys)
    (tmp_path / "spec.toml").write_text(dump(spec))
    mesh = spec.policy.parallelism
    gpus = mesh.dp_shard_size * mesh.dp_replicate_size
    report = preflight(tmp_path / "spec.toml", "local", declared=Declared(gpus, CARD, "sm_90"))
    errors = {problem.code for problem in report.problems if problem.severity == "error"}
    assert errors == {"STORAGE_UNREACHABLE"}, report.text
    assert report.facts["total_steps"] == spec.train.epoch * (SAMPLES // effective_batch(spec))
    assert 0 < report.facts["memory"]["peak_gib"] < CARD
