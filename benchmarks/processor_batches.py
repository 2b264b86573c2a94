"""Collators of the ordinary recipe: transformers' own processor builds padded or packed batches from the files.

Every batch has `counts` of its content without padding, so that padding is never counted as work.
"""

from __future__ import annotations

import importlib
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from transformers import AutoProcessor
from transformers.video_utils import load_video

from vidqa.data import load_records
from vidqa.families.qwen3_vl import rope_positions
from vidqa.planning.samples import Planner, Prompting

IGNORE = -100
COUNTS = ("samples", "tokens", "pairs", "supervised", "patches", "patch_pairs")


def conversation(record: dict[str, Any]) -> list[dict[str, Any]]:
    """A record as messages of transformers' chat templates."""
    question, answer = (turn["value"] for turn in record["conversations"])
    content = [{"type": "video"}, {"type": "text", "text": question.removeprefix("<video>\n")}]
    return [{"role": "user", "content": content}, {"role": "assistant", "content": [{"type": "text", "text": answer}]}]


def decoder() -> str:
    """The decoder: torchcodec, which transformers prefers, if it and its FFmpeg libraries are installed, else PyAV."""
    try:
        importlib.import_module("torchcodec.decoders")
        importlib.import_module("torchcodec._internally_replaced_utils").load_core_libraries()
    except (ImportError, OSError, RuntimeError, AttributeError):
        return "pyav"
    return "torchcodec"


class PaddedCollator:
    """Builds one padded batch of samples: template, decoding, resizing and tokens by the processor, labels by turn."""

    def __init__(self, model: Path, root: Path, fps: float) -> None:
        self.processor = AutoProcessor.from_pretrained(model)
        self.processor.tokenizer.padding_side = "right"
        self.root, self.fps, self.decoder = root, fps, decoder()
        encode = self.processor.tokenizer.encode
        self.opening = encode("<|im_start|>assistant\n", add_special_tokens=False)
        self.closing = encode("<|im_end|>", add_special_tokens=False)[0]

    def __call__(self, records: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        batch = dict(self.process(records))
        batch["labels"] = self.labels(batch["input_ids"])
        batch["counts"] = counts_of(batch, batch["attention_mask"].sum(1))
        return batch

    def process(self, records: list[dict[str, Any]]) -> Any:
        texts = [self.processor.apply_chat_template(conversation(record), tokenize=False) for record in records]
        chosen = partial(self.processor.video_processor.sample_frames, fps=self.fps)
        paths = [str(self.root / record["video"]) for record in records]
        loaded = [load_video(path, backend=self.decoder, sample_indices_fn=chosen) for path in paths]
        videos, metadata = zip(*loaded, strict=True)
        return self.processor(
            text=texts,
            videos=list(videos),
            video_metadata=list(metadata),
            do_sample_frames=False,
            padding=True,
            return_tensors="pt",
        )

    def labels(self, input_ids: torch.Tensor) -> torch.Tensor:
        """The answer and the token that ends it; everything else is ignored."""
        labels = torch.full_like(input_ids, IGNORE)
        for row, ids in enumerate(input_ids.tolist()):
            for start in range(len(ids) - len(self.opening)):
                if ids[start : start + len(self.opening)] == self.opening:
                    first = start + len(self.opening)
                    end = ids.index(self.closing, first) + 1
                    labels[row, first:end] = input_ids[row, first:end]
        return labels


class PackedCollator(PaddedCollator):
    """Packs each item, a list of records, into one row; positions start again with every sample."""

    def __call__(self, packs: list[list[dict[str, Any]]]) -> dict[str, Any]:
        (pack,) = packs
        parts = [dict(self.process([record])) for record in pack]
        ids = [part["input_ids"][0] for part in parts]
        video, image = (self.processor.tokenizer.convert_tokens_to_ids(f"<|{k}_pad|>") for k in ("video", "image"))
        geometry: Any = SimpleNamespace(video=self.processor.video_processor)
        positions = []
        for part, tokens in zip(parts, ids, strict=True):
            plans = [SimpleNamespace(kind="video", grid=tuple(grid)) for grid in part["video_grid_thw"].tolist()]
            rope = torch.from_numpy(rope_positions(tokens.numpy(), image, video, plans, geometry))
            positions.append(torch.cat([torch.arange(len(tokens))[None], rope]))
        lengths = [len(tokens) for tokens in ids]
        labels = torch.cat([self.labels(tokens[None])[0] for tokens in ids])
        batch: dict[str, Any] = {
            "input_ids": torch.cat(ids)[None],
            "labels": labels,
            "predict_at": (labels[1:] != IGNORE).nonzero()[:, 0],
            "position_ids": torch.cat(positions, dim=1)[:, None],
            "pixel_values_videos": torch.cat([part["pixel_values_videos"] for part in parts]),
            "video_grid_thw": torch.cat([part["video_grid_thw"] for part in parts]),
            "mm_token_type_ids": torch.cat([part["mm_token_type_ids"][0] for part in parts])[None],
            "lengths": lengths,  # numbers, not a tensor: reading them needs no wait for the device
        }
        return {**batch, "counts": counts_of(batch, torch.tensor(lengths))}


def counts_of(batch: dict[str, torch.Tensor], lengths: torch.Tensor) -> torch.Tensor:
    """float64 [6] in the order of COUNTS; padding is not counted."""
    lengths, grids = lengths.double(), batch["video_grid_thw"].double()
    frames = grids[:, 1] * grids[:, 2]
    supervised = (batch["labels"] != IGNORE).sum().double()
    counted = [lengths.sum(), lengths.square().sum(), supervised, (grids[:, 0] * frames).sum()]
    return torch.stack([lengths.new_tensor(len(lengths)), *counted, (grids[:, 0] * frames.square()).sum()])


def packs_of(records: list[dict[str, Any]], lengths: list[int], budget: int) -> list[list[dict[str, Any]]]:
    """Pack records up to `budget` tokens: the longest first, each into the fullest pack with room."""
    packs: list[tuple[int, list[dict[str, Any]]]] = []
    for index in sorted(range(len(records)), key=lambda i: -lengths[i]):
        room = [n for n, (used, _) in enumerate(packs) if used + lengths[index] <= budget]
        if room:
            fullest = max(room, key=lambda n: packs[n][0])
            packs[fullest] = (packs[fullest][0] + lengths[index], [*packs[fullest][1], records[index]])
        else:
            packs.append((lengths[index], [records[index]]))
    return [pack for _, pack in packs]


def planned_lengths(model: Path, root: Path, fps: float) -> list[int]:
    """Tokens of every record of a set, from metadata alone."""
    samples, problems = Planner(model, SimpleNamespace(fps=fps), Prompting()).plan(
        load_records(str(root / "annotations.json"), str(root))
    )
    assert not problems, problems[:3]
    return [sample.length for sample in samples]
