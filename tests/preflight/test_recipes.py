"""The recipes of `recipes/`: each is a sound spec, passes preflight, and needs there what its page says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.clips import write_clip, write_image
from vidqa.contract.cli import SKILL_ROOT
from vidqa.planning.recipes.estimate import Data, estimate
from vidqa.planning.recipes.grid import BASES, FOLDER, MODELS, PROFILES, PUBLISHED, Point, points, recipe_spec
from vidqa.preflight.gpus import Declared
from vidqa.preflight.report import preflight
from vidqa.spec import dump, effective_batch
from vidqa.spec.build import Request, build
from vidqa.spec.keys import with_values

pytestmark = pytest.mark.usefixtures("no_hub")

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


def test_every_published_recipe_has_its_file_and_every_file_is_used() -> None:
    assert {path.stem for path in FILES} == {each.file for each in PUBLISHED} | set(BASES)


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


def test_more_gpus_take_less_and_methods_are_in_order() -> None:
    """Of the grid: a step stays the same, time falls with the GPUs, and adapters take least where all is recomputed."""
    for model in MODELS[:1]:
        found = {(p.profile, p.gpus): p for p in points("long-video") if p.model == model}
        hours = [found["full", gpus].estimate().hours for gpus in (1, 2, 4, 8)]
        assert hours == sorted(hours, reverse=True)
        batches = {p.spec.train.train_batch_per_replica * p.gpus for p in found.values()}
        assert batches == {32}
    large = {profile: Point("long-video", MODELS[-1], profile, 1).estimate() for profile in PROFILES}
    assert large["lora"].fits and not large["frozen-vision"].fits
    assert large["lora"].peak_gib < large["frozen-vision"].peak_gib < large["full"].peak_gib


GRID = [
    Point("short-video", MODELS[0], "full", 2),
    Point("long-video", MODELS[1], "frozen-vision", 4),
    Point("long-video", MODELS[3], "lora", 1),
]


@pytest.mark.parametrize("name", [*(each.file for each in PUBLISHED), *range(len(GRID))])
def test_a_recipe_passes_preflight_and_needs_what_its_estimate_says(
    tmp_path: Path, media: Path, name: str | int
) -> None:
    """On real media of the kind; the text of real samples is not what the estimate takes it for, and hardly counts."""
    spec = GRID[name].spec if isinstance(name, int) else recipe_spec(FOLDER / f"{name}.toml")
    kind = "image" if name == "warehouse-images" else "video"
    text = "Which of these is seen at the end? " * 10  # about as long as the estimate takes a question for
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

    data = Data(SAMPLES, 0 if kind == "image" else 10, *((960, 540) if kind == "image" else (1280, 720)), 2.0)
    told = estimate(spec, data, "H100", CARD)
    facts = report.facts
    assert told.fits and told.steps == facts["total_steps"]
    assert told.tokens == pytest.approx(facts["train"]["tokens_per_sample"]["median"], rel=0.06)
    assert told.peak_gib == pytest.approx(facts["memory"]["peak_gib"], rel=0.06)
    assert told.again == pytest.approx(facts["memory"]["done_again"], abs=0.03)
