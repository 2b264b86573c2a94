"""The gate: both models answer the evaluation that a spec names, and the quantized one may lose so many points. With
quantize.search a model that loses more is quantized again, with more layers kept."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from vidqa.core.cli import SKILL_ROOT, note
from vidqa.core.environment import OF_THE_ENGINE, PARENT, foreign_environment, python_path
from vidqa.core.files import read_object, write_json, write_text
from vidqa.core.problem import ProblemError
from vidqa.core.run_folder import RunFolder
from vidqa.engine.problems import ENGINE_QUANTIZE_EVALUATION, ENGINE_QUANTIZE_GATE
from vidqa.engine.quantize.card import FACTS, tries_table, write_card
from vidqa.evaluation.comparison import compare, judge_drop
from vidqa.evaluation.pages import comparison_text
from vidqa.spec import dump, load
from vidqa.spec.keys import with_values


def pass_gate(
    spec: Any,
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
    environment["PYTHONPATH"] = python_path(SKILL_ROOT / "src")
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
