"""Qwen2.5-VL and Qwen3-VL on packed samples: our forward pass over the modules and weights of transformers.

The modules are those of transformers (same names and state dict, exports need no conversion); only the data flow is
ours: one call of the vision tower per micro-step, one packed sequence through the decoder, vision features placed by
precomputed indices, and the head on supervised tokens only. The differences between families are in `Parts`.

Shape letters: T tokens of a pack, P patches, V vision tokens, N supervised tokens, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from vidqa.engine.distributed import WHOLE, Context
from vidqa.engine.families._base import Heads, in_unit
from vidqa.engine.families.qwen_vl_layers import (
    EAGER,
    DecoderInput,
    DecoderOutput,
    Dense,
    VisionInput,
    VisionOutput,
    compiled,
)
from vidqa.engine.model.activation_checkpoint import recomputed_attention
from vidqa.engine.model.attention import Segments, attend
from vidqa.engine.model.chunked_head import head_nll
from vidqa.engine.model.layers import Projection, flattened, norm, project, projection
from vidqa.engine.model.suffixes import Suffixes
from vidqa.planning.budget.activation_checkpointing import NO_RECOMPUTE, Recompute, RecomputeLevel


class Parts(NamedTuple):
    """The differences between the two families.

    tower(visual, patches_PC, index, run)      the merged features [V, D], and one [V, D] for each of the decoder's
                                               first layers that takes in more. `run(block, hidden, cos, sin, segments)`
                                               computes a block
    mlp(block)                                 projections of a vision block: (wide, narrow, gate or None)
    rotation(decoder, position_3T, dtype)      cosine and sine [T, E] of the decoder's rotary embedding
    """

    tower: Callable[..., tuple[torch.Tensor, list[torch.Tensor]]]
    mlp: Callable[[Any], tuple[Projection, Projection, Projection | None]]
    rotation: Callable[[Any, torch.Tensor, torch.dtype], tuple[torch.Tensor, torch.Tensor]]


def merge_order(rows: int, columns: int, merge: int) -> np.ndarray:
    """Row and column, int64 [2, p], of one frame's patches in merge-block order."""
    grids = np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij")
    blocks = [grid.reshape(rows // merge, merge, columns // merge, merge).swapaxes(1, 2) for grid in grids]
    return np.stack([block.ravel() for block in blocks])


def embedded(visual: Any, patches_PC: torch.Tensor) -> torch.Tensor:
    """The patch embeddings [P, D]; the convolution is computed as one matrix product."""
    kernel = flattened(projection(visual.patch_embed.proj))
    return project(patches_PC.to(kernel.weight.dtype), kernel)[0]


def vision_rotation(visual: Any, position_2P: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine, float32 [P, E], of the rotary angles of row and column, concatenated."""
    angle = position_2P[..., None].float() * visual.rotary_pos_emb.inv_freq.float()
    angle = torch.cat((angle[0], angle[1]), dim=-1).repeat(1, 2)
    return angle.cos(), angle.sin()


def vision_block(
    parts: Parts,
    dense: Dense,
    block: Any,
    hidden_PD: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    segments: Segments,
    *,
    again: RecomputeLevel = "none",
) -> torch.Tensor:
    """One block of the vision tower: hidden states [P, D], cosine and sine float32 [P, E]."""
    attention = block.attn
    before = VisionInput(norm(block.norm1), projection(attention.qkv), attention.num_heads)
    if again == "none":
        query, key, value = dense.before_vision(hidden_PD, cos, sin, before)
        attended = attend(query, key, value, segments, causal=False)
    else:
        attended = recomputed_attention(dense.before_vision, hidden_PD, (cos, sin), before, segments, causal=False)
    after = VisionOutput(projection(attention.proj), norm(block.norm2), *parts.mlp(block))
    finish = _finish(dense.after_vision, dense.after_vision_again, again, after.output)
    return finish(hidden_PD, attended, after)


def _finish(
    keeping: Callable[..., Any], computing: Callable[..., Any], again: RecomputeLevel, layer: Projection
) -> Any:
    """The function after attention: one that keeps its activations, or one that recomputes them."""
    if again != "linear":
        return keeping
    # With autograd functions inside a compiled checkpoint, torch 2.11 keeps activations that it should recompute.
    return computing if layer.float8 is None else partial(checkpoint, keeping, use_reentrant=False)


def decoder_layer(
    context: Context,
    dense: Dense,
    layer: Any,
    hidden_TD: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    segments: Segments,
    suffixes: Suffixes | None,
    *,
    again: RecomputeLevel = "none",
) -> torch.Tensor:
    """One layer of the decoder: hidden states [T, D], cosine and sine [T, E]."""
    attention, mlp = layer.self_attn, layer.mlp
    query_norm, key_norm = (getattr(attention, name, None) for name in ("q_norm", "k_norm"))
    before = DecoderInput(
        norm=norm(layer.input_layernorm),
        query=projection(attention.q_proj),
        key=projection(attention.k_proj),
        value=projection(attention.v_proj),
        width=attention.head_dim,
        query_norm=query_norm and norm(query_norm),
        key_norm=key_norm and norm(key_norm),
    )
    project_heads = context.whole(dense.before_decoder)
    if again == "none":
        query, key, value = project_heads(hidden_TD, cos, sin, before)
        attended = attend(query, key, value, segments, suffixes, causal=True)
    else:
        attended = recomputed_attention(project_heads, hidden_TD, (cos, sin), before, segments, suffixes, causal=True)
    after = DecoderOutput(
        output=projection(attention.o_proj),
        norm=norm(layer.post_attention_layernorm),
        gate=projection(mlp.gate_proj),
        up=projection(mlp.up_proj),
        down=projection(mlp.down_proj),
    )
    finish = _finish(dense.after_decoder, dense.after_decoder_again, again, after.output)
    return finish(hidden_TD, context.own(attended), after)


def place_features(
    hidden_TD: torch.Tensor, features: torch.Tensor, at_V: torch.Tensor, *, add: bool = False
) -> torch.Tensor:
    """Write (or add) vision features at their placeholders. A pack without media has one feature row without a
    placeholder: it is added with weight zero, so that every rank runs and differentiates the same modules."""
    if len(at_V) == 0:
        return hidden_TD + features.sum() * 0.0
    features = features.to(hidden_TD.dtype)
    return hidden_TD.index_add(0, at_V, features) if add else hidden_TD.index_copy(0, at_V, features)


class PackedQwenVL:
    """The forward pass of one model over packed batches: `forward(batch)`.

    `recompute` sets how much of each unit is recomputed in backward; `compile` fuses the dense parts of every layer;
    ranks of a `context` share each pack."""

    def __init__(
        self,
        parts: Parts,
        model: Any,
        *,
        recompute: Recompute = NO_RECOMPUTE,
        compile: bool = False,
        context: Context = WHOLE,
    ) -> None:
        self.parts, self.model, self.context = parts, model, context
        self.dense = compiled() if compile else EAGER
        blocks, layers = model.model.visual.blocks, model.model.language_model.layers
        self.again = {block: recompute.vision.level(number) for number, block in enumerate(blocks)}
        self.again |= {layer: recompute.decoder.level(number) for number, layer in enumerate(layers)}

    def __call__(self, batch: Any, head: Callable[..., torch.Tensor] = head_nll) -> torch.Tensor:
        """The values of `head` for every supervised token of a `data.collate.Batch`: by default its negative
        log-likelihood, float32 [N]."""
        return in_unit(self.model, self._packed, batch, head)

    def _packed(self, model: Any, batch: Any, head: Callable[..., torch.Tensor]) -> torch.Tensor:
        visual, decoder = model.model.visual, model.model.language_model
        trained = any(parameter.requires_grad for parameter in visual.parameters())
        with nullcontext() if trained else torch.no_grad():
            features, levels = self.parts.tower(visual, batch.patches_PC, batch.vision, self._vision_block)
            if batch.cached is not None:
                features, levels = batch.cached.joined(features, levels)
        if batch.visual_of_V is not None:
            features, *levels = (level[batch.visual_of_V] for level in (features, *levels))
        hidden = decoder.embed_tokens(batch.input_ids_T)
        hidden = place_features(hidden, features, batch.visual_at_V)
        cos, sin = self.parts.rotation(decoder, batch.position_3T, hidden.dtype)
        layer_function = partial(decoder_layer, self.context, self.dense)
        for number, layer in enumerate(decoder.layers):
            hidden = self._unit(layer_function, layer, hidden, cos, sin, batch.segments, batch.suffixes)
            if number < len(levels):
                hidden = place_features(hidden, levels[number], batch.visual_at_V, add=True)
        return head(model.lm_head, decoder.norm(hidden[batch.predict_at_N]), batch.target_N)

    def _vision_block(self, block: nn.Module, *inputs: Any) -> torch.Tensor:
        return self._unit(partial(vision_block, self.parts, self.dense), block, *inputs)

    def _unit(self, function: Callable[..., torch.Tensor], unit: nn.Module, *inputs: Any) -> torch.Tensor:
        """Run `function` of a vision block or decoder layer with the unit's level of recomputation."""
        again = self.again[unit]
        if again == "layer":
            return in_unit(unit, partial(checkpoint, function, use_reentrant=False), *inputs)
        return in_unit(unit, partial(function, again=again), *inputs)


def attention_heads(config: Any) -> tuple[Heads, Heads]:
    text, tower = config.text_config, config.vision_config
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    decoder = Heads(text.num_attention_heads, text.num_key_value_heads, width)
    return decoder, Heads(tower.num_heads, tower.num_heads, tower.hidden_size // tower.num_heads)


@torch.no_grad()
def vision_features(parts: Parts, model: Any, patches_PC: torch.Tensor, index: Any) -> torch.Tensor:
    """The merged features [V, D] of media, computed by a stock model."""
    return parts.tower(model.model.visual, patches_PC, index, partial(vision_block, parts, EAGER))[0]


def cached_forward(parts: Parts, model: Any) -> Any:
    from vidqa.engine.families.qwen_vl_cached import CachedQwenVL  # which only generation needs

    return CachedQwenVL(parts, model)


class _Captured(Exception):
    """Raised to end a forward pass before the decoder."""


@torch.no_grad()
def decoder_inputs(model: Any, inputs: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Inputs of a stock model's decoder for one sample: embeddings [1, S, D] and positions [3, 1, S]; if the family
    adds vision features inside the decoder, also their mask, bool [1, S], and a tensor [V, D] for each level. A sample
    without media has an empty mask and V = 0, so that all samples have the same names and ranks."""
    inputs_seen: dict[str, Any] = {}

    def capture(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        inputs_seen.update(kwargs)
        raise _Captured

    hook = model.model.language_model.register_forward_pre_hook(capture, with_kwargs=True)
    try:
        model.model(**inputs, use_cache=False)
    except _Captured:
        pass
    finally:
        hook.remove()
    embeds_1SD, position = inputs_seen["inputs_embeds"], inputs_seen["position_ids"]
    length, levels = embeds_1SD.shape[1], getattr(model.config.vision_config, "deepstack_visual_indexes", ())
    if position is None:
        position = torch.arange(length, device=embeds_1SD.device).expand(3, 1, length)
    row = {"inputs_embeds": embeds_1SD, "position_ids": position[-3:].contiguous()}
    if levels:
        places, features = inputs_seen.get("visual_pos_masks"), inputs_seen.get("deepstack_visual_embeds")
        nothing = embeds_1SD.new_zeros(0, embeds_1SD.shape[2])
        row["visual_pos_masks"] = embeds_1SD.new_zeros(1, length, dtype=torch.bool) if places is None else places
        row["deepstack_visual_embeds"] = [nothing] * len(levels) if features is None else list(features)
    return row


def refusal(config: Any) -> str:
    kind = config.text_config.rope_parameters["rope_type"]
    return "" if kind == "default" else f"rope_type is {kind!r}; only 'default' is trained"


VISION_IDS = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id", "vision_token_id")


def never_drawn(config: Any, vocabulary: int) -> tuple[int, ...]:
    placeholders = [getattr(config, name) for name in VISION_IDS if getattr(config, name, None) is not None]
    return tuple(sorted({*placeholders, *range(vocabulary, config.text_config.vocab_size)}))


def family_parts(parts: Parts) -> dict[str, Any]:
    """The fields of a `TorchFamily` that are equal in both families."""
    return {
        "refusal": refusal,
        "embeddings": "model.language_model.embed_tokens.weight",
        "head": "lm_head.weight",
        "decoder_layers": "model.language_model.layers",
        "vision": lambda model: model.model.visual,
        "vision_units": lambda model: model.model.visual.blocks,
        "decoder_units": lambda model: model.model.language_model.layers,
        "attention_heads": attention_heads,
        "packed_forward": partial(PackedQwenVL, parts),
        "vision_features": partial(vision_features, parts),
        "cached_forward": partial(cached_forward, parts),
        "never_drawn": never_drawn,
        "decoder_inputs": decoder_inputs,
    }
