"""Options and result files of benchmarks: rows, time, machine and command of every call in results/<program>.json."""

from __future__ import annotations

import argparse
import json
import platform
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "src")]

from vidqa.core.versions import versions

RESULTS = Path(__file__).resolve().parent / "results"


def arguments(doc: str | None, *, gpus: int | None = None, timeout: float = 240) -> argparse.ArgumentParser:
    """The options of every program, and with `gpus` (their default number) those of programs that train."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0] if doc else None)
    parser.add_argument("--out", type=Path, required=True, help="models, clips, runs and logs, found again later")
    parser.add_argument("--results", type=Path, help="folder of the result file; benchmarks/results unless --tiny")
    parser.add_argument("--tiny", action="store_true", help="a rehearsal in small, without GPUs too")
    if gpus:
        parser.add_argument("--gpus", type=int, default=gpus, help="processes, where there are no GPUs")
        parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a key of our own specs")
        parser.add_argument("--timeout", type=float, default=timeout, help="seconds that one training may take")
    return parser


class Ledger:
    """The rows of one call of a program, added to the file of all its calls as soon as they are known."""

    def __init__(self, program: str, options: argparse.Namespace, *, go_on: bool = False) -> None:
        """With `go_on`, continue the last call and its rows if it ran on the same machine with the same libraries."""
        folder = options.results or (options.out / "results" if options.tiny else RESULTS)
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{program}.json"
        self.earlier = json.loads(self.path.read_text()) if self.path.exists() else []
        place = {"machine": machine(), "versions": {"python": platform.python_version(), **versions()}}
        self.call: dict[str, Any] = {
            "when": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
            "command": shlex.join(["python", f"benchmarks/{program}.py", *sys.argv[1:]]),
            "commit": commit(),
            **place,
            "rows": [],
        }
        if go_on and self.earlier and {key: self.earlier[-1][key] for key in place} == place:
            begun = self.earlier.pop()
            commits = begun["commit"], self.call["commit"]
            self.call = {**begun, "commit": ", ".join(dict.fromkeys(map(str, commits)))}

    @property
    def rows(self) -> list[dict[str, Any]]:
        return self.call["rows"]

    def add(self, row: Mapping[str, Any]) -> None:
        self.rows.append(rounded(row))
        self._write()

    def conclude(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Store a summary of the rows."""
        self.call["told"] = rounded(lines)
        self._write()

    def _write(self) -> None:
        unfinished = self.path.with_suffix(".json.new")
        unfinished.write_text(json.dumps([*self.earlier, self.call], indent=1) + "\n")
        unfinished.replace(self.path)


def rounded(value: Any) -> Any:
    """The same with four significant digits, or whole numbers from a thousand on: more was not measured."""
    if isinstance(value, Mapping):
        return {key: rounded(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(inner) for inner in value]
    return (round(value) if abs(value) >= 1000 else float(f"{value:.4g}")) if isinstance(value, float) else value


def commit() -> str | None:
    """The commit of this code, with "-dirty" if files were changed since; None in a copy without its history."""
    if not (git := shutil.which("git")):
        return None
    command = [git, "-C", str(RESULTS.parent), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip() or None


def machine() -> str:
    """The GPUs with their memory and driver, or the processor without GPUs."""
    if program := shutil.which("nvidia-smi"):
        command = [program, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
        lines = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
        if gpus := [line.strip() for line in lines if line.strip()]:
            return f"{len(gpus)} x {gpus[0]}"
    model = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return f"{len(model)} x {model[0].split(':')[1].strip()}" if model else platform.processor()


def table(rows: Sequence[Mapping[str, Any]], without: Sequence[str] = ("failed",)) -> str:
    """A text table with columns in the order of the rows' keys; numbers to the right."""
    keys = [key for key in dict.fromkeys(key for row in rows for key in row) if key not in without]
    lines = [keys, *([shown(row.get(key)) for key in keys] for row in rows)]
    columns = []
    for cells in zip(*lines, strict=True):
        width = max(map(len, cells))
        columns.append([cell.rjust(width) if columns else cell.ljust(width) for cell in cells])
    return "\n".join("  ".join(line) for line in zip(*columns, strict=True))


def shown(value: Any) -> str:
    value = rounded(value)
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
