"""Problems of platforms and jobs."""

from vidqa.problem import Code, Exit

PLATFORM_UNKNOWN = Code(
    "PLATFORM_UNKNOWN",
    "There is no platform of this name.",
    "Use --platform local.",
    Exit.USAGE,
)
PLATFORM_UNSUITABLE = Code(
    "PLATFORM_UNSUITABLE",
    "This machine cannot run jobs of this platform.",
    "Launch from a Linux machine whose /proc can be read.",
    Exit.ENVIRONMENT,
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
JOB_RECORD_BROKEN = Code(
    "JOB_RECORD_BROKEN",
    "A job record cannot be read.",
    "Move the file that `where` names out of the way; the run folder is untouched.",
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
JOB_NOT_DONE = Code(
    "JOB_NOT_DONE",
    "The job is still running, or it was stopped and can be resumed.",
    "Wait longer: python scripts/jobs.py wait JOB; or set train.resume = true and launch again.",
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
