"""Stages of training and evaluation: the round's model by one training or a search, its control, and comparisons."""

from __future__ import annotations

import hashlib
from pathlib import Path

from vidqa.core.cli import USAGE, note
from vidqa.core.files import write_json
from vidqa.core.pages.page import percent
from vidqa.core.problem import raise_errors
from vidqa.gaps.deft import runner
from vidqa.gaps.deft.acceptance import scores_of
from vidqa.gaps.deft.context import EVALUATE_SPEC, StageContext, StageResult
from vidqa.gaps.deft.data_stages import data_keys
from vidqa.gaps.deft.runner import Request
from vidqa.gaps.deft.state import Cost, fingerprint
from vidqa.gaps.problems import DEFT_GATE
from vidqa.spec.parent_layers import evaluated_model


def train(context: StageContext) -> StageResult:
    """Train the round's model; if the loop uses a search, by the best trial of a study around its spec."""
    return _search(context) if context.settings.study else train_one(context, "training spec")


def train_one(context: StageContext, recipe: str) -> StageResult:
    """Train with the spec that an earlier stage has written."""
    run, facts, cost = runner.job("train", context.require(recipe), context.settings.where)
    return StageResult(f"Trained: {run}", {}, facts, cost)


def _search(context: StageContext) -> StageResult:
    """Run a study in the round's folder; an interrupted one resumes. Raises DEFT_GATE without a winner."""
    from vidqa.automl import commands
    from vidqa.automl.journal import controller_of, read
    from vidqa.automl.plan import PlanRequest, plan
    from vidqa.automl.report import report

    recipe = context.require("training spec")
    key = f"{fingerprint(recipe)} {fingerprint(context.output('train set'))}"
    folder = context.place / f"study-{hashlib.sha256(key.encode()).hexdigest()[:8]}"
    if controller_of(folder):
        commands.follow(folder, None, note)
    if not read(folder).history.created:
        words = ["plan", "--study", str(folder), "--spec", str(recipe)]
        words += [word for text in _resources(context) for word in ("--set", text)]
        fields = runner.options_of("run_automl", words, context.settings.study)
        runner.announce("run_automl", *words, *context.settings.study)
        raise_errors(plan(folder, PlanRequest(**fields)).problems)
    if not read(folder).history.finished:
        runner.announce("run_automl", "start", "--study", folder, "--wait")
        raise_errors(commands.wait(folder, None, note, commands.start(folder)).problems)
    history = read(folder).history
    if not history.finished or history.winner is None:
        failed = f"all of its trials have failed, the last: {(history.failures or ['none was started'])[-1]}"
        raise DEFT_GATE.error(folder, f"the study has no winner: {history.stopped or failed}")
    report(folder)
    best, cost = history.trials[history.winner], Cost(seconds=history.seconds, gpu_seconds=history.gpu_seconds)
    run = best.metrics["train_run"]
    sentence = f"Trained: {run}, trial {best.number} of {len(history.trials)} of the study in {folder}"
    return StageResult(sentence, {}, {"run_dir": run, "study": str(folder)}, cost)


def _resources(context: StageContext) -> tuple[str, ...]:
    """Platform and resources of the trials, as settings of a study."""
    where = context.settings.where
    resources = where.model_dump(mode="json", exclude={"platform"}, exclude_defaults=True)
    keys = {"platform": where.platform, **{f"resources.{key}": value for key, value in resources.items()}}
    return runner.settings_words(keys)


def evaluate(context: StageContext, model: str, data: str, stem: str, output: str) -> StageResult:
    """Evaluate a model on a set, both given by the names of their sources; `stem` is that of the spec's file. Raises
    DEFT_GATE, USAGE."""
    folder, model = str(getattr(context.settings.sets, data)), str(context.source(model))
    request = Request(
        "evaluate",
        overrides=(context.folder / EVALUATE_SPEC,),
        results_dir=str(context.runs),
        sets=runner.settings_words({**evaluated_model(model), **data_keys(folder)}),
    )
    recipe = runner.write_recipe(request, context.place / f"{stem}.toml")
    run, facts, cost = runner.job("evaluate", recipe, context.settings.where)
    scores = scores_of(run)
    if scores.accuracy is None:
        raise DEFT_GATE.error(folder, "none of its questions has an expected answer", "add answers to the set")
    kind, kinds = context.settings.stop.target_kind, scores.by_kind
    if output == "results" and kind is not None and kind not in kinds:
        message = f"no question of {folder} is of the kind {kind!r}: the target could never be reached"
        remedy = f"name one of {', '.join(kinds)}: python scripts/run_deft.py init again"
        raise USAGE.error("stop.target_kind", message, remedy)
    facts |= {"model": model, "accuracy": scores.accuracy}
    return StageResult(str(scores.headline), {output: run / "results.json"}, facts, cost)


def compare(context: StageContext, before: str, name: str) -> StageResult:
    """Compare the round's evaluation with other results, given by the name of their source."""
    from vidqa.datatools.outputs import write_page
    from vidqa.evaluation import comparison
    from vidqa.evaluation.pages import comparison_page

    runs = Path(str(context.source(before))).parent, context.require("results").parent
    page, table = context.place / f"{name}.html", context.place / f"{name}.json"
    runner.announce("compare", *runs, "--html", page)
    compared = comparison.compare(*runs)
    write_page(page, comparison_page(compared))
    write_json(table, {**compared.as_dict(), "gate": None})
    verdict, whole = compared.whole.verdict, compared.whole
    sentence = (
        f"{verdict}: {percent(whole.before)} -> {percent(whole.after)}, "
        f"{whole.fixed} fixed and {whole.broken} broken of {whole.n} questions (p = {whole.p_value:.3g})"
    )
    return StageResult(sentence, {name: table, f"{name} page": page})
