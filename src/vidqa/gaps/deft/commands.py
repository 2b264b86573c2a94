"""The subcommands of `run_deft.py`: each returns a result with the next command."""

from __future__ import annotations

import difflib
import os
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel, ValidationError

from vidqa import spec
from vidqa.automl.plan import PlanRequest, check_request
from vidqa.core import actions
from vidqa.core.cli import USAGE, Result, command
from vidqa.core.files import absolute, annotations_in_folder, write_text
from vidqa.core.journal import Journal
from vidqa.core.pages.page import percent
from vidqa.core.problem import Exit, Problem, ProblemError
from vidqa.data import check_records
from vidqa.evaluation.results import make_item
from vidqa.gaps.deft import runner
from vidqa.gaps.deft.context import (
    AUDIT_ANSWERS,
    EVALUATE_SPEC,
    LABELS,
    LOG,
    TRAIN_SPEC,
    StageContext,
    annotations_in,
    is_labelled,
)
from vidqa.gaps.deft.loop import Loop, PendingStage, locked_folder, write_state
from vidqa.gaps.deft.report import write_report
from vidqa.gaps.deft.stages import ROUND
from vidqa.gaps.deft.state import Ending, Sets, Settings, Stop, Where, fold
from vidqa.gaps.problems import DEFT_FOLDER, LEAK
from vidqa.spec.build import Request, build
from vidqa.spec.keys import table_at
from vidqa.spec.layers import parse_set, parse_value
from vidqa.spec.parent_layers import model_layer

ANSWERS = {"audit needed": "--audit-answers", "labels needed": "--labels"}  # by rule, the option for a person's answers
TABLES: dict[str, type[BaseModel]] = {"sets": Sets, "where": Where, "stop": Stop}
CHANGEABLE = ("stop", "where", "audit", "audit_from")  # within a loop
DATA = "custom.train_dataset"
DECIDED = {f"{DATA}.annotation_path", f"{DATA}.media_path", "train.resume", "train.output_dir"}  # set by the loop
MEASURED = ("evaluate", "decide", "kpi", "test")  # stages after which the report is written


@dataclass(frozen=True)
class LoopConfig:
    """The options of `run_deft.py init`. `sets` are KEY=VALUE, by dotted key of the settings."""

    train_spec: Path
    evaluate_spec: Path
    folders: dict[str, str | None]
    model: str | None = None
    sets: list[str] = field(default_factory=list)


def init(folder: Path, config: LoopConfig) -> Result:
    """Create a loop, or change the stop rules of an existing one. Raises the problems of `create`."""
    loop, how = create(folder, config)
    return _result(loop, f"The loop is {how}.", {"how": how})


def create(folder: Path, config: LoopConfig) -> tuple[Loop, str]:
    """Create the loop; also returns "new", "unchanged" or "changed" (stop rules and limits of an existing one). Recipes
    are copied, so that later changes of the files have no effect.

    Raises USAGE, DEFT_FOLDER, CURATION_LEAK, and the problems of specs.
    """
    folder = folder.absolute()
    training = spec.load(config.train_spec, "train")
    recipes = {
        TRAIN_SPEC: spec.dump(training),
        EVALUATE_SPEC: spec.dump(spec.load(config.evaluate_spec, "evaluate")),
    }
    settings = _settings(config)
    _check_sets(settings, training)
    _check_words(settings)
    _check_target(settings)
    if not (folder / LOG).is_file():
        _check_training(settings, config.train_spec)
    _require_free(folder)
    with locked_folder(folder):
        if (folder / LOG).is_file():
            return _changed(folder, settings, recipes)
        for name, text in recipes.items():
            write_text(folder / name, text)
        log = Journal(folder / LOG)
        log.append({"event": "settings", "settings": settings.model_dump(mode="json")})
        write_state(folder, fold(log.events))
    return Loop(folder), "new"


