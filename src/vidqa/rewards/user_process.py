"""Runs a user's reward function: python user_process.py SOCKET FILE NAME, one JSON message a call in both directions.

Nothing of vidqa is imported: the user's code has a process of its own. What it prints goes to stderr.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any


def loaded(file: Path, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None  # the name ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        raise AttributeError(f"there is no function {name}")
    return function


def failure(error: BaseException) -> dict[str, str]:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return {"failed": f"{type(error).__name__}: {str(error)[:300]} ({last.filename}:{last.lineno})"}


def main() -> int:
    pipe, file, name = Connection(int(sys.argv[1])), sys.argv[2], sys.argv[3]
    os.set_inheritable(pipe.fileno(), False)  # what the user's code starts does not hold it
    sys.path[0] = str(Path(file).parent)

    def send(value: Any) -> None:
        pipe.send_bytes(json.dumps(value).encode())

    try:
        function = loaded(Path(file), name)
    except BaseException as error:  # noqa: BLE001 - also what ends a process: the caller is told
        send(failure(error))
        return 1
    send({"ready": True})
    while True:
        try:
            call = json.loads(pipe.recv_bytes())
        except EOFError:
            return 0
        try:
            value = function(call["text"], SimpleNamespace(**call["record"]), call["token_ids"], call["finish_reason"])
            number, parts = value if isinstance(value, tuple) else (value, {})
            send({"value": float(number), "parts": {str(part): float(share) for part, share in parts.items()}})
        except BaseException as error:  # noqa: BLE001
            send(failure(error))


if __name__ == "__main__":
    sys.exit(main())
