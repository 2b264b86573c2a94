"""The one place that reads environment variables, so that what the program takes from outside can be listed."""

from __future__ import annotations

import os
from pathlib import Path


def hf_token() -> str | None:
    """The Hugging Face token, by the two names huggingface_hub knows."""
    return os.environ.get("HF_TOKEN") or os.environ.get("HUGGING_FACE_HUB_TOKEN") or None


def wandb_has_key() -> bool:
    return bool(os.environ.get("WANDB_API_KEY"))


def state_folder() -> Path:
    """Where job records live: outside any results, so that deleting results never loses a job."""
    return Path(os.environ.get("VIDQA_STATE_DIR") or Path.home() / ".vidqa")


def cache_folder() -> Path:
    """Where the frame cache and media probes live."""
    return Path(os.environ.get("VIDQA_CACHE_DIR") or Path.home() / ".cache" / "vidqa")


def rank() -> int:
    """This process's rank, as torchrun sets it; 0 outside torchrun."""
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def child_environment(**changes: str) -> dict[str, str]:
    """The environment of a child process: ours with some changes."""
    return {**os.environ, **changes}
