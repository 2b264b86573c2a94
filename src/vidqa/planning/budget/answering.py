"""Peak memory of one GPU that answers questions, from shapes alone: a constant part, and three moments.

    always     the weights, and with `native` the whole cache and the logits of its captured steps
    vision     the vision tower encodes the media of the prompts in a prefill
    decoder    the prefill is in the last decoder layer; with `transformers` the cache has grown to the prompts' length
    decode     with `transformers` the cache has grown to its full length

The terms of a block and a layer were counted in the code that runs; a test counts them again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from vidqa.families import Sizes
from vidqa.planning.budget.memory import BYTES_OF, GIB, PeakMemory
from vidqa.planning.budget.memory_constants import CONSTANTS
from vidqa.planning.packing import padded_length
from vidqa.planning.prefix_sharing import split_samples
from vidqa.planning.samples import Sample
from vidqa.spec.evaluate_tables import Evaluation, Inference
from vidqa.spec.models import EvaluateSpec, InferenceSpec

PAGE = 64  # tokens in a page of the native generator's KV cache
PACK_TOKENS = 16384  # tokens of prompts in one of its prefills on a GPU
ROWS = 64  # prompts that it answers at a time on a GPU, at least; with fewer, decoding is bound by memory bandwidth
CACHE_SHARE = 0.7  # share of the memory that the model leaves free; prefills use the rest
CAPTURED = (1, 4, 16, 32, 64, 128)  # batch sizes of its decode steps that are captured as CUDA graphs
FLOAT = 4  # bytes of a float32: pixels, positions, rotations, logits
PLACE_BYTES = 640  # of a patch: its position in the frame, and the angles of its rotary embedding


def cache_bytes_per_token(sizes: Sizes, compute: int) -> int:
    """Bytes of keys and values of one token in all layers; `compute` is the bytes of one number."""
    return 2 * sizes.text.layers * sizes.text.keys * compute


def cache_pages(rows: int, longest: int, free: float, bytes_per_token: int) -> int:
    """Pages of the native generator's KV cache if a model leaves `free` bytes of a GPU: enough for `longest` tokens in
    every row, but at most those that fit into CACHE_SHARE of `free`, and at least those of one row."""
    width = -(-longest // PAGE)
    return max(width, min(rows * width, int(free * CACHE_SHARE / (bytes_per_token * PAGE))))


@dataclass(frozen=True)
class AnsweringSetup:
    """The settings of a spec that decide the memory of answering. `compute` is the bytes of one number, `longest` the
    tokens of the longest prompt with its answer, `answer` the tokens of the longest answer."""

    generator: str
    compute: int
    batch: int
    longest: int
    answer: int

    @property
    def rows(self) -> int:
        """Prompts that are answered at a time."""
        return max(self.batch, ROWS) if self.generator == "native" else self.batch


def answering_setup(
    spec: EvaluateSpec | InferenceSpec, work: Evaluation | Inference, longest: int, longer: int = 0
) -> AnsweringSetup:
    """The setup of a spec; `work` is its table with the generator and batch size. `longest` is the tokens of the
    longest sample; further attempts may generate `longer` more tokens."""
    answer = spec.generation.max_tokens + longer
    most = min(spec.model.max_length, longest + answer)
    return AnsweringSetup(work.generator, BYTES_OF[spec.model.dtype], work.batch_size, most, answer)


@dataclass(frozen=True)
class Reading:
    """Shapes of one prefill on a GPU: prompts, tokens with padding, tokens of the longest prompt, patches of the media,
    and tokens of shared prefixes (`shared`). `masked`: prompts of different lengths are padded to one length."""

    prompts: int
    tokens: int
    longest: int
    patches: int
    shared: int = 0
    masked: bool = False


def readings(setup: AnsweringSetup, samples: Sequence[Sample], ranks: int) -> list[Reading]:
    """The prefills of all ranks, without duplicates; those with the most tokens first."""
    distinct: set[Reading] = set()
    for share in split_samples(samples, ranks):
        distinct.update(_packs(share, setup.rows) if setup.generator == "native" else _batches(share, setup.batch))
    return sorted(distinct, key=lambda one: (-one.tokens, -one.patches))


def _batches(share: Sequence[Sample], size: int) -> Iterator[Reading]:
    for start in range(0, len(share), size):
        batch = share[start : start + size]
        lengths = {sample.length for sample in batch}
        longest, patches = max(lengths), sum(sample.patches for sample in batch)
        yield Reading(len(batch), len(batch) * longest, longest, patches, masked=len(lengths) > 1)


def _packs(share: Sequence[Sample], rows: int) -> Iterator[Reading]:
    """The prefill that starts at each prompt: a prefill begins wherever rows become free."""
    for start in range(len(share)):
        tokens = patches = shared = count = 0
        joined = False  # whether the previous prompt shares its prefix with the one before it
        following = share[start : start + rows]
        for before, sample in zip([None, *following], following, strict=False):
            joins = before is not None and sample.prefix_key != b"" and sample.prefix_key == before.prefix_key
            new = sample.length - sample.prefix if joins else padded_length(sample.length, "cuda")
            if count and tokens + new > PACK_TOKENS:
                break
            count, tokens = count + 1, tokens + new
            patches += 0 if joins else sample.patches
            shared += sample.prefix if joins and not joined else 0
            joined = joins
        yield Reading(count, tokens, max(sample.length for sample in share[start : start + count]), patches, shared)
        if start + count == len(share):
            return  # later prefills are parts of this one


@dataclass(frozen=True)
class AnsweringMemory(PeakMemory):
    """Peak memory of answering. `weights` and `cache` (at its full length) are parts of the other fields."""

    MOMENTS = ("vision", "decoder", "decode")
    weights: float
    cache: float
    vision: float
    decoder: float
    decode: float


def answering_memory(
    sizes: Sizes, parameters: int, setup: AnsweringSetup, reading: Reading, gpu_gib: float | None
) -> AnsweringMemory:
    """Memory of a GPU of `gpu_gib` that answers with a model of `parameters` parameters. The native generator's cache
    fills the GPU; if `gpu_gib` is None, the smallest cache is counted."""
    if setup.generator == "native":
        return _native(sizes, parameters, setup, reading, gpu_gib)
    return _stock(sizes, parameters, setup, reading)


def _stock(sizes: Sizes, parameters: int, setup: AnsweringSetup, reading: Reading) -> AnsweringMemory:
    """Memory of transformers' `generate`: padded prompts, a cache that grows, pixels in float32 until the end."""
    text, vision, compute = sizes.text, sizes.vision, setup.compute
    feature = compute * vision.out / vision.merge**2
    pixels = (FLOAT * vision.patch_values + PLACE_BYTES) * reading.patches
    copied = compute != FLOAT  # of pixels in compute precision, and of heads for the rotation in float32
    block = max(
        (5 * compute + (5 + 2 * copied) * FLOAT) * vision.hidden,  # rotation of heads
        (10 * compute + FLOAT) * vision.hidden,  # after attention
        (3 * compute + FLOAT) * vision.hidden + 2 * compute * vision.intermediate,
    )
    tower = compute * vision.patch_values * copied + block + vision.taps * feature
    # The tower's output and its features stay in memory beside the copies for the decoder.
    features = compute * vision.hidden + 2 * (1 + vision.taps) * feature
    mask = reading.tokens * reading.longest * reading.masked
    layer = compute * max(
        reading.tokens * (4 * text.hidden + 3 * text.intermediate),
        reading.tokens * (3 * text.hidden + 4 * text.queries) + mask,  # the attention mask as numbers
    )
    angles = 2 * compute * text.head_dim * reading.tokens
    per_token = cache_bytes_per_token(sizes, compute)
    longest = reading.prompts * (reading.longest + setup.answer)
    logits = reading.prompts * text.vocabulary * (compute + 2 * FLOAT)
    return AnsweringMemory(
        weights=parameters * compute,
        always=parameters * compute,
        cache=per_token * longest,
        vision=pixels + tower * reading.patches,
        decoder=pixels + features * reading.patches + per_token * reading.tokens + angles + mask + layer,
        decode=pixels + per_token * longest * (1 + 0.5 / text.layers) + logits,
    )


