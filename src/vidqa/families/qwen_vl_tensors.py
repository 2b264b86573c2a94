"""The parameters of Qwen2.5-VL and Qwen3-VL, by transformers' names and with their shapes, from the sizes alone."""

from __future__ import annotations

from collections.abc import Iterator

from vidqa.families.sizes import Sizes, Tensor, TextSizes, VisionSizes

MODEL, TOWER, HEAD = "model.language_model", "model.visual", "lm_head.weight"


def tensors_of_qwen3(model: Sizes) -> list[Tensor]:
    """Every parameter of a Qwen3-VL."""
    vision = model.vision
    return [
        Tensor(f"{TOWER}.patch_embed.proj.weight", _patch_kernel(vision)),
        Tensor(f"{TOWER}.patch_embed.proj.bias", (vision.hidden,)),
        Tensor(f"{TOWER}.pos_embed.weight", (vision.positions, vision.hidden)),
        *(tensor for number in range(vision.blocks) for tensor in _block(f"{TOWER}.blocks.{number}", vision)),
        *_merger(f"{TOWER}.merger", vision.hidden, vision),
        *(
            tensor
            for number in range(vision.taps)
            for tensor in _merger(f"{TOWER}.deepstack_merger_list.{number}", vision.merged, vision)
        ),
        *_decoder(model.text, output_bias=model.text.attention_bias),
    ]


def tensors_of_qwen25(model: Sizes) -> list[Tensor]:
    """Every parameter of a Qwen2.5-VL."""
    vision = model.vision
    return [
        Tensor(f"{TOWER}.patch_embed.proj.weight", _patch_kernel(vision)),
        *(tensor for number in range(vision.blocks) for tensor in _gated_block(f"{TOWER}.blocks.{number}", vision)),
        Tensor(f"{TOWER}.merger.ln_q.weight", (vision.hidden,)),
        *_linear(f"{TOWER}.merger.mlp.0", vision.merged, vision.merged, "", bias=True),
        *_linear(f"{TOWER}.merger.mlp.2", vision.out, vision.merged, "", bias=True),
        *_decoder(model.text, output_bias=False),
    ]


def _block(name: str, vision: VisionSizes) -> Iterator[Tensor]:
    for norm in ("norm1", "norm2"):
        yield Tensor(f"{name}.{norm}.weight", (vision.hidden,), name)
        yield Tensor(f"{name}.{norm}.bias", (vision.hidden,), name)
    yield from _vision_attention(f"{name}.attn", vision, name)
    yield from _linear(f"{name}.mlp.linear_fc1", vision.intermediate, vision.hidden, name, bias=True)
    yield from _linear(f"{name}.mlp.linear_fc2", vision.hidden, vision.intermediate, name, bias=True)


def _merger(name: str, normed: int, vision: VisionSizes) -> Iterator[Tensor]:
    yield Tensor(f"{name}.norm.weight", (normed,))
    yield Tensor(f"{name}.norm.bias", (normed,))
    yield from _linear(f"{name}.linear_fc1", vision.merged, vision.merged, "", bias=True)
    yield from _linear(f"{name}.linear_fc2", vision.out, vision.merged, "", bias=True)


def _gated_block(name: str, vision: VisionSizes) -> Iterator[Tensor]:
    yield Tensor(f"{name}.norm1.weight", (vision.hidden,), name)
    yield Tensor(f"{name}.norm2.weight", (vision.hidden,), name)
    yield from _vision_attention(f"{name}.attn", vision, name)
    yield from _gated_mlp(f"{name}.mlp", vision.hidden, vision.intermediate, name, bias=True)


def _decoder(text: TextSizes, *, output_bias: bool) -> Iterator[Tensor]:
    """The decoder and its head; a tied head is the embeddings' other name."""
    vocabulary = (text.vocabulary, text.hidden)
    yield Tensor(f"{MODEL}.embed_tokens.weight", vocabulary, tied=HEAD if text.tied else "")
    for number in range(text.layers):
        yield from _layer(f"{MODEL}.layers.{number}", text, output_bias)
    yield Tensor(f"{MODEL}.norm.weight", (text.hidden,))
    if not text.tied:
        yield Tensor(HEAD, vocabulary, linear=True)


def _layer(name: str, text: TextSizes, output_bias: bool) -> Iterator[Tensor]:
    attention, bias = f"{name}.self_attn", text.attention_bias
    yield from _linear(f"{attention}.q_proj", text.queries, text.hidden, name, bias=bias)
    yield from _linear(f"{attention}.k_proj", text.keys, text.hidden, name, bias=bias)
    yield from _linear(f"{attention}.v_proj", text.keys, text.hidden, name, bias=bias)
    yield from _linear(f"{attention}.o_proj", text.hidden, text.queries, name, bias=output_bias)
    if text.head_norms:
        yield Tensor(f"{attention}.q_norm.weight", (text.head_dim,), name)
        yield Tensor(f"{attention}.k_norm.weight", (text.head_dim,), name)
    yield from _gated_mlp(f"{name}.mlp", text.hidden, text.intermediate, name, bias=False)
    yield Tensor(f"{name}.input_layernorm.weight", (text.hidden,), name)
    yield Tensor(f"{name}.post_attention_layernorm.weight", (text.hidden,), name)


def _gated_mlp(name: str, hidden: int, wide: int, unit: str, *, bias: bool) -> Iterator[Tensor]:
    yield from _linear(f"{name}.gate_proj", wide, hidden, unit, bias=bias)
    yield from _linear(f"{name}.up_proj", wide, hidden, unit, bias=bias)
    yield from _linear(f"{name}.down_proj", hidden, wide, unit, bias=bias)


def _patch_kernel(vision: VisionSizes) -> tuple[int, ...]:
    """The shape of the convolution that embeds patches."""
    return (vision.hidden, vision.channels, vision.temporal_patch, vision.patch, vision.patch)


def _vision_attention(name: str, vision: VisionSizes, unit: str) -> Iterator[Tensor]:
    yield from _linear(f"{name}.qkv", 3 * vision.hidden, vision.hidden, unit, bias=True)
    yield from _linear(f"{name}.proj", vision.hidden, vision.hidden, unit, bias=True)


def _linear(name: str, rows: int, columns: int, unit: str, *, bias: bool) -> Iterator[Tensor]:
    yield Tensor(f"{name}.weight", (rows, columns), unit, linear=True)
    if bias:
        yield Tensor(f"{name}.bias", (rows,), unit, linear=True)
