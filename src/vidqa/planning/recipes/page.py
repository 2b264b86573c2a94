"""The reference page on recipes: what to begin with, what it needs, and what others have reached."""

from __future__ import annotations

from collections.abc import Iterator

from vidqa.planning.recipes.estimate import ANSWER, TEXT, Estimate, estimate
from vidqa.planning.recipes.grid import (
    BATCH,
    FOLDER,
    GPUS,
    MEMORY_GIB,
    MODELS,
    PROFILES,
    PUBLISHED,
    Point,
    PublishedRecipe,
    recipe_spec,
)
from vidqa.spec.pages import GENERATED, row

TEXT_OF_PAGE = f"""# Recipes: what to begin with, and what it needs

{GENERATED}

Read it to choose model, method, frames and GPUs before the first spec, or to compare with what others have reached.

```bash
python scripts/build_spec.py train --override recipes/short-video.toml --train-root DATA/train \
--set dp_shard_size=2 --set batch_size=16 --out train.toml
python scripts/preflight.py --spec train.toml --gpu-count 2 --gpu-memory-gb 80 --gpu-arch sm_90
```

A recipe is an override file without data, and preflight replaces every estimate of this page by one of your own
samples. The tables are computed, not measured: memory by the rules of [memory.md](memory.md), time from the work of the
samples and the utilisation that similar trainings have reached here on GPUs, decoding not counted. Text is taken as
{TEXT} tokens a sample, {ANSWER} of which are learned.

## Which one

* **Short or long.** `short-video.toml` takes 8 frames of every clip, which suits clips of some seconds.
  `long-video.toml` takes one frame a second and at most 8,192 tokens a video, which suits minutes.
* **Frames or pixels.** More frames for what happens and when, more pixels for what is small. The traffic questions
  below reach 93.65 % with 8 frames, and more than 92 % after one pass with a frame a second at three times the cost, so
  begin with few frames. 81,920 pixels a frame were enough for more than 90 % of them, too: details mattered less.
* **How much data.** 5,000 questions about 341 videos brought more than 90 % on traffic questions, 20,000 images as much
  on distances in warehouses; 500,000 images took 18 times as long. A broad blend of 1.1 million samples needs a
  learning rate as low as 2e-7, and moves a general multiple-choice score by less than a point (80.2 to 80.9) while its
  own task gains much (63.2 to 77.0).
* **SFT or RL.** Begin with supervised fine-tuning; the first tables are of it. Published reinforcement learning came
  after it and added less, as its table below says. [Reinforcement learning](rl.md) starts from the fine-tuned model.
* **Full, frozen vision, LoRA.** The guides of others ask for four GPUs of 80 GB for a full fine-tune, and one for LoRA.
  The tables say what fits by the rules here.

## Short videos

{{short}}

## Long videos

{{long}}

Each cell: GiB at the peak of one H100 of 80 GB, hours for three passes, and the work that is done again to save memory
(+12 % is an eighth more). Too large for the card: the peak alone, in brackets. Data: 1,000 samples, each with
a clip of its own of 1280 x 720, 10 seconds in the first table and 120 in the second. A step has {BATCH} samples on any
number of GPUs. The GPUs are `dp_shard_size`, with LoRA `dp_replicate_size`, and the batch is {BATCH} divided by them:

```bash
python scripts/build_spec.py train --override recipes/long-video.toml --train-root DATA/train \
--set dp_shard_size=8 --set batch_size=4 --out train.toml
```

## What others have published

The setting and result of others, and what the same training needs here by estimate, with its file in `recipes/`:

{{published}}

What they do not publish is assumed: traffic clips of 10 seconds (60 with a frame a second) in 1920 x 1080, driving and
robots in 1280 x 720, 10,000 questions of RoboVQA. Their trainer decodes a video again for each of its questions, which
dominates its 1 h 16 min; `engine.share_video_prefix`, which the two traffic recipes set, reads a video once for all
questions about it in a step, which the estimate does not count. Sources: the cookbook of Cosmos for WTS, warehouse and
Uber; the job recipes of cosmos-reason1 for RoboVQA.

## Reinforcement learning

Begin with the defaults of `build_spec.py grpo`: 16 questions of 8 completions a step, a learning rate of 1e-6 (LoRA
1e-5), no KL divergence. `reason1-rl.toml` is the recipe of Cosmos-Reason1:

```bash
python scripts/build_spec.py grpo --override recipes/reason1-rl.toml --out rl.toml
python scripts/preflight.py --spec rl.toml --gpu-count 4 --gpu-memory-gb 80 --gpu-arch sm_90
```

| recipe | setting | there | result |
| --- | --- | --- | --- |
| Cosmos-Reason1-7B on its RL set, fewer than 1,000 questions (`reason1-rl.toml`) | 16 questions x 8 completions of at \
most 6,144 tokens, 2e-6, no KL; choice and format; 1 frame a second of 81,920 pixels | 4 x 80 GB, two of them for \
rollouts; a user's steps of 80 s with 426 tokens a completion | that user's reward 1.5 of 2; SFT and RL together, \
physical common sense 47.4 -> 54.3 |
| VideoPhy-2, after SFT | `kl_beta` 0.05, reward `distance`, `engine.balance`, 900 steps | not published | accuracy \
0.340 -> 0.374, correlation 0.395 -> 0.425 |
| Video-R1-7B, after SFT | 16 frames, 8 completions of 768 tokens, 1e-6, KL 0.04, 1,200 steps | 4 x H20 or 5 x A100 | \
VSI-Bench 35.8 -> 37.1 |
| Qwen2.5-VL-7B on geometry (EasyR1, images) | 512 questions x 5 completions, 1e-6, KL 0.01 | 8 x H100, 120 to 145 s a \
step | 0.37 -> 0.48, with dapo 0.50 |

What a step takes here on one H100 stands on [its page](rl.md#memory-and-time), measured.
"""


