"""Peak memory of one GPU in a training, from shapes alone: what lies there all the time, three moments of a step, and
one of validation.

    always     master weights and Adam's moments of what trains, and frozen weights, each shared by a replica's GPUs
    decoder    backward begins: all that forward kept is there, and the last decoder layer is at work
    vision     the decoder's gradients are there, the root's are not summed yet, and the vision tower is at work
    root       the root (embedding, head, mergers: what is in no layer or block) sums its gradients over the ranks
    generation validation answers samples with the gathered model (`autotune.generation_bytes`)

The peak is the largest of these moments. Nothing is fitted to measured runs: what layers keep is counted in the
engine's own code, which a test repeats, and the rest follows from how FSDP works.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, get_args

from vidqa.families import Sizes
from vidqa.planning.budget.activation_checkpointing import (
    NOTHING,
    Layers,
    Recompute,
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
# Which gathered weights are freed after forward: none, all but the root's, all.
Reshard = Literal["never", "layers", "always"]
# How records of runs write it, under the key "stay".
RESHARD_RECORDED: dict[Reshard, str] = {"never": "all", "layers": "root", "always": "none"}


@dataclass(frozen=True)
class TrainingSetup:
    """What of a training decides its memory. `compute`, `master` and `reduce` are bytes of one number."""

    shard: int
    compute: int = 2
    master: int = 4
    reduce: int = 4
    recompute: Recompute = NOTHING
    compiled: bool = True
    lora: bool = False
    dropout: bool = False
    shares: bool = False  # one copy of a video for all questions about it
    exchanges: bool = False  # GPUs have a part of every pack each, and exchange rows for heads
    keeps_weights: bool = False  # gathered weights stay until the last backward of a step
    reads_features: bool = False  # of a frozen tower, instead of computing them
    precision: str | None = None  # of the base's decoder matrices, where they are quantized
    moments_8bit: bool = False
    offloads: bool = False  # what trains is in host memory


@dataclass(frozen=True)
class MemoryPolicy:
    """What is recomputed, which gathered weights are freed, and how many tokens a pack may have."""

    recompute: Recompute
    reshard: Reshard
    pack_tokens: int | None = None  # as the spec says where it is not chosen
    peak_gib: float | None = field(default=None, compare=False)  # predicted, where it was chosen for a GPU

    def __str__(self) -> str:
        weights = "kept through a step" if self.reshard == "never" else "freed after each layer"
        return f"computed again: {self.recompute}; gathered weights: {weights}"

    def record(self) -> dict[str, Any]:
        """The keys that run.json, preflight's facts and rows of benchmarks have."""
        fields = {"recompute": self.recompute.record(), "stay": RESHARD_RECORDED[self.reshard]}
        return {"memory_policy": str(self), **fields}


def read_memory_policy(record: Mapping[str, Any], sizes: Sizes) -> MemoryPolicy:
    """The policy that `MemoryPolicy.record` wrote."""
    reshard = {name: reshard for reshard, name in RESHARD_RECORDED.items()}
    return MemoryPolicy(read_recompute(record["recompute"], sizes), reshard[record["stay"]])


def allowed_recompute(spec: TrainSpec, model: ParamCounts) -> list[Recompute]:
    """What a TrainSpec leaves open, the least first."""
    if not spec.policy.model_gradient_checkpointing:
        return [NOTHING]
    if spec.engine.recompute == "auto":
        return recompute_path(model.sizes, vision_trains=model.vision.trained > 0)
    return [fixed_recompute(spec.engine.recompute, model.sizes)]


def allowed_reshard(spec: TrainSpec) -> tuple[Reshard, ...]:
    """What a TrainSpec leaves open, fastest first."""
    reshard = spec.train.fsdp_reshard_after_forward
    if reshard == "default":  # weights that stay would need the room that offloading to the host gives
        return ("layers",) if spec.train.fsdp_offload else ("never", "layers")
    return ("never",) if reshard in ("never", "false") else ("always",)


def training_setup(spec: TrainSpec, memory_policy: MemoryPolicy) -> TrainingSetup:
    """The setup of a TrainSpec under a memory policy."""
    policy, train = spec.policy, spec.train
    return TrainingSetup(
        shard=policy.parallelism.dp_shard_size * policy.parallelism.cp_size,
        compute=BYTES_OF[train.param_dtype],
        master=BYTES_OF[train.master_dtype],
        reduce=BYTES_OF[train.fsdp_reduce_dtype],
        recompute=memory_policy.recompute,
        compiled=train.compile,
        lora=policy.lora is not None,
        dropout=policy.lora is not None and policy.lora.lora_dropout > 0,
        shares=spec.engine.share_video_prefix,
        exchanges=policy.parallelism.cp_size > 1,
        keeps_weights=memory_policy.reshard == "never",
        reads_features=spec.engine.keep_features,
        precision=policy.quantization,
        moments_8bit=train.optm_name == "AdamW8bit",
        offloads=train.fsdp_offload,
    )


