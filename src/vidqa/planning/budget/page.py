"""The reference page on memory: what the estimate counts, and how it compares with measured runs."""

from __future__ import annotations

from vidqa.planning.budget.answering import CACHE_SHARE, PACK_TOKENS, ROWS
from vidqa.planning.budget.measured import (
    answering_files,
    compare,
    compare_answering,
    read_rows,
    result_files,
    table,
)
from vidqa.planning.budget.memory import COUNTS
from vidqa.spec.pages import GENERATED

TEXT = f"""# GPU memory: what preflight predicts, and what was measured

{GENERATED}

Read it when preflight reports `BUDGET_MEMORY`, or to choose GPUs. The estimate of a training takes the model's
`config.json`, the spec, and the heaviest pack that the data really makes; no GPU is needed for it, and of the usual
models no download either ([preflight.md](preflight.md), "Without the model").

## What is counted

Always there, on each GPU, divided by `dp_shard_size`: 12 bytes for every number that trains (float32 weight and Adam's
first and second moment), 2 bytes (bf16) for every frozen one. Besides that, the largest of three moments of a step:

| moment | what is there |
|---|---|
| `decoder` | backward begins: all that was kept for it, the gathered root, the last decoder layer at work, logits |
| `vision` | the decoder's gradients, those of the root not yet summed, what the tower kept, one vision block at work |
| `root` | all gradients, the sum of the root's in `train.fsdp_reduce_dtype`, and weights that stay gathered |

The root is what lies in no layer: embedding, head, mergers. Of a layer its input alone is kept, or all that backward
needs, which for each token (patch) is so many numbers times each width:

| layer | hidden | query | key | MLP |
|---|---|---|---|---|
{{kept}}

A test counts them in the engine's layers; nothing is fitted to the runs below. LoRA's dropout keeps a little more.

A GPU is large enough when the prediction, {COUNTS.error:.0%} more for what it may be wrong by, and \
{COUNTS.outside_gib:g} GiB for CUDA and NCCL fit.
Between that and the bare prediction preflight warns.

## What is given up for memory

A training takes the first of these that fits the smallest of its GPUs; preflight prints which. A spec may fix either:

| `engine.recompute` | `train.fsdp_reshard_after_forward` | costs |
|---|---|---|
| `none`: all that backward needs is kept | `never`: weights are gathered once a step and stay | |
| `none` | weights of a layer are freed after it, those of the root stay | gathering twice in every micro-step |
| `vision`: the vision tower is computed again | `never` | a third of the tower's work |
| `vision` | freed | both |
| `all`: every layer is computed again | `never` | a third of all work |
| `all` | freed | both |

With `never` the root's gradients are summed over the GPUs once a step and until then stay whole, in
`train.fsdp_reduce_dtype`. `always` frees the root's weights, too.

## When it does not fit

Preflight tries, in this order, and names the first that fits; failing that, several together:

1. weights gathered more often and activations computed again, where the spec forbids it, for time and nothing else;
2. twice the `dp_shard_size`, four times, ..., with a batch per rank that leaves the steps as they are where it can;
3. smaller packs (`engine.pack_tokens`), down to the longest sample;
4. LoRA.

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

## On disk

A checkpoint is 12 bytes for every number that trains. An export is every weight in `train.param_dtype`, or with LoRA
the adapters and `modules_to_save` alone. Kept at one time: the newest `train.ckpt.max_keep`, the best, and the one
being written.

## Predicted against measured

The largest tensors' memory of a step (`torch.cuda.max_memory_allocated`); "kept" means `engine.recompute = "none"`.
Made from `benchmarks/results`; `benchmarks/memory.py` measures such rows, and `benchmarks/answering_memory.py` those of
evaluations, of which none has been measured yet.
"""


def memory_page() -> str:
    """Markdown with one table for every file of measured runs."""
    parts = [TEXT.format(kept=_kept())]
    for path in result_files():
        parts += [f"### {path.stem}", "", *table(compare(read_rows(path))), ""]
    for path in answering_files():
        parts += [f"### {path.stem}", "", *table(compare_answering(read_rows(path))), ""]
    return "\n".join(parts)


def _kept() -> str:
    layers = {
        "decoder, compiled": COUNTS.compiled,
        "decoder, as written": COUNTS.eager,
        "vision, compiled": COUNTS.compiled_vision,
        "vision, as written": COUNTS.eager_vision,
    }
    rows = ((name, each.hidden, each.queries, each.keys, each.wide) for name, each in layers.items())
    return "\n".join(f"| {name} | {' | '.join(f'{count:g}' for count in counts)} |" for name, *counts in rows)
