"""The engine's command line and environment, the same on every platform."""

from __future__ import annotations

from vidqa.core import environment
from vidqa.jobs.platforms._base import ADDRESSES, SAVE_S, Job
from vidqa.jobs.problems import PLATFORM_NODES, SITE_SETTINGS

RENDEZVOUS_PORT = 29500
TORCHRUN = ("-m", "vidqa.engine.torchrun")
GO_ON = "--go-on"  # tells the engine to resume, where the platform restarts a job with the same command


def engine_words(job: Job) -> tuple[str, ...]:
    """The command of each process of torchrun."""
    return ("-m", "vidqa.engine", job.action, "--spec", str(job.spec), "--run-dir", str(job.run_dir))


class Placeholder(str):
    """A word with placeholders that the node fills in, as its platform writes them. It holds no text of the user; all
    other words are literal, whatever their characters."""


def torchrun(python: str, job: Job, first_node: str | None = None, node_rank: str | None = None) -> tuple[str, ...]:
    """The command of one node. Several nodes meet at `first_node`, "HOST:PORT", which is the node of rank 0.

    Both may hold placeholders; words made of them are Placeholder. Raises PLATFORM_NODES without them.
    """
    start = (python, *TORCHRUN)
    share = f"--nproc-per-node={job.processes_per_node}"
    if job.nodes == 1:
        return (*start, "--standalone", share, *engine_words(job))
    if first_node is None or node_rank is None:
        raise PLATFORM_NODES.error("--nodes", f"this platform is one machine, {job.nodes} nodes are asked for")
    host, _, port = first_node.rpartition(":")
    # FixReport ranks: a restarted job computes with the same ranks, so its sums are the same.
    meeting = (f"--node-rank={node_rank}", f"--master-addr={host}", f"--master-port={port}")
    return (*start, f"--nnodes={job.nodes}", *map(Placeholder, meeting), share, *engine_words(job))


# Packs differ in length: memory freed by one is then of use to the next, whatever their sizes. And while CUDA pins host
# memory nobody can launch a kernel, so its pages are found before: those of a checkpoint take a minute to find.
ALLOCATOR = "expandable_segments:True,pinned_use_cuda_host_register:True,pinned_num_register_threads:8"


def engine_environment(job: Job, cores: int | None = None) -> dict[str, str]:
    """The environment of every job. Without a GPU, `cores` of a node, if known, are divided among processes.

    Raises SITE_SETTINGS for an address with a password: scripts, manifests and records show these values.
    """
    addresses = environment.values(ADDRESSES)
    for name, value in addresses.items():
        if value != (shown := environment.redacted(value)):
            raise SITE_SETTINGS.error(
                name,
                f"it holds a user, password or token, and would be written into the job's files: {shown}",
                f"set {name} without them; HF_TOKEN and the AWS_ keys are handed to the job without being written",
            )
    settings = {
        "PYTHONUNBUFFERED": "1",
        "PYTHONSAFEPATH": "1",  # nothing is imported from the working folder
        **environment.OF_THE_ENGINE,
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(SAVE_S),
        "PYTORCH_ALLOC_CONF": ALLOCATOR,
        **addresses,
        **environment.values(["PYTORCH_ALLOC_CONF"]),
    }
    interface = getattr(job.settings, "interface", "")
    if interface and job.nodes > 1:  # one node uses the loopback
        settings |= {"NCCL_SOCKET_IFNAME": f"={interface}", "GLOO_SOCKET_IFNAME": interface}
    if job.gpus == 0 and cores:
        settings["OMP_NUM_THREADS"] = str(max(1, cores // job.processes_per_node))
    return settings
