"""Runs a user's function and writes what it yields, one JSON line each: python function_process.py FD FILE NAME [WORD]

With `--each FILE.json` in place of the word, it is called with each item of that list, and what it returns is written.
Nothing of vidqa is imported: the user's code has a process of its own. What it prints goes to stderr.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any


def place_of(error: BaseException, file: Path) -> str:
    """FILE:LINE of the last line of the user's file that led to an error, or else of where it arose."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename) == file]
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    return f"{own[-1].filename}:{own[-1].lineno}" if own else ""


def as_json(value: Any) -> Any:
    """Paths as text, numbers of numpy and torch as such; anything else that JSON does not know is refused."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if getattr(value, "ndim", None) == 0:
        return value.item()
    raise TypeError(f"{type(value).__name__} is no text, number, list or dictionary")


def run(file: Path, name: str, arguments: list[str], write: Callable[[str, Any], None]) -> None:
    """Write the records; raises whatever the user's code raises."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None  # the name ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    if not callable(getattr(module, name, None)):
        raise AttributeError(f"there is no function {name}")
    function = getattr(module, name)
    if arguments[:1] == ["--each"]:
        rows = map(function, json.loads(Path(arguments[1]).read_bytes()))
    else:
        rows = function(*arguments)
    for row in rows:
        write("row", row)


def main() -> int:
    descriptor, file, name, *arguments = sys.argv[1:]
    sys.path[0] = str(Path(file).parent)
    random.seed(0)
    out = int(descriptor)
    # What the user's code starts does not hold the pipe open, nor write there what was written once.
    os.set_inheritable(out, False)
    os.register_at_fork(after_in_child=lambda: os.close(out))

    def write(kind: str, value: Any) -> None:
        left = memoryview(json.dumps([kind, value], default=as_json, allow_nan=False).encode() + b"\n")
        while left:
            left = left[os.write(out, left) :]

    try:
        run(Path(file), name, arguments, write)
    except BaseException as error:  # noqa: BLE001 - also what ends a process: the function ends, not the check
        message = f"{type(error).__name__}: {str(error)[:300]}"
        write("failed", {"where": place_of(error, Path(file)), "message": message})
        return 1
    write("end", None)
    return 0


if __name__ == "__main__":
    sys.exit(main())
