"""How busy a study keeps GPUs: LoRA trials on 2B shapes with random weights, one on each GPU at any time.

    python benchmarks/study_gpu.py --out DIR                             # 8 trials on all GPUs
    python benchmarks/study_gpu.py --out DIR --trials 2 --steps 60       # on one, in four minutes

nvidia-smi is asked once a second which share of the time a kernel ran. `busy` is the mean over all GPUs from the end of
the study's first minute to its end; `start_s`, `steps_s` and `end_s` say where a trial's time goes: from its submission
to the end of its first step, to its last step, and to the moment when its end was seen. What varies is the rate and the
decay, so that what the first trial compiles serves all. Without a GPU (--tiny) there is no share.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from datetime import datetime
from pathlib import Path
from statistics import mean, median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src")]

import torch
from commands import build, script
from ledger import Ledger, arguments, table
from training import ADAPT, FPS, SETS, WORKERS, Place, Training, as_tiny

from vidqa.contract.environment import adopt
from vidqa.contract.run_folder import read_metrics
from vidqa.studies.journal import read

FIRST_S = 60.0  # of a study: what starts then is not counted
SAMPLED = ("--query-gpu=index,utilization.gpu", "--format=csv,noheader,nounits", "--loop=1")
Sample = tuple[float, int, float]  # Unix time, GPU, share of the last second in which a kernel ran


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--steps", type=int, default=200, help="of a trial")
    options = parser.parse_args()
    place, gpus = Place(options.out.absolute()), torch.cuda.device_count() or 1
    adopt({"VIDQA_STATE_DIR": str(place.out / "state")})
    training = Training("study", "ours", "2b", 1, SETS["1k-8k"], options.steps, 0)
    training = as_tiny(training, 2) if options.tiny else training
    place.make([training])
    study = planned(place, training, options.trials, gpus)
    samples: list[Sample] = []
    stop = sampling(samples) if place.cuda else None
    found = script("run_automl", "start", "--study", study, "--wait")
    if stop:
        stop()
    row = {"run": f"{training.shape}, {training.steps} steps a trial", "gpus": gpus if place.cuda else 0}
    row |= {"trials": options.trials, "state": found["state"], **told(study, samples)}
    Ledger("study_gpu", options).add(row)
    print(table([{key: value for key, value in row.items() if key != "each"}]), table(row["each"]), sep="\n")


def planned(place: Place, training: Training, trials: int, gpus: int) -> Path:
    """A new study, one trial on each GPU at a time; what earlier calls left is not touched."""
    data = place.clips(training.clips)
    study = place.out / f"study-{time.strftime('%Y%m%dT%H%M%S')}"
    values = {
        **ADAPT,
        "policy.parallelism.dp_shard_size": 1,
        "custom.vision.fps": FPS,
        "train.max_num_steps": training.steps,
        "train.epoch": 1000,
        "train.train_batch_per_replica": training.per_rank,
        "train.train_policy.mini_batch": 1,
        "train.train_policy.dataloader_num_workers": WORKERS if place.cuda else 1,
        "train.train_policy.dataset.test_size": 0.2,
        "train.ckpt.save_freq": training.steps,
        "logging.log_interval": 1,
        "validation.enable": "true",
        "validation.freq": training.steps,
        "engine.frame_cache_dir": place.out / "frames",
    }
    where = ("--train-root", data, "--model", place.model(training.shape))
    spec = place.out / f"{study.name}.toml"
    build("train", spec, values, *where, "--results-dir", place.out / "runs")
    ranges = ["--range", "train.optm_lr=1e-5..1e-3:log", "--range", "train.optm_weight_decay=0..0.1"]
    kept = {"policy.lora.r": 16, "policy.lora.lora_alpha": 32, "policy.lora.lora_dropout": 0.0, "train.epoch": 1000}
    kept |= {"train.optm_decay_type": "cosine", "train.train_batch_per_replica": training.per_rank}
    ranges += [word for key, value in kept.items() for word in ("--fix", f"{key}={value}")]
    words = ("--algorithm", "bayesian", "--trials", trials, "--concurrent", gpus, "--set", "finals.seeds=[]")
    script("run_automl", "plan", "--study", study, "--spec", spec, *ranges, *words)
    return study


def sampling(samples: list[Sample]) -> Any:
    """Ask nvidia-smi once a second, in the background; call what is returned to end it."""
    program = subprocess.Popen(["nvidia-smi", *SAMPLED], stdout=subprocess.PIPE, text=True)

    def gather() -> None:
        for line in program.stdout or ():
            index, percent = line.split(",")
            samples.append((time.time(), int(index), float(percent) / 100))

    thread = threading.Thread(target=gather)
    thread.start()

    def stop() -> None:
        program.terminate()
        thread.join()

    return stop


def told(study: Path, samples: list[Sample]) -> dict[str, Any]:
    """The share of the time in which GPUs worked, and where the time of each trial went, in seconds."""
    events = read(study).events
    moments = {event["event"]: moment(event) for event in events}
    first, last = moment(events[0]), moments["finished"]
    counted = [share for at, _, share in samples if first + FIRST_S <= at <= last]
    trials = [event["number"] for event in events if event["event"] == "trial"]
    each = [stretches(study, number, events) for number in trials]
    line = {f"median_{key}": median(row[key] for row in each) for key in ("start_s", "steps_s", "end_s")}
    return {"s": last - first, "busy": mean(counted) if counted else None, **line, "each": each}


def stretches(study: Path, number: int, events: list[dict[str, Any]]) -> dict[str, Any]:
    """How long a trial took to its first step, from there to its last, and from there until its end was seen."""
    own = {e["event"]: moment(e) for e in events if str(e.get("work", "")).startswith(f"trial-{number}/")}
    (metrics,) = study.glob(f"trials/{number}/runs/*/metrics.jsonl")
    steps = [event["time"] for event in read_metrics(metrics) if "train/loss" in event]
    first, last = steps[0], steps[-1]
    stretch = {"start_s": first - own["submitted"], "steps_s": last - first, "end_s": own["ended"] - last}
    return {"trial": number, **stretch}


def moment(event: dict[str, Any]) -> float:
    """Unix time of an event of the journal, to the second."""
    return datetime.fromisoformat(event["time"]).timestamp()


if __name__ == "__main__":
    main()
