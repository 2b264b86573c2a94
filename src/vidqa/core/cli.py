"""The interface of every script: options, one result, problems, next commands, exit codes.

    parser = Parser("Check a spec before any GPU starts.", examples=["python scripts/preflight.py --spec spec.toml"])
    parser.add_argument("--spec", required=True)
    if __name__ == "__main__":
        sys.exit(run(parser, main))          # main(args) -> Result

With --json exactly one object goes to stdout; progress and logs always go to stderr.
"""

from __future__ import annotations

import argparse
import errno
import io
import json
import math
import os
import re
import shlex
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

from vidqa.core._optional import PACKAGE_MISSING
from vidqa.core.environment import redacted
from vidqa.core.problem import INTERNAL, Code, Exit, Problem, ProblemError, exit_code_of

SCHEMA = "vidqa.result.v1"
SKILL_ROOT = Path(__file__).resolve().parents[3]  # the folder that holds SKILL.md and scripts/
EXIT_CODES = """exit codes:
  0 ok, 1 internal error, 2 usage, 3 spec or data wrong, 4 environment not ready,
  5 job failed, 6 still running or stopped, 7 refused without --yes, 130 interrupted"""

USAGE = Code(
    "USAGE",
    "The command line is invalid: an option or setting is missing or unknown, or has a value that is invalid or does "
    "not fit the data or the other options.",
    "Correct it as the message says; --help shows an example.",
    Exit.USAGE,
)
FILE_REFUSED = Code(
    "ENV_FILE_REFUSED",
    "The system denied reading, writing or locking a file: its folder is read-only, its disk is full or does not "
    "support locks, its name is too long or leads through a file, or its bucket denies access.",
    "Free space, grant this user access to the folder, or choose another one; for s3://, check the credentials and "
    "AWS_ENDPOINT_URL. Then run the same command again.",
    Exit.ENVIRONMENT,
)
LINE_EVERY_S = 15.0  # between lines of progress
REFUSED_BY_SYSTEM = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT),
    *(errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP),  # impossible file names
)
INTERRUPTED = Code(
    "INTERRUPTED",
    "The script was interrupted from the keyboard.",
    "Run it again. A job that it started continues: python scripts/jobs.py status",
    Exit.INTERRUPTED,
)
NOT_AGREED = Code(
    "NOT_AGREED",
    "The user's consent is missing: the job would run in the image that config.json records, or fail again for the "
    "same reason, or weights would go to a public repository.",
    "Ask the user. Check the image, or choose one with --image; fix what made the job fail. --yes launches it anyway.",
    Exit.REFUSED,
)

# A command or file of ours in a remedy.
_OURS = re.compile(r"(?<![\w/.-])(?:python scripts/(\w+)\.py|docker/build\.sh|references/\w+\.\w+)")
# Characters that a terminal interprets instead of displaying: control characters and changes of text direction.
_TERMINAL_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@dataclass
class Result:
    """The result of a script. `text` is printed for people; `data` is the content of --json. `coloured`: the text has
    colours, and its parts that come from data are `printable` already."""

    data: dict[str, Any] = field(default_factory=dict)
    text: str = ""
    problems: list[Problem] = field(default_factory=list)
    next: list[str] = field(default_factory=list)
    exit_code: int | None = None  # None: decided by the problems
    coloured: bool = False

    @property
    def code(self) -> int:
        return exit_code_of(self.problems) if self.exit_code is None else self.exit_code

    def as_dict(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "ok": self.code == Exit.OK,
            "data": self.data,
            "problems": [p.as_dict() for p in self.problems],
            "next": self.next,
        }