@dataclass(frozen=True)
class MicroStep:
    """What one micro-step puts on a GPU: its part of a pack where cp_size GPUs share it. `accumulates`: earlier
    micro-steps of the step have left gradients."""

    tokens: int  # with padding
    patches: int
    supervised: int = 0
    accumulates: bool = False
    prefix_rows: int = 0  # of shared prefixes, which attention gathers for what stands behind them


@dataclass(frozen=True)
class PeakMemory:
    """Bytes of one GPU: `always`, and besides it at each of the moments."""

    MOMENTS: ClassVar[tuple[str, ...]]
    always: float

    @property
    def moment(self) -> str:
        """The moment of the peak."""
        return max(self.MOMENTS, key=lambda name: getattr(self, name))

    @property
    def peak_gib(self) -> float:
        """The most that PyTorch's tensors take (`torch.cuda.max_memory_allocated`)."""
        return (self.always + getattr(self, self.moment)) / GIB


@dataclass(frozen=True)
class Memory(PeakMemory):
    """The memory of a training."""

    MOMENTS = ("decoder", "vision", "root", "generation")
    decoder: float
    vision: float
    root: float
    generation: float = 0.0


def fits(peak_gib: float, memory_gib: float) -> bool:
    """Whether a GPU has room for a predicted peak, should the prediction be wrong by as much as it may."""
    return peak_gib * (1 + CONSTANTS.error) + CONSTANTS.outside_gib <= memory_gib


def peak_memory(model: ParamCounts, setup: TrainingSetup, micro_step: MicroStep) -> Memory:
    """Predict what one GPU holds in a training step."""
    trained = model.every.trained
    gradient = 0.0 if setup.offloads else setup.master / setup.shard  # bytes of a summed gradient
    activations = _activations(model, setup, micro_step)
    whole_root, whole_layers, whole_blocks = _gathered_weights(model, setup)
    layer_gradients = model.layer.trained * (setup.compute + setup.reduce)
    logits = min(micro_step.supervised, CONSTANTS.logit_rows) * model.sizes.text.vocabulary * CONSTANTS.logit_bytes
    # Keys and values of prefixes, and the gradients of both: its kernel gives them for every head of queries first.
    text = model.sizes.text
    gathered = setup.compute * (4 * text.keys + 2 * text.queries) * micro_step.prefix_rows
    # The widest matrices of a quantized layer in compute precision; weights on their way from the host, in float32.
    dequantized = bool(setup.precision) * 3 * setup.compute * text.hidden * text.intermediate
    arriving = setup.offloads * CONSTANTS.whole_layers * setup.master * max(model.layer.trained, model.block.trained)
    decoder_trained = model.sizes.text.layers * model.layer.trained
    # With kept weights the root's gradients wait for the last micro-step, whole and in reduce precision.
    unsummed = model.root.trained * setup.reduce * (setup.keeps_weights and micro_step.accumulates)
    summed = trained - model.root.trained * setup.keeps_weights
    return Memory(
        always=weights_and_optimizer(model, setup),
        decoder=gradient * summed * micro_step.accumulates
        + unsummed
        + (whole_root + whole_layers)
        + (activations.text + activations.vision)
        + max(activations.layer_at_work + layer_gradients + gathered + dequantized + arriving, logits)
        + model.head.trained * setup.compute,
        vision=bool(model.vision.trained)
        * (
            gradient * (summed if micro_step.accumulates else decoder_trained)
            + unsummed
            + (whole_root + whole_blocks)
            + (model.root.trained * setup.compute + layer_gradients)
            + (activations.vision + activations.block_at_work + arriving)
        ),
        root=gradient * trained
        + model.root.trained * setup.reduce
        + unsummed
        + (whole_root + whole_layers) * (setup.keeps_weights and micro_step.accumulates),
    )


def weights_and_optimizer(model: ParamCounts, setup: TrainingSetup) -> float:
    """Bytes of one GPU from the first step to the last. A quantized base is whole on every GPU; what FSDP offloads is
    on none: with one GPU that is what trains, with several frozen weights, too."""
    every = model.every
    quantized = every.quantizable if setup.precision else 0
    frozen = (every.every - every.trained - quantized) * setup.compute / setup.shard
    whole = quantized * CONSTANTS.quantized_bytes[setup.precision] if setup.precision else 0.0
    if setup.offloads:
        return whole + (frozen if setup.shard == 1 else 0.0)
    return whole + frozen + every.trained * setup.master / setup.shard + moments_bytes(every, setup) / setup.shard


def moments_bytes(count: ParamCount, setup: TrainingSetup) -> float:
    """Bytes of the optimizer's two moments, over all ranks."""
    few = count.moments_8bit if setup.moments_8bit else 0
    return CONSTANTS.moments_bytes * (count.trained - few) + CONSTANTS.moments_8bit_bytes * few


