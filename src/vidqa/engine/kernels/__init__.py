"""Kernels for generation: Triton for CUDA, plain PyTorch for a CPU, with equal signatures."""

from __future__ import annotations

import importlib
from typing import Any

import torch


def kernels_for(device: torch.device) -> Any:
    """The kernel module of a device; Triton is imported for CUDA alone."""
    return importlib.import_module(f"vidqa.engine.kernels.{'cuda' if device.type == 'cuda' else 'plain'}")
