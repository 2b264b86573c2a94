"""Problems of a search: its space and algorithm, its settings and journal, its controller."""

from __future__ import annotations

from vidqa.core.problem import Code, Exit

RANGE = Code(
    "AUTOML_RANGE",
    "A searched key or its range is unknown, missing, unreadable or empty, holds values that the spec refuses, or "
    "excludes another.",
    "Write LOW..HIGH, LOW..HIGH:log, LOW..HIGH:STEP, or A,B,C (A:3,B:1 weighs them), for at least one key of "
    "references/parameters_train.md.",
)
VALUE = Code(
    "AUTOML_VALUE",
    "A value proposed for a trial, or fixed, is refused by the search or the spec, or breaks a rule over several keys.",
    "Write a value inside the range that it names, or correct the template with the remedy that the rule names.",
)
STUDY_MISSING = Code(
    "STUDY_MISSING",
    "The folder holds no study, or nothing of it was started.",
    "Plan one: python scripts/run_automl.py plan --study FOLDER --spec train.toml",
    Exit.USAGE,
)
STUDY_SETTINGS = Code(
    "STUDY_SETTINGS",
    "The settings of the study (study.toml) are wrong, or do not fit its specs or this machine.",
    "Correct the key that is named; references/automl.md describes every one.",
)
STUDY_ASKED = Code(
    "STUDY_ASKED",
    "An option is missing, or names a number that cannot be used.",
    "Name values with --set KEY=VALUE, and for tell one --objective X for each goal.",
    Exit.USAGE,
)
STUDY_BUDGET = Code(
    "STUDY_BUDGET",
    "The limits leave no room for two trials: nothing would be searched.",
    "Raise the limit, make a trial shorter (--set steps.longest=N, fewer epochs), or train directly.",
)
STUDY_CHANGED = Code(
    "STUDY_CHANGED",
    "The settings, specs or space of the study are not those that its trials were made with.",
    "Put study.toml and the specs beside it back as they were and go on (run_automl.py start), or plan a new study.",
)
STUDY_JOURNAL = Code(
    "STUDY_JOURNAL",
    "The journal of the study is damaged and cannot be trusted.",
    "Restore journal.jsonl from a copy, or cut it before the line that is named: the jobs of lost lines are found "
    "again.",
)
STUDY_BUSY = Code(
    "STUDY_BUSY",
    "Another controller works on the study.",
    "Leave it to work (run_automl.py status), or stop it: run_automl.py stop.",
    Exit.NOT_DONE,
)
STUDY_UNWRITABLE = Code(
    "STUDY_UNWRITABLE",
    "The folder of the study cannot be written, or has no room for what its trials keep.",
    "Make room, or let --study name a folder that you may write.",
    Exit.ENVIRONMENT,
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
STUDY_STEPS = Code(
    "STUDY_STEPS",
    "A promoted trial did not go on from exactly the checkpoint that it had reached.",
    "This is an error of the program: report it with the two run folders.",
    Exit.INTERNAL,
)
STUDY_STUCK = Code(
    "STUDY_STUCK",
    "The search algorithm waits for results, and no trial runs.",
    "Enqueue values (run_automl.py enqueue), or choose another algorithm.",
    Exit.INTERNAL,
)
STUDY_NOT_DONE = Code(
    "STUDY_NOT_DONE",
    "The study has not ended, or was stopped.",
    "Go on with it: run_automl.py start.",
    Exit.NOT_DONE,
)
