"""What was measured, when, on what and with which command: results/<program>.json, and tables for people."""

from __future__ import annotations

import json
import platform
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"
PACKAGES = ("torch", "transformers", "accelerate", "peft", "av")


class Ledger:
    """The rows of one call of a benchmark, added to the file of all its calls as soon as they are known."""

    def __init__(self, program: str, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{program}.json"
        self.earlier = json.loads(self.path.read_text()) if self.path.exists() else []
        self.call: dict[str, Any] = {
            "when": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
            "command": shlex.join(["python", f"benchmarks/{program}.py", *sys.argv[1:]]),
            "machine": machine(),
            "versions": {"python": platform.python_version(), **versions()},
            "rows": [],
        }

    def add(self, row: Mapping[str, Any]) -> None:
        self.call["rows"].append(rounded(row))
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


def versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def machine() -> str:
    """The GPUs, or the processor where there are none."""
    if program := shutil.which("nvidia-smi"):
        asked = [program, "--query-gpu=name", "--format=csv,noheader"]
        names = subprocess.run(asked, capture_output=True, text=True).stdout.split("\n")
        if names := [name.strip() for name in names if name.strip()]:
            return f"{len(names)} x {names[0]}"
    model = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return f"{len(model)} x {model[0].split(':')[1].strip()}" if model else platform.processor()


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Columns in the order of the rows' keys; numbers to the right."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
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
