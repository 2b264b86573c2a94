"""A tiny Qwen3-VL made from a config: a real model folder of half a million parameters, for the demo and the tests.

python -m vidqa.engine.families.tiny_qwen3_vl --out tiny-qwen3-vl
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from transformers import (
    PreTrainedTokenizerFast,
    Qwen2VLImageProcessor,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLProcessor,
    Qwen3VLVideoProcessor,
)

from vidqa.engine.families.tiny_qwen_vl import CHAT_TEMPLATE, main, special_ids, tiny_tokenizer, write_folder


def tiny_processor(corpus: Iterable[str] = (), *, max_pixels: int = 64 * 64 * 64) -> Qwen3VLProcessor:
    """A complete Qwen3-VL processor; `max_pixels` bounds frames x height x width of one video."""
    sides = {"shortest_edge": 32 * 32, "longest_edge": max_pixels}
    geometry = {"patch_size": 16, "merge_size": 2, "temporal_patch_size": 2, "size": sides}
    normalise = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    return Qwen3VLProcessor(
        image_processor=Qwen2VLImageProcessor(**geometry, **normalise),
        tokenizer=tiny_tokenizer(corpus),
        video_processor=Qwen3VLVideoProcessor(**geometry, **normalise),
        chat_template=CHAT_TEMPLATE,
    )


def tiny_config(tokenizer: PreTrainedTokenizerFast, hidden: int = 64, *, tie: bool = False) -> Qwen3VLConfig:
    """The architecture of Cosmos-Reason2 with every part present (deepstack, GQA, mRoPE) and every size small."""
    return Qwen3VLConfig(
        text_config={
            "model_type": "qwen3_vl_text",
            "vocab_size": len(tokenizer),
            "hidden_size": hidden,
            "intermediate_size": hidden * 2,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "max_position_embeddings": 262144,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 5e6,
                "mrope_section": [6, 5, 5],
                "mrope_interleaved": True,
            },
            "tie_word_embeddings": tie,
        },
        vision_config={
            "model_type": "qwen3_vl_vision",
            "depth": 2,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_heads": 4,
            "out_hidden_size": hidden,
            "patch_size": 16,
            "num_position_embeddings": 64,
            "deepstack_visual_indexes": [0],
        },
        **special_ids(tokenizer),
        tie_word_embeddings=tie,
    )


def write_tiny_model(
    folder: Path, corpus: Iterable[str] = (), *, seed: int = 0, tie: bool = False, hidden: int = 64, gain: float = 1.0
) -> Path:
    """Write the model folder and return it."""
    processor = tiny_processor(corpus)
    config = tiny_config(processor.tokenizer, hidden, tie=tie)
    return write_folder(folder, processor, config, Qwen3VLForConditionalGeneration, seed, gain)


if __name__ == "__main__":
    main(write_tiny_model, __doc__)
