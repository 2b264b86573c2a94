"""Model folders of real size with random weights, and clips to feed them: what the benchmarks run on.

python benchmarks/shapes.py --shape 8b --out /tmp/8b
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "src")]

import torch
from safetensors.torch import save_file
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration
from video_set import corpus

from vidqa.contract.files import write_json
from vidqa.engine.families.tiny_qwen3_vl import tiny_config, tiny_processor

LONGEST_EDGE = 25_165_824  # frames x height x width of one video, as the published processors have it
SHAPES: dict[str, dict[str, dict[str, Any]]] = {
    "8b": {
        "text": {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32},
        "vision": {
            "depth": 27,
            "hidden_size": 1152,
            "intermediate_size": 4304,
            "deepstack_visual_indexes": [8, 16, 24],
        },
    },
    "2b": {
        "text": {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28, "num_attention_heads": 16},
        "vision": {
            "depth": 24,
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "deepstack_visual_indexes": [5, 11, 17],
        },
    },
}


def config_of(shape: str, corpus: list[str]) -> tuple[Qwen3VLConfig, Any]:
    """The config of a shape and a processor for it. The vocabulary has its real size; only its first ids are used."""
    processor = tiny_processor(corpus, max_pixels=LONGEST_EDGE)
    if shape == "tiny":
        return tiny_config(processor.tokenizer), processor
    values = tiny_config(processor.tokenizer, tie=shape == "2b").to_dict()
    text, vision = SHAPES[shape]["text"], SHAPES[shape]["vision"]
    values["text_config"] |= {
        "vocab_size": 151936,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "initializer_range": 0.02,
        "rope_parameters": {**values["text_config"]["rope_parameters"], "mrope_section": [24, 20, 20]},
        **text,
    }
    values["text_config"].pop("layer_types", None)
    values["vision_config"] |= {
        "num_heads": 16,
        "out_hidden_size": text["hidden_size"],
        "num_position_embeddings": 2304,
        "initializer_range": 0.02,
        **vision,
    }
    return Qwen3VLConfig(**values), processor


def write_random_model(shape: str, folder: Path, corpus: list[str], device: str) -> Path:
    """A complete model folder in bfloat16; norms are one, everything else is drawn with standard deviation 0.02."""
    config, processor = config_of(shape, corpus)
    folder.mkdir(parents=True, exist_ok=True)
    with torch.device("meta"):
        model = Qwen3VLForConditionalGeneration(config)
    names = {name: parameter.shape for name, parameter in model.named_parameters()}
    if config.tie_word_embeddings:
        names.pop("lm_head.weight", None)
    generator = torch.Generator(device).manual_seed(0)
    shards: list[dict[str, torch.Tensor]] = [{}]
    for name, size in names.items():
        if sum(t.nbytes for t in shards[-1].values()) > 4 * 1024**3:
            shards.append({})
        drawn = torch.empty(size, dtype=torch.bfloat16, device=device)
        drawn = (
            drawn.fill_(1)
            if "norm" in name and name.endswith("weight")
            else drawn.normal_(0, 0.02, generator=generator)
        )
        shards[-1][name] = drawn.cpu()
    weight_map = {}
    for number, shard in enumerate(shards, start=1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        save_file(shard, folder / file, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(shard, file))
    write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})
    config.architectures = ["Qwen3VLForConditionalGeneration"]
    config.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--shape", choices=["tiny", *SHAPES], required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    write_random_model(options.shape, options.out, corpus(), "cuda" if torch.cuda.is_available() else "cpu")
    print(options.out)
