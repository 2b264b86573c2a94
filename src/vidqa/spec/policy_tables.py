"""The `policy` table: the model, what of it trains, and how it is spread over GPUs."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from vidqa.spec._field import NotNegative, Positive, PositiveFloat, Table, key, table

DEFAULT_MODEL = "hf_model://nvidia/Cosmos-Reason2-8B"
DECODER_PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
# "true" and "false" arrive as text from schemas in which this key is a string.
InitLora = Annotated[
    bool | Literal["gaussian", "eva", "olora", "pissa"] | Annotated[str, Field(pattern=r"^pissa_niter_[0-9]+$")],
    BeforeValidator(
        lambda value: {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value
    ),
]


class Parallelism(Table):
    dp_shard_size: Positive = key(
        1, "Sharding ranks", "GPUs over which weights are sharded: the GPUs of one node. Written out, never -1."
    )
    dp_replicate_size: Positive = key(1, "Replicas", "Copies of the sharded model: the number of nodes.")
    tp_size: Positive = key(
        1, "Tensor parallel", "GPUs that share one layer. Always written: cosmos-rl's own default is 2.", only=[1]
    )
    cp_size: Positive = key(1, "Context parallel", "GPUs that share one sequence.", only=[1])
    pp_size: Positive = key(1, "Pipeline parallel", "GPUs that hold different layers.", only=[1])
    ep_size: Positive = key(1, "Expert parallel", "GPUs that hold different experts.", only=[1])
    n_init_replicas: Positive = key(1, "Policy replicas", "Independent trainers at the start.", only=[1])
    cp_rotate_method: Literal["allgather", "p2p"] = key(
        "allgather", "Context rotation", "How context-parallel ranks exchange keys.", native="no effect"
    )
    pp_dynamic_shape: bool = key(False, "Pipeline shapes", "Shapes differ between micro-batches.", native="no effect")
    pp_micro_batch_size: Positive = key(1, "Pipeline micro-batch", "Samples per pipeline stage.", native="no effect")
    pp_schedule: Literal["1F1B", "GPipe", "Interleaved1F1B"] = key(
        "Interleaved1F1B", "Pipeline schedule", "Order of forward and backward in a pipeline.", native="no effect"
    )
    pp_layers_per_stage: Positive = key(2, "Layers per stage", "Layers per pipeline stage.", native="no effect")


class Lora(Table):
    r: Positive = key(
        16,
        "Rank",
        "Rank of the adapters; 16 learns most video-QA tasks with about 0.5 % of the weights.",
        automl={"min": 1, "max": 256, "condition": "^ 2", "scale": "log2", "default": True},
    )
    lora_alpha: PositiveFloat = key(
        32.0,
        "Alpha",
        "Strength of the adapters; they are scaled by alpha / r. Twice the rank is a good start.",
        automl={"min": 1, "max": 1024, "condition": "^ 2", "scale": "log2", "default": True},
    )
    lora_dropout: Annotated[float, Field(ge=0, lt=1)] = key(
        0.05,
        "Dropout",
        "Share of adapter inputs dropped while training.",
        automl={"min": 0.0, "max": 0.1, "default": True},
    )
    target_modules: list[str] | Literal["all-linear"] = key(
        DECODER_PROJECTIONS,
        "Adapted modules",
        "Ends of names of the layers that get adapters. The default reaches the decoder only; attn.qkv and attn.proj "
        "are the vision tower's; all-linear adapts every linear layer but the head, vision tower included. lm_head and "
        "embed_tokens are named apart.",
        automl={
            "choices": [*DECODER_PROJECTIONS, "attn.qkv", "attn.proj", "all-linear"],
            "depends_on": "policy.lora.modules_to_save",
            "default": False,
        },
    )
    modules_to_save: list[str] | None = key(
        None,
        "Modules trained in full",
        "Modules that train without adapters and are saved with them, such as visual.",
        automl={"choices": ["visual"], "default": False},
    )
    r_pattern: dict[str, Positive] | None = key(
        None, "Rank by module", "Another rank for modules whose name matches a regular expression; the first one wins."
    )
    alpha_pattern: dict[str, PositiveFloat] | None = key(
        None,
        "Alpha by module",
        "Another alpha for modules whose name matches a regular expression; the first one wins.",
    )
    use_rslora: bool = key(False, "Rank-stabilised", "Scale by alpha / sqrt(r): for ranks of 64 and more.")
    init_lora_weights: InitLora = key(
        True, "First weights", "true starts as the base model; gaussian draws A.", only=[True, False, "gaussian"]
    )
    lora_names: list[str] = key(["default"], "Adapter names", "Adapters trained at once.", only=[["default"]])
    primary_adapter: str | None = key(None, "Main adapter", "Which of several adapters counts.", native="no effect")
    lora_path: str | None = key(None, "Adapter to continue", "Folder of trained adapter weights.", only=[None])


class Policy(Table):
    model_name_or_path: str = key(
        DEFAULT_MODEL,
        "Model",
        "hf_model://org/name, fetched once before the job starts, or a local folder. A bare org/name is refused: "
        "every rank would fetch it at run time.",
    )
    model_revision: str | None = key(None, "Model revision", "Branch, tag or commit on the hub.")
    model_safetensor_path: str | None = key(None, "Weights elsewhere", "Another folder with weights.", only=[None])
    model_max_length: Positive = key(
        40960,
        "Longest sample",
        "Tokens of the longest sample that may train. Videos need 40960; a longer sample is reported, never cut.",
    )
    model_gradient_checkpointing: bool = key(
        True, "Recompute activations", "Compute activations again in the backward pass: less memory, about 25 % slower."
    )
    freeze_pattern: list[str] | None = key(
        None,
        "Freeze",
        'Regular expressions searched in parameter names; matches do not train. ["visual"] freezes the vision tower.',
    )
    trainable_pattern: list[str] | None = key(
        None, "Train only", "Regular expressions searched in parameter names; only matches train."
    )
    trainable_map: dict[str, bool] | None = key(
        None, "Train by name", "Exact names to train or not.", only=[None], instead="policy.trainable_pattern"
    )
    enable_liger_kernel: bool = key(False, "Liger kernels", "Use Liger's kernels.", native="no effect")
    enable_liger_cross_entropy: bool = key(False, "Liger loss", "Use Liger's loss.", native="no effect")
    enable_liger_fused_cross_entropy: bool = key(False, "Liger fused loss", "Use Liger's loss.", native="no effect")
    aux_loss_coeff: NotNegative = key(0.0, "Router loss", "Weight of a mixture-of-experts loss.", only=[0.0])
    lora: Lora | None = Field(
        None, title="LoRA", description="Train adapters instead of the weights. Present: LoRA; absent: full fine-tune."
    )
    parallelism: Parallelism = table(Parallelism, "Parallelism", "How the model is spread over GPUs.")
