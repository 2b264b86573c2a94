#!/usr/bin/env python3
"""Gives spoiled documents to every reader: each must end in a success or in problems, soon and without a traceback.

python tests/fuzz/fuzz_readers.py --inputs 200000

An input that fails is kept in --keep, with the traceback beside it; --seed and its number make it again.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1] / "src")]

import av.logging  # noqa: E402
from readers import READERS, World, make_world  # noqa: E402

from vidqa.core.problem import Problem, ProblemError  # noqa: E402

CPU_LIMIT_S = 10.0  # of one input
WALL_LIMIT_S = 300.0  # after which Python itself is stuck: the whole program ends with a traceback
MOST_PROBLEMS = 2000
LONGEST_TEXT = 20_000


class Hang(BaseException):
    """An input that took longer than its limit."""


@dataclass
class Report:
    """How many inputs each reader took, how they ended, and what is wrong with the readers."""

    ended: Counter[tuple[str, str]] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    slowest: tuple[float, str] = (0.0, "")

    def table(self) -> str:
        lines = [f"{'reader':<22}{'success':>9}{'problems':>9}{'failures':>9}"]
        for name in READERS:
            lines.append(
                f"{name:<22}" + "".join(f"{self.ended[name, end]:>9}" for end in ("success", "problems", "failure"))
            )
        return "\n".join([*lines, f"slowest input: {self.slowest[0]:.2f} s, {self.slowest[1]}"])


def fuzz(inputs: int, seed: int, only: list[str], keep: Path | None = None) -> Report:
    """The same inputs for the same seed. What fails is in the report, and in `keep` as files."""
    names = [name for name, reader in READERS.items() if not only or name in only for _ in range(reader.share)]
    report = Report()
    av.logging.set_level(av.logging.PANIC)
    signal.signal(signal.SIGPROF, _hang)
    memory = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        world = make_world(Path(folder))
        for number in range(inputs):
            _one(world, names[number % len(names)], f"{seed}-{number}", report, keep)
    faulthandler.cancel_dump_traceback_later()
    return report


def _one(world: World, name: str, key: str, report: Report, keep: Path | None) -> None:
    file_name, data = READERS[name].make(random.Random(key))
    file = world.fresh() / file_name
    file.write_bytes(data)
    faulthandler.dump_traceback_later(WALL_LIMIT_S, exit=True)
    signal.setitimer(signal.ITIMER_PROF, CPU_LIMIT_S)
    began = time.process_time()
    try:
        end = "success"
        try:
            said = READERS[name].read(world, file)
        except ProblemError as stopped:
            end, said = "problems", stopped.problems
            assert said, "stopped without a problem"
        _check(said)
    except (Exception, Hang) as wrong:  # noqa: BLE001  whatever it is, it is a finding
        end = "failure"
        report.failures.append(f"{name} {key} ({file_name}): {type(wrong).__name__}: {str(wrong)[:200]}")
        if keep:
            _keep(keep / f"{name.replace(' ', '_')}-{key}", file_name, data)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    report.ended[name, end] += 1
    report.slowest = max(report.slowest, (time.process_time() - began, f"{name} {key}"))


def _keep(folder: Path, name: str, data: bytes) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)
    (folder / "traceback.txt").write_text(traceback.format_exc(), errors="replace")


def _check(said: Any) -> None:
    """What a script would print can be printed, and is bounded; a problem says what it must say."""
    problems = [each for each in _flat(said) if isinstance(each, Problem)]
    assert len(problems) <= MOST_PROBLEMS, f"{len(problems)} problems"
    for problem in problems:
        texts = (problem.code, problem.where, problem.message, problem.remedy)
        assert all(isinstance(text, str) and text for text in texts), f"a problem with an empty part: {problem}"
        assert max(map(len, texts)) <= LONGEST_TEXT, f"{problem.code} is {max(map(len, texts))} characters long"
        json.dumps(problem.as_dict(), ensure_ascii=False).encode("utf-8")
        str(problem).encode("utf-8")
    others = [each for each in _flat(said) if not isinstance(each, Problem)]
    json.dumps(others, ensure_ascii=False, default=str).encode("utf-8", "backslashreplace")  # as scripts print


def _flat(said: Any) -> list[Any]:
    return [inner for each in said for inner in _flat(each)] if isinstance(said, (list, tuple)) else [said]


def _hang(*_: Any) -> None:
    raise Hang(f"more than {CPU_LIMIT_S:g} s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append", default=[], choices=list(READERS), help="one reader; may repeat")
    parser.add_argument("--keep", type=Path, default=Path(tempfile.gettempdir()) / "fuzz-findings")
    args = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))  # an input that asks for all memory is a finding too
    shutil.rmtree(args.keep, ignore_errors=True)
    began = time.monotonic()
    report = fuzz(args.inputs, args.seed, args.only, args.keep)
    print(report.table())
    print(f"{args.inputs} inputs, seed {args.seed}, {time.monotonic() - began:.0f} s: {len(report.failures)} failures")
    for failure in report.failures[:40]:
        print(f"  {failure}")
    if report.failures:
        print(f"kept in {args.keep}")
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
