"""A user's own function, NAME of FILE.py, in a process of its own: called once or several times, or iterated over.

    with UserFunction(file, "score", limit_s=60) as function:
        value = function.call([{"id": "a"}], limit_s=10)

Arguments and values are passed as JSON. The function cannot change this process; its child processes end with it, and
forked ones cannot delay the end.
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
BLOCK = 1 << 16  # bytes per read


def is_number(value: Any) -> bool:
    """Whether a function's return value is a number within the range of a float."""
    return isinstance(value, int | float) and abs(value) <= sys.float_info.max


class UserFunctionError(Exception):
    """An error in a user's function. `where` is FILE:LINE of the user's code, or empty."""

    def __init__(self, message: str, where: str = "") -> None:
        super().__init__(message)
        self.message, self.where = message, where


class UserFunctionTimeout(UserFunctionError):
    """The function exceeded its time limit."""


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
            # Orders that depend on hash seeds, such as that of a set, are the same in every process.
            env={**environment.foreign_environment(), "PYTHONHASHSEED": "0"},
            start_new_session=True,
        )
        theirs.close()
        self._ended = os.pidfd_open(self._process.pid)
        self._count = -1  # number of messages after "ready"
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
        """Call the function. Dictionaries at the positions `objects` of `arguments` are passed as objects with
        attributes. Raises UserFunctionError; after a UserFunctionTimeout the process is unusable."""
        self._request({"arguments": list(arguments), "objects": list(objects)})
        return self._message("value", limit_s=limit_s)[1]

    def rows(self, arguments: Sequence[Any]) -> Iterator[Any]:
        """Yield the function's values until it ends. Raises UserFunctionError."""
        self._request({"arguments": list(arguments), "iterate": True})
        while (message := self._message("value", "end"))[0] != "end":
            yield message[1]

    def close(self) -> None:
        """End the process and its children."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._socket.close()
        if self._ended >= 0:
            os.close(self._ended)
            self._ended = -1

    def _request(self, request: dict[str, Any]) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # the process has ended, which reading reports
            self._socket.sendall(json.dumps(request).encode() + b"\n")

    def _message(self, *kinds: str, limit_s: float | None = None) -> tuple[str, Any]:
        """Read the next message, which must be of one of these kinds."""
        line = self._line(limit_s)
        self._count += 1
        try:
            match json.loads(line):
                case ["failed", {"where": str(where), "message": str(message)}]:
                    raise UserFunctionError(message, where)
                case [str(kind), value] if kind in kinds and (kind == "value" or value is None):
                    return kind, value
        except (ValueError, RecursionError):
            pass
        message = f"message {self._count} of its process is not from this program: {line[:80]!r}"
        raise UserFunctionError(message)

    def _line(self, limit_s: float | None) -> bytes:
        """Read the next line of the process. Also waits for the process to end, because its forked children may hold
        the socket open longer."""
        deadline = None if limit_s is None else time.monotonic() + limit_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            selector.register(self._ended, selectors.EVENT_READ)
            while not self._lines:
                left = None if deadline is None else max(deadline - time.monotonic(), 0)
                ready = {key.fd for key, _ in selector.select(left)}
                if not ready:
                    work = "importing it" if self._count < 0 else "it"
                    raise UserFunctionTimeout(f"{work} took more than {limit_s:g} s")
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
        except ConnectionResetError:  # the process ended with an unread request
            return b""