def _settings(config: LoopConfig) -> Settings:
    """The settings of the options. Raises USAGE with all errors."""
    table: dict[str, Any] = {"sets": {name: str(absolute(place)) for name, place in config.folders.items() if place}}
    if config.model:
        table["model"] = config.model if "://" in config.model else str(absolute(config.model))
    for word in config.sets:
        key, equals, value = word.partition("=")
        if not equals or not all(key.split(".")):
            raise USAGE.error(word, "it is not KEY=VALUE", "write it as stop.rounds=2")
        is_words = key.startswith("words.") or key in ("train", "study")  # split like shell words
        inner, name = table_at(table, key)
        inner[name] = _words(key, value) if is_words else parse_value(value) if value else None
    try:
        return Settings.model_validate(table)
    except ValidationError as wrong:
        raise ProblemError([_problem(error) for error in wrong.errors()]) from wrong


def _problem(error: Any) -> Problem:
    key = ".".join(map(str, error["loc"]))
    if error["type"] != "extra_forbidden":
        return USAGE.at(key or "settings", f"{error['msg']}: {str(error['input'])[:80]}", runner.SETTINGS_PAGE)
    names = [name for name in Settings.model_fields if name not in TABLES]
    names += [f"{table}.{name}" for table, model in TABLES.items() for name in model.model_fields]
    close = difflib.get_close_matches(key, names, n=3, cutoff=0.5) or names
    return USAGE.at(key, "there is no such setting", f"set one of {', '.join(close)}")


