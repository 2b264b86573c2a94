"""Problems of launching jobs, of looking at them, of trying them again, and of handing on their exports."""

from vidqa.core.problem import Code, Exit

RUN_FOLDER_TAKEN = Code(
    "RUN_FOLDER_TAKEN",
    "The folder that answers are to be kept in holds something else, or the answers to other questions.",
    "Let --out name a new folder, or ask there all that was asked before.",
)
JOB_NOT_FOUND = Code(
    "JOB_NOT_FOUND",
    "There is no job of this name, or what changes a job names none: the newest one need not be the one that is meant.",
    "List the jobs: python scripts/jobs.py list",
    Exit.USAGE,
)
JOB_FAILED = Code(
    "JOB_FAILED",
    "The job ended without doing what it was asked to do, or its machine or its platform ended it.",
    "Read its log: python scripts/jobs.py logs JOB. One that was ended from outside goes on from its newest "
    "checkpoint: python scripts/jobs.py retry JOB",
    Exit.JOB_FAILED,
)
JOB_OUT_OF_MEMORY = Code(
    "JOB_OUT_OF_MEMORY",
    "The memory of the machine or of the job's container was full.",
    "Give it more memory, then python scripts/jobs.py retry JOB --yes. Or ask for less in ways that a resumed run may "
    "change: fewer dataloader workers, engine.recompute, a smaller engine.pack_tokens; with build_spec.py train "
    "--parent-run RUN it goes on from its newest checkpoint. The effective batch must stay as it was.",
    Exit.JOB_FAILED,
)
JOB_NOT_DONE = Code(
    "JOB_NOT_DONE",
    "A job is still running, also one in the folder of the run that should be resumed, or it was stopped and can be "
    "resumed.",
    "While it runs, wait longer (python scripts/jobs.py wait JOB) or cancel it; once it is over, python "
    "scripts/jobs.py retry JOB resumes it. --new-run starts another run.",
    Exit.NOT_DONE,
)
RESUME_NO_CHECKPOINT = Code(
    "RESUME_NO_CHECKPOINT",
    "train.resume names no complete checkpoint, or there is no run of the same spec to continue or to prove.",
    "Name a folder checkpoints/step_N or epoch_N of a run, set train.resume to true in the run's own spec, or start "
    "anew with --new-run.",
)
NOT_AGREED = Code(
    "JOB_NOT_AGREED",
    "The job would run in the image that config.json records, or fail again as it did, and nobody has agreed to that.",
    "Look at the image, or name one with --image; repair what made the job fail. --yes launches it all the same.",
    Exit.REFUSED,
)
NO_EXPORT = Code(
    "EXPORT_NOT_FOUND",
    "There is no export of a run there.",
    "Name a run folder, or one of the folders below its safetensors/; `latest` is the newest run of this folder.",
    Exit.USAGE,
)
EXPORT_UNPROVED = Code(
    "EXPORT_UNPROVED",
    "Nothing says which loss an export must have, so nobody can prove that what is made of it is the trained model.",
    "Name another export of the run, or train on: its next export is proved.",
)
EXPORT_OUT = Code(
    "EXPORT_OUT",
    "The folder that an export shall go to holds something else, or cannot be written.",
    "Name an empty or a new folder.",
    Exit.USAGE,
)
EXPORT_FAILED = Code(
    "EXPORT_FAILED",
    "The process that loads and writes the weights ended without a result.",
    "Read what it wrote; if it was killed, memory for the whole model was missing: run it on a larger machine.",
    Exit.ENVIRONMENT,
)
