"""The settings of a SLURM cluster, and the two files of a job there: job.sbatch, which requests nodes and waits, and
node.sh, which runs on each of them.

Both are readable; `sbatch job.sbatch` by hand in the run folder is equivalent to a launch.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from vidqa.core import environment
from vidqa.core.environment import SECRET_NAMES
from vidqa.core.files import absolute
from vidqa.core.problem import Problem
from vidqa.jobs.platforms._base import SUBMIT_SCRIPT, Job
from vidqa.jobs.platforms.engine_process import GO_ON, Placeholder, engine_environment, torchrun
from vidqa.jobs.platforms.mounts import mounts
from vidqa.jobs.platforms.site import AbsolutePath, Interface, SiteSettings, cache_folder, is_unseen
from vidqa.jobs.problems import PLATFORM_IMAGE_UNUSED, PLATFORM_PATH, SITE_SETTINGS

SCRIPT, TASK = "job.sbatch", "node.sh"
DIVIDES_MOUNTS = frozenset(":,^")  # separators in mount options of Apptainer and pyxis, which cannot be escaped
WRONG_PATH = "correct its path; where only the nodes see the file, name its folder in `cluster_paths` of [slurm]"
IMAGE_FILES = (".sif", ".sqsh", ".squashfs", ".img")


# Options of sbatch that the script sets itself, and others with which a job would start several times, or not be found.
OWN_OPTIONS: tuple[str, ...] = ("array", "job-name", "nodes", "ntasks", "ntasks-per-node", "output", "error")
OWN_OPTIONS += ("open-mode", "export", "signal", "no-requeue", "test-only", "wait", "wrap")


def _refuse_other_clusters(option: str) -> str:
    """Refuse --clusters and its short form."""
    if option.startswith("--cl") and not option.startswith("--cluster-constraint"):
        raise ValueError("the job would go to another cluster, where nothing monitors it; set `ssh` to a host there")
    return option


# A value of an sbatch option, or a word in a script: no quotes, no spaces, no characters that a shell interprets.
Word = Annotated[str, Field(pattern=r"^[\w.,:@/+*%&|\[\]-]*$")]
TimeLimit = Annotated[str, Field(pattern=r"^(\d+|\d+:\d\d|\d+:\d\d:\d\d|\d+-\d+|\d+-\d+:\d\d(:\d\d)?)?$")]
Host = Annotated[str, Field(pattern=r"^([\w.-]+@)?[\w.-]*$")]
Line = Annotated[str, Field(pattern=r"^[\P{Cc}\t]*$")]
Option = Annotated[str, Field(pattern=r"^--[a-z][\P{Cc}\t]*$"), AfterValidator(_refuse_other_clusters)]


class SlurmSite(SiteSettings):
    """Settings of the platform slurm. An empty text leaves an option at the cluster's default."""

    backend: Literal["venv", "apptainer", "pyxis"] = Field(
        "venv", description="Environment of the engine: a Python environment, an Apptainer image, or a pyxis container."
    )
    checkout: AbsolutePath | Literal[""] = Field(
        "", description="Folder of this skill on a cluster without access to this machine's; its .venv is used."
    )
    python: Line = Field("", description="Python of the environment or image; empty: the launcher's, or python.")
    image: Line = Field("", description="Engine image (a .sif or .sqsh file, docker://...), unless --image names one.")
    cluster_paths: list[AbsolutePath] = Field(
        [], description="Folders that exist only on the nodes: paths below them are not checked on this machine."
    )
    mounts: list[Line] = Field([], description='More mounts of the container, as "FROM:TO" or "FROM:TO:ro".')
    partition: Word = Field("", description="Partition.")
    account: Word = Field("", description="Account to charge.")
    qos: Word = Field("", description="Quality of service.")
    reservation: Word = Field("", description="Reservation.")
    constraint: Word = Field("", description="Required node features.")
    time: TimeLimit = Field(
        "",
        description='Time limit of one attempt, in sbatch\'s format: "24:00:00", "2-00:00:00"; "24:00" is 24 minutes.',
    )
    gpu_type: Word = Field("", description='Requested GPU type, such as "h100".')
    cpus_per_task: int = Field(0, ge=0, description="Cores per node; 0: the cluster's default.")
    memory: Word = Field("", description='Memory per node, such as "200G"; "0" is all of it.')
    exclusive: bool = Field(False, description="Use the nodes exclusively.")
    options: list[Option] = Field([], description='More options of sbatch, such as "--exclude=n7".')
    interface: Interface = Field(
        "", description='Network interface between nodes, such as "ib0"; empty: that of their addresses.'
    )
    setup: list[Line] = Field([], description='Shell lines before the engine starts, such as "module load cuda".')
    warning_s: int = Field(120, ge=10, le=65535, description="Seconds before the time limit at which a job saves.")
    restarts: int = Field(
        3, ge=0, description="Restarts of a job after a failed node, a preemption, or the time limit."
    )
    ssh: Host = Field("", description="Host to submit from, HOST or USER@HOST; empty: this machine.")
    ssh_config: Line = Field("", description="ssh's configuration file, if not ~/.ssh/config.")


