"""Speed of reinforcement learning on one GPU: rollout, update, decode step and sync, against the ordinary recipe.

    python benchmarks/rl.py --out /tmp/rl --shape 2b
    python benchmarks/rl.py --out /tmp/rl --shape 8b --lora
    python benchmarks/rl.py --out /tmp/rl --shape 2b --gpus 1 2    one GPU, then two with twice the questions
    python benchmarks/rl.py --out /tmp/rl --shape 8b --gpus 4      all of 8B, sharded over four GPUs
    python benchmarks/rl.py --out /tmp/rl --only memory            predicted and used memory of the cases in MEMORY
    python benchmarks/rl.py --out /tmp/rl --only packs --pack-tokens 8192 16384     a step by the size of packs
    python benchmarks/rl.py --out /tmp/rl --only profile           the time of an update by kind of kernel
    python benchmarks/rl.py --out /tmp/rl --only ours trl          against TRL's GRPOTrainer, which must be installed

Random weights, 8 videos of 4k tokens, 8 completions of 128 tokens each. Every part runs in a separate process.
--tiny is a rehearsal; its figures mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "src")]

import torch
from kernel_times import profiled, summary
from ledger import Ledger, arguments, rounded, table
from rl_cases import MEMORY, REWARD, Case, questions
from rl_others import ordinary, timed, trl_step
from shapes import SHAPES
from video_set import write_set

from vidqa.core.run_folder import RunFolder
from vidqa.engine.model import DTYPES
from vidqa.jobs.platforms.engine_process import ALLOCATOR
from vidqa.spec import Layer, dump, parse_set, resolve

PARTS = ("ours", "alone", "decode", "ordinary", "trl", "profile")
SETS_OF_PARTS = ("memory", "packs")
ROWS, CONTEXT = 64, 4096
STEPS = {True: 2, False: 6}  # steps of our run; the first two are not counted
TRL_ROWS = (64, 32, 16, 8)  # completions that TRL draws at a time; fewer if these need too much memory


def case_of(options: argparse.Namespace) -> Case:
    case = MEMORY[options.case] if options.case else Case(options.shape, options.lora)
    case = case.as_tiny if options.tiny else case
    return case


def spec_of(options: argparse.Namespace, case: Case, model: Path, data: Path, steps: int, gpus: int = 1) -> Any:
    """The spec of steps with 8 questions, 8 completions each, for every GPU."""
    reward = options.out / "reward.py"
    reward.write_text(REWARD, encoding="utf-8")
    keys = {
        "policy.model_name_or_path": str(model),
        "custom.train_dataset.annotation_path": str(data / "annotations.json"),
        "custom.train_dataset.media_path": str(data),
        "custom.vision.fps": 1.4,
        "train.output_dir": str(options.out / "runs"),
        "train.param_dtype": "float32" if options.tiny else "bfloat16",
        "policy.parallelism.dp_replicate_size": 1 if case.is_sharded else gpus,
        "policy.parallelism.dp_shard_size": gpus if case.is_sharded else 1,
        "train.epoch": steps,
        "train.max_num_steps": steps,
        "train.ckpt.enable_checkpoint": False,
        "train.ckpt.export_safetensors": False,
        "train.train_policy.reward_function": f"{reward}:odd",
        **(questions(2, 8, 8) if options.tiny else questions(8 * gpus)),
        "engine.frame_cache_dir": str(options.out / "cache"),
        "engine.stop.truncated_above": 1.0,
        **({"policy.lora": {}, "policy.lora.lora_dropout": 0.0} if case.lora else {}),
        **case.over,
    }
    return resolve("grpo", [Layer("benchmark", keys), parse_set(options.set)]).spec


@contextmanager
def to_the_limit() -> Iterator[None]:
    """Let all completions inside the block have the maximum length."""
    from vidqa.engine.rl import train as program

    class Endless(program.Rollouts):
        def __init__(self, *parts: Any) -> None:
            super().__init__(*parts)
            self.stop_ids = ()

    with patch.object(program, "Rollouts", Endless):
        yield


def train(spec: Any, run: Path) -> dict[str, Any]:
    """Train, and return medians over the steps except the first two, which compile kernels."""
    from vidqa.engine.rl.train import train

    run.mkdir(parents=True, exist_ok=True)
    train(spec, RunFolder(run))
    return medians(run)


def medians(run: Path) -> dict[str, Any]:
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = steps[2:] or steps
    names = [name for name in steps[-1] if name.startswith(("perf/", "train/rollout_difference", "rollout/length"))]
    facts = json.loads((run / "run.json").read_text())
    setup = {name: facts[name] for name in ("predicted_gib", "pack_tokens", "memory_policy")}
    return {name.removeprefix("perf/"): median(step[name] for step in steps) for name in names} | setup


def scaling(options: argparse.Namespace, case: Case, model: Path) -> dict[str, Any]:
    """Measure steps on each number of GPUs, with equally many questions per GPU, and the speed that the last keeps."""
    figures: dict[str, Any] = {}
    for gpus in options.gpus:
        clips = replace(case.clips, clips=case.clips.clips * gpus)
        data = write_set(options.out / "data" / clips.name, clips)
        run = options.out / "runs" / f"scaling-{gpus}-{time.time_ns()}"
        run.mkdir(parents=True)
        (run / "asked.toml").write_text(dump(spec_of(options, case, model, data, 6, gpus)), encoding="utf-8")
        torchrun = ["-m", "vidqa.engine.torchrun", "--standalone", "--nproc-per-node", str(gpus)]
        engine = ["-m", "vidqa.engine", "grpo", "--spec", str(run / "asked.toml"), "--run-dir", str(run)]
        sources = os.pathsep.join(path for path in (sys.path[0], os.environ.get("PYTHONPATH", "")) if path)
        environment = {**os.environ, "PYTORCH_ALLOC_CONF": ALLOCATOR, "PYTHONPATH": sources}
        subprocess.run([sys.executable, "-P", *torchrun, *engine], check=True, env=environment)
        figures[f"on {gpus}"] = medians(run)
        print({gpus: figures[f"on {gpus}"]}, flush=True)
    seconds = [figures[f"on {gpus}"]["step_s"] for gpus in options.gpus]
    return figures | ({"kept": seconds[0] / seconds[-1]} if len(seconds) > 1 else {})


def alone(spec: Any, run: Path) -> dict[str, Any]:
    """`train` without shared prompts: every completion follows a prompt of its own."""
    from vidqa.engine.rl import update
    from vidqa.planning.rollouts import completion_sample

    counted = iter(range(1 << 30))

    def apart(*args: Any, **values: Any) -> Any:
        question, prompt, ids, _ = args
        return completion_sample(question, prompt, ids, str(next(counted)), **values)

    with patch.object(update, "completion_sample", apart):
        return train(spec, run)


def step_profile(spec: Any, run: Path) -> dict[str, Any]:
    """Profile the update of the last step."""
    trace = run / "trace.json"
    with profiled(spec.train.max_num_steps - 1, trace):
        measured = train(spec, run)
    return measured | summary(trace, Path(spec.policy.model_name_or_path))


def decode(spec: Any, tiny: bool) -> dict[str, Any]:
    """Time a decode step of 64 rows with 4k tokens each, with and without sampling, beside reading its bytes once."""
    from vidqa.engine.generators._base import Settings
    from vidqa.engine.generators.native import NativeSession
    from vidqa.engine.loading.load import empty_model
    from vidqa.planning.budget.answering import PAGE
    from vidqa.planning.rollouts import prompt_planner

    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    rows, context = (4, 128) if tiny else (ROWS, CONTEXT)
    folder, dtype = Path(spec.policy.model_name_or_path), DTYPES[spec.train.param_dtype]
    model = empty_model(folder, dtype, device)
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.02)
    pages = -(-(context + 1) // PAGE)
    settings = Settings(folder, None, dtype, device, prompt_planner(spec, folder), context + PAGE, batch_size=rows)
    figures: dict[str, Any] = {}
    with torch.no_grad():  # one session at a time: each has a whole cache
        for name, draws in (("drawn", True), ("likeliest", False)):
            session = NativeSession(model, settings, pages=rows * pages + 1)
            decoder = session.decoder
            table = torch.arange(1, rows * pages + 1, device=device, dtype=torch.int32)
            decoder.table_BP[:rows, :pages] = table.view(rows, pages)
            decoder.alive_B[:rows], decoder.temperature_B[:rows], decoder.is_drawn = 1, 1.0, draws
            if device.type == "cuda":
                decoder.capture(rows)

            def step(decoder: Any = decoder) -> None:
                decoder.held_B[:rows] = context - 1
                graphs = decoder.drawing_graphs if decoder.is_drawn else decoder.graphs
                graphs[rows][0].replay() if graphs else decoder.run(rows)

            figures[f"{name}_ms"] = 1e3 * timed(step)
            keys = session.cache.keys
            size = 2 * rows * context * keys[:, 0].numel() * keys.element_size()
            session.close()
            del session, decoder, keys, step
    weights = sum(parameter.nbytes for parameter in model.model.language_model.parameters())
    weights += model.lm_head.weight.nbytes * (not model.config.tie_word_embeddings)
    block = torch.empty((1 << 20) if tiny else (1 << 31), dtype=torch.uint8, device=device)
    bandwidth = 2 * block.nbytes / timed(lambda: block.copy_(block.clone()) if tiny else block.neg_())
    figures["bandwidth_tb_s"] = bandwidth / 1e12
    figures["least_ms"] = 1e3 * (weights + size) / bandwidth
    figures["times_the_least"] = figures["drawn_ms"] / figures["least_ms"]
    figures["drawing_share"] = 1 - figures["likeliest_ms"] / figures["drawn_ms"]
    return figures


def part(options: argparse.Namespace, case: Case) -> None:
    """Run one part in this process; prints its figures."""
    if options.part != "trl":  # accelerate would assume that torchrun started it
        os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    model, data = options.out / "model" / case.shape, options.out / "data" / case.clips.name
    spec = spec_of(options, case, model, data, 3 if options.case else STEPS[options.tiny])
    run = options.out / "runs" / f"{options.part}-{time.time_ns()}"
    torch.cuda.reset_peak_memory_stats() if torch.cuda.is_available() else None
    with to_the_limit() if options.case else nullcontext():
        measured = {
            "ours": lambda: train(spec, run),
            "alone": lambda: alone(spec, run),
            "profile": lambda: step_profile(spec, run),
            "decode": lambda: decode(spec, options.tiny),
            "ordinary": lambda: ordinary(spec, options.questions),
            "trl": lambda: trl_step(spec, options.tiny, options.trl_rows, options.out),
        }[options.part]()
    print(json.dumps(measured), flush=True)


@dataclass(frozen=True)
class Run:
    """A part in a separate process, with further arguments."""

    name: str
    part: str
    words: tuple[str, ...] = ()


def runs_of(options: argparse.Namespace) -> Iterator[Run]:
    for name in options.only:
        if name == "memory":
            yield from (Run(case, "ours", ("--case", case)) for case in options.cases)
        elif name == "packs":
            for tokens in options.pack_tokens:
                yield Run(f"packs of {tokens}", "ours", ("--set", f"engine.pack_tokens={tokens}"))
        else:
            yield Run(name, name)


def carry_out(run: Run, options: argparse.Namespace) -> dict[str, Any]:
    """The figures of a run, or {"failed": the end of its output}."""
    words = [sys.executable, __file__, *sys.argv[1:], *run.words, "--part", run.part]
    environment = {**os.environ, "PYTORCH_ALLOC_CONF": ALLOCATOR}
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    if done.returncode:
        return {"failed": done.stderr[-1500:]}
    return json.loads(done.stdout.splitlines()[-1])


def carry_out_trl(run: Run, options: argparse.Namespace) -> dict[str, Any]:
    """Run TRL with as many completions at a time as fit into memory."""
    row: dict[str, Any] = {}
    for rows in (16,) if options.tiny else TRL_ROWS:
        row = carry_out(replace(run, words=("--trl-rows", str(rows))), options)
        if "out of memory" not in row.get("failed", ""):
            break
        print(f"trl: {rows} rows at a time do not fit", flush=True)
    return row


def prepare(options: argparse.Namespace, cases: Iterable[Case]) -> None:
    """Write missing models and clips."""
    for case in cases:
        model = options.out / "model" / case.shape
        if not (model / "config.json").is_file():  # in a separate process: this one must not use a GPU
            words = [sys.executable, Path(__file__).with_name("shapes.py"), "--shape", case.shape, "--out", model]
            subprocess.run([str(word) for word in words], check=True)
        write_set(options.out / "data" / case.clips.name, case.clips)


def conclusions(rows: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Comparisons of rows."""
    if {"ours", "alone"} <= set(rows):
        yield f"update shared against alone: {rows['alone']['update_s'] / rows['ours']['update_s']:.2f} x"
    for other in {"ordinary", "trl"} & set(rows):
        if "ours" in rows:
            yield f"step against {other}: {rows[other]['step_s'] / rows['ours']['step_s']:.2f} x"
    if memory := [{"case": name, **rows[name]} for name in MEMORY if name in rows]:
        shown = ("case", "predicted_gib", "memory_gib", "pack_tokens", "memory_policy")
        yield table([{key: row.get(key) for key in shown} | {"off": _off(row)} for row in memory])
    if packs := [{"run": name, **row} for name, row in rows.items() if name.startswith("packs of")]:
        shown = ("run", "update_s", "mfu", "step_s", "memory_gib", "predicted_gib", "memory_policy")
        yield table([{key: row.get(key) for key in shown} for row in packs])
    if profile := rows.get("profile"):
        yield f"{table(profile['kinds'])}\n\n{table(profile['kernels'])}"
        yield f"{profile['waited_s']:.3f} s of {profile['profiled_s']:.3f} s without a batch"


