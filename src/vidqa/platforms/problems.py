"""Problems of platforms and jobs."""

from vidqa.contract.problem import Code, Exit

PLATFORM_UNKNOWN = Code(
    "PLATFORM_UNKNOWN",
    "There is no platform of this name.",
    "Use one of the platforms that scripts/launch.py --help names.",
    Exit.USAGE,
)
PLATFORM_UNSUITABLE = Code(
    "PLATFORM_UNSUITABLE",
    "This machine cannot run jobs of this platform.",
    "Launch from a Linux machine whose /proc can be read.",
    Exit.ENVIRONMENT,
)
PLATFORM_PATH = Code(
    "PLATFORM_PATH",
    "A file or folder that the job needs has a line break or another control character in its path.",
    "Rename it: the job's scripts are written with it.",
)
PLATFORM_TOO_FEW_GPUS = Code(
    "PLATFORM_TOO_FEW_GPUS",
    "The spec asks for more processes than this machine shows GPUs.",
    "Lower policy.parallelism.dp_shard_size or dp_replicate_size (evaluate: num_gpus), or let CUDA_VISIBLE_DEVICES "
    "name more GPUs.",
    Exit.ENVIRONMENT,
)
ENV_NO_GPU = Code(
    "ENV_NO_GPU",
    "No GPU is visible, so the job runs on the CPU: right for the demo and tests, far too slow for a real model.",
    "Run on a machine with NVIDIA GPUs; `nvidia-smi -L` must list them.",
    Exit.ENVIRONMENT,
)
RUN_FOLDER_UNWRITABLE = Code(
    "RUN_FOLDER_UNWRITABLE",
    "The folder that would hold the run cannot be written.",
    "Let train.output_dir (evaluate: results_dir) name a folder that you may write, on a disk with free space.",
    Exit.ENVIRONMENT,
)
OUT_UNWRITABLE = Code(
    "PLATFORM_OUT_UNWRITABLE",
    "The folder that the files of a dry run are to be written to cannot be written.",
    "Let --out name a folder that you may write.",
    Exit.ENVIRONMENT,
)
RUN_LOG_UNREADABLE = Code(
    "RUN_LOG_UNREADABLE",
    "A job's log is there and cannot be read.",
    "Look at what is wrong with the file; the job itself does not need it.",
    Exit.ENVIRONMENT,
)
STATE_FOLDER_UNWRITABLE = Code(
    "STATE_FOLDER_UNWRITABLE",
    "The folder that holds the job records cannot be written.",
    "Let VIDQA_STATE_DIR name a folder that you may write.",
    Exit.ENVIRONMENT,
)
JOB_NOT_FOUND = Code(
    "JOB_NOT_FOUND",
    "There is no job of this name.",
    "List the jobs: python scripts/jobs.py list",
    Exit.USAGE,
)
JOB_ID_NEEDED = Code(
    "JOB_ID_NEEDED",
    "What changes a job asks for its id: the newest one need not be the one that is meant.",
    "Look it up: python scripts/jobs.py list",
    Exit.USAGE,
)
JOB_RECORD_BROKEN = Code(
    "JOB_RECORD_BROKEN",
    "A job record cannot be read.",
    "Move the file that `where` names out of the way. The run folder is untouched, and so is the job if it still runs.",
    Exit.ENVIRONMENT,
)
JOB_LAUNCH_BUSY = Code(
    "JOB_LAUNCH_BUSY",
    "Another launch on this machine has not finished writing its record.",
    "Run it again in a moment.",
    Exit.NOT_DONE,
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
NOTHING_TO_RESUME = Code(
    "PLATFORM_NOTHING_TO_RESUME",
    "train.resume is true, and there is no run of the same spec to go on with.",
    "Let train.resume name a checkpoint folder (RUN/checkpoints/step_N), or start anew with --new-run.",
)
RUN_FOLDER_BUSY = Code(
    "RUN_FOLDER_BUSY",
    "The run that should be resumed still has a job working in its folder.",
    "Wait for that job or cancel it (python scripts/jobs.py cancel JOB), or use --new-run.",
    Exit.NOT_DONE,
)
SITE_FILE_MISSING = Code(
    "PLATFORM_SITE_MISSING",
    "The file with the settings of your place is not there.",
    "Write it after references/site_template.toml, or leave --site out.",
    Exit.USAGE,
)
SITE_SYNTAX = Code(
    "PLATFORM_SITE_SYNTAX",
    "The file with the settings of your place is not TOML.",
    "Repair the line that the message names.",
    Exit.USAGE,
)
SITE_UNKNOWN_KEY = Code(
    "PLATFORM_SITE_UNKNOWN_KEY",
    "The settings of your place hold a table or key that no platform knows.",
    "Correct the name; references/site_template.toml documents every key.",
    Exit.USAGE,
)
SITE_VALUE = Code(
    "PLATFORM_SITE_VALUE",
    "A setting of your place has a value of the wrong kind or out of range.",
    "Correct the value; references/site_template.toml documents every key.",
    Exit.USAGE,
)
PLATFORM_NODES = Code(
    "PLATFORM_NODES",
    "The processes of the spec cannot be spread evenly over the nodes, or this platform has one node only.",
    "Let --nodes divide dp_shard_size * dp_replicate_size; on local and docker leave it out.",
)
PLATFORM_IMAGE_NOT_AGREED = Code(
    "PLATFORM_IMAGE_NOT_AGREED",
    "The job would run in the image that config.json records, and nobody has agreed to it.",
    "Look at the image, then add --yes, or name one with --image.",
    Exit.REFUSED,
)
PLATFORM_NO_IMAGE = Code(
    "PLATFORM_NO_IMAGE",
    "This platform runs jobs in an image, and none is named or recorded.",
    "Build and record it: docker/build.sh; or name one with --image.",
    Exit.ENVIRONMENT,
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
