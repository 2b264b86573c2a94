"""Read the training data of a run folder. Missing or damaged parts are left out; nothing here raises."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from vidqa.core.files import objects_in, read_object
from vidqa.core.run_folder import EXPORT, METRICS, PROOF, QUARANTINE, TRAINER, RunFolder, read_metrics

Point = tuple[float, float]
Event = dict[str, Any]
MOST = 1e300  # exclusive bound of a number; JSON allows larger ones, which no chart can show
MOST_PARENTS = 20  # length of a chain of resumed runs


@dataclass(frozen=True)
class Export:
    """Exported weights: their validation metrics, and whether the reloaded export reproduces the trainer's loss."""

    name: str
    step: int
    measured: dict[str, float]
    is_best: bool
    proof: str


@dataclass(frozen=True)
class Training:
    """The files of a run folder. `events` are those of metrics.jsonl, after those of the runs that this one resumed.
    `spec` is spec.toml, `spec_text` its text."""

    run: Path
    status: dict[str, Any]
    facts: dict[str, Any]
    plan: dict[str, Any]
    best: dict[str, Any]
    spec: dict[str, Any]
    spec_text: str
    events: list[Event]
    resumes: list[dict[str, Any]]
    exports: list[Export]
    checkpoints: list[str]
    left_out: list[dict[str, str]]
    problems: list[dict[str, str]]

    def points(self, key: str) -> list[Point]:
        """(step, value) of every event that has the metric."""
        pairs = ((event["step"], event.get(key)) for event in self.events)
        return [(float(step), float(value)) for step, value in pairs if is_number(step) and is_number(value)]


def read_training(path: Path) -> Training:
    """Read a run folder."""
    path = path.resolve()
    run = RunFolder(path)
    facts, best = read_object(path / "run.json"), read_object(path / "best.json")
    resumes = run.read_resumes()
    spec, text = run.read_spec()
    plan = read_object(path / "plan.json")
    return Training(
        run=path,
        status=run.read_status(),
        facts=facts,
        plan=plan,
        best=best,
        spec=spec,
        spec_text=text,
        events=[*_events_before(path, resumes), *_events(path)],
        resumes=resumes,
        exports=_exports(run, best, facts),
        checkpoints=[folder.name for folder in run.complete(run.checkpoints, TRAINER)],
        left_out=_texts(plan.get("quarantined")) + _texts(list(map(vars, run.read_problems(QUARANTINE)))),
        problems=_texts(list(map(vars, run.read_problems()))),
    )


def _events(run: Path) -> list[Event]:
    try:
        return read_metrics(run / METRICS)
    except OSError:
        return []


def _events_before(run: Path, resumes: Sequence[dict[str, Any]]) -> list[Event]:
    """Events that earlier runs logged up to the checkpoint from which this run first started, and so on."""
    events: list[Event] = []
    upto = math.inf
    for _ in range(MOST_PARENTS):
        begun = next(((other, resume) for resume in resumes if (other := other_run(resume, run))), None)
        step = number_in(begun[1], "step") if begun else None
        if begun is None or step is None:
            break
        run, upto = begun[0], min(upto, step)
        events = [event for event in _events(run) if event["step"] <= upto] + events
        resumes = RunFolder(run).read_resumes()
    return events


def other_run(resume: dict[str, Any], run: Path) -> Path | None:
    """The run folder of a resume's checkpoint; None if it is this run's, even if the folder was moved since."""
    folder = resume.get("from")
    other = Path(folder).parent.parent if isinstance(folder, str) else run
    return None if other.name == run.name else other


def _exports(run: RunFolder, best: dict[str, Any], facts: dict[str, Any]) -> list[Export]:
    exports = []
    proved = facts.get("export_proof")
    proved = proved if isinstance(proved, dict) else {}
    for folder in run.complete(run.exports, EXPORT):
        export, proof = read_object(folder / EXPORT), read_object(folder / PROOF)
        if is_number(proof.get("trainer_loss")) and is_number(proof.get("reloaded_loss")):
            proof_text = f"loss {proof['trainer_loss']:.6f} in the trainer, {proof['reloaded_loss']:.6f} loaded again"
        elif isinstance(export.get("unproved"), str) or proved.get("export") == folder.name:
            proof_text = f"unproved: {export.get('unproved') or proved.get('reason')}"
        else:
            proof_text = "not loaded again: only the best one is, at the end"
        measured = export.get("measured") if isinstance(export.get("measured"), dict) else {}
        numbers = {key: value for key, value in (measured or {}).items() if is_number(value)}
        exports.append(
            Export(folder.name, int(export.get("step", 0)), numbers, best.get("name") == folder.name, proof_text)
        )
    return exports


def _texts(value: object) -> list[dict[str, str]]:
    """Convert the fields of problems to text."""
    names = ("code", "where", "message", "remedy")
    return [{name: str(problem.get(name, "")) for name in names} for problem in objects_in(value)]


def number_in(table: dict[str, Any], key: str) -> float | None:
    """A finite number of a table; None if there is none."""
    value = table.get(key)
    return value if is_number(value) else None


def is_number(value: object) -> TypeGuard[float]:
    """Whether a JSON value is a finite number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < MOST
