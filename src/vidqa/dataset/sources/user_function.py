"""A user's own function that yields records: `my_module.py:records`, or `my_module.py:records#WORD`, which it is given.

The function runs in a process of its own, and what it yields comes back as JSON: it is checked like any other record,
and nothing that the function does to its own process changes how.
"""

from __future__ import annotations

import hashlib
import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from vidqa.contract import environment
from vidqa.contract.files import content_hash
from vidqa.dataset.foreign_rows import question_row
from vidqa.dataset.media import media_source
from vidqa.dataset.problem_collector import ProblemCollector
from vidqa.dataset.problems import EMPTY, FILE_MISSING, FUNCTION
from vidqa.dataset.reader import TOO_DEEP, is_deep
from vidqa.dataset.sources._base import Rows, Source, SourceKind
from vidqa.dataset.sources.address import FUNCTION as WRITTEN

BLOCK = 1 << 16  # bytes of a pipe that are read at one time
CHILD = Path(__file__).with_name("function_process.py")


def _open(path: str, media_path: str) -> Source:
    """Raises DATA_FILE_MISSING."""
    match = WRITTEN.fullmatch(path)
    assert match is not None  # it was recognised
    file = Path(os.path.abspath(os.path.expanduser(match["file"])))
    if not file.is_file():
        raise FILE_MISSING.error(file, "there is no such Python file", "give FILE.py:FUNCTION")
    name, argument = match["name"], match["given"]

    def rows(collector: ProblemCollector) -> Rows:
        index = -1
        for index, row in enumerate(_yielded(file, name, argument, collector)):
            if is_deep(row):
                collector.add(FUNCTION, f"{file}:{name}[{index}]", TOO_DEEP)
            else:
                yield index, question_row(row)
        if index < 0 and not collector.errors:
            collector.add(EMPTY, f"{file}:{name}", "the function yields no record")

    def fingerprint() -> str:
        read = [content_hash(Path(argument))] if argument and os.path.isfile(argument) else []
        return hashlib.sha256(repr([content_hash(file), name, argument, *read]).encode()).hexdigest()

    return Source(file, media_source(file, media_path, root_mode=False), rows, fingerprint)


def _yielded(file: Path, name: str, argument: str | None, collector: ProblemCollector) -> Iterator[Any]:
    """What the function yields, until it ends or fails, which becomes a finding."""
    reading, writing = os.pipe()
    words = [sys.executable, str(CHILD), str(writing), str(file), name, *([] if argument is None else [argument])]
    # What has an order only by chance, such as that of a set, is the same in every process.
    variables = {**environment.foreign_environment(), "PYTHONHASHSEED": "0"}
    process = subprocess.Popen(
        words, pass_fds=[writing], stdin=subprocess.DEVNULL, stdout=sys.stderr, env=variables, process_group=0
    )
    os.close(writing)
    ended = False
    try:
        for number, line in enumerate(_lines(process.pid, reading), 1):
            try:
                kind, value = _message(line)
            except (ValueError, RecursionError) as wrong:
                message = f"message {number} of its process is none of ours, which alone may write there: {wrong}"
                collector.add(FUNCTION, f"{file}:{name}", message)
                return
            if kind == "row":
                yield value
                continue
            if kind == "failed":
                collector.add(FUNCTION, value["where"] or f"{file}:{name}", value["message"])
            ended = True
            break
    finally:
        os.close(reading)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # what it forked, too
        process.wait()
    if not ended:
        collector.add(FUNCTION, f"{file}:{name}", f"its process ended before it, with exit code {process.returncode}")


def _lines(pid: int, reading: int) -> Iterator[bytes]:
    """What a process writes, line by line, until it ends: others that it forked may hold the pipe open for longer."""
    parts: list[bytes] = []
    ended = os.pidfd_open(pid)
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(reading, selectors.EVENT_READ)
            selector.register(ended, selectors.EVENT_READ)
            while reading in {key.fd for key, _ in selector.select()}:
                chunk = os.read(reading, BLOCK)
                if not chunk:
                    return
                first, *others = chunk.split(b"\n")
                parts.append(first)
                for rest in others:
                    yield b"".join(parts)
                    parts = [rest]
    finally:
        os.close(ended)


def _message(line: bytes) -> tuple[str, Any]:
    """A row, the end, or the failure of a function. Raises ValueError, RecursionError."""
    match json.loads(line):
        case ["row", value]:
            return "row", value
        case ["end", None]:
            return "end", None
        case ["failed", {"where": str(), "message": str()} as value]:
            return "failed", value
    raise ValueError(f"{line[:80]!r}")


USER_FUNCTION = SourceKind(
    "user's function", lambda path: bool(WRITTEN.fullmatch(path)), _open, reads_part=lambda part: True
)
