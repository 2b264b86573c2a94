"""The outcome of an evaluation: results.json, metrics.json, recipe.json and report.html."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence, Set
from importlib.metadata import version
from pathlib import Path
from typing import Any

from vidqa.core.files import remove, write_json
from vidqa.core.problem import Problem
from vidqa.core.run_folder import RunFolder
from vidqa.data import fingerprint
from vidqa.data.record import Record
from vidqa.engine.answering.answers import Answer
from vidqa.engine.answering.batch_inference import AnsweringSpec
from vidqa.engine.problems import ENGINE_ANSWERS_MISSING, ENGINE_BAD_SAMPLE
from vidqa.evaluation.answers import RULES
from vidqa.evaluation.metrics import Measure, score
from vidqa.evaluation.pages import write_report
from vidqa.evaluation.results import make_item
from vidqa.evaluation.thumbnails import poster_frames
from vidqa.evaluation.user_scores import function_recipe, user_scores
from vidqa.planning.resume_compat import weights_hash
from vidqa.planning.samples import Planner, Sample
from vidqa.spec.evaluate_tables import metric_models
from vidqa.spec.keys import value_at
from vidqa.spec.models import EvaluateSpec
from vidqa.video.types import VisionSpec

NAMED = 5  # samples that a message names
POSTERS = 4  # frames shown of one failure
UNDECODABLE = "error"  # finish_reason of a sample whose video could not be read


def make_recipe(
    spec: EvaluateSpec, planner: Planner, records: Sequence[Record], model: dict[str, Any]
) -> dict[str, Any]:
    """The recipe of a score: two scores compare only if their recipes agree, apart from the model."""
    recipe = answers_recipe(spec, spec.evaluation, planner, records, model)
    scoring = {"task_type": spec.task.type, "answer_rules": RULES}
    if spec.evaluation.method != "generate":  # left out for generate, as in older recipes
        scoring["method"] = spec.evaluation.method
    if spec.metrics.functions:
        scoring |= function_recipe(spec.metrics.functions)
    return {**recipe, "scoring": scoring, "versions": recipe["versions"]}


def _asked_beside(vision: VisionSpec) -> dict[str, Any]:
    """Settings of frames that differ from the defaults, so that earlier recipes stay the same."""
    keys = {"min_frame_pixels": vision.min_pixels, "sides": vision.sides, "shown_s": vision.shown}
    keys["cap_pixels_per_frame"] = vision.video.capped or None
    return {name: value for name, value in keys.items() if value is not None}


def _likeliest(spec: AnsweringSpec) -> dict[str, tuple[float, float]]:
    """Which tokens are drawn from, each with the value that changes nothing."""
    usual = {"top_p": 1.0, "top_k": 0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    return {name: (getattr(spec.generation, name), value) for name, value in usual.items()}


def answers_recipe(
    spec: AnsweringSpec, how: Any, planner: Planner, records: Sequence[Record], model: dict[str, Any]
) -> dict[str, Any]:
    """The recipe of answers. `how` is the spec's table with seed and generator."""
    rules = planner.vision.video
    return {
        "schema_version": 1,
        "model": model,
        "data_fingerprint": fingerprint(records),
        "samples": len(records),
        "frames": {
            "fps": planner.vision.fps,
            "nframes": planner.vision.nframes,
            "total_pixels": planner.vision.total_pixels,
            "max_frame_pixels": planner.vision.max_pixels,
            **_asked_beside(planner.vision),
            "min_pixels": rules.min_pixels,
            "max_pixels": rules.max_pixels,
            "patch_size": rules.patch_size,
            "merge_size": rules.merge_size,
        },
        "prompt": {
            "system_prompt": planner.prompting.system_prompt,
            "chat_template_sha256": hashlib.sha256(planner.chat.template.source.encode()).hexdigest(),
        },
        "generation": {
            "max_tokens": spec.generation.max_tokens,
            "temperature": spec.generation.temperature,
            "repetition_penalty": spec.generation.repetition_penalty,
            **{name: value for name, (value, usual) in _likeliest(spec).items() if value != usual},
            "seed": how.seed,
            "dtype": spec.model.dtype,
            # Left out for the reference, as in older recipes.
            **({} if how.generator == "transformers" else {"generator": how.generator}),
        },
        "versions": {name: version(name) for name in ("torch", "transformers", "peft", "av")},
    }


def fingerprint_model(folder: Path, base: Path | None) -> dict[str, Any]:
    """Identifies the evaluated weights."""
    return {"folder": str(folder), "base": str(base) if base else None, "sha256": weights_hash(folder, base)}


