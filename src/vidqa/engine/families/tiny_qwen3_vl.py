"""A tiny Qwen3-VL made from a config: a real model folder of half a million parameters, for the demo and the tests.

python -m vidqa.engine.families.tiny_qwen3_vl --out tiny-qwen3-vl

The result is a Hugging Face model folder: config, safetensors, tokenizer with the Qwen special tokens, chat template,
image and video processor. Its weights are random (seeded); nothing is downloaded.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    PreTrainedTokenizerFast,
    Qwen2VLImageProcessor,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLProcessor,
    Qwen3VLVideoProcessor,
)

from vidqa.families.published import TEMPLATE
from vidqa.families.qwen_vl import TOKEN_IDS

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
# Words, single digits, punctuation and white space are never merged: numbers are tokenized digit by digit.
WORDS = Regex(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+")
CORPUS = (
    "You are a helpful assistant. Answer with yes or no. Answer with one word. Answer with a letter. user system "
    "assistant <think> </think> <answer> </answer> Yes. No. yes no A B C D. (A) (B) <0.5 seconds> <12.3 seconds>"
)


def tiny_tokenizer(corpus: Iterable[str], vocab_size: int = 512) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer with Qwen's special tokens, trained on `corpus`."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(WORDS, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator([CORPUS, *corpus], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=list(SPECIAL_TOKENS[1:]),
        model_max_length=262144,
    )


def special_ids(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    """The config keys of special token ids."""
    return {key: tokenizer.convert_tokens_to_ids(text) for key, (text, _) in TOKEN_IDS.items()}


def initialise(model: torch.nn.Module, gain: float = 1.0) -> None:
    """Initialise weights so that activations keep their scale, with small embeddings, as before pretraining; all
    weights are multiplied by `gain`.

    With one small standard deviation for all weights, the default of the architecture, the input of a narrow model
    hardly reaches its last layer, and for a long time it learns only the frequency of answers.
    """
    for name, weights in model.named_parameters():
        if weights.dim() > 1:
            looked_up = any(part in name for part in ("embed_tokens", "pos_embed", "lm_head"))
            torch.nn.init.normal_(weights, std=gain * (0.02 if looked_up else weights[0].numel() ** -0.5))


def write_folder(folder: Path, processor: Any, config: Any, model_class: Any, seed: int, gain: float) -> Path:
    """Write a model with new random weights and its processor."""
    torch.manual_seed(seed)
    model = model_class(config)
    initialise(model, gain)
    model.generation_config.eos_token_id = processor.tokenizer.eos_token_id
    model.generation_config.pad_token_id = processor.tokenizer.pad_token_id
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def tiny_processor(corpus: Iterable[str] = (), *, max_pixels: int = 64 * 64 * 64) -> Qwen3VLProcessor:
    """A complete Qwen3-VL processor; `max_pixels` bounds frames x height x width of one video."""
    sides = {"shortest_edge": 32 * 32, "longest_edge": max_pixels}
    geometry = {"patch_size": 16, "merge_size": 2, "temporal_patch_size": 2, "size": sides}
    normalise = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    return Qwen3VLProcessor(
        image_processor=Qwen2VLImageProcessor(**geometry, **normalise),
        tokenizer=tiny_tokenizer(corpus),
        video_processor=Qwen3VLVideoProcessor(**geometry, **normalise),
        chat_template=TEMPLATE,
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


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--corpus", type=Path, help="text for the tokenizer's vocabulary")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--gain", type=float, default=1.0, help="factor of all weights")
    options = parser.parse_args()
    corpus = options.corpus.read_text(encoding="utf-8").splitlines() if options.corpus else ()
    print(write_tiny_model(options.out, corpus, seed=options.seed, gain=options.gain))


if __name__ == "__main__":
    main()
