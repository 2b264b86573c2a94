"""The reference page on memory: what the estimate counts, and how it compares with measured runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vidqa.planning.budget.answering import CACHE_SHARE, PACK_TOKENS, ROWS
from vidqa.planning.budget.cards import BY_BANDWIDTH
from vidqa.planning.budget.measured import (
    answering_files,
    compare,
    compare_answering,
    policy_calls,
    policy_rows,
    read_rows,
    result_files,
    rollout_rows,
    table,
)
from vidqa.planning.budget.memory import AGAIN, COUNTS, TrainingSetup, block_widths, layer_widths
from vidqa.planning.budget.recompute import WORDS
from vidqa.planning.budget.rollouts import MOST_ROWS
from vidqa.planning.recipes.cards import USUAL, cards_page
from vidqa.spec.pages import GENERATED

TEXT = f"""# GPU memory: what preflight predicts, and what was measured

{GENERATED}

Read it when preflight reports `BUDGET_MEMORY`, or to choose GPUs. The estimate of a training takes the model's
`config.json`, the spec, and the heaviest pack that the data really makes; no GPU is needed for it, and of the usual
models no download either ([preflight.md](preflight.md), "Without the model").

## What is counted

Always there, on each GPU, divided by `dp_shard_size` x `cp_size`: 12 bytes for every number that trains (float32 weight
and Adam's first and second moment), 2 bytes (bf16) for every frozen one. Besides that, the largest of these
moments, of which a GPU has its part where `cp_size` GPUs share each pack:

| moment | what is there |
|---|---|
| `decoder` | backward begins: all that was kept for it, the gathered root, the last decoder layer at work, logits |
| `vision` | the decoder's gradients, those of the root not yet summed, what the tower kept, one vision block at work |
| `root` | all gradients, the sum of the root's in `train.fsdp_reduce_dtype`, and weights that stay gathered |
| `generation` | with `engine.validation_generate`, the whole model, gathered, and one sample that it answers |

The root is what lies in no layer: embedding, head, mergers. Of a layer that much is kept for backward, for each token
(patch) so many numbers times each width:

| layer | computed again | hidden | query | key | MLP |
|---|---|---|---|---|---|
{{kept}}

A test counts them in the engine's layers. What the backward of a layer takes besides was measured on one layer; nothing
is fitted to the runs below. LoRA's dropout keeps a little more.

A GPU is large enough when the prediction, {COUNTS.error:.0%} more for what it may be wrong by, and \
{COUNTS.outside_gib:g} GiB for CUDA and NCCL fit.
Between that and the bare prediction preflight warns.
Before its first step a training takes the prediction and {COUNTS.error:.0%} more of each GPU, or as much as is free:
taking memory within a step would stop the GPU.

## What is given up for memory

With `engine.recompute = "auto"` and no `engine.pack_tokens` both are chosen for the smallest of the run's GPUs, so that
a step takes least time; preflight prints the choice and the share of the work that it does again. Backward computes no
more layers again than it must, in this order, which is that of work for each number saved:

| computed again | work for each number saved (8B) | |
|---|---|---|
| all of a vision block but attention | 2,300 | if the tower trains |
| query, key and value of a decoder layer | 4,500 | |
| all of a decoder layer but attention | 8,200 | |
| attention, too: a layer's input alone is kept | grows with the length of samples | |

Smaller packs keep less, and cost little: on one GPU packs of 8k tokens are 2 to 3 % slower than packs of 16k. Sharing
videos (`engine.share_video_prefix`) keeps packs as large as `policy.model_max_length`. `engine.recompute` may be fixed:
`none`, `vision` (whole vision blocks) or `all`. `engine.gpu_memory_gib` leaves a part of the GPU to others.

`train.fsdp_reshard_after_forward` says what of the weights that a GPU gathers it frees: with `never` they stay through
a step, with `default` they do so where there is room; else those of a layer are freed after it, which gathers them
twice in every micro-step.

With `never` the root's gradients are summed over the GPUs once a step and until then stay whole, in
`train.fsdp_reduce_dtype`. `always` frees the root's weights, too.

## When it does not fit

Preflight tries, in this order, and names the first that fits; failing that, several together:

1. weights gathered more often and activations computed again, where the spec forbids it, for time and nothing else;
2. twice the `dp_shard_size`, four times, ..., with a batch per rank that leaves the steps as they are where it can;
3. smaller packs (`engine.pack_tokens`), down to the longest sample;
4. of samples of 16k tokens and more, packs that GPUs share (`cp_size`, [long samples](training.md#long-samples));
5. no answers in validation (`engine.validation_generate = 0`);
6. LoRA.

## Answering

Every GPU of an evaluation holds the whole model. The estimate takes the prompts that are read together: with
`transformers` the batches that each rank will make, padded to their longest prompt, with `native` every run of
neighbours that fits a pack of {PACK_TOKENS:,} tokens.

| | `transformers` | `native` |
|---|---|---|
| always | weights | weights, the cache, the logits of captured steps |
| `vision` | pixels in float32, one vision block at work | frames as bytes, pixels in float32, one block at work |
| `decoder` | the tower's output twice, the cache of the prompts, padding's mask, one layer at work | its output once, \
one layer at work |
| `decode` | the cache of prompts and longest answers, once more in one layer | nothing more |

The native cache takes {CACHE_SHARE:.0%} of what the model leaves free, or what {ROWS} prompts as long as the longest
need if that is less; one of them it must hold. A test counts what blocks and layers hold while both generators run.
Preflight tries, in this order: `evaluation.generator = "native"`, smaller batches, bf16.

## Reinforcement learning

The `grpo` action holds more on each GPU, from the first step to the last:

| what | bytes |
|---|---|
| the rollout model, whole on each GPU | 2 for every weight (4 in float32), adapters merged |
| its cache | of the step's questions once, of every completion `rollout.max_response_length`; at most {MOST_ROWS} \
completions at a time |
| the logits of captured decode steps | 4 for every id of the vocabulary and row |
| the reference, in full training with `kl_beta` above 0 | 2 for every weight, divided by `dp_shard_size` |

The rest is the trainer's, and its packs are chosen for what is left: a pack holds a prompt once with its completions
behind it. A smaller `rollout.max_response_length`, fewer questions a step on each GPU, LoRA, and more GPUs help, in
this order of cost.

## On disk

A checkpoint is 12 bytes for every number that trains. An export is every weight in `train.param_dtype`, or with LoRA
the adapters and `modules_to_save` alone. Kept at one time: the newest `train.ckpt.max_keep`, the best, and the one
being written.

## Predicted against measured

The largest tensors' memory of a step (`torch.cuda.max_memory_allocated`); "kept" means `engine.recompute = "none"`.
Made from `benchmarks/results`; `benchmarks/memory.py` measures such rows of trainings.
"""
CARDS_TEXT = f"""## Cards that were not measured

Estimates, all of them: peak and bandwidth are those of data sheets, how much of them a training reaches was measured on
H200 and H100. On another card matrix products take as much longer as its peak is lower, and the {BY_BANDWIDTH:.0%} of
a step that is element-wise work as much longer as its memory is slower. What a power limit or cooling takes away is not
counted, nor are links between cards: the column of eight assumes that gathering weights is hidden, which NVLink does,
and PCIe (L40S, RTX) often does not.

A cell: the longest sample of 1k, 2k, 4k ... 128k tokens that a card has room for, then tokens a second of each card
with samples of {USUAL:,} tokens, and the work that is done again for the memory. "-": not even 1k tokens. The last
column is what to begin with: the recipe whose samples fit, and the largest model and method that one card holds. Speeds
come from the measured training that is most alike; steps of few tokens, as most of those rows have, are slower."""

CHOICES = """## The choice beside a grid

What the engine chose for a training beside the fastest of several fixed choices of `engine.recompute` and
`engine.pack_tokens` (so many, and its name), in one call of `benchmarks/policies.py`; fixed choices that were predicted
not to fit are left out. "Used" is the largest tensors' memory, and its share of what the run may take of the GPU."""


def memory_page() -> str:
    """Markdown with one table for every file of measured runs."""
    parts = [TEXT.format(kept=_kept())]
    for path in result_files():
        parts += [f"### {path.stem}", "", *table(compare(read_rows(path))), ""]
    if rows := policy_rows():
        parts += ["### policies", "", *table(compare(rows)), ""]
    for path in answering_files():
        parts += [f"### {path.stem}", "", *table(compare_answering(read_rows(path))), ""]
    if rows := rollout_rows():
        parts += ["### grpo", "", *_rollouts(rows), ""]
    if lines := _choices():
        parts += [CHOICES, "", *lines, ""]
    return "\n".join([*parts, CARDS_TEXT, "", *cards_page(), ""])


def _rollouts(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Markdown: steps of reinforcement learning, predicted against measured."""
    lines = [
        "| run | GPU | predicted GiB | measured GiB | difference | tokens of a pack |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        predicted, measured = row["predicted_gib"], row["memory_gib"]
        cells = (row["row"], row["gpu"], f"{predicted:.1f}", f"{measured:.1f}", f"{predicted / measured - 1:+.1%}")
        lines.append(f"| {' | '.join(cells)} | {row.get('pack_tokens', 0):,} |")
    return lines


def _choices() -> list[str]:
    """Markdown: of every case the newest choice that has a grid beside it, else the newest."""
    told = [line for call in policy_calls() for line in call.get("told", ())]
    told.sort(key=lambda line: "best_fixed" in line)
    newest = {(line["case"], line["gpu"]): line for line in told}
    if not newest:
        return []
    lines = ["| case | GPU | chosen | tokens/s | of the best fixed | predicted | used |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for line in newest.values():
        fixed = f"{line.get('fixed')}: {line.get('best_fixed')}"
        best = f"{line['against_best_fixed']:.2f} x (of {fixed})" if "best_fixed" in line else "-"
        predicted, used = (_gib(line.get(key)) for key in ("predicted_gib", "memory_gib"))
        used += f", {line['share_of_memory']:.0%}" if "share_of_memory" in line else ""
        chosen = f"packs of {line['pack_tokens']:,}; {line['chosen']}"
        lines.append(
            f"| {line['case']} | {line['gpu']} | {chosen} | {line['tokens/s/gpu']:,} | {best} | {predicted} | {used} |"
        )
    return lines


def _gib(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} GiB"


def _kept() -> str:
    return "\n".join(
        f"| {tower}, {how} | {WORDS[again]} | {each.hidden:g} | {each.queries:g} | {each.keys:g} | {each.wide:g} |"
        for tower, widths_of in (("decoder", layer_widths), ("vision", block_widths))
        for how, setup in (("compiled", TrainingSetup(1)), ("as written", TrainingSetup(1, compiled=False)))
        for again in AGAIN
        if tower == "decoder" or again != "projections"
        for each in [widths_of(setup, COUNTS, again)]
    )
