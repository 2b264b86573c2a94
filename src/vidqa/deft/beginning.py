"""A new loop in a folder of its own: settings are checked, and recipes copied, so that their later changes are none."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vidqa import spec
from vidqa.contract.files import write_text
from vidqa.dataset.reader import NAMES
from vidqa.deft.context import EVALUATE_SPEC, LOG, TRAIN_SPEC, is_labelled
from vidqa.deft.log import Log
from vidqa.deft.loop import Loop, only_one, write_state
from vidqa.deft.problems import DEFT_FOLDER_TAKEN, DEFT_OTHER_LOOP, DEFT_SAME_SET, DEFT_SETTING
from vidqa.deft.settings import CHANGEABLE, Settings, settings_of, with_sets
from vidqa.deft.state import fold


@dataclass(frozen=True)
class Wanted:
    """What `run_deft.py init` is asked for. `sets` are KEY=VALUE, by dotted key of the settings."""

    train_spec: Path
    evaluate_spec: Path
    folders: dict[str, str | None]
    model: str | None = None
    sets: list[str] = field(default_factory=list)


def begin(folder: Path, wanted: Wanted) -> tuple[Loop, str]:
    """The loop, and whether it is "new", "unchanged" or "changed" (stop rules and limits, of one that there is).

    Raises DEFT_SETTING, DEFT_SAME_SET, DEFT_FOLDER_TAKEN, DEFT_OTHER_LOOP, and the problems of specs.
    """
    folder = folder.absolute()
    recipes = {
        TRAIN_SPEC: spec.dump(spec.load(wanted.train_spec, "train")),
        EVALUATE_SPEC: spec.dump(spec.load(wanted.evaluate_spec, "evaluate")),
    }
    settings = _settings(wanted)
    _check_sets(settings)
    with only_one(_free(folder)):
        if (folder / LOG).is_file():
            return _changed(folder, settings, recipes)
        for name, text in recipes.items():
            write_text(folder / name, text)
        log = Log(folder / LOG)
        log.append({"event": "settings", "settings": settings.model_dump(mode="json")})
        write_state(folder, fold(log.events))
    return Loop(folder), "new"


def _settings(wanted: Wanted) -> Settings:
    folders = {name: _absolute(place) for name, place in wanted.folders.items() if place}
    table: dict[str, Any] = {"sets": folders}
    if wanted.model:
        table["model"] = wanted.model if "://" in wanted.model else _absolute(wanted.model)
    return settings_of(with_sets(table, wanted.sets))


def _absolute(place: str) -> str:
    return os.path.abspath(os.path.expanduser(place))


def _check_sets(settings: Settings) -> None:
    sets = settings.sets
    named = {name: place for name in ("selection", "pool", "kpi", "test") if (place := getattr(sets, name))}
    for name, place in named.items():
        if name == "pool" and os.path.isfile(place):
            continue
        if not os.path.isdir(place):
            raise DEFT_SETTING.error(f"sets.{name}", f"{place} is no folder", "name the folder of a set")
        if name != "pool" and not any((Path(place) / file).is_file() for file in NAMES):
            raise DEFT_SETTING.error(f"sets.{name}", f"{place} has no annotations.json", "name the folder of a set")
    for name, place in named.items():
        twins = [
            other for other in named if other != name and os.path.realpath(named[other]) == os.path.realpath(place)
        ]
        if twins:
            raise DEFT_SAME_SET.error(place, f"it is the {name} set and the {twins[0]} set")
    if settings.study and settings.control:
        message = "the study's best training is compared with one that was not searched for"
        raise DEFT_SETTING.error("control", message, "ask for one of control and study")
    if sets.pool is None:
        raise DEFT_SETTING.error("sets.pool", "there is nothing to take samples from", "name a pool: --pool DIR")
    if settings.control and not is_labelled(sets.pool):
        message = f"{sets.pool} has no annotations, so that random samples of it have no answers to train on"
        raise DEFT_SETTING.error("control", message, "leave control out, or name a pool with annotations.json")


def _free(folder: Path) -> Path:
    """What a beginning that was killed has left does not count; unfinished files have names that begin with a dot."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    others = [name for name in names if name not in (TRAIN_SPEC, EVALUATE_SPEC) and not name.startswith(".")]
    if others and LOG not in others:
        raise DEFT_FOLDER_TAKEN.error(folder, f"it holds {', '.join(sorted(others)[:3])}")
    return folder


def _changed(folder: Path, settings: Settings, recipes: dict[str, str]) -> tuple[Loop, str]:
    loop = Loop(folder)
    before, after = loop.state.settings.model_dump(mode="json"), settings.model_dump(mode="json")
    other = [name for name in after if name not in CHANGEABLE and before[name] != after[name]]
    other += [name for name, text in recipes.items() if (folder / name).read_text(encoding="utf-8") != text]
    if other:
        raise DEFT_OTHER_LOOP.error(folder, f"these differ: {', '.join(other)}")
    if before == after:
        return loop, "unchanged"
    loop.write({"event": "settings", "settings": after})
    return loop, "changed"
