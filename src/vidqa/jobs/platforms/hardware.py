"""The GPUs and cores of this machine, without torch."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from vidqa.core import environment


def gpu_count() -> int:
    """The number of NVIDIA GPUs that a job started here would see."""
    present = _installed_gpus()
    allowed = environment.visible_gpus()
    return present if allowed is None else min(present, len(allowed))


def cpu_count() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def _installed_gpus() -> int:
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return sum(1 for device in Path("/dev").glob("nvidia*") if re.fullmatch(r"nvidia\d+", device.name))
    return sum(1 for line in listed.splitlines() if line.startswith("GPU "))
