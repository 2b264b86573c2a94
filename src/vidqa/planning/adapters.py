"""A stored adapter that a training continues: whether its matrices and its base model are those of the run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from vidqa.core.files import read_object
from vidqa.core.problem import Problem
from vidqa.core.run_folder import EXPORT
from vidqa.families.adapters import WEIGHTS, check_adapter, check_base_precision
from vidqa.families.problems import ADAPTER_MISMATCH, MODEL_FILE_MISSING
from vidqa.families.weights import read_header
from vidqa.planning.budget.params import ADAPTER
from vidqa.planning.resume_compat import same_weights

BASE_LAYER = ".base_layer."  # PEFT may store the base's embeddings beside an adapter of them


def adapter_name(name: str) -> str:
    """The name that a parameter of an adapter, or of a module that trains in full beside adapters, has in PEFT's
    files."""
    name = name.replace(f".modules_to_save.{ADAPTER}.", ".")
    return "base_model.model." + name.replace(f".{ADAPTER}.", ".").removesuffix(f".{ADAPTER}")


def adapter_problems(folder: Path, shapes: Mapping[str, tuple[int, ...]], precision: str | None) -> list[Problem]:
    """MODEL_ADAPTER_MISMATCH where the tensors of an adapter are not those that a run adds to its model (`shapes`, by
    the run's names), from the file's header. `precision` is that of the run's base (policy.quantization). Raises
    MODEL_FILE_MISSING, and MODEL_UNSUPPORTED for an adapter of a base of another precision."""
    check_adapter(folder)
    if (folder / EXPORT).is_file():  # others do not record the precision
        check_base_precision(folder, precision)
    if not (folder / WEIGHTS).is_file():
        raise MODEL_FILE_MISSING.error(folder / WEIGHTS, "the adapter has no such file")
    stored = {name: tuple(tensor["shape"]) for name, tensor in read_header(folder / WEIGHTS).items()}
    stored = {name: shape for name, shape in stored.items() if BASE_LAYER not in name}
    added = {adapter_name(name): tuple(shape) for name, shape in shapes.items()}
    problems = []
    if different := sorted(stored.keys() ^ added.keys()):
        missing = len(added.keys() - stored.keys())
        message = f"{missing} tensors of the run are not in it, {len(different) - missing} of it are not the run's: "
        problems.append(ADAPTER_MISMATCH.at(folder / WEIGHTS, message + ", ".join(different[:3])))
    unlike = [name for name in stored.keys() & added.keys() if stored[name] != added[name]]
    for name in sorted(unlike)[:3]:
        message = f"{name} has shape {list(stored[name])}, the base model makes it {list(added[name])}"
        problems.append(ADAPTER_MISMATCH.at(folder / WEIGHTS, message))
    return problems


def base_problems(folder: Path, base: Path) -> list[Problem]:
    """MODEL_ADAPTER_MISMATCH where an adapter of this program was trained on other weights than those in `base`;
    whoever stored another one did not record them."""
    facts = read_object(folder / EXPORT).get("weights")
    recorded = facts.get("base_model") if isinstance(facts, dict) else None
    if not recorded or same_weights(recorded, base):
        return []
    message = f"it was trained on weights with the hash {str(recorded)[:12]}, which {base} does not have"
    return [ADAPTER_MISMATCH.at(folder, message)]