def recipes_page() -> str:
    """Markdown with one table for each base file and one for what was published."""
    return TEXT_OF_PAGE.format(
        short="\n".join(_grid("short-video")), long="\n".join(_grid("long-video")), published="\n".join(_published())
    )


def _grid(base: str) -> Iterator[str]:
    yield row("model", "method", "tokens", *(f"{gpus} GPU{'s' * (gpus > 1)}" for gpus in GPUS))
    yield row(*["---"] * (len(GPUS) + 3))
    for model in MODELS:
        for profile in PROFILES:
            found = [Point(base, model, profile, gpus).estimate() for gpus in GPUS]
            yield row(model.split("/")[1], profile, f"{found[0].tokens:,}", *map(_cell, found))


def _cell(found: Estimate) -> str:
    if not found.fits:
        return f"({found.peak_gib:.0f})"
    again = f" +{found.again:.0%}" if found.again >= 0.005 else ""
    return f"{found.peak_gib:.0f} GiB, {found.hours:.2f} h{again}"


def _published() -> Iterator[str]:
    yield row("file", "recipe", "setting", "there", "result", "here: tokens a sample, GPUs, peak, hours")
    yield row(*["---"] * 6)
    for each in PUBLISHED:
        yield row(f"`{each.file}.toml`", each.source, each.setting, each.time, each.result, _here(each))


def _here(each: PublishedRecipe) -> str:
    spec = recipe_spec(FOLDER / f"{each.file}.toml")
    found = estimate(spec, each.data, each.gpu, MEMORY_GIB[each.gpu])
    mesh = spec.policy.parallelism
    gpus = mesh.dp_shard_size * mesh.dp_replicate_size
    shown = f"{found.tokens:,}, {gpus} x {each.gpu}, {found.peak_gib:.0f} GiB"
    return f"{shown}, {found.hours:.1f} h" if found.fits else f"{shown}: too large"
