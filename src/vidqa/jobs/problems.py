"""Problems of jobs: of launching, observing and retrying them, of their exports, and of the platforms on which they
run."""

from vidqa.core.problem import Code, Exit

JOB_NOT_FOUND = Code(
    "JOB_NOT_FOUND",
    "There is no job of this name, or what changes a job names none: the newest one need not be the one that is meant.",
    "List the jobs: python scripts/jobs.py list",
    Exit.USAGE,
)
JOB_RECORD_BROKEN = Code(
    "JOB_RECORD_BROKEN",
    "A job record cannot be read.",
    "Move the file that `where` names out of the way. The run folder is untouched, and so is the job if it still runs.",
    Exit.ENVIRONMENT,
)
JOB_OUT_OF_MEMORY = Code(
    "JOB_OUT_OF_MEMORY",
    "The memory of the machine or of the job's container was full.",
    "Give it more memory, then python scripts/jobs.py retry JOB --yes, with --site FILE if a site.toml grants it: "
    "otherwise a retry keeps the settings of its job. Or ask for less in ways that a resumed run may change: fewer "
    "dataloader workers, engine.recompute, a smaller engine.pack_tokens; with build_spec.py train --parent-run RUN it "
    "goes on from its newest checkpoint. The effective batch must stay as it was.",
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
SITE_SETTINGS = Code(
    "PLATFORM_SITE_SETTINGS",
    "The settings of your place (site.toml) are missing, are not TOML, or lack or hold a wrong key or value.",
    "Correct what the message names; references/site_template.toml documents every key.",
)
# Remedies by the unreachable service. A problem has the remedy of its own platform.
REACH = {
    "Local": "launch from a Linux machine whose /proc can be read",
    "Docker": "start its daemon (sudo systemctl start docker), or let DOCKER_HOST name one that runs",
    "Docker's socket": "join its group (sudo usermod -aG docker $USER), then log in again",
    "SLURM": "launch from a login node, or let `ssh` in [slurm] of site.toml name one",
    "SLURM by ssh": "make `ssh HOST true` work without a question, with its key in known_hosts",
    "Kubernetes": "let KUBECONFIG name a kubeconfig, and `context` in [kubernetes] of site.toml one of those that "
    "`kubectl config get-contexts` lists",
}
PLATFORM_UNREACHABLE = Code(
    "PLATFORM_UNREACHABLE",
    "This machine cannot observe processes, has none of SLURM's commands, or cannot reach the Docker daemon, the host "
    "that submits to SLURM, or the Kubernetes cluster as things are set.",
    " ".join(f"{name}: {remedy}." for name, remedy in REACH.items()),
    Exit.ENVIRONMENT,
)
PLATFORM_SILENT = Code(
    "PLATFORM_SILENT",
    "SLURM's controller or the cluster's API server does not answer, or says that it cannot serve now (429, 5xx).",
    "Look at `scontrol ping` or `kubectl get --raw /readyz`, check network and VPN, then run this again: jobs that run "
    "go on without it.",
    Exit.ENVIRONMENT,
)
PLATFORM_REFUSED = Code(
    "PLATFORM_REFUSED",
    "The Docker daemon, SLURM or the cluster does not take the job as it stands: a full disk, a quota or policy, a "
    "wrong setting, a missing right or secret, GPUs that it cannot give, or another container or object of the job's "
    "name.",
    "Do what its own words in the message say: correct the platform's table in site.toml or the spec, then launch "
    "again; --dry-run prints what is submitted.",
    Exit.ENVIRONMENT,
)
IMAGE_UNUSABLE = Code(
    "PLATFORM_IMAGE_UNUSABLE",
    "No image is named or recorded, neither the daemon's machine nor its registry hands the image out, or it was not "
    "built as the engine of this version of the project.",
    "Build and record it from this checkout: docker/build.sh; or name one that docker pull can fetch, with --image "
    "(Kubernetes and SLURM: or with `image` in site.toml).",
    Exit.ENVIRONMENT,
)
PLATFORM_IMAGE_UNUSED = Code(
    "PLATFORM_IMAGE_UNUSED",
    "An image is named that the job would not use, or that its nodes would not find.",
    'Leave --image out. On SLURM write backend = "pyxis" or "apptainer" in the table [slurm] of site.toml; on this '
    "machine --platform docker runs an image.",
)
PLATFORM_PATH = Code(
    "PLATFORM_PATH",
    "A path that the job needs has a character that scripts or containers of the platform cannot hold, or would be "
    "mounted over the program in the image.",
    "Rename the folder, or move its data to another.",
)
# How the jobs of a platform come to see a path; a problem has the remedy of its own platform.
SHOW_PATH = {
    "Kubernetes": "add the volume to [kubernetes] in site.toml: mount_path, and launcher_path where this machine sees "
    "it elsewhere; if only the pods see the folder, add it to `cluster_paths`",
    "SLURM": "copy it to a folder below `cluster_paths` and name it there (a model of the hub with `hf download "
    "ORG/NAME --local-dir FOLDER` on the cluster); if the cluster has the folder at the same path, add it to "
    "`cluster_paths`",
}
PATH_UNSEEN = Code(
    "PLATFORM_PATH_UNSEEN",
    "A path that the spec names, or its model's in the hub's cache, is not where the job could read or write it: in no "
    "volume of the pods, or only on this machine while the output folder is only on the cluster.",
    " ".join(f"{name}: {remedy}." for name, remedy in SHOW_PATH.items()),
)
NOT_SHARED = Code(
    "PLATFORM_NOT_SHARED",
    "The machine that starts the job does not see the run folder, or a file or folder that the job needs, at its path.",
    "Correct the path, or let output folder, data and model lie on a file system that is mounted at the same path here "
    "and there; on SLURM or copy there what launch.py --dry-run --out DIR writes, and submit it there.",
    Exit.ENVIRONMENT,
)
NOT_SEEN = Code(
    "PLATFORM_NOT_SEEN",
    "Something that the job needs is not on the machine that launches, so it was not checked.",
    "Run preflight where it is, such as a node of the cluster; otherwise the job itself finds what is wrong with it.",
    Exit.ENVIRONMENT,
)
PLATFORM_NODES = Code(
    "PLATFORM_NODES",
    "The processes of the spec cannot be spread evenly over the nodes, or this platform has one node only.",
    "Let --nodes divide dp_shard_size * dp_replicate_size * cp_size; on local and docker leave it out.",
)
PLATFORM_TOO_FEW_GPUS = Code(
    "PLATFORM_TOO_FEW_GPUS",
    "The spec asks for more processes than a node has GPUs; where it has none, the job runs on the CPU: right for the "
    "demo and tests, far too slow for a real model.",
    "Let `nvidia-smi -L` list as many GPUs and CUDA_VISIBLE_DEVICES name them, on a cluster raise --gpus or leave it "
    "out, or lower policy.parallelism.dp_shard_size or dp_replicate_size (evaluate: num_gpus).",
    Exit.ENVIRONMENT,
)
