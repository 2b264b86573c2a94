"""The loop's contract: its stages in order, with the command of each, what it reads and writes; and its stop rules.

`make generate` writes it into config.json.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vidqa.actions import names
from vidqa.contract.cli import SKILL_ROOT
from vidqa.deft import acceptance, adding, finding, measuring, training
from vidqa.deft.context import Done, Turn
from vidqa.deft.settings import Settings

LAUNCH = "python scripts/launch.py {} --spec SPEC --platform local --json"
RULES = {
    "target": "the accuracy that was agreed on is reached on the selection set",
    "no gaps": "the model answers every question of the selection set",
    "no new samples": "the pool holds nothing that is like the gaps and was not tried yet",
    "rounds": "all agreed rounds are done",
    "no progress": "the agreed number of rounds in a row was rolled back without a proven gain",
    "regression": "the last of these rounds made the model, or a kind of question, worse",
    "budget": "the agreed hours of jobs are spent",
    "hard gate": "a stage has found an error; it waits, and goes on when the loop is run again",
    "audit needed": "labels are suspected to be wrong; it waits for a person's answers",
    "labels needed": "what was mined from the pool has no answers; it waits for a person's",
}


@dataclass(frozen=True)
class Stage:
    """`reads` are names of files that other stages have written or that the loop was given; a stage is carried out
    again only if one of them has changed. `schema` is that of its main file."""

    name: str
    does: str
    run: Callable[[Turn], Done]
    command: str
    reads: tuple[str, ...]
    writes: tuple[str, ...] = ()
    schema: str | None = None

    @property
    def script(self) -> str:
        return self.command.split()[1]


RESULTS = "vidqa.results.v1"
EVALUATION = ("evaluation recipe", "settings.where")
EVALUATE = Stage(
    "evaluate",
    "evaluate the round's model on the selection set",
    measuring.evaluate,
    LAUNCH.format("evaluate"),
    ("training run", "selection", *EVALUATION),
    ("results",),
    RESULTS,
)
KPI = Stage(
    "kpi",
    "evaluate the accepted model on the KPI set",
    measuring.kpi,
    LAUNCH.format("evaluate"),
    ("accepted model", "kpi", *EVALUATION),
    ("KPI results",),
    RESULTS,
)
TEST = Stage(
    "test",
    "evaluate the accepted model on the test set, once",
    measuring.test,
    LAUNCH.format("evaluate"),
    ("accepted model", "test", *EVALUATION),
    ("test results",),
    RESULTS,
)
COMPARE = "python scripts/compare.py BEFORE AFTER --html COMPARISON --json"
ASSEMBLE = "python scripts/assemble_dataset.py --base BASE --add MINED --out FOLDER --json"
TURN = (
    Stage(
        "embed",
        "embed the pool and the selection set",
        adding.embed,
        LAUNCH.format("embed"),
        ("pool", "selection", "evaluation recipe", "settings.model"),
        ("selection embeddings", "pool embeddings"),
        "vidqa.embeddings.v1",
    ),
    Stage(
        "gaps",
        "find what the accepted model gets wrong, and whose labels are doubtful",
        finding.gaps,
        "python scripts/analyze_gaps.py --results-dir RUN --gaps-parquet GAPS --kpi-ann-path ANNOTATIONS"
        " --kpi-media-path MEDIA --slices SLICES --audit AUDIT --json",
        ("accepted results", "selection", "selection embeddings", "audit answers", "settings.words"),
        ("gaps", "slices", "audit queue"),
        "vidqa.gaps.v1",
    ),
    Stage(
        "audit",
        "ask a person about labels that are probably wrong",
        finding.audit,
        "python scripts/run_deft.py next LOOP --audit-answers FILE --json",
        ("audit queue", "audit answers", "settings.audit", "settings.audit_from"),
        schema="vidqa.audit.v1",
    ),
    Stage(
        "mine",
        "take samples from the pool that are like the gaps",
        adding.mine,
        "python scripts/mine_samples.py --gaps GAPS --pool EMBEDDINGS --query EMBEDDINGS --out FOLDER --json",
        ("gaps", "pool", "pool embeddings", "selection embeddings", "settings.words", "settings.control"),
        ("mined", "mined table", "random", "tasks"),
        "vidqa.annotations.v1",
    ),
    Stage(
        "label",
        "ask a person for the answers of what was mined without",
        adding.label,
        "python scripts/run_deft.py next LOOP --labels FILE --json",
        ("tasks", "labels"),
        ("mined",),
        "vidqa.annotations.v1",
    ),
    Stage(
        "augment",
        "make altered copies of them",
        adding.augment,
        "python scripts/augment_samples.py --annotations MINED --out FOLDER --json",
        ("mined", "settings.words"),
        ("augmented",),
        "vidqa.annotations.v1",
    ),
    Stage(
        "assemble",
        "add them to the training set",
        adding.assemble,
        ASSEMBLE,
        ("base set", "mined", "augmented", "selection", "kpi", "test", "settings.words"),
        ("train set",),
        "vidqa.annotations.v1",
    ),
    Stage(
        "validate",
        "check the training's spec, data and leaks",
        adding.validate,
        "python scripts/preflight.py --spec SPEC --kpi-root SELECTION --json",
        ("train set", "training recipe", "accepted model", "settings.train", "settings.continue_from"),
        ("training spec",),
        "train.schema.json",
    ),
    Stage("train", "train", training.train, LAUNCH.format("train"), ("training spec", "train set", "settings.where")),
    EVALUATE,
    Stage(
        "compare",
        "compare with the best model before",
        measuring.compare,
        COMPARE,
        ("accepted results", "results"),
        ("comparison", "comparison page"),
        "vidqa.comparison.v1",
    ),
    Stage(
        "control assemble",
        "the same with as many random samples",
        training.control_assemble,
        ASSEMBLE,
        ("random", "base set", "selection", "kpi", "test", "settings.words"),
        ("control set",),
        "vidqa.annotations.v1",
    ),
    Stage(
        "control validate",
        "check the control's training",
        training.control_validate,
        "python scripts/preflight.py --spec SPEC --kpi-root SELECTION --json",
        ("control set", "training recipe", "accepted model", "settings.train", "settings.continue_from"),
        ("control training spec",),
        "train.schema.json",
    ),
    Stage(
        "control train",
        "train the control",
        training.control_train,
        LAUNCH.format("train"),
        ("control training spec", "control set", "settings.where"),
    ),
    Stage(
        "control evaluate",
        "evaluate the control on the selection set",
        measuring.control_evaluate,
        LAUNCH.format("evaluate"),
        ("control run", "selection", *EVALUATION),
        ("control results",),
        RESULTS,
    ),
    Stage(
        "control compare",
        "compare what was chosen with what was drawn at random",
        measuring.control_compare,
        COMPARE,
        ("control results", "results"),
        ("control_comparison", "control_comparison page"),
        "vidqa.comparison.v1",
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
    """The stages of a round, without those that it was not asked for."""
    if number == 0:
        return [EVALUATE]
    left_out = set() if settings.augment else {"augment"}
    return [
        each for each in TURN if each.name not in left_out and (settings.control or not each.name.startswith("control"))
    ]


def contract() -> dict[str, Any]:
    """The loop as config.json describes it to programs."""
    return {
        "workflow": "workflow/deft/deft.md",
        "schema": "schemas/deft_state.schema.json",
        "commands": {
            "init": "python scripts/run_deft.py init LOOP --train-spec SPEC --evaluate-spec SPEC --selection SELECTION"
            " --pool POOL --json",
            **{verb: f"python scripts/run_deft.py {verb} LOOP --json" for verb in ("next", "run", "status", "report")},
        },
        "stages": [_entry(each) for each in (*TURN, KPI, TEST)],
        "stop_rules": RULES,
    }


def _entry(stage: Stage) -> dict[str, Any]:
    command = {"script": stage.script, "command": stage.command} if _is_here(stage) else {}
    return {
        "name": stage.name,
        "does": stage.does,
        "implemented": bool(command),
        **command,
        "inputs": list(stage.reads),
        "outputs": list(stage.writes),
        "schema": stage.schema,
    }


def _is_here(stage: Stage) -> bool:
    """Whether its script is there, and knows the action that it is to launch."""
    _, script, first, *_ = stage.command.split()
    return (SKILL_ROOT / script).is_file() and (stage.command not in map(LAUNCH.format, [first]) or first in names())


def in_config(text: str) -> str:
    """config.json with the contract in it."""
    made = json.dumps({"deft": contract()}, indent=2, ensure_ascii=False)[len("{\n") : -len("\n}")]
    return re.sub(r'^  "deft": \{.*?^  \}', lambda _: made, text, flags=re.MULTILINE | re.DOTALL)
