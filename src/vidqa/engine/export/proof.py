"""The proof of an export: the model loaded from it by unmodified transformers and PEFT reproduces the trainer's loss.
"Stock" means their own modules and forward pass, without this engine's packing and kernels.

Shape letters: N supervised tokens of a sample.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from vidqa.core.files import write_json
from vidqa.core.run_folder import PROOF
from vidqa.engine.data.collate import stock_inputs
from vidqa.engine.export._base import ExportFormat
from vidqa.engine.model.chunked_head import HEAD_ROWS
from vidqa.engine.problems import ENGINE_UNPROVEN
from vidqa.planning.samples import Planner, Sample

# Largest difference of two losses, relative above 1, absolute below: sums in two orders, in that precision.
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2}


def stock_loss(model: Any, planner: Planner, sample: Sample, frames: Sequence[np.ndarray]) -> float:
    """Mean negative log-likelihood of the sample's supervised tokens under transformers' own modules. `frames` has an
    array for each video or image of the sample."""
    return token_losses(model, planner, sample, frames).mean().item()


@torch.no_grad()
def token_losses(model: Any, planner: Planner, sample: Sample, frames: Sequence[np.ndarray]) -> torch.Tensor:
    """Negative log-likelihoods, float32 [N], of the sample's supervised tokens under transformers' own modules. The
    head runs on these alone, HEAD_ROWS at a time: logits of all tokens of a long video would not fit in memory."""
    device = next(model.parameters()).device
    encoded = planner.encode(sample)
    inputs = stock_inputs(planner, [encoded.token_ids], [sample.plans], [frames], device)
    at_N = torch.from_numpy(np.flatnonzero(encoded.supervised)).to(device)
    hidden_ND = model.model(**inputs, use_cache=False).last_hidden_state[0, at_N - 1]
    chunks = zip(hidden_ND.split(HEAD_ROWS), inputs["input_ids"][0, at_N].split(HEAD_ROWS), strict=True)
    head = model.get_output_embeddings()
    return torch.cat([F.cross_entropy(head(hidden).float(), target, reduction="none") for hidden, target in chunks])


def prove_loss(
    export_format: ExportFormat,
    export: Path,
    base: Path,
    trainer_loss: float,
    planner: Planner,
    sample: Sample,
    frames: Sequence[np.ndarray],
    dtype: torch.dtype,
    device: torch.device,
    facts: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Load the export again, on `base` if it is an adapter, and compare its loss of `sample` with the trainer's. Writes
    proof.json with `facts` into the export and returns its content. Raises ENGINE_UNPROVEN if the losses differ."""
    reloaded = stock_loss(export_format.load(export, base, dtype, device), planner, sample, frames)
    proof = {"sample_id": sample.record.id, "trainer_loss": trainer_loss, "reloaded_loss": reloaded}
    require_same_loss(export, sample, trainer_loss, reloaded, dtype)
    proof |= facts or {}
    write_json(export / PROOF, proof)
    return proof


def require_same_loss(export: Path, sample: Sample, trainer_loss: float, reloaded: float, dtype: torch.dtype) -> None:
    """Raise ENGINE_UNPROVEN if the losses differ by more than TOLERANCE, or one is not a number."""
    if not abs(reloaded - trainer_loss) <= TOLERANCE[dtype] * max(1.0, abs(trainer_loss)):
        message = f"loss of sample {sample.record.id}: trainer {trainer_loss:.6f}, reloaded {reloaded:.6f}"
        raise ENGINE_UNPROVEN.error(export, message)
