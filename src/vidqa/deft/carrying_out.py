"""How a stage does its work: a script of this skill in this process, or a job that is waited for.

A script is called with the very words that the loop prints, and gives the result that it would print itself. A job is
submitted by its spec, so that a loop which was killed finds it again.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import ModuleType

from vidqa.contract.cli import SKILL_ROOT, Result, command, note
from vidqa.contract.problem import raise_errors
from vidqa.deft.problems import DEFT_STAGE_MISSING
from vidqa.deft.settings import Where
from vidqa.deft.state import Cost, Fact
from vidqa.jobs import api
from vidqa.jobs.launch import Resources
from vidqa.preflight import launch_gate

READY = launch_gate.of_engine("vidqa")


def script(name: str, *words: object) -> Result:
    """The result of a script. Raises ProblemError with what it found wrong, DEFT_STAGE_MISSING."""
    note(f"$ {command(name, *words)}")
    module = _script(name)
    result: Result = module.main(module.parser.parse_args([str(word) for word in words]))
    raise_errors(result.problems)
    return result


def sets(keys: Mapping[str, object]) -> list[str]:
    """--set words for keys of a spec."""
    texts = {key: value if isinstance(value, str) else json.dumps(value, default=str) for key, value in keys.items()}
    return [word for key, text in texts.items() for word in ("--set", f"{key}={text}")]


@cache
def _script(name: str) -> ModuleType:
    path = SKILL_ROOT / "scripts" / f"{name}.py"
    if not path.is_file():
        raise DEFT_STAGE_MISSING.error(path, "there is no such script")
    found = importlib.util.spec_from_file_location(f"vidqa_script_{name}", path)
    assert found and found.loader  # of a file that is there
    module = importlib.util.module_from_spec(found)
    sys.modules[found.name] = module
    found.loader.exec_module(module)
    return module


def job(action: str, spec_path: Path, where: Where) -> tuple[Path, dict[str, Fact], Cost]:
    """The run folder, facts and cost of the job of a spec, once it is complete: it is started, found running, found
    done, or goes on from where it stopped. Raises what is wrong with it."""
    place = ("--spec", spec_path, "--platform", where.platform)
    note(f"$ {command('launch', action, *place, '--wait')}")
    wanted = Resources(where.nodes, where.gpus, where.image, Path(where.site) if where.site else None, where.agreed)
    handle = api.completed(action, spec_path, where.platform, wanted, ready=READY)
    record = handle.record()
    spent = handle.cost()
    run = Path(record.run_dir)
    return run, {"run_dir": str(run), "job": record.job_id}, Cost(seconds=spent.seconds, gpu_seconds=spent.gpu_seconds)
