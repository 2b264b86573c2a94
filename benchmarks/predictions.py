"""Predicted against measured memory, from stored rows: those of memory.py, policies.py and rl.py, and of answering.

    python benchmarks/predictions.py

A row of results/memory-NAME.json has `run` (its name), `gpu`, `family`, `sizes` (of the model), `spec` (the keys of
KEYS), `recompute` and `stay` (see `MemoryPolicy.record`), `parameters`, `pack` (the largest one: padded tokens,
patches, supervised tokens), and the measurements: `memory_gib`, `mfu` and others. The MFU of typical rows is in
planning/budget/speed.py, with which preflight estimates hours.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vidqa.families import FAMILIES, Family, Sizes, TextSizes, VisionSizes
from vidqa.planning.budget.answering import AnsweringSetup, Reading, answering_memory
from vidqa.planning.budget.memory import MemoryPolicy, MicroStep, peak_memory, read_memory_policy, training_setup
from vidqa.planning.budget.params import ParamCounts, count_params, parameters
from vidqa.spec.models import TrainSpec

READING_KEYS = {"seen": "shared"}  # of earlier rows
PACK_KEYS = {"again": "accumulates", "seen": "prefix_rows"}  # of earlier rows
RESULTS = Path(__file__).with_name("results")
# The keys of a spec that determine memory, besides the data.
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
    "train.optm_name",
    "train.fsdp_offload",
    "policy.quantization",
    "engine.keep_features",
)


def description(
    spec: TrainSpec, memory_policy: MemoryPolicy, family: Family, model: ParamCounts, micro_step: MicroStep
) -> dict[str, Any]:
    """The description of a training in a row, besides its name and its measurements."""
    return {
        "family": family.name,
        "sizes": asdict(model.sizes),
        "spec": {key: _plain(spec, key) for key in KEYS},
        **memory_policy.record(),
        "parameters": {"all": model.every.every, "trained": model.every.trained},
        "pack": asdict(micro_step),
    }


def _plain(spec: TrainSpec, key: str) -> Any:
    value: Any = spec
    for name in key.split("."):
        value = getattr(value, name)
    return value.model_dump() if hasattr(value, "model_dump") else value


@dataclass(frozen=True)
class Compared:
    """A prediction beside the measurement. `superseded` is the reason why a row of an earlier engine is out of date."""

    run: str
    predicted_gib: float
    measured_gib: float
    moment: str
    superseded: str = ""

    @property
    def error(self) -> float:
        return self.predicted_gib / self.measured_gib - 1


def compare(rows: Sequence[dict[str, Any]]) -> list[Compared]:
    """The comparison of every row of a training with a measured memory."""
    results = []
    for row in rows:
        if "memory_gib" not in row or "pack" not in row:  # of an ordinary recipe, which is not predicted
            continue
        spec, sizes = _spec(row), sizes_of(row)
        family = next(family for family in FAMILIES if family.name == row["family"])
        model = count_params(sizes, parameters(family.tensors(sizes), spec.policy))
        memory = peak_memory(
            model,
            training_setup(spec, read_memory_policy(row, sizes)),
            MicroStep(**{PACK_KEYS.get(key, key): value for key, value in row["pack"].items()}),
        )
        superseded = row.get("superseded", "")
        results.append(Compared(row["run"], memory.peak_gib, row["memory_gib"], memory.moment, superseded))
    return results


def _spec(row: dict[str, Any]) -> TrainSpec:
    nested: dict[str, Any] = {}
    for key, value in row["spec"].items():
        *path, last = key.split(".")
        table = nested
        for name in path:
            table = table.setdefault(name, {})
        table[last] = value
    return TrainSpec.model_validate(nested)


def sizes_of(row: dict[str, Any]) -> Sizes:
    """The model's sizes in a row."""
    return Sizes(TextSizes(**row["sizes"]["text"]), VisionSizes(**row["sizes"]["vision"]))


def answering_description(
    sizes: Sizes, parameters: int, setup: AnsweringSetup, reading: Reading, gpu_gib: float | None
) -> dict[str, Any]:
    """The description of an evaluation in a row, besides its name and its measurements."""
    described = {"sizes": asdict(sizes), "parameters": parameters, "setup": asdict(setup), "reading": asdict(reading)}
    return {**described, "gpu_gib": gpu_gib}


def compare_answering(rows: Sequence[dict[str, Any]]) -> list[Compared]:
    """The comparison of every row of an evaluation with a measured memory."""
    results = []
    for row in rows:
        setup, reading = (
            AnsweringSetup(**row["setup"]),
            Reading(**{READING_KEYS.get(name, name): value for name, value in row["reading"].items()}),
        )
        memory = answering_memory(sizes_of(row), row["parameters"], setup, reading, row["gpu_gib"])
        results.append(Compared(row["run"], memory.peak_gib, row["memory_gib"], memory.moment))
    return results


def read_rows(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text(encoding="utf-8"))


def result_files() -> list[Path]:
    return sorted(RESULTS.glob("memory-*.json"))


def policy_calls() -> list[dict[str, Any]]:
    """The stored calls of policies.py, oldest first: each has `rows`, and the summary `told` of its cases."""
    return read_rows(RESULTS / "policies.json")


def policy_rows() -> list[dict[str, Any]]:
    """Rows of policies.py with all inputs of a prediction; of repeated runs the newest."""
    rows = (row for call in policy_calls() for row in call["rows"] if "pack" in row)
    return list({(row["run"], row["gpu"]): row for row in rows}.values())


def rollout_rows() -> list[Compared]:
    """Rows of rl.py that measured the memory of our own steps, the newest of each."""
    rows = [{**row, "gpu": call["machine"]} for call in read_rows(RESULTS / "rl.json") for row in call["rows"]]
    ours = [row for row in rows if {"memory_gib", "predicted_gib"} <= row.keys() and "alone" not in row["row"]]
    newest = {(row["row"], row["gpu"]): row for row in ours}.values()
    return [Compared(row["row"], row["predicted_gib"], row["memory_gib"], "-") for row in newest]


def table(compared: Sequence[Compared]) -> list[str]:
    """A Markdown table of predicted against measured memory."""
    lines = ["| run | predicted GiB | measured GiB | error | peak at |", "|---|---|---|---|---|"]
    for row in compared:
        values = f"{row.predicted_gib:.1f} | {row.measured_gib:.1f} | {row.error:+.1%}"
        lines.append(f"| {row.run}{' (*)' if row.superseded else ''} | {values} | {row.moment} |")
    remarks = dict.fromkeys(f"(*) {row.superseded}" for row in compared if row.superseded)
    return [*lines, *(["", *remarks] if remarks else [])]


def main() -> None:
    tables = {path.stem: compare(read_rows(path)) for path in result_files()} | {"policies": compare(policy_rows())}
    tables |= {path.stem: compare_answering(read_rows(path)) for path in sorted(RESULTS.glob("answering-*.json"))}
    for name, compared in (tables | {"grpo": rollout_rows()}).items():
        print(f"### {name}", "", *table(compared), "", sep="\n")


if __name__ == "__main__":
    main()
