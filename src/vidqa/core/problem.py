"""Problems: what is wrong, where, and how to fix it.

Every kind of error in input or on a machine has a `Code`, declared once in the `problems.py` of its package. A code
creates `Problem`s; a `ProblemError` carries one or more of them to the script, which prints them and exits with the
exit code of the first error.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from enum import IntEnum

from vidqa.core.environment import redacted

MOST_PROBLEMS = 50  # shown at once


class Exit(IntEnum):
    """Exit codes, the same for every script and for the engine."""

    OK = 0
    INTERNAL = 1
    USAGE = 2
    INPUT = 3  # spec or data is wrong
    ENVIRONMENT = 4  # environment is not ready
    JOB_FAILED = 5
    NOT_DONE = 6  # still running, timed out, or stopped and resumable
    REFUSED = 7  # refused without --yes
    INTERRUPTED = 130  # as in a shell


@dataclass(frozen=True)
class Problem:
    """One error or warning: `where` is a location (file, index, key), `remedy` says how to fix it."""

    code: str
    where: str
    message: str
    remedy: str
    exit_code: int = Exit.INPUT
    severity: str = "error"  # error | warning

    def as_dict(self) -> dict[str, object]:
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.severity} {self.code} at {self.where}\n  {self.message}\n  fix: {self.remedy}"


@dataclass(frozen=True)
class Code:
    """A kind of problem. `meaning` and `remedy` are the general text in references/troubleshooting.md."""

    name: str
    meaning: str
    remedy: str
    exit_code: Exit = Exit.INPUT

    def __post_init__(self) -> None:
        other = REGISTRY.setdefault(self.name, self)
        if other != self:
            raise ValueError(f"problem code {self.name} is declared twice with different texts")

    def at(self, where: object, message: str, remedy: str | None = None, *, severity: str = "error") -> Problem:
        """Create a problem of this kind at one location; the default remedy is the general one."""
        where, message, remedy = map(_writable, (str(where) or "''", message, remedy or self.remedy))
        return Problem(self.name, where, message, remedy, int(self.exit_code), severity)

    def error(self, where: object, message: str, remedy: str | None = None) -> ProblemError:
        return ProblemError([self.at(where, message, remedy)])


def _writable(text: str) -> str:
    """The text without secrets, and with lone surrogates (valid in JSON, but not in a file) written as \\udXXX."""
    text = redacted(text)
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def control_characters(text: str) -> str:
    """The control characters of a text, escaped ("\\n, \\x1b"); empty if it has none."""
    controls = (repr(character)[1:-1] for character in text if unicodedata.category(character) == "Cc")
    return ", ".join(dict.fromkeys(controls))


REGISTRY: dict[str, Code] = {}

INTERNAL = Code(
    "INTERNAL",
    "The program itself failed; your input may be fine.",
    "Report it with the log file that the message names.",
    Exit.INTERNAL,
)
JOB_FAILED = Code(
    "JOB_FAILED",
    "A job, or a process started by a script or a job, failed, or its machine or platform terminated it.",
    "Read its log: python scripts/jobs.py logs JOB. Resume a terminated job from its newest checkpoint: python "
    "scripts/jobs.py retry JOB",
    Exit.JOB_FAILED,
)


class ProblemError(Exception):
    """One or more problems that stop the program."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(map(str, self.problems)))

    @property
    def exit_code(self) -> int:
        return exit_code_of(self.problems)


def exit_code_of(problems: Iterable[Problem]) -> int:
    """The exit code for a list of problems: 0 without errors, else the first error's."""
    return next((p.exit_code for p in problems if p.severity == "error"), int(Exit.OK))


def raise_errors(problems: Iterable[Problem]) -> None:
    """Raise ProblemError if any of the problems is an error; warnings alone pass."""
    all_problems = list(problems)
    if any(p.severity == "error" for p in all_problems):
        raise ProblemError(all_problems)


def bounded(problems: Sequence[Problem]) -> list[Problem]:
    """The problems, errors before warnings; of more than MOST_PROBLEMS the first ones, and one with the count."""
    ordered = sorted(problems, key=lambda problem: problem.severity != "error")
    rest = ordered[MOST_PROBLEMS:]
    if not rest:
        return ordered
    message = f"{len(rest)} more problems, the first of them {rest[0].code} at {rest[0].where}"
    more = replace(rest[0], where="...", message=message, remedy="Correct those above first.")
    return [*ordered[:MOST_PROBLEMS], more]