def _short_name(folder: Path) -> str:
    """A model folder's name; of an export, the run's name with it."""
    run = folder.parent
    return f"{run.parent.name}/{folder.name}" if run.name == "safetensors" else folder.name


def require_answers(
    samples: Sequence[Sample], answers: Mapping[str, Answer], undecoded: Set[str], run: RunFolder
) -> None:
    """Raises ENGINE_ANSWERS_MISSING where a planned sample that could be decoded has no answer."""
    expected = [sample.record.id for sample in samples if sample.record.id not in undecoded]
    if missing := [sample_id for sample_id in expected if sample_id not in answers]:
        message = f"{len(missing)} of {len(expected)} answers are missing: {_first(missing)}"
        raise ENGINE_ANSWERS_MISSING.error(run.path / "answers", message)


def _not_answered(records: Sequence[Record], answers: Mapping[str, Answer], run: RunFolder) -> list[Problem]:
    """A warning with the number and names of samples without an answer."""
    left = [record.id for record in records if record.id not in answers]
    message = f"{len(left)} of {len(records)} samples were not asked: {_first(left)}"
    return [ENGINE_BAD_SAMPLE.at(run.path / "metrics.json", message, severity="warning")] if left else []


def _first(names: Sequence[str]) -> str:
    return ", ".join([*names[:NAMED], "..."][: len(names)])


def write_retries(run: RunFolder, attempts: Sequence[Mapping[str, Answer]]) -> None:
    """retries.json: the answers of each further attempt, by sample id; no file where nothing was asked again."""
    rows = [
        {"attempt": number, "sample_id": name, "response": answer.text, "finish_reason": answer.finish_reason}
        for number, answers in enumerate(attempts, 1)
        for name, answer in answers.items()
    ]
    if rows:
        write_json(run.path / "retries.json", rows)
    else:
        remove(run.path / "retries.json", owner=run.path)


def write_outcome(
    spec: EvaluateSpec,
    run: RunFolder,
    records: Sequence[Record],
    answers: dict[str, Answer],
    samples: Sequence[Sample],
    recipe: dict[str, Any],
    bad: Sequence[Problem],
    measures: Mapping[str, Measure],
    took: str,
) -> None:
    """Judge, score and write. A record whose video could not be read counts as not answered. `took` says how long
    answering took."""
    task = "its_directionality" if spec.task.type == "its_directionality" else ""
    items = []
    for record in records:
        answer = answers.get(record.id)
        text, reason = (answer.text, answer.finish_reason) if answer else (None, UNDECODABLE)
        item = make_item(record, text, reason, task)
        items.append({**item, "answer_logprobs": answer.logprobs} if answer and answer.logprobs else item)
    soft = spec.evaluation.soft_accuracy
    metrics = score(items, task, soft.f1_threshold, spec.metrics.names, measures)
    if not soft.enabled:
        metrics.pop("soft_accuracy", None)
    if measures and "text" in metrics:
        metrics["text"]["models"] = {name: value_at(spec, key) for name, key in metric_models(spec).items()}
    if spec.metrics.functions:
        own = user_scores(spec.metrics.functions, items, spec.metrics.functions_timeout_s)
        if own.values:
            items = [{**item, "scores": scores} for item, scores in zip(items, own.values, strict=True)]
        metrics["functions"] = own.table(items)
        metrics["problems"] += [problem.as_dict() for problem in own.problems]
    metrics["quarantined"] = [problem.as_dict() for problem in bad]
    metrics["problems"] += [problem.as_dict() for problem in _not_answered(records, answers, run)]
    write_json(run.path / "results.json", items)
    write_json(run.path / "metrics.json", metrics)
    write_json(run.path / "recipe.json", recipe)
    plans = {sample.record.id: sample for sample in samples}

    def posters(item: dict[str, Any]) -> list[bytes]:
        sample = plans.get(item["sample_id"])
        if sample is None or not sample.plans:
            return []
        ref, plan = sample.record.media[0], sample.plans[0]
        shown = [plan.indices[i * len(plan.indices) // POSTERS] for i in range(min(POSTERS, len(plan.indices)))]
        return poster_frames(ref.path, ref.member, shown)

    write_report(
        run.path / "report.html",
        title=f"Evaluation of {_short_name(Path(recipe['model']['folder']))}",
        run_dir=run.path,
        took=took,
        items=items,
        metrics=metrics,
        recipe=recipe,
        posters=posters,
    )
