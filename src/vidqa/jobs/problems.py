"""Problems of jobs: of launching, observing and retrying them, of their exports, and of the platforms on which they
run."""

from vidqa.core.problem import Code, Exit

JOB_NOT_FOUND = Code(
    "JOB_NOT_FOUND",
    "No job has this name, or a command that changes a job names none (it never assumes the newest one).",
    "List the jobs: python scripts/jobs.py list",
    Exit.USAGE,
)
JOB_RECORD_BROKEN = Code(
    "JOB_RECORD_BROKEN",
    "A job record cannot be read.",
    "Move the file in `where` to another folder. The run folder is untouched, and so is the job if it still runs.",
    Exit.ENVIRONMENT,
)
JOB_OUT_OF_MEMORY = Code(
    "JOB_OUT_OF_MEMORY",
    "The memory of the machine or of the job's container was full.",
    "Give it more memory, then python scripts/jobs.py retry JOB --yes, with --site FILE if a site.toml grants it: "
    "otherwise a retry keeps the job's settings. Or reduce memory with settings that a resumed run may change: fewer "
    "dataloader workers, engine.recompute, a smaller engine.pack_tokens; python scripts/build_spec.py train "
    "--parent-run RUN continues from its newest checkpoint. The effective batch must not change.",
    Exit.JOB_FAILED,
)
JOB_NOT_DONE = Code(
    "JOB_NOT_DONE",
    "A job is still running, possibly in the folder of the run to resume, or it was stopped and can be resumed.",
    "While it runs, wait (python scripts/jobs.py wait JOB) or cancel it; after that, python scripts/jobs.py retry JOB "
    "resumes it. --new-run starts another run.",
    Exit.NOT_DONE,
)
NO_EXPORT = Code(
    "EXPORT_NOT_FOUND",
    "The path contains no export of a run.",
    "Give a run folder, or one of the folders below its safetensors/; `latest` is the newest run of this folder.",
    Exit.USAGE,
)
EXPORT_UNPROVED = Code(
    "EXPORT_UNPROVED",
    "The export has no recorded loss, so a copy of it cannot be verified to be the trained model.",
    "Choose another export of the run, or continue the training: its next export is verified.",
)
SITE_SETTINGS = Code(
    "PLATFORM_SITE_SETTINGS",
    "The site settings (site.toml) are missing, are not TOML, or have a missing or wrong key or value.",
    "Correct what the message names; references/site_template.toml documents every key.",
)
# Remedies by the unreachable service. A problem has the remedy of its own platform.
REACH = {
    "Local": "launch from a Linux machine whose /proc can be read",
    "Docker": "start its daemon (sudo systemctl start docker), or set DOCKER_HOST to a running one",
    "Docker's socket": "join its group (sudo usermod -aG docker $USER), then log in again",
    "SLURM": "launch from a login node, or set `ssh` in [slurm] of site.toml to one",
    "SLURM by ssh": "make `ssh HOST true` work without a question, with its key in known_hosts",
    "Kubernetes": "set KUBECONFIG to a kubeconfig, and `context` in [kubernetes] of site.toml to a context in "
    "`kubectl config get-contexts`",
}
PLATFORM_UNREACHABLE = Code(
    "PLATFORM_UNREACHABLE",
    "This machine cannot observe processes, has no SLURM commands, or cannot reach the Docker daemon, the SLURM submit "
    "host or the Kubernetes cluster with its settings.",
    " ".join(f"{name}: {remedy}." for name, remedy in REACH.items()),
    Exit.ENVIRONMENT,
)
PLATFORM_SILENT = Code(
    "PLATFORM_SILENT",
    "SLURM's controller or the cluster's API server does not respond, or reports that it is unavailable (429, 5xx).",
    "Check `scontrol ping` or `kubectl get --raw /readyz`, the network and VPN, then run this again: running jobs "
    "continue without it.",
    Exit.ENVIRONMENT,
)
PLATFORM_REFUSED = Code(
    "PLATFORM_REFUSED",
    "The Docker daemon, SLURM or the cluster rejected the job: a full disk, a quota or policy, a wrong setting, a "
    "missing right or secret, GPUs that are unavailable, or another container or object with the job's name.",
    "Follow the platform's error text in the message: correct the platform's table in site.toml or the spec, then "
    "launch again; --dry-run prints what is submitted.",
    Exit.ENVIRONMENT,
)
IMAGE_UNUSABLE = Code(
    "PLATFORM_IMAGE_UNUSABLE",
    "No image is given or recorded, the image is not on the daemon's machine or in its registry, or it was not built "
    "as the engine of this version of the project.",
    "Build and record it from this checkout: docker/build.sh; or give one that docker pull can fetch, with --image "
    "(Kubernetes and SLURM: or with `image` in site.toml).",
    Exit.ENVIRONMENT,
)
PLATFORM_IMAGE_UNUSED = Code(
    "PLATFORM_IMAGE_UNUSED",
    "An image is given that the job would not use, or that its nodes would not find.",
    'Omit --image. On SLURM set backend = "pyxis" or "apptainer" in the table [slurm] of site.toml; on this machine '
    "--platform docker runs an image.",
)
PLATFORM_PATH = Code(
    "PLATFORM_PATH",
    "A path of the job contains a character that scripts or containers of the platform do not support, or would be "
    "mounted over the program in the image.",
    "Rename the folder, or move its data to another.",
)
# How to make a path accessible to jobs; a problem has the remedy of its own platform.
SHOW_PATH = {
    "Kubernetes": "add the volume to [kubernetes] in site.toml: mount_path, and launcher_path if its path on this "
    "machine differs; if only the pods see the folder, add it to `cluster_paths`",
    "SLURM": "copy it to a folder below `cluster_paths` and give that path (download a hub model on the cluster "
    "with `hf download ORG/NAME --local-dir FOLDER`); if the cluster has the folder at the same path, add it to "
    "`cluster_paths`",
}
PATH_UNSEEN = Code(
    "PLATFORM_PATH_UNSEEN",
    "A path in the spec, or that of its model in the hub's cache, is not accessible to the job: in no volume of the "
    "pods, or only on this machine while the output folder is only on the cluster.",
    " ".join(f"{name}: {remedy}." for name, remedy in SHOW_PATH.items()),
)
NOT_SHARED = Code(
    "PLATFORM_NOT_SHARED",
    "The machine that starts the job cannot access the run folder, or a file or folder of the job, at its path.",
    "Correct the path, or put output folder, data and model on a file system that is mounted at the same path here and "
    "there; or, on SLURM, copy there what python scripts/launch.py --dry-run --out DIR writes, and submit it there.",
    Exit.ENVIRONMENT,
)
NOT_SEEN = Code(
    "PLATFORM_NOT_SEEN",
    "A file or folder that the job needs is not on the launching machine, so it was not checked.",
    "Run preflight where it is, such as on a node of the cluster; otherwise the job itself reports its errors.",
    Exit.ENVIRONMENT,
)
PLATFORM_NODES = Code(
    "PLATFORM_NODES",
    "The processes of the spec cannot be spread evenly over the nodes, or this platform has one node only.",
    "Set --nodes to a divisor of dp_shard_size * dp_replicate_size * cp_size; on local and docker omit it.",
)
PLATFORM_TOO_FEW_GPUS = Code(
    "PLATFORM_TOO_FEW_GPUS",
    "The spec needs more processes than a node has GPUs; without a GPU the job runs on the CPU, which suits the demo "
    "and tests but is far too slow for a real model.",
    "Provide as many GPUs (`nvidia-smi -L`; of MIG devices a job uses one) and list them in CUDA_VISIBLE_DEVICES, on a "
    "cluster raise --gpus or omit it, or lower policy.parallelism.dp_shard_size or dp_replicate_size (evaluate: "
    "num_gpus).",
    Exit.ENVIRONMENT,
)
