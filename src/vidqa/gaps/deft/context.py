"""The context of one stage: the folder and state of the loop, the number of the round, and the paths of all files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vidqa import spec
from vidqa.core.files import annotations_in_folder
from vidqa.gaps.deft.state import Accepted, Cost, Fact, LoopState, RoundState, Settings

STATE, LOG, LOCK = "deft_state.json", "deft_log.jsonl", ".deft_lock"
TRAIN_SPEC, EVALUATE_SPEC, AUDIT_ANSWERS = "train.toml", "evaluate.toml", "audit_answers.json"
LABELS = "labels.json"  # in a round's folder: a person's answers to mined samples


@dataclass
class StageResult:
    """The result of a stage: a sentence for the log, output files by name, facts and cost. With `stop` the loop ends,
    or waits, by a rule (`state.RULES`) that the sentence explains."""

    sentence: str
    outputs: Mapping[str, Path] = field(default_factory=dict)
    facts: dict[str, Fact] = field(default_factory=dict)
    cost: Cost = field(default_factory=Cost)
    stop: str = ""
    waits: bool = False


@dataclass(frozen=True)
class StageContext:
    """The context of a stage; `number` is that of the round, None for the evaluations after the last round."""

    folder: Path
    state: LoopState
    number: int | None

    @property
    def settings(self) -> Settings:
        return self.state.settings

    @property
    def place(self) -> Path:
        """The folder of this round's files."""
        return self.folder / ("closing" if self.number is None else f"round_{self.number}")

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    @property
    def accepted(self) -> Accepted:
        """The best model so far; it exists once round 0 is evaluated."""
        if self.state.accepted is None:
            raise ValueError("nothing is evaluated yet")
        return self.state.accepted

    @property
    def round(self) -> RoundState | None:
        rounds = self.state.rounds
        return rounds[self.number] if self.number is not None and self.number < len(rounds) else None

    def fact(self, stage: str, name: str) -> Any:
        """A fact of an earlier stage of this round; None without that stage."""
        done = self.round.stages.get(stage) if self.round else None
        return done.facts[name] if done else None

    def output(self, name: str) -> Path | None:
        """An output file of an earlier stage of this round; None without it."""
        return self.round.output(name) if self.round else None

    def require(self, name: str) -> Path:
        """The `output` of a stage that must have run."""
        if (path := self.output(name)) is None:
            raise ValueError(f"no stage of round {self.number} has written {name!r}")
        return path

    def starting_model(self) -> str:
        """The starting model in the settings, or the base model of the training recipe."""
        return self.settings.model or str(self.train_spec()["policy.model_name_or_path"])

    def train_spec(self) -> dict[str, Any]:
        """The training recipe, by dotted key."""
        return spec.keys.flat(spec.load(self.folder / TRAIN_SPEC, "train"))

    def base_set(self) -> tuple[Path, str]:
        """Annotations and media folder that the accepted model was trained on: the recipe's, or an assembled set."""
        for earlier in reversed(self.state.rounds):
            if earlier.accepted and "assemble" in earlier.stages:
                annotations = Path(earlier.stages["assemble"].outputs["train set"].path)
                return annotations, str(annotations.parent)
        recipe = self.train_spec()
        return Path(recipe["custom.train_dataset.annotation_path"]), recipe["custom.train_dataset.media_path"]

    def source(self, name: str) -> Path | str | None:
        """The file, or the text, for the name of an input; None without it."""
        sets, accepted = self.settings.sets, self.state.accepted
        if name in ("selection", "pool", "kpi", "test"):
            place = getattr(sets, name)
            return annotations_in(place) if place else None
        if name.startswith("settings."):
            return self.settings.text(name)
        if name in ("training run", "control run"):
            stage = "train" if name == "training run" else "control train"
            return str(self.fact(stage, "run_dir") or self.starting_model())
        if name == "accepted model":
            return accepted.model if accepted else self.starting_model()
        if name == "accepted results":
            return Path(accepted.evaluation) / "results.json" if accepted else None
        if name == "base set":
            return self.base_set()[0]
        files = {
            "training recipe": self.folder / TRAIN_SPEC,
            "evaluation recipe": self.folder / EVALUATE_SPEC,
            "audit answers": self.folder / AUDIT_ANSWERS,
            "labels": self.place / LABELS,
        }
        return files.get(name) or self.output(name)


def annotations_in(place: str) -> Path:
    """The annotation file of a set, given as folder or file; for a folder of media alone, the folder itself."""
    return annotations_in_folder(Path(place)) or Path(place)


def media_of(place: str) -> str:
    """The media folder of a set, given as folder or annotation file."""
    return place if os.path.isdir(place) else os.path.dirname(place)


def is_labelled(pool: str) -> bool:
    """Whether a pool has annotations, unlike a folder of media alone."""
    return annotations_in(pool).is_file()
