"""Shared sizes and parameters of Qwen2.5-VL and Qwen3-VL, without weights.

The tables of config.json, with the keys and types that transformers' classes check, and bounds; and the parameters that
follow from these sizes, by transformers' names and with their shapes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, Field

from vidqa.families._base import Tensor, TextSizes, VisionSizes
from vidqa.families.model_files import ConfigTable, Float
from vidqa.families.problems import MODEL_UNSUPPORTED

MODEL, TOWER, HEAD = "model.language_model", "model.visual", "lm_head.weight"
# Upper bounds are larger than in any model, but small enough to count parameters quickly.
Size = Annotated[int, Field(ge=1, le=2**27)]
Depth = Annotated[int, Field(ge=1, le=1000)]
# Parameter-free activation functions of transformers.
# fmt: off
Activation = Literal[
    "gelu", "gelu_10", "gelu_fast", "gelu_new", "gelu_python", "gelu_pytorch_tanh", "gelu_accurate", "hardswish",
    "laplace", "leaky_relu", "linear", "mish", "quick_gelu", "relu", "relu2", "relu6", "sigmoid", "silu", "swish",
    "tanh",
]
# fmt: on


class Rope(ConfigTable):
    """Rotary position settings. Scaled ones (yarn, linear, dynamic) are not implemented."""

    rope_type: Literal["default", "mrope"] = Field("default", validation_alias=AliasChoices("rope_type", "type"))


class TextConfig(ConfigTable):
    hidden_size: Size
    intermediate_size: Size
    num_hidden_layers: Depth
    num_attention_heads: Size
    num_key_value_heads: Size | None  # None: equal to num_attention_heads
    head_dim: Size = 128
    vocab_size: Size = 151936
    tie_word_embeddings: Any = False
    hidden_act: Activation = "silu"
    max_position_embeddings: int = 0
    rms_norm_eps: Float = 1e-6
    initializer_range: Float = 0.02
    use_cache: bool | None = None
    attention_bias: bool = False
    attention_dropout: float | None = None
    pad_token_id: int | None = None
    rope_parameters: Rope | None = None
    rope_scaling: Rope | None = None

    def sizes(
        self, config: dict[str, Any], name: str, where: Path, *, attention_bias: bool, head_norms: bool
    ) -> TextSizes:
        """The sizes in the table `name` of a whole `config`. Raises MODEL_UNSUPPORTED."""
        heads, kv_heads = self.num_attention_heads, self.num_key_value_heads or self.num_attention_heads
        if heads % kv_heads:
            message = f"num_attention_heads ({heads}) is not a multiple of num_key_value_heads ({kv_heads})"
            raise MODEL_UNSUPPORTED.error(where, f"{name}.{message}")
        return TextSizes(
            hidden=self.hidden_size,
            layers=self.num_hidden_layers,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=self.head_dim,
            intermediate=self.intermediate_size,
            vocabulary=self.vocab_size,
            tied=bool(config.get("tie_word_embeddings", self.tie_word_embeddings)),
            attention_bias=attention_bias,
            head_norms=head_norms,
        )


class VisionConfig(ConfigTable):
    hidden_size: Size
    depth: Depth
    intermediate_size: Size
    out_hidden_size: Size
    num_heads: Size = 16
    patch_size: Size = 16
    temporal_patch_size: Size = 2
    spatial_merge_size: Size = 2
    in_channels: Size = 3
    num_position_embeddings: Size = 2304
    deepstack_visual_indexes: list[int] = Field([8, 16, 24])
    hidden_act: Activation = "silu"
    initializer_range: Float = 0.02

    def sizes(self, where: Path, **more: Any) -> VisionSizes:
        """The sizes of the tower; `more` are those of one family. Raises MODEL_UNSUPPORTED."""
        if self.hidden_size % (4 * self.num_heads):
            message = f"hidden_size ({self.hidden_size}) is not a multiple of four times num_heads ({self.num_heads})"
            raise MODEL_UNSUPPORTED.error(where, f"vision_config.{message}")
        return VisionSizes(
            hidden=self.hidden_size,
            blocks=self.depth,
            intermediate=self.intermediate_size,
            out=self.out_hidden_size,
            patch=self.patch_size,
            temporal_patch=self.temporal_patch_size,
            merge=self.spatial_merge_size,
            channels=self.in_channels,
            **more,
        )


def decoder(text: TextSizes, *, output_bias: bool) -> Iterator[Tensor]:
    """Parameters of the decoder and its head; a tied head is another name of the embeddings."""
    vocabulary = (text.vocabulary, text.hidden)
    yield Tensor(f"{MODEL}.embed_tokens.weight", vocabulary, tied=HEAD if text.tied else "")
    for number in range(text.layers):
        yield from _layer(f"{MODEL}.layers.{number}", text, output_bias)
    yield Tensor(f"{MODEL}.norm.weight", (text.hidden,))
    if not text.tied:
        yield Tensor(HEAD, vocabulary, linear=True)


def _layer(name: str, text: TextSizes, output_bias: bool) -> Iterator[Tensor]:
    attention, bias = f"{name}.self_attn", text.attention_bias
    yield from linear(f"{attention}.q_proj", text.queries, text.hidden, name, bias=bias)
    yield from linear(f"{attention}.k_proj", text.keys, text.hidden, name, bias=bias)
    yield from linear(f"{attention}.v_proj", text.keys, text.hidden, name, bias=bias)
    yield from linear(f"{attention}.o_proj", text.hidden, text.queries, name, bias=output_bias)
    if text.head_norms:
        yield Tensor(f"{attention}.q_norm.weight", (text.head_dim,), name)
        yield Tensor(f"{attention}.k_norm.weight", (text.head_dim,), name)
    yield from gated_mlp(f"{name}.mlp", text.hidden, text.intermediate, name, bias=False)
    yield Tensor(f"{name}.input_layernorm.weight", (text.hidden,), name)
    yield Tensor(f"{name}.post_attention_layernorm.weight", (text.hidden,), name)


def gated_mlp(name: str, hidden: int, wide: int, unit: str, *, bias: bool) -> Iterator[Tensor]:
    yield from linear(f"{name}.gate_proj", wide, hidden, unit, bias=bias)
    yield from linear(f"{name}.up_proj", wide, hidden, unit, bias=bias)
    yield from linear(f"{name}.down_proj", hidden, wide, unit, bias=bias)


def patch_kernel(vision: VisionSizes) -> tuple[int, ...]:
    """The shape of the convolution that embeds patches."""
    return (vision.hidden, vision.channels, vision.temporal_patch, vision.patch, vision.patch)


def vision_attention(name: str, vision: VisionSizes, unit: str) -> Iterator[Tensor]:
    yield from linear(f"{name}.qkv", 3 * vision.hidden, vision.hidden, unit, bias=True)
    yield from linear(f"{name}.proj", vision.hidden, vision.hidden, unit, bias=True)


def linear(name: str, rows: int, columns: int, unit: str, *, bias: bool) -> Iterator[Tensor]:
    yield Tensor(f"{name}.weight", (rows, columns), unit, linear=True)
    if bias:
        yield Tensor(f"{name}.bias", (rows,), unit, linear=True)
