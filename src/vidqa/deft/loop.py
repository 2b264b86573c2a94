"""The loop: which stage is due, and what carrying it out changes. All that it knows is in its folder.

loop = Loop(Path("loop"))
with loop.alone():
    while not isinstance(step := loop.next(), Ending):
        ...
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from vidqa.contract.cli import note
from vidqa.contract.files import write_json
from vidqa.contract.locks import try_lock
from vidqa.contract.problem import Problem, ProblemError
from vidqa.deft.acceptance import after_round, budget
from vidqa.deft.context import LOCK, LOG, STATE, Done, Turn, fingerprint
from vidqa.deft.log import Event, Log
from vidqa.deft.problems import DEFT_BUSY, DEFT_GATE, DEFT_LOG_BROKEN, DEFT_NO_LOOP
from vidqa.deft.stages import EVALUATE, KPI, TEST, Stage, stages_of
from vidqa.deft.state import Ending, LoopState, Output, RoundState, StageState, fold, take

TRAININGS = ("train", "control train")  # not begun once the budget is spent


@dataclass(frozen=True)
class Due:
    """A stage that is to be carried out next; `inputs` are the fingerprints of what it reads."""

    turn: Turn
    stage: Stage
    inputs: dict[str, str]

    @property
    def shown(self) -> str:
        when = "after the last round" if self.turn.number is None else f"round {self.turn.number}"
        return f"{when}, {self.stage.name}: {self.stage.does}"


@dataclass(frozen=True)
class Step:
    """A stage that was carried out."""

    due: Due
    sentence: str


class Loop:
    """The loop in a folder. Raises DEFT_NO_LOOP, DEFT_LOG_BROKEN."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.log = Log(self.folder / LOG)
        if not self.log.events:
            raise DEFT_NO_LOOP.error(folder, f"there is no {LOG} with events in it")
        try:
            self.state: LoopState = fold(self.log.events)
        except (ValueError, LookupError, TypeError) as wrong:
            raise DEFT_LOG_BROKEN.error(self.log.path, f"its events do not make a loop: {wrong}") from wrong

    @property
    def warnings(self) -> list[Problem]:
        return [self.log.torn] if self.log.torn else []

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Nobody else carries out stages meanwhile. Raises DEFT_BUSY."""
        with only_one(self.folder):
            write_state(self.folder, self.state)  # whoever was killed behind an event has not written what follows
            yield

    def write(self, event: Event) -> None:
        """Add an event to the log, then let deft_state.json say what follows from all."""
        take(self.state, self.log.append(event))
        write_state(self.folder, self.state)

    def due(self) -> Due | Ending:
        """What comes next: a stage, or the reason why there is none."""
        state = self.state
        if state.ending and not state.ending.waits:
            return state.ending
        if (newest := state.newest) is None:
            return self._made(Turn(self.folder, state, 0), EVALUATE)
        if newest.accepted is None:
            found = self._in_round(newest)
            return found if isinstance(found, Due) else self._closing(found)
        if self._kpi_is_due(newest):
            return self._made(Turn(self.folder, state, newest.number), KPI)
        if (ending := after_round(state)) is not None:
            return self._closing(ending)
        following = Turn(self.folder, state, newest.number + 1)
        return self._made(following, stages_of(state.settings, following.number or 0)[0])

    def _in_round(self, current: RoundState) -> Due | Ending:
        """The first stage whose inputs have changed since it was carried out, or that was never."""
        turn = Turn(self.folder, self.state, current.number)
        for stage in stages_of(self.state.settings, current.number):
            due, done = self._made(turn, stage), current.stages.get(stage.name)
            if done is None or done.inputs != due.inputs or not all(map(_is_there, done.outputs.values())):
                spent = budget(self.state) if stage.name in TRAININGS else None
                return spent or due
            if done.stop:
                return Ending.model_validate({"rule": done.stop, "sentence": done.sentence})
        raise DEFT_LOG_BROKEN.error(self.log.path, f"round {current.number} has all stages and no decision")

    def _made(self, turn: Turn, stage: Stage) -> Due:
        return Due(turn, stage, {name: fingerprint(turn.source(name)) for name in stage.reads})

    def _kpi_is_due(self, newest: RoundState) -> bool:
        """A look at the KPI set after the first measurement and after accepted rounds, one being kept for the end."""
        sets = self.state.settings.sets
        wanted = sets.kpi is not None and newest.accepted and "kpi" not in newest.stages
        return bool(wanted) and self._looks() < sets.kpi_looks - 1

    def _looks(self) -> int:
        return sum("kpi" in stages for stages in (self.state.closed, *(each.stages for each in self.state.rounds)))

    def _closing(self, ending: Ending) -> Due | Ending:
        """The last looks at the KPI set and the test set, each once; then the end."""
        sets, closed, accepted = self.state.settings.sets, self.state.closed, self.state.accepted
        turn = Turn(self.folder, self.state, None)
        known = accepted is not None and "kpi" in self.state.rounds[accepted.round].stages
        if sets.kpi and "kpi" not in closed and self._looks() < sets.kpi_looks and not known:
            return self._made(turn, KPI)
        if sets.test and "test" not in closed:
            return self._made(turn, TEST)
        return ending

    def next(self) -> Step | Ending:
        """Carry out the stage that is due; or say why the loop has ended, or what it waits for.

        Raises ProblemError with what the stage found wrong. The loop then waits, and comes back to this stage.
        """
        due = self.due()
        if isinstance(due, Ending):
            if self.state.ending != due:
                self._end(due)
            return due
        note(due.shown)
        self.write({"event": "began", "round": due.turn.number, "stage": due.stage.name})
        due.turn.place.mkdir(parents=True, exist_ok=True)
        started = time.monotonic()
        try:
            done = due.stage.run(due.turn)
        except ProblemError as wrong:
            self._end(_gate(due, wrong.problems))
            raise
        if done.waits:
            ending = Ending.model_validate({"rule": done.stop, "sentence": done.sentence, "waits": True})
            self._end(ending)
            return ending
        self._finish(due, done, time.monotonic() - started)
        return Step(due, done.sentence)

    def _finish(self, due: Due, done: Done, seconds: float) -> None:
        outputs = {name: Output(path=str(path), fingerprint=fingerprint(path)) for name, path in done.outputs.items()}
        kept = StageState(
            inputs=due.inputs,
            outputs=outputs,
            facts=done.facts,
            cost=done.cost,
            sentence=done.sentence,
            stop=done.stop,
        )
        place = {"round": due.turn.number, "stage": due.stage.name, "seconds": round(seconds, 2)}
        self.write({"event": "finished", **place, **kept.model_dump(mode="json")})
        note(done.sentence)

    def _end(self, ending: Ending) -> None:
        self.write({"event": "ended", **ending.model_dump(mode="json")})


def _gate(due: Due, problems: list[Problem]) -> Ending:
    first = next((each for each in problems if each.severity == "error"), problems[0])
    more = f", and {len(problems) - 1} more problems" if len(problems) > 1 else ""
    sentence = f"{DEFT_GATE.meaning} It is {due.shown}. {first.code} at {first.where}: {first.message}{more}."
    return Ending(rule="hard gate", sentence=sentence, waits=True)


def _is_there(output: Output) -> bool:
    return Path(output.path).exists()


def write_state(folder: Path, state: LoopState) -> None:
    write_json(folder / STATE, state.model_dump(mode="json", by_alias=True))


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, which goes with its process. Raises DEFT_BUSY, LOCK_UNAVAILABLE."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / LOCK, "w") as file:
        if not try_lock(file.fileno(), folder / LOCK):
            raise DEFT_BUSY.error(folder, "another process holds its lock")
        yield
