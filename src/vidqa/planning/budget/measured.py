"""Measured trainings: how a row of benchmarks/results describes one, and what was predicted for it.

A row has `run` (its name), `gpu`, `family`, `sizes` (of the model), `spec` (the keys of KEYS), `recompute` and `stay`
(see `MemoryPolicy.record`), `parameters`, `pack` (the largest one: padded tokens, patches, supervised tokens), and what
was measured: `memory_gib`, `mfu` and others.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from vidqa.contract.cli import SKILL_ROOT
from vidqa.families import Family, families
from vidqa.families.sizes import Sizes, TextSizes, VisionSizes
from vidqa.planning.budget.answering import AnsweringSetup, Reading, answering_memory
from vidqa.planning.budget.cards import card_of, mfu_on
from vidqa.planning.budget.memory import (
    MemoryPolicy,
    MicroStep,
    Model,
    TrainingSetup,
    model_of,
    peak_memory,
    recorded_policy,
    setup_of,
)
from vidqa.planning.budget.trained import parameters
from vidqa.planning.budget.work import share_again
from vidqa.spec.models import TrainSpec

RESULTS = SKILL_ROOT / "benchmarks" / "results"
# All of a spec that decides memory, besides the data.
KEYS = (
    "policy.parallelism.dp_shard_size",
    "policy.parallelism.dp_replicate_size",
    "policy.parallelism.cp_size",
    "policy.lora",
    "policy.freeze_pattern",
    "policy.trainable_pattern",
    "train.param_dtype",
    "train.master_dtype",
    "train.fsdp_reduce_dtype",
    "train.compile",
    "engine.keep_features",
)


def description(
    spec: Any, memory_policy: MemoryPolicy, family: Family, model: Model, micro_step: MicroStep
) -> dict[str, Any]:
    """What a row says of a training besides its name and its measurements."""
    return {
        "family": family.name,
        "sizes": asdict(model.sizes),
        "spec": {key: _plain(spec, key) for key in KEYS},
        **memory_policy.record(),
        "parameters": {"all": model.every.every, "trained": model.every.trained},
        "pack": asdict(micro_step),
    }


def _plain(spec: Any, key: str) -> Any:
    value = spec
    for name in key.split("."):
        value = getattr(value, name)
    return value.model_dump() if hasattr(value, "model_dump") else value


@dataclass(frozen=True)
class Compared:
    """A prediction beside what was measured. A `superseded` row was measured on an engine that worked otherwise; the
    text says how."""

    run: str
    predicted_gib: float
    measured_gib: float
    moment: str
    superseded: str = ""

    @property
    def error(self) -> float:
        return self.predicted_gib / self.measured_gib - 1


def compare(rows: Sequence[dict[str, Any]]) -> list[Compared]:
    """Every row that measured something."""
    found = []
    for row in rows:
        if "memory_gib" not in row or "pack" not in row:  # of an ordinary recipe, which is not predicted
            continue
        spec = _spec(row)
        setup = setup_of(spec, recorded_policy(row, sizes_of(row)))
        memory = peak_memory(_model(row, spec), setup, MicroStep(**row["pack"]))
        found.append(Compared(row["run"], memory.peak_gib, row["memory_gib"], memory.moment, row.get("superseded", "")))
    return found


def _spec(row: dict[str, Any]) -> TrainSpec:
    nested: dict[str, Any] = {}
    for key, value in row["spec"].items():
        *path, last = key.split(".")
        table = nested
        for name in path:
            table = table.setdefault(name, {})
        table[last] = value
    return TrainSpec.model_validate(nested)


def _model(row: dict[str, Any], spec: TrainSpec) -> Model:
    sizes, family = sizes_of(row), next(family for family in families() if family.name == row["family"])
    return model_of(sizes, parameters(family.tensors(sizes), spec.policy))


def sizes_of(row: dict[str, Any]) -> Sizes:
    """The model's sizes in a row."""
    return Sizes(TextSizes(**row["sizes"]["text"]), VisionSizes(**row["sizes"]["vision"]))


def answering_description(
    sizes: Sizes, parameters: int, setup: AnsweringSetup, reading: Reading, gpu_gib: float | None
) -> dict[str, Any]:
    """What a row says of an evaluation besides its name and its measurements."""
    described = {"sizes": asdict(sizes), "parameters": parameters, "setup": asdict(setup), "reading": asdict(reading)}
    return {**described, "gpu_gib": gpu_gib}


def compare_answering(rows: Sequence[dict[str, Any]]) -> list[Compared]:
    """Every row of an evaluation that measured something."""
    found = []
    for row in rows:
        setup, reading = AnsweringSetup(**row["setup"]), Reading(**row["reading"])
        memory = answering_memory(sizes_of(row), row["parameters"], setup, reading, row["gpu_gib"])
        found.append(Compared(row["run"], memory.peak_gib, row["memory_gib"], memory.moment))
    return found