def _native(
    sizes: Sizes, parameters: int, setup: AnsweringSetup, reading: Reading, gpu_gib: float | None
) -> AnsweringMemory:
    """Memory of the native generator: packs without padding, and a paged cache that is allocated at the start."""
    text, vision, compute = sizes.text, sizes.vision, setup.compute
    feature = compute * vision.out / vision.merge**2
    weights, per_token = parameters * compute, cache_bytes_per_token(sizes, compute)
    free = 0.0 if gpu_gib is None else (gpu_gib - CONSTANTS.outside_gib) * GIB - weights
    cache = (cache_pages(setup.rows, setup.longest, max(0.0, free), per_token) + 1) * PAGE * per_token
    captured = sum(size for size in CAPTURED if size <= setup.rows) * text.vocabulary * FLOAT
    frames = vision.patch_values + PLACE_BYTES
    block = max(
        2 * FLOAT * vision.patch_values,  # each medium's pixels, and their concatenation
        FLOAT * vision.patch_values + (5 * compute + 4 * FLOAT) * vision.hidden,  # positions are added in float32
        FLOAT * vision.patch_values + compute * (8 * vision.hidden + vision.intermediate) + vision.taps * feature,
    )
    layer = 2 * text.head_dim * reading.tokens + max(
        reading.tokens * (5 * text.hidden + 2 * text.queries + 2 * text.keys + 3 * text.intermediate),
        reading.tokens * (3 * text.hidden + 4 * text.queries + 2 * text.keys) + reading.shared * 2 * text.keys,
    )
    logits = reading.prompts * text.vocabulary * (compute + 2 * FLOAT)
    return AnsweringMemory(
        weights=weights,
        always=weights + cache + captured,
        cache=cache,
        vision=(frames + block) * reading.patches,
        decoder=(frames + (1 + vision.taps) * feature) * reading.patches + compute * layer,
        decode=logits,
    )
