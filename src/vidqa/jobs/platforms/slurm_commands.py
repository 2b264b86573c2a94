"""SLURM's commands, run here or on a host over ssh, and the state of a job from them."""

from __future__ import annotations

import re
import shlex
import subprocess
import time
from dataclasses import dataclass

from vidqa.core import environment
from vidqa.jobs.problems import PLATFORM_SILENT, PLATFORM_UNREACHABLE, REACH

TIMEOUT_S = 90  # SLURM's own commands give up on their controller earlier
PATIENCE_S = 30.0  # for a controller that restarts or fails over
SSH_FAILED, NOT_FOUND = 255, 127
SSH = ("-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", "-o", "PasswordAuthentication=no")
SSH_LIMIT = ("-o", "ConnectTimeout=15", "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=3")
# Reads NAME=VALUE lines up to an empty one into its environment, so that no value appears in a command line.
REMOTE = 'while IFS= read -r line && [ -n "$line" ]; do export "$line"; done; exec "$@"'

# Messages of commands that could not reach the controller, or lost it before its answer.
SILENT = re.compile(
    r"(?i)unable to contact|connection refused|timed out|communication|zero bytes were transmitted"
    r"|authentication error|could not establish a configuration source"
)
NO_SUCH_JOB = "Invalid job id specified"
NO_ACCOUNTS = "accounting storage is disabled"


@dataclass(frozen=True)
class CommandResult:
    """The result of a SLURM command."""

    code: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """The error output in one line, without secrets."""
        lines = [line.strip() for line in (self.err or self.out).splitlines() if line.strip()]
        return environment.redacted(" ".join(lines[-5:])[:500]) or f"exit code {self.code}"

    def is_unanswered(self, nothing: str = "") -> bool:
        """Whether the controller did not answer, so that the result says nothing about the job.

        For a query every failure counts as silence, except messages that match `nothing`: a running job that is
        mistaken for a lost one would be started twice.
        """
        if self.code == 0:
            return False
        if nothing:
            return nothing.lower() not in (self.err + self.out).lower()
        return SILENT.search(self.complaint) is not None


@dataclass(frozen=True)
class SlurmCommands:
    """Runs SLURM's commands here, or on the host `ssh`."""

    ssh: str = ""
    ssh_config: str = ""

    def ask(
        self,
        *words: str,
        stdin: str = "",
        secrets: tuple[str, ...] = (),
        patience_s: float = 0.0,
        nothing: str = "",
        optional: bool = False,
    ) -> CommandResult:
        """Run one command with `stdin` on its standard input, and the available `secrets` in its environment. For a
        query, `nothing` is its error message for a missing job.

        A silent controller is asked again until `patience_s` is over, unless the command may have succeeded and must
        not be repeated. Raises PLATFORM_UNREACHABLE if ssh fails or the command does not exist (an `optional` one then
        returns the code NOT_FOUND), and PLATFORM_SILENT if the controller does not answer.
        """
        deadline = time.monotonic() + patience_s
        while True:
            answer = self._ask_once(words, stdin, secrets)
            if answer.code == NOT_FOUND and not optional:
                raise PLATFORM_UNREACHABLE.error(self.ssh or words[0], answer.complaint, REACH["SLURM"])
            if answer.code == NOT_FOUND or not answer.is_unanswered(nothing):
                return answer
            if time.monotonic() > deadline or not _may_repeat(words, answer):
                raise PLATFORM_SILENT.error(self.ssh or words[0], answer.complaint)
            time.sleep(1)

    def _ask_once(self, words: tuple[str, ...], stdin: str, secrets: tuple[str, ...]) -> CommandResult:
        passed = environment.values(secrets)
        if not self.ssh:
            return self._run(words, stdin, environment.child_environment(**passed))
        config = ("-F", self.ssh_config) if self.ssh_config else ()
        remote = shlex.join(["bash", "-lc", REMOTE, "bash", *words])
        head = "".join(f"{name}={value}\n" for name, value in passed.items()) + "\n"
        return self._run(("ssh", *config, *SSH, *SSH_LIMIT, self.ssh, remote), head + stdin, None)

    def _run(self, words: tuple[str, ...], stdin: str, variables: dict[str, str] | None) -> CommandResult:
        where = self.ssh or words[0]
        try:
            done = subprocess.run(
                words, input=stdin, env=variables, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S
            )
        except FileNotFoundError:
            return CommandResult(NOT_FOUND, "", f"there is no command {words[0]}")
        except subprocess.TimeoutExpired as late:
            raise PLATFORM_SILENT.error(where, f"no answer within {TIMEOUT_S} s") from late
        except OSError as failed:
            raise PLATFORM_UNREACHABLE.error(where, f"it cannot be run: {failed}", REACH["SLURM"]) from failed
        answer = CommandResult(done.returncode, done.stdout, done.stderr)
        if self.ssh and answer.code == SSH_FAILED:
            raise PLATFORM_UNREACHABLE.error(self.ssh, answer.complaint, REACH["SLURM by ssh"])
        return answer


