"""Problems of a search: its space and algorithm, its settings and journal, its controller."""

from __future__ import annotations

from vidqa.core.problem import Code, Exit

RANGE = Code(
    "AUTOML_RANGE",
    "A searched key or its range is unknown, missing, unreadable or empty, or excludes another; or a value of it is "
    "refused by the search or the spec, or breaks a rule over several keys.",
    "Write LOW..HIGH, LOW..HIGH:log, LOW..HIGH:STEP, or A,B,C (A:3,B:1 weighs them), for at least one key of "
    "references/parameters_train.md, and values inside of these ranges.",
)
STUDY_MISSING = Code(
    "STUDY_MISSING",
    "The folder holds no study, or nothing of it was started.",
    "Plan one: python scripts/run_automl.py plan --study FOLDER --spec train.toml",
    Exit.USAGE,
)
STUDY_SETTINGS = Code(
    "STUDY_SETTINGS",
    "The settings of the study (study.toml) are wrong, do not fit its specs or this machine, or leave no room for two "
    "trials, so that nothing would be searched.",
    "Correct the key that is named; references/automl.md describes every one.",
)
STUDY_CHANGED = Code(
    "STUDY_CHANGED",
    "The settings, specs or space of the study are not those that its trials were made with.",
    "Put study.toml and the specs beside it back as they were and go on (run_automl.py start), or plan a new study.",
)
STUDY_FAILING = Code(
    "STUDY_FAILING",
    "Too many trials failed in a row.",
    "Repair what the message names, then go on: run_automl.py start.",
    Exit.JOB_FAILED,
)
STUDY_INTERRUPTED = Code(
    "STUDY_INTERRUPTED",
    "Machines or platforms ended a job of the study again and again.",
    "Look at the job's log; once the platform works again, go on: run_automl.py start. No trial was lost.",
    Exit.ENVIRONMENT,
)
STUDY_NOT_DONE = Code(
    "STUDY_NOT_DONE",
    "The study has not ended, or was stopped.",
    "Go on with it: run_automl.py start.",
    Exit.NOT_DONE,
)
