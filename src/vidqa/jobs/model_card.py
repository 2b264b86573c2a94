"""The model card of an export: README.md in the format of model hubs, from the run, its spec and its scores. Scores are
those of evaluations whose recipe has the hash of these weights. The card contains no path of this machine, because it
is published with the weights."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader

from vidqa.core.files import read_object, value_in
from vidqa.core.run_folder import RunFolder
from vidqa.data.hub_card import front_matter_text
from vidqa.evaluation.results import compare_recipes
from vidqa.evaluation.text import as_text
from vidqa.jobs import records
from vidqa.jobs.exports import ExportSource, Origin
from vidqa.planning.resume_compat import same_weights
from vidqa.spec import effective_batch, steps_per_epoch
from vidqa.spec.grpo_tables import reward_weights
from vidqa.spec.models import GrpoSpec

HUB = "https://huggingface.co/"
RECIPE, METRICS = "recipe.json", "metrics.json"  # of an evaluation
TEMPLATE = "model_card.md.j2"


@dataclass(frozen=True)
class Evaluation:
    """A finished evaluation; `name` is that of its set of questions."""

    folder: Path
    name: str
    recipe: dict[str, Any]
    metrics: dict[str, Any]

    @property
    def weights(self) -> str:
        return str(value_in(self.recipe, "model.sha256") or value_in(self.recipe, "model.sha256_sampled") or "")


@dataclass(frozen=True)
class Scores:
    """An evaluation of the export, and a comparable one of its base model."""

    export: Evaluation
    base: Evaluation | None

    def as_dict(self) -> dict[str, Any]:
        export_figures = {"folder": str(self.export.folder), "set": self.export.name, **_figures(self.export.metrics)}
        return {**export_figures, "base": _figures(self.base.metrics) if self.base else None}


def _figures(metrics: Mapping[str, Any]) -> dict[str, Any]:
    return {key: metrics.get(key) for key in ("n", "accuracy", "accuracy_ci95", "majority_accuracy")}


def scores_of(source: ExportSource, out: Path) -> list[Scores]:
    """Evaluations of the export, or of its release in `out`; of those with equal recipes the newest."""
    evaluations = sorted(
        _evaluations(source), key=lambda evaluation: (evaluation.folder / METRICS).stat().st_mtime, reverse=True
    )
    bases = [evaluation for evaluation in evaluations if same_weights(evaluation.weights, source.base)]
    scores: list[Scores] = []
    for evaluation in evaluations:
        same = any(not compare_recipes(evaluation.recipe, other.export.recipe) for other in scores)
        own = source.is_of(evaluation.weights) or same_weights(evaluation.weights, out)
        if own and not same:
            base = next((other for other in bases if not compare_recipes(evaluation.recipe, other.recipe)), None)
            scores.append(Scores(evaluation, base))
    return sorted(scores, key=lambda evaluation: (evaluation.export.name, str(evaluation.export.folder)))


def _evaluations(source: ExportSource) -> Iterator[Evaluation]:
    """The evaluations beside the run, in the folders beside the folder of its runs, and of jobs launched here."""
    home = source.run.path
    beside = [recipe.parent for pattern in ("*", "*/*") for recipe in home.parent.parent.glob(f"{pattern}/{RECIPE}")]
    launched = [Path(record.run_dir) for record in records.scan()[0]]
    for folder in dict.fromkeys(path.resolve() for path in [*beside, *launched]):
        recipe, metrics = read_object(folder / RECIPE), read_object(folder / METRICS)
        if recipe and isinstance(metrics.get("accuracy"), int | float):
            yield Evaluation(folder, _set_of(folder), recipe, metrics)


def _set_of(folder: Path) -> str:
    """A short name of an evaluation's questions: the folder of the annotations, or their file's name."""
    path = Path(str(value_in(RunFolder(folder).read_spec()[0], "dataset.annotation_path") or "questions"))
    return path.parent.name if path.stem == "annotations" and path.parent.name else path.stem


def card_text(
    source: ExportSource, origin: Origin, name: str, scores: Sequence[Scores], proof: Mapping[str, Any], *, merged: bool
) -> str:
    """The model card of the folder `name`; `merged`: an adapter was merged into its base; `proof` is proof.json."""
    spec = source.spec
    prompt, vision = spec.custom.system_prompt, spec.custom.vision
    is_adapter = source.is_adapter and not merged
    environment = Environment(loader=PackageLoader("vidqa.jobs", "."), keep_trailing_newline=True)
    environment.filters["plain"] = _plain
    return environment.get_template(TEMPLATE).render(
        front=_front_matter(source, origin, is_adapter),
        name=name,
        grpo=isinstance(spec, GrpoSpec),
        adapter=is_adapter,
        merged=merged,
        base=_base(origin),
        repository=origin.repository,
        scores=[_score_row(evaluated) for evaluated in scores],
        settings=_settings(scores),
        training=_training(source, origin),
        prompt=prompt,
        fence="`" * max(3, 1 + max((len(run) for run in re.findall("`+", prompt)), default=0)),
        proof=proof,
        frames=_sampling(vision.fps, vision.nframes),
        license=_license(origin.license),
    )


def _front_matter(source: ExportSource, origin: Origin, is_adapter: bool) -> str:
    relation = "adapter" if is_adapter else "finetune"
    base = origin.repository or ("" if is_adapter else origin.ancestor)  # an adapter is one of its own base alone
    tags = ["lora"] if source.is_adapter else []
    tags += ["reinforcement-learning", "grpo"] if isinstance(source.spec, GrpoSpec) else []
    settings = {
        **origin.license,
        **({"base_model": [base], "base_model_relation": relation} if base else {}),
        "library_name": "peft" if is_adapter else "transformers",
        "pipeline_tag": "image-text-to-text",
        "tags": ["video", "video-question-answering", *tags],
    }
    return front_matter_text(settings)


def _base(origin: Origin) -> str:
    repository = origin.repository
    base = f"[{repository}]({HUB}{repository})" if repository else f"the local model `{_plain(origin.name)}`"
    return f"{base} (run {_plain(origin.parent)})" if origin.parent else base


def _settings(scores: Sequence[Scores]) -> list[str]:
    """Generation settings of the answers, each combination once."""
    recipes = {str(s.export.recipe.get("generation", {})): s.export.recipe for s in scores}
    settings = []
    for recipe in recipes.values():
        generation, frames = recipe.get("generation", {}), recipe.get("frames", {})
        most, temperature, dtype = (generation.get(key) for key in ("max_tokens", "temperature", "dtype"))
        sampled = _sampling(frames.get("fps"), frames.get("nframes"))
        settings.append(f"{sampled}, at most {most} tokens, temperature {temperature}, {dtype}")
    return settings


def _training(source: ExportSource, origin: Origin) -> list[tuple[str, str]]:
    spec, run = source.spec, source.run
    facts, plan, train = run.read_run(), read_object(run.path / "plan.json"), spec.train
    best = read_object(run.path / "best.json")
    order, step = source.facts.get("order", {}), source.facts.get("step")
    samples = plan.get("train_samples") or order.get("samples")
    per_epoch = steps_per_epoch(spec, samples) if samples else 0
    vision, lora = spec.custom.vision, spec.policy.lora
    rows: dict[str, object] = {
        "data fingerprint": facts.get("data_fingerprint") or order.get("data_fingerprint"),
        "samples": samples,
        "steps": step,
        "epochs": f"{step / per_epoch:.3g}" if step and per_epoch else "",
        **(_policy(spec) if isinstance(spec, GrpoSpec) else {"effective batch": effective_batch(spec)}),
        "learning rate": train.optm_lr,
        "precision": train.param_dtype,
        "seed": train.seed,
        "fine-tuning": _lora(lora) if lora else "full",
        "frozen": ", ".join(spec.policy.freeze_pattern or ()),
        "frames": _sampling(vision.fps, vision.nframes),
        "context": f"{spec.policy.model_max_length} tokens",
        "chosen": _chosen(best) if best.get("name") == source.export.name else "",
        "run": f"{run.path.name}, {source.export.name}",
        "started from": origin.parent,
        "program": f"finetune-cosmos-reason {facts.get('vidqa_version', '')}".strip(),
    }
    return [(key, as_text(value)) for key, value in rows.items() if value not in (None, "", 0)]


def _score_row(scores: Scores) -> list[str]:
    metrics = scores.export.metrics
    base = _accuracy(scores.base.metrics) if scores.base else "not evaluated"
    majority = _share(metrics.get("majority_accuracy"))
    return [_plain(scores.export.name), str(metrics.get("n")), _accuracy(metrics), base, majority]


def _license(facts: Mapping[str, str]) -> str:
    """The license as Markdown; empty if unknown."""
    if not facts:
        return ""
    name, link = facts.get("license_name") or facts["license"], facts.get("license_link", "")
    return f"[{_plain(name)}]({link})" if re.match("https?://", link) else _plain(name)


def _policy(spec: GrpoSpec) -> dict[str, object]:
    """Settings of reinforcement learning and its rewards. User functions are named by their file, without a path."""
    policy, rollout = spec.train.train_policy, spec.rollout
    rewards = reward_weights(policy.reward_function)
    return {
        "method": "reinforcement learning, GRPO" + ("" if policy.variant == "grpo" else f" ({policy.variant})"),
        "rewards": ", ".join(f"{os.path.basename(name)} x {weight:g}" for name, weight in rewards.items()),
        "questions per step": effective_batch(spec),
        "completions per question": rollout.n_generation,
        "most tokens per completion": rollout.max_response_length,
        "sampling temperature": f"{spec.temperature:g}",
        "KL coefficient": f"{policy.kl_beta:g}",
    }


def _plain(text: str) -> str:
    """Escape others' text for a line of Markdown: no line, cell, link or tag begins in it."""
    return re.sub(r"([\\`*\[\]<>|])", r"\\\1", " ".join(text.split()))


def _share(value: object) -> str:
    return f"{100 * value:.1f} %" if isinstance(value, int | float) else "unknown"


def _accuracy(metrics: Mapping[str, Any]) -> str:
    interval = metrics.get("accuracy_ci95")
    shown = f" [{100 * interval[0]:.1f}, {100 * interval[1]:.1f}]" if interval else " (no interval: too few videos)"
    return _share(metrics.get("accuracy")) + shown


def _sampling(fps: object, nframes: object) -> str:
    return f"{nframes} frames of each video" if nframes else f"{fps} frames per second"


def _lora(lora: Any) -> str:
    targets = lora.target_modules if isinstance(lora.target_modules, str) else ", ".join(lora.target_modules)
    also = f"; in full: {', '.join(lora.modules_to_save)}" if lora.modules_to_save else ""
    return f"LoRA, r {lora.r}, alpha {lora.lora_alpha:g}, on {targets}{also}"


def _chosen(best: Mapping[str, Any]) -> str:
    value = best.get("value")
    if not isinstance(value, float):
        return "the run's newest; nothing was measured during the training"
    return f"the run's best, by {best.get('metric')} {value:.4g}"
