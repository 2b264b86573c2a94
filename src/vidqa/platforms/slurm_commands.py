"""SLURM's commands, run here or on a host over ssh, and what they say of a job."""

from __future__ import annotations

import re
import shlex
import subprocess
from dataclasses import dataclass
from typing import Any

from vidqa import environment
from vidqa.platforms.problems import PLATFORM_UNSUITABLE
from vidqa.platforms.slurm_problems import SLURM_MISSING, SLURM_SILENT, SLURM_SSH
from vidqa.problem import ProblemError

TIMEOUT_S = 90  # SLURM's own commands give up on their controller earlier than that
SSH_FAILED, NOT_FOUND = 255, 127
SSH = ("-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", "-o", "PasswordAuthentication=no")
SSH_LIMIT = ("-o", "ConnectTimeout=15", "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=3")
# Reads NAME=VALUE lines up to an empty one into its environment: a value stands in no command line on either host.
REMOTE = 'while IFS= read -r line && [ -n "$line" ]; do export "$line"; done; exec "$@"'


@dataclass(frozen=True)
class Answer:
    """What a command of SLURM answered."""

    code: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """What it said on failing, in one line and without any secret."""
        lines = [line.strip() for line in (self.err or self.out).splitlines() if line.strip()]
        return environment.redacted(" ".join(lines[-5:])[:500]) or f"exit code {self.code}"

    @property
    def is_silence(self) -> bool:
        """Whether the controller could not be asked, so that the answer says nothing of the job."""
        return bool(re.search(r"(?i)unable to contact|connection refused|timed out|communication", self.complaint))


@dataclass(frozen=True)
class Cluster:
    """Where SLURM's commands are: here, or on the host `ssh`."""

    ssh: str = ""
    ssh_config: str = ""

    @staticmethod
    def of(settings: dict[str, Any]) -> Cluster:
        """From the settings that a record keeps."""
        return Cluster(settings.get("ssh", ""), settings.get("ssh_config", ""))

    def ask(self, *words: str, given: str = "", secrets: tuple[str, ...] = ()) -> Answer:
        """Run one command with `given` on its standard input, and the secrets that are set in its environment.

        Raises SLURM_MISSING, SLURM_SSH, and SLURM_SILENT where nothing comes back in time.
        """
        passed = environment.values(secrets)
        if not self.ssh:
            return self._run(words, given, environment.child_environment(**passed))
        config = ("-F", self.ssh_config) if self.ssh_config else ()
        remote = shlex.join(["bash", "-lc", REMOTE, "bash", *words])
        head = "".join(f"{name}={value}\n" for name, value in passed.items()) + "\n"
        return self._run(("ssh", *config, *SSH, *SSH_LIMIT, self.ssh, remote), head + given, None)

    def _run(self, words: tuple[str, ...], given: str, variables: dict[str, str] | None) -> Answer:
        where = self.ssh or words[0]
        try:
            done = subprocess.run(
                words, input=given, env=variables, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S
            )
        except FileNotFoundError as missing:
            raise SLURM_MISSING.error(where, f"there is no command {words[0]}") from missing
        except subprocess.TimeoutExpired as late:
            raise SLURM_SILENT.error(where, f"no answer within {TIMEOUT_S} s") from late
        except OSError as failed:
            raise PLATFORM_UNSUITABLE.error(where, f"it cannot be run: {failed}") from failed
        answer = Answer(done.returncode, done.stdout, done.stderr)
        if self.ssh and answer.code == SSH_FAILED:
            raise SLURM_SSH.error(self.ssh, answer.complaint)
        if self.ssh and answer.code == NOT_FOUND:
            raise SLURM_MISSING.error(self.ssh, answer.complaint)
        return answer


@dataclass(frozen=True)
class Known:
    """What SLURM knows of a job. `exit_code` is the script's, 128 and more for a signal; `restarts` counts attempts
    after the first."""

    state: str
    name: str = ""
    reason: str = ""
    exit_code: int | None = None
    restarts: int = 0


def known(cluster: Cluster, slurm_id: str, name: str) -> Known | None:
    """What the controller knows of a job now; None where it knows it no more, which is so some minutes after its end.

    Numbers are given out again, after a while or by a controller that lost its memory: only with `name` is it the job.
    Raises SLURM_SILENT and what Cluster.ask raises.
    """
    shown = cluster.ask("scontrol", "show", "job", slurm_id, "--oneliner")
    if shown.code == 0:
        found = _from_scontrol(shown.out)
        return found if found.name == name else None
    if shown.is_silence:
        raise SLURM_SILENT.error(cluster.ssh or "scontrol", shown.complaint)
    return None


def accounted(cluster: Cluster, slurm_id: str, name: str) -> Known | None:
    """How a job ended, from the accounts; None where there are none or it is not in them. Raises as `known`."""
    try:
        kept = cluster.ask("sacct", "-j", slurm_id, f"--name={name}", "-X", "-n", "-P", "-o", "State,ExitCode")
    except ProblemError as stopped:
        if stopped.problems[0].code == SLURM_MISSING.name:
            return None
        raise
    if kept.code and kept.is_silence:
        raise SLURM_SILENT.error(cluster.ssh or "sacct", kept.complaint)
    return _from_sacct(kept.out) if kept.code == 0 else None


def find(cluster: Cluster, name: str) -> str | None:
    """The newest job of this name, by its number; None where SLURM knows none. Raises as `known` does."""
    listed = cluster.ask("squeue", "--noheader", "--states=all", f"--name={name}", "--format=%A")
    if listed.code and listed.is_silence:
        raise SLURM_SILENT.error(cluster.ssh or "squeue", listed.complaint)
    numbers = sorted(map(int, re.findall(r"^\s*(\d+)\s*$", listed.out, re.MULTILINE)))
    return str(numbers[-1]) if numbers else None


def _from_scontrol(text: str) -> Known:
    def field(name: str) -> str:
        found = re.search(rf"(?:^|\s){name}=(\S*)", text)
        return found[1] if found else ""

    reason = field("Reason")
    restarts = field("Restarts")
    return Known(
        state=field("JobState"),
        name=field("JobName"),
        reason="" if reason == "None" else reason,
        exit_code=_exit_code(field("ExitCode")),
        restarts=int(restarts) if restarts.isdigit() else 0,
    )


def _from_sacct(text: str) -> Known | None:
    """The last line counts: earlier ones are of attempts before it. A state may be followed by who canceled it."""
    lines = [line.split("|") for line in text.splitlines() if "|" in line]
    if not lines:
        return None
    state, exit_code = lines[-1][:2]
    return Known(state=state.split()[0] if state.split() else "", exit_code=_exit_code(exit_code))


def _exit_code(pair: str) -> int | None:
    """SLURM writes CODE:SIGNAL."""
    found = re.fullmatch(r"(\d+):(\d+)", pair)
    return (128 + int(found[2]) if int(found[2]) else int(found[1])) if found else None
