"""Scripts and other programs that are no modules, loaded as one: script = program(SKILL_ROOT / "scripts/jobs.py")."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType


def program(path: Path) -> ModuleType:
    """The program, not run; where it looks for its imports is forgotten."""
    spec = spec_from_file_location(f"program_{path.stem}", path)
    assert spec and spec.loader
    module, before = module_from_spec(spec), list(sys.path)
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path[:] = before
    return module
