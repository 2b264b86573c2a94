"""Problems of the platform slurm."""

from vidqa.core.problem import Code, Exit

SLURM_MISSING = Code(
    "PLATFORM_SLURM_MISSING",
    "SLURM's commands are not on this machine.",
    "Launch from a login node of the cluster, or let `ssh` in the table [slurm] of site.toml name one.",
    Exit.ENVIRONMENT,
)
SLURM_SSH = Code(
    "PLATFORM_SLURM_SSH",
    "The host that jobs are submitted from cannot be reached without a password.",
    "Make `ssh HOST true` work by itself: a key without a question, the host's own key in known_hosts.",
    Exit.ENVIRONMENT,
)
SLURM_SILENT = Code(
    "PLATFORM_SLURM_SILENT",
    "SLURM's controller does not answer.",
    "Look at `scontrol ping`, or wait: jobs that run go on without it.",
    Exit.ENVIRONMENT,
)
SLURM_REFUSED = Code(
    "PLATFORM_SLURM_REFUSED",
    "SLURM does not take the job as it stands.",
    "Correct the table [slurm] of site.toml: partition, account, time, constraint; `sinfo` shows what there is.",
    Exit.ENVIRONMENT,
)
SLURM_NOT_SHARED = Code(
    "PLATFORM_SLURM_NOT_SHARED",
    "The host that jobs are submitted from does not see the run folder.",
    "Let output folder, data and model lie on a file system that is mounted at the same path here and on the cluster; "
    "or copy there what launch.py --dry-run --out DIR writes, and submit it there.",
    Exit.ENVIRONMENT,
)
SLURM_CHECKOUT = Code(
    "PLATFORM_SLURM_CHECKOUT",
    "Only the cluster sees the output folder, and nothing says where this skill is installed there.",
    "Install it on the cluster (git clone, make install) and name its folder with `checkout` in the table [slurm] of "
    "site.toml; or name with `python` an interpreter that has it.",
)
SLURM_ONLY_HERE = Code(
    "PLATFORM_SLURM_ONLY_HERE",
    "Only the cluster sees the output folder, and the job reads what is on this machine.",
    "Copy it to a folder below `cluster_paths` and name it there; a model of the hub with `hf download ORG/NAME "
    "--local-dir FOLDER` on the cluster. If the cluster has the folder at the same path, add it to `cluster_paths`.",
)
SLURM_CORES = Code(
    "PLATFORM_SLURM_CORES",
    "The site's settings name no cores for the job, and many clusters then give it one on each node.",
    "Set `cpus_per_task` in the table [slurm] of site.toml, about 8 for each GPU of a node: videos are decoded there.",
)
SLURM_NO_IMAGE = Code(
    "PLATFORM_SLURM_NO_IMAGE",
    "The job would run in a container, and no image is named.",
    "Name one with --image, or with `image` in the table [slurm] of site.toml.",
    Exit.USAGE,
)
SLURM_IMAGE = Code(
    "PLATFORM_SLURM_IMAGE",
    "The engine's image is a file that the nodes would not find.",
    "Correct its path; where only the nodes see the file, name its folder in `cluster_paths` of [slurm] in site.toml.",
)
# The remedy of PLATFORM_PATH for containers.
RENAME_OR_VENV = (
    "Rename the folder, or let `backend` in the table [slurm] of site.toml be venv, which takes any path: a colon, a "
    "comma and a ^ divide paths in mounts, and a blank at the end is lost."
)
