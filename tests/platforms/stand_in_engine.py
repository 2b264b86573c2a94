"""A small program with the engine's command line and manners, so that platforms can be tested without training.

What it does is the spec's `logging.experiment_name`: complete, hang, stubborn, fail, killed, silent, greedy (for
memory), resumable, which hangs until it is asked to save and completes the next time, or late, which is complete and
then ends as torchrun does when it is asked to stop.
"""

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("action")
parser.add_argument("--spec", type=Path, required=True)
parser.add_argument("--run-dir", type=Path, required=True)
parser.add_argument("--go-on", action="store_true")
parser.add_argument("--verify", action="store_true")
options = parser.parse_args()
spec = tomllib.loads(options.spec.read_text())
manner = spec["logging"]["experiment_name"]


def say(state: str, exit_code: int | None = None, message: str = "") -> None:
    if os.environ.get("RANK", "0") == "0":
        said = {"state": state, "step": 1, "total_steps": 2, "eta_s": 1.0, "message": message, "exit_code": exit_code}
        temporary = options.run_dir / "status.json.part"
        temporary.write_text(json.dumps(said))
        temporary.rename(options.run_dir / "status.json")


def stop(*_: object) -> None:
    for again in (signal.SIGTERM, signal.SIGUSR1):  # a second one must not end a process that is ending well
        signal.signal(again, signal.SIG_IGN)
    if manner == "late":
        sys.exit(6)
    (options.run_dir / f"saved-by-rank-{os.environ['RANK']}").touch()
    say("STOPPED", 6, "saved")
    sys.exit(0)  # as the engine: torchrun is not to report a failure


for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, signal.SIG_IGN if manner == "stubborn" else stop)
helper = subprocess.Popen(["/bin/sleep", "600"]) if manner != "complete" else None
say("RUNNING")
print(f"manner {manner}, rank {os.environ.get('RANK')}, threads {os.environ.get('OMP_NUM_THREADS')}", flush=True)
if "HF_TOKEN" in os.environ:
    print(f"HF_TOKEN has sha256 {hashlib.sha256(os.environ['HF_TOKEN'].encode()).hexdigest()}", flush=True)
saved = (options.run_dir / "saved-by-rank-0").exists()
if manner == "late":  # no rank is done before all have begun
    (options.run_dir / f"begun-by-rank-{os.environ['RANK']}").touch()
    while len(list(options.run_dir.glob("begun-by-*"))) < spec["policy"]["parallelism"]["dp_shard_size"]:
        time.sleep(0.05)
    say("COMPLETE", 0, "done")
if manner in ("hang", "stubborn", "late") or (manner == "resumable" and not saved):
    while True:
        time.sleep(0.05)
if manner == "fail":
    problem = {"code": "DATA_EMPTY", "where": "a.json", "message": "no record", "remedy": "write one", "exit_code": 3}
    (options.run_dir / "problems.json").write_text(json.dumps([problem]))
    say("ERROR", 3, "no record")
    sys.exit(3)
if manner == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if manner == "greedy":
    taken = [bytearray(os.urandom(1 << 20)) for _ in range(1 << 12)]
if manner != "silent":
    say("COMPLETE", 0, "done")
print("the last line", flush=True)
