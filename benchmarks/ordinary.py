"""The ordinary recipe to compare with: Hugging Face Trainer, FSDP2 through accelerate, padded batches, SDPA.

    torchrun --nproc-per-node 4 benchmarks/ordinary.py --model 8b --data set --steps 6 --out run [--lora] [--packed]
    torchrun --nproc-per-node 1 benchmarks/ordinary.py ... --careful 8192-kept 16384-kept 16384

Written as in the guides: the processor runs in the collator on the files themselves, activations are
checkpointed, AdamW is fused, eight loader workers. --packed is the best practice: samples side by side with
variable-length attention (in the vision tower too) and logits of supervised tokens only. --careful adds fused parts
(careful.py), adapters without FSDP, weights that stay gathered, and settings to try: tokens of a pack, with "-kept"
for no recomputation. The fastest of those that fit is the result. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import gc
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
from careful import Try, install_fused_parts, keep_frozen_tower_plain
from packed_attention import install_packed_attention, set_bounds
from processor_batches import COUNTS, PackedCollator, PaddedCollator, packs_of, planned_lengths
from torch.distributed.fsdp import FSDPModule
from transformers import (
    BitsAndBytesConfig,
    Qwen3VLForConditionalGeneration,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from vidqa.engine.families import family_of
from vidqa.engine.training.learner import peak_flops
from vidqa.planning.prefix_sharing import Workload

LORA_TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
LAYERS = ["Qwen3VLTextDecoderLayer", "Qwen3VLVisionBlock"]


class MeasuredTrainer(Trainer):
    """The stock Trainer, which also sums the counts of its batches and the time it waited for them."""

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


class CarefulTrainer(MeasuredTrainer):
    """`PackedTrainer` with fused parts; the loss is the mean over all supervised tokens of the step."""

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], *_: Any, num_items_in_batch: Any = None, **__: Any
    ) -> torch.Tensor:
        labels, at = inputs.pop("labels"), inputs.pop("predict_at")
        set_bounds(inputs.pop("lengths"), labels.device)
        count = len(at) if num_items_in_batch is None else num_items_in_batch / self.accelerator.num_processes
        return model(**inputs, predict_at=at, targets=labels[at + 1]) / count


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
            torch.cuda.reset_peak_memory_stats()  # memory of loading is not memory of training
        self.last = time.perf_counter()


def load(
    folder: Path, device: torch.device, *, lora: bool, packed: bool, careful: bool = False, nf4: bool = False
) -> Any:
    few_bits: dict[str, Any] = {}
    if nf4:
        four_bits = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.bfloat16,
            llm_int8_skip_modules=["model.visual", "lm_head"],
        )
        few_bits = {"quantization_config": four_bits, "device_map": str(device)}
    model = Qwen3VLForConditionalGeneration.from_pretrained(
        folder, dtype=torch.bfloat16, attn_implementation="sdpa", **few_bits
    )
    model.config.use_cache = model.config.text_config.use_cache = False  # recomputed layers would fill a cache twice
    if not nf4:
        model.to(device)
    if packed:
        install_packed_attention(model)
    if careful:
        install_fused_parts(model, compiled=device.type == "cuda")
    if not lora:
        return model
    if careful:
        keep_frozen_tower_plain(model.model.visual)
    from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training

    if nf4:  # as in the guides: norms in float32, inputs that require gradients
        model = prepare_model_for_kbit_training(model)
    targets = rf"model\.language_model\..*\.({'|'.join(LORA_TARGETS)})"
    return get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules=targets))


def arguments(options: argparse.Namespace, *, recompute: bool = True, accumulate: int) -> TrainingArguments:
    sharding = {
        "version": 2,
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "transformer_layer_cls_to_wrap": LAYERS,
        "activation_checkpointing": recompute,
        "reshard_after_forward": not options.careful,
        "state_dict_type": "SHARDED_STATE_DICT",
    }
    spread: dict[str, Any] = {"fsdp": True, "fsdp_config": sharding}
    if options.careful and options.lora:  # every GPU holds the model, and exchanges gradients of adapters
        spread = {"ddp_find_unused_parameters": False, "gradient_checkpointing": recompute}
    if options.nf4:
        spread = {"gradient_checkpointing": recompute}
    return TrainingArguments(
        output_dir=str(options.out),
        max_steps=options.steps,
        per_device_train_batch_size=1 if options.packed or options.careful else 2,
        gradient_accumulation_steps=accumulate,
        bf16=True,
        use_cpu=not torch.cuda.is_available(),
        optim="adamw_torch_fused",
        learning_rate=1e-4 if options.lora else 1e-5,
        max_grad_norm=1.0,
        **spread,
        dataloader_num_workers=options.workers,
        dataloader_persistent_workers=True,
        remove_unused_columns=False,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


def shard_without_gpus() -> None:
    """Make accelerate, which shards only on GPUs, shard on CPUs in a rehearsal, too."""
    PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU


def summary(stopwatch: Stopwatch, model: Any, options: argparse.Namespace) -> dict[str, Any]:
    """The measured steps, each with its FLOPs by both ways of counting."""
    flops = family_of(model).flops(model.config, vision_trains=not options.lora, decoder_trains=not options.lora)
    for step in stopwatch.steps:
        work = Workload(**{field.name: step[field.name] for field in fields(Workload) if field.name in step})
        step |= {"flops": flops.training_flops([work]), "flops_unhalved": flops.training_flops([work], halved=False)}
    cuda = torch.cuda.is_available()
    return {
        "peak_flops": peak_flops(torch.device("cuda" if cuda else "cpu")),
        "sharded_units": sum(isinstance(module, FSDPModule) for module in model.modules()),
        "trained": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "memory_gib": torch.cuda.max_memory_allocated() / 1024**3 if cuda else None,
        "began": stopwatch.began,  # wall-clock time at which the first step began
        "steps": stopwatch.steps,
    }


def measure(options: argparse.Namespace, chosen: Try | None) -> dict[str, Any] | None:
    """Train some steps, of the careful recipe with the settings `chosen`; returns the measurements on rank 0."""
    records, accumulate = json.loads((options.data / "annotations.json").read_text()), options.accumulate
    kind: tuple[Any, Any] = (MeasuredTrainer, PaddedCollator)
    if options.packed or chosen:
        budget = chosen.pack_tokens if chosen else options.pack_tokens
        lengths = planned_lengths(options.model, options.data, options.fps)
        if chosen:
            accumulate = max(1, round(options.samples * sum(lengths) / len(lengths) / budget))
        kind = (CarefulTrainer if chosen else PackedTrainer, PackedCollator)
        records = packs_of(records, lengths, budget)
    setting = arguments(options, recompute=chosen is None or chosen.recompute, accumulate=accumulate)
    packed = bool(options.packed or chosen)
    how = {"lora": options.lora, "packed": packed, "careful": chosen is not None, "nf4": options.nf4}
    model = load(options.model, setting.device, **how)
    stopwatch = Stopwatch()
    collator = kind[1](options.model, options.data, options.fps)
    trainer = kind[0](model=model, args=setting, train_dataset=records, data_collator=collator, callbacks=[stopwatch])
    stopwatch.trainer = trainer
    trainer.train()
    if not trainer.is_world_process_zero():
        return None
    result = summary(stopwatch, trainer.model, options)
    result["losses"] = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return result


def fastest(options: argparse.Namespace) -> dict[str, Any] | None:
    """The result of the fastest settings that fit, with all that were tried. On several GPUs only the first are tried:
    a rank that runs out of memory leaves the others waiting."""
    best, tried = None, []
    for words in options.careful if not dist.is_initialized() or dist.get_world_size() == 1 else options.careful[:1]:
        try:
            result = measure(options, Try.parse(words))
        except torch.OutOfMemoryError:
            tried.append({"settings": words, "failed": "out of memory"})
        else:
            if result is None:
                continue
            counted = result["steps"][1:]
            result["settings"] = words
            speed = sum(step["tokens"] for step in counted) / sum(step["seconds"] for step in counted)
            tried.append({"settings": words, "tokens/s": speed, "memory_gib": result["memory_gib"]})
            if best is None or speed > max(one.get("tokens/s", 0.0) for one in tried[:-1]):
                best = result
            write(options, {**best, "tried": tried})  # a program that is stopped leaves its measurements
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    if best is None and tried:
        sys.exit(f"nothing fits of {', '.join(options.careful)}")
    return best and {**best, "tried": tried}


def write(options: argparse.Namespace, result: dict[str, Any]) -> None:
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "result.json").write_text(json.dumps(result, indent=2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True, help="a folder that video_set.write_set made")
    parser.add_argument("--out", type=Path, required=True, help="result.json goes here")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--accumulate", type=int, default=1, help="batches per optimizer step and rank")
    parser.add_argument("--samples", type=int, default=8, help="of a step and rank, about which --careful fills packs")
    parser.add_argument("--fps", type=float, default=1.4)
    parser.add_argument("--pack-tokens", type=int, default=16384)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--lora", action="store_true")
    parser.add_argument("--nf4", action="store_true", help="with --lora, on one GPU: a base in 4 bits by bitsandbytes")
    parser.add_argument("--packed", action="store_true")
    parser.add_argument("--careful", nargs="+", metavar="TOKENS[-kept]", default=[])
    options = parser.parse_args()
    device = arguments(options, accumulate=1).device
    torch.zeros(1, device=device)  # its first use joins the process group and chooses this rank's device
    if not (torch.cuda.is_available() or options.nf4 or (options.careful and options.lora)):
        shard_without_gpus()
    torch.manual_seed(0)
    result = fastest(options) if options.careful else measure(options, None)
    if result is not None:
        write(options, result)
        print(json.dumps({key: value for key, value in result.items() if key != "steps"}), flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
