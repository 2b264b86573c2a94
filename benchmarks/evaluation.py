"""Answers per second of a whole evaluation, on one GPU and on several: the same clips, decoded during the run.

    python benchmarks/evaluation.py --gpus 1 2 --out DIR [--shape 8b] [--clips 256]

Real runs of the action under torchrun, with random weights. The reported speed is from the time every rank has its
model until the last rank has its last answer. A short evaluation runs first, so that kernels are compiled and the
weights in memory. Each run decodes all clips again. --tiny is a rehearsal with processes on the CPU.
"""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from ledger import Ledger, arguments, rounded, table
from processes import finish, start
from shapes import SHAPES
from training import FPS, Place, Training, as_tiny
from video_set import SetShape

from vidqa.core.run_folder import read_metrics
from vidqa.spec import Layer, dump, resolve
from vidqa.spec.layers import parse_set

SECONDS = (5, 40)  # 1k to 8k tokens
WARM_CLIPS = 16
FIGURES = ("answers_per_s", "answering_s", "first_rank_s", "data_wait_s")
MUST, AIM = 0.93, 0.97


def write_spec(place: Place, work: Training, run: Path, sets: list[str]) -> Path:
    """Write the spec of an evaluation of a set's clips, 16 tokens each, on the GPUs of `work`."""
    data = place.clips(work.data)
    values = {
        "dataset.annotation_path": str(data / "annotations.json"),
        "dataset.media_dir": str(data),
        "model.model_name": str(place.model(work.shape)),
        "model.dtype": "bfloat16" if place.cuda else "float32",
        "model.max_length": 16384,
        "generation.max_tokens": 16,
        "vision.nframes": None,
        "vision.fps": FPS,
        "num_gpus": work.gpus,
        "results_dir": str(run),
        "engine.decode_workers": 12 if place.cuda else 1,
        "engine.frame_cache_dir": str(run / "frames"),
    }
    path = run / "spec.toml"
    path.write_text(dump(resolve("evaluate", [Layer(work.name, values), parse_set(sets)]).spec), encoding="utf-8")
    return path


def evaluate(place: Place, work: Training, options: Any) -> dict[str, Any]:
    """Run one evaluation and return its figures."""
    run = place.out / "runs" / work.name
    shutil.rmtree(run, ignore_errors=True)
    run.mkdir(parents=True)
    ranks = ("--standalone", "--nproc-per-node", str(work.gpus))
    engine = ("-m", "vidqa.engine", "evaluate", "--spec", str(write_spec(place, work, run, options.set)))
    command = ["-m", "vidqa.engine.torchrun", *ranks, *engine, "--run-dir", str(run / "run")]
    started = start(command, run / "log.txt", options.timeout, range(work.gpus) if place.cuda else ())
    finish([started])
    shutil.rmtree(run / "frames", ignore_errors=True)
    if started.failure:
        sys.exit(f"{work.name}: {started.failure}")
    (event_row,) = (event for event in read_metrics(run / "run/metrics.jsonl") if "perf/answers_per_s" in event)
    answers = len(json.loads((run / "run/results.json").read_text()))
    figures = {name: event_row[f"perf/{name}"] for name in FIGURES}
    return {"run": work.name, "gpus": work.gpus, "answers": answers, **figures, "whole_s": started.seconds}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--gpus", type=int, nargs="+", default=[1, 2], help="processes, where there are no GPUs")
    parser.add_argument("--shape", choices=list(SHAPES), default="8b")
    parser.add_argument("--clips", type=int, default=256)
    parser.add_argument("--questions", type=int, default=1, help="about each clip")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a key of the spec")
    parser.add_argument("--timeout", type=float, default=240, help="seconds that one run may take")
    options = parser.parse_args()
    place, shape = Place(options.out.resolve()), SetShape(options.clips, SECONDS, options.questions)
    most = max(options.gpus)
    works = [
        Training(f"{gpus} GPU" + "s" * (gpus > 1), "ours", options.shape, gpus, shape, 1, 0) for gpus in options.gpus
    ]
    warm = Training("warming up", "ours", options.shape, most, replace(shape, clips=WARM_CLIPS), 1, 0)
    if options.tiny:
        warm, *works = (as_tiny(work, 1) for work in (warm, *works))
    place.make([replace(work, gpus=1) for work in (warm, *works)])  # the same clips on any number of GPUs
    if not options.tiny:
        evaluate(place, warm, options)
    ledger = Ledger("evaluation", options)
    for work in works:
        ledger.add(evaluate(place, work, options))
        print(rounded(ledger.rows[-1]), flush=True)
    print(table(ledger.rows))
    first = ledger.rows[0]
    lines = [
        {
            "gpus": row["gpus"],
            "kept": row["answers_per_s"] / row["gpus"] * first["gpus"] / first["answers_per_s"],
            "must": MUST,
            "aim": AIM,
        }
        for row in ledger.rows[1:]
    ]
    ledger.conclude(lines)
    print(table(lines))


if __name__ == "__main__":
    main()
