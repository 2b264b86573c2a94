"""Peak memory of one GPU in a training, predicted from shapes: a constant part plus the largest of four moments.
"Root" stands for the modules outside of decoder layers and vision blocks: embedding, head, mergers.

    always     trainable master weights, Adam's moments, and frozen weights, each sharded over a replica's GPUs
    decoder    backward starts: all kept activations, and the backward of one decoder layer
    vision     the decoder's gradients, the root's before their sum over the ranks, and the backward of a vision block
    root       all gradients, while the root's are summed over the ranks
    generation validation generates answers with the gathered model (`autotune.generation_bytes`)

Nothing is fitted to measured runs: the activations that layers keep are counted in the engine's own code (a test counts
them again), and the rest follows from how FSDP works.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, get_args

from vidqa.families import Sizes
from vidqa.planning.budget.activation_checkpointing import (
    NO_RECOMPUTE,
    Recompute,
    RecomputedLayers,
    RecomputeLevel,
    fixed_recompute,
    read_recompute,
    recompute_path,
)
from vidqa.planning.budget.memory_constants import CONSTANTS, Widths
from vidqa.planning.budget.params import ParamCount, ParamCounts
from vidqa.spec.models import TrainSpec

GIB = 1024**3
BYTES_OF = {"float32": 4, "bfloat16": 2, "float16": 2}
LEVELS: tuple[RecomputeLevel, ...] = get_args(RecomputeLevel)
# Modes of FSDP's reshard_after_forward: free gathered weights after forward of no module, of layers and blocks, of all.
Reshard = Literal["never", "layers", "always"]
# The key "stay" in records of runs names the modules whose weights stay gathered.
RESHARD_RECORDED: dict[Reshard, str] = {"never": "all", "layers": "root", "always": "none"}


@dataclass(frozen=True)
class TrainingSetup:
    """The settings of a training that its memory depends on."""

    shard_ranks: int  # GPUs that share one copy of weights, gradients and moments
    compute_bytes: int = 2  # of one number in forward and backward
    master_bytes: int = 4  # of one master weight
    reduce_bytes: int = 4  # of one gradient while ranks sum it
    recompute: Recompute = NO_RECOMPUTE
    compiled: bool = True
    lora: bool = False
    dropout: bool = False  # of LoRA
    shares_prefixes: bool = False  # one copy of a video for all questions about it
    context_parallel: bool = False  # every GPU has a part of each pack; attention exchanges rows for heads
    keeps_weights: bool = False  # gathered weights stay until the last backward of a step
    reads_features: bool = False  # features of a frozen vision tower are read from the cache
    base_precision: str | None = None  # such as "nf4": the base's decoder matrices are quantized (QLoRA)
    moments_8bit: bool = False
    cpu_offload: bool = False  # trainable weights, gradients and moments are in host memory


@dataclass(frozen=True)
class MemoryPolicy:
    """Recomputation, resharding and pack size of a training."""

    recompute: Recompute
    reshard: Reshard
    pack_tokens: int | None = None  # the largest pack; None: as in the spec
    peak_gib: float | None = field(default=None, compare=False)  # predicted; None if not chosen for a GPU

    def __str__(self) -> str:
        weights = "kept through a step" if self.reshard == "never" else "freed after each layer"
        return f"recomputed: {self.recompute}; gathered weights: {weights}"

    def record(self) -> dict[str, Any]:
        """The keys for run.json, preflight's facts and rows of benchmarks."""
        fields = {"recompute": self.recompute.record(), "stay": RESHARD_RECORDED[self.reshard]}
        return {"memory_policy": str(self), **fields}


def read_memory_policy(record: Mapping[str, Any], sizes: Sizes) -> MemoryPolicy:
    """The policy in a record of `MemoryPolicy.record`."""
    reshard = {name: reshard for reshard, name in RESHARD_RECORDED.items()}
    return MemoryPolicy(read_recompute(record["recompute"], sizes), reshard[record["stay"]])


def allowed_recompute(spec: TrainSpec, model: ParamCounts) -> list[Recompute]:
    """The recomputation choices that a TrainSpec allows, the least first."""
    if not spec.policy.model_gradient_checkpointing:
        return [NO_RECOMPUTE]
    if spec.engine.recompute == "auto":
        return recompute_path(model.sizes, vision_trains=model.vision.trained > 0)
    return [fixed_recompute(spec.engine.recompute, model.sizes)]