def _words(key: str, text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as unclosed:
        raise USAGE.error(key, f"{text!r} cannot be split into words: {unclosed}", "close its quotes") from unclosed


def _check_sets(settings: Settings, training: spec.TrainSpec) -> None:
    """Check the folders of sets. Raises USAGE and CURATION_LEAK; preflight later checks the content of files."""
    sets = settings.sets
    folders = {name: place for name in ("selection", "pool", "kpi", "test") if (place := getattr(sets, name))}
    for name, place in folders.items():
        if name == "pool" and os.path.isfile(place):
            continue
        if not os.path.isdir(place):
            raise USAGE.error(f"sets.{name}", f"{place} is not a folder", "name the folder of a set")
        if name != "pool" and annotations_in_folder(place) is None:
            raise USAGE.error(f"sets.{name}", f"{place} has no annotations.json", "name the folder of a set")
    _require_distinct_sets(folders, training)
    if settings.study and settings.control:
        message = "the study's best training would be compared with an unsearched one"
        raise USAGE.error("control", message, "use either control or study")
    if settings.control and not is_labelled(sets.pool):
        message = f"{sets.pool} has no annotations, so that random samples of it have no answers to train on"
        raise USAGE.error("control", message, "leave control out, or give a pool with annotations.json")


def _check_words(settings: Settings) -> None:
    """Raise USAGE for options that the script of a stage refuses: they cannot change within a loop."""
    commands = {stage.name: shlex.split(stage.command) for stage in ROUND}
    for name, further in settings.words.items():
        _, script, *own, _ = commands[name]  # names in capitals stand for files; the last word is --json
        runner.options_of(Path(script).stem, own, further)


def _check_training(settings: Settings, train_spec: Path) -> None:
    """Check the starting model, the keys for trainings, and those of a search: all are first used after jobs, and
    cannot change within a loop. Raises USAGE and the problems of the model."""
    if settings.model:
        model_layer("evaluate", settings.model)
    shorthand = actions.action("train").shorthand
    keys = {shorthand.get(key, key) for key in parse_set(settings.train, "--set train=").table}
    if decided := sorted(keys & DECIDED):
        raise USAGE.error("train", f"{decided[0]} is set by the loop itself", "leave it out")
    resolved = build(Request("train", overrides=(train_spec,), sets=tuple(settings.train)))
    if settings.study:
        words = ["plan", "--study", "FOLDER", "--spec", str(train_spec)]
        request = PlanRequest(**runner.options_of("run_automl", words, settings.study))
        check_request(request, cast(spec.TrainSpec, resolved.spec))


def _check_target(settings: Settings) -> None:
    """Raise USAGE for a target of a kind that no question of the selection set has."""
    kind = settings.stop.target_kind
    if kind is None:
        return
    selection = settings.sets.selection
    records, _ = check_records(annotations_in(selection), selection)
    kinds = {str(make_item(record, None)["kind"]) for record in records}
    if kinds and kind not in kinds:
        message = f"no question of {selection} is of the kind {kind!r}: the target could never be reached"
        close = difflib.get_close_matches(kind, kinds, n=3) or sorted(kinds)
        raise USAGE.error("stop.target_kind", message, f"name one of {', '.join(close)}")


def _require_distinct_sets(folders: dict[str, str], training: spec.TrainSpec) -> None:
    """Raise CURATION_LEAK for two sets in one place, and for an evaluation set that the training reads."""
    remedy = "give selection, KPI set, test set, training set and pool separate folders"
    custom = training.custom
    read = {
        os.path.realpath(annotations_in(dataset.annotation_path)): f"custom.{name} of the training's spec"
        for name, dataset in (("val_dataset", custom.val_dataset), ("train_dataset", custom.train_dataset))
        if dataset.annotation_path
    }
    name_of: dict[str, str] = {}
    for name, place in folders.items():
        annotations = os.path.realpath(annotations_in(place))
        if (twin := name_of.setdefault(annotations, name)) != name:
            raise LEAK.error(place, f"it is the {twin} set and the {name} set", remedy)
        if name != "pool" and (reader := read.get(annotations)):
            raise LEAK.error(place, f"it is the {name} set and {reader}", remedy)


def _require_free(folder: Path) -> None:
    """Raise DEFT_FOLDER if the folder has files besides recipes of a killed `init` and unfinished ones (.NAME)."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    others = [name for name in names if name not in (TRAIN_SPEC, EVALUATE_SPEC) and not name.startswith(".")]
    if folder.exists() and not folder.is_dir():
        raise DEFT_FOLDER.error(folder, "it is a file", "give a folder that is empty or does not exist yet")
    if others and LOG not in others:
        remedy = "give a folder that is empty or does not exist yet"
        raise DEFT_FOLDER.error(folder, f"it holds {', '.join(sorted(others)[:3])}", remedy)


def _changed(folder: Path, settings: Settings, recipes: dict[str, str]) -> tuple[Loop, str]:
    loop = Loop(folder)
    before, after = loop.state.settings.model_dump(mode="json"), settings.model_dump(mode="json")
    other = [name for name in after if name not in CHANGEABLE and before[name] != after[name]]
    other += [name for name, text in recipes.items() if (folder / name).read_text(encoding="utf-8") != text]
    if other:
        remedy = "start another loop in its own folder; only stop rules and limits can change within a loop"
        raise DEFT_FOLDER.error(folder, f"its loop has other options; these differ: {', '.join(other)}", remedy)
    if before == after:
        return loop, "unchanged"
    loop.write({"event": "settings", "settings": after})
    return loop, "changed"


def go_on(folder: Path, answers: Path | None = None, labels: Path | None = None, *, once: bool) -> Result:
    """Run the pending stage, or all until a rule ends the loop. Raises CURATION_INPUT, and USAGE for labels that the
    loop does not wait for."""
    sentences: list[str] = []
    loop = Loop(folder)
    with loop.alone():
        loop = Loop(folder)  # reread under the lock
        if answers is not None:
            from vidqa.gaps.analysis.label_errors import add_answers

            add_answers(answers, loop.folder / AUDIT_ANSWERS)
        if labels is not None:
            _add_labels(loop, labels)
        try:
            while True:
                step = loop.next()
                sentences.append(loop.log.events[-1]["sentence"])  # of the stage, or of the ending
                if isinstance(step, Ending) or step.stage.name in MEASURED:
                    write_report(loop)
                if isinstance(step, Ending) or once:
                    break
        except ProblemError as error:
            result = _result(loop, "\n".join(dict.fromkeys(sentences)), {"sentences": sentences})
            result.problems = [*result.problems, *error.problems, *_report_problems(loop, error.problems)]
            return result
    data: dict[str, object] = {"sentences": sentences}  # of the stages of this call, in order
    if isinstance(step, PendingStage):
        data |= {"stage": step.stage.name, "round": step.context.number}
    return _result(loop, "\n".join(dict.fromkeys(sentences)), data)


def _add_labels(loop: Loop, labels: Path) -> None:
    """Copy a person's answers into the folder of the round with unlabelled mined samples. Raises USAGE, and
    CURATION_INPUT if they cannot be used."""
    from vidqa.gaps.curation.labels import labelled

    newest = loop.state.newest
    context = StageContext(loop.folder, loop.state, newest.number if newest else 0)
    if newest is None or newest.accepted is not None or (tasks := context.output("tasks")) is None:
        remedy = "omit --labels; python scripts/run_deft.py status LOOP shows what the loop waits for"
        raise USAGE.error("--labels", "no round that is open has mined samples without answers", remedy)
    labelled(tasks, labels)
    write_text(context.place / LABELS, labels.read_text(encoding="utf-8"))


def _report_problems(loop: Loop, listed: list[Problem]) -> list[Problem]:
    """Write the report; returns its problems that are not in `listed`."""
    try:
        write_report(loop)
    except ProblemError as error:
        return [problem for problem in error.problems if problem not in listed]
    return []


def status(folder: Path) -> Result:
    """The state of the loop; nothing is changed."""
    return _result(Loop(folder), "")


def report(folder: Path) -> Result:
    """Write the report of the rounds so far."""
    loop = Loop(folder)
    page = write_report(loop)
    return _result(loop, f"wrote {page}", {"html": str(page)})


def _result(loop: Loop, text: str, data: dict[str, object] | None = None) -> Result:
    """A summary of the state, and the next command."""
    state, pending = loop.state, loop.pending()
    ending = state.ending or (pending if isinstance(pending, Ending) else None)
    summary = {
        "loop": str(loop.folder),
        "rounds": len(state.decided),
        "accepted": state.accepted.model_dump() if state.accepted else None,
        "ending": ending.model_dump() if ending else None,
        "due": _pending(pending),
        "hours": round(state.hours, 4),
        "report": str(loop.folder / "report.html"),
    }
    lines = [text] if text else []
    if state.accepted:
        best = f"round {state.accepted.round}" if state.accepted.round else "the start"
        lines.append(f"best so far: {percent(state.accepted.accuracy)} on the selection set, of {best}")
    if ending and ending.sentence not in text:
        lines.append(f"{'waits' if ending.waits else 'ended'} ({ending.rule}): {ending.sentence}")
    if isinstance(pending, PendingStage) and not (ending and not ending.waits):
        lines.append(f"due: {pending.shown}")
    result = Result(
        {**summary, **(data or {})},
        "\n".join(lines),
        [loop.log.torn] if loop.log.torn else [],
        _next(loop, pending, ending),
    )
    if ending and ending.rule in ANSWERS:
        result.exit_code = int(Exit.NOT_DONE)
    return result


def _pending(pending: PendingStage | Ending) -> dict[str, object] | None:
    if isinstance(pending, Ending):
        return None
    stage = pending.stage
    return {"round": pending.context.number, "stage": stage.name, "does": stage.does, "command": stage.command}


def _next(loop: Loop, pending: PendingStage | Ending, ending: Ending | None) -> list[str]:
    if ending and ending.rule in ANSWERS:
        return [command("run_deft", "next", loop.folder, ANSWERS[ending.rule], "ANSWERS")]
    if isinstance(pending, Ending):
        return [] if loop.state.ending else [command("run_deft", "next", loop.folder)]
    return [command("run_deft", verb, loop.folder) for verb in ("next", "run")]
