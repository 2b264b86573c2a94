"""Evaluation: answer every question, score the answers, write results, scores, recipe and report.

    python -P -m vidqa.engine.torchrun --standalone --nproc-per-node 1 -m vidqa.engine evaluate --spec evaluate.toml \
        --run-dir results/my-run

`evaluation.skip_saved` continues one that was stopped.
"""

from __future__ import annotations

from itertools import chain

from vidqa.core.environment import world_size
from vidqa.core.problem import Exit, raise_errors
from vidqa.core.run_folder import RunFolder
from vidqa.engine import distributed
from vidqa.engine.actions.text_metrics import open_measures
from vidqa.engine.actions.write_results import (
    fingerprint_model,
    make_recipe,
    require_answers,
    write_outcome,
    write_retries,
)
from vidqa.engine.answering.batch_inference import InferenceTask, generate_all, model_folders
from vidqa.engine.answering.candidates import Candidates
from vidqa.engine.data.planned_samples import prepare_evaluation
from vidqa.engine.signals import StopRequest
from vidqa.evaluation.metrics import Measure
from vidqa.planning.samples import evaluation_planner
from vidqa.spec import check_with_gpus
from vidqa.spec.models import EvaluateSpec


def evaluate(spec: EvaluateSpec, run: RunFolder) -> int:
    """Carry out an EvaluateSpec in `run`. Returns 0, or 6 when a signal stopped it (answers so far are kept)."""
    stop = StopRequest()
    raise_errors(check_with_gpus(spec, world_size()))
    world = distributed.start(1, spec.num_gpus, distributed.ANSWERING_TIMEOUT_S)
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
        answers, bad = result.answers(), list(dict.fromkeys(chain(quarantined, *result.failed.values())))
        require_answers(samples, answers, result.failed.keys(), run)
        took = f"{result.answered} answers in {result.seconds:.1f} s" if result.answered else "answered before"
        write_retries(run, [saved.read() for saved in result.again])
        write_outcome(spec, run, records, answers, samples, recipe, bad, measures, took)

    world.on_main(conclude)
    return int(Exit.OK)
