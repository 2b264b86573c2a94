"""The `policy` table: the model, its trained parameters, and its distribution over GPUs."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from vidqa.spec._field import Gpus, Positive, PositiveFloat, Table, key, table
from vidqa.spec.compat_keys import with_compat_keys

DEFAULT_MODEL = "hf_model://nvidia/Cosmos-Reason2-8B"
DECODER_PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
# "true" and "false" are strings when they come from schemas in which this key is a string.
InitLora = Annotated[
    bool | Literal["gaussian", "eva", "olora", "pissa"] | Annotated[str, Field(pattern=r"^pissa_niter_[0-9]+$")],
    BeforeValidator(
        lambda value: {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value
    ),
]


@with_compat_keys
class Parallelism(Table):
    dp_shard_size: Gpus = key(
        1, "Sharding ranks", "GPUs over which weights are sharded: the GPUs of one node. Explicit, never -1."
    )
    dp_replicate_size: Gpus = key(1, "Replicas", "Copies of the sharded model: the number of nodes.")
    cp_size: Gpus = key(
        1,
        "Context parallel",
        "GPUs that share the tokens of each pack, for samples that one GPU cannot hold; weights are sharded over them, "
        "too. A divisor of the model's key heads (8 in Qwen3-VL-8B).",
    )


@with_compat_keys
class Lora(Table):
    lora_path: str | None = key(
        None,
        "Adapter to continue",
        "Folder of a trained adapter to continue, from PEFT or from a run here, with a new optimizer. Rank, alpha and "
        "targets are those of the adapter. Unset starts from the base model.",
    )
    r: Positive = key(
        16,
        "Rank",
        "Rank of the adapters; 16 learns most video-QA tasks with about 0.5 % of the weights.",
        automl={"min": 1, "max": 256, "scale": "log2", "shapes_weights": True, "default": True},
    )
    lora_alpha: PositiveFloat = key(
        32.0,
        "Alpha",
        "Strength of the adapters; they are scaled by alpha / r. Twice the rank is a good start.",
        automl={"min": 1, "max": 1024, "scale": "log2", "default": True},
    )
    lora_dropout: Annotated[float, Field(ge=0, lt=1)] = key(
        0.05,
        "Dropout",
        "Share of adapter inputs dropped in training.",
        automl={"min": 0.0, "max": 0.1, "default": True},
    )
    target_modules: list[str] | Literal["all-linear"] = key(
        DECODER_PROJECTIONS,
        "Adapted modules",
        "Name suffixes of the layers with adapters. The default is the decoder only; attn.qkv and attn.proj are in "
        "the vision tower; all-linear adapts every linear layer but the head, vision tower included. lm_head and "
        "embed_tokens are listed explicitly.",
        automl={
            "choices": [["q_proj", "v_proj"], DECODER_PROJECTIONS[:4], DECODER_PROJECTIONS, "all-linear"],
            "depends_on": "policy.lora.modules_to_save",
            "shapes_weights": True,
            "default": False,
        },
    )
    modules_to_save: list[str] | None = key(
        None,
        "Modules trained in full",
        "Modules trained without adapters and saved with them, such as visual.",
        automl={"choices": [None, ["visual"]], "shapes_weights": True, "default": False},
    )
    r_pattern: dict[str, Positive] | None = key(
        None, "Rank by module", "Rank of modules whose name matches a regular expression; the first match wins."
    )
    alpha_pattern: dict[str, PositiveFloat] | None = key(
        None,
        "Alpha by module",
        "Alpha of modules whose name matches a regular expression; the first match wins.",
    )
    use_rslora: bool = key(False, "Rank-stabilized", "Scale by alpha / sqrt(r): for ranks of 64 and more.")
    init_lora_weights: InitLora = key(
        True, "Initialization", "true, gaussian: uniform or normal A, zero B.", only=[True, False, "gaussian"]
    )


@with_compat_keys
class Policy(Table):
    model_name_or_path: str = key(
        DEFAULT_MODEL,
        "Model",
        "hf_model://org/name, downloaded once before the job starts, or a local folder. A bare org/name is refused: "
        "every rank would download it.",
    )
    model_revision: str | None = key(None, "Model revision", "Branch, tag or commit on the hub.")
    model_max_length: Positive = key(
        40960,
        "Maximum sample length",
        "Maximum tokens of a training sample. Videos need 40960; a longer sample is reported, never cut.",
    )
    model_gradient_checkpointing: bool = key(
        True, "Recompute activations", "Recompute activations in the backward pass: less memory, about 25 % slower."
    )
    freeze_pattern: list[str] | None = key(
        None,
        "Freeze",
        'Regular expressions searched in parameter names; matches are frozen. ["visual"] freezes the vision tower.',
    )
    trainable_pattern: list[str] | None = key(
        None, "Train only", "Regular expressions searched in parameter names; all others are frozen."
    )
    lora: Lora | None = Field(
        None, title="LoRA", description="Train adapters instead of the weights. Present: LoRA; absent: full fine-tune."
    )
    quantization: Literal["nf4", "fp8"] | None = key(
        None,
        "Base precision",
        "With LoRA: store the decoder's frozen matrices in 4 bits (nf4, by bitsandbytes) or 8 (fp8) instead of 16. "
        "They are not sharded; the adapter merges into the 16-bit model.",
    )
    parallelism: Parallelism = table(Parallelism, "Parallelism", "Distribution over GPUs.")
