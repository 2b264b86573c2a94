"""Compares generators in an engine process of this machine, and waits for it.

compared = compare(ParityRequest("outputs/train/RUN", ("transformers", "native")))
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import vidqa
from vidqa.contract import environment
from vidqa.contract.cli import SKILL_ROOT
from vidqa.contract.problem import Problem
from vidqa.jobs.local_job import ACTION, inference_job
from vidqa.jobs.problems import JOB_FAILED
from vidqa.spec import Layer, parse_set
from vidqa.spec.sources import model_layer

CLIPS = 8  # generated where the user names no samples
# The defaults: answers long enough to differ.
USUAL = {"generation.max_tokens": 32, "inference.limit": 50}
VLLM = SKILL_ROOT / ".vllm/bin/python"  # what `make vllm` makes


@dataclass(frozen=True)
class ParityRequest:
    """The model (`which` export of a run) and the samples in `annotations` with media in `media`; without them,
    generated clips. `sets` are keys as KEY=VALUE. Bounds that are None are those of the precision."""

    model: str
    generators: tuple[str, ...]
    which: str | None = None
    annotations: str = ""
    media: str = ""
    sets: tuple[str, ...] = ()
    least_same: float | None = None
    largest_difference: float | None = None


def compare(comparison: ParityRequest) -> tuple[dict[str, Any], list[Problem]]:
    """The figures, and the problems of samples and of generators out of bounds. Raises the problems of the request."""
    layers = [
        Layer("parity.py", USUAL),
        model_layer(ACTION, comparison.model, comparison.which),
        parse_set(comparison.sets),
    ]
    with TemporaryDirectory(prefix="vidqa-parity-") as folder:
        place = Path(folder)
        annotations, media = (comparison.annotations, comparison.media) if comparison.annotations else _made(place)
        own = {"dataset.annotation_path": annotations, "dataset.media_dir": media, "results_dir": folder}
        if "vllm" in comparison.generators:
            own["inference.generator"] = "vllm"
            layers[0] = Layer("parity.py", {**USUAL, **({"engine.vllm.python": str(VLLM)} if VLLM.exists() else {})})
        job = inference_job([*layers, Layer("parity.py", own)], place)
        return _carried_out(comparison, job.spec, place / "parity.json")


def _made(folder: Path) -> tuple[str, str]:
    """Some clips of the demo with their questions."""
    words = ["vidqa.demo", "--out", str(folder / "clips"), "--clips", str(CLIPS)]
    _run(words)
    return str(folder / "clips/train/annotations.json"), str(folder / "clips/train")


def _carried_out(comparison: ParityRequest, spec_path: Path, out: Path) -> tuple[dict[str, Any], list[Problem]]:
    words = ["--spec", str(spec_path), "--out", str(out), "--generators", ",".join(comparison.generators)]
    for option, bound in (
        ("--least-same", comparison.least_same),
        ("--largest-difference", comparison.largest_difference),
    ):
        words += [] if bound is None else [option, str(bound)]
    code = _run(["vidqa.engine.parity", *words])
    if not out.exists():
        raise JOB_FAILED.error("vidqa.engine.parity", f"the engine ended with {code}; what it said is above")
    report = json.loads(out.read_text(encoding="utf-8"))
    return report["figures"], [Problem(**problem) for problem in report["problems"]]


def _run(words: list[str]) -> int:
    """Run a module of this project with its output on the terminal, in a subprocess; an engine ends with this one."""
    parent = {environment.PARENT: str(os.getpid())}
    path = environment.python_path(Path(vidqa.__file__).parents[1])
    command = [sys.executable, "-P", "-m", *words]
    env = environment.child_environment(PYTHONPATH=path, **environment.OF_THE_ENGINE, **parent)
    return subprocess.run(command, env=env, stdin=subprocess.DEVNULL, stdout=2).returncode


def shown(figures: dict[str, Any]) -> str:
    """The figures for a person."""
    if not figures:
        return ""
    reference = figures["reference"]
    lines = [
        f"{figures['samples']} samples, up to {figures['max_tokens']} tokens each, {figures['dtype']}; "
        f"compared with {reference} ({figures['seconds'][reference]:g} s)",
        "",
        f"{'generator':<14}{'prompt ids':>12}{'same answers':>14}{'tokens':>8}{'difference':>15}{'mean':>10}{'s':>8}",
    ]
    for name, found in figures["generators"].items():
        ids = f"{found['prompts_with_planned_ids']}/{found['prompts']}"
        seconds = f"{figures['seconds'][name]:g}"
        numbers = f"{found['largest_difference']:>15.2g}{found['mean_difference']:>10.2g}{seconds:>8}"
        lines.append(f"{name:<14}{ids:>12}{found['same_answers']:>14.2%}{found['tokens_compared']:>8}{numbers}")
    for name, found in figures["generators"].items():
        for each in found["answers_that_differ"]:
            margin = "" if each["margin"] is None else f" (margin {each['margin']:.2g})"
            where = f"{name}, {each['sample_id']}, token {each['token']}{margin}"
            lines.append(f"{where}: {each['reference']!r} | {each['other']!r}")
    return "\n".join(lines)
