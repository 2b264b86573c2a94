"""The loop: its log, its pending stage, and running it. All of its state is in its folder.

loop = Loop(Path("loop"))
with loop.alone():
    while not isinstance(step := loop.next(), Ending):
        ...

The log, a `core.journal`, is the source of truth.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from vidqa.core.cli import note
from vidqa.core.files import write_json
from vidqa.core.journal import JOURNAL_BROKEN, Event, Journal
from vidqa.core.locks import BUSY, locked
from vidqa.core.problem import Problem, ProblemError
from vidqa.gaps.deft.acceptance import after_round, budget
from vidqa.gaps.deft.context import LOCK, LOG, STATE, StageContext, StageResult
from vidqa.gaps.deft.stages import EVALUATE, KPI, TEST, Stage, stages_of
from vidqa.gaps.deft.state import Ending, LoopState, RoundState, fingerprint, fold, take
from vidqa.gaps.problems import DEFT_FOLDER, DEFT_GATE

TRAININGS = ("train", "control train")  # not started once the budget is spent


@dataclass(frozen=True)
class PendingStage:
    """The stage that runs next; `inputs` are the fingerprints of its inputs."""

    context: StageContext
    stage: Stage
    inputs: dict[str, str]

    @property
    def shown(self) -> str:
        when = "after the last round" if self.context.number is None else f"round {self.context.number}"
        return f"{when}, {self.stage.name}: {self.stage.does}"


class Loop:
    """The loop in a folder. Raises DEFT_FOLDER, JOURNAL_BROKEN."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.log = Journal(self.folder / LOG)
        if not self.log.events:
            raise DEFT_FOLDER.error(folder, f"there is no {LOG} with events in it")
        try:
            self.state: LoopState = fold(self.log.events)
        except (ValueError, LookupError, TypeError) as wrong:
            raise JOURNAL_BROKEN.error(self.log.path, f"its events are inconsistent: {wrong}") from wrong

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Prevent other processes from running stages. Raises BUSY."""
        with locked_folder(self.folder):
            write_state(self.folder, self.state)  # a process that was killed after an event has not written it
            yield

    def write(self, event: Event) -> None:
        """Append an event to the log, and update deft_state.json."""
        take(self.state, self.log.append(event))
        write_state(self.folder, self.state)

    def pending(self) -> PendingStage | Ending:
        """The stage that runs next, or the reason why there is none."""
        state = self.state
        if state.ending and not state.ending.waits:
            return state.ending
        if (newest := state.newest) is None:
            return self._stage(0, EVALUATE)
        if newest.accepted is None:
            pending = self._in_round(newest)
            return pending if isinstance(pending, PendingStage) else self._closing(pending)
        if self._needs_kpi(newest):
            return self._stage(newest.number, KPI)
        if (ending := after_round(state)) is not None:
            return self._closing(ending)
        number = newest.number + 1
        return self._stage(number, stages_of(state.settings, number)[0])

    def _in_round(self, current: RoundState) -> PendingStage | Ending:
        """The first stage that never ran, or whose inputs have changed since."""
        for stage in stages_of(self.state.settings, current.number):
            pending, done = self._stage(current.number, stage), current.stages.get(stage.name)
            if done is None or done.inputs != pending.inputs or not done.has_outputs:
                spent = budget(self.state) if stage.name in TRAININGS else None
                return spent or pending
            if done.stop:
                return Ending(rule=done.stop, sentence=done.sentence)
        raise JOURNAL_BROKEN.error(self.log.path, f"round {current.number} has all stages and no decision")

    def _stage(self, number: int | None, stage: Stage) -> PendingStage:
        context = StageContext(self.folder, self.state, number)
        return PendingStage(context, stage, {name: fingerprint(context.source(name)) for name in stage.reads})

    def _needs_kpi(self, newest: RoundState) -> bool:
        """Whether the KPI set is evaluated now: after round 0 and accepted rounds; one evaluation is reserved for the
        end."""
        sets = self.state.settings.sets
        may = sets.kpi is not None and bool(newest.accepted) and "kpi" not in newest.stages
        return may and self._kpi_evaluations() < sets.kpi_looks - 1

    def _kpi_evaluations(self) -> int:
        rounds = [self.state.closed, *(current.stages for current in self.state.rounds)]
        return sum("kpi" in stages for stages in rounds)

    def _closing(self, ending: Ending) -> PendingStage | Ending:
        """The last evaluations of the KPI set and the test set, each once; then the ending."""
        sets, closed, accepted = self.state.settings.sets, self.state.closed, self.state.accepted
        is_measured = accepted is not None and "kpi" in self.state.rounds[accepted.round].stages
        if sets.kpi and "kpi" not in closed and self._kpi_evaluations() < sets.kpi_looks and not is_measured:
            return self._stage(None, KPI)
        if sets.test and "test" not in closed:
            return self._stage(None, TEST)
        return ending

    def next(self) -> PendingStage | Ending:
        """Run the pending stage and return it, or return the reason why the loop has ended or waits.

        Raises ProblemError with the problems of the stage. The loop then waits, and resumes at this stage.
        """
        pending = self.pending()
        if isinstance(pending, Ending):
            if self.state.ending != pending:
                self._end(pending)
            return pending
        note(pending.shown)
        self.write({"event": "began", "round": pending.context.number, "stage": pending.stage.name})
        pending.context.place.mkdir(parents=True, exist_ok=True)
        started = time.monotonic()
        try:
            result = pending.stage.run(pending.context)
        except ProblemError as error:
            self._end(_gate(pending, error.problems))
            raise
        if result.waits:
            ending = Ending(rule=result.stop, sentence=result.sentence, waits=True)
            self._end(ending)
            return ending
        self._finish(pending, result, time.monotonic() - started)
        return pending

    def _finish(self, pending: PendingStage, result: StageResult, seconds: float) -> None:
        paths = result.outputs.items()
        event = {
            "event": "finished",
            "round": pending.context.number,
            "stage": pending.stage.name,
            "seconds": round(seconds, 2),
            "inputs": pending.inputs,
            "outputs": {name: {"path": str(path), "fingerprint": fingerprint(path)} for name, path in paths},
            "facts": result.facts,
            "cost": result.cost.model_dump(),
            "sentence": result.sentence,
            "stop": result.stop,
        }
        self.write(event)
        note(result.sentence)

    def _end(self, ending: Ending) -> None:
        self.write({"event": "ended", **ending.model_dump(mode="json")})


def _gate(pending: PendingStage, problems: list[Problem]) -> Ending:
    first = next((problem for problem in problems if problem.severity == "error"), problems[0])
    more = f", and {len(problems) - 1} more problems" if len(problems) > 1 else ""
    sentence = f"{DEFT_GATE.meaning} It is {pending.shown}. {first.code} at {first.where}: {first.message}{more}."
    return Ending(rule="hard gate", sentence=sentence, waits=True)


def write_state(folder: Path, state: LoopState) -> None:
    """Write deft_state.json."""
    write_json(folder / STATE, state.model_dump(mode="json", by_alias=True))


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Hold the folder's lock; the system releases it with the process. Raises BUSY, ENV_FILE_REFUSED."""
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / LOCK, wait_s=0.0, busy=BUSY):
        yield
