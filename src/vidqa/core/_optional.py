"""Import of optional libraries, with an install command if one is missing, and the problem of unsupported GPUs."""

from __future__ import annotations

import importlib
from types import ModuleType

from vidqa.core.problem import Code, Exit

PACKAGE_MISSING = Code(
    "ENV_PACKAGE_MISSING",
    "A Python package that this step needs is not installed, too old, or incompatible with another one.",
    "Run `make install` in the repository, then use its .venv/bin/python.",
    Exit.ENVIRONMENT,
)

GPU_UNFIT = Code(
    "ENV_GPU_UNFIT",
    "The engine was not compiled for this GPU architecture, or was compiled for a newer CUDA than the driver supports; "
    "or a method needs a GPU and there is none.",
    "Use a GPU that the message names, a newer driver, or an image or torch build for this GPU "
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
