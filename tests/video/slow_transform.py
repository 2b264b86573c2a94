"""Transforms for the pool's tests: what a worker does to frames, slowly, fatally, or not at all."""

import os
import signal
import time

import numpy as np
from clips import frame_numbers

HANGS, DIES, RAISES = 100, 200, 300  # first frame numbers of the clips that make trouble


def numbers(frames: np.ndarray, height: int, width: int) -> np.ndarray:
    """uint8 [N, 1, height, width] filled with each frame's number."""
    first = frame_numbers(frames)[0]
    if HANGS <= first < DIES:
        os.write(2, b"hangs\n")  # in one piece, though two workers may say it at once
        time.sleep(600)
    elif DIES <= first < RAISES:
        os.kill(os.getpid(), signal.SIGKILL)
    elif first >= RAISES:
        raise ZeroDivisionError("a bug in a transform")
    return np.stack([np.full((1, height, width), number, np.uint8) for number in frame_numbers(frames)])


def save(path: str, frames: np.ndarray) -> None:
    np.save(path, frames)
