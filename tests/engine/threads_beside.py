"""Prints how many threads compute for the thread of a training, and for one that it starts.

python threads_beside.py
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch

from vidqa.engine.training.trainer import compute_in_this_thread


def numbers() -> tuple[int, int]:
    compute_in_this_thread()
    with ThreadPoolExecutor(1) as beside:
        return torch.get_num_threads(), beside.submit(torch.get_num_threads).result()


# Of all threads that have not computed yet, as OMP_NUM_THREADS would; the one that forked has.
with ThreadPoolExecutor(1) as setting:
    setting.submit(torch.set_num_threads, 2).result()
with ThreadPoolExecutor(1) as training:
    print(*training.submit(numbers).result())
