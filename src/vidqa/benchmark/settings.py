"""Settings of a run of the benchmark, from options and a configuration file of Cosmos-Reason1."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vidqa.benchmark.problems import BENCHMARK_CONFIG
from vidqa.benchmark.questions import home_of
from vidqa.core.problem import Problem
from vidqa.jobs.launch import Resources
from vidqa.spec import Layer, parse_set
from vidqa.spec.layers import read_layer
from vidqa.spec.parent_layers import model_layer
from vidqa.spec.rules import BARE_ID

# Keys of a configuration that are none of an evaluation's spec, and their defaults.
OWN = {"datasets": (), "model.model_name": None, "evaluation.answer_type": "reasoning", "generation.max_retries": 10}
ANSWER_TYPES = ("letter", "reasoning")
SYSTEM = "Answer the questions."
LETTER = {"generation.temperature": 0.0, "generation.max_tokens": 10}  # whatever a configuration says
PROTOCOL = {
    "generation.temperature": 0.6,
    "generation.top_p": 0.95,
    "generation.max_tokens": 1024,
    "dataset.system_prompt": SYSTEM,
    "model.max_length": 128000,
    "vision.fps": 4,
    "evaluation.seed": 1,
    "engine.on_bad_sample": "quarantine",  # a broken clip is a wrong answer, and ends nothing
}


@dataclass(frozen=True)
class Options:
    """The options of a user. None and an empty tuple mean the value of `config`, or else the protocol's."""

    data: Path
    out: Path
    datasets: tuple[str, ...] = ()
    model: str | None = None
    which: str | None = None
    answer_type: str | None = None
    retries: int | None = None
    limit: int | None = None
    config: Path | None = None
    sets: tuple[str, ...] = ()


@dataclass(frozen=True)
class Settings:
    """The settings of a run. `layers` are those of an evaluation without its data; a later one wins."""

    data: Path
    out: Path
    datasets: tuple[str, ...]
    model: str
    answer_type: str
    retries: int
    limit: int | None
    layers: tuple[Layer, ...]
    problems: tuple[Problem, ...]
    platform: str
    resources: Resources

    @property
    def home(self) -> Path:
        """The folder that holds the subsets."""
        return home_of(self.data)

    @property
    def folder(self) -> Path:
        """Where results go: the model's name and the answer type, as Cosmos-Reason1 has it."""
        name = self.model.rstrip("/").rsplit("/", 1)[-1]
        return self.out / name / self.answer_type


def settle(options: Options, platform: str, resources: Resources) -> Settings:
    """Raises BENCHMARK_CONFIG, and the problems of the file and of the model."""
    table, problems = _configured(options.config)
    own = {name: table.pop(name, default) for name, default in OWN.items()}
    model, datasets = options.model or own["model.model_name"], options.datasets or tuple(own["datasets"])
    if not isinstance(model, str) or not model:
        raise BENCHMARK_CONFIG.error("--model", "no option and no --config names a model")
    if not datasets:
        raise BENCHMARK_CONFIG.error("--datasets", "no option and no --config names a subset")
    answer_type = options.answer_type or own["evaluation.answer_type"]
    if answer_type not in ANSWER_TYPES:
        raise BENCHMARK_CONFIG.error("evaluation.answer_type", f"{answer_type!r} is none of {', '.join(ANSWER_TYPES)}")
    retries = own["generation.max_retries"] if options.retries is None else options.retries
    if not isinstance(retries, int) or retries < 0:
        raise BENCHMARK_CONFIG.error("generation.max_retries", f"{retries!r} is no number of retries")
    model = f"hf_model://{model}" if BARE_ID.match(model) and not os.path.isdir(model) else model
    weights = {"model.enable_lora": False, **model_layer("evaluate", model, options.which).table}
    layers = (
        Layer("protocol", PROTOCOL),
        Layer(str(options.config), table),
        Layer("answers of a letter", LETTER if answer_type == "letter" else {}),
        Layer("--model", {key: value for key, value in weights.items() if key.startswith("model.")}),
        parse_set(options.sets),
    )
    return Settings(
        data=options.data.expanduser().absolute(),
        out=options.out.expanduser().absolute(),
        datasets=tuple(dict.fromkeys(datasets)),
        model=model,
        answer_type=answer_type,
        retries=retries,
        limit=options.limit,
        layers=layers,
        problems=tuple(problems),
        platform=platform,
        resources=resources,
    )


def _configured(config: Path | None) -> tuple[dict[str, Any], list[Problem]]:
    """The keys of a configuration file by their dotted names, and warnings about those without a meaning here."""
    if config is None:
        return {}, []
    table, problems = _flat(read_layer(config).table), list[Problem]()
    datasets = table.get("datasets", [])
    if not isinstance(datasets, list) or not all(isinstance(name, str) for name in datasets):
        raise BENCHMARK_CONFIG.error(f"{config} datasets", f"{datasets!r:.100} is no list of names")
    table["evaluation.skip_saved"] = True  # a run goes on with what it has in any case
    if table.pop("model.tp_size", 1) != 1:
        message, remedy = "a GPU holds the whole model here", "--set num_gpus=N answers on N GPUs, N times as fast"
        problems.append(BENCHMARK_CONFIG.at("model.tp_size", message, remedy, severity="warning"))
    if "evaluation.fps" in table:
        table["vision.fps"] = table.pop("evaluation.fps")
    for name in ("model.tokenizer_model_name", "evaluation.num_processes"):
        table.pop(name, None)
    return {name: value for name, value in table.items() if value is not None}, problems


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in table.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat
