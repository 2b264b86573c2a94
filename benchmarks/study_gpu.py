"""How busy a study keeps GPUs: LoRA trials on 2B shapes with random weights, two at a time on each GPU.

    python benchmarks/study_gpu.py --out DIR --steps 100                 # 8 trials on all GPUs
    python benchmarks/study_gpu.py --out DIR --per-gpu 2 1 --trials 4    # beside one trial on each GPU

nvidia-smi is asked once a second which share of the time a kernel ran. `busy` is the mean over all GPUs from the end of
the study's first minute to its end; where a trial's time goes say `launch_s`, from its proposal to its submission,
`start_s`, to the end of its first step, `steps_s`, to its last step, and `end_s`, to the moment when its end was seen.
Of the end, `measured_s`, `exported_s` and `proved_s` say when after the last step its validation, its export and the
proof of that were done. What varies is the rate and the decay, so that what the first trial compiles serves all; each
study begins with caches of its own. Without a GPU (--tiny) there is no share.
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
from vidqa.automl.journal import read

FIRST_S = 60.0  # of a study: what starts then is not counted
LONGER = 1.2  # a study is begun where time is left for so many times the one before
STRETCHES = ("launch_s", "start_s", "steps_s", "measured_s", "exported_s", "proved_s", "end_s")  # of a trial
COMPILERS = ("TORCHINDUCTOR", "TRITON")
ENDED = ("finished", "stopped", "interrupted")
SAMPLED = ("--query-gpu=index,utilization.gpu", "--format=csv,noheader,nounits", "--loop=1")
Sample = tuple[float, int, float]  # Unix time, GPU, share of the last second in which a kernel ran


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--steps", type=int, default=100, help="of a trial")
    parser.add_argument("--per-gpu", type=int, nargs="+", default=[2], metavar="N", help="trials at a time on a GPU")
    parser.add_argument(
        "--minutes", type=float, default=9.5, help="in all: a study that takes longer is stopped and told"
    )
    options = parser.parse_args()
    began, place, gpus = time.monotonic(), Place(options.out.absolute()), torch.cuda.device_count() or 1
    adopt({"VIDQA_STATE_DIR": str(place.out / "state")})
    training = Training("study", "ours", "2b", 1, SETS["1k-8k"], options.steps, 0)
    training = as_tiny(training, 2) if options.tiny else training
    place.make([training])
    ledger, rows = Ledger("study_gpu", options), []
    for each in options.per_gpu:
        if rows and time.monotonic() - began + LONGER * rows[-1]["s"] > options.minutes * 60:
            print(f"no time is left for {each} on a GPU")
            break
        study = planned(place, training, options.trials, gpus, each)
        left_s = options.minutes * 60 - (time.monotonic() - began)
        row = {"run": f"{training.shape}, {training.steps} steps a trial", "gpus": gpus if place.cuda else 0}
        row |= {"per_gpu": each, "trials": options.trials, **measured(study, left_s, on_gpus=place.cuda)}
        if rows:
            row["times_the_first"] = row["s"] / rows[0]["s"]
        ledger.add(row)
        rows.append(row)
        print(table([{key: value for key, value in row.items() if key != "each"}]), table(row["each"]), sep="\n")


def measured(study: Path, limit_s: float, *, on_gpus: bool) -> dict[str, Any]:
    """A study from its start to its end, or for so many seconds, with caches of its own."""
    adopt({f"{name}_CACHE_DIR": str(study / "compiled" / name) for name in COMPILERS})
    samples: list[Sample] = []
    stop = sampling(samples) if on_gpus else None
    words = ("start", "--study", study, "--wait", "--timeout", max(1.0, limit_s))
    found = script("run_automl", *words, codes=(0, 6))
    if stop:
        stop()
    if found["state"] not in ENDED:
        script("run_automl", "stop", "--study", study)
    return {"state": found["state"], **told(study, samples)}


def planned(place: Place, training: Training, trials: int, gpus: int, per_gpu: int) -> Path:
    """A new study, `per_gpu` trials on each GPU at a time; what earlier calls left is not touched."""
    data = place.clips(training.clips)
    study = place.out / f"study-{time.strftime('%Y%m%dT%H%M%S')}-{per_gpu}"
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
        "engine.frame_cache_dir": study / "frames",
    }
    where = ("--train-root", data, "--model", place.model(training.shape))
    spec = place.out / f"{study.name}.toml"
    build("train", spec, values, *where, "--results-dir", place.out / "runs")
    ranges = ["--range", "train.optm_lr=1e-5..1e-3:log", "--range", "train.optm_weight_decay=0..0.1"]
    kept = {"policy.lora.r": 16, "policy.lora.lora_alpha": 32, "policy.lora.lora_dropout": 0.0, "train.epoch": 1000}
    kept |= {"train.optm_decay_type": "cosine", "train.train_batch_per_replica": training.per_rank}
    ranges += [word for key, value in kept.items() for word in ("--fix", f"{key}={value}")]
    words = ("--algorithm", "bayesian", "--trials", trials, "--concurrent", gpus * per_gpu)
    sets = ("--set", "finals.seeds=[]", "--set", f"resources.trials_per_gpu={per_gpu}")
    script("run_automl", "plan", "--study", study, "--spec", spec, *ranges, *words, *sets)
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
    first, last = (
        moment(events[0]),
        max(moment(event) for event in events if event["event"] not in ("taken", "stopped")),
    )
    counted = [share for at, _, share in samples if first + FIRST_S <= at <= last]
    whole = [event["number"] for event in events if event["event"] == "measured"]
    each = [stretches(study, number, events) for number in whole]
    line = {f"median_{key}": median(row[key] for row in each) for key in STRETCHES if each}
    memory = [row["memory_gib"] for row in each if row["memory_gib"]]
    found = {"ended_trials": len(whole), "s": last - first, "busy": mean(counted) if counted else None, **line}
    return found | {"memory_gib": max(memory, default=None), "each": each}


def stretches(study: Path, number: int, events: list[dict[str, Any]]) -> dict[str, Any]:
    """How long a trial took from each of its moments to the next, and its peak memory."""
    own = {e["event"]: moment(e) for e in events if str(e.get("work", "")).startswith(f"trial-{number}/")}
    proposed = next(moment(e) for e in events if e["event"] == "trial" and e["number"] == number)
    (run,) = study.glob(f"trials/{number}/runs/*")
    rows = list(read_metrics(run / "metrics.jsonl"))
    steps = [row for row in rows if "train/loss" in row]
    first, last = steps[0]["time"], steps[-1]["time"]
    stretch = {"launch_s": own["submitted"] - proposed, "start_s": first - own["submitted"], "steps_s": last - first}
    stretch |= {"measured_s": max(row["time"] for row in rows) - last}
    for name, path in {"exported_s": run / "best.json", "proved_s": run / "run.json"}.items():
        stretch[name] = path.stat().st_mtime - last
    memory = max((row.get("perf/memory_gib") or 0.0 for row in steps), default=0.0)
    return {"trial": number, **stretch, "end_s": own["ended"] - last, "memory_gib": memory}


def moment(event: dict[str, Any]) -> float:
    """Unix time of an event of the journal, to the second."""
    return datetime.fromisoformat(event["time"]).timestamp()


if __name__ == "__main__":
    main()