MEETING = """\
# The nodes meet at this one, under the address that SLURM knows it by.
FIRST_NODE=$(scontrol show node --oneliner "$SLURMD_NODENAME" | sed -n 's/.* NodeAddr=\\([^ ]*\\).*/\\1/p')
FIRST_NODE=${FIRST_NODE:-$SLURMD_NODENAME}  # where SLURM does not answer, its name is as good on most clusters
MEETING_PORT=$((20000 + SLURM_JOB_ID % 10000))
export FIRST_NODE MEETING_PORT
"""
BY_INTERFACE = """\
# And at no other address than this one, in the network that the site's settings name.
OWN=$(ip -o -4 address show dev {interface} | sed -n 's/.* inet \\([0-9.]*\\).*/\\1/p' | head -n 1)
FIRST_NODE=${{OWN:-$FIRST_NODE}}
"""
RUN = """\
# The engine's own exit code, from status.json.
reported_code() {{ sed -n 's/.*"exit_code": \\([0-9][0-9]*\\).*/\\1/p' "$run/status.json" 2>/dev/null; }}
restarted=${{SLURM_RESTART_COUNT:-0}}
if ((restarted)) && [[ $(reported_code) == 0 ]]; then
    echo 0 > "{exit_file}"  # an earlier attempt was complete when SLURM took its nodes
    exit 0
fi

# One task on each node. Asked to stop (SIGUSR1 before the end of its time, SIGTERM when preempted), the engine saves.
rm -f "$run/status.json" "{exit_file}"  # how an earlier attempt ended no longer counts
((restarted < {restarts})) || scontrol update "JobId=$SLURM_JOB_ID" Requeue=0  # the last attempt
srun --export=ALL --kill-on-bad-exit=1{cores} {task}
code=$?
reported=$(reported_code)
if [[ $reported == 0 ]]; then
    ((code == 6 || code > 128)) && code=0  # the signal came when all was done
elif [[ -n $reported ]]; then
    code=$reported
fi

# Another attempt goes on from the last checkpoint: when the engine has saved and stopped, or when a node is gone.
if [[ $code == 6 ]]; then
    echo "saved and stopped; SLURM is asked for another attempt"
    scontrol requeue "$SLURM_JOB_ID" && sleep 600  # SLURM ends this script meanwhile
elif [[ $code != 0 ]] && ! timeout 90 srun --overlap --export=ALL --ntasks-per-node=1 --kill-on-bad-exit=1 true; then
    echo "a node of the job no longer answers; SLURM is asked for another attempt"
    scontrol requeue "$SLURM_JOB_ID" && sleep 600
fi
echo "$code" > "{exit_file}"
exit "$code"
"""


SUBMIT_TEMPLATE = """\
#!/bin/bash
# Copy this folder to the cluster and run there: bash {name}
set -euo pipefail
here=$(cd "$(dirname "${{BASH_SOURCE[0]}}")" && pwd)
run={run}
missing=0
for path in {needed}; do
    [[ -e $path ]] || {{ echo "the cluster has no $path" >&2; missing=1; }}
done
((missing == 0)) || exit 3
mkdir -p "$run"
[[ $here -ef $run ]] || cp {files} "$run"
cd "$run"
sbatch {script}
"""


def sbatch(job: Job) -> str:
    """The batch script of one job."""
    site: SlurmSite = job.settings
    what = f"{job.action}: {_many(job.processes, 'process', 'processes')} on {_many(job.nodes, 'node', 'nodes')}"
    lines = [
        "#!/bin/bash",
        f"# {what}. By hand: sbatch {SCRIPT}, with {TASK} and spec.toml beside it in the folder `run`, below.",
        *directives(job),
        "",
        f"run={shlex.quote(str(job.run_dir))}",
        *site.setup,
    ]
    return "\n".join(lines) + "\n" + _body(job)


