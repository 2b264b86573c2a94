"""Memory: predictions against measured runs, and the counts they rest on against the engine's own layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from transformers import (
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)

from vidqa.engine import distributed
from vidqa.engine.distributed import WHOLE
from vidqa.engine.families import qwen2_5_vl, qwen3_vl
from vidqa.engine.families.qwen_vl import decoder_layer, vision_block
from vidqa.engine.families.qwen_vl_layers import EAGER, Dense
from vidqa.engine.loading.freeze import choose_trainable
from vidqa.engine.model.float8 import use_float8
from vidqa.engine.torch_private import any_length, prepare_compiler
from vidqa.families import Sizes, TextSizes, VisionSizes
from vidqa.families.qwen3_vl import tensors as tensors_of_qwen3
from vidqa.planning.budget.activation_checkpointing import RecomputeLevel, fixed_recompute, recompute_path
from vidqa.planning.budget.memory import MicroStep, TrainingSetup, block_widths, fits, layer_widths, peak_memory
from vidqa.planning.budget.memory_constants import Widths
from vidqa.planning.budget.params import ParamCount, ParamCounts, count_params, parameters
from vidqa.planning.budget.speed import efficiency
from vidqa.spec.policy_tables import Policy

SIZES = Sizes(
    TextSizes(4096, 36, 32, 8, 128, 12288, 151936, tied=False),
    VisionSizes(1152, 27, 4304, 4096, 3, 16, 2, 2, 3, 2304),
)


def model(**policy: Any) -> ParamCounts:
    return count_params(SIZES, parameters(tensors_of_qwen3(SIZES), Policy.model_validate(policy)))


def peak(setup: TrainingSetup, micro_step: MicroStep | None = None, **policy: Any) -> float:
    return peak_memory(model(**policy), setup, micro_step or MicroStep(8192, 24000, 100)).peak_gib


def test_what_should_take_less_takes_less() -> None:
    setup = TrainingSetup(shard_ranks=4)
    whole, full, step = peak(setup), model(), MicroStep(8192, 24000, 100)
    choices = recompute_path(SIZES, vision_trains=True)
    peaks = [peak_memory(full, replace(setup, recompute=choice), step).peak_gib for choice in choices]
    assert peaks[0] == whole and peaks == sorted(peaks, reverse=True) and peaks[-1] < 0.6 * whole
    assert fixed_recompute("all", SIZES) == recompute_path(SIZES, vision_trains=True)[-1]
    assert whole > peak(replace(setup, shard_ranks=8)) and whole > peak(setup, MicroStep(4096, 24000)) > peak(
        setup, MicroStep(4096, 12000)
    )
    assert whole > peak(setup, freeze_pattern=["visual"])
    assert peak(replace(setup, compiled=False)) > whole
    assert peak(setup, MicroStep(8192, 24000, 100, accumulates=True)) > whole
    assert peak(replace(setup, keeps_weights=True)) > whole
    lora = replace(setup, lora=True)
    assert whole > peak(replace(lora, dropout=True), lora={}) > peak(lora, lora={})
    assert fits(74, 80) and not fits(75, 80)


def test_shares_of_weights_and_optimizer() -> None:
    """16 bytes of a number that trains, 2 of one that does not."""
    full = model()
    always = peak_memory(full, TrainingSetup(shard_ranks=2), MicroStep(128, 4)).always
    assert always == full.every.every * 12 / 2 and full.every.trained == full.every.every == 8_767_123_696
    frozen = model(freeze_pattern=["visual"])
    vision = full.every.every - frozen.every.trained
    assert (
        peak_memory(frozen, TrainingSetup(shard_ranks=1), MicroStep(128, 4)).always
        == frozen.every.trained * 12 + vision * 2
    )


def test_a_like_run_tells_the_speed() -> None:
    found = efficiency(model(lora={}), TrainingSetup(1, lora=True))
    assert 0.1 < found.mfu < 0.8 and "lora" in found.source
    assert found.mfu > efficiency(model(lora={}), TrainingSetup(1, lora=True, compiled=False)).mfu
    small = replace(model(), every=ParamCount(1000, 1000))
    assert "assumed" in efficiency(small, TrainingSetup(1)).source


# What backward needs of a layer, counted on real layers of several widths.

WIDTHS = [(256, 512, 4, 1), (512, 512, 4, 1), (256, 1024, 4, 1), (256, 512, 8, 1), (256, 512, 4, 2)]
TOKENS = 1024  # so many that matrices which are made of adapters count little
RECOMPUTED: tuple[RecomputeLevel, ...] = ("none", "projections", "linear")


def compiled() -> Dense:
    """Partitioned as the engine's compiled layers are, without generating code."""
    prepare_compiler()  # which sets how torch.compile partitions
    torch._dynamo.reset()
    backend = "aot_eager_decomp_partition"
    return Dense(*(any_length(torch.compile(each, fullgraph=True, backend=backend)) for each in EAGER))


