"""Looks for leaks in a server: requests of all kinds, 32 at a time; the memory of its processes, sampled.

python benchmarks/soak_serving.py --requests 1000 --out DIR

A real server on a tiny model is asked by OpenAI's client: videos that are sent and videos by name, one frame to
sixteen, images, streams, several answers, JSON, broken files, questions that are too long, clients that leave. Every
request has to end as it should. Memory is counted and judged as by `soak_training.py`, after a warm-up: libraries and
caches grow during the first hundreds.
"""

from __future__ import annotations

import base64
import re
import signal
import sys
import threading
import time
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import quantiles
from typing import Any

import openai
from ledger import Ledger, arguments, table
from processes import Started, kill_tree, start_server
from shapes import write_random_model
from soak_training import sample, verdict
from video_set import QUESTIONS, SetShape, corpus, write_set

CLIPS = SetShape(12, (1, 3), width=96, height=64)
AT_ONCE = 32
TOKENS = 16
EVERY_S = 1.0
SETS = ("model.max_length=8192", "inference.batch_size=16", "model.dtype=float32", "engine.decode_workers=1")
# What every twenty requests are, and how each has to end.
KINDS = (
    *["sent"] * 5,  # bytes that no other request has
    *["named"] * 5,
    *["stream"] * 3,
    *["several", "several", "json", "text"],
    *["broken", "long", "leaving"],
)
EXPECTED = {"broken": "VIDEO_UNREADABLE", "long": "SAMPLE_TOO_LONG", "leaving": "left"}


class Asking:
    """The clients: `ask(number)` is one request and says how it ended."""

    def __init__(self, address: str, data: Path, number: int = 0) -> None:
        """The first request is called `number`."""
        self.first = number
        self.client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=600)
        self.clips = sorted(data.glob("*.mp4"))
        self.seconds: list[float] = []
        self.ended: Counter[str] = Counter()
        self.wrong: list[str] = []

    def ask(self, number: int) -> None:
        number += self.first
        kind, began = KINDS[number % len(KINDS)], time.perf_counter()
        try:
            found = self._outcome(kind, number)
        except openai.APIStatusError as refused:
            found = str(refused.code)
        self.ended[found] += 1
        if found != EXPECTED.get(kind, "answered"):
            self.wrong.append(f"request {number}, {kind}: {found}")
        self.seconds.append(time.perf_counter() - began)

    def _outcome(self, kind: str, number: int) -> str:
        clip, question = self.clips[number % len(self.clips)], QUESTIONS[number % len(QUESTIONS)]
        data = {"sent": clip.read_bytes() + number.to_bytes(4, "big"), "broken": b"no video" * 99}.get(kind)
        url = f"data:video/mp4;base64,{base64.b64encode(data).decode()}" if data else clip.as_uri()
        shown = [] if kind == "text" else [{"type": "video_url", "video_url": {"url": url}}]
        content = [*shown, {"type": "text", "text": question * (2000 if kind == "long" else 1)}]
        extra: dict[str, Any] = {"mm_processor_kwargs": {"nframes": 1 + number % 16}}
        if kind == "json":
            extra["structured_outputs"] = {"choice": ["yes", "no"]}
        request = {"model": "random", "messages": [{"role": "user", "content": content}], "extra_body": extra}
        tokens = 2000 if kind == "leaving" else TOKENS
        create = self.client.chat.completions.create
        if kind in ("stream", "leaving"):
            stream = create(**request, max_tokens=tokens, stream=True, temperature=1.0)
            if kind == "leaving":
                next(iter(stream))
                stream.close()
                return "left"
            return "answered" if [part for part in stream][-1].choices[0].finish_reason else "cut off"
        answers = create(**request, max_tokens=tokens, n=3 if kind == "several" else 1, logprobs=kind == "several")
        return "answered" if all(choice.finish_reason for choice in answers.choices) else "cut off"


def soak(asking: Asking, started: Started, requests: int) -> list[dict[str, Any]]:
    """All requests, and the memory meanwhile."""
    samples: list[dict[str, Any]] = []
    over = threading.Event()

    def look() -> None:
        while not over.wait(EVERY_S):
            if done := sum(asking.ended.values()):
                samples.append(sample(started, done))

    looking = threading.Thread(target=look)
    looking.start()
    try:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(asking.ask, range(requests)))
    finally:
        over.set()
        looking.join()
    return samples


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument(
        "--warm-up", type=int, default=1000, metavar="N", help="requests before those that are measured"
    )
    options = parser.parse_args()
    out = options.out.resolve()
    requests, warm_up = (60, 0) if options.tiny else (options.requests, options.warm_up)
    model = write_random_model("tiny", out / "model", corpus(), "cpu")
    data = write_set(out / CLIPS.name, CLIPS)
    started, address = start_server(model, data, out / "serving", 7200, SETS)
    try:
        before = Asking(address, data, number=requests)
        soak(before, started, warm_up)
        asking, began = Asking(address, data), time.perf_counter()
        samples = soak(asking, started, requests)
        seconds = time.perf_counter() - began
        with urllib.request.urlopen(f"{address}/metrics") as answer:
            inside = re.search(r"^vidqa_requests_running (\S+)$", answer.read().decode(), re.MULTILINE)
        started.process.send_signal(signal.SIGTERM)
        ended = started.process.wait(60)
    finally:
        if started.process.poll() is None:
            kill_tree(started.process)
    cuts = quantiles(asking.seconds, n=100)
    row = {"warm-up": warm_up, "requests": requests, "seconds": seconds, "requests/s": requests / seconds}
    row |= {"median_s": cuts[49], "p99_s": cuts[98], **dict(asking.ended)}
    row |= {"still inside": float(inside[1]) if inside else None, "exit code": ended, **verdict(samples, requests)}
    Ledger("soak_serving", options).add(row)
    print(table([row], without=["curve"]), row.get("curve"), sep="\n")
    wrong = [*before.wrong, *asking.wrong]
    failed = wrong or ended or (row["flat"] is False and not options.tiny)
    if failed:
        sys.exit("\n".join([*wrong[:20], started.log.read_text(errors="replace")[-3000:]]))


if __name__ == "__main__":
    main()