def _may_repeat(words: tuple[str, ...], answer: CommandResult) -> bool:
    """Whether a command is safe to repeat: all but sbatch; sbatch only if it could not connect to the controller."""
    return words[0] != "sbatch" or "connect failure" in answer.complaint


@dataclass(frozen=True)
class SlurmJob:
    """The state of a job in SLURM. `exit_code` is the script's, 128 and more for a signal; `restarts` counts attempts
    after the first."""

    state: str
    name: str = ""
    reason: str = ""
    exit_code: int | None = None
    restarts: int = 0


def slurm_job(cluster: SlurmCommands, slurm_id: str, name: str) -> SlurmJob | None:
    """The state of a job from the controller; None once it has dropped the job, some minutes after its end.

    SLURM reuses job numbers, so the job must also have this `name`. Raises the problems of SlurmCommands.ask.
    """
    shown = cluster.ask("scontrol", "show", "job", slurm_id, "--oneliner", nothing=NO_SUCH_JOB)
    job = _from_scontrol(shown.out) if shown.code == 0 else None
    return job if job and job.name == name else None


def accounted(cluster: SlurmCommands, slurm_id: str, name: str) -> SlurmJob | None:
    """The end of a job from accounting; None without accounting or without the job in it. Raises as `slurm_job`."""
    words = ("sacct", "-j", slurm_id, f"--name={name}", "-X", "-n", "-P", "-o", "State,ExitCode")
    answer = cluster.ask(*words, nothing=NO_ACCOUNTS, optional=True)
    return _from_sacct(answer.out) if answer.code == 0 else None


def find(cluster: SlurmCommands, name: str, patience_s: float = 0.0) -> str | None:
    """The number of the newest job with this name; None if there is none. Raises as `slurm_job`."""
    words = ("squeue", "--noheader", "--states=all", f"--name={name}", "--format=%F")
    listed = cluster.ask(*words, patience_s=patience_s, nothing=NO_SUCH_JOB)
    numbers = sorted(map(int, re.findall(r"^\s*(\d+)\s*$", listed.out, re.MULTILINE)))
    return str(numbers[-1]) if numbers else None


def _from_scontrol(text: str) -> SlurmJob:
    def field(name: str) -> str:
        match = re.search(rf"(?:^|\s){name}=(\S*)", text)
        return match[1] if match else ""

    reason = field("Reason")
    restarts = field("Restarts")
    return SlurmJob(
        state=field("JobState"),
        name=field("JobName"),
        reason="" if reason == "None" else reason,
        exit_code=_exit_code(field("ExitCode")),
        restarts=int(restarts) if restarts.isdigit() else 0,
    )


def _from_sacct(text: str) -> SlurmJob | None:
    """Parse the last line: earlier lines are earlier attempts. "CANCELLED by UID" gives the state CANCELLED."""
    lines = [line.split("|") for line in text.splitlines() if "|" in line]
    if not lines:
        return None
    state, exit_code = lines[-1][:2]
    return SlurmJob(state=state.split()[0] if state.split() else "", exit_code=_exit_code(exit_code))


def _exit_code(pair: str) -> int | None:
    """Parse SLURM's CODE:SIGNAL."""
    match = re.fullmatch(r"(\d+):(\d+)", pair)
    return (128 + int(match[2]) if int(match[2]) else int(match[1])) if match else None
