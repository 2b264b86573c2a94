"""Resumable training state: sharded, written beside the training, published by rename, loadable on any number of ranks.

    <run>/checkpoints/step_N/policy/      PyTorch DCP: what the run trains, and the optimizer's moments
    <run>/checkpoints/step_N/trainer.json step, fingerprints, effective batch, sizes and checksums of the files

Frozen parameters are not saved: they come from the base model again. Rates, decay and the like are not saved either:
they are the spec's.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.serialization import set_crc32_options

from vidqa.core.files import remove, write_json
from vidqa.core.run_folder import TRAINER, RunFolder, changed_file, read_checkpoint
from vidqa.engine.checkpoint.dcp_io import Reader, Writer, read_table
from vidqa.engine.distributed import World
from vidqa.engine.loading.freeze import is_adapter
from vidqa.engine.loading.fsdp import reshard
from vidqa.engine.problems import (
    ENGINE_NO_CHECKPOINT,
    ENGINE_RESUME_MISMATCH,
    ENGINE_SAVE_FAILED,
    with_free_space,
)

MOMENTS = ("exp_avg", "exp_avg_sq")  # what Adam and AdamW hold of each parameter, besides the number of steps
SCALES = ("exp_avg_scale", "exp_avg_sq_scale")  # and of each block of its rows, where these are 8-bit codes


def sharded_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """This rank's parameters by name, as the optimizer knows them. A forward without a backward leaves some gathered,
    in compute precision; they are freed."""
    reshard(model)
    return dict(model.named_parameters())


def own_weights(model: nn.Module) -> dict[str, torch.Tensor]:
    """Tensors that a run has beyond the base model, by their names in the model: trained ones, and adapters even if
    they are frozen."""
    parameters = sharded_parameters(model).items()
    return {name: parameter.detach() for name, parameter in parameters if parameter.requires_grad or is_adapter(name)}


def training_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Weights and the optimizer's moments by name."""
    state = own_weights(model)
    for name, parameter in sharded_parameters(model).items():
        if parameter.requires_grad:
            moments = optimizer.state[parameter]
            state |= {f"{name}.{moment}": moments[moment] for moment in (*MOMENTS, *SCALES) if moment in moments}
    return state


def save_state(
    run: RunFolder, world: World, name: str, tensors: Mapping[str, torch.Tensor], trainer: dict[str, Any]
) -> None:
    """Write and publish `checkpoints/<name>`; every rank takes part and writes its own rows. Raises
    ENGINE_SAVE_FAILED on all of them when one cannot write."""
    folder = world.on_main(lambda: run.begin(run.checkpoints, name))
    failure, writer = None, Writer(folder)
    # PyTorch's own checksums, of every tensor, take ten times as long as writing, and no reader looks at them.
    set_crc32_options(False)
    try:
        # Who writes what is the same in every save of a run: agreed on once, not over and over beside the training.
        planner = dcp.DefaultSavePlanner(enable_plan_caching=True)
        dcp.save(dict(tensors), storage_writer=writer, planner=planner, process_group=world.objects)
    except (OSError, RuntimeError, CheckpointException) as full:
        failure = with_free_space(_cause(full), folder)
    everyone = world.gather((failure, writer.written))
    if failures := [text for text, _ in everyone if text]:
        if world.is_main:
            remove(folder, owner=run.checkpoints)
        message = f"the checkpoint could not be written: {failures[0]}"
        raise ENGINE_SAVE_FAILED.error(folder.parent, message)

    def publish() -> None:
        files = {name: file for _, written in everyone for name, file in written.items()}
        write_json(folder / TRAINER, {**trainer, "files": dict(sorted(files.items()))})
        run.publish(folder)

    world.on_main(publish)


def _cause(failure: BaseException) -> str:
    """The cause of a failure, without the tracebacks of every rank that DCP puts into its message."""
    causes = [cause for cause, _ in failure.failures.values()] if isinstance(failure, CheckpointException) else []
    return str(next(iter(causes), failure)) or type(failure).__name__


def inspect(folder: Path, world: World) -> dict[str, Any]:
    """trainer.json of a checkpoint that is whole; the ranks read its files together. Raises
    ENGINE_NO_CHECKPOINT where there is none, or its files are not what was written."""

    def facts() -> dict[str, Any]:
        if not (folder / TRAINER).is_file():
            raise ENGINE_NO_CHECKPOINT.error(folder, f"no complete checkpoint here: it has no {TRAINER}")
        try:
            trainer = read_checkpoint(folder)
            read_table(folder)
        except ValueError as damaged:
            raise ENGINE_NO_CHECKPOINT.error(folder, str(damaged)) from damaged
        return trainer

    trainer = world.on_main(facts)
    changed = world.gather(changed_file(folder, trainer, world.rank, world.size))
    if damage := next((text for text in changed if text), None):
        raise ENGINE_NO_CHECKPOINT.error(folder, damage)
    return trainer


def load_state(folder: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer, world: World) -> None:
    """Fill model and optimizer from a checkpoint after `step` steps that any number of ranks wrote."""
    try:
        dcp.load(training_state(model, optimizer), storage_reader=Reader(folder), process_group=world.saving)
    except (CheckpointException, RuntimeError, OSError, ValueError) as unlike:
        message = f"the checkpoint does not fit this model: {_cause(unlike)}"
        raise ENGINE_RESUME_MISMATCH.error(folder, message) from unlike
    for state in optimizer.state.values():
        state["step"].fill_(step)
