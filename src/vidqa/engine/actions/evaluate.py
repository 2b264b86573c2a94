"""Evaluation: answer every question, score the answers, write results, scores, recipe and report.

    python -P -m vidqa.engine.torchrun --standalone --nproc-per-node 1 -m vidqa.engine evaluate --spec evaluate.toml \
        --run-dir results/my-run

`evaluation.skip_saved` continues a stopped evaluation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from vidqa.core.files import remove, write_json
from vidqa.core.problem import Exit, Problem
from vidqa.core.run_folder import QUARANTINE, RunFolder
from vidqa.data.problems import shown_names
from vidqa.data.record import Record
from vidqa.engine.actions.text_metrics import open_measures
from vidqa.engine.answering.answers import Answer, answers_recipe, fingerprint_model, require_answers
from vidqa.engine.answering.batch_inference import InferenceTask, generate_all, model_folders, start_answering
from vidqa.engine.answering.prompts import Candidates
from vidqa.engine.data.planned_samples import prepare_evaluation
from vidqa.engine.problems import ENGINE_BAD_SAMPLE
from vidqa.engine.signals import StopRequest
from vidqa.evaluation.answers import DIRECTION_TASK, RULES
from vidqa.evaluation.metrics import Measure, score
from vidqa.evaluation.pages import write_report
from vidqa.evaluation.results import make_item
from vidqa.evaluation.thumbnails import poster_frames
from vidqa.evaluation.user_scores import function_recipe, user_scores
from vidqa.planning.samples import Planner, Sample, evaluation_planner
from vidqa.spec.evaluate_tables import metric_models
from vidqa.spec.keys import value_at
from vidqa.spec.models import EvaluateSpec

POSTERS = 4  # frames shown for each failure
UNDECODABLE = "error"  # finish_reason of a sample whose video could not be read


def evaluate(spec: EvaluateSpec, run: RunFolder) -> int:
    """Run the evaluation of an EvaluateSpec. Returns 0, or 6 when a signal stopped it (answers so far are kept)."""
    stop = StopRequest()
    world = start_answering(spec)
    folder, base = model_folders(spec)

    # The questions: the same plan of frames and tokens as in training.
    planner = evaluation_planner(spec, base or folder)
    records, samples, quarantined = prepare_evaluation(spec, planner, world, run)
    measures: dict[str, Measure] = {}  # on the main rank, which scores
    world.on_main(lambda: measures.update(open_measures(spec, world.device)))
    recipe = world.on_main(lambda: make_recipe(spec, planner, records, fingerprint_model(folder, base)))

    candidates = Candidates(planner.chat, spec.task.type) if spec.evaluation.method == "score" else None
    task = InferenceTask(spec, spec.evaluation, world, run, stop, spec.evaluation.retries)
    result = generate_all(task, planner, samples, recipe, candidates)
    if result.was_stopped:
        return int(Exit.NOT_DONE)

    def conclude() -> None:
        answers, bad = result.saved.read(), list(dict.fromkeys(chain(quarantined, *result.failed.values())))
        require_answers(samples, answers, result.failed.keys(), run)
        took = f"{result.answered} answers in {result.seconds:.1f} s" if result.answered else "answered before"
        if bad:
            run.write_problems(bad, QUARANTINE)
        write_retries(run, [saved.read() for saved in result.retries])
        write_outcome(spec, run, records, answers, samples, recipe, bad, measures, took)

    world.on_main(conclude)
    return int(Exit.OK)


def make_recipe(
    spec: EvaluateSpec, planner: Planner, records: Sequence[Record], model: dict[str, Any]
) -> dict[str, Any]:
    """The recipe of a score: two scores are comparable only if their recipes agree, apart from the model."""
    recipe = answers_recipe(spec, spec.evaluation, planner, records, model)
    scoring = {"task_type": spec.task.type, "answer_rules": RULES}
    if spec.evaluation.method != "generate":  # left out for generate, as in older recipes
        scoring["method"] = spec.evaluation.method
    if spec.metrics.functions:
        scoring |= function_recipe(spec.metrics.functions)
    return {**recipe, "scoring": scoring, "versions": recipe["versions"]}


def _short_name(folder: Path) -> str:
    """The name of a model folder; for an export, preceded by the name of its run."""
    run = folder.parent
    return f"{run.parent.name}/{folder.name}" if run.name == "safetensors" else folder.name


def _not_answered(records: Sequence[Record], answers: Mapping[str, Answer], run: RunFolder) -> list[Problem]:
    """A warning with the number and names of samples without an answer."""
    left = [record.id for record in records if record.id not in answers]
    message = f"{len(left)} of {len(records)} samples were not answered: {shown_names(left)}"
    return [ENGINE_BAD_SAMPLE.at(run.path / "metrics.json", message, severity="warning")] if left else []


def write_retries(run: RunFolder, attempts: Sequence[Mapping[str, Answer]]) -> None:
    """Write retries.json, the answers of each retry by sample id; without retries remove it."""
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
    """Judge, score and write. A record whose video could not be read counts as unanswered. `took` is a phrase about the
    speed, for the report."""
    task = DIRECTION_TASK if spec.task.type == DIRECTION_TASK else ""
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
