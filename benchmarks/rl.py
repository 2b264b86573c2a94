"""Speed of reinforcement learning on one GPU: rollout, update, decode step and sync, beside the ordinary recipe.

    python benchmarks/rl.py --out /tmp/rl --shape 2b
    python benchmarks/rl.py --out /tmp/rl --shape 8b --lora
    python benchmarks/rl.py --out /tmp/rl --shape 2b --gpus 2      one GPU, then two with twice the questions

Random weights, 8 videos of 4k tokens, 8 completions of 128 tokens each. Every part runs in a process of its own. With
--tiny it shows that it runs, and its figures mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "src")]

import torch
from ledger import Ledger, arguments, rounded
from video_set import SetShape, write_set

from vidqa.contract.run_folder import RunFolder
from vidqa.platforms.engine_command import ALLOCATOR
from vidqa.spec import Layer, dump, resolve

PARTS = ("ours", "alone", "decode", "ordinary")
REWARD = "def odd(text, record, token_ids, finish_reason):\n    return sum(t % 2 for t in token_ids) / len(token_ids)\n"
ROWS, CONTEXT = 64, 4096


def spec_of(options: argparse.Namespace, model: Path, data: Path, steps: int, gpus: int = 1) -> Any:
    """A GrpoSpec of 8 questions with 8 completions each a step for every GPU."""
    reward = options.out / "reward.py"
    reward.write_text(REWARD, encoding="utf-8")
    table = {
        "policy.model_name_or_path": str(model),
        "custom.train_dataset.annotation_path": str(data / "annotations.json"),
        "custom.train_dataset.media_path": str(data),
        "custom.vision.fps": 1.4,
        "train.output_dir": str(options.out / "runs"),
        "train.param_dtype": "float32" if options.tiny else "bfloat16",
        "train.train_batch_per_replica": (64 if not options.tiny else 16) * gpus,
        "policy.parallelism.dp_replicate_size": gpus,
        "train.epoch": steps,
        "train.max_num_steps": steps,
        "train.ckpt.enable_checkpoint": False,
        "train.ckpt.export_safetensors": False,
        "train.train_policy.reward_function": f"{reward}:odd",
        "rollout.n_generation": 8,
        "rollout.max_response_length": 8 if options.tiny else 128,
        "engine.frame_cache_dir": str(options.out / "cache"),
        "engine.stop.truncated_above": 1.0,
        **({"policy.lora": {}, "policy.lora.lora_dropout": 0.0} if options.lora else {}),
    }
    return resolve("grpo", [Layer("benchmark", table)]).spec


def train(spec: Any, run: Path) -> dict[str, Any]:
    """Medians over the steps of a run but the first two, whose kernels are compiled."""
    from vidqa.engine.rl.train import train

    run.mkdir(parents=True, exist_ok=True)
    train(spec, RunFolder(run))
    return medians(run)


def medians(run: Path) -> dict[str, Any]:
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = steps[2:] or steps
    names = [name for name in steps[-1] if name.startswith(("perf/", "train/rollout_difference", "rollout/length"))]
    facts = json.loads((run / "run.json").read_text())
    told = {name: facts[name] for name in ("predicted_gib", "pack_tokens", "memory_policy")}
    return {name.removeprefix("perf/"): median(step[name] for step in steps) for name in names} | told


def scaling(options: argparse.Namespace, model: Path, shape: SetShape) -> dict[str, Any]:
    """Steps on one GPU and on several, with as many questions for each."""
    found: dict[str, Any] = {}
    for gpus in (1, options.gpus):
        clips = replace(shape, clips=shape.clips * gpus)
        data = write_set(options.out / "scaling" / clips.name, clips)
        run = options.out / "runs" / f"scaling-{gpus}-{time.time_ns()}"
        run.mkdir(parents=True)
        (run / "asked.toml").write_text(dump(spec_of(options, model, data, 6, gpus)), encoding="utf-8")
        torchrun = ["-m", "vidqa.engine.torchrun", "--standalone", "--nproc-per-node", str(gpus)]
        engine = ["-m", "vidqa.engine", "grpo", "--spec", str(run / "asked.toml"), "--run-dir", str(run)]
        sources = os.pathsep.join(path for path in (sys.path[0], os.environ.get("PYTHONPATH", "")) if path)
        environment = {**os.environ, "PYTORCH_ALLOC_CONF": ALLOCATOR, "PYTHONPATH": sources}
        subprocess.run([sys.executable, "-P", *torchrun, *engine], check=True, env=environment)
        found[f"on {gpus}"] = medians(run)
    found["kept"] = found["on 1"]["step_s"] / found[f"on {options.gpus}"]["step_s"]
    return found


def alone(spec: Any, run: Path) -> dict[str, Any]:
    """The same with every completion behind a prompt of its own."""
    from vidqa.engine.rl import update
    from vidqa.planning.rollouts import completion_sample

    counted = iter(range(1 << 30))

    def apart(*args: Any, **values: Any) -> Any:
        question, prompt, ids, _ = args
        return completion_sample(question, prompt, ids, str(next(counted)), **values)

    with patch.object(update, "completion_sample", apart):
        return train(spec, run)


def timed(work: Any, repeats: int = 20) -> float:
    """Median seconds."""
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return median(seconds)


def decode(spec: Any, tiny: bool) -> dict[str, Any]:
    """A decode step of 64 rows with 4k tokens each, drawn from and not, beside reading its bytes once."""
    from vidqa.engine.generators._base import Settings
    from vidqa.engine.generators.native import NativeSession
    from vidqa.engine.model.load import DTYPES, empty_model
    from vidqa.engine.model.paged_cache import PAGE
    from vidqa.planning.rollouts import prompt_planner

    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    rows, context = (4, 128) if tiny else (ROWS, CONTEXT)
    folder, dtype = Path(spec.policy.model_name_or_path), DTYPES[spec.train.param_dtype]
    model = empty_model(folder, dtype, device)
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.02)
    pages = -(-(context + 1) // PAGE)
    settings = Settings(folder, None, dtype, device, prompt_planner(spec, folder), context + PAGE, batch_size=rows)
    found: dict[str, Any] = {}
    with torch.no_grad():  # one session at a time: each has a whole cache
        for name, draws in (("drawn", True), ("likeliest", False)):
            session = NativeSession(model, settings, pages=rows * pages + 1)
            decoder = session.decoder
            table = torch.arange(1, rows * pages + 1, device=device, dtype=torch.int32)
            decoder.table_BP[:rows, :pages] = table.view(rows, pages)
            decoder.alive_B[:rows], decoder.temperature_B[:rows], decoder.draws = 1, 1.0, draws
            if device.type == "cuda":
                decoder.capture(rows)

            def step(decoder: Any = decoder) -> None:
                decoder.held_B[:rows] = context - 1
                graphs = decoder.drawing_graphs if decoder.draws else decoder.graphs
                graphs[rows][0].replay() if graphs else decoder.run(rows)

            found[f"{name}_ms"] = 1e3 * timed(step)
            keys = session.cache.keys
            size = 2 * rows * context * keys[:, 0].numel() * keys.element_size()
            session.close()
            del session, decoder, keys, step
    weights = sum(parameter.nbytes for parameter in model.model.language_model.parameters())
    weights += model.lm_head.weight.nbytes * (not model.config.tie_word_embeddings)
    block = torch.empty((1 << 20) if tiny else (1 << 31), dtype=torch.uint8, device=device)
    bandwidth = 2 * block.nbytes / timed(lambda: block.copy_(block.clone()) if tiny else block.neg_())
    found["bandwidth_tb_s"] = bandwidth / 1e12
    found["least_ms"] = 1e3 * (weights + size) / bandwidth
    found["times_the_least"] = found["drawn_ms"] / found["least_ms"]
    found["drawing_share"] = 1 - found["likeliest_ms"] / found["drawn_ms"]
    return found


def ordinary(spec: Any, tiny: bool) -> dict[str, Any]:
    """One step as it is usually written: transformers' generate, then padded rows with their prompt, two at a time."""
    from peft import LoraConfig, get_peft_model

    from vidqa.dataset import load_records
    from vidqa.engine.batch.frames import FrameSource
    from vidqa.engine.exports import load_export
    from vidqa.engine.families import torch_half
    from vidqa.engine.model.load import DTYPES
    from vidqa.engine.model.stock_inputs import stock_inputs
    from vidqa.planning.rollouts import prompt_planner

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
    questions = samples[: spec.train.train_batch_per_replica // size]

    def rollout() -> list[torch.Tensor]:
        model.eval()
        drawn = []
        for sample, media in zip(questions, frames, strict=False):
            inputs = stock_inputs(planner, [planner.encode(sample).token_ids], [sample.plans], [media], device)
            settings = {"do_sample": True, "top_k": 0, "temperature": 1.0, "pad_token_id": planner.chat.pad_id}
            settings |= {"num_return_sequences": size, "max_new_tokens": answer, "suppress_tokens": banned}
            drawn.append(model.generate(**inputs, **settings))
        return drawn

    def update(drawn: list[torch.Tensor]) -> None:
        model.train()
        for sample, media, rows in zip(questions, frames, drawn, strict=False):
            for pair in rows.cpu().numpy().reshape(-1, 2, rows.shape[1]):
                inputs = stock_inputs(planner, list(pair), [sample.plans] * 2, [media] * 2, device)
                logits = model(**inputs, logits_to_keep=answer + 1).logits[:, :-1].float()
                targets = inputs["input_ids"][:, -logits.shape[1] :]
                logprobs = logits.log_softmax(-1).gather(-1, targets[..., None])[..., 0]
                ((logprobs - logprobs.detach()).exp().mean() / len(rows)).backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()

    update(rollout())
    rollout_s = timed(rollout, 1)
    drawn = rollout()
    update_s = timed(lambda: update(drawn), 1)
    return {"rollout_s": rollout_s, "update_s": update_s, "step_s": rollout_s + update_s}


def part(options: argparse.Namespace) -> None:
    """One part in this process; prints its figures."""
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    model, data = options.out / "model" / options.shape, options.out / "data"
    steps = 2 if options.tiny else 6
    spec = spec_of(options, model, next(data.iterdir()), steps)
    run = options.out / "runs" / f"{options.part}-{time.time_ns()}"
    torch.cuda.reset_peak_memory_stats() if torch.cuda.is_available() else None
    measured = {
        "ours": lambda: train(spec, run),
        "alone": lambda: alone(spec, run),
        "decode": lambda: decode(spec, options.tiny),
        "ordinary": lambda: ordinary(spec, options.tiny),
    }[options.part]()
    print(json.dumps(measured), flush=True)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--shape", choices=["2b", "8b", "tiny"], default="2b")
    parser.add_argument("--lora", action="store_true")
    parser.add_argument("--part", choices=PARTS, help="one part, in this process")
    parser.add_argument("--gpus", type=int, default=1, help="more than 1: how much of the speed several GPUs keep")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    options = parser.parse_args()
    if options.tiny:
        options.shape = "tiny"
    if options.part:
        part(options)
        return
    model = options.out / "model" / options.shape
    if not (model / "config.json").is_file():  # in a process of its own: this one is to hold no GPU
        words = [sys.executable, str(Path(__file__).with_name("shapes.py")), "--shape", options.shape, "--out", model]
        subprocess.run([str(word) for word in words], check=True)
    shape = SetShape(4, (1, 2), 1, 96, 64) if options.tiny else SetShape(8, (20, 20))
    write_set(options.out / "data" / shape.name, shape)
    ledger, rows = Ledger("rl", options), {}
    if options.gpus > 1:
        kept = rounded(scaling(options, model, shape))
        print(kept, flush=True)
        ledger.add({"row": f"{options.shape}{' LoRA' if options.lora else ''}: {options.gpus} GPUs", **kept})
        return
    for name in options.only:
        words = [sys.executable, __file__, *sys.argv[1:], "--part", name]
        environment = {**os.environ, "PYTORCH_ALLOC_CONF": ALLOCATOR}
        done = subprocess.run(words, capture_output=True, text=True, env=environment)
        if done.returncode:
            print(f"{name}: {done.stderr[-1500:]}", flush=True)
            continue
        rows[name] = json.loads(done.stdout.splitlines()[-1])
        print(name, rounded(rows[name]), flush=True)
        ledger.add({"row": f"{options.shape}{' LoRA' if options.lora else ''}: {name}", **rounded(rows[name])})
    if {"ours", "alone"} <= set(rows):
        print(f"update shared against alone: {rows['alone']['update_s'] / rows['ours']['update_s']:.2f} x")
    if {"ours", "ordinary"} <= set(rows):
        print(f"step against the ordinary one: {rows['ordinary']['step_s'] / rows['ours']['step_s']:.2f} x")


if __name__ == "__main__":
    main()
