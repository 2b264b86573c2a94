"""A server under load: tokens per second and memory while clients ask about clips, sixteen at a time.

    python benchmarks/serving.py --out DIR [--shape 2b]

A real server on random weights, over plain HTTP. A first load asks about every clip, so that kernels are
compiled, graphs captured and frames in the cache. Memory is measured between requests: that of the GPU by
nvidia-smi, without a GPU that of the server's processes.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from ledger import Ledger, arguments, table
from processes import Started, family_of, kill_tree, start_server
from shapes import SHAPES
from training import FPS, Place, Training, as_tiny
from video_set import QUESTIONS, SetShape

AT_ONCE = 16
CLIPS = SetShape(24, (5, 40))
GPU_MEMORY = ("--query-gpu=memory.used", "--format=csv,noheader,nounits")
SETS = ("model.max_length=16384", "vision.nframes=null", f"vision.fps={FPS}")


class Clients:
    """Clients of a server. `ask(number)` sends a request; `answers` has (seconds, prompt tokens, answer tokens)."""

    def __init__(self, address: str, data: Path, tokens: int) -> None:
        self.address, self.tokens = f"{address}/v1/chat/completions", tokens
        self.clips = sorted(data.glob("*.mp4"))
        self.answers: list[tuple[float, int, int]] = []

    def ask(self, number: int) -> None:
        clip, question = self.clips[number % len(self.clips)], QUESTIONS[number % len(QUESTIONS)]
        content = [{"type": "video_url", "video_url": {"url": clip.as_uri()}}, {"type": "text", "text": question}]
        messages = [{"role": "user", "content": content}]
        body = json.dumps({"model": "random", "messages": messages, "max_tokens": self.tokens}).encode()
        request = urllib.request.Request(self.address, body, {"Content-Type": "application/json"})
        began = time.perf_counter()
        with urllib.request.urlopen(request, timeout=300) as answer:
            usage = json.load(answer)["usage"]
        self.answers.append((time.perf_counter() - began, usage["prompt_tokens"], usage["completion_tokens"]))


def memory_mib(started: Started) -> float:
    if program := shutil.which("nvidia-smi"):
        return sum(map(float, subprocess.run([program, *GPU_MEMORY], capture_output=True, text=True).stdout.split()))
    pages = [Path(f"/proc/{pid}/statm").read_text().split()[1] for pid in family_of(started.process.pid)]
    return sum(map(int, pages)) / 256


def under_load(clients: Clients, started: Started, requests: int) -> dict[str, Any]:
    """Send one load of requests; returns speed and memory, sampled twice per second."""
    clients.answers.clear()
    memory, began = [memory_mib(started)], time.perf_counter()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        futures = [pool.submit(clients.ask, number) for number in range(requests)]
        while not all(future.done() for future in futures):
            time.sleep(0.5)
            memory.append(memory_mib(started))
    for future in futures:
        future.result()
    took = time.perf_counter() - began
    seconds, prompts, tokens = zip(*clients.answers, strict=True)
    return {
        "requests/s": requests / took,
        "answer tokens/s": sum(tokens) / took,
        "prompt tokens/s": sum(prompts) / took,
        "median_s": median(seconds),
        "p99_s": quantiles(seconds, n=100)[98],
        "memory_mib_first": memory[0],
        "memory_mib_last": memory[-1],
        "memory_mib_most": max(memory),
    }


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--shape", choices=list(SHAPES), default="2b")
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=64, help="of an answer (64)")
    options = parser.parse_args()
    place, training = Place(options.out.resolve()), Training("", "ours", options.shape, 1, CLIPS, 1, 0)
    training = as_tiny(training, 1) if options.tiny else training
    requests, tokens = (20, 8) if options.tiny else (options.requests, options.tokens)
    place.make([training])
    data = place.clips(training.clips)
    sets = ("model.max_length=8192", "model.dtype=float32") if options.tiny else SETS
    started, address = start_server(place.model(training.shape), data, place.out / "serving", 7200, sets)
    opened_s = time.time() - started.began
    try:
        clients = Clients(address, data, tokens)
        under_load(clients, started, max(AT_ONCE, len(clients.clips)))
        row = under_load(clients, started, requests)
        started.process.send_signal(signal.SIGTERM)
        ended = started.process.wait(60)
    finally:
        if started.process.poll() is None:
            kill_tree(started.process)
    row = {"run": training.shape, "requests": requests, "at once": AT_ONCE, "opened_s": opened_s, **row}
    Ledger("serving", options).add({**row, "exit code": ended})
    print(table([row]))
    if ended:
        sys.exit(started.log.read_text(errors="replace")[-3000:])


if __name__ == "__main__":
    main()
