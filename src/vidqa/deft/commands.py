"""What `run_deft.py` answers: one result for each verb, with the command that comes next."""

from __future__ import annotations

import tempfile
from argparse import Namespace
from pathlib import Path

from vidqa.contract.cli import Result, command
from vidqa.contract.files import write_text
from vidqa.contract.problem import Exit, Problem, ProblemError
from vidqa.deft import runner
from vidqa.deft.beginning import Wanted, begin
from vidqa.deft.context import AUDIT_ANSWERS, LABELS, Turn
from vidqa.deft.loop import Due, Loop, Step
from vidqa.deft.problems import DEFT_NOT_WAITING
from vidqa.deft.report import write_report
from vidqa.deft.state import Ending
from vidqa.pages.page import percent

ANSWERS = {"audit needed": "--audit-answers", "labels needed": "--labels"}  # by rule: how a person's answers are given


def init(options: Namespace) -> Result:
    """Begin a loop, or change the stop rules of one."""
    folders = {name: getattr(options, name) for name in ("selection", "pool", "kpi", "test")}
    loop, how = begin(
        options.loop, Wanted(options.train_spec, options.evaluate_spec, folders, options.model, options.set)
    )
    shown = {
        "new": "The loop is ready.",
        "unchanged": "The loop was there already.",
        "changed": "Its rules are changed.",
    }
    return _of(loop, shown[how], {"how": how})


def go_on(folder: Path, answers: Path | None = None, labels: Path | None = None, *, once: bool) -> Result:
    """Carry out the stage that is due, or all until a rule ends the loop. Raises GAPS_AUDIT_ANSWERS, CURATION_LABELS,
    DEFT_NOT_WAITING."""
    sentences: list[str] = []
    loop = Loop(folder)
    with loop.alone():
        loop = Loop(folder)  # as it is now that nobody else changes it
        if answers is not None:
            from vidqa.evaluation.gaps.audit_answers import take_answers

            take_answers(answers, loop.folder / AUDIT_ANSWERS)
        if labels is not None:
            _take_labels(loop, labels)
        try:
            while True:
                step = loop.next()
                sentences.append(step.sentence)
                if isinstance(step, Ending) or step.due.stage.name in ("evaluate", "decide", "kpi", "test"):
                    write_report(loop)
                if isinstance(step, Ending) or once:
                    break
        except ProblemError as wrong:
            told = _of(loop, "\n".join(sentences), {"sentences": sentences})
            told.problems = [*told.problems, *wrong.problems, *_of_report(loop, wrong.problems)]
            return told
    data: dict[str, object] = {"sentences": sentences}  # of the stages that were carried out now, in order
    if isinstance(step, Step):
        data |= {"stage": step.due.stage.name, "round": step.due.turn.number}
    return _of(loop, "\n".join(sentences), data)


def _take_labels(loop: Loop, labels: Path) -> None:
    """Keep a person's answers in the folder of the round that has mined samples without. Raises DEFT_NOT_WAITING, and
    CURATION_LABELS where they cannot be used."""
    newest = loop.state.newest
    turn = Turn(loop.folder, loop.state, newest.number if newest else 0)
    if newest is None or newest.accepted is not None or (tasks := turn.output("tasks")) is None:
        raise DEFT_NOT_WAITING.error(labels, "no round that is open has mined samples without answers")
    with tempfile.TemporaryDirectory() as scratch:
        runner.script("label_samples", "--tasks", tasks, "--labels", labels, "--out", f"{scratch}/labelled.json")
    write_text(turn.place / LABELS, labels.read_text(encoding="utf-8"))


def _of_report(loop: Loop, known: list[Problem]) -> list[Problem]:
    """Write the report; the problems of that which are not known yet."""
    try:
        write_report(loop)
    except ProblemError as wrong:
        return [problem for problem in wrong.problems if problem not in known]
    return []


def status(folder: Path) -> Result:
    """Where the loop stands; nothing is changed."""
    return _of(Loop(folder), "")


def report(folder: Path) -> Result:
    """Write the report of what there is so far."""
    loop = Loop(folder)
    page = write_report(loop)
    return _of(loop, f"wrote {page}", {"html": str(page)})


def _of(loop: Loop, text: str, data: dict[str, object] | None = None) -> Result:
    """The loop's state in short, and the command that comes next."""
    state, due = loop.state, loop.due()
    ending = state.ending or (due if isinstance(due, Ending) else None)
    known = {
        "loop": str(loop.folder),
        "rounds": len(state.decided),
        "accepted": state.accepted.model_dump() if state.accepted else None,
        "ending": ending.model_dump() if ending else None,
        "due": _due(due),
        "hours": round(state.hours, 4),
        "report": str(loop.folder / "report.html"),
    }
    lines = [text] if text else []
    if state.accepted:
        best = f"round {state.accepted.round}" if state.accepted.round else "the start"
        lines.append(f"best so far: {percent(state.accepted.accuracy)} on the selection set, of {best}")
    if ending and ending.sentence not in text:
        lines.append(f"{'waits' if ending.waits else 'ended'} ({ending.rule}): {ending.sentence}")
    if isinstance(due, Due) and not (ending and not ending.waits):
        lines.append(f"due: {due.shown}")
    result = Result({**known, **(data or {})}, "\n".join(lines), loop.warnings, _next(loop, due, ending))
    if ending and ending.rule in ANSWERS:
        result.exit_code = int(Exit.NOT_DONE)
    return result


def _due(due: Due | Ending) -> dict[str, object] | None:
    if isinstance(due, Ending):
        return None
    return {"round": due.turn.number, "stage": due.stage.name, "does": due.stage.does, "command": due.stage.command}


def _next(loop: Loop, due: Due | Ending, ending: Ending | None) -> list[str]:
    if ending and ending.rule in ANSWERS:
        return [command("run_deft", "next", loop.folder, ANSWERS[ending.rule], "ANSWERS")]
    if isinstance(due, Ending):
        return [] if loop.state.ending else [command("run_deft", "next", loop.folder)]
    return [command("run_deft", verb, loop.folder) for verb in ("next", "run")]
