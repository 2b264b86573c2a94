"""The second models that score free text, as a spec names them: one folder a metric."""

from __future__ import annotations

from typing import Any

KEYS = {"bertscore": "bertscore_model", "similarity": "similarity_model"}  # by the metric's name


def is_folder(name: str) -> bool:
    """Whether a name is meant as a path: names of the hub begin with none of these."""
    return name.startswith(("/", "~", "."))


def metric_models(spec: Any) -> dict[str, str]:
    """The keys of the folders that the metrics asked for need, by the metric's name."""
    chosen = {name: key for name, key in KEYS.items() if name in spec.metrics.names}
    return {name: f"metrics.{key}" for name, key in chosen.items() if is_folder(getattr(spec.metrics, key))}


def path_keys(spec: Any) -> list[str]:
    """The keys of `metric_models`, and that of the user's function."""
    return [*metric_models(spec).values(), *(["metrics.functions"] if spec.metrics.functions else [])]
