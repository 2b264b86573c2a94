"""Time from many annotations to the first step: preflight, preflight again, a training of one step.

python benchmarks/preflight.py --out DIR

300,000 questions about 3,000 real, short clips, with a twentieth held out for validation, and a tiny model. The
set is written first (some minutes, reused later). Each row is a separate process; `CPU` and `peak` include its
children; the first preflight and the training start with empty caches.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from ledger import Ledger, arguments, table
from processes import SKILL_ROOT
from video_set import write_moving_clip

from vidqa.spec import Layer, dump, resolve

RECORDS, FILES = 300_000, 3_000
TINY_RECORDS, TINY_FILES = 300, 6
WORDS = ("car", "truck", "bus", "red", "blue", "left", "right", "lane", "signal", "stops", "turns", "crosses", "slow")
SECONDS = (1.0, 4.0)  # the shortest and the longest clip
WIDTH, HEIGHT = 96, 64
ONE_STEP = {
    "train.max_num_steps": 1,
    "validation.enable": False,
    "train.ckpt.enable_checkpoint": False,
    "train.ckpt.export_safetensors": False,
}


def questions(count: int) -> Iterator[tuple[str, str]]:
    """Yield (question, answer) of every record, in turn yes or no, one of three letters, and a sentence."""
    chance = random.Random(0)
    for number in range(count):
        if number % 3 == 0:
            yield f"Does vehicle {number % 1000} stop at the line before it turns?", chance.choice(("Yes", "No"))
        elif number % 3 == 1:
            question = f"Which is first at crossing {number % 5000}?\nA. the red car\nB. the blue truck\nC. the bus"
            yield question, chance.choice("ABC")
        else:
            yield f"Describe what vehicle {number} does.", " ".join(chance.choices(WORDS, k=8))


def record(number: int, video: str, question: str, answer: str) -> dict[str, Any]:
    turns = [{"from": "human", "value": f"<video>\n{question}"}, {"from": "gpt", "value": answer}]
    return {"id": f"kpi_{number:07d}", "video": video, "video_fps": 24, "conversations": turns}


def measured(words: list[str]) -> tuple[float, float, float]:
    """Run a Python program and return (wall s, CPU s, peak GB); CPU and peak include its children."""
    began = time.monotonic()
    process = subprocess.Popen([sys.executable, *words], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{words[0]} ended with {process.returncode}")
    return time.monotonic() - began, used.ru_utime + used.ru_stime, used.ru_maxrss / 1e6


def make_set(folder: Path, records: int, files: int) -> Path:
    """Write annotations.json and its clips. A complete folder is left unchanged."""
    if (folder / "annotations.json").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "videos").mkdir(parents=True)
    names = [f"videos/{number:05d}.mp4" for number in range(files)]
    shortest, longest = SECONDS
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        lengths = [shortest + (longest - shortest) * number / files for number in range(files)]
        work = [(folder / name, lengths[n], WIDTH, HEIGHT, n) for n, name in enumerate(names)]
        for future in [pool.submit(write_moving_clip, *words) for words in work]:
            future.result()
    numbered = enumerate(questions(records))
    rows = [record(n, names[n * files // records], *words) for n, words in numbered]
    (folder / "annotations.json.new").write_text(json.dumps(rows, indent=1), encoding="utf-8")
    (folder / "annotations.json.new").rename(folder / "annotations.json")
    return folder


def make_model(folder: Path) -> Path:
    """Write the model, in a separate process: the children of this one inherit its memory as their peak."""
    if not (folder / "config.json").exists():
        from vidqa.engine.families.tiny_qwen3_vl import write_tiny_model

        write_tiny_model(folder, [text for row in questions(3000) for text in row])
    return folder


def write_spec(path: Path, root: Path, model: Path, more: dict[str, Any]) -> Path:
    """Write the spec of a training that holds out a twentieth of the clips for validation."""
    keys = {
        "policy.model_name_or_path": str(model),
        "policy.model_max_length": 4096,
        "custom.train_dataset.annotation_path": str(root / "annotations.json"),
        "custom.train_dataset.media_path": str(root),
        "custom.vision.nframes": 8,
        "train.train_policy.dataset.test_size": 0.05,
        "train.output_dir": str(path.parent / "runs"),
        "train.train_batch_per_replica": 8,
        "train.param_dtype": "float32",
        **more,
    }
    path.write_text(dump(resolve("train", [Layer("benchmark", keys)]).spec), encoding="utf-8")
    return path


def rows(out: Path, records: int, files: int) -> Iterator[tuple[str, tuple[float, float, float]]]:
    """Yield (name, its wall s, CPU s and peak GB) in the order of the table."""
    root, model = out / f"set-{files}-{records}", out / "model"
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as maker:
        maker.submit(make_set, root, records, files).result()
        maker.submit(make_model, model).result()
    spec = write_spec(out / "spec.toml", root, model, {})
    for left in ("cache", "runs", "run", "media_probe.parquet"):
        shutil.rmtree(out / left, ignore_errors=True) if (out / left).is_dir() else (out / left).unlink(missing_ok=True)
    os.environ.update(OMP_NUM_THREADS="1", PYTHONPATH=str(SKILL_ROOT / "src"), CUDA_VISIBLE_DEVICES="")
    os.environ.update(VIDQA_CACHE_DIR=str(out / "cache"), VIDQA_STATE_DIR=str(out / "state"))
    preflight = [str(SKILL_ROOT / "scripts" / "preflight.py"), "--spec", str(spec), "--json"]
    yield "the first preflight", measured(preflight)
    yield "preflight again", measured(preflight)
    step = write_spec(out / "step.toml", root, model, ONE_STEP)
    torchrun = ["-m", "vidqa.engine.torchrun", "--standalone", "--nproc-per-node", "1", "-m", "vidqa.engine"]
    yield "a training of one step", measured([*torchrun, "train", "--spec", str(step), "--run-dir", str(out / "run")])


def main() -> None:
    options = arguments(__doc__).parse_args()
    records, files = (TINY_RECORDS, TINY_FILES) if options.tiny else (RECORDS, FILES)
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    ledger = Ledger("preflight", options)
    for what, (wall, cpu, peak) in rows(out, records, files):
        ledger.add({"what": what, "records": records, "files": files, "cpu_s": cpu, "wall_s": wall, "peak_gb": peak})
        print(f"{what}: {cpu:.1f} s of CPU, {wall:.1f} s", flush=True)
    print(table(ledger.rows))


if __name__ == "__main__":
    main()