def tiny(hidden: int, wide: int, heads: int, kv_heads: int, vision: tuple[int, int], lora: float | None) -> Any:
    text = {"hidden_size": hidden, "intermediate_size": wide, "num_attention_heads": heads, "head_dim": 128}
    text |= {"num_key_value_heads": kv_heads, "num_hidden_layers": 1, "vocab_size": 64}
    text["rope_parameters"] = {"rope_type": "default", "mrope_section": [24, 20, 20], "rope_theta": 5e6}
    tower = {"hidden_size": vision[0], "intermediate_size": vision[1], "num_heads": 2, "depth": 1}
    tower |= {"out_hidden_size": hidden, "deepstack_visual_indexes": [0], "num_position_embeddings": 16}
    model = Qwen3VLForConditionalGeneration(Qwen3VLConfig(text_config=text, vision_config=tower))
    return in_bf16(model, lora)


def tiny_gated(vision: tuple[int, int], wide: int = 512, kv_heads: int = 1, lora: float | None = None) -> Any:
    """Of the family whose vision blocks have a gated MLP, and whose heads have no norms."""
    text = {"hidden_size": 512, "intermediate_size": wide, "num_attention_heads": 4, "num_key_value_heads": kv_heads}
    text |= {"num_hidden_layers": 1, "vocab_size": 64}
    text["rope_parameters"] = {"rope_type": "default", "mrope_section": [16, 24, 24], "rope_theta": 1e6}
    tower = {"hidden_size": vision[0], "intermediate_size": vision[1], "num_heads": 2, "depth": 1}
    model = Qwen2_5_VLForConditionalGeneration(
        Qwen2_5_VLConfig(text_config=text, vision_config={**tower, "out_hidden_size": 512})
    )
    return in_bf16(model, lora)


def in_bf16(model: Any, lora: float | None) -> Any:
    choose_trainable(model, Policy.model_validate({} if lora is None else {"lora": {"lora_dropout": lora}}))
    for name, parameter in list(model.named_parameters()):
        module, _, last = name.rpartition(".")
        fresh = torch.full(parameter.shape, 0.01, dtype=torch.bfloat16)
        model.get_submodule(module)._parameters[last] = torch.nn.Parameter(fresh, parameter.requires_grad)
    return model.train()


