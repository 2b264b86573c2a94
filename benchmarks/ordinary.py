"""The ordinary recipe to compare with: Hugging Face Trainer, FSDP2 through accelerate, padded batches, SDPA.

    torchrun --nproc-per-node 4 benchmarks/ordinary.py --model 8b --data set --steps 6 --out run [--lora] [--packed]

Written as the guides write it: the processor runs in the collator on the files themselves, activations are
checkpointed, AdamW is fused, eight loader workers. --packed is what its best users do: samples side by side with
variable-length attention (in the vision tower too) and logits of supervised tokens only. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "src")]

import torch
import torch.distributed as dist
import torch.nn.functional as F
from accelerate import DistributedType, PartialState
from packed_attention import install_packed_attention, set_bounds
from processor_batches import COUNTS, PackedCollator, PaddedCollator, packs_of, planned_lengths
from torch.distributed.fsdp import FSDPModule
from transformers import (
    Qwen3VLForConditionalGeneration,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from vidqa.engine.families import family_of
from vidqa.engine.meter import peak_flops
from vidqa.planning.packing.sharing import Work

LORA_TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
LAYERS = ["Qwen3VLTextDecoderLayer", "Qwen3VLVisionBlock"]


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
    return get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules=targets))


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


def summary(stopwatch: Stopwatch, model: Any, options: argparse.Namespace) -> dict[str, Any]:
    """The steps as measured, each with its work in floating-point operations by both ways of counting."""
    flops = family_of(model).flops(model.config, vision_trains=not options.lora, decoder_trains=not options.lora)
    for step in stopwatch.steps:
        work = Work(**{field.name: step[field.name] for field in fields(Work) if field.name in step})
        step |= {"flops": flops.of([work]), "flops_unhalved": flops.of([work], halved=False)}
    cuda = torch.cuda.is_available()
    return {
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
    parser.add_argument("--data", type=Path, required=True, help="a folder that video_set.write_set made")
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
