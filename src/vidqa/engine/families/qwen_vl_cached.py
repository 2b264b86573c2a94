"""Qwen2.5-VL and Qwen3-VL for generation: prefill of a pack of prompts into a paged cache, and decode steps.

Both are one loop over the layers with attention as its argument: packed and written to the cache, or paged. It is not
training's loop (`qwen_vl`): matrix products with a common input are fused, products of quantized layers take rounded
inputs, and one kernel runs between two products (`engine.kernels`), which sets the time of a captured decode step.
Norms, rotations and SwiGLU round like those of transformers.

Shape letters: T tokens of a pack, B rows of a step, R rows of the cache, P pages of a row, V vision tokens, D width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from vidqa.engine.families._base import PagedCache
from vidqa.engine.families.qwen_vl import Parts, place_features, vision_block
from vidqa.engine.families.qwen_vl_layers import EAGER, VisionInput
from vidqa.engine.kernels import kernels_for
from vidqa.engine.model.attention import attend
from vidqa.engine.model.layers import Norm, norm, normed, project
from vidqa.engine.model.quantized import FusedLinear, fuse_linear, linear, require_plain_inputs
from vidqa.planning.budget.answering import PAGE

Rotation = tuple[torch.Tensor, torch.Tensor]  # cosine and sine [T, E]
# (layer index, query [T, H, E] rotated, key and value [T, K, E], the key's norm, rotation) -> [T, H * E]
Attention = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor, Norm | None, Rotation], torch.Tensor]


class LayerWeights(NamedTuple):
    """Weights of one decoder layer."""

    input_norm: Norm
    query_key_value: FusedLinear
    query_norm: Norm | None
    key_norm: Norm | None
    output: FusedLinear
    after_norm: Norm
    gate_up: FusedLinear
    down: FusedLinear


def _weights(layer: Any) -> LayerWeights:
    attention, mlp = layer.self_attn, layer.mlp
    query_norm, key_norm = (getattr(attention, name, None) for name in ("q_norm", "k_norm"))
    return LayerWeights(
        input_norm=norm(layer.input_layernorm),
        query_key_value=fuse_linear(attention.q_proj, attention.k_proj, attention.v_proj),
        query_norm=query_norm and norm(query_norm),
        key_norm=key_norm and norm(key_norm),
        output=fuse_linear(attention.o_proj),
        after_norm=norm(layer.post_attention_layernorm),
        gate_up=fuse_linear(mlp.gate_proj, mlp.up_proj),
        down=fuse_linear(mlp.down_proj),
    )


class CachedQwenVL:
    """The forward pass of generation for a stock model without adapters, whose memory it takes over. `banned` are token
    ids, int64, whose logits are -inf."""

    def __init__(self, parts: Parts, model: Any) -> None:
        self.parts = parts
        self.visual, self.decoder, self.head = model.model.visual, model.model.language_model, model.lm_head
        require_plain_inputs(self.visual, self.head)
        self.kernels = kernels_for(model.device)
        self.multiply = partial(linear, self.kernels, dtype=self.decoder.embed_tokens.weight.dtype)
        self.vision_block = partial(vision_block, parts, EAGER._replace(before_vision=self._before_vision))
        self.layers = [_weights(layer) for layer in self.decoder.layers]
        attention = self.decoder.layers[0].self_attn
        self.width = attention.head_dim
        self.key_heads = attention.k_proj.out_features // self.width
        self.banned = torch.zeros(0, dtype=torch.int64, device=model.device)

    def prefill(
        self, batch: Any, cache: PagedCache, source: torch.Tensor, target: torch.Tensor, last: torch.Tensor
    ) -> torch.Tensor:
        """Logits after rows `last` of a pack, float32; copies its rows `source` to rows `target` of the cache."""

        def attention(
            number: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, key_norm: Any, rotation: Rotation
        ) -> torch.Tensor:
            key, value = self.kernels.rotated(key, key_norm, *rotation), value.contiguous()
            cache.keys[number].index_copy_(0, target, key.index_select(0, source))
            cache.values[number].index_copy_(0, target, value.index_select(0, source))
            return attend(query, key, value, batch.segments, batch.suffixes, causal=True)

        features, deepstack = self.parts.tower(self.visual, batch.patches_PC, batch.vision, self.vision_block)
        hidden = place_features(self.decoder.embed_tokens(batch.input_ids_T), features, batch.visual_at_V)
        return self._logits(self._decode(hidden, batch.position_3T, attention, deepstack, batch.visual_at_V)[last])

    def step(
        self,
        token_B: torch.Tensor,
        position_B: torch.Tensor,
        held_B: torch.Tensor,
        table_BP: torch.Tensor,
        alive_B: torch.Tensor,
        cache: PagedCache,
    ) -> torch.Tensor:
        """Logits after one new token per row, float32. A row holds `held_B` tokens in the pages of `table_BP`; the new
        token is appended. Rows with `alive_B` 0 instead of 1 hold no prompt and write to page 0."""
        row = table_BP.gather(1, (held_B // PAGE).long()[:, None])[:, 0].long() * PAGE + held_B % PAGE
        length_B = held_B + alive_B

        def attention(
            number: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, key_norm: Any, rotation: Rotation
        ) -> torch.Tensor:
            keys, values = cache.keys[number], cache.values[number]
            self.kernels.rotate_into(keys, row, key, (key_norm, *rotation))
            self.kernels.rotate_into(values, row, value, None)
            return self.kernels.decode_attention(query, keys, values, table_BP, length_B, PAGE).flatten(1)

        return self._logits(self._decode(self.decoder.embed_tokens(token_B), position_B.expand(3, -1), attention))

    def _decode(
        self,
        hidden: torch.Tensor,
        position_3T: torch.Tensor,
        attention: Attention,
        deepstack: Sequence[torch.Tensor] = (),
        visual_at_V: Any = None,
    ) -> torch.Tensor:
        """The last hidden states [T, D]; `deepstack` is added at `visual_at_V` after the first layers."""
        kernels, multiply = self.kernels, self.multiply
        rotation = self.parts.rotation(self.decoder, position_3T, hidden.dtype)
        delta = None  # residual of the previous layer, added by the next norm's kernel
        for number, layer in enumerate(self.layers):
            hidden, inputs = kernels.add_norm(hidden, delta, layer.input_norm, layer.query_key_value.input_quantization)
            packed, keys = multiply(inputs, layer.query_key_value), self.key_heads * self.width
            parts = packed.split([packed.shape[1] - 2 * keys, keys, keys], dim=1)
            query, key, value = (part.unflatten(1, (-1, self.width)) for part in parts)
            query = kernels.rotated(query, layer.query_norm, *rotation)
            delta = multiply(attention(number, query, key, value, layer.key_norm, rotation), layer.output)
            hidden, inputs = kernels.add_norm(hidden, delta, layer.after_norm, layer.gate_up.input_quantization)
            # Nested, since a local name would keep the activations through the next layer.
            delta = multiply(
                kernels.silu_mul(multiply(inputs, layer.gate_up), layer.down.input_quantization), layer.down
            )
            if number < len(deepstack):
                hidden, delta = place_features(hidden + delta, deepstack[number], visual_at_V, add=True), None
        return hidden if delta is None else hidden + delta

    def _before_vision(self, hidden_PD: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, block: VisionInput) -> Any:
        packed = project(normed(hidden_PD, block.norm), block.query_key_value)[0]
        return self.kernels.vision_heads(packed, block.heads, cos, sin)

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.head(self.decoder.norm(hidden)).float().index_fill_(-1, self.banned, -math.inf)
