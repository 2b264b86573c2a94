"""Qwen3-VL on packed samples: our forward over transformers' own modules and weights.

The modules stay transformers' (same names, same state dict, exports need no conversion); only what flows between them
is ours: one call of the vision tower per micro-step, one packed sequence through the decoder, vision features placed by
precomputed indices, and the head on supervised tokens only.

Shape letters: T tokens of a pack, P patches, V vision tokens, N supervised tokens, D width.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import Qwen3VLForConditionalGeneration

from vidqa.engine.families._base import Grid, Heads, TorchFamily
from vidqa.engine.families.qwen3_vl_layers import (
    EAGER,
    DecoderInput,
    DecoderOutput,
    Dense,
    VisionInput,
    VisionOutput,
    compiled,
)
from vidqa.engine.model.attention import Segments, attend, segments_of
from vidqa.engine.model.head import head_nll
from vidqa.engine.model.layers import flattened, norm, project, projection
from vidqa.families import qwen3_vl as tables
from vidqa.families.sizes import VisionSizes
from vidqa.planning.budget.memory import Recompute


@dataclass(frozen=True)
class FrameIndex:
    """Where each patch sits: made on the CPU, one per pack."""

    position_2P: torch.Tensor  # int64: row and column of the patch, for rotary embedding
    table_P4: torch.Tensor  # int64: four neighbours in the table of trained positions
    weight_P4: torch.Tensor  # float32: their bilinear weights
    segments: Segments  # one per run of frames of one size


@lru_cache(maxsize=256)
def _frame_index(rows: int, columns: int, side: int, merge: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Position [2, p], table [p, 4] and weights [p, 4] of one frame's patches in merge-block order."""
    row, column = np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij")
    order = [
        grid.reshape(rows // merge, merge, columns // merge, merge).swapaxes(1, 2).ravel() for grid in (row, column)
    ]
    low, high, share = [], [], []
    for position, count in zip(order, (rows, columns), strict=True):
        # The table is stretched over the frame corner to corner, as align_corners interpolation does.
        exact = position.astype(np.float32) * np.float32((side - 1) / max(count - 1, 1))
        floor = exact.astype(np.int64)
        low.append(floor)
        high.append(np.minimum(floor + 1, side - 1))
        share.append(exact - floor)
    (r0, c0), (r1, c1), (dr, dc) = low, high, share
    table = np.stack([r0 * side + c0, r0 * side + c1, r1 * side + c0, r1 * side + c1], axis=1)
    weight = np.stack([(1 - dr) * (1 - dc), (1 - dr) * dc, dr * (1 - dc), dr * dc], axis=1)
    return np.stack(order), table, weight.astype(np.float32)


def vision_segments(grids: Sequence[Grid], count_bits: int | None = None) -> Segments:
    """The frames of a pack's media, each a segment of its own for attention."""
    return segments_of((h * w for t, h, w in grids for _ in range(t)), count_bits=count_bits)


def vision_index(grids: Sequence[Grid], sizes: VisionSizes, count_bits: int | None = None) -> FrameIndex:
    """The index of a pack's media in order; `grids` are (t, h, w) in patches, `count_bits` as in `segments_of`."""
    side = math.isqrt(sizes.positions)
    frames = [_frame_index(h, w, side, sizes.merge) for t, h, w in grids for _ in range(t)]
    position, table, weight = (
        np.concatenate(parts, axis=axis) for parts, axis in zip(zip(*frames, strict=True), (1, 0, 0), strict=True)
    )
    return FrameIndex(
        position_2P=torch.from_numpy(position),
        table_P4=torch.from_numpy(table),
        weight_P4=torch.from_numpy(weight),
        segments=vision_segments(grids, count_bits),
    )


def vision_block(dense: Dense, block: Any, hidden_PD: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, segments):
    attention, mlp = block.attn, block.mlp
    before = VisionInput(norm(block.norm1), projection(attention.qkv), attention.num_heads)
    query, key, value = dense.before_vision(hidden_PD, cos, sin, before)
    attended = attend(query, key, value, segments, causal=False)
    after = VisionOutput(
        output=projection(attention.proj),
        norm=norm(block.norm2),
        wide=projection(mlp.linear_fc1),
        narrow=projection(mlp.linear_fc2),
    )
    return dense.after_vision(hidden_PD, attended, after)


def _decoder_layer(
    dense: Dense, layer: Any, hidden_TD: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, segments, suffixes
):
    attention, mlp = layer.self_attn, layer.mlp
    before = DecoderInput(
        norm=norm(layer.input_layernorm),
        query=projection(attention.q_proj),
        key=projection(attention.k_proj),
        value=projection(attention.v_proj),
        query_norm=norm(attention.q_norm),
        key_norm=norm(attention.k_norm),
    )
    query, key, value = dense.before_decoder(hidden_TD, cos, sin, before)
    attended = attend(query, key, value, segments, suffixes, causal=True)
    after = DecoderOutput(
        output=projection(attention.o_proj),
        norm=norm(layer.post_attention_layernorm),
        gate=projection(mlp.gate_proj),
        up=projection(mlp.up_proj),
        down=projection(mlp.down_proj),
    )
    return dense.after_decoder(hidden_TD, attended, after)


def vision_tower(
    visual: Any, patches_PC: torch.Tensor, index: FrameIndex, run: Callable[..., torch.Tensor] = operator.call
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The merged features [V, D] and one [V, D] per deepstack level. `run(block, hidden, cos, sin, segments)` computes
    a block, by its own forward unless it is given."""
    kernel = flattened(projection(visual.patch_embed.proj))
    hidden = project(patches_PC.to(kernel.weight.dtype), kernel)[0]
    hidden = hidden + (visual.pos_embed(index.table_P4) * index.weight_P4[:, :, None]).sum(1).to(hidden.dtype)
    angle = index.position_2P[..., None].float() * visual.rotary_pos_emb.inv_freq.float()
    angle = torch.cat((angle[0], angle[1]), dim=-1).repeat(1, 2)
    cos, sin = angle.cos(), angle.sin()
    deepstack = []
    for number, block in enumerate(visual.blocks):
        hidden = run(block, hidden, cos, sin, index.segments)
        if number in visual.deepstack_visual_indexes:
            level = list(visual.deepstack_visual_indexes).index(number)
            deepstack.append(visual.deepstack_merger_list[level](hidden))
    return visual.merger(hidden), deepstack


def text_rotation(decoder: Any, position_3T: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Interleaved multimodal rotary embedding: time, height and width take turns along the frequencies."""
    angle_3TE = position_3T[..., None].float() * decoder.rotary_emb.inv_freq.float()
    angle = angle_3TE[0].clone()
    for axis in (1, 2):
        picked = slice(axis, decoder.rotary_emb.mrope_section[axis] * 3, 3)
        angle[:, picked] = angle_3TE[axis][:, picked]
    angle = angle.repeat(1, 2)
    return angle.cos().to(dtype), angle.sin().to(dtype)


def packed_nll(model: Any, batch: Any) -> torch.Tensor:
    """Negative log likelihood of every supervised token of a pack: float32 [N]. `batch` is a `batch.collate.Batch`."""
    visual, decoder = model.model.visual, model.model.language_model
    trained = any(parameter.requires_grad for parameter in visual.parameters())
    with nullcontext() if trained else torch.no_grad():
        features, deepstack = vision_tower(visual, batch.patches_PC, batch.vision)
    hidden = decoder.embed_tokens(batch.input_ids_T)
    hidden = place_features(hidden, features, batch.visual_at_V)
    cos, sin = text_rotation(decoder, batch.position_3T, hidden.dtype)
    for number, layer in enumerate(decoder.layers):
        hidden = layer(hidden, cos, sin, batch.segments, batch.suffixes)
        if number < len(deepstack):
            hidden = place_features(hidden, deepstack[number], batch.visual_at_V, add=True)
    return head_nll(model.lm_head, decoder.norm(hidden[batch.predict_at_N]), batch.target_N)


def place_features(
    hidden_TD: torch.Tensor, features: torch.Tensor, at_V: torch.Tensor, *, add: bool = False
) -> torch.Tensor:
    """Write (or add) vision features at their placeholders. A pack without media carries one feature row that stands
    nowhere: it is added with weight zero, so that every rank runs and differentiates the same modules."""
    if len(at_V) == 0:
        return hidden_TD + features.sum() * 0.0
    features = features.to(hidden_TD.dtype)
    return hidden_TD.index_add(0, at_V, features) if add else hidden_TD.index_copy(0, at_V, features)


def install_forward(model: Any, *, recompute: Recompute = "none", compile: bool = False) -> None:
    """Give the model, its vision blocks and its decoder layers the packed forward. Blocks named by `recompute` keep
    only their inputs for backward; `compile` fuses the dense parts of every layer."""
    dense = compiled() if compile else EAGER

    def install(function: Callable, module: nn.Module, kept: bool) -> None:
        bound = partial(function, dense, module)
        module.forward = bound if kept else partial(checkpoint, bound, use_reentrant=False)

    for block in model.model.visual.blocks:
        install(vision_block, block, kept=recompute == "none")
    for layer in model.model.language_model.layers:
        install(_decoder_layer, layer, kept=recompute != "all")
    model.forward = partial(packed_nll, model)


def _refusal(config: Any) -> str:
    kind = config.text_config.rope_parameters["rope_type"]
    return "" if kind == "default" else f"rope_type is {kind!r}; only 'default' is trained"


def _attention_heads(config: Any) -> tuple[Heads, Heads]:
    text, tower = config.text_config, config.vision_config
    decoder = Heads(text.num_attention_heads, text.num_key_value_heads, text.head_dim)
    return decoder, Heads(tower.num_heads, tower.num_heads, tower.hidden_size // tower.num_heads)


@torch.no_grad()
def vision_features(model: Any, patches_PC: torch.Tensor, index: Any) -> torch.Tensor:
    """The merged features [V, D] of media, by a stock model whose forward is not installed."""
    return vision_tower(model.model.visual, patches_PC, index, partial(vision_block, EAGER))[0]


def _cached_forward(model: Any) -> Any:
    from vidqa.engine.families.qwen3_vl_cached import CachedQwen3VL  # which only generation needs

    return CachedQwen3VL(model)


QWEN3_VL = TorchFamily(
    tables=tables.QWEN3_VL,
    model_class=Qwen3VLForConditionalGeneration,
    refusal=_refusal,
    embeddings="model.language_model.embed_tokens.weight",
    head="lm_head.weight",
    decoder_layers="model.language_model.layers",
    vision=lambda model: model.model.visual,
    vision_units=lambda model: model.model.visual.blocks,
    decoder_units=lambda model: model.model.language_model.layers,
    attention_heads=_attention_heads,
    vision_index=vision_index,
    vision_segments=vision_segments,
    install_forward=install_forward,
    vision_features=vision_features,
    cached_forward=_cached_forward,
)
