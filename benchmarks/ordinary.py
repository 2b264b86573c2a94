"""The ordinary recipe to compare with: Hugging Face Trainer, FSDP2 through accelerate, padded batches, SDPA.

    torchrun --nproc-per-node 4 benchmarks/ordinary.py --model 8b --data set --steps 6 --out run [--lora] [--packed]

Written as the guides write it: the processor runs in the collator on the files themselves, activations are
checkpointed, AdamW is fused, eight loader workers. --packed is what its best users do: samples side by side with
variable-length attention (in the vision tower too) and logits of supervised tokens only. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "src")]

import torch
import torch.distributed as dist
import torch.nn.functional as F
from accelerate import DistributedType, PartialState
from packed_attention import install_packed_attention, set_bounds
from torch.distributed.fsdp import FSDPModule
from transformers import (
    AutoProcessor,
    Qwen3VLForConditionalGeneration,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers.video_utils import load_video

from vidqa.engine.flops import flops_model, peak_flops
from vidqa.families.qwen3_vl import rope_positions

IGNORE = -100
LORA_TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
LAYERS = ["Qwen3VLTextDecoderLayer", "Qwen3VLVisionBlock"]
COUNTS = ("samples", "tokens", "pairs", "supervised", "patches", "patch_pairs")


def conversation(record: dict[str, Any]) -> list[dict[str, Any]]:
    """A record as messages of transformers' chat templates."""
    question, answer = (turn["value"] for turn in record["conversations"])
    asked = [{"type": "video"}, {"type": "text", "text": question.removeprefix("<video>\n")}]
    return [{"role": "user", "content": asked}, {"role": "assistant", "content": [{"type": "text", "text": answer}]}]


def decoder() -> str:
    """torchcodec, which transformers prefers, where it and the FFmpeg libraries it needs are there; else PyAV."""
    try:
        importlib.import_module("torchcodec.decoders")
        importlib.import_module("torchcodec._internally_replaced_utils").load_core_libraries()
    except (ImportError, OSError, RuntimeError, AttributeError):
        return "pyav"
    return "torchcodec"


class PaddedCollator:
    """Samples to one padded batch: template, decoding, resizing and tokens by the processor, labels by the turn."""

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
    """Each item is a list of records that become one row; positions start again with every sample."""

    def __call__(self, packs: list[list[dict[str, Any]]]) -> dict[str, Any]:
        (pack,) = packs
        parts = [dict(self.process([record])) for record in pack]
        ids = [part["input_ids"][0] for part in parts]
        video, image = (self.processor.tokenizer.convert_tokens_to_ids(f"<|{k}_pad|>") for k in ("video", "image"))
        merge = self.processor.video_processor.merge_size
        positions = []
        for part, tokens in zip(parts, ids, strict=True):
            grids = [tuple(grid) for grid in part["video_grid_thw"].tolist()]
            rope = torch.from_numpy(rope_positions(tokens.numpy(), image, video, [], grids, merge))
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
            "lengths": lengths,  # numbers, not a tensor: nothing waits for the device to tell them
        }
        return {**batch, "counts": counts_of(batch, torch.tensor(lengths))}


def counts_of(batch: dict[str, torch.Tensor], lengths: torch.Tensor) -> torch.Tensor:
    """float64 [6], as COUNTS names them; padding is not counted."""
    lengths, grids = lengths.double(), batch["video_grid_thw"].double()
    frames = grids[:, 1] * grids[:, 2]
    supervised = (batch["labels"] != IGNORE).sum().double()
    counted = [lengths.sum(), lengths.square().sum(), supervised, (grids[:, 0] * frames).sum()]
    return torch.stack([lengths.new_tensor(len(lengths)), *counted, (grids[:, 0] * frames.square()).sum()])


class MeasuredTrainer(Trainer):
    """The stock Trainer, which also adds up what it was given and how long it waited for it."""

    counted: torch.Tensor
    waited = 0.0

    def get_batch_samples(self, *words: Any, **named: Any) -> Any:
        started = time.perf_counter()
        batches = super().get_batch_samples(*words, **named)
        self.waited += time.perf_counter() - started
        return batches

    def training_step(self, model: Any, inputs: dict[str, Any], *words: Any) -> torch.Tensor:
        counts = inputs.pop("counts").to(self.args.device, non_blocking=True)
        self.counted = counts if not hasattr(self, "counted") else self.counted + counts
        return super().training_step(model, inputs, *words)


class PackedTrainer(MeasuredTrainer):
    """Attention inside the samples of a pack, logits of supervised tokens only."""

    def compute_loss(self, model: Any, inputs: dict[str, Any], *_: Any, **__: Any) -> torch.Tensor:
        labels, at = inputs.pop("labels"), inputs.pop("predict_at")
        set_bounds(inputs.pop("lengths"), labels.device)
        logits = model(**inputs, logits_to_keep=at).logits
        return F.cross_entropy(logits[0].float(), labels[at + 1])


class Stopwatch(TrainerCallback):
    """Seconds, waiting and counts over all ranks of every optimizer step."""

    def __init__(self) -> None:
        self.trainer: Any = None
        self.steps: list[dict[str, float]] = []

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.began, self.last = time.time(), time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        now = time.perf_counter()
        totals = self.trainer.counted.clone()
        if dist.is_initialized():
            dist.all_reduce(totals)
        step = {"seconds": now - self.last, "waited": self.trainer.waited}
        self.steps.append({**step, **dict(zip(COUNTS, totals.tolist(), strict=True))})
        self.trainer.counted, self.trainer.waited = torch.zeros_like(totals), 0.0
        if len(self.steps) == 1 and torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()  # what loading took is not what training takes
        self.last = time.perf_counter()


