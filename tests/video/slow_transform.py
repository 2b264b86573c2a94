"""Transforms for the pool's tests: what a worker does to frames, slowly, fatally, or not at all."""

import os
import resource
import signal
import time

import numpy as np
from clips import frame_numbers

from vidqa.data import near_duplicates

HANGS, DIES, RAISES, CRASHES = 100, 200, 300, 400  # first frame numbers of the clips that make trouble


def numbers(frames: np.ndarray, height: int, width: int) -> np.ndarray:
    """uint8 [N, 1, height, width] filled with each frame's number."""
    first = frame_numbers(frames)[0]
    if HANGS <= first < DIES:
        os.write(2, b"hangs\n")  # in one piece, though two workers may say it at once
        time.sleep(600)
    elif DIES <= first < RAISES:
        os.kill(os.getpid(), signal.SIGKILL)
    elif RAISES <= first < CRASHES:
        raise ZeroDivisionError("a bug in a transform")
    elif first >= CRASHES:
        os.kill(os.getpid(), signal.SIGSEGV)
    return np.stack([np.full((1, height, width), number, np.uint8) for number in frame_numbers(frames)])


def killed_once(frames: np.ndarray, height: int, width: int) -> np.ndarray:
    """`numbers`, for whose first call the worker is killed: a file of its parent's number says that it was."""
    mark = f"/tmp/slow_transform.{os.getppid()}"
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        os.unlink(mark)
        return numbers(frames, height, width)
    os.write(2, b"killed\n")
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("killed")


def needs_too_much(frames: np.ndarray, height: int, width: int) -> np.ndarray:
    resource.setrlimit(resource.RLIMIT_AS, (1 << 32, 1 << 32))
    return np.zeros((len(frames), 1 << 33), np.uint8)


def thumbnails(frames: np.ndarray, height: int, width: int) -> np.ndarray:
    """Preflight's, by a worker that is killed by the clips that kill."""
    numbers(frames, height, width)
    return near_duplicates.thumbnails(frames, height, width)


def save(path: str, frames: np.ndarray) -> None:
    np.save(path, frames)
