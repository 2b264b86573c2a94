"""Shared by all packages: problems, files, environment variables, run folders, the command line.

An interrupt outside of `cli.run`, as while a script imports its libraries, is one line and the exit code of a shell.
"""

import sys
from types import TracebackType


def _excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    sys.__excepthook__(kind, error, trace)


sys.excepthook = _excepthook
