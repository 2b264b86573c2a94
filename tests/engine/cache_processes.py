"""Processes that share a frame cache, for tests that fork them.

python cache_processes.py crowd FOLDER LIMIT STOP
python cache_processes.py full FOLDER
python cache_processes.py ranks FOLDER CLIP ...
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing import Barrier
from pathlib import Path
from typing import Any

import numpy as np

from vidqa.data.record import MediaRef, Record, Turn
from vidqa.engine.data.frame_cache import FrameCache, write_entry
from vidqa.engine.data.frames import FrameSource
from vidqa.planning.samples import Prompting, Sample
from vidqa.video.types import FramePlan


def forked(work: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException as failed:  # noqa: BLE001  the fork must not go on with what its parent does
            print(repr(failed), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    return pid


def exit_codes(pids: list[int]) -> list[int]:
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


def crowd(folder: Path, limit_bytes: int, stop: Path) -> None:
    """Three processes read, write and evict as ranks do, and others are killed at any moment; prints the exit codes of
    the three."""

    def frames_of(number: int) -> np.ndarray:
        return np.random.default_rng(number).integers(0, 256, (2 + number % 5, 3, 32, 32), dtype=np.uint8)

    def work(seed: int) -> None:
        # Some maps are kept while others evict what they show.
        cache, drawn, held = FrameCache(folder, limit_bytes), random.Random(seed), []
        while not stop.exists():
            number = drawn.randrange(60)
            key = f"{number:064d}"
            frames = cache.get(key)
            if frames is None and number % 2:
                assert cache.put(key, frames_of(number)) is None
            elif frames is None:
                temporary = cache.temporary(key)
                write_entry(temporary, frames_of(number))
                frames, warning = cache.adopt(key, temporary)
                assert warning is None
            if frames is not None:
                held = [*held[-20:], (number, frames)]
            for earlier, mapped in drawn.sample(held, min(3, len(held))):
                assert (mapped == frames_of(earlier)).all(), earlier

    steady = [forked(lambda seed=seed: work(seed)) for seed in range(3)]
    drawn = random.Random(99)
    for number in range(20):  # one more, killed at any moment, again and again
        victim = forked(lambda seed=1000 + number: work(seed))
        time.sleep(drawn.uniform(0.0, 0.1))
        os.kill(victim, signal.SIGKILL)
        os.waitpid(victim, 0)
    stop.touch()
    print(exit_codes(steady))


def full(folder: Path) -> None:
    """A cache whose disk takes no more large files."""
    cache = FrameCache(folder, 1 << 30)
    cache.put("a" * 64, np.full((4, 3, 32, 32), 1, np.uint8))
    resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
    first = cache.put("b" * 64, np.full((40, 3, 32, 32), 1, np.uint8))
    again = cache.put("c" * 64, np.full((40, 3, 32, 32), 1, np.uint8))
    print(first.code, first.severity, again, cache.get("a" * 64).shape, cache.get("b" * 64))


def sample_of(path: Path) -> Sample:
    plan = FramePlan("video", (0, 3), (0.0, 0.5), 64, 64, (1, 4, 4), 4, 16, (0.25,))
    record = Record(path.stem, (Turn("user", (0, "?")),), (MediaRef("video", path.name, str(path)),))
    return Sample(record, (plan,), Prompting(), 10, 0)


def ranks(folder: Path, paths: list[Path]) -> None:
    """Two processes want the same videos; each prints how many it has decoded, sums of pixels, and problems. The first
    video that one has decoded waits for the first of the other: on a busy machine one alone would decode all."""
    both = Barrier(2, timeout=60)

    def rank() -> None:
        cache = FrameCache(folder, 1 << 30)
        decoded, adopt = list[str](), cache.adopt

        def counted(key: str, temporary: Path) -> Any:
            if not decoded:
                both.wait()
            decoded.append(key)
            return adopt(key, temporary)

        cache.adopt = counted  # type: ignore[method-assign]
        source = FrameSource(1, 60.0, cache)
        frames, problems = source.collect(source.request([sample_of(path) for path in paths]))
        sums = [None if array is None else int(array.sum()) for (array,) in frames]
        os.write(1, (json.dumps([len(decoded), sums, sorted(map(str, problems))]) + "\n").encode())  # one write a line
        source.close()

    sys.exit(max(exit_codes([forked(rank) for _ in range(2)])))


if __name__ == "__main__":
    command, cache_folder, *words = sys.argv[1:]
    match command:
        case "crowd":
            crowd(Path(cache_folder), int(words[0]), Path(words[1]))
        case "full":
            full(Path(cache_folder))
        case "ranks":
            ranks(Path(cache_folder), [Path(word) for word in words])
