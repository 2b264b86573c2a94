"""Problems of a search: its space and algorithm, its settings and journal, its controller."""

from __future__ import annotations

from vidqa.core.problem import Code, Exit

RANGE = Code(
    "AUTOML_RANGE",
    "A searched key or its range is unknown, missing, invalid or empty, or excludes another key; or the search or the "
    "spec rejects a value of it, or the value violates a rule over several keys.",
    "Write LOW..HIGH, LOW..HIGH:log, LOW..HIGH:STEP, or A,B,C (A:3,B:1 with weights), for at least one key of "
    "references/parameters_train.md, and values within these ranges.",
)
STUDY_MISSING = Code(
    "STUDY_MISSING",
    "The folder contains no study, or the study was never started.",
    "Plan one: python scripts/run_automl.py plan --study FOLDER --spec train.toml",
    Exit.USAGE,
)
STUDY_SETTINGS = Code(
    "STUDY_SETTINGS",
    "The settings of the study (study.toml) are wrong, do not fit its specs or this machine, or allow fewer than two "
    "trials, so that nothing would be searched.",
    "Correct the key that the message names; references/automl.md describes every key.",
)
STUDY_CHANGED = Code(
    "STUDY_CHANGED",
    "The settings, specs, search space, annotations or answer rules of the study are not those of its trials.",
    "Restore study.toml and its specs, then: python scripts/run_automl.py start --study FOLDER. Or plan a new study.",
)
STUDY_FAILING = Code(
    "STUDY_FAILING",
    "Too many trials failed in a row.",
    "Fix what the message names, then continue: python scripts/run_automl.py start --study FOLDER.",
    Exit.JOB_FAILED,
)
STUDY_INTERRUPTED = Code(
    "STUDY_INTERRUPTED",
    "Machines or platforms terminated a job of the study repeatedly.",
    "Read the job's log; once the platform works again, continue: python scripts/run_automl.py start --study FOLDER. "
    "No trial was lost.",
    Exit.ENVIRONMENT,
)
STUDY_NOT_DONE = Code(
    "STUDY_NOT_DONE",
    "The study is not finished, or was stopped.",
    "Continue it: python scripts/run_automl.py start --study FOLDER",
    Exit.NOT_DONE,
)
