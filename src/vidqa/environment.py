"""The one place that reads environment variables, so that what the program takes from outside can be listed."""

from __future__ import annotations

import os
from pathlib import Path


def hf_token() -> str | None:
    """The Hugging Face token, by the two names huggingface_hub knows."""
    return os.environ.get("HF_TOKEN") or os.environ.get("HUGGING_FACE_HUB_TOKEN") or None


def hf_endpoint() -> str | None:
    """The hub's address where it is not huggingface.co: a mirror, or a server of the user's own."""
    return os.environ.get("HF_ENDPOINT") or None


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


def visible_gpus() -> list[str] | None:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves, as written there; None where it is not set."""
    written = os.environ.get("CUDA_VISIBLE_DEVICES")
    if written is None:
        return None
    names = [name.strip() for name in written.split(",")]
    return [name for name in names if name and name != "-1"]


def has(name: str) -> bool:
    """Whether a variable is set: for secrets that travel by name, and settings that the user's own value overrules."""
    return bool(os.environ.get(name))


def python_path(first: Path) -> str:
    """A PYTHONPATH that finds `first` before whatever it finds now."""
    return os.pathsep.join([str(first), *filter(None, [os.environ.get("PYTHONPATH")])])


def child_environment(**changes: str) -> dict[str, str]:
    """The environment of a child process: ours with some changes."""
    return {**os.environ, **changes}
