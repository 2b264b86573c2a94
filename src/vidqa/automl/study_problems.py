"""Problems of studies: their settings, their journal, and whoever works on them."""

from vidqa.contract.problem import Code, Exit

STUDY_MISSING = Code(
    "STUDY_MISSING",
    "The folder holds no study, or nothing of it was started.",
    "Plan one: python scripts/run_automl.py plan --study FOLDER --spec train.toml",
    Exit.USAGE,
)
STUDY_SETTINGS = Code(
    "STUDY_SETTINGS",
    "The settings of the study (study.toml) are wrong.",
    "Correct the key that is named; references/automl.md describes every one.",
)
STUDY_GOAL = Code(
    "STUDY_GOAL",
    "What the study is to improve cannot be measured as its spec stands.",
    "Let the training validate, or name an evaluation spec, or choose another metric.",
)
STUDY_ASKED = Code(
    "STUDY_ASKED",
    "What is asked of the study says too little, or no number that it could use.",
    "Name values with --set KEY=VALUE, and for tell one --objective X for each goal.",
    Exit.USAGE,
)
STUDY_UNCOUNTED = Code(
    "STUDY_UNCOUNTED",
    "How many steps a training has is not known, and the algorithm divides it by them.",
    "Name annotations that can be read here, add --set steps.longest=N, or choose --algorithm bayesian.",
    Exit.USAGE,
)
STUDY_BUDGET = Code(
    "STUDY_BUDGET",
    "The limits leave no room for two trials: nothing would be searched.",
    "Raise the limit, make a trial shorter (--set steps.longest=N, fewer epochs), or train directly.",
)
STUDY_BEGUN = Code(
    "STUDY_BEGUN",
    "The study has trials already; its settings, specs and space stay as they were.",
    "Plan another study in a folder of its own, or go on with this one: run_automl.py start.",
)
STUDY_CHANGED = Code(
    "STUDY_CHANGED",
    "The settings or the space of the study are not those that its trials were made with.",
    "Put study.toml and the specs beside it back as they were, or plan a new study.",
)
STUDY_JOURNAL = Code(
    "STUDY_JOURNAL",
    "The journal of the study is damaged: what it says cannot be trusted.",
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
    "The folder of the study cannot be written.",
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
    "A promoted trial did not go on from just the checkpoint that it had reached.",
    "This is an error of the program: report it with the two run folders.",
    Exit.INTERNAL,
)
STUDY_SHARED = Code(
    "STUDY_SHARED",
    "Trials are to share a GPU that cannot be shared: a cluster gives GPUs away itself, and processes of one training "
    "that wait for each other on shared GPUs would hold up all trials.",
    "Set resources.trials_per_gpu = 1, or use trainings and evaluations of one process on local or docker.",
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
STUDY_DISK = Code(
    "STUDY_DISK",
    "The trials of the study would keep more than the disk has room for.",
    "Run fewer at a time, keep fewer checkpoints (train.ckpt.max_keep), or let --study name a larger disk.",
    Exit.ENVIRONMENT,
)