def task(job: Job) -> str:
    """The script of every node: a supervisor that passes signals on, torchrun, a process per GPU."""
    site: SlurmSite = job.settings
    python = python_of(site)
    settings = engine_environment(job, site.cpus_per_task or 1)
    settings["VIDQA_CACHE_DIR"] = str(cache_folder(site, job.run_dir.parent))
    if site.backend == "venv":
        settings |= {"PYTHONPATH": source} if (source := _source(job)) else {}
    else:
        settings["PYTHONNOUSERSITE"] = "1"  # keeps the host's packages out of the image
    exports = [f"export {name}={shlex.quote(value)}" for name, value in settings.items()]
    several = job.nodes > 1
    meeting = ("$FIRST_NODE:$MEETING_PORT", "$SLURM_NODEID") if several else ()
    # Two tasks may share a machine; this name distinguishes their processes.
    name = [job.job_id, Placeholder(".$SLURM_NODEID")] if several else [job.job_id]
    lines = [
        "#!/bin/bash",
        f"# Runs once on each node of the job; {SCRIPT} says how.",
        *exports,
        f"exec {_shell_words(python, '-m', 'vidqa.jobs.platforms.supervisor')} {''.join(map(_shell_words, name))} - \\",
        f"    {_shell_words(*torchrun(python, job, *meeting), GO_ON)}",
    ]
    return "\n".join(lines) + "\n"


def _source(job: Job) -> str:
    """The PYTHONPATH of a bare environment; empty if the cluster's own `python` has this package installed."""
    site: SlurmSite = job.settings
    if site.checkout:
        return f"{site.checkout}/src"
    return "" if is_unseen(site, job.run_dir) else environment.python_path()


def submit_script(job: Job, names: Iterable[str], script: str, programs: Iterable[str] = ()) -> str:
    """The shell script that submits `script` with the files beside it, on a cluster that this machine does not see.
    `programs` are paths that must exist there, like the job's inputs."""
    return SUBMIT_TEMPLATE.format(
        name=SUBMIT_SCRIPT,
        run=shlex.quote(str(job.run_dir)),
        needed=shlex.join([*programs, *map(str, job.reads)]),
        files=" ".join(f'"$here"/{name}' for name in names),
        script=script,
    )


def name_of(job_id: str) -> str:
    """The job's name in SLURM, which finds the job even if its launcher died before it stored the number."""
    return f"vidqa-{job_id}"


def exit_file(run_dir: Path, slurm_id: str) -> Path:
    """The file with the exit code of the script, for clusters without accounting."""
    return run_dir / f"slurm-{slurm_id}.exit"


def python_of(site: SlurmSite) -> str:
    if site.python or site.backend != "venv":
        return site.python or "python"
    return f"{site.checkout}/.venv/bin/python" if site.checkout else sys.executable


def image_of(job: Job) -> str:
    return job.image or job.settings.image


def image_problems(site: SlurmSite, image: str) -> list[Problem]:
    """Problems of the image on the nodes. A file needs an absolute path: nodes do not share the working folder, and
    pyxis takes any other name for one in a registry."""
    if site.backend == "venv":
        return [PLATFORM_IMAGE_UNUSED.at(image, "the backend is venv", severity="warning")] if image else []
    if not image:
        return [
            SITE_SETTINGS.at(
                "--image",
                f"the backend is {site.backend}, and no image is given",
                "give one with --image, or with `image` in the table [slurm] of site.toml",
            )
        ]
    is_file = "://" not in image and (image.startswith(("/", ".", "~")) or image.endswith(IMAGE_FILES))
    if not is_file or is_unseen(site, image):
        return []
    if not image.startswith("/"):
        return [PLATFORM_IMAGE_UNUSED.at(image, "it is not an absolute path", f"write {absolute(image)}")]
    if os.path.isfile(image):
        return []
    return [PLATFORM_IMAGE_UNUSED.at(image, "there is no such file on this machine", WRONG_PATH)]


def option_problems(site: SlurmSite) -> list[Problem]:
    """Problems of options that would override those of the script. sbatch accepts abbreviated option names."""
    problems = []
    for option in site.options:
        name = option.removeprefix("--").partition("=")[0]
        own = next((own for own in OWN_OPTIONS if own.startswith(name)), None)
        if own:
            message = f"{option} conflicts with the job's own script, which sets --{own}"
            remedy = "leave it out of `options`; scripts/launch.py has --nodes and --gpus, the table [slurm] the rest"
            problems.append(SITE_SETTINGS.at("options", message, remedy))
    return problems


def time_problems(site: SlurmSite) -> list[Problem]:
    """Problems of a time limit that leaves no time to work, because the job saves `warning_s` before its end (0 is no
    limit); a warning for minutes and seconds that look like hours and minutes."""
    limit_s = seconds_of(site.time or "0")
    if 0 < limit_s <= site.warning_s:
        before = f"the job saves and stops {site.warning_s} s before (warning_s)"
        remedy = "give it more time, as HOURS:MINUTES:SECONDS, or a shorter warning_s"
        return [SITE_SETTINGS.at("time", f"{site.time!r} is {limit_s} s for SLURM, and {before}", remedy)]
    if "-" in site.time or site.time.count(":") != 1:
        return []
    minutes, seconds = site.time.split(":")
    message = f"{site.time!r} is {int(minutes)} minutes and {int(seconds)} seconds for SLURM, not hours"
    remedy = f'write "{site.time}:00" for hours and minutes, "00:{site.time}" for minutes and seconds'
    return [SITE_SETTINGS.at("time", message, remedy, severity="warning")]


