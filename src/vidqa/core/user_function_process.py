"""Run a user's function: python user_function_process.py FD FILE NAME

Reads a JSON line for each request from the socket FD, {"arguments": [...], "objects": [indices], "iterate": bool}, and
writes lines [KIND, VALUE]: "ready" once, then a "value" for a call, or values and an "end" for an iteration, or
"failed". Nothing of vidqa is imported, so that the process is the user's alone. Its stdout goes to stderr.
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
from types import SimpleNamespace
from typing import Any


def place_of(error: BaseException, file: Path) -> str:
    """FILE:LINE of the last line of the user's file in the traceback of an error; empty if there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename) == file]
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    return f"{own[-1].filename}:{own[-1].lineno}" if own else ""


def as_json(value: Any) -> Any:
    """Convert paths to text, and scalars of numpy and torch to numbers; TypeError for other types."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if getattr(value, "ndim", None) == 0:
        return value.item()
    raise TypeError(f"{type(value).__name__} is not a text, number, list or dictionary")


def loaded(file: Path, name: str) -> Callable[..., Any]:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None  # the name ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    if not callable(function := getattr(module, name, None)):
        raise AttributeError(f"there is no function {name}")
    return function


def answer(function: Callable[..., Any], request: dict[str, Any], write: Callable[[str, Any], None]) -> None:
    """Write the values for a request; raises the exceptions of the user's code."""
    arguments, objects = request["arguments"], request.get("objects", ())
    value = function(*(SimpleNamespace(**a) if place in objects else a for place, a in enumerate(arguments)))
    for row in value if request.get("iterate") else [value]:
        write("value", row)
    if request.get("iterate"):
        write("end", None)


def main() -> int:
    descriptor, file, name = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    sys.path[0] = str(file.parent)
    random.seed(0)
    # Children of the user's code neither hold the socket open nor write to it again.
    os.set_inheritable(descriptor, False)
    os.register_at_fork(after_in_child=lambda: os.close(descriptor))

    def write(kind: str, value: Any) -> None:
        try:
            line = json.dumps([kind, value], default=as_json, allow_nan=False)
        except ValueError as not_finite:
            raise ValueError(f"{not_finite}: {str(value)[:100]}") from None
        left = memoryview(line.encode() + b"\n")
        while left:
            left = left[os.write(descriptor, left) :]

    try:
        function = loaded(file, name)
        write("ready", None)
        with open(descriptor, "rb", closefd=False) as requests:
            for line in requests:
                answer(function, json.loads(line), write)
    except BaseException as error:  # noqa: BLE001 - also SystemExit and the like: the caller gets them
        message = f"{type(error).__name__}: {str(error)[:300]}"
        write("failed", {"where": place_of(error, file), "message": message})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