class Parser(argparse.ArgumentParser):
    """argparse with this project's help layout; usage errors become a problem instead of an exit."""

    def __init__(self, description: str, examples: Sequence[str] = ()) -> None:
        shown = "".join(f"  {example}\n" for example in examples)
        super().__init__(
            description=description,
            epilog=f"examples:\n{shown}\n{EXIT_CODES}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self.add_argument("--json", action="store_true", help="print one JSON object on stdout")

    def error(self, message: str) -> NoReturn:
        raise USAGE.error(self.prog, message, shlex.join([sys.executable, sys.argv[0], "--help"]))

    def refuse_unused(self, options: argparse.Namespace, used: Collection[str], what: str) -> None:
        """Raise USAGE for an option that differs from its default and that `what` does not use, since it would be
        silently ignored. `used` are the names of all used options, as in `options`."""
        changed = {name for name, value in vars(options).items() if value != self.get_default(name)}
        if unused := sorted(changed - {"json", *used}):
            self.error(f"{what} takes no --{unused[0].replace('_', '-')}")


def number(
    kind: type[int] | type[float], least: float = -math.inf, most: float = math.inf, *, above: float = -math.inf
) -> Callable[[str], float]:
    """The type of an option: a finite number from `least` to `most`, and greater than `above`."""
    bounds = [f"at least {least:g}"] if least > -math.inf else []
    bounds += [f"above {above:g}"] if above > -math.inf else []
    bounds += [f"at most {most:g}"] if most < math.inf else []
    allowed = " ".join(["a whole number" if kind is int else "a number", " and ".join(bounds)]).rstrip()

    def parse(text: str) -> float:
        try:
            value = kind(text)
            is_fit = math.isfinite(value) and least <= value <= most and value > above
        except (ValueError, OverflowError):
            is_fit = False
        if not is_fit:
            raise argparse.ArgumentTypeError(f"{text!r} is not {allowed}")
        return value

    return parse


def chosen(options: argparse.Namespace) -> dict[str, Any]:
    """The values of a script's own options, by name."""
    return {name: value for name, value in vars(options).items() if name != "json"}


def run(parser: Parser, main: Callable[[argparse.Namespace], Result], argv: Sequence[str] | None = None) -> int:
    """Parse, run, print one result, return the exit code. Exceptions never reach the user as a traceback."""
    words = list(sys.argv[1:] if argv is None else argv)
    as_json = "--json" in words
    try:
        result = main(parser.parse_args(words))
    except ProblemError as stopped:
        result = Result(problems=stopped.problems)
    except ModuleNotFoundError as missing:
        result = Result(problems=[PACKAGE_MISSING.at(missing.name, f"the package {missing.name!r} is not installed")])
    except KeyboardInterrupt:
        result = Result(problems=[INTERRUPTED.at(parser.prog, "interrupted")])
    except Exception as bug:  # noqa: BLE001  the one place where a bug becomes a problem with a log file
        result = Result(problems=[_refused_by_system(parser.prog, bug) or _internal(parser.prog, bug)])
    for stream in (sys.stdout, sys.stderr):  # names in user files may hold characters that the terminal cannot encode
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        print_result(result, as_json)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, for example `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return result.code


@contextmanager
def refused_writes(where: object, remedy: str | None = None) -> Iterator[None]:
    """Turn an OSError of a write inside the block into the problem ENV_FILE_REFUSED at `where`."""
    try:
        yield
    except OSError as failed:
        raise FILE_REFUSED.error(where, f"it cannot be written: {failed}", remedy) from failed


def _refused_by_system(prog: str, error: Exception) -> Problem | None:
    """The problem of a file that the system refuses to write or read, or of a full disk; None for other errors."""
    if isinstance(error, FileNotFoundError) and not error.filename:
        return FILE_REFUSED.at("the working folder", "it was deleted", "change to a folder that exists")
    if not isinstance(error, OSError) or error.errno not in REFUSED_BY_SYSTEM:
        return None
    return FILE_REFUSED.at(error.filename or prog, error.strerror or str(error))


def _internal(prog: str, bug: Exception) -> Problem:
    with tempfile.NamedTemporaryFile("w", prefix="vidqa-", suffix=".log", delete=False, encoding="utf-8") as log:
        trace = redacted("".join(traceback.format_exception(bug)))
        log.write(trace.encode("utf-8", "backslashreplace").decode())
    return INTERNAL.at(prog, f"{type(bug).__name__}: {bug}", f"report it with {log.name}")


def print_result(result: Result, as_json: bool) -> None:
    """Print the result on stdout and its problems on stderr; with `as_json` all of it as one object on stdout. Commands
    and files in remedies become those of the current folder."""
    result = replace(result, problems=[replace(p, remedy=_OURS.sub(_from_here, p.remedy)) for p in result.problems])
    if as_json:
        written = redacted(json.dumps(result.as_dict(), indent=2, ensure_ascii=False, default=str))
        # These characters occur only inside strings, where JSON allows \u escapes.
        print(_TERMINAL_CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", written))
        return
    if result.text:
        print(redacted(result.text) if result.coloured else _safe_text(result.text))
    for problem in result.problems:
        print(_safe_text(str(problem)), file=sys.stderr)
    if result.next:
        print("next:", *(f"  {_safe_text(command)}" for command in result.next), sep="\n")


def size_text(size: int) -> str:
    """Format a size in bytes as GB, below one GB as MB."""
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.2f} MB"


def duration_text(seconds: float) -> str:
    """Format a duration, for example "2 h 5 min", "3 min" or "12 s"."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"


def note(message: str) -> None:
    """Print progress for people on stderr; stdout is reserved for the result."""
    print(_safe_text(message), file=sys.stderr, flush=True)


@contextmanager
def counting(what: str, total: int) -> Iterator[Callable[[], None]]:
    """Report progress over many files on stderr, as a line now and then. Yields a function to be called once for each
    of the `total` items."""
    start = last = time.monotonic()
    done = 0

    def advance() -> None:
        nonlocal done, last
        done += 1
        now = time.monotonic()
        if now - last >= LINE_EVERY_S:
            last = now
            note(f"{what}: {done} of {total}, about {(now - start) / done * (total - done):.0f} s left")

    yield advance


def printable(text: str) -> str:
    """Escape all terminal control characters (\\x1b): names, answers and logs come from third parties, and may move the
    cursor, hide a line or set the title. Line breaks and tabs stay."""
    return _TERMINAL_CONTROLS.sub(lambda match: ascii(match[0])[1:-1], text.replace("\r\n", "\n"))


def _safe_text(text: str) -> str:
    return printable(redacted(text))


def command(script: str, *words: object) -> str:
    """A shell command that runs one of our scripts from the current folder with the current Python."""
    return shlex.join([sys.executable, _path(f"scripts/{script}.py"), *map(str, words)])


def _from_here(ours: re.Match[str]) -> str:
    return command(ours[1]) if ours[1] else shlex.quote(_path(ours[0]))


def _path(name: str) -> str:
    """The path of a file of this repository, relative to the current folder if that is the repository."""
    path = SKILL_ROOT / name
    return name if os.path.exists(name) and os.path.samefile(name, path) else str(path)