def allowed_reshard(spec: TrainSpec) -> tuple[Reshard, ...]:
    """The reshard modes that a TrainSpec allows, the fastest first."""
    reshard = spec.train.fsdp_reshard_after_forward
    if reshard == "default":  # gathered weights that stay would take the memory that offloading frees
        return ("layers",) if spec.train.fsdp_offload else ("never", "layers")
    return ("never",) if reshard in ("never", "false") else ("always",)


def training_setup(spec: TrainSpec, memory_policy: MemoryPolicy) -> TrainingSetup:
    """The setup of a TrainSpec under a memory policy."""
    policy, train = spec.policy, spec.train
    return TrainingSetup(
        shard_ranks=policy.parallelism.dp_shard_size * policy.parallelism.cp_size,
        compute_bytes=BYTES_OF[train.param_dtype],
        master_bytes=BYTES_OF[train.master_dtype],
        reduce_bytes=BYTES_OF[train.fsdp_reduce_dtype],
        recompute=memory_policy.recompute,
        compiled=train.compile,
        lora=policy.lora is not None,
        dropout=policy.lora is not None and policy.lora.lora_dropout > 0,
        shares_prefixes=spec.engine.share_video_prefix,
        context_parallel=policy.parallelism.cp_size > 1,
        keeps_weights=memory_policy.reshard == "never",
        reads_features=spec.engine.keep_features,
        base_precision=policy.quantization,
        moments_8bit=train.optm_name == "AdamW8bit",
        cpu_offload=train.fsdp_offload,
    )


@dataclass(frozen=True)
class MicroStep:
    """The load of one GPU in one micro-step: a pack, or its part of a pack that cp_size GPUs share."""

    tokens: int  # with padding
    patches: int
    supervised: int = 0  # tokens with a loss
    accumulates: bool = False  # whether gradients of earlier micro-steps of the step are in memory
    prefix_rows: int = 0  # tokens of shared prefixes that attention gathers for their suffixes


@dataclass(frozen=True)
class PeakMemory:
    """Bytes of one GPU: `always`, and for each of MOMENTS a field with the bytes on top of it."""

    MOMENTS: ClassVar[tuple[str, ...]]
    always: float

    @property
    def moment(self) -> str:
        """The name of the moment with the peak."""
        return max(self.MOMENTS, key=lambda name: getattr(self, name))

    @property
    def peak_gib(self) -> float:
        """The peak of memory in PyTorch's tensors (`torch.cuda.max_memory_allocated`), GiB."""
        return (self.always + getattr(self, self.moment)) / GIB


@dataclass(frozen=True)
class TrainingMemory(PeakMemory):
    """Peak memory of training."""

    MOMENTS = ("decoder", "vision", "root", "generation")
    decoder: float
    vision: float
    root: float
    generation: float = 0.0


def fits(peak_gib: float, memory_gib: float) -> bool:
    """Whether a predicted peak fits into a GPU, with a margin for the error of the prediction and for memory outside of
    PyTorch."""
    return peak_gib * (1 + CONSTANTS.error) + CONSTANTS.outside_gib <= memory_gib


def peak_memory(model: ParamCounts, setup: TrainingSetup, micro_step: MicroStep) -> TrainingMemory:
    """Predict the memory of one GPU in a training step; `generation` is left 0."""
    trained = model.every.trained
    # Per parameter, after the sum over the ranks.
    gradient_bytes = 0.0 if setup.cpu_offload else setup.master_bytes / setup.shard_ranks
    activations = _activations(model, setup, micro_step)
    root_weights, layer_weights, block_weights = _gathered_weights(model, setup)
    layer_gradients = model.layer.trained * (setup.compute_bytes + setup.reduce_bytes)
    logits = min(micro_step.supervised, CONSTANTS.logit_rows) * model.sizes.text.vocabulary * CONSTANTS.logit_bytes
    # Keys and values of prefixes, and the gradients of both, which the kernel first computes per query head.
    text = model.sizes.text
    gathered_prefixes = setup.compute_bytes * (4 * text.keys + 2 * text.queries) * micro_step.prefix_rows
    # The matrices of a quantized layer's MLP in compute precision; master weights during their copy from the host.
    dequantized = bool(setup.base_precision) * 3 * setup.compute_bytes * text.hidden * text.intermediate
    largest = max(model.layer.trained, model.block.trained)
    weights_in_transfer = setup.cpu_offload * CONSTANTS.whole_layers * setup.master_bytes * largest
    layer_backward = activations.layer_backward + gathered_prefixes + dequantized + weights_in_transfer
    decoder_trained = model.sizes.text.layers * model.layer.trained
    # With kept weights the root's gradients are summed in the last micro-step; until then every rank has all of them,
    # in reduce precision.
    unsummed_root = model.root.trained * setup.reduce_bytes * (setup.keeps_weights and micro_step.accumulates)
    summed_parameters = trained - model.root.trained * setup.keeps_weights
    return TrainingMemory(
        always=weights_and_optimizer(model, setup),
        decoder=gradient_bytes * summed_parameters * micro_step.accumulates
        + unsummed_root
        + (root_weights + layer_weights)
        + (activations.text + activations.vision)
        + max(layer_backward + layer_gradients, logits)
        + model.head.trained * setup.compute_bytes,
        vision=bool(model.vision.trained)
        * (
            gradient_bytes * (summed_parameters if micro_step.accumulates else decoder_trained)
            + unsummed_root
            + (root_weights + block_weights)
            + (model.root.trained * setup.compute_bytes + layer_gradients)
            + (activations.vision + activations.block_backward + weights_in_transfer)
        ),
        root=gradient_bytes * trained
        + model.root.trained * setup.reduce_bytes
        + unsummed_root
        + (root_weights + layer_weights) * (setup.keeps_weights and micro_step.accumulates),
    )


