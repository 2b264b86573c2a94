"""The config.json of Qwen2.5-VL and Qwen3-VL: the keys and types that transformers' classes check, and bounds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, Field

from vidqa.families.model_files import ConfigTable, Float, parse
from vidqa.families.problems import MODEL_UNSUPPORTED
from vidqa.families.sizes import Sizes, TextSizes, VisionSizes

# Larger than in any model, and small enough to count parameters quickly.
Size = Annotated[int, Field(ge=1, le=2**27)]
Depth = Annotated[int, Field(ge=1, le=1000)]
# Functions without parameters that transformers knows.
# fmt: off
Activation = Literal[
    "gelu", "gelu_10", "gelu_fast", "gelu_new", "gelu_python", "gelu_pytorch_tanh", "gelu_accurate", "hardswish",
    "laplace", "leaky_relu", "linear", "mish", "quick_gelu", "relu", "relu2", "relu6", "sigmoid", "silu", "swish",
    "tanh",
]
# fmt: on


class Rope(ConfigTable):
    """Rotary positions. Scaled ones (yarn, linear, dynamic) are not implemented."""

    rope_type: Literal["default", "mrope"] = Field("default", validation_alias=AliasChoices("rope_type", "type"))


class TextConfig(ConfigTable):
    hidden_size: Size
    intermediate_size: Size
    num_hidden_layers: Depth
    num_attention_heads: Size
    num_key_value_heads: Size | None  # None: as many as there are heads
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

    def sizes(self, name: str, where: Path, *, tied: bool, attention_bias: bool, head_norms: bool) -> TextSizes:
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
            tied=tied,
            attention_bias=attention_bias,
            head_norms=head_norms,
        )


class Text25Config(TextConfig):
    vocab_size: Size = 152064
    attention_bias: bool | None = None  # type: ignore[assignment]
    use_sliding_window: Any = False


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


class Vision25Config(VisionConfig):
    patch_size: Size = 14
    window_size: Size = 112
    fullatt_block_indexes: list[int] = Field([7, 15, 23, 31])
    tokens_per_second: Size = 4


def _tied(config: dict[str, Any], text: TextConfig) -> bool:
    return bool(config.get("tie_word_embeddings", text.tie_word_embeddings))


def sizes_of_qwen3(config: dict[str, Any], where: Path) -> Sizes:
    """Raises MODEL_UNSUPPORTED."""
    text = parse(config, "text_config", where, TextConfig)
    vision = parse(config, "vision_config", where, VisionConfig)
    taps = vision.deepstack_visual_indexes
    if len(set(taps)) < len(taps) or not all(0 <= tap < vision.depth for tap in taps):
        message = f"must be different blocks below depth = {vision.depth}, not {taps!r:.60}"
        raise MODEL_UNSUPPORTED.error(where, f"vision_config.deepstack_visual_indexes {message}")
    tied, bias = _tied(config, text), text.attention_bias
    return Sizes(
        text.sizes("text_config", where, tied=tied, attention_bias=bias, head_norms=True),
        vision.sizes(where, taps=len(taps), positions=vision.num_position_embeddings),
    )


def sizes_of_qwen25(config: dict[str, Any], where: Path) -> Sizes:
    """Published files have the decoder's keys beside vision_config. Raises MODEL_UNSUPPORTED."""
    name = "config" if config.get("text_config") is None else "text_config"
    text = parse(config, name, where, Text25Config)
    if text.hidden_size % text.num_attention_heads:
        heads = text.num_attention_heads
        message = f"hidden_size ({text.hidden_size}) is not a multiple of num_attention_heads ({heads})"
        raise MODEL_UNSUPPORTED.error(where, f"{name}.{message}")
    if text.use_sliding_window:
        raise MODEL_UNSUPPORTED.error(where, f"{name}.use_sliding_window is true; only whole attention is trained")
    text.head_dim = text.hidden_size // text.num_attention_heads
    vision = parse(config, "vision_config", where, Vision25Config)
    window = vision.window_size // vision.spatial_merge_size // vision.patch_size
    if not window:
        least = vision.spatial_merge_size * vision.patch_size
        message = f"vision_config.window_size must be at least {least}, not {vision.window_size}"
        raise MODEL_UNSUPPORTED.error(where, message)
    whole = {block for block in vision.fullatt_block_indexes if 0 <= block < vision.depth}
    return Sizes(
        text.sizes(name, where, tied=_tied(config, text), attention_bias=True, head_norms=False),
        vision.sizes(
            where, taps=0, positions=0, gated=True, window=window * vision.spatial_merge_size, whole=len(whole)
        ),
    )
