"""Runs a job's command inside a container: python -m vidqa.jobs.platforms.container_entrypoint JOB LOG_FILE COMMAND...

It reads the secrets from a file, removes the file, and copies the command's output to the run's log and the container's
own. The supervisor handles signals, the end of all processes and the exit code.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from vidqa.core import environment
from vidqa.core.files import remove
from vidqa.jobs.platforms.supervisor import shell_exit_code, supervise

SECRETS_FILE = Path("/run/secrets/vidqa.json")
OUTPUT_WAIT_S = 10.0  # for a process that outlives the command and keeps its output open


def main(words: Sequence[str]) -> int:
    job_id, log, *command = words
    take_secrets(SECRETS_FILE)
    with copied_output(Path(log)):
        return shell_exit_code(supervise(job_id, None, command))


def take_secrets(file: Path) -> None:
    """Put {name: value} of the file into this process's environment and remove the file."""
    if file.exists():
        environment.adopt(json.loads(file.read_text(encoding="utf-8")))
        remove(file, owner=file.parent)


@contextmanager
def copied_output(log: Path) -> Iterator[None]:
    """Copy the output of this process and its children to its own output and, appended, to the log file."""
    sys.stdout.flush()
    reading, writing = os.pipe()
    original = os.dup(1)
    os.dup2(writing, 1)
    os.dup2(writing, 2)
    os.close(writing)
    copier = threading.Thread(target=_copy, args=(reading, original, log), daemon=True)
    copier.start()
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(original, 1)
        os.dup2(original, 2)
        copier.join(OUTPUT_WAIT_S)


def _copy(reading: int, output: int, log: Path) -> None:
    """Copy until the last writer has closed. An unwritable log, as on a full disk, does not end the job."""
    warned = False
    while piece := os.read(reading, 1 << 16):
        os.write(output, piece)
        try:
            with log.open("ab") as file:
                file.write(piece)
        except OSError as failed:
            if not warned:
                os.write(output, f"the log cannot be written: {failed}\n".encode())
            warned = True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
