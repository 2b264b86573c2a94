"""Write an export of a run again for distribution, unchanged or with LoRA merged into its base, and prove it.

    python -P -m vidqa.engine.actions.export --run RUN --export RUN/safetensors/step_40 --out FOLDER --merge --json

The result stays unpublished beside FOLDER: scripts/export.py, which starts this program, adds a card and publishes.
"""

from __future__ import annotations

import shutil
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vidqa.core.cli import Parser, Result, note, run
from vidqa.core.environment import take_parent
from vidqa.core.files import read_object
from vidqa.core.parent_death_signal import end_with
from vidqa.core.problem import Problem, ProblemError
from vidqa.core.run_folder import EXPORT, OF_ONE_EXPORT, RunFolder
from vidqa.data import check_records
from vidqa.engine.data.frames import open_frames
from vidqa.engine.distributed import single_process_world
from vidqa.engine.export import format_for
from vidqa.engine.export.adapter import ADAPTER, MERGED, load_adapted, merged_adapter
from vidqa.engine.export.proof import prove_loss, require_same_loss, stock_loss
from vidqa.engine.model import DTYPES
from vidqa.engine.problems import ENGINE_OUT_OF_MEMORY, ENGINE_PROOF_SAMPLE, unwritable
from vidqa.families.problems import MODEL_BROKEN
from vidqa.planning.adapters import base_precision
from vidqa.planning.plan import sources
from vidqa.planning.resume_compat import same_weights, weights_hash
from vidqa.planning.samples import Planner, Sample, training_planner, validation_mode
from vidqa.spec import load_training
from vidqa.spec.models import TrainSpec

parser = Parser("Write an export of a run for others to use, and prove it.")
parser.add_argument("--run", type=Path, required=True)
parser.add_argument("--export", type=Path, required=True)
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--merge", action="store_true")


def main(options: Namespace) -> Result:
    """Write the export; `data` has the unpublished folder and its proof. Raises problems of loading and writing."""
    if parent := take_parent():  # without its parent nothing would publish the result
        end_with(parent)
    spec, facts = load_training(options.run / "spec.toml"), read_object(options.export / EXPORT)
    base, dtype, world = Path(spec.policy.model_name_or_path), DTYPES[spec.train.param_dtype], single_process_world()
    _require_same_base(base, facts)
    planner = training_planner(spec, base)
    sample, frames = proof_sample(spec, planner, str(facts["proof_sample"]))
    loss, more = float(facts["trainer_loss"]), dict[str, Any]()
    try:
        if options.merge:
            note(f"merging {options.export.name} into {base.name}")
            capped = spec.custom.vision.cap_pixels_per_frame
            merged = merged_adapter(options.out.parent, base, options.export, dtype, capped)
            format, folder = MERGED, MERGED.write(merged, options.out.name, world)
            del merged  # free memory for reloading the export
            if precision := base_precision(options.export):
                note(f"comparing the losses on the base in {precision} and on the one in {spec.train.param_dtype}")
                loss, more = _losses_on_bases(options.export, base, loss, planner, sample, frames, dtype, world.device)
        else:
            format, folder = format_for(spec.policy.lora), copied(options.export, options.out)
        format.check(folder, base)
        note(f"loading it again for the loss of sample {sample.record.id} ({sample.length} tokens)")
        proof = prove_loss(format, folder, base, loss, planner, sample, frames, dtype, world.device, more)
    except OSError as failed:
        raise ProblemError([unwritable(failed)]) from failed
    except (MemoryError, torch.OutOfMemoryError) as full:
        remedy = "Run it where the whole model fits: on another GPU, or on a CPU with CUDA_VISIBLE_DEVICES empty."
        raise ENGINE_OUT_OF_MEMORY.error(options.out, "the whole model does not fit", remedy) from full
    return Result({"folder": str(folder), "proof": proof})


def _losses_on_bases(
    export: Path,
    base: Path,
    trainer_loss: float,
    planner: Planner,
    sample: Sample,
    frames: list[np.ndarray],
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[float, dict[str, Any]]:
    """The loss required of the merged model, which is that of the adapter on the unquantized base, and further fields
    of the proof. On the quantized base the loss must equal the trainer's. Raises ENGINE_UNPROVEN."""
    quantized = stock_loss(ADAPTER.load(export, base, dtype, device), planner, sample, frames)
    require_same_loss(export, sample, trainer_loss, quantized, dtype)
    adapted = load_adapted(export, base, dtype).base_model.model.to(device).eval()
    loss = stock_loss(adapted, planner, sample, frames)
    precision = base_precision(export)
    return loss, {
        "trainer_loss": trainer_loss,
        "base_precision": precision,
        "quantized_loss": quantized,
        "adapted_loss": loss,
    }


def _require_same_base(base: Path, facts: dict[str, Any]) -> None:
    trained_on = facts.get("weights", {}).get("base_model")
    if trained_on and not same_weights(trained_on, base):
        now = weights_hash(base)
        message = f"its weights are not the initial weights of the run ({now[:12]} instead of {trained_on[:12]})"
        raise MODEL_BROKEN.error(base, message, "Restore the base model of the run in that folder.")


def copied(export: Path, out: Path) -> Path:
    """Copy the files of an export into a folder that is not yet published as `out`."""
    note(f"copying {export.name}")
    folder = RunFolder.begin(out.parent, out.name)
    for path in sorted(export.iterdir()):
        if path.is_file() and not path.name.startswith(".") and path.name not in OF_ONE_EXPORT:
            shutil.copyfile(path, folder / path.name)
    return folder


def proof_sample(spec: TrainSpec, planner: Planner, sample_id: str) -> tuple[Sample, list[np.ndarray]]:
    """The sample with that id, planned and decoded as in the training. Raises ENGINE_PROOF_SAMPLE."""
    problems: list[Problem] = []
    for source in reversed(sources(spec)):  # the training takes it from its validation set if it has one
        records, _ = check_records(source.annotation_path, source.media_path, keep_missing=True)
        matches = [record for record in records if record.id == sample_id]
        samples, unplanned = planner.plan(matches, validation_mode(spec) if source.name == "validation" else None)
        problems += unplanned
        with open_frames(spec.engine, 1) as decoding:
            for sample in samples:
                frames, undecoded = decoding.collect(decoding.request([sample]))
                problems += undecoded
                if not undecoded:
                    return sample, [np.array(array) for array in frames[0]]
    why = problems[0].message if problems else "it is in no data set of the run"
    raise ENGINE_PROOF_SAMPLE.error(spec.custom.train_dataset.annotation_path, f"sample {sample_id}: {why}")


if __name__ == "__main__":
    sys.exit(run(parser, main))
