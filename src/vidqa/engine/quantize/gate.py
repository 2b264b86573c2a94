"""The gate: both models answer the evaluation that a spec names, and the quantized one may lose so many points."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from vidqa.contract.cli import SKILL_ROOT, note
from vidqa.contract.environment import OF_THE_ENGINE, PARENT, foreign_environment, python_path
from vidqa.contract.files import read_object, write_json, write_text
from vidqa.contract.problem import ProblemError
from vidqa.contract.run_folder import RunFolder
from vidqa.engine.problems import ENGINE_QUANTIZE_EVALUATION, ENGINE_QUANTIZE_GATE
from vidqa.engine.quantize.card import FACTS, write_card
from vidqa.evaluation.comparison import compare
from vidqa.evaluation.comparison_page import comparison_text
from vidqa.spec import dump, load
from vidqa.spec.keys import with_values

LEAST = 50  # questions of a slice that the gate looks at
SIDES = ("before", "after")  # folders below <run>/evaluations


def judge(spec: Any, run: RunFolder, source: Path, quantized: Path) -> None:
    """Evaluate both models with one spec, compare their answers, and write the outcome into quantize.json. Raises
    ENGINE_QUANTIZE_EVALUATION, ENGINE_QUANTIZE_GATE."""
    asked = load(spec.quantize.evaluate, "evaluate")
    places = [run.path / "evaluations" / side for side in SIDES]
    for place, model in zip(places, (source, quantized), strict=True):
        note(f"evaluating {model}")
        evaluate(asked, model, place)
    found = compare(places[0], places[1])
    drops = [(each.name or "overall", 100 * (each.before - each.after)) for each in (found.whole, *found.slices)]
    large = {each.name or "overall" for each in (found.whole, *found.slices) if each.n >= LEAST} | {"overall"}
    failed = [f"{name} {drop:.1f}" for name, drop in drops if name in large and drop > spec.quantize.max_drop]
    sentence = f"{100 * found.whole.before:.1f} % before, {100 * found.whole.after:.1f} % after"
    sentence += f", at most {spec.quantize.max_drop:g} points may be lost"
    gate = {
        "passed": not failed,
        "sentence": sentence,
        "max_drop": spec.quantize.max_drop,
        "comparison": found.as_dict(),
    }
    write_json(run.path / FACTS, {**read_object(run.path / FACTS), "gate": gate})
    write_json(quantized / FACTS, {**read_object(quantized / FACTS), "gate": gate})
    write_card(quantized)
    write_text(run.path / "comparison.txt", comparison_text(found))
    note(sentence)
    if failed:
        raise ENGINE_QUANTIZE_GATE.error(run.path / "comparison.txt", f"points lost: {', '.join(failed)} ({sentence})")


def evaluate(asked: Any, model: Path, place: Path) -> None:
    """An evaluation of a model folder in processes of its own, which end with this one."""
    place.mkdir(parents=True, exist_ok=True)
    chosen = {"model.model_name": str(model), "model.enable_lora": False, "model.base_model_path": ""}
    written = place / "spec.toml"
    write_text(written, dump(with_values(asked, {**chosen, "results_dir": str(place.parent)})))
    torchrun = [sys.executable, "-P", "-m", "vidqa.engine.torchrun", "--standalone"]
    engine = ["--nproc-per-node", str(asked.num_gpus), "-m", "vidqa.engine", "evaluate"]
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
        raise (
            ProblemError(problems)
            if problems
            else ENGINE_QUANTIZE_EVALUATION.error(place, f"it ended with {done.returncode}")
        )