def weights_and_optimizer(model: ParamCounts, setup: TrainingSetup) -> float:
    """Bytes of one GPU during the whole training. Every GPU holds the whole quantized base. With CPU offload a GPU has
    no trainable weights and, if several share the weights, no frozen ones either."""
    every = model.every
    quantized = every.quantizable if setup.base_precision else 0
    frozen = (every.every - every.trained - quantized) * setup.compute_bytes / setup.shard_ranks
    whole = quantized * CONSTANTS.quantized_bytes[setup.base_precision] if setup.base_precision else 0.0
    if setup.cpu_offload:
        return whole + (frozen if setup.shard_ranks == 1 else 0.0)
    return whole + frozen + state_bytes(every, setup) / setup.shard_ranks


def state_bytes(count: ParamCount, setup: TrainingSetup) -> float:
    """Bytes of master weights and the optimizer's moments, over all ranks: the tensors of a checkpoint."""
    return count.trained * setup.master_bytes + moments_bytes(count, setup)


def moments_bytes(count: ParamCount, setup: TrainingSetup) -> float:
    """Bytes of the optimizer's two moments, over all ranks."""
    few = count.moments_8bit if setup.moments_8bit else 0
    return CONSTANTS.moments_bytes * (count.trained - few) + CONSTANTS.moments_8bit_bytes * few


def _gathered_weights(model: ParamCounts, setup: TrainingSetup) -> tuple[float, float, float]:
    """Bytes of gathered weights in compute precision, in addition to the shards: of the root, of decoder layers during
    their backward, of vision blocks during theirs."""

    def gathered(count: ParamCount) -> int:
        # Without sharding, frozen weights need no copy.
        quantized = count.quantizable if setup.base_precision else 0
        return setup.compute_bytes * (count.trained if setup.shard_ranks == 1 else count.every - quantized)

    if setup.keeps_weights:
        all_layers = gathered(model.every) - gathered(model.root)
        return gathered(model.root), all_layers, all_layers
    layers = CONSTANTS.whole_layers  # FSDP prefetches the next one
    return gathered(model.root), layers * gathered(model.layer), layers * gathered(model.block)


@dataclass(frozen=True)
class _Activations:
    """Bytes of activations."""

    text: float  # kept by all decoder layers when backward starts
    vision: float  # kept by the vision tower
    layer_backward: float  # added at most while the backward of a decoder layer runs
    block_backward: float  # added at most while the backward of a vision block runs


