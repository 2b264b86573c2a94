"""Main loop of a decode worker: read requests from a pipe, send frames or a problem. Started by `vidqa.video.pool`."""

from __future__ import annotations

import gc
import importlib
import signal
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from vidqa.core.parent_death_signal import end_with
from vidqa.core.problem import ProblemError
from vidqa.video.decode import read_frames
from vidqa.video.image import decode_image
from vidqa.video.pool import OUT_OF_MEMORY, DecodeRequest, FramesFile
from vidqa.video.probe import probe_file

CHUNK = 8  # full-size frames in memory at once, fewer where together they exceed the next number of bytes
CHUNK_BYTES = 1 << 26
Transform = Callable[[np.ndarray, int, int], np.ndarray]


def main(words: list[str]) -> None:
    """Serve requests. `words`: file descriptor of the pipe, parent's process id, transform or "", store or ""."""
    handle, parent, *names = words
    end_with(int(parent))  # even where a decoder hangs; the thread that started this process serves it to its end
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    pipe = Connection(int(handle))
    gc.disable()  # collections during the imports of the two functions take a fifth of the start
    transform, store = (_load(name) if name else None for name in names)
    gc.freeze()
    gc.enable()
    pipe.send("ready")
    while True:
        try:
            request, store_at = pipe.recv()
        except EOFError:  # the pool is closed
            return
        try:
            if not isinstance(request, DecodeRequest):
                pipe.send(probe_file(request))
                continue
            frames = np.ascontiguousarray(decode(request, transform))
        except ProblemError as stopped:
            pipe.send(stopped.problems[0])
            continue
        except MemoryError:
            sys.exit(OUT_OF_MEMORY)
        if store_at and store is not None and _stored(store, store_at, frames):
            pipe.send(FramesFile(store_at))
            continue
        pipe.send(frames.shape)
        pipe.send_bytes(frames.reshape(-1).data)


def _stored(store: Callable[[str, np.ndarray], None], path: str, frames: np.ndarray) -> bool:
    """Whether the frames could be written; if not, the requester gets the frames and reports the reason."""
    try:
        store(path, frames)
    except OSError:
        return False
    return True


def decode(request: DecodeRequest, transform: Transform | None) -> np.ndarray:
    """Decode one request to uint8 frames, transformed a few at a time so that long videos need little memory."""
    if request.kind == "image":
        pictures: Iterator[np.ndarray] = iter(decode_image(request.path, request.member))
        positions = np.zeros(1, int)
    else:
        numbers, positions = np.unique(np.asarray(request.indices, int), return_inverse=True)
        pictures = read_frames(request.path, request.member, numbers.tolist())
    done = []
    for first in pictures:
        others = min(CHUNK, CHUNK_BYTES // first.nbytes) - 1
        frames = np.stack([first, *islice(pictures, max(0, others))])
        done.append(frames if transform is None else transform(frames, request.height, request.width))
    return np.concatenate(done)[positions]


def _load(name: str) -> Callable[..., Any]:
    module, function = name.split(":")
    return getattr(importlib.import_module(module), function)
