"""Import of optional libraries, with an install command if one is missing, and the problem of unsupported GPUs."""

from __future__ import annotations

import importlib
from types import ModuleType

from vidqa.core.problem import Code, Exit

PACKAGE_MISSING = Code(
    "ENV_PACKAGE_MISSING",
    "A Python package that this step needs is not installed, too old, or does not fit another one.",
    "Run `make install` in the repository, then use its .venv/bin/python.",
    Exit.ENVIRONMENT,
)

GPU_UNFIT = Code(
    "ENV_GPU_UNFIT",
    "The engine was not compiled for this architecture of GPU, or for a newer CUDA than its driver runs; or there is "
    "no GPU, and a method needs one.",
    "Use a GPU that it names, a newer driver, or an image or torch that was compiled for yours "
    "(https://pytorch.org/get-started).",
    Exit.ENVIRONMENT,
)


def require(module: str, extra: str) -> ModuleType:
    """Import `module`, or fail with the extra of this project that installs it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as missing:
        message = f"the package {missing.name!r} is not installed"
        raise PACKAGE_MISSING.error(module, message, installing(extra)) from missing


def installing(extra: str) -> str:
    """The command that installs an extra of this project."""
    return f"in the repository: pip install -e '.[{extra}]'"
