"""A tiny Qwen2.5-VL made from a config: a real model folder of half a million parameters, for tests and benchmarks."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from transformers import (
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen2VLImageProcessor,
    Qwen2VLVideoProcessor,
)

from vidqa.engine.families.tiny_qwen3_vl import special_ids, tiny_tokenizer, write_folder
from vidqa.families.published import TEMPLATE


def tiny_processor(corpus: Iterable[str] = (), *, max_pixels: int = 112 * 112) -> Qwen2_5_VLProcessor:
    """A complete Qwen2.5-VL processor; `max_pixels` bounds height x width of a frame."""
    sides = {"shortest_edge": 28 * 28, "longest_edge": max_pixels}
    geometry = {"patch_size": 14, "merge_size": 2, "temporal_patch_size": 2, "size": sides}
    return Qwen2_5_VLProcessor(
        image_processor=Qwen2VLImageProcessor(**geometry),
        tokenizer=tiny_tokenizer(corpus),
        video_processor=Qwen2VLVideoProcessor(**geometry, cap_pixels_per_frame=False),
        chat_template=TEMPLATE,
    )


def tiny_config(tokenizer: PreTrainedTokenizerFast, hidden: int = 64, *, tie: bool = False) -> Qwen2_5_VLConfig:
    """The architecture of Cosmos-Reason1 with every part present (windows, blocks that see whole frames, GQA, mRoPE,
    biases) and every size small: a window is two tokens wide."""
    return Qwen2_5_VLConfig(
        text_config={
            "model_type": "qwen2_5_vl_text",
            "vocab_size": len(tokenizer),
            "hidden_size": hidden,
            "intermediate_size": hidden * 2,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "max_position_embeddings": 128000,
            "rms_norm_eps": 1e-6,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": _sections(hidden // 2)},
            "tie_word_embeddings": tie,
        },
        vision_config={
            "model_type": "qwen2_5_vl_vision",
            "depth": 3,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_heads": 4,
            "out_hidden_size": hidden,
            "patch_size": 14,
            "window_size": 56,
            "fullatt_block_indexes": [1],
            "tokens_per_second": 2,
        },
        **special_ids(tokenizer),
        tie_word_embeddings=tie,
    )


def _sections(width: int) -> list[int]:
    """The mRoPE sections: a quarter of a head's frequencies for time, as in the published models."""
    time = width // 8
    return [time, (width // 2 - time) // 2, (width // 2 - time) // 2]


def write_tiny_model(
    folder: Path, corpus: Iterable[str] = (), *, seed: int = 0, tie: bool = False, hidden: int = 64, gain: float = 1.0
) -> Path:
    """Write the model folder and return it."""
    processor = tiny_processor(corpus)
    config = tiny_config(processor.tokenizer, hidden, tie=tie)
    return write_folder(folder, processor, config, Qwen2_5_VLForConditionalGeneration, seed, gain)
