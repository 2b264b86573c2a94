"""A user's own function, NAME of FILE.py, in a process of its own: called once or often, or iterated over.

    with UserFunction(file, "score", limit_s=60) as function:
        value = function.call([{"id": "a"}], limit_s=10)

Arguments and values travel as JSON. Nothing that the function does to its process changes ours; what it starts ends
with it, and what it forks holds nobody up.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from vidqa.core import environment

CHILD = Path(__file__).with_name("user_function_process.py")
BLOCK = 1 << 16  # bytes that are read at one time


def is_number(value: Any) -> bool:
    """Whether a value that a function gave is a number that a float can hold."""
    return isinstance(value, int | float) and abs(value) <= sys.float_info.max


class UserFunctionError(Exception):
    """What a function did wrong. `where` is FILE:LINE of the user's code, or empty."""

    def __init__(self, message: str, where: str = "") -> None:
        super().__init__(message)
        self.message, self.where = message, where


class UserFunctionTimeout(UserFunctionError):
    """It took longer than its limit."""


class UserFunction:
    """The process of a function; ended by `close`, or at the end of a `with` block."""

    def __init__(self, file: Path, name: str, limit_s: float | None = None) -> None:
        """Start the process and import the file, within `limit_s` seconds. Raises UserFunctionError."""
        self._socket, theirs = socket.socketpair()
        self._lines, self._rest = list[bytes](), list[bytes]()
        self._process = subprocess.Popen(
            [sys.executable, str(CHILD), str(theirs.fileno()), str(file), name],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            # What has an order only by chance, such as that of a set, is the same in every process.
            env={**environment.foreign_environment(), "PYTHONHASHSEED": "0"},
            start_new_session=True,
        )
        theirs.close()
        self._ended = os.pidfd_open(self._process.pid)
        self._count = -1  # messages after the one that says that the file is imported
        try:
            self._message("ready", limit_s=limit_s)
        except UserFunctionError:
            self.close()
            raise

    def __enter__(self) -> UserFunction:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, arguments: Sequence[Any], *, limit_s: float, objects: Sequence[int] = ()) -> Any:
        """The value for these arguments; those at the places `objects` are tables that it gets as objects with
        attributes. Raises UserFunctionError; after a UserFunctionTimeout the process is of no more use."""
        self._request({"arguments": list(arguments), "objects": list(objects)})
        return self._message("value", limit_s=limit_s)[1]

    def rows(self, arguments: Sequence[Any]) -> Iterator[Any]:
        """What it yields, until it ends. Raises UserFunctionError."""
        self._request({"arguments": list(arguments), "iterate": True})
        while (message := self._message("value", "end"))[0] != "end":
            yield message[1]

    def close(self) -> None:
        """End the process, and what it started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._socket.close()
        if self._ended >= 0:
            os.close(self._ended)
            self._ended = -1

    def _request(self, request: dict[str, Any]) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # it has ended: the answer tells
            self._socket.sendall(json.dumps(request).encode() + b"\n")

    def _message(self, *kinds: str, limit_s: float | None = None) -> tuple[str, Any]:
        """The next message, one of these kinds."""
        line = self._line(None if limit_s is None else time.monotonic() + limit_s)
        self._count += 1
        try:
            match json.loads(line):
                case ["failed", {"where": str(where), "message": str(message)}]:
                    raise UserFunctionError(message, where)
                case [str(kind), value] if kind in kinds and (kind == "value" or value is None):
                    return kind, value
        except (ValueError, RecursionError):
            pass
        message = f"message {self._count} of its process is none of ours, which alone may write there: {line[:80]!r}"
        raise UserFunctionError(message)

    def _line(self, deadline: float | None) -> bytes:
        """What the process writes next, up to the end of a line: others that it forked may hold the socket for longer
        than it lives."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            selector.register(self._ended, selectors.EVENT_READ)
            while not self._lines:
                left = None if deadline is None else max(deadline - time.monotonic(), 0)
                ready = {key.fd for key, _ in selector.select(left)}
                if not ready:
                    raise UserFunctionTimeout("it took too long")
                chunk = self._received() if self._socket.fileno() in ready else b""
                if not chunk:
                    self.close()
                    code = self._process.returncode
                    raise UserFunctionError(f"its process ended before it, with exit code {code}")
                first, *others = chunk.split(b"\n")
                self._rest.append(first)
                for rest in others:
                    self._lines.append(b"".join(self._rest))
                    self._rest = [rest]
        return self._lines.pop(0)

    def _received(self) -> bytes:
        try:
            return self._socket.recv(BLOCK)
        except ConnectionResetError:  # it ended with a request unread
            return b""
