"""Problems of launching jobs, of looking at them, and of trying them again."""

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
    "The job ended without doing what it was asked to do.",
    "Read its log: python scripts/jobs.py logs JOB",
    Exit.JOB_FAILED,
)
JOB_INTERRUPTED = Code(
    "JOB_INTERRUPTED",
    "The job was ended by its machine or its platform, not by what it computed.",
    "It goes on from its newest checkpoint: python scripts/jobs.py retry JOB",
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
    "The job is still running, or it was stopped and can be resumed.",
    "While it runs, wait longer: python scripts/jobs.py wait JOB; once it is over, python scripts/jobs.py retry JOB "
    "resumes it.",
    Exit.NOT_DONE,
)
RESUME_NO_CHECKPOINT = Code(
    "RESUME_NO_CHECKPOINT",
    "train.resume names no complete checkpoint, or there is no run of the same spec to continue or to prove.",
    "Name a folder checkpoints/step_N or epoch_N of a run, set train.resume to true in the run's own spec, or start "
    "anew with --new-run.",
)
RUN_FOLDER_BUSY = Code(
    "RUN_FOLDER_BUSY",
    "The run that should be resumed still has a job working in its folder.",
    "Wait for that job or cancel it (python scripts/jobs.py cancel JOB), or use --new-run.",
    Exit.NOT_DONE,
)
PLATFORM_IMAGE_NOT_AGREED = Code(
    "PLATFORM_IMAGE_NOT_AGREED",
    "The job would run in the image that config.json records, and nobody has agreed to it.",
    "Look at the image, then add --yes, or name one with --image.",
    Exit.REFUSED,
)
JOB_RETRY_REFUSED = Code(
    "JOB_RETRY_REFUSED",
    "The job would end in the same way again.",
    "Repair what the evidence names first; --yes launches it all the same.",
    Exit.REFUSED,
)
JOB_RETRY_NEEDLESS = Code(
    "JOB_RETRY_NEEDLESS",
    "There is nothing to launch again: the job is not over, or it is complete.",
    "Look at it: python scripts/jobs.py status JOB",
    Exit.USAGE,
)
COSMOS_CANNOT = Code(
    "PLATFORM_COSMOS_CANNOT",
    "NVIDIA's cosmos-rl container cannot do what is asked, or cannot be rendered for it.",
    "Use our own engine, or change what the message names.",
)
