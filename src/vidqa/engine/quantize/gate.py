"""The quality gate of quantization: base and quantized model are evaluated, and the latter may lose at most max_drop
points. With quantize.search a model that loses more is quantized again, except the fused groups with the largest
output errors.

An output error is |y' - y| / |y| over the outputs of a group's layers, y of the base and y' of the quantized model,
both for inputs from the base model: it contains no errors of other layers.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from vidqa.core.cli import note
from vidqa.core.environment import OF_THE_ENGINE, PARENT, foreign_environment, python_path
from vidqa.core.files import read_object, write_json, write_text
from vidqa.core.problem import JOB_FAILED, ProblemError
from vidqa.core.run_folder import RunFolder
from vidqa.engine.problems import ENGINE_QUANTIZE_GATE
from vidqa.engine.quantize.card import FACTS, tries_table, write_card
from vidqa.evaluation.comparison import compare, judge_drop
from vidqa.evaluation.pages import comparison_text
from vidqa.planning.quantization import QuantizationPlan, fused_group
from vidqa.spec import dump, load
from vidqa.spec.keys import with_values
from vidqa.spec.models import QuantizeSpec

KEPT_SHARES = (0.025, 0.05, 0.1)  # maximum share of the base's parameters that are not quantized, for each further try
COMPARED_TOKENS = 64  # tokens of each sample, evenly spaced
RecordedOutputs = dict[str, list[tuple[torch.Tensor, torch.Tensor]]]


def pass_gate(
    spec: QuantizeSpec,
    run: RunFolder,
    base: Path,
    quantized: Path,
    kept_candidates: Sequence[Sequence[str]],
    write: Callable[[Sequence[str]], Path],
) -> None:
    """Evaluate the folders `base` and `quantized` with the spec's evaluation, compare their answers, and write the
    outcome into quantize.json, the model card and comparison.txt. While the gate fails, `write` quantizes again without
    the next of `kept_candidates` (names of fused groups) and returns the folder. Raises JOB_FAILED, and
    ENGINE_QUANTIZE_GATE if no candidate passes."""
    evaluation, before = load(spec.quantize.evaluate, "evaluate"), run.path / "evaluations/before"
    evaluate(evaluation, base, before)
    tries: list[dict[str, Any]] = []
    for number, groups in enumerate([(), *kept_candidates], start=1):
        if number > 1:
            note(f"try {number}: {', '.join(groups)} stay as they are")
            quantized = write(groups)
        after = before.with_name("after" if number == 1 else f"after-{number}")
        evaluate(evaluation, quantized, after)
        comparison = compare(before, after)
        gate, whole = judge_drop(comparison, spec.quantize.max_drop), comparison.whole
        size = read_object(quantized / FACTS)["bytes"]["quantized"]
        accuracies = {"before": whole.before, "after": whole.after}
        tries.append({"kept": list(groups), "bytes": size, **accuracies, "passed": not gate.failed})
        sentence = f"{100 * whole.before:.1f} % before, {100 * whole.after:.1f} % after; {gate.lines[0]}"
        compared = comparison.as_dict() | {"before": f"evaluations/{before.name}", "after": f"evaluations/{after.name}"}
        facts: dict[str, Any] = {"gate": {**gate.as_dict(), "sentence": sentence, "comparison": compared}}
        facts |= {"tries": tries} if spec.quantize.search else {}
        for folder in (run.path, quantized):
            write_json(folder / FACTS, {**read_object(folder / FACTS), **facts})
        write_card(quantized)
        report = run.path / "comparison.txt"
        table = ["", *tries_table(tries)] if spec.quantize.search else []
        write_text(report, "\n".join([comparison_text(comparison, gate), *table, ""]))
        note(sentence)
        if not gate.failed:
            return
    raise ENGINE_QUANTIZE_GATE.error(report, "; ".join(gate.lines))


def evaluate(evaluation: Any, model: Path, run_dir: Path) -> None:
    """Evaluate a model folder with an EvaluateSpec, in subprocesses that end with this process; answers are written
    into `run_dir`. Raises the problems of that run, or JOB_FAILED."""
    note(f"evaluating {model}")
    run_dir.mkdir(parents=True, exist_ok=True)
    model_keys = {"model.model_name": str(model), "model.enable_lora": False, "model.base_model_path": ""}
    spec_path = run_dir / "spec.toml"
    write_text(spec_path, dump(with_values(evaluation, {**model_keys, "results_dir": str(run_dir.parent)})))
    torchrun = [sys.executable, "-P", "-m", "vidqa.engine.torchrun", "--standalone"]
    engine = ["--nproc-per-node", str(evaluation.num_gpus), "-m", "vidqa.engine", "evaluate"]
    environment = {**foreign_environment(**OF_THE_ENGINE), PARENT: str(os.getpid())}
    environment["PYTHONPATH"] = python_path()
    completed = subprocess.run(
        [*torchrun, *engine, "--spec", str(spec_path), "--run-dir", str(run_dir)],
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        env=environment,
    )
    if completed.returncode:
        problems = RunFolder(run_dir).read_problems()
        remedy = "read its log; the quantized folder exists: evaluate both models with scripts/launch.py evaluate"
        failed = JOB_FAILED.error(run_dir, f"the evaluation ended with {completed.returncode}", remedy)
        raise ProblemError(problems) if problems else failed


@contextmanager
def record_outputs(model: Any, modules: Iterable[str]) -> Iterator[RecordedOutputs]:
    """Record, inside the context, the inputs and outputs of the named linear layers for each sample that the model
    computes: by the layer's name, pairs [N, D] and [N, O] in host memory in the model's dtype, with N at most
    COMPARED_TOKENS."""
    recorded: RecordedOutputs = defaultdict(list)

    def record(name: str, module: Any, args: Any, output_1SO: torch.Tensor) -> None:
        length = output_1SO.shape[1]
        token_indices = torch.linspace(0, length - 1, min(length, COMPARED_TOKENS)).long()
        recorded[name].append((args[0][0].cpu()[token_indices], output_1SO[0].cpu()[token_indices]))

    with ExitStack() as hooks:
        for name in modules:
            hooks.callback(model.get_submodule(name).register_forward_hook(partial(record, name)).remove)
        yield recorded


@torch.no_grad()
def output_errors(model: Any, recorded: RecordedOutputs) -> dict[str, float]:
    """The output error of each fused group of a quantized model, from the outputs `recorded` of the base."""
    device, sums_by_group = next(model.parameters()).device, defaultdict[str, list[float]](lambda: [0.0, 0.0])
    for name, samples in recorded.items():
        layer, sums = model.get_submodule(name), sums_by_group[fused_group(name)]
        for inputs_ND, outputs_NO in samples:
            error = layer(inputs_ND[None].to(device))[0].cpu().float() - outputs_NO.float()
            sums[0] += error.square().sum().item()
            sums[1] += outputs_NO.float().square().sum().item()
    return {group: math.sqrt(error / max(size, 1e-12)) for group, (error, size) in sums_by_group.items()}


def kept_group_candidates(plan: QuantizationPlan, errors: dict[str, float]) -> list[tuple[str, ...]]:
    """The fused groups that are not quantized in each further try: those with the largest `errors` that fit into the
    try's share of parameters. A try has at least the worst group that fits into the last of KEPT_SHARES."""
    sizes = Counter[str]()
    for name, (out, width) in plan.modules.items():
        sizes[fused_group(name)] += out * width
    kept_candidates: list[tuple[str, ...]] = []
    for share in KEPT_SHARES:
        groups, parameters = list[str](), 0
        for group in sorted(errors, key=lambda name: -errors[name]):
            if parameters + sizes[group] <= plan.parameters * (share if groups else KEPT_SHARES[-1]):
                groups.append(group)
                parameters += sizes[group]
        if groups and tuple(groups) not in kept_candidates:
            kept_candidates.append(tuple(groups))
    return kept_candidates
