"""A user's own reward function, `FILE.py:FUNCTION`, in a process of its own with a time limit for every call."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from contextlib import suppress
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

from vidqa.contract import environment
from vidqa.contract.problem import ProblemError
from vidqa.rewards.builtin import Completion
from vidqa.rewards.problems import REWARD_FUNCTION, REWARD_TIMEOUT

CHILD = Path(__file__).with_name("user_process.py")
START_S = 60.0  # to import what the function needs
MOST_BYTES = 1 << 20  # of one answer


class UserReward:
    """`name` is FILE.py:FUNCTION. The process is started at the first call, and again after one that took too long."""

    def __init__(self, name: str, timeout_s: float) -> None:
        file, _, self.function = name.rpartition(":")
        self.name, self.file, self.timeout_s = name, Path(os.path.abspath(os.path.expanduser(file))), timeout_s
        self.process: subprocess.Popen[bytes] | None = None
        if not self.file.is_file():
            raise REWARD_FUNCTION.error(self.file, "there is no such Python file")

    def __call__(self, completion: Completion) -> tuple[float, dict[str, float]]:
        """The reward and its parts. Raises REWARD_FUNCTION, REWARD_TIMEOUT, naming the record."""
        record = completion.record
        call = {
            "text": completion.text,
            "record": {
                "id": record.id,
                "question": record.question,
                "answer": record.answer,
                "kind": record.kind,
                "media": [medium.path for medium in record.media],
            },
            "token_ids": list(completion.token_ids),
            "finish_reason": completion.finish_reason,
        }
        where = f"{record.source} (id {record.id})"
        try:
            if self.process is None:
                self._start(where)
            with suppress(BrokenPipeError, ConnectionResetError):
                self._pipe.send_bytes(json.dumps(call).encode())
            answer = self._answer(where, self.timeout_s)
        except ProblemError:
            self.close()
            raise
        if "failed" in answer:
            raise REWARD_FUNCTION.error(where, f"{self.name}: {answer['failed']}")
        value, parts = answer.get("value", math.nan), answer.get("parts", {})
        if not all(isinstance(number, int | float) and math.isfinite(number) for number in (value, *parts.values())):
            raise REWARD_FUNCTION.error(where, f"{self.name} gave {value} {parts or ''}: every number must be finite")
        return value, parts

    def _start(self, where: str) -> None:
        self._pipe, theirs = Pipe()
        self.process = subprocess.Popen(
            [sys.executable, str(CHILD), str(theirs.fileno()), str(self.file), self.function],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            env={**environment.foreign_environment(), "PYTHONHASHSEED": "0"},
            start_new_session=True,
        )
        theirs.close()
        if "failed" in (answer := self._answer(where, START_S)):
            raise REWARD_FUNCTION.error(self.file, f"{self.name}: {answer['failed']}")

    def _answer(self, where: str, limit_s: float) -> dict[str, Any]:
        """What the process sends next, within `limit_s` seconds."""
        if not self._pipe.poll(limit_s):
            raise REWARD_TIMEOUT.error(where, f"{self.name} took more than {limit_s:g} s")
        try:
            answer: dict[str, Any] = json.loads(self._pipe.recv_bytes(MOST_BYTES))
        except (EOFError, OSError, ValueError) as broken:
            ended = f"its process ended, or answered with more than {MOST_BYTES} bytes"
            raise REWARD_FUNCTION.error(where, f"{self.name}: {ended}") from broken
        return answer

    def close(self) -> None:
        """End the process, and what it started."""
        if self.process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._pipe.close()
        self.process = None
