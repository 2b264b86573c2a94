"""Numbers of the tables in references/memory.md and recipes.md, recomputed."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

from vidqa.data.record import Record
from vidqa.families import family_of
from vidqa.families.published import published
from vidqa.planning.budget.autotune import Packing, best_policy
from vidqa.planning.budget.memory import MicroStep, TrainingSetup, fits, layer_widths, training_setup
from vidqa.planning.budget.params import count_params, parameters
from vidqa.planning.budget.speed import GPUS, START_S, efficiency, flops_model, recomputed_flops_share
from vidqa.planning.packing import Steps
from vidqa.planning.prefix_sharing import workload
from vidqa.planning.samples import Prompting, Sample
from vidqa.spec import Layer, read_layer, resolve
from vidqa.spec.models import TrainSpec
from vidqa.video.plan import plan_frames
from vidqa.video.types import VideoMeta, vision_spec

ROOT = Path(__file__).parents[2]
TEXT, STAMP, ANSWER = 120, 9, 20  # tokens of a sample's text, of a time stamp, and of the supervised answer
BATCH, STEPS = 32, 96  # of three passes over 1,000 samples, the last step of each part-filled


def cells(page: str, first: str) -> list[str]:
    lines = (ROOT / "references" / page).read_text(encoding="utf-8").splitlines()
    return [cell.strip() for cell in next(line for line in lines if line.startswith(first)).split("|")[1:-1]]


def test_the_widths_of_a_compiled_layer() -> None:
    widths = layer_widths(TrainingSetup(1), "none")
    numbers = [f"{number:g}" for number in (widths.hidden, widths.queries, widths.keys, widths.wide)]
    assert cells("memory.md", "| decoder, compiled | nothing ")[2:] == numbers


def test_the_tokens_memory_and_hours_of_a_recipe(tmp_path: Path) -> None:
    name = "nvidia/Cosmos-Reason2-8B"
    settings = published(name)
    assert settings is not None
    (tmp_path / "config.json").write_text(json.dumps(settings.config))
    (tmp_path / "processor_config.json").write_text(json.dumps(settings.processor))
    keys = {
        "policy.model_name_or_path": f"hf_model://{name}",
        "policy.lora.r": 16,
        "train.train_batch_per_replica": BATCH,
    }
    data = Layer("data", {"custom.train_dataset.annotation_path": "annotations.json", **keys})
    spec = resolve("train", [read_layer(ROOT / "recipes" / "short-video.toml"), data]).spec
    assert isinstance(spec, TrainSpec)

    family = family_of(tmp_path)
    sizes = family.sizes_of(tmp_path)
    vision = vision_spec(family.geometry(tmp_path), **spec.custom.vision.model_dump())
    plan = plan_frames(VideoMeta(30.0, 300, 10.0, 1280, 720), vision)
    length = plan.tokens + TEXT + STAMP * plan.grid[0]
    sample = Sample(Record("0", ()), (plan,), Prompting(), length, ANSWER)
    model, card = count_params(sizes, parameters(family.tensors(sizes), spec.policy)), GPUS["H100"]
    chosen = best_policy(spec, model, Packing(partial(Steps, spec, [sample] * BATCH, 1, "cuda"), 1), card.memory_gib)
    assert fits(chosen.memory.peak_gib, card.memory_gib) and isinstance(chosen.micro_step, MicroStep)
    recomputed = recomputed_flops_share(spec, model, chosen.policy.recompute, chosen.micro_step)
    mfu = efficiency(model, training_setup(spec, chosen.policy), recomputed).on("H100").mfu
    flops = flops_model(sizes, vision_trains=model.vision.trained > 0, decoder_trains=False).training_flops(
        [workload((0,), [sample])]
    )
    hours = (START_S + STEPS * BATCH * flops / (card.peak * mfu)) / 3600
    row = cells("recipes.md", "| Cosmos-Reason2-8B | lora ")
    assert row[2:4] == [f"{length:,}", f"{chosen.memory.peak_gib:.0f} GiB, {hours:.2f} h"]