def _gathered_weights(model: ParamCounts, setup: TrainingSetup) -> tuple[float, float, float]:
    """Bytes of weights that stand gathered, in compute precision, beside the shards: of the root, and while decoder
    layers or vision blocks are at work."""

    def gathered(count: ParamCount) -> int:
        """Where nothing is sharded, frozen weights are computed with where they lie."""
        quantized = count.quantizable if setup.precision else 0
        return setup.compute * (count.trained if setup.shard == 1 else count.every - quantized)

    if setup.keeps_weights:
        all_layers = gathered(model.every) - gathered(model.root)
        return gathered(model.root), all_layers, all_layers
    held = CONSTANTS.whole_layers
    return gathered(model.root), held * gathered(model.layer), held * gathered(model.block)


@dataclass(frozen=True)
class _Activations:
    """Bytes of activations: kept over all layers, and of the layer whose backward is at work."""

    text: float
    vision: float
    layer_at_work: float
    block_at_work: float


def _activations(model: ParamCounts, setup: TrainingSetup, micro_step: MicroStep) -> _Activations:
    text, vision = model.sizes.text, model.sizes.vision

    def of_token(widths: Widths) -> float:
        mine = (text.hidden, text.queries, text.keys, text.intermediate)
        return widths.hidden * mine[0] + widths.queries * mine[1] + widths.keys * mine[2] + widths.wide * mine[3]

    def of_patch(widths: Widths) -> float:
        # Its heads are as wide together as its input, and queries, keys and values are counted with that.
        return (widths.hidden + widths.queries) * vision.hidden + widths.wide * vision.intermediate

    layers = {level: of_token(layer_widths(setup, level, head_norms=text.head_norms)) for level in LEVELS}
    blocks = {level: of_patch(block_widths(setup, level, gated=vision.gated)) for level in LEVELS}
    at_layer = _backward_transient(layers, setup, of_token)
    at_block = _backward_transient(blocks, setup, of_patch)
    layer, layer_work = _kept_over_layers(setup.recompute.decoder, text.layers, layers, at_layer)
    block, block_work = _kept_over_layers(setup.recompute.vision, vision.blocks, blocks, at_block)
    # What the decoder takes in: at the tower's end and at every tap.
    mergers = 1 + vision.taps
    # Where they are read: as they came, put together, and those of the next micro-step, which come meanwhile.
    copies = 3 if setup.reads_features and not model.vision.trained else 1
    features = copies * mergers * vision.out / vision.merge**2
    inside = block + vision.patch_values + mergers * CONSTANTS.merger * vision.hidden
    return _Activations(
        text=setup.compute * micro_step.tokens * layer,
        vision=setup.compute * micro_step.patches * (features + inside * bool(model.vision.trained)),
        layer_at_work=setup.compute * micro_step.tokens * layer_work,
        block_at_work=setup.compute * micro_step.patches * block_work,
    )


def _backward_transient(
    widths: Mapping[RecomputeLevel, float],
    setup: TrainingSetup,
    numbers: Callable[[Widths], float],
) -> dict[RecomputeLevel, float]:
    """Numbers of a token that the backward of one layer takes besides what the layer kept."""
    in_flight = numbers(CONSTANTS.in_flight_lora if setup.lora else CONSTANTS.in_flight)
    return {
        "none": in_flight,
        "projections": in_flight,  # query, key and value come when the MLP's gradients are gone
        "linear": in_flight + numbers(CONSTANTS.linear_again_lora if setup.lora else CONSTANTS.linear_again),
        "layer": in_flight + widths["none"] - widths["layer"],
    }


def _kept_over_layers(
    layers: Layers, number: int, widths: Mapping[RecomputeLevel, float], at_work: Mapping[RecomputeLevel, float]
) -> tuple[float, float]:
    """Numbers of a token: kept over all layers when backward begins, and what the layer at work adds to that at most.
    Backward goes from the last layer to the first, and each layer it has passed has let go of what it kept."""
    held = [widths[layers.level(at)] for at in range(number)]
    before, most = 0.0, 0.0
    for at, mine in enumerate(held):
        before += mine
        most = max(most, before + at_work[layers.level(at)])
    return sum(held), most - sum(held)


def block_widths(setup: TrainingSetup, level: RecomputeLevel, *, gated: bool = False) -> Widths:
    """What one vision block keeps of each patch."""
    if level != "none":
        return CONSTANTS.layer if level == "layer" else CONSTANTS.linear
    if gated:
        return CONSTANTS.compiled_gated_vision if setup.compiled else CONSTANTS.eager_gated_vision
    return CONSTANTS.compiled_vision if setup.compiled else CONSTANTS.eager_vision


def layer_widths(setup: TrainingSetup, level: RecomputeLevel, *, head_norms: bool = True) -> Widths:
    """What one decoder layer keeps of each token."""
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
        if setup.shares:
            widths += CONSTANTS.shared
        if not head_norms:
            widths -= CONSTANTS.compiled_head_norms if setup.compiled else norms
    return widths + CONSTANTS.exchanged if setup.exchanges else widths
