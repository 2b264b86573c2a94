"""Resumable training state: sharded, written beside the training, published by rename, loadable on any number of ranks.

    <run>/checkpoints/step_N/policy/      PyTorch DCP: trainable parameters and optimizer state
    <run>/checkpoints/step_N/trainer.json step, fingerprints, effective batch

Frozen parameters are not saved: they come from the base model again.
"""

from __future__ import annotations

import json
import shutil
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

from vidqa.engine.distributed import World
from vidqa.engine.prepare import on_main
from vidqa.engine.problems import ENGINE_NO_CHECKPOINT, ENGINE_RESUME_MISMATCH, ENGINE_SAVE_FAILED
from vidqa.files import write_json
from vidqa.run_folder import RunFolder

TRAINER = "trainer.json"
SETTLE_S = 120.0
OPTIONS = StateDictOptions(ignore_frozen_params=True, flatten_optimizer_state_dict=True, strict=False)


class Checkpointer:
    """Saves at most one checkpoint at a time; the next `save` and `finish` wait for the one under way."""

    def __init__(self, run: RunFolder, world: World, *, in_background: bool, max_keep: int) -> None:
        self.run, self.world = run, world
        self.in_background, self.max_keep = in_background, max_keep
        self.keep: set[str] = set()  # names that pruning spares: the best one
        self._under_way: tuple[Any, Path, dict[str, Any]] | None = None

    def save(self, name: str, model: Any, optimizer: torch.optim.Optimizer, trainer: dict[str, Any]) -> None:
        """Start saving `checkpoints/<name>`. In the background only the copy to host memory is waited for."""
        self.finish()
        folder = on_main(self.world, lambda: self.run.begin(self.run.checkpoints, name))
        state = _state(model, optimizer)
        try:
            if self.in_background:
                saving = dcp.async_save(state, checkpoint_id=folder / "policy", process_group=self.world.saving)
            else:
                saving = Future()
                saving.set_result(dcp.save(state, checkpoint_id=folder / "policy", process_group=self.world.saving))
        except (OSError, RuntimeError, CheckpointException) as full:
            raise self._failed(folder, _cause(full)) from full
        self._under_way = (saving, folder, trainer)
        if not self.in_background:
            self.finish()

    def poll(self) -> None:
        """Publish a background save that has ended on every rank; cheap enough for every step."""
        if self._under_way and all(self.world.gather(self._under_way[0].done())):
            self.finish()

    def finish(self) -> None:
        """Wait for the save under way and publish it by rename."""
        if self._under_way is None:
            return
        saving, folder, trainer = self._under_way
        self._under_way = None
        failure: BaseException | None = None
        try:
            saving.result()
            if self.world.is_main:
                self._publish(folder, trainer)
        except (OSError, RuntimeError, CheckpointException) as full:
            failure = full
        self._agree(failure, folder)

    def settle(self) -> None:
        """After a failure elsewhere: wait until a background save no longer writes (a full disk has no room before
        that), and publish it if it ended well. No other rank is waited for."""
        if self._under_way is None:
            return
        saving, folder, trainer = self._under_way
        self._under_way = None
        with suppress(OSError, TimeoutError):
            # DCP's coordinator, rank 0, ends without an exception only when every rank has written its part.
            if saving.exception(timeout=SETTLE_S) is None and self.world.is_main:
                self._publish(folder, trainer)

    def _publish(self, folder: Path, trainer: dict[str, Any]) -> None:
        write_json(folder / TRAINER, trainer)
        self.run.publish(folder)
        self.run.prune(self.run.checkpoints, TRAINER, self.max_keep, self.keep)

    def _agree(self, failure: BaseException | None, folder: Path) -> None:
        """Every rank learns of a failure on any rank, so that none waits for the others."""
        failures = [text for text in self.world.gather(_cause(failure) if failure else None) if text]
        if failures:
            raise self._failed(folder, failures[0])

    def _failed(self, folder: Path, why: object) -> Exception:
        if self.world.is_main:
            shutil.rmtree(folder, ignore_errors=True)
        return ENGINE_SAVE_FAILED.error(folder.parent, f"the checkpoint could not be written: {str(why).strip()[:300]}")


def _cause(failure: BaseException) -> str:
    """What went wrong, without the tracebacks of every rank that DCP puts into its message."""
    causes = [cause for cause, _ in failure.failures.values()] if isinstance(failure, CheckpointException) else []
    return str(next(iter(causes), failure))


def _state(model: Any, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    parameters, moments = get_state_dict(model, optimizer, options=OPTIONS)
    return {"model": parameters, "optimizer": moments}


def read_trainer(folder: Path) -> dict[str, Any]:
    """trainer.json of a checkpoint folder; raises ENGINE_NO_CHECKPOINT when the folder is not a complete checkpoint."""
    try:
        return json.loads((folder / TRAINER).read_text(encoding="utf-8"))
    except (OSError, ValueError) as missing:
        raise ENGINE_NO_CHECKPOINT.error(folder, f"no complete checkpoint here: {missing}") from missing


def load_state(folder: Path, model: Any, optimizer: torch.optim.Optimizer, world: World) -> None:
    """Fill model and optimizer from a checkpoint that any number of ranks wrote."""
    state = _state(model, optimizer)
    try:
        dcp.load(state, checkpoint_id=folder / "policy", process_group=world.saving)
    except (CheckpointException, RuntimeError, OSError, ValueError) as unlike:
        raise ENGINE_RESUME_MISMATCH.error(folder, f"the checkpoint does not fit this model: {unlike}") from unlike
    set_state_dict(
        model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"], options=OPTIONS
    )
