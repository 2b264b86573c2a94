"""Model folders of real size with random weights, for the benchmarks.

python benchmarks/shapes.py --shape 8b --out /tmp/8b
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / part) for part in ("src", "tests")]

import tiny_qwen2_5_vl
import torch
from safetensors.torch import save_file
from video_set import corpus

from vidqa.core.files import write_json
from vidqa.engine.families import tiny_qwen3_vl
from vidqa.engine.families.qwen2_5_vl import QWEN2_5_VL
from vidqa.engine.families.qwen3_vl import QWEN3_VL

LONGEST_EDGE = 25_165_824  # frames x height x width of one video, as in the published processors of Qwen3-VL
FRAME_PIXELS = 768 * 28 * 28  # of one frame, as in those of Qwen2.5-VL
REASON1_VISION = {
    "depth": 32,
    "hidden_size": 1280,
    "intermediate_size": 3420,
    "window_size": 112,
    "fullatt_block_indexes": [7, 15, 23, 31],
}
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
    "8b-third": {  # layers as wide as those of 8b, fewer of them
        "text": {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 12, "num_attention_heads": 32},
        "vision": {"depth": 9, "hidden_size": 1152, "intermediate_size": 4304, "deepstack_visual_indexes": [2, 5, 8]},
    },
    "4b": {
        "text": {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32},
        "vision": {
            "depth": 24,
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "deepstack_visual_indexes": [5, 11, 17],
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
    "reason1-7b": {
        "text": {
            "hidden_size": 3584,
            "intermediate_size": 18944,
            "num_hidden_layers": 28,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "vocab_size": 152064,
        },
        "vision": REASON1_VISION,
    },
    "reason1-3b": {  # Qwen2.5-VL-3B
        "text": {
            "hidden_size": 2048,
            "intermediate_size": 11008,
            "num_hidden_layers": 36,
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "vocab_size": 151936,
        },
        "vision": REASON1_VISION,
    },
}
TIED = ("2b", "4b", "reason1-3b")


def config_of(shape: str, corpus: list[str]) -> tuple[Any, Any]:
    """The config of a shape and a processor for it. The vocabulary has its real size; only its first ids are used."""
    return _reason1(shape, corpus) if shape.startswith("reason1") else _reason2(shape, corpus)


def _reason2(shape: str, corpus: list[str]) -> tuple[Any, Any]:
    """Config and processor of Qwen3-VL, with "tiny" of a small one."""
    processor = tiny_qwen3_vl.tiny_processor(corpus, max_pixels=LONGEST_EDGE)
    config = tiny_qwen3_vl.tiny_config(processor.tokenizer, tie=shape in TIED)
    if shape == "tiny":
        return config, processor
    more = {"vocab_size": 151936, "num_key_value_heads": 8, "head_dim": 128}
    return _sized(config, shape, more, [24, 20, 20], {"num_position_embeddings": 2304}), processor


def _reason1(shape: str, corpus: list[str]) -> tuple[Any, Any]:
    """Config and processor of Qwen2.5-VL."""
    processor = tiny_qwen2_5_vl.tiny_processor(corpus, max_pixels=FRAME_PIXELS)
    config = tiny_qwen2_5_vl.tiny_config(processor.tokenizer, tie=shape in TIED)
    return _sized(config, shape, {}, [16, 24, 24], {}), processor


def _sized(tiny: Any, shape: str, text: dict[str, Any], sections: list[int], vision: dict[str, Any]) -> Any:
    """A tiny config with the sizes of a shape."""
    values, sizes = tiny.to_dict(), SHAPES[shape]
    rope = {**values["text_config"]["rope_parameters"], "mrope_section": sections}
    values["text_config"] |= {"initializer_range": 0.02, "rope_parameters": rope, **text, **sizes["text"]}
    values["text_config"].pop("layer_types", None)
    width = sizes["text"]["hidden_size"]
    values["vision_config"] |= {"num_heads": 16, "out_hidden_size": width, "initializer_range": 0.02, **vision}
    values["vision_config"] |= sizes["vision"]
    return type(tiny)(**values)


def write_random_model(shape: str, folder: Path, corpus: list[str], device: str) -> Path:
    """Write a model folder in bfloat16; norms are one, all other weights are drawn with standard deviation 0.02."""
    config, processor = config_of(shape, corpus)
    folder.mkdir(parents=True, exist_ok=True)
    model_class = (QWEN2_5_VL if config.model_type in QWEN2_5_VL.tables.model_types else QWEN3_VL).model_class
    with torch.device("meta"):
        model = model_class(config)
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
    config.architectures = [model_class.__name__]
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
