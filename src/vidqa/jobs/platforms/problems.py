"""Problems of platforms, of their settings and of what is kept of a job."""

from vidqa.core.problem import Code, Exit

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
    "A path that the job needs has a character that scripts or containers of the platform cannot hold.",
    "Rename it: the job's scripts are written with it.",
)
PLATFORM_IMAGE_UNUSED = Code(
    "PLATFORM_IMAGE_UNUSED",
    "An image is named, and the job would run in a Python environment, without it.",
    'Leave --image out. On SLURM write backend = "pyxis" or "apptainer" in the table [slurm] of site.toml; on this '
    "machine --platform docker runs an image.",
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
SITE_SETTINGS = Code(
    "PLATFORM_SITE_SETTINGS",
    "The settings of your place (site.toml) are missing, are not TOML, or hold an unknown key or a wrong value.",
    "Correct what the message names; references/site_template.toml documents every key.",
    Exit.USAGE,
)
PLATFORM_NODES = Code(
    "PLATFORM_NODES",
    "The processes of the spec cannot be spread evenly over the nodes, or this platform has one node only.",
    "Let --nodes divide dp_shard_size * dp_replicate_size * cp_size; on local and docker leave it out.",
)
NOT_SEEN = Code(
    "PLATFORM_NOT_SEEN",
    "Something that the job needs is not on the machine that launches, so it was not checked.",
    "Run preflight where it is, such as a node of the cluster; otherwise the job itself finds what is wrong with it.",
    Exit.ENVIRONMENT,
)
NAME_TAKEN = Code(
    "PLATFORM_NAME_TAKEN",
    "The daemon or the cluster has a container or an object of the job's name that belongs to something else.",
    "Remove it (docker rm NAME, kubectl delete), or launch again in a second: the name is made from the time.",
    Exit.ENVIRONMENT,
)
