"""Export formats: files for other programs, written by all ranks, checked and loaded again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vidqa.engine.distributed import World


@dataclass(frozen=True)
class Trained:
    """The source of an export into a folder of `exports`: a model trained from the model folder `base`. Of the model's
    `parameters` only names and placement are used: `own` holds the values that the run trained, on any device; other
    values are the base model's. `lora` is the spec's table, or of a merged adapter its values; None for a full
    fine-tune. `capped` is the spec's cap_pixels_per_frame; None keeps the base model's setting. `precision` is that of
    the quantized base of adapters."""

    exports: Path
    base: Path
    lora: Any
    dtype: torch.dtype
    parameters: Mapping[str, nn.Parameter]
    own: Mapping[str, torch.Tensor]
    capped: bool | None = None
    precision: str | None = None


@dataclass(frozen=True)
class ExportFormat:
    """An export format.

    stem                               its tensors are in `stem`.safetensors, or in several files and an index
    write(trained, name, world)        the folder of an export that is not published yet; every rank takes part.
                                       Raises ENGINE_SAVE_FAILED on all of them; earlier exports are unchanged
    check(export, base)                raises a problem if names or shapes of its tensors are wrong
    load(export, base, dtype, device)  a plain transformers model in eval mode, built by stock libraries. Raises
                                       MODEL_BROKEN, MODEL_UNSUPPORTED
    """

    name: str
    stem: str
    write: Callable[[Trained, str, World], Path]
    check: Callable[[Path, Path], None]
    load: Callable[[Path, Path, torch.dtype, torch.device], Any]
