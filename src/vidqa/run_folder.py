"""What a run leaves on disk: its status, metrics, problems and facts, and the names of its folders."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vidqa import __version__
from vidqa.files import is_writable, write_json, write_text
from vidqa.problem import Problem

UNFINISHED = ".unfinished-"  # before the name of a folder that is being written or removed
_STATUS = {
    "state": str,
    "step": int,
    "total_steps": int,
    "eta_s": float,
    "message": str,
    "exit_code": int,
    "updated": str,
}
MOST_SECONDS = 1e12
_NUMBERED = re.compile(r"(step|epoch)_(\d+)")


class RunFolder:
    """One run's folder. Only rank 0 of a run writes through it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.exports = path / "safetensors"

    def write_status(
        self,
        state: str,
        *,
        step: int = 0,
        total_steps: int = 0,
        eta_s: float | None = None,
        message: str = "",
        exit_code: int | None = None,
    ) -> None:
        """Atomic. `state` is PENDING, RUNNING, COMPLETE, ERROR, CANCELED or STOPPED."""
        status = {
            "state": state,
            "step": step,
            "total_steps": total_steps,
            "eta_s": eta_s,
            "message": message,
            "exit_code": exit_code,
            "updated": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        write_json(self.path / "status.json", status)

    def read_status(self) -> dict[str, Any]:
        """The last status, without values that are not of their kind; empty when there is none yet."""
        found = _object_in(self.path / "status.json")
        return {name: found[name] for name, kind in _STATUS.items() if _is(found.get(name), kind)}

    def write_problems(self, problems: Sequence[Problem]) -> None:
        write_json(self.path / "problems.json", [problem.as_dict() for problem in problems])

    def read_problems(self) -> list[Problem]:
        """The problems that stopped the run; none where there is no such file, or one that something else wrote."""
        try:
            found = json.loads((self.path / "problems.json").read_text(encoding="utf-8"))
            problems = [Problem(**fields) for fields in found]
        except (OSError, ValueError, TypeError, RecursionError):
            return []
        texts = [(each.code, each.where, each.message, each.remedy) for each in problems]
        sound = all(isinstance(text, str) and text for each in texts for text in each)
        numbered = all(_is(each.exit_code, int) for each in problems)
        return problems if sound and numbered and is_writable(found) else []

    def write_quarantine(self, problems: Sequence[Problem]) -> None:
        """Samples that were left out because they turned out to be broken while the run went on."""
        write_json(self.path / "quarantine.json", [problem.as_dict() for problem in problems])

    def log_metrics(self, step: int, values: dict[str, float], at: float) -> None:
        """Append one event to metrics.jsonl; `at` is when it happened, in seconds since 1970."""
        line = json.dumps({"step": step, "time": round(at, 3), **values})
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def forget_metrics_after(self, step: int) -> None:
        """Drop events later than `step`: a resumed run takes those steps again."""
        path = self.path / "metrics.jsonl"
        if not path.exists():
            return
        kept = [event for event in read_metrics(path) if event["step"] <= step]
        write_text(path, "".join(json.dumps(event) + "\n" for event in kept))

    def complete(self, folder: Path, facts: str) -> list[Path]:
        """The folders step_N and epoch_N below `folder` that hold the JSON file `facts`, by the step it names."""
        found = {p: _step_of(p / facts) for p in folder.glob("*_*") if _NUMBERED.fullmatch(p.name)}
        return sorted((p for p, step in found.items() if step >= 0), key=lambda p: found[p])

    def prune(self, folder: Path, facts: str, keep: int, also: set[str]) -> None:
        """Remove all complete folders but the newest `keep` (-1: all stay) and those named in `also`."""
        for old in self.complete(folder, facts)[: -max(keep, 1)] if keep >= 0 else []:
            if old.name not in also:
                doomed = old.with_name(f"{UNFINISHED}{old.name}")  # never half a folder under a published name
                old.rename(doomed)
                shutil.rmtree(doomed, ignore_errors=True)

    def begin(self, folder: Path, name: str) -> Path:
        """An empty folder below `folder` in which `name` is made before it is published."""
        fresh = folder / f"{UNFINISHED}{name}"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        return fresh

    def publish(self, unfinished: Path) -> Path:
        """Give what `begin` started its name, in place of an older one of that name."""
        published = unfinished.with_name(unfinished.name.removeprefix(UNFINISHED))
        older = unfinished.with_name(f"{UNFINISHED}older-{published.name}")
        if published.exists():
            published.rename(older)  # removing it takes long, and a kill must not find neither of the two
        unfinished.rename(published)
        shutil.rmtree(older, ignore_errors=True)
        return published

    def sweep(self) -> None:
        """Remove what a killed or failed save left behind."""
        for folder in (self.checkpoints, self.exports):
            for left in folder.glob(f"{UNFINISHED}*"):
                shutil.rmtree(left, ignore_errors=True)

    def update_run(self, **facts: Any) -> None:
        """Add facts to run.json, which the launcher started."""
        path = self.path / "run.json"
        write_json(path, {"schema_version": 1, "vidqa_version": __version__, **_object_in(path), **facts})


def _step_of(path: Path) -> int:
    """The step that a facts file names; -1 where there is none."""
    try:
        return int(json.loads(path.read_text(encoding="utf-8"))["step"])
    except (OSError, ValueError, KeyError, TypeError):
        return -1


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The events of a metrics.jsonl; a last line that was cut off by a kill is left out."""
    events = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict) and _is(event.get("step"), int):
            events.append(event)
    return events


def _object_in(path: Path) -> dict[str, Any]:
    """The JSON object in a file; an empty one where there is none that can be read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) and is_writable(found) else {}


def _is(value: object, kind: type) -> bool:
    """Whether a JSON value is of a kind; true is no number, and a time is one that people live to see."""
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < MOST_SECONDS
    return isinstance(value, kind) and not isinstance(value, bool)