def seconds_of(time: str) -> int:
    """A time limit in seconds. sbatch reads M, M:S, H:M:S, D-H, D-H:M and D-H:M:S."""
    days, _, clock = time.rpartition("-")
    parts = list(map(int, clock.split(":")))
    if not days and len(parts) < 3:
        parts.insert(0, 0)  # minutes come first
    hours, minutes, seconds = (*parts, 0, 0)[:3]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def unmountable(job: Job) -> list[Problem]:
    """Problems of folders that cannot be mount options: some characters separate paths there, and blanks at the ends
    are lost."""
    if job.settings.backend == "venv":
        return []
    needed = dict.fromkeys([job.run_dir, *(mount.path for mount in mounts(job))])
    odd = [path for path in needed if DIVIDES_MOUNTS & set(str(path)) or str(path) != str(path).strip()]
    message = f"the backend is {job.settings.backend}, and the path contains one of : , ^ or ends in a blank"
    remedy = "Rename the folder, or set `backend` to venv in the table [slurm] of site.toml, which supports any path."
    return [PLATFORM_PATH.at(path, message, remedy) for path in odd]


def as_pattern(log: Path) -> str:
    """The log path for sbatch: a % is doubled. In a path with a backslash % is literal, and backslashes are doubled."""
    text = str(log)
    return text.replace("\\", "\\\\") if "\\" in text else text.replace("%", "%%")


def _directive(option: str) -> str:
    """A line of #SBATCH. sbatch reads a backslash as an escape, also inside quotes."""
    return "#SBATCH " + shlex.quote(option.replace("\\", "\\\\"))


def directives(job: Job, *, restarts: bool = True) -> list[str]:
    """Lines of #SBATCH; empty site settings are left out. Without `restarts` for a program that runs once, without
    secrets and warning signal."""
    site: SlurmSite = job.settings
    kind = f"{site.gpu_type}:" if site.gpu_type else ""
    options = {
        "job-name": name_of(job.job_id),
        "output": as_pattern(job.log),
        "open-mode": "append" if restarts else "",
        "nodes": str(job.nodes),
        "ntasks-per-node": "1",
        "gpus-per-node": f"{kind}{job.gpus}" if job.gpus else "",
        "cpus-per-task": str(site.cpus_per_task or ""),
        "mem": site.memory,
        "partition": site.partition,
        "account": site.account,
        "qos": site.qos,
        "reservation": site.reservation,
        "constraint": site.constraint,
        "time": site.time,
        "signal": f"USR1@{site.warning_s}" if restarts else "",
        "export": ",".join(SECRET_NAMES) if restarts else "",
    }
    flags = ["--exclusive"] * site.exclusive + ["--requeue"] * restarts + site.options
    return [_directive(f"--{name}={value}") for name, value in options.items() if value] + [*map(_directive, flags)]


def _body(job: Job) -> str:
    site: SlurmSite = job.settings
    # srun does not inherit the number of cores from sbatch.
    cores = f" --cpus-per-task={site.cpus_per_task}" if site.cpus_per_task else ""
    run = RUN.format(
        restarts=site.restarts,
        cores=cores,
        task=in_container(job, f'bash "$run/{TASK}"'),
        exit_file=exit_file(Path("$run"), "$SLURM_JOB_ID"),
    )
    meeting = MEETING + (BY_INTERFACE.format(interface=site.interface) if site.interface else "") + "\n"
    return "\n" + meeting * (job.nodes > 1) + run


def in_container(job: Job, command: str) -> str:
    """The arguments of srun that run a shell command, in the site's container if any. The script sets `run`."""
    site: SlurmSite = job.settings
    if site.backend == "venv":
        return command
    own = [f"{m.path}:{m.path}{':ro' * m.read_only}" for m in mounts(job) if m.path != job.run_dir]
    mounted = shlex.quote(",".join([*own, *site.mounts]))
    image = shlex.quote(image_of(job))
    if site.backend == "apptainer":
        gpus = "--nv " if job.gpus else ""
        return f'apptainer exec {gpus}--bind "$run":"$run",{mounted} {image} {command}'
    return f'--container-image={image} --no-container-mount-home --container-mounts="$run":"$run",{mounted} {command}'


def _shell_words(*words: str) -> str:
    """Words quoted for the shell, except the placeholders of Placeholder words."""
    return " ".join(f'"{word}"' if isinstance(word, Placeholder) else shlex.quote(word) for word in words)


def _many(count: int, one: str, several: str) -> str:
    return f"{count} {one if count == 1 else several}"