def load(folder: Path, device: torch.device, *, lora: bool, packed: bool) -> Any:
    model = Qwen3VLForConditionalGeneration.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation="sdpa")
    model.config.use_cache = model.config.text_config.use_cache = False  # recomputed layers would fill a cache twice
    model.to(device)
    if packed:
        install_packed_attention(model)
    if not lora:
        return model
    from peft import LoraConfig, get_peft_model

    targets = rf"model\.language_model\..*\.({'|'.join(LORA_TARGETS)})"
    return get_peft_model(model, LoraConfig(r=16, lora_alpha=32, lora_dropout=0.05, target_modules=targets))


def arguments(options: argparse.Namespace) -> TrainingArguments:
    sharding = {
        "version": 2,
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "transformer_layer_cls_to_wrap": LAYERS,
        "activation_checkpointing": True,
        "reshard_after_forward": True,
        "state_dict_type": "SHARDED_STATE_DICT",
    }
    return TrainingArguments(
        output_dir=str(options.out),
        max_steps=options.steps,
        per_device_train_batch_size=1 if options.packed else 2,
        gradient_accumulation_steps=options.accumulate,
        bf16=True,
        use_cpu=not torch.cuda.is_available(),
        optim="adamw_torch_fused",
        learning_rate=1e-4 if options.lora else 1e-5,
        max_grad_norm=1.0,
        fsdp=True,
        fsdp_config=sharding,
        dataloader_num_workers=options.workers,
        dataloader_persistent_workers=True,
        remove_unused_columns=False,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


def shard_without_gpus() -> None:
    """accelerate shards on GPUs only; a rehearsal on CPUs is to go the same way."""
    PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU


def packs_of(records: list[dict[str, Any]], lengths: list[int], budget: int) -> list[list[dict[str, Any]]]:
    """Records side by side up to `budget` tokens: the longest first, each into the fullest pack with room."""
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
    from types import SimpleNamespace

    from vidqa.data import load_records
    from vidqa.samples import Planner, Prompting

    samples, problems = Planner(model, SimpleNamespace(fps=fps), Prompting()).plan(
        load_records(str(root / "annotations.json"), str(root))
    )
    assert not problems, problems[:3]
    return [sample.length for sample in samples]


def summary(stopwatch: Stopwatch, model: Any, options: argparse.Namespace) -> dict[str, Any]:
    """The steps as measured, each with its work in floating-point operations by both ways of counting."""
    flops = flops_model(model.config, vision_trains=not options.lora, decoder_trains=not options.lora)
    for step in stopwatch.steps:
        linear = flops.per_token * step["tokens"] + flops.per_supervised * step["supervised"]
        vision = flops.per_patch * step["patches"] + flops.per_patch_pair * step["patch_pairs"]
        step["flops"] = linear + vision + flops.per_pair * step["pairs"]
        step["flops_unhalved"] = step["flops"] + flops.per_pair * step["pairs"]
    cuda = torch.cuda.is_available()
    return {
        "ranks": dist.get_world_size() if dist.is_initialized() else 1,
        "peak_flops": peak_flops(torch.device("cuda" if cuda else "cpu")),
        "sharded_units": sum(isinstance(module, FSDPModule) for module in model.modules()),
        "trained": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "memory_gib": torch.cuda.max_memory_allocated() / 1024**3 if cuda else None,
        "began": stopwatch.began,  # wall-clock time at which the first step began
        "steps": stopwatch.steps,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True, help="a folder that video_set.py wrote")
    parser.add_argument("--out", type=Path, required=True, help="result.json goes here")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--accumulate", type=int, default=1, help="batches per optimizer step and rank")
    parser.add_argument("--fps", type=float, default=1.4)
    parser.add_argument("--pack-tokens", type=int, default=16384)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--lora", action="store_true")
    parser.add_argument("--packed", action="store_true")
    options = parser.parse_args()
    setting = arguments(options)
    torch.zeros(1, device=setting.device)  # its first use joins the process group and chooses this rank's device
    if not torch.cuda.is_available():
        shard_without_gpus()
    torch.manual_seed(0)
    records = json.loads((options.data / "annotations.json").read_text())
    kind: tuple[Any, Any] = (MeasuredTrainer, PaddedCollator)
    if options.packed:
        kind = (PackedTrainer, PackedCollator)
        records = packs_of(records, planned_lengths(options.model, options.data, options.fps), options.pack_tokens)
    model = load(options.model, setting.device, lora=options.lora, packed=options.packed)
    stopwatch = Stopwatch()
    collator = kind[1](options.model, options.data, options.fps)
    trainer = kind[0](model=model, args=setting, train_dataset=records, data_collator=collator, callbacks=[stopwatch])
    stopwatch.trainer = trainer
    trainer.train()
    if trainer.is_world_process_zero():
        result = summary(stopwatch, trainer.model, options)
        result["losses"] = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "result.json").write_text(json.dumps(result, indent=2))
        print(json.dumps({key: value for key, value in result.items() if key != "steps"}), flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
