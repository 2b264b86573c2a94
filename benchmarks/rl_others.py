"""The reinforcement learning step of benchmarks/rl.py in other implementations: the ordinary recipe, and TRL.

TRL's GRPOTrainer takes images but no videos, so each pair of frames, which is one temporal patch of a video, becomes
one image: equally many tokens, and equal attention inside each image. Completions are drawn by transformers' generate.
TRL, datasets, dill and multiprocess must be installed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from PIL import Image

from vidqa.data import load_records
from vidqa.engine.data.collate import stock_inputs
from vidqa.engine.data.frames import FrameSource
from vidqa.engine.export import load_export
from vidqa.engine.families import torch_half
from vidqa.engine.model import DTYPES
from vidqa.planning.rollouts import prompt_planner

STEPS = 3  # the first is not counted
MICRO_ROWS = 8  # completions of a backward


def timed(work: Any, repeats: int = 20) -> float:
    """Median seconds of `work`."""
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return median(seconds)


def ordinary(spec: Any, count: int) -> dict[str, Any]:
    """Time one step as it is usually written: transformers' generate, then padded rows with their prompt, two at a
    time. Only `count` questions are computed, one after the other as all would be, and their seconds scaled to all."""
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    folder, dtype = Path(spec.policy.model_name_or_path), DTYPES[spec.train.param_dtype]
    planner = prompt_planner(spec, folder)
    data = spec.custom.train_dataset
    samples, _ = planner.plan(load_records(data.annotation_path, data.media_path))
    source = FrameSource(8, 300.0, None)
    frames, _ = source.collect(source.request(samples))
    source.close()
    model = load_export(folder, None, dtype, device)
    if spec.policy.lora is not None:
        lora = spec.policy.lora
        model = get_peft_model(
            model, LoraConfig(r=lora.r, lora_alpha=lora.lora_alpha, target_modules=lora.target_modules)
        )
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    family = torch_half(planner.family)
    banned = list(family.never_drawn(model.config, len(planner.chat.tokens.core.get_vocab())))
    optimizer = torch.optim.AdamW(trained, lr=1e-6, fused=device.type == "cuda")
    size, answer = spec.rollout.n_generation, spec.rollout.max_response_length
    every = spec.train.train_batch_per_replica // size
    batch = samples[: min(count, every)]
    scale = every / len(batch)

    def rollout() -> list[torch.Tensor]:
        model.eval()
        drawn = []
        for sample, media in zip(batch, frames, strict=False):
            inputs = stock_inputs(planner, [planner.encode(sample).token_ids], [sample.plans], [media], device)
            settings = {"do_sample": True, "top_k": 0, "temperature": 1.0, "pad_token_id": planner.chat.pad_id}
            settings |= {"num_return_sequences": size, "max_new_tokens": answer, "suppress_tokens": banned}
            drawn.append(model.generate(**inputs, **settings))
        return drawn

    def update(drawn: list[torch.Tensor]) -> None:
        model.train()
        for sample, media, rows in zip(batch, frames, drawn, strict=False):
            for pair in rows.cpu().numpy().reshape(-1, 2, rows.shape[1]):
                inputs = stock_inputs(planner, list(pair), [sample.plans] * 2, [media] * 2, device)
                logits = model(**inputs, logits_to_keep=answer + 1).logits[:, :-1].float()
                targets = inputs["input_ids"][:, -logits.shape[1] :]
                logprobs = logits.log_softmax(-1).gather(-1, targets[..., None])[..., 0]
                ((logprobs - logprobs.detach()).exp().mean() / len(rows)).backward()

    def learn() -> None:
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()

    drawn: list[torch.Tensor] = rollout()
    update(drawn[:1])
    learn()
    rollout_s = timed(lambda: drawn.__setitem__(slice(None), rollout()), 1) * scale
    update_s = timed(lambda: update(drawn), 1) * scale + timed(learn, 1)
    measured = {"rollout_s": rollout_s, "update_s": update_s, "step_s": rollout_s + update_s}
    return measured | {"questions_computed": len(batch), "questions_of_a_step": every}


def pictures_of(spec: Any, planner: Any, count: int) -> tuple[list[list[Image.Image]], list[str], float]:
    """The images and the text of each of the first `count` questions, and our mean number of prompt tokens."""
    data = spec.custom.train_dataset
    samples, _ = planner.plan(load_records(data.annotation_path, data.media_path))
    samples = samples[:count]
    source = FrameSource(8, 300.0, None)
    frames, _ = source.collect(source.request(samples))
    source.close()
    pictures = [[Image.fromarray(frame.transpose(1, 2, 0)) for frame in media[0][::2]] for media in frames]
    texts = [sample.record.question for sample in samples]
    return pictures, texts, sum(sample.length for sample in samples) / len(samples)


def odd(completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float]:
    """The reward of the other parts: the share of odd token ids."""
    return [sum(token % 2 for token in ids) / max(len(ids), 1) for ids in completion_ids]


def trl_config(spec: Any, tiny: bool, rows: int, banned: Sequence[int], out: Path) -> Any:
    """A GRPOConfig of the same step, in which `rows` completions are drawn at a time."""
    from trl import GRPOConfig

    micro_rows = min(MICRO_ROWS, rows)
    return GRPOConfig(
        output_dir=str(out / "trl"),
        model_init_kwargs={"dtype": "float32" if tiny else "bfloat16", "attn_implementation": "sdpa"},
        bf16=not tiny,
        use_cpu=tiny,
        gradient_checkpointing=True,
        gradient_checkpointing_kwargs={"use_reentrant": False},
        per_device_train_batch_size=micro_rows,
        gradient_accumulation_steps=spec.train.train_batch_per_replica // micro_rows,
        steps_per_generation=rows // micro_rows,
        num_generations=spec.rollout.n_generation,
        max_completion_length=spec.rollout.max_response_length,
        generation_kwargs={"suppress_tokens": list(banned), "top_k": 0},
        temperature=1.0,
        beta=0.0,
        learning_rate=1e-6,
        optim="adamw_torch_fused",
        max_steps=STEPS,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        dataloader_num_workers=0,
    )


def trl_step(spec: Any, tiny: bool, rows: int, out: Path) -> dict[str, Any]:
    """Seconds of a step that draws `rows` completions at a time, on the questions of a GrpoSpec."""
    from datasets import Dataset
    from transformers import AutoConfig, AutoProcessor, TrainerCallback
    from trl import GRPOTrainer

    folder = Path(spec.policy.model_name_or_path)
    planner = prompt_planner(spec, folder)
    count = spec.train.train_batch_per_replica // spec.rollout.n_generation
    pictures, texts, prompt_tokens = pictures_of(spec, planner, count)
    family = torch_half(planner.family)
    banned = family.never_drawn(AutoConfig.from_pretrained(folder), len(planner.chat.tokens.core.get_vocab()))
    prompts = [[{"role": "user", "content": text}] for text in texts]
    clock: list[float] = []

    def with_pictures(batch: dict[str, Any]) -> dict[str, Any]:
        """Add the images in memory: TRL reads each row many times per step, and would decode them each time."""
        return {"prompt": batch["prompt"], "images": [pictures[number] for number in batch["number"]]}

    class Clock(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            clock.append(time.perf_counter())

        on_train_end = on_step_begin

    lora = spec.policy.lora
    dataset = Dataset.from_dict({"prompt": prompts, "number": range(len(prompts))})
    trainer = GRPOTrainer(
        model=str(folder),
        reward_funcs=odd,
        args=trl_config(spec, tiny, rows, banned, out),
        train_dataset=dataset.with_transform(with_pictures),
        processing_class=AutoProcessor.from_pretrained(folder, padding_side="left"),
        callbacks=[Clock()],
        peft_config=lora and LoraConfig(r=lora.r, lora_alpha=lora.lora_alpha, target_modules=lora.target_modules),
    )
    phases = _timed_phases(trainer)
    trainer.train()
    if torch.cuda.is_available():
        phases["memory_gib"] = torch.cuda.max_memory_allocated() / 2**30
    log = [entry for entry in trainer.state.log_history if "completions/mean_length" in entry][-1]
    steps = [after - before for before, after in pairwise(clock)]
    drawn = phases.pop("drawn")
    return {
        "step_s": median(steps[1:]),
        "rollout_s": sum(drawn[len(drawn) // STEPS :]) / (STEPS - 1),
        "rows_at_a_time": rows,
        "micro_rows": min(MICRO_ROWS, rows),
        "our_prompt_tokens": prompt_tokens,
        "length": log["completions/mean_length"],
        **phases,
    }


def _timed_phases(trainer: Any) -> dict[str, Any]:
    """A dict to which training adds "drawn", the seconds of each rollout with its rewards."""
    seconds: dict[str, Any] = {"drawn": []}
    score = trainer._generate_and_score_completions

    def timed_score(inputs: Any) -> Any:
        began = time.perf_counter()
        scored = score(inputs)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds["drawn"].append(time.perf_counter() - began)
        seconds["prompt_tokens"] = scored["prompt_ids"].shape[1]
        return scored

    trainer._generate_and_score_completions = timed_score
    return seconds
