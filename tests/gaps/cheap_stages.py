"""A loop whose stages take no time: they write small files that follow from what they read, as the real ones do."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vidqa.core.files import write_json, write_text
from vidqa.gaps.deft import loop as loop_module
from vidqa.gaps.deft.commands import LoopConfig, create
from vidqa.gaps.deft.context import StageContext, StageResult
from vidqa.gaps.deft.loop import Loop
from vidqa.gaps.deft.stages import EVALUATE, KPI, TEST, Stage, stages_of
from vidqa.gaps.deft.state import Cost, Ending
from vidqa.spec import Layer, dump, resolve

SCORES: dict[str, Any] = {"headline": "scored", "n": 9, "accuracy_ci95": [0.1, 0.9]}
TURNS = [{"from": "human", "value": "<video>\nWhat?"}, {"from": "gpt", "value": "yes"}]
BETTER = {"verdict": "better", "p_value": 0.001, "before": 0.5, "after": 0.7, "fixed": 20, "broken": 0, "n": 100}
ALIKE = {**BETTER, "verdict": "no significant difference", "p_value": 0.4}
WORSE = {**BETTER, "verdict": "worse"}


class Cheap:
    """What the stages are to find: accuracies by round, comparisons by round, gaps and added samples."""

    def __init__(self, **given: Any) -> None:
        self.accuracy: list[float] = given.get("accuracy", [0.5, 0.7, 0.8, 0.85])
        self.compared: list[dict[str, Any]] = given.get("compared", [BETTER] * 4)
        self.slices: list[dict[str, Any]] = given.get("slices", [])
        self.gaps: int = given.get("gaps", 7)
        self.added: list[int] = given.get("added", [5] * 4)
        self.suspects: int = given.get("suspects", 0)
        self.hours: float = given.get("hours", 0.0)
        self.calls: list[str] = []

    def of(self, stage: Stage) -> Stage:
        own = {**dict.fromkeys(("evaluate", "kpi", "test", "control evaluate"), self.evaluate), "train": self.train}
        own |= {"gaps": self.find, "mine": self.mine, "assemble": self.assemble, "compare": self.compare}
        own |= {"control train": self.train, "control compare": self.compare, "label": self.label}
        if stage.name in ("decide", "audit"):
            return stage

        def run(context: StageContext) -> StageResult:
            self.calls.append(f"{context.number} {stage.name}")
            return own.get(stage.name, self.other)(context, stage)

        return replace(stage, run=run)

    def other(self, context: StageContext, stage: Stage) -> StageResult:
        read = [str(context.source(name)) for name in stage.reads]
        outputs = {name: context.place / f"{stage.name} {name}.txt" for name in stage.writes}
        for path in outputs.values():
            write_json(path, [{"id": f"{stage.name} {context.number}", "read": read, "conversations": TURNS}])
        return StageResult(f"{stage.name} is done", outputs, {"samples": 1})

    def evaluate(self, context: StageContext, stage: Stage) -> StageResult:
        number = context.accepted.round if context.number is None else context.number
        run = context.runs / f"{stage.name}_{number}"
        accuracy = self.accuracy[number]
        write_json(run / "results.json", [{"sample_id": "a", "accuracy": accuracy}])
        write_json(
            run / "metrics.json",
            {**SCORES, "accuracy": accuracy, "by_kind": {"door": {**SCORES, "accuracy": accuracy}}},
        )
        facts = {"run_dir": str(run), "model": f"model {number}", "accuracy": accuracy, "n": 9}
        measured = {**facts, "ci_low": accuracy - 0.1, "ci_high": accuracy + 0.1}
        return StageResult(f"accuracy {accuracy}", {stage.writes[0]: run / "results.json"}, measured, self.cost)

    @property
    def cost(self) -> Cost:
        return Cost(seconds=3600 * self.hours)

    def train(self, context: StageContext, stage: Stage) -> StageResult:
        run = context.runs / f"{stage.name}_{context.number}"
        write_text(run / "weights", str(context.output("train set")))
        return StageResult("trained", {}, {"run_dir": str(run)}, self.cost)

    def find(self, context: StageContext, stage: Stage) -> StageResult:
        outputs = {"gaps": context.place / "gaps.parquet", "slices": context.place / "slices.json"}
        for path in outputs.values():
            write_text(path, f"{context.accepted.evaluation} {self.gaps}")
        suspect = {"sample_id": "s", "probability": 0.9, "verdict": self._verdict(context)}
        write_json(context.place / "audit.json", {"items": [suspect] * self.suspects})
        outputs["audit queue"] = context.place / "audit.json"
        return StageResult(
            f"There are {self.gaps} gaps.", outputs, {"gaps": self.gaps}, stop="" if self.gaps else "no gaps"
        )

    @staticmethod
    def _verdict(context: StageContext) -> str:
        answers = context.folder / "audit_answers.json"
        return json.loads(answers.read_text())["answers"]["s"]["verdict"] if answers.is_file() else ""

    def mine(self, context: StageContext, stage: Stage) -> StageResult:
        count, place = self.added[context.number or 0], context.place / "mined" / "mined.json"
        write_json(place, [{"id": f"m{context.number}_{at}", "conversations": TURNS} for at in range(count)])
        return StageResult(
            f"{count} samples were mined.", {"mined": place}, {"samples": count}, stop="" if count else "no new samples"
        )

    def label(self, context: StageContext, stage: Stage) -> StageResult:
        return StageResult("all that was mined has answers")

    def assemble(self, context: StageContext, stage: Stage) -> StageResult:
        base, added = context.base_set()[0], context.output("mined")
        assert added is not None
        rows = json.loads(base.read_text()) + json.loads(added.read_text())
        made = context.place / "train_set" / "annotations.json"
        write_json(made, rows)
        return StageResult(f"{len(rows)} samples", {"train set": made}, {"samples": len(rows)})

    def compare(self, context: StageContext, stage: Stage) -> StageResult:
        whole = {"difference": 0.2, "ci95": [0.1, 0.3], **self.compared[context.number or 0]}
        table = {"verdict": whole["verdict"], "whole": whole, "slices": self.slices}
        outputs = {name: context.place / f"{name.replace(' ', '_')}.json" for name in stage.writes}
        for path in outputs.values():
            write_json(path, {**table, "samples": {"fixed": [], "broken": []}})
        return StageResult(whole["verdict"], outputs, {"verdict": whole["verdict"]})


def installed(monkeypatch: pytest.MonkeyPatch, cheap: Cheap) -> Cheap:
    """The loop takes these stages for its own."""
    monkeypatch.setattr(loop_module, "stages_of", lambda *asked: [cheap.of(each) for each in stages_of(*asked)])
    for name, stage in (("EVALUATE", EVALUATE), ("KPI", KPI), ("TEST", TEST)):
        monkeypatch.setattr(loop_module, name, cheap.of(stage))
    return cheap


def wanted(folder: Path, *sets: str, model: str | None = None) -> LoopConfig:
    """Recipes and sets that are there, and what else is asked for."""
    for name in ("train", "selection", "pool", "kpi", "test"):
        (folder / name).mkdir(parents=True, exist_ok=True)
        rows = [{"id": f"{name}{at}", "conversations": TURNS} for at in range(3)]
        (folder / name / "annotations.json").write_text(json.dumps(rows))
    data = {
        "custom.train_dataset.annotation_path": str(folder / "train/annotations.json"),
        "custom.train_dataset.media_path": str(folder / "train"),
        "policy.model_name_or_path": str(folder),
    }
    measured = {
        "dataset.annotation_path": str(folder / "kpi/annotations.json"),
        "dataset.media_dir": str(folder / "kpi"),
    }
    (folder / "train.toml").write_text(dump(resolve("train", [Layer("test", data)]).spec))
    (folder / "evaluate.toml").write_text(dump(resolve("evaluate", [Layer("test", measured)]).spec))
    folders: dict[str, str | None] = {name: str(folder / name) for name in ("selection", "pool", "kpi", "test")}
    return LoopConfig(folder / "train.toml", folder / "evaluate.toml", folders, model, list(sets))


def carried_out(folder: Path, *sets: str) -> tuple[Loop, Ending]:
    """A loop that went on until it ended or waits."""
    loop, _ = create(folder / "loop", wanted(folder, *sets))
    return loop, to_the_end(loop)


def to_the_end(loop: Loop) -> Ending:
    while not isinstance(step := loop.next(), Ending):
        pass
    return step