def kept_per_token(
    run: Callable[[torch.Tensor], torch.Tensor], module: Any, width: int, *known: torch.Tensor, compiles: bool
) -> float:
    """bf16 numbers that one call keeps for backward, the input among them; weights and `known` are not counted."""
    hidden = torch.randn(TOKENS, width, dtype=torch.bfloat16).requires_grad_()
    if compiles:
        run(hidden * 1).sum().backward()  # outside of the count
    skipped = {tensor.untyped_storage()._cdata for tensor in (*module.parameters(), *known)}
    found: dict[int, tuple[StorageWeakRef, int]] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in skipped:
            found[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        return tensor.detach()  # a result that its own node kept by this hook would never be let go

    given = hidden * 1
    pack(given)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = run(given)  # which holds what was kept; what a layer makes again has been let go
    kept = sum(size for storage, size in found.values() if not storage.expired())
    del output
    return kept / 2 / TOKENS


@pytest.mark.parametrize(
    ("fused", "rounded", "dropout"),
    [(fused, False, dropout) for fused in (False, True) for dropout in (None, 0.0, 0.05)] + [(True, True, None)],
)
def test_what_a_decoder_layer_keeps(fused: bool, rounded: bool, dropout: float | None) -> None:
    """At every level of recomputation; a compiled layer is compiled once for all of them."""
    setup = TrainingSetup(1, compiled=fused, lora=dropout is not None, dropout=bool(dropout))
    for hidden, wide, heads, kv_heads in WIDTHS[2:3] if fused else WIDTHS:
        dense = compiled() if fused else EAGER
        layer = tiny(hidden, wide, heads, kv_heads, (64, 128), dropout).model.language_model.layers[0]
        use_float8([layer] * rounded, "tensorwise")
        turn = torch.randn(TOKENS, 128, dtype=torch.bfloat16)
        for again in RECOMPUTED:
            run = lambda x: decoder_layer(WHOLE, dense, layer, x, turn, turn, ((0, 1, TOKENS),), None, again=again)  # noqa: E731, B023
            found = kept_per_token(run, layer, hidden, turn, compiles=fused)
            told = told_of(layer_widths(setup, again), hidden, wide, heads * 128, kv_heads * 128)
            # A CPU's dropout keeps a mask as wide as its input; a GPU's is of bytes.
            inputs = 5 if again == "none" else 2
            masks = 0.5 * (inputs * hidden + heads * 128 + wide) if dropout and not fused and again != "linear" else 0.0
            assert found - masks == pytest.approx(told, rel=0.08), (again, hidden, wide, heads, kv_heads)


@pytest.mark.parametrize("fused", [False, True])
def test_what_a_decoder_layer_of_two_ranks_keeps(fused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "_exchanged", lambda tensor, _: tensor.contiguous().clone())  # both have the same
    setup = TrainingSetup(2, compiled=fused, lora=True, context_parallel=True)
    hidden, wide, heads, kv_heads = WIDTHS[4]
    dense = compiled() if fused else EAGER
    layer = tiny(hidden, wide, heads, kv_heads, (64, 128), 0.0).model.language_model.layers[0]
    turn = torch.randn(TOKENS, 128, dtype=torch.bfloat16)
    shared, all_rows = distributed.Context(0, 2), ((0, 1, 2 * TOKENS),)
    for again in RECOMPUTED if fused else RECOMPUTED[:1]:
        run = lambda x: decoder_layer(shared, dense, layer, x, turn, turn, all_rows, None, again=again)  # noqa: E731, B023
        found = kept_per_token(run, layer, hidden, turn, compiles=fused)
        told = told_of(layer_widths(setup, again), hidden, wide, heads * 128, kv_heads * 128)
        assert found == pytest.approx(told, rel=0.08), again


@pytest.mark.parametrize(("fused", "dropout"), [(False, None), (True, None), (False, 0.0), (True, 0.0), (False, 0.05)])
def test_what_a_decoder_layer_without_norms_of_heads_keeps(fused: bool, dropout: float | None) -> None:
    setup = TrainingSetup(1, compiled=fused, lora=dropout is not None, dropout=bool(dropout))
    counts, hidden = layer_widths(setup, "none", head_norms=False), 512
    for wide, kv_heads in ((512, 1),) if fused else ((512, 1), (1024, 2)):
        dense = compiled() if fused else EAGER
        layer = tiny_gated((64, 128), wide, kv_heads, dropout).model.language_model.layers[0]
        turn = torch.randn(TOKENS, 128, dtype=torch.bfloat16)
        run = lambda x: decoder_layer(WHOLE, dense, layer, x, turn, turn, ((0, 1, TOKENS),), None)  # noqa: E731, B023
        found = kept_per_token(run, layer, hidden, turn, compiles=fused)
        masks = 0.0 if not dropout else 0.5 * (5 * hidden + hidden + wide)
        assert found - masks == pytest.approx(told_of(counts, hidden, wide, hidden, kv_heads * 128), rel=0.08)


@pytest.mark.slow
def test_a_compiled_layer_keeps_no_more_than_it_needs() -> None:
    """With generated code too, whose tensors may be parts of larger ones that are kept as a whole."""
    prepare_compiler()
    torch._dynamo.reset()
    dense = Dense(*(any_length(torch.compile(each, fullgraph=True)) for each in EAGER))
    hidden, wide, heads, kv_heads = WIDTHS[2]
    layer = tiny(hidden, wide, heads, kv_heads, (64, 128), 0.0).model.language_model.layers[0]
    turn = torch.randn(TOKENS, 128, dtype=torch.bfloat16)
    run = lambda x: decoder_layer(WHOLE, dense, layer, x, turn, turn, ((0, 1, TOKENS),), None)  # noqa: E731
    counts = layer_widths(TrainingSetup(1, compiled=True, lora=True), "none")
    told = told_of(counts, hidden, wide, heads * 128, kv_heads * 128)
    assert kept_per_token(run, layer, hidden, turn, compiles=True) == pytest.approx(told, rel=0.08)


def told_of(counts: Widths, hidden: int, wide: int, queries: int, keys: int) -> float:
    return counts.hidden * hidden + counts.queries * queries + counts.keys * keys + counts.wide * wide


@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
@pytest.mark.parametrize(("fused", "rounded"), [(False, False), (True, False), (True, True)])
def test_what_a_vision_block_keeps(fused: bool, rounded: bool, gated: bool) -> None:
    parts = (qwen2_5_vl if gated else qwen3_vl).PARTS
    for hidden, wide in ((128, 512),) if fused else ((128, 256), (256, 256), (128, 512)):
        dense = compiled() if fused else EAGER
        made = tiny_gated((hidden, wide)) if gated else tiny(256, 512, 4, 1, (hidden, wide), None)
        block = made.model.visual.blocks[0]
        use_float8([block] * rounded, "tensorwise")
        turn = torch.randn(TOKENS, hidden // 2)
        for again in (RECOMPUTED[0], RECOMPUTED[2]):
            run = lambda x: vision_block(parts, dense, block, x, turn, turn, ((0, 2, TOKENS // 2),), again=again)  # noqa: E731, B023
            counts = block_widths(TrainingSetup(1, compiled=fused), again, gated=gated)
            told = (counts.hidden + counts.queries) * hidden + counts.wide * wide
            found = kept_per_token(run, block, hidden, turn, compiles=fused)
            assert found == pytest.approx(told, rel=0.08), (again, hidden, wide)
