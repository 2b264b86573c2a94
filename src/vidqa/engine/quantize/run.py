"""Quantization: a smaller model folder, proved to equal the calibrated model, and compared with the source model.

    python -P -m vidqa.engine.torchrun --standalone --nproc-per-node 1 -m vidqa.engine quantize --spec quantize.toml \
        --run-dir results/my-run

source folder (an adapter is merged first) -> planned layers -> calibration samples -> llm-compressor on the decoder ->
an unpublished folder -> proof -> safetensors/final -> quantize.evaluate: both models answer, and the gate judges;
if it fails, quantize.search repeats all steps from llm-compressor on with more layers kept
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import vidqa
from vidqa.core._optional import require
from vidqa.core.cli import note, size_text
from vidqa.core.environment import world_size
from vidqa.core.files import now, read_object, write_json
from vidqa.core.problem import Exit, ProblemError, raise_errors
from vidqa.core.run_folder import EXPORT, RunFolder
from vidqa.data.problems import EMPTY
from vidqa.data.storage.hub import snapshot_of
from vidqa.engine.data.planned_samples import fitting, leave_out, shared_plan
from vidqa.engine.distributed import World, single_process_world
from vidqa.engine.export.adapter import MERGED, merged_adapter
from vidqa.engine.export.weights import load_weights
from vidqa.engine.export.writing import copy_settings
from vidqa.engine.memory import release_memory
from vidqa.engine.problems import CHECK_LOG, unwritable
from vidqa.engine.quantize.calibration import PROVING, Calibration, choose_calibration, decoded, decoder_rows
from vidqa.engine.quantize.card import FACTS, write_card
from vidqa.engine.quantize.gate import RecordedOutputs, kept_group_candidates, output_errors, pass_gate, record_outputs
from vidqa.engine.quantize.proof import Measured, measure, prove
from vidqa.engine.quantize.recipe import compress
from vidqa.families import family_of, quantization_of, require_plain_weights
from vidqa.families.weights import weight_bytes
from vidqa.planning.quantization import QuantizationPlan, fused_group, group_of, plan_quantization
from vidqa.planning.resume_compat import weights_hash
from vidqa.planning.samples import Planner, calibration_planner
from vidqa.spec import check_with_gpus
from vidqa.spec.models import QuantizeSpec
from vidqa.spec.parent_layers import trained_view, view_of
from vidqa.spec.quantize_tables import method_of, needs_calibration
from vidqa.spec.run_lookup import EXPORTS

NAME = "final"  # of the run's export, which --parent-run looks for
SHARD = "5GB"
LIBRARIES = ("torch", "transformers", "compressed-tensors", "llmcompressor")


def quantize(spec: QuantizeSpec, run: RunFolder) -> int:
    """Run the quantization of a QuantizeSpec in `run`. Raises input problems before weights are read, ENGINE_UNPROVEN,
    and ENGINE_QUANTIZE_GATE if the quantized model answers worse."""
    raise_errors(check_with_gpus(spec, world_size()))
    require("llmcompressor", "quantize")
    run.sweep()
    world = single_process_world()
    model_dir = Path(spec.model.base_model_path if spec.model.enable_lora else spec.model.model_path)
    planner = calibration_planner(spec, model_dir)
    plan, problems = plan_quantization(model_dir, spec.quantize)
    raise_errors(problems)
    calibration = calibration_of(spec, planner, world, run)
    quantization = Quantization(spec, run, planner, plan, calibration, source_folder(spec, run, world), world.device)
    published = quantization.write()
    if spec.quantize.evaluate:
        keeps = kept_group_candidates(plan, quantization.errors)  # none without quantize.search
        pass_gate(spec, run, quantization.source, published, keeps, quantization.write)
    return int(Exit.OK)


@dataclass
class Quantization:
    """One source folder, quantized once or, in a search, several times with more layers kept. Measurements of the
    source model (`before`, calibration's `rows`, output `errors` of fused groups) are computed the first time."""

    spec: QuantizeSpec
    run: RunFolder
    planner: Planner
    plan: QuantizationPlan
    calibration: Calibration
    source: Path
    device: torch.device
    before: Measured | None = None
    proving: list[Any] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    errors: dict[str, float] = field(default_factory=dict)

    def write(self, groups: Sequence[str] = ()) -> Path:
        """Quantize all planned layers but those of the fused `groups`, prove the folder and publish it."""
        started, options = time.perf_counter(), self.spec.quantize
        names = [name for name in self.plan.modules if fused_group(name) in groups]
        options = options.model_copy(update={"keep": [*options.keep, *(f"^{re.escape(name)}$" for name in names)]})
        plan, _ = plan_quantization(self.source, options)
        note(f"quantizing {len(plan.modules)} layers of {self.source} to {options.quantization_scheme}")
        model = load_weights(self.source, torch.bfloat16).to(self.device).eval()
        products = self.read(model) if self.before is None else {}
        compress(model, plan, options, self.source, self.rows)
        self.errors = self.errors or output_errors(model, products)
        expected = measure(model, self.planner, self.proving)
        try:
            folder = write_folder(model, self.source, self.run)
            del model
            release_memory()
            assert self.before
            measured = (self.before, expected, self.planner, self.proving, self.device)
            proof = prove(folder, self.source, plan, options, *measured)
            facts = facts_of(self.spec, self.source, folder, plan, self.calibration if self.rows else None)
            facts |= {"proof": proof, "seconds": round(time.perf_counter() - started, 1)}
            write_json(folder / FACTS, facts)
            write_json(folder / EXPORT, {"schema_version": 1, "step": 0, "created": now(), "spec": view_of(self.spec)})
            write_card(folder)
            published = RunFolder.publish(folder)
        except OSError as failed:
            raise ProblemError([unwritable(failed)]) from failed
        release_memory()
        size = size_text(facts["bytes"]["quantized"])
        note(f"{published}: {size}, loss {proof['quantized_loss']:.4f} (before: {proof['loss']:.4f})")
        write_json(self.run.path / FACTS, {**facts, "folder": str(published)})
        best = self.run.path / "best"  # the link that --parent-run follows
        if not best.is_symlink():
            best.symlink_to(published.relative_to(self.run.path))
        return published

    def read(self, model: Any) -> RecordedOutputs:
        """Measure the source model. Returns the outputs of its linear layers if a search needs them."""
        samples, options = self.calibration.samples, self.spec.quantize
        self.proving = list(decoded(self.spec, samples[:PROVING]))
        with record_outputs(model, self.plan.modules if options.search else ()) as products:
            self.before = measure(model, self.planner, self.proving)
        self.rows = decoder_rows(model, self.planner, self.spec, samples) if needs_calibration(options) else []
        return products


def calibration_of(spec: QuantizeSpec, planner: Planner, world: World, run: RunFolder) -> Calibration:
    """The samples for calibration and proof."""
    planned = shared_plan(spec, planner, world, run)
    samples, problems = fitting(spec, planned.sets["calibration"], trained=True)
    world.on_main(lambda: leave_out(problems, run))
    if not samples:
        raise EMPTY.error(spec.dataset.annotation_path, "no sample has trained answer tokens", CHECK_LOG)
    return choose_calibration(spec, samples, planned.data_fingerprint)


def source_folder(spec: QuantizeSpec, run: RunFolder, world: World) -> Path:
    """The folder of whole weights to quantize: the model's own, or <run>/merged, written as by export.py --merge.
    Raises MODEL_QUANTIZED, MODEL_BROKEN."""
    export_dir = Path(spec.model.model_path)
    if not spec.model.enable_lora:
        return export_dir
    base, capped = Path(spec.model.base_model_path), trained_view(export_dir).get("custom.vision.cap_pixels_per_frame")
    require_plain_weights(base, "an adapter is merged into")
    note(f"merging {export_dir} into {base}")
    merged = merged_adapter(run.path, base, export_dir, torch.bfloat16, capped)
    unpublished = MERGED.write(merged, "merged", world)
    MERGED.check(unpublished, base)
    return RunFolder.publish(unpublished)


def write_folder(model: Any, source: Path, run: RunFolder) -> Path:
    """Write a quantized stock model into a folder that is not published yet, with the source's settings, tokenizer,
    chat template and processor."""
    from llmcompressor.transformers.compression.compressed_tensors_utils import modify_save_pretrained

    folder = RunFolder.begin(run.exports, NAME)
    modify_save_pretrained(model)
    model.save_pretrained(folder, max_shard_size=SHARD)
    table, parameter_name = quantization_of(folder), family_of(source).parameter_name
    # Files may have older names than modules; loaders look for either.
    table["ignore"] = sorted({*table["ignore"], *map(parameter_name, table["ignore"])})
    copy_settings(source, folder, None)
    write_json(folder / "config.json", {**read_object(source / "config.json"), "quantization_config": table})
    return folder


def named(folder: Path) -> str:
    """The name of a model without its path: organisation/name on the hub, run and export, or that of its folder."""
    run = f"{folder.parents[1].name}, " if folder.parent.name == EXPORTS else ""
    return snapshot_of(folder) or f"{run}{folder.name}"


def facts_of(
    spec: QuantizeSpec, source: Path, folder: Path, plan: QuantizationPlan, calibration: Calibration | None
) -> dict[str, Any]:
    """The content of quantize.json except the proof. `kept` are all unquantized linear layers, the tower's too."""
    table, family, options, model = quantization_of(folder), family_of(folder), spec.quantize, spec.model
    name = named(Path(model.model_path).resolve())
    name = f"{named(Path(model.base_model_path))} with the adapters of {name}" if model.enable_lora else name
    return {
        "schema_version": 1,
        "scheme": options.quantization_scheme,
        "method": method_of(options),
        "kv_precision": options.kv_precision,
        "group_size": group_of(options),
        "modules": sorted(plan.modules),
        "tower": family.tower,
        "kept": sorted({family.parameter_name(name) for name in table["ignore"]}),
        "bytes": {"model": weight_bytes(source).bytes, "quantized": weight_bytes(folder).bytes},
        "versions": {**{name: version(name) for name in LIBRARIES}, "vidqa": vidqa.__version__},
        "model": {"name": name, "weights": weights_hash(source)},
        "calibration": calibration.as_dict() if calibration else None,
    }
