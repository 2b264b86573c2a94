"""What the tiny models of Qwen2.5-VL and Qwen3-VL have in common: tokenizer, chat template, weights, and the command.

A folder is an ordinary Hugging Face one: config, safetensors, tokenizer with the Qwen special tokens, chat template,
image and video processor. Its weights are random (seeded); nothing is downloaded.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

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
# Words, number groups of one digit, punctuation and white space are never merged across: numbers stay comparable.
WORDS = Regex(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+")
CHAT_TEMPLATE = """\
{%- macro body(content) -%}
{%- if content is string -%}{{ content }}{%- else -%}
{%- for part in content -%}
{%- if part.type == 'text' -%}{{ part.text }}
{%- elif part.type == 'image' -%}<|vision_start|><|image_pad|><|vision_end|>
{%- elif part.type == 'video' -%}<|vision_start|><|video_pad|><|vision_end|>
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
{%- for message in messages -%}
{{ '<|im_start|>' + message.role + '\\n' + body(message.content) + '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}
"""
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
    """The keys of a config that name special tokens."""
    names = {"image_token_id": "image_pad", "video_token_id": "video_pad"}
    names |= {"vision_start_token_id": "vision_start", "vision_end_token_id": "vision_end"}
    return {key: tokenizer.convert_tokens_to_ids(f"<|{name}|>") for key, name in names.items()}


def initialise(model: torch.nn.Module, gain: float = 1.0) -> None:
    """Weights that keep the size of what passes through them, small embeddings, as at the start of a pretraining; all
    of them `gain` times as large.

    With one small deviation for all, as the architecture has it, what a narrow model sees hardly reaches its last
    layer, and it learns for long only which answers are frequent.
    """
    for name, weights in model.named_parameters():
        if weights.dim() > 1:
            looked_up = any(part in name for part in ("embed_tokens", "pos_embed", "lm_head"))
            torch.nn.init.normal_(weights, std=gain * (0.02 if looked_up else weights[0].numel() ** -0.5))


def write_folder(folder: Path, processor: Any, config: Any, model_class: Any, seed: int, gain: float) -> Path:
    """Write a model with fresh weights and its processor."""
    torch.manual_seed(seed)
    model = model_class(config)
    initialise(model, gain)
    model.generation_config.eos_token_id = processor.tokenizer.eos_token_id
    model.generation_config.pad_token_id = processor.tokenizer.pad_token_id
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def main(write_tiny_model: Callable[..., Path], doc: str | None) -> None:
    """The command of a module that writes a tiny model."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0] if doc else None)
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--corpus", type=Path, help="text whose words the tokenizer should know")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--gain", type=float, default=1.0, help="makes all weights so many times as large")
    options = parser.parse_args()
    corpus = options.corpus.read_text(encoding="utf-8").splitlines() if options.corpus else ()
    print(write_tiny_model(options.out, corpus, seed=options.seed, gain=options.gain))
