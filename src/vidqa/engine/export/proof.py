"""The proof of an export: what plain transformers (and stock PEFT) load from it has the trainer's own loss."""

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

# Two orders of summation, in the precision of the export.
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2}


def stock_loss(model: Any, planner: Planner, sample: Sample, frames: Sequence[np.ndarray]) -> float:
    """Mean negative log likelihood of the sample's supervised tokens under transformers' own modules."""
    return token_losses(model, planner, sample, frames).mean().item()


@torch.no_grad()
def token_losses(model: Any, planner: Planner, sample: Sample, frames: Sequence[np.ndarray]) -> torch.Tensor:
    """Negative log likelihoods float32 [N] of the sample's supervised tokens under transformers' own modules. The head
    computes those tokens only, some at a time: logits of a long video's every token would not fit beside the model."""
    device = next(model.parameters()).device
    encoded = planner.encode(sample)
    inputs = stock_inputs(planner, [encoded.token_ids], [sample.plans], [frames], device)
    at = torch.from_numpy(np.flatnonzero(encoded.supervised)).to(device)
    hidden = model.model(**inputs, use_cache=False).last_hidden_state[0, at - 1]
    rows = zip(hidden.split(HEAD_ROWS), inputs["input_ids"][0, at].split(HEAD_ROWS), strict=True)
    nll = [
        F.cross_entropy(model.get_output_embeddings()(part).float(), target, reduction="none") for part, target in rows
    ]
    return torch.cat(nll)


def prove_loss(
    format: ExportFormat,
    export: Path,
    base: Path,
    trainer_loss: float,
    planner: Planner,
    sample: Sample,
    frames: Sequence[np.ndarray],
    dtype: torch.dtype,
    device: torch.device,
    more: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Load the export afresh and compare; writes proof.json into it, with `more`. Raises ENGINE_UNPROVEN."""
    reloaded = stock_loss(format.load(export, base, dtype, device), planner, sample, frames)
    proof = {"sample_id": sample.record.id, "trainer_loss": trainer_loss, "reloaded_loss": reloaded}
    require_same_loss(export, sample, trainer_loss, reloaded, dtype)
    proof |= more or {}
    write_json(export / PROOF, proof)
    return proof


def require_same_loss(export: Path, sample: Sample, expected: float, reloaded: float, dtype: torch.dtype) -> None:
    """Raises ENGINE_UNPROVEN."""
    if not abs(reloaded - expected) <= TOLERANCE[dtype] * max(1.0, abs(expected)):
        message = f"loss of sample {sample.record.id}: trainer {expected:.6f}, reloaded {reloaded:.6f}"
        raise ENGINE_UNPROVEN.error(export, message)
