"""A user's own reward function, `FILE.py:FUNCTION`, in a process of its own with a time limit for every call."""

from __future__ import annotations

import json
import math
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
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
            answer = self._asked(call, where)
        except ProblemError:
            self.close()
            raise
        if "failed" in answer:
            raise REWARD_FUNCTION.error(where, f"{self.name}: {answer['failed']}")
        value, parts = answer.get("value", math.nan), answer.get("parts", {})
        if not all(isinstance(number, int | float) and math.isfinite(number) for number in (value, *parts.values())):
            raise REWARD_FUNCTION.error(where, f"{self.name} gave {value} {parts or ''}: every number must be finite")
        return value, parts

    def _asked(self, call: dict[str, Any], where: str) -> dict[str, Any]:
        if self.process is None:
            self._start(where)
        with suppress(BrokenPipeError):
            self._calls.write(json.dumps(call).encode() + b"\n")
            self._calls.flush()
        return self._line(where, self.timeout_s)

    def _start(self, where: str) -> None:
        calls_in, calls_out = os.pipe()
        answers_in, answers_out = os.pipe()
        words = [sys.executable, str(CHILD), str(calls_in), str(answers_out), str(self.file), self.function]
        variables = {**environment.foreign_environment(), "PYTHONHASHSEED": "0"}
        self.process = subprocess.Popen(
            words,
            pass_fds=[calls_in, answers_out],
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            env=variables,
            start_new_session=True,
        )
        os.close(calls_in)
        os.close(answers_out)
        self._calls, self._answers, self._read = os.fdopen(calls_out, "wb"), answers_in, b""
        if "failed" in (answer := self._line(where, START_S)):
            raise REWARD_FUNCTION.error(self.file, f"{self.name}: {answer['failed']}")

    def _line(self, where: str, limit_s: float) -> dict[str, Any]:
        """The next line of the process, within `limit_s` seconds."""
        end = time.monotonic() + limit_s
        while b"\n" not in self._read:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise REWARD_TIMEOUT.error(where, f"{self.name} took more than {limit_s:g} s")
            piece = os.read(self._answers, 1 << 16)
            self._read += piece
            if not piece or len(self._read) > MOST_BYTES:
                ended = "its process ended" if not piece else f"it answered with more than {MOST_BYTES} bytes"
                raise REWARD_FUNCTION.error(where, f"{self.name}: {ended}")
        line, _, self._read = self._read.partition(b"\n")
        try:
            answer = json.loads(line)
        except ValueError as broken:
            raise REWARD_FUNCTION.error(where, f"{self.name}: its process wrote {line[:80]!r}") from broken
        return answer if isinstance(answer, dict) else {"failed": f"its process wrote {line[:80]!r}"}

    def close(self) -> None:
        """End the process, and what it started."""
        if self.process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        with suppress(BrokenPipeError):
            self._calls.close()
        os.close(self._answers)
        self.process = None
