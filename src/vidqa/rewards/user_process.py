"""Runs a user's reward function: python user_process.py IN OUT FILE NAME, one JSON line a call in both directions.

Nothing of vidqa is imported: the user's code has a process of its own. What it prints goes to stderr.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import traceback
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
    reading, writing, file, name = sys.argv[1:]
    sys.path[0] = str(Path(file).parent)
    for descriptor in (int(reading), int(writing)):
        os.set_inheritable(descriptor, False)  # what the user's code starts does not hold them
    with open(int(reading), encoding="utf-8") as calls, open(int(writing), "w", encoding="utf-8") as answers:

        def answer(value: Any) -> None:
            answers.write(json.dumps(value) + "\n")
            answers.flush()

        try:
            function = loaded(Path(file), name)
        except BaseException as error:  # noqa: BLE001 - also what ends a process: the caller is told
            answer(failure(error))
            return 1
        answer({"ready": True})
        for line in calls:
            call = json.loads(line)
            try:
                value = function(
                    call["text"], SimpleNamespace(**call["record"]), call["token_ids"], call["finish_reason"]
                )
                number, parts = value if isinstance(value, tuple) else (value, {})
                parts = {str(part): float(share) for part, share in parts.items()}
                answer({"value": float(number), "parts": parts})
            except BaseException as error:  # noqa: BLE001
                answer(failure(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
