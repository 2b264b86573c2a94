"""A training that takes no time: the engine's command line, its files, and a loss that is a function of the rate.

What goes wrong is the spec's `logging.experiment_name`: nothing ("well"); for rates above 3e-3 "nan", "memory", and
"undefined", which completes with a loss that is no number; "killed" for a first attempt; "hang" until it is asked to
stop, once; "slow" for a second that may be killed.
"""

import argparse
import json
import math
import os
import signal
import sys
import time
import tomllib
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("action")
parser.add_argument("--spec", type=Path, required=True)
parser.add_argument("--run-dir", type=Path, required=True)
parser.add_argument("--go-on", action="store_true")
options = parser.parse_args()
spec, run = tomllib.loads(options.spec.read_text()), options.run_dir
train, manner = spec["train"], spec["logging"]["experiment_name"]
steps, rate = train.get("max_num_steps", 6), train["optm_lr"]
first = not (run / "attempts").exists()
with (run / "attempts").open("a") as attempts:
    attempts.write("one\n")
(run / "gpus").write_text(os.environ.get("CUDA_VISIBLE_DEVICES", ""))


def write(name: str, value: object) -> None:
    path = run / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_name(f".{path.name}").write_text(json.dumps(value))
    path.with_name(f".{path.name}").rename(path)


def say(state: str, exit_code: int | None = None) -> None:
    write("status.json", {"state": state, "step": steps, "total_steps": steps, "exit_code": exit_code, "message": ""})


def stop(*_: object) -> None:
    say("STOPPED", 6)
    sys.exit(0)


def fail(code: str, exit_code: int) -> None:
    problem = {"code": code, "where": "step 1", "message": "it did", "remedy": "do not", "exit_code": exit_code}
    write("problems.json", [problem])
    say("ERROR", exit_code)
    sys.exit(exit_code)


signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGUSR1, stop)
say("RUNNING")
if manner == "hang" and first:
    while True:
        time.sleep(0.05)
if manner == "killed" and first:
    os.kill(os.getpid(), signal.SIGKILL)
if manner in ("nan", "memory") and rate > 3e-3:
    fail({"nan": "ENGINE_NOT_FINITE", "memory": "ENGINE_OUT_OF_MEMORY"}[manner], 5)
if manner == "slow":
    time.sleep(1.0)
resumed = train.get("resume")
start = 0
if isinstance(resumed, str):
    start = json.loads((Path(resumed) / "trainer.json").read_text())["step"]
    facts = json.loads((run / "run.json").read_text())
    write("run.json", {**facts, "resumes": [{"from": resumed, "step": start, "changed": []}]})
loss = (math.log10(rate) + 3) ** 2 + 1 / (1 + steps)
if manner == "undefined" and rate > 3e-3:
    loss = math.nan
rows = [{"step": step, "time": 0.0, "train/loss": loss + steps - step} for step in range(start + 1, steps + 1)]
before = [{"step": 0, "time": 0.0, "val/avg_loss": 9.0}] if spec["validation"]["val_before_train"] else []
rows = [*before, *rows, {"step": steps, "time": 0.0, "val/avg_loss": loss, "val/accuracy": 0.5}]
(run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
checkpoint = f"checkpoints/step_{steps}"
write(f"{checkpoint}/policy/.metadata", {})
write(f"{checkpoint}/trainer.json", {"step": steps})
say("COMPLETE", 0)
