"""The gate: both models answer the evaluation that a spec names, and the quantized one may lose so many points. With
quantize.search a model that loses more is quantized again: the fused groups with the largest output errors stay.

An output error is |y' - y| / |y| over the outputs of a group's layers, y before and y' after quantizing, both for the
inputs that the model before gives them: errors of other layers are no part of it.
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
from vidqa.core.problem import ProblemError
from vidqa.core.run_folder import RunFolder
from vidqa.engine.problems import ENGINE_QUANTIZE_EVALUATION, ENGINE_QUANTIZE_GATE
from vidqa.engine.quantize.card import FACTS, tries_table, write_card
from vidqa.evaluation.comparison import compare, judge_drop
from vidqa.evaluation.pages import comparison_text
from vidqa.planning.quantization import QuantizationPlan, fused_group
from vidqa.spec import dump, load
from vidqa.spec.keys import with_values
from vidqa.spec.models import QuantizeSpec

SHARES = (0.025, 0.05, 0.1)  # of the model's parameters that stay at most, try after try
ROWS = 64  # tokens of a sample whose outputs are compared
Products = dict[str, list[tuple[torch.Tensor, torch.Tensor]]]


def pass_gate(
    spec: QuantizeSpec,
    run: RunFolder,
    source: Path,
    quantized: Path,
    keeps: Sequence[Sequence[str]],
    write: Callable[[Sequence[str]], Path],
) -> None:
    """Evaluate the model before and the quantized one with one spec, compare their answers, and write the outcome into
    quantize.json; where the gate fails, `write` the folder again with each of `keeps` until it holds. Raises
    ENGINE_QUANTIZE_EVALUATION, ENGINE_QUANTIZE_GATE."""
    evaluation, before = load(spec.quantize.evaluate, "evaluate"), run.path / "evaluations/before"
    evaluate(evaluation, source, before)
    tries: list[dict[str, Any]] = []
    for number, groups in enumerate([(), *keeps], start=1):
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
        facts: dict[str, Any] = {"gate": {**gate.as_dict(), "sentence": sentence, "comparison": comparison.as_dict()}}
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


def evaluate(evaluation: Any, model: Path, place: Path) -> None:
    """An evaluation of a model folder in processes of its own, which end with this one."""
    note(f"evaluating {model}")
    place.mkdir(parents=True, exist_ok=True)
    answering = {"model.model_name": str(model), "model.enable_lora": False, "model.base_model_path": ""}
    written = place / "spec.toml"
    write_text(written, dump(with_values(evaluation, {**answering, "results_dir": str(place.parent)})))
    torchrun = [sys.executable, "-P", "-m", "vidqa.engine.torchrun", "--standalone"]
    engine = ["--nproc-per-node", str(evaluation.num_gpus), "-m", "vidqa.engine", "evaluate"]
    environment = {**foreign_environment(**OF_THE_ENGINE), PARENT: str(os.getpid())}
    environment["PYTHONPATH"] = python_path()
    done = subprocess.run(
        [*torchrun, *engine, "--spec", str(written), "--run-dir", str(place)],
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        env=environment,
    )
    if done.returncode:
        problems = RunFolder(place).read_problems()
        failed = ENGINE_QUANTIZE_EVALUATION.error(place, f"it ended with {done.returncode}")
        raise ProblemError(problems) if problems else failed


@contextmanager
def recorded_products(model: Any, modules: Iterable[str]) -> Iterator[Products]:
    """Inputs [N, D] and outputs [N, O] of linear layers, on the host, for each sample that the model computes: those of
    ROWS tokens that are spread over it."""
    products: Products = defaultdict(list)

    def record(name: str, module: Any, args: Any, output_1SO: torch.Tensor) -> None:
        length = output_1SO.shape[1]
        at = torch.linspace(0, length - 1, min(length, ROWS)).long()
        products[name].append((args[0][0].cpu()[at], output_1SO[0].cpu()[at]))

    with ExitStack() as hooks:
        for name in modules:
            hooks.callback(model.get_submodule(name).register_forward_hook(partial(record, name)).remove)
        yield products


@torch.no_grad()
def output_errors(model: Any, products: Products) -> dict[str, float]:
    """The output error of each fused group of a quantized model; `products` are of the model before."""
    device, totals = next(model.parameters()).device, defaultdict[str, list[float]](lambda: [0.0, 0.0])
    for name, samples in products.items():
        layer, total = model.get_submodule(name), totals[fused_group(name)]
        for inputs_ND, outputs_NO in samples:
            change = layer(inputs_ND[None].to(device))[0].cpu().float() - outputs_NO.float()
            total[0] += change.square().sum().item()
            total[1] += outputs_NO.float().square().sum().item()
    return {group: math.sqrt(change / max(size, 1e-12)) for group, (change, size) in totals.items()}


def larger_keeps(plan: QuantizationPlan, errors: dict[str, float]) -> list[tuple[str, ...]]:
    """The fused groups that stay in each further try, largest error first; at least the worst that the last of SHARES
    has room for."""
    sizes = Counter[str]()
    for name, (out, width) in plan.modules.items():
        sizes[fused_group(name)] += out * width
    keeps: list[tuple[str, ...]] = []
    for share in SHARES:
        groups, total = list[str](), 0
        for group in sorted(errors, key=lambda name: -errors[name]):
            if total + sizes[group] <= plan.parameters * (share if groups else SHARES[-1]):
                groups.append(group)
                total += sizes[group]
        if groups and tuple(groups) not in keeps:
            keeps.append(tuple(groups))
    return keeps