def result_files() -> list[Path]:
    return sorted(RESULTS.glob("memory-*.json"))


def answering_files() -> list[Path]:
    return sorted(RESULTS.glob("answering-*.json"))


def read_rows(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text(encoding="utf-8"))


def policy_calls() -> list[dict[str, Any]]:
    """The calls of benchmarks/policies.py that are kept, oldest first: each has `rows`, and `told` of its cases."""
    path = RESULTS / "policies.json"
    return read_rows(path) if path.is_file() else []


def policy_rows() -> list[dict[str, Any]]:
    """Their rows that say all that a prediction takes; of runs that were made again, the newest."""
    rows = (row for call in policy_calls() for row in call["rows"] if "pack" in row)
    return list({(row["run"], row["gpu"]): row for row in rows}.values())


def rollout_rows() -> list[dict[str, Any]]:
    """Rows of benchmarks/rl.py that measured the memory of our own steps, the newest of each, with its GPU."""
    path = RESULTS / "rl.json"
    calls = read_rows(path) if path.is_file() else []
    rows = [{**row, "gpu": call["machine"].split(",")[0]} for call in calls for row in call["rows"]]
    ours = [row for row in rows if {"memory_gib", "predicted_gib"} <= row.keys() and "alone" not in row["row"]]
    return list({(row["row"], row["gpu"]): row for row in ours}.values())


def table(compared: Sequence[Compared]) -> list[str]:
    """Markdown: predicted against measured."""
    lines = ["| run | predicted GiB | measured GiB | error | peak at |", "|---|---|---|---|---|"]
    remarks = []
    for each in compared:
        mark = "" if not each.superseded else " (*)"
        remarks += [f"(*) {each.superseded}"] if each.superseded else []
        values = f"{each.predicted_gib:.1f} | {each.measured_gib:.1f} | {each.error:+.1%}"
        lines.append(f"| {each.run}{mark} | {values} | {each.moment} |")
    return [*lines, *(["", *dict.fromkeys(remarks)] if remarks else [])]


@dataclass(frozen=True)
class Efficiency:
    """Share of the GPU's peak that a training like the one asked for has reached, and which one that was."""

    mfu: float
    source: str
    gpu: str = ""  # where it was measured

    def on(self, name: str) -> Efficiency:
        """The same on another GPU, where both are known."""
        here, there = card_of(self.gpu), card_of(name)
        if here is None or there is None or here == there:
            return self
        return replace(self, mfu=mfu_on(there, self.mfu, here))


# From the start of torchrun to the end of the first step: imports, weights from a local disk, compiling. 33 to 91 s
# were measured (benchmarks/README.md, row 10), more where layers are compiled for the first time than later.
START_S = 60.0
NEAR = 2  # times as large or as small: alike, so that it counts first whether gathered weights stay
FAR = 8  # times as large or as small: not like it
ASSUMED = Efficiency(0.25, "assumed; nothing like it was measured")


def efficiency(model: Model, setup: TrainingSetup, again: float = 0.0) -> Efficiency:
    """Of the measured training that is most like it: the same kind of training, then as much computed again, then the
    nearest size. `again` is the share of work that backward does again; what it costs more or less is reckoned in."""
    if not (rows := _fast_rows()):
        return ASSUMED

    def unlike(measured: tuple[dict[str, Any], float]) -> tuple[bool, bool, float, bool, bool, float]:
        row, done_again = measured
        size = row["parameters"]["all"] / model.every.every
        is_lora, is_compiled = row["spec"]["policy.lora"] is not None, row["spec"]["train.compile"]
        return (
            is_lora != setup.lora,
            is_compiled != setup.compiled,
            round(abs(done_again - again), 2),
            max(size, 1 / size) > NEAR,
            (row["stay"] == "all") != setup.keeps_weights,
            max(size, 1 / size),
        )

    nearest = min(rows, key=unlike)
    if unlike(nearest)[-1] > FAR:
        return ASSUMED
    row, done_again = nearest
    mfu = row["mfu"] * (1 + done_again) / (1 + again)
    return Efficiency(mfu, f"measured: {row['run']} on {row['gpu']}", row["gpu"])


@cache
def _fast_rows() -> list[tuple[dict[str, Any], float]]:
    """Every row that has an MFU, and the share of work that it did again; read once, tables of recipes ask often."""
    rows = [*policy_rows(), *(row for path in result_files() for row in read_rows(path))]  # of equals the first counts
    return [(row, _again(row)) for row in rows if row.get("mfu")]


def _again(row: dict[str, Any]) -> float:
    """The share of work that a measured training did again."""
    spec, pack = _spec(row), MicroStep(**row["pack"])
    return share_again(spec, _model(row, spec), recorded_policy(row, sizes_of(row)).recompute, pack)
