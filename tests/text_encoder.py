"""Folders of tiny text encoders, for metrics that compare texts with a model.

write_encoder(folder)                                                a BERT and its tokenizer
write_sentence_model(folder, {"pooling_mode_mean_tokens": True})     in the layout of sentence-transformers
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

WORDS = ("the", "a", "door", "is", "open", "closed", "man", "woman", "walks", "runs", "in", "to", "left", "car", ".")


def write_encoder(folder: Path) -> Path:
    """Write a BERT of three layers whose weights are computed, not drawn: equal on every machine."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    core = Tokenizer(models.WordLevel({word: at for at, word in enumerate([*special, *WORDS])}, unk_token="[UNK]"))
    core.normalizer, core.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    core.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, pad_token="[PAD]", model_max_length=64, **names)
    tokenizer.save_pretrained(folder)
    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 48}
    model = BertModel(BertConfig(vocab_size=len(tokenizer), max_position_embeddings=64, **sizes))
    for number, parameter in enumerate(model.parameters()):
        if parameter.dim() > 1:
            at = torch.arange(parameter.numel(), dtype=torch.float64).view(parameter.shape)
            parameter.data = (torch.sin(at * 12.9898 + number) * 43758.5453).frac().float() * parameter.shape[1] ** -0.5
    model.save_pretrained(folder)
    return folder


def write_sentence_model(folder: Path, pooling: dict[str, Any], last: str = "Normalize") -> Path:
    """Write a folder of sentence-transformers: the encoder, the pooling of its vectors, and a last module."""
    write_encoder(folder)
    kinds = {"Transformer": "", "Pooling": "1_Pooling", last: f"2_{last}"}
    parts = [
        {"idx": at, "name": str(at), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for at, (kind, path) in enumerate(kinds.items())
    ]
    (folder / "modules.json").write_text(json.dumps(parts))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 8, "do_lower_case": False}))
    for path in list(kinds.values())[1:]:
        (folder / path).mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 32, **pooling}))
    return folder
