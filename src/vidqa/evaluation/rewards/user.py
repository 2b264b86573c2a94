"""A user's own reward function, `FILE.py:FUNCTION`, with a time limit for every call."""

from __future__ import annotations

import os
from pathlib import Path

from vidqa.core.user_function import UserFunction, UserFunctionError, UserFunctionTimeout
from vidqa.evaluation.problems import METRIC_FUNCTION
from vidqa.evaluation.rewards.builtin import Completion

START_S = 60.0  # to import what the function needs


class UserReward:
    """`name` is FILE.py:FUNCTION. Its process is started at the first call."""

    def __init__(self, name: str, timeout_s: float) -> None:
        file, _, self.function = name.rpartition(":")
        self.name, self.file, self.timeout_s = name, Path(os.path.abspath(os.path.expanduser(file))), timeout_s
        self.process: UserFunction | None = None
        if not self.file.is_file():
            raise METRIC_FUNCTION.error(self.file, "there is no such Python file")

    def __call__(self, completion: Completion) -> tuple[float, dict[str, float]]:
        """The reward and its parts. Raises METRIC_FUNCTION, naming the record."""
        record = completion.record
        fields = {name: getattr(record, name) for name in ("id", "question", "answer", "kind")}
        fields["media"] = [medium.path for medium in record.media]
        arguments = [completion.text, fields, list(completion.token_ids), completion.finish_reason]
        where = f"{record.source} (id {record.id})"
        try:
            self.process = self.process or UserFunction(self.file, self.function, limit_s=START_S)
            value = self.process.call(arguments, limit_s=self.timeout_s, objects=[1])
        except UserFunctionTimeout:
            self.close()
            message = f"{self.name} took more than {self.timeout_s:g} s"
            raise METRIC_FUNCTION.error(where, message) from None
        except UserFunctionError as failed:
            self.close()
            raise METRIC_FUNCTION.error(where, f"{self.name}: {failed.message} {failed.where}".rstrip()) from None
        number, parts = value if isinstance(value, list) and len(value) == 2 else (value, {})
        if not isinstance(parts, dict) or not all(isinstance(one, int | float) for one in (number, *parts.values())):
            raise METRIC_FUNCTION.error(
                where, f"{self.name} gave {value!r}, not a number or (number, table of numbers)"
            )
        return float(number), {part: float(share) for part, share in parts.items()}

    def close(self) -> None:
        """End the process, and what it started."""
        if self.process is not None:
            self.process.close()
        self.process = None