def _off(row: Mapping[str, Any]) -> float | None:
    """The relative excess of the predicted over the used memory."""
    return row["predicted_gib"] / row["memory_gib"] - 1 if row.get("memory_gib") and row["predicted_gib"] else None


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--shape", choices=[*SHAPES, "tiny"], default="2b")
    parser.add_argument("--lora", action="store_true")
    parser.add_argument("--only", nargs="+", choices=(*PARTS, *SETS_OF_PARTS), default=PARTS[:4])
    parser.add_argument("--cases", nargs="+", choices=MEMORY, default=list(MEMORY), help="of --only memory")
    parser.add_argument(
        "--pack-tokens", nargs="+", type=int, default=[8192, 12288, 16384, 24576], help="of --only packs"
    )
    parser.add_argument("--questions", type=int, default=8, help="that --only ordinary computes, scaled to all")
    parser.add_argument("--gpus", type=int, nargs="+", help="instead of --only: steps on as many, by torchrun")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a key of our spec")
    parser.add_argument("--part", choices=PARTS, help="one part, in this process")
    parser.add_argument("--case", choices=MEMORY, help="whose part it is")
    parser.add_argument("--trl-rows", type=int, default=TRL_ROWS[0], help="completions that TRL draws at a time")
    options = parser.parse_args()
    options.shape = "tiny" if options.tiny else options.shape
    if options.part:
        part(options, case_of(options))
        return
    case = case_of(options)
    measures_memory = "memory" in options.only
    others = [MEMORY[name].as_tiny if options.tiny else MEMORY[name] for name in options.cases] * measures_memory
    needs_own = options.gpus or set(options.only) - {"memory"}
    prepare(options, [*([case] if needs_own else []), *others])
    ledger, rows, name_of_shape = Ledger("rl", options), dict[str, Any](), f"{case.shape}{' LoRA' * case.lora}"
    if options.gpus:
        several = rounded(scaling(options, case, options.out / "model" / case.shape))
        print(several, flush=True)
        ledger.add({"row": f"{name_of_shape}: {max(options.gpus)} GPUs", **several})
        return
    for run in runs_of(options):
        row = rounded((carry_out_trl if run.part == "trl" else carry_out)(run, options))
        print(
            run.name,
            row.get("failed") or {key: value for key, value in row.items() if key != "kernels"},
            flush=True,
        )
        if "failed" not in row:
            rows[run.name] = row
            ledger.add({"row": run.name if "--case" in run.words else f"{name_of_shape}: {run.name}", **row})
    print(*conclusions(rows), sep="\n")


if __name__ == "__main__":
    main()
