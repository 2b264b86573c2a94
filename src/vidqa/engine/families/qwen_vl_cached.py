"""Qwen2.5-VL and Qwen3-VL for generation: a pack of prompts into a paged cache, and one token of many rows.

Products that share an input are one matrix; what stands between products is one kernel (`engine.kernels`). Rounding is
that of transformers' own layers.

Shape letters: T tokens of a pack, B rows of a step, R rows of the cache, P pages of a row, V vision tokens, D width.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import torch

from vidqa.engine.families.qwen_vl import Parts, place_features, vision_block
from vidqa.engine.families.qwen_vl_layers import EAGER, VisionInput
from vidqa.engine.kernels import kernels_for
from vidqa.engine.model.attention import attend
from vidqa.engine.model.layers import normed, project
from vidqa.engine.model.paged_cache import PAGE, PagedCache
from vidqa.engine.model.quantized import Matrix, Rounded, matrix_of, product, require_plain_inputs


class DecoderWeights(NamedTuple):
    """One decoder layer."""

    input_norm: torch.Tensor
    query_key_value: Matrix
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    output: Matrix
    after_norm: torch.Tensor
    gate_up: Matrix
    down: Matrix
    epsilon: float


def _head_norm(attention: Any, name: str) -> torch.Tensor | None:
    return getattr(attention, name).weight.data if hasattr(attention, name) else None


def _weights(layer: Any) -> DecoderWeights:
    attention, mlp = layer.self_attn, layer.mlp
    return DecoderWeights(
        input_norm=layer.input_layernorm.weight.data,
        query_key_value=matrix_of(attention.q_proj, attention.k_proj, attention.v_proj),
        query_norm=_head_norm(attention, "q_norm"),
        key_norm=_head_norm(attention, "k_norm"),
        output=matrix_of(attention.o_proj),
        after_norm=layer.post_attention_layernorm.weight.data,
        gate_up=matrix_of(mlp.gate_proj, mlp.up_proj),
        down=matrix_of(mlp.down_proj),
        epsilon=layer.input_layernorm.variance_epsilon,
    )


class CachedQwenVL:
    """The forward of a stock model without adapters, whose memory it takes over. `banned` are token ids, int64, whose
    logits are -inf."""

    def __init__(self, parts: Parts, model: Any) -> None:
        self.parts = parts
        self.visual, self.decoder, self.head = model.model.visual, model.model.language_model, model.lm_head
        require_plain_inputs(self.visual, self.head)
        self.kernels = kernels_for(model.device)
        self.multiply = partial(product, self.kernels, dtype=self.decoder.embed_tokens.weight.dtype)
        self.vision_block = partial(vision_block, parts, EAGER._replace(before_vision=self._before_vision))
        self.layers = [_weights(layer) for layer in self.decoder.layers]
        attention = self.decoder.layers[0].self_attn
        self.width = attention.head_dim
        self.key_heads = attention.k_proj.out_features // self.width
        self.banned = torch.zeros(0, dtype=torch.int64, device=model.device)

    def prefill(
        self, batch: Any, cache: PagedCache, source: torch.Tensor, target: torch.Tensor, last: torch.Tensor
    ) -> torch.Tensor:
        """Logits behind the rows `last` of a pack, float32; its rows `source` go to the rows `target` of the cache."""
        features, deepstack = self.parts.tower(self.visual, batch.patches_PC, batch.vision, self.vision_block)
        hidden = place_features(self.decoder.embed_tokens(batch.input_ids_T), features, batch.visual_at_V)
        cos, sin = self.parts.rotation(self.decoder, batch.position_3T, hidden.dtype)
        delta = None
        for number, of in enumerate(self.layers):
            hidden, normed = self.kernels.add_norm(
                hidden, delta, of.input_norm, of.epsilon, of.query_key_value.rounding
            )
            query, key, value = self._heads(normed, of)
            query = self.kernels.rotated(query, of.query_norm, of.epsilon, cos, sin)
            key = self.kernels.rotated(key, of.key_norm, of.epsilon, cos, sin)
            value = value.contiguous()
            cache.keys[number].index_copy_(0, target, key.index_select(0, source))
            cache.values[number].index_copy_(0, target, value.index_select(0, source))
            attended = attend(query, key, value, batch.segments, batch.suffixes, causal=True)
            hidden, delta = self._after(hidden, attended, of)
            if number < len(deepstack):
                hidden, delta = place_features(hidden + delta, deepstack[number], batch.visual_at_V, add=True), None
        return self._logits((hidden if delta is None else hidden + delta)[last])

    def step(
        self,
        token_B: torch.Tensor,
        position_B: torch.Tensor,
        held_B: torch.Tensor,
        table_BP: torch.Tensor,
        alive_B: torch.Tensor,
        cache: PagedCache,
    ) -> torch.Tensor:
        """Logits behind one token of each row, float32. A row holds `held_B` tokens in the pages of `table_BP`; the new
        one is put behind them. Rows that are not alive (0, not 1) hold none and write to page 0."""
        row = table_BP.gather(1, (held_B // PAGE).long()[:, None])[:, 0].long() * PAGE + held_B % PAGE
        seen = held_B + alive_B
        hidden = self.decoder.embed_tokens(token_B)
        cos, sin = self.parts.rotation(self.decoder, position_B.expand(3, -1), hidden.dtype)
        delta = None
        for number, of in enumerate(self.layers):
            hidden, normed = self.kernels.add_norm(
                hidden, delta, of.input_norm, of.epsilon, of.query_key_value.rounding
            )
            query, key, value = self._heads(normed, of)
            query = self.kernels.rotated(query, of.query_norm, of.epsilon, cos, sin)
            keys, values = cache.keys[number], cache.values[number]
            self.kernels.rotate_into(keys, row, key, (of.key_norm, of.epsilon, cos, sin))
            self.kernels.rotate_into(values, row, value, None)
            attended = self.kernels.decode_attention(query, keys, values, table_BP, seen, PAGE)
            hidden, delta = self._after(hidden, attended.flatten(1), of)
        return self._logits(hidden + delta)

    def _before_vision(self, hidden_PD: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, of: VisionInput) -> Any:
        packed = project(normed(hidden_PD, of.norm), of.query_key_value)[0]
        return self.kernels.vision_heads(packed, of.heads, cos, sin)

    def _heads(
        self, normed: torch.Tensor | Rounded, of: DecoderWeights
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Query, key and value heads of one product, as views."""
        packed, keys = self.multiply(normed, of.query_key_value), self.key_heads * self.width
        parts = packed.split([packed.shape[1] - 2 * keys, keys, keys], dim=1)
        query, key, value = (part.unflatten(1, (-1, self.width)) for part in parts)
        return query, key, value

    def _after(
        self, hidden: torch.Tensor, attended: torch.Tensor, of: DecoderWeights
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The residual stream, and what is still to be added to it."""
        delta, multiply = self.multiply(attended, of.output), self.multiply
        hidden, normed = self.kernels.add_norm(hidden, delta, of.after_norm, of.epsilon, of.gate_up.rounding)
        return hidden, multiply(self.kernels.silu_mul(multiply(normed, of.gate_up), of.down.rounding), of.down)

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.head(self.decoder.norm(hidden)).float().index_fill_(-1, self.banned, -math.inf)