def _activations(model: ParamCounts, setup: TrainingSetup, micro_step: MicroStep) -> _Activations:
    # Except in the result, all counts are numbers in compute precision per token or patch.
    text, vision = model.sizes.text, model.sizes.vision

    def of_token(widths: Widths) -> float:
        attention = widths.queries * text.queries + widths.keys * text.keys
        return widths.hidden * text.hidden + attention + widths.wide * text.intermediate

    def of_patch(widths: Widths) -> float:
        # Queries, keys and values of a vision block are as wide as its input, and count with `hidden`.
        return (widths.hidden + widths.queries) * vision.hidden + widths.wide * vision.intermediate

    layer_kept = {level: of_token(layer_widths(setup, level, head_norms=text.head_norms)) for level in LEVELS}
    block_kept = {level: of_patch(block_widths(setup, level, gated=vision.gated)) for level in LEVELS}
    layer_transient = _backward_transient(layer_kept, setup, of_token)
    block_transient = _backward_transient(block_kept, setup, of_patch)
    decoder, layer_backward = _kept_over_layers(setup.recompute.decoder, text.layers, layer_kept, layer_transient)
    tower, block_backward = _kept_over_layers(setup.recompute.vision, vision.blocks, block_kept, block_transient)
    # One merger at the tower's end and one at every tap (deepstack).
    mergers = 1 + vision.taps
    # Cached features are in memory three times: as read, joined into a pack, and those of the next micro-step.
    copies = 3 if setup.reads_features and not model.vision.trained else 1
    features = copies * mergers * vision.out / vision.merge**2
    activations = tower + vision.patch_values + mergers * CONSTANTS.merger * vision.hidden
    return _Activations(
        text=setup.compute_bytes * micro_step.tokens * decoder,
        vision=setup.compute_bytes * micro_step.patches * (features + activations * bool(model.vision.trained)),
        layer_backward=setup.compute_bytes * micro_step.tokens * layer_backward,
        block_backward=setup.compute_bytes * micro_step.patches * block_backward,
    )


def _backward_transient(
    widths: Mapping[RecomputeLevel, float],
    setup: TrainingSetup,
    numbers: Callable[[Widths], float],
) -> dict[RecomputeLevel, float]:
    """Transient numbers per token in the backward of one layer, besides its kept activations, by level. `numbers`
    multiplies Widths with the widths of the tower."""
    in_flight = numbers(CONSTANTS.in_flight_lora if setup.lora else CONSTANTS.in_flight)
    return {
        "none": in_flight,
        "projections": in_flight,  # query, key and value are recomputed after the MLP's gradients are freed
        "linear": in_flight + numbers(CONSTANTS.linear_again_lora if setup.lora else CONSTANTS.linear_again),
        "layer": in_flight + widths["none"] - widths["layer"],
    }


def _kept_over_layers(
    recomputed: RecomputedLayers,
    count: int,
    widths: Mapping[RecomputeLevel, float],
    transient: Mapping[RecomputeLevel, float],
) -> tuple[float, float]:
    """Numbers per token of `count` layers: those kept by all of them when backward starts, and the increase over that
    at the peak. Backward goes from the last layer to the first, and frees a layer's activations after it."""
    levels = [recomputed.level(index) for index in range(count)]
    kept_until, peak = 0.0, 0.0  # kept by the layers up to this one
    for level in levels:
        kept_until += widths[level]
        peak = max(peak, kept_until + transient[level])
    return kept_until, peak - kept_until


def block_widths(setup: TrainingSetup, level: RecomputeLevel, *, gated: bool = False) -> Widths:
    """Numbers per patch that one vision block keeps for backward, as multiples of its widths."""
    if level != "none":
        return CONSTANTS.layer if level == "layer" else CONSTANTS.linear
    if gated:
        return CONSTANTS.compiled_gated_vision if setup.compiled else CONSTANTS.eager_gated_vision
    return CONSTANTS.compiled_vision if setup.compiled else CONSTANTS.eager_vision


def layer_widths(setup: TrainingSetup, level: RecomputeLevel, *, head_norms: bool = True) -> Widths:
    """Numbers per token that one decoder layer keeps for backward, as multiples of its widths."""
    if level == "layer":
        return CONSTANTS.layer
    if level == "linear":
        widths = CONSTANTS.linear
    elif level == "projections":
        widths = CONSTANTS.compiled_projections if setup.compiled else CONSTANTS.eager_projections
        if setup.dropout:
            widths += CONSTANTS.compiled_dropout if setup.compiled else CONSTANTS.eager_projections_dropout
    else:
        eager, norms = CONSTANTS.eager, CONSTANTS.eager_head_norms
        if setup.lora:
            eager, norms = CONSTANTS.eager_lora, CONSTANTS.eager_lora_head_norms
        widths = CONSTANTS.compiled if setup.compiled else eager
        if setup.dropout:
            widths += CONSTANTS.compiled_dropout if setup.compiled else CONSTANTS.eager_dropout
        if setup.shares_prefixes:
            widths += CONSTANTS.shared
        if not head_norms:
            widths -= CONSTANTS.compiled_head_norms if setup.compiled else norms
    return widths + CONSTANTS.exchanged if setup.context_parallel else widths
