"""The loop's contract: its stages in order, with the command, inputs and outputs of each.

`make generate` writes it into config.json.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from vidqa.gaps.deft import acceptance, data_stages, model_stages
from vidqa.gaps.deft.context import StageContext, StageResult
from vidqa.gaps.deft.state import Settings

LAUNCH = "python scripts/launch.py {} --spec SPEC --platform local --json"
COMPARE = "python scripts/compare.py BEFORE AFTER --html COMPARISON --json"
ASSEMBLE = "python scripts/assemble_dataset.py --base BASE --add MINED --out FOLDER --json"
PREFLIGHT = "python scripts/preflight.py --spec SPEC --kpi-root SELECTION --json"
ANALYZE = (
    "python scripts/analyze_gaps.py --results-dir RUN --gaps-parquet GAPS --kpi-ann-path ANNOTATIONS"
    " --kpi-media-path MEDIA --slices SLICES --audit AUDIT --json"
)
MINE = "python scripts/mine_samples.py --gaps GAPS --pool EMBEDDINGS --query EMBEDDINGS --out FOLDER --json"
ANSWER = "python scripts/run_deft.py next LOOP --{} FILE --json"


@dataclass(frozen=True)
class Stage:
    """One stage. `reads` names outputs of other stages or inputs of the loop; a stage runs again only if one of them
    has changed. `schema` is that of its main file."""

    name: str
    does: str
    run: Callable[[StageContext], StageResult]
    command: str
    reads: tuple[str, ...]
    writes: tuple[str, ...] = ()
    schema: str | None = None


SETS = ("selection", "kpi", "test", "settings.words")
SPEC = ("training recipe", "accepted model", "settings.train", "settings.continue_from")


def _evaluation(name: str, does: str, model: str, data: str, output: str) -> Stage:
    run = partial(model_stages.evaluate, model=model, data=data, stem=name.replace(" ", "_"), output=output)
    reads = (model, data, "evaluation recipe", "settings.where")
    return Stage(name, does, run, LAUNCH.format("evaluate"), reads, (output,), "vidqa.results.v1")


def _assembly(name: str, does: str, inputs: tuple[str, ...], output: str) -> Stage:
    run = partial(data_stages.assemble_set, inputs=inputs, folder=output.replace(" ", "_"), output=output)
    return Stage(name, does, run, ASSEMBLE, ("base set", *inputs, *SETS), (output,), "vidqa.annotations.v1")


def _validation(name: str, does: str, data: str, stem: str, output: str) -> Stage:
    run = partial(data_stages.validate, train_set=data, stem=stem, output=output)
    return Stage(name, does, run, PREFLIGHT, (data, *SPEC), (output,), "train.schema.json")


def _comparison(name: str, does: str, before: str, output: str) -> Stage:
    run = partial(model_stages.compare, before=before, name=output)
    return Stage(name, does, run, COMPARE, (before, "results"), (output, f"{output} page"), "vidqa.comparison.v1")


def _training(name: str, does: str, run: Callable[[StageContext], StageResult], spec: str, data: str) -> Stage:
    return Stage(name, does, run, LAUNCH.format("train"), (spec, data, "settings.where"))


EVALUATE = _evaluation(
    "evaluate", "evaluate the round's model on the selection set", "training run", "selection", "results"
)
KPI = _evaluation("kpi", "evaluate the accepted model on the KPI set", "accepted model", "kpi", "KPI results")
TEST = _evaluation(
    "test", "evaluate the accepted model on the test set, once", "accepted model", "test", "test results"
)
ROUND = (
    Stage(
        "embed",
        "embed the pool and the selection set",
        data_stages.embed,
        LAUNCH.format("embed"),
        ("pool", "selection", "evaluation recipe", "settings.model"),
        ("selection embeddings", "pool embeddings"),
        "vidqa.embeddings.v1",
    ),
    Stage(
        "gaps",
        "find the accepted model's errors, and doubtful labels",
        data_stages.gaps,
        ANALYZE,
        ("accepted results", "selection", "selection embeddings", "audit answers", "settings.words"),
        ("gaps", "slices", "audit queue"),
        "vidqa.gaps.v1",
    ),
    Stage(
        "audit",
        "ask a person about probably wrong labels",
        data_stages.audit,
        ANSWER.format("audit-answers"),
        ("audit queue", "audit answers", "settings.audit", "settings.audit_from"),
        schema="vidqa.audit.v1",
    ),
    Stage(
        "mine",
        "mine samples similar to the gaps from the pool",
        data_stages.mine_pool,
        MINE,
        ("gaps", "pool", "pool embeddings", "selection embeddings", "settings.words", "settings.control"),
        ("mined", "mined table", "random", "tasks"),
        "vidqa.annotations.v1",
    ),
    Stage(
        "label",
        "ask a person for answers to mined samples",
        data_stages.label,
        ANSWER.format("labels"),
        ("tasks", "labels"),
        ("mined",),
        "vidqa.annotations.v1",
    ),
    Stage(
        "augment",
        "augment the mined samples",
        data_stages.augment_mined,
        "python scripts/augment_samples.py --annotations MINED --out FOLDER --json",
        ("mined", "settings.words"),
        ("augmented",),
        "vidqa.annotations.v1",
    ),
    _assembly("assemble", "add the samples to the training set", ("mined", "augmented"), "train set"),
    _validation("validate", "check the training's spec, data and leaks", "train set", "train", "training spec"),
    _training("train", "train", model_stages.train, "training spec", "train set"),
    EVALUATE,
    _comparison("compare", "compare with the best previous model", "accepted results", "comparison"),
    _assembly("control assemble", "assemble as many random samples, as a control", ("random",), "control set"),
    _validation(
        "control validate",
        "check the control's training",
        "control set",
        "control_train",
        "control training spec",
    ),
    _training(
        "control train",
        "train the control",
        partial(model_stages.train_one, recipe="control training spec"),
        "control training spec",
        "control set",
    ),
    _evaluation(
        "control evaluate",
        "evaluate the control on the selection set",
        "control run",
        "selection",
        "control results",
    ),
    _comparison(
        "control compare",
        "compare mined with random samples",
        "control results",
        "control_comparison",
    ),
    Stage(
        "decide",
        "accept the round, or roll it back",
        acceptance.decide,
        "python scripts/run_deft.py next LOOP --json",
        ("comparison", "settings.stop"),
        schema="vidqa.deft_state.v1",
    ),
)


def stages_of(settings: Settings, number: int) -> list[Stage]:
    """The stages of a round that the settings enable."""
    if number == 0:
        return [EVALUATE]
    optional = {"augment": settings.augment, "control": settings.control}
    return [stage for stage in ROUND if optional.get(stage.name.split()[0], True)]
