"""The loop as a state machine: which stage is due, when it ends and why, what is repeated and what is not."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from cheap_stages import ALIKE, BETTER, WORSE, Cheap, carried_out, installed, to_the_end, wanted
from programs import run_here

from vidqa.core.cli import SKILL_ROOT
from vidqa.core.journal import Journal
from vidqa.core.problem import ProblemError
from vidqa.gaps.deft import data_stages, runner
from vidqa.gaps.deft.commands import create
from vidqa.gaps.deft.context import LOG, StageContext
from vidqa.gaps.deft.loop import Loop, PendingStage
from vidqa.gaps.deft.report import write_report
from vidqa.gaps.deft.state import Cost, Output, RoundState, StageState
from vidqa.gaps.problems import DEFT_GATE
from vidqa.spec import dump, load
from vidqa.spec.keys import with_values

FELL = {"name": "door", "n_videos": 60, "difference": -0.08, "ci95": [-0.15, -0.02], "p_corrected": 0.01}


@pytest.fixture
def cheap(monkeypatch: pytest.MonkeyPatch) -> Cheap:
    return installed(monkeypatch, Cheap())


def test_rounds_follow_each_other_until_all_agreed_ones_are_done(cheap: Cheap, tmp_path: Path) -> None:
    loop, ending = carried_out(tmp_path, "stop.rounds=2")
    assert (ending.rule, ending.waits) == ("rounds", False) and "2 agreed rounds" in ending.sentence
    assert [(each.number, each.accepted) for each in loop.state.rounds] == [(0, True), (1, True), (2, True)]
    assert loop.state.accepted and loop.state.accepted.round == 2
    assert len(cheap.calls) == len(set(cheap.calls)) and cheap.calls[0] == "0 evaluate"
    assert list(loop.state.closed) == ["kpi", "test"] and cheap.calls.count("0 kpi") == 1
    assert loop.next() == ending and Loop(loop.folder).state == loop.state


def test_an_accepted_round_hands_its_set_and_model_to_the_next(cheap: Cheap, tmp_path: Path) -> None:
    loop, _ = carried_out(tmp_path, "stop.rounds=2")
    first, second = (json.loads((loop.folder / f"round_{n}/train_set/annotations.json").read_text()) for n in (1, 2))
    assert len(first) == 3 + 5 and second[: len(first)] == first and len(second) == len(first) + 5
    assert (loop.folder / "round_2/gaps.parquet").read_text().split()[0].endswith("evaluate_1")


@pytest.mark.parametrize(
    ("given", "sets", "rule"),
    [
        ({}, "stop.target=0.75", "target"),
        ({}, "stop.target_kind=door stop.target=0.75", "target"),
        ({"gaps": 0}, "", "no gaps"),
        ({"added": [0] * 4}, "", "no new samples"),
        ({"compared": [ALIKE] * 4}, "", "no progress"),
        ({"compared": [WORSE] * 4}, "", "regression"),
        ({"slices": [FELL]}, "", "regression"),
        ({"hours": 1.0}, "stop.budget_hours=0.5", "budget"),
        ({"suspects": 2}, "", "audit needed"),
    ],
)
def test_each_rule_ends_the_loop_with_a_plain_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: dict, sets: str, rule: str
) -> None:
    installed(monkeypatch, Cheap(**given))
    loop, ending = carried_out(tmp_path, *sets.split())
    assert ending.rule == rule and ending.sentence.endswith((".", "--audit-answers.")) and " " in ending.sentence
    assert ending.waits == (rule == "audit needed")
    told = json.loads((write_report(loop).parent / "report.json").read_text())
    assert told["ending"]["sentence"] == ending.sentence
    assert ("test" in loop.state.closed) != ending.waits


def test_a_rejected_round_is_rolled_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The next round begins with the model and the set before it."""
    installed(monkeypatch, Cheap(compared=[BETTER, WORSE, BETTER, BETTER]))
    loop, ending = carried_out(tmp_path, "stop.rounds=2", "stop.patience=2")
    assert ending.rule == "rounds" and [each.accepted for each in loop.state.rounds] == [True, False, True]
    assert "worse" in loop.state.rounds[1].why
    assert (loop.folder / "round_2/gaps.parquet").read_text().split()[0].endswith("evaluate_0")
    assert len(json.loads((loop.folder / "round_2/train_set/annotations.json").read_text())) == 3 + 5


def test_a_gain_must_be_proven_among_all_rounds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """p = 0.03 is proof for the only round, and none for one of three."""
    installed(monkeypatch, Cheap(compared=[{**BETTER, "p_value": 0.03}] * 4))
    assert carried_out(tmp_path / "one", "stop.rounds=1")[1].rule == "rounds"
    loop, ending = carried_out(tmp_path / "three", "stop.rounds=3")
    assert ending.rule == "no progress" and "one of 3 rounds" in loop.state.rounds[1].why


def test_a_problem_is_a_gate_at_which_the_loop_waits(
    cheap: Cheap, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    loop, _ = create(tmp_path / "loop", wanted(tmp_path, "stop.rounds=1"))
    sound = cheap.assemble
    monkeypatch.setattr(cheap, "assemble", refused)
    with pytest.raises(ProblemError):
        to_the_end(loop)
    assert loop.state.ending and (loop.state.ending.rule, loop.state.ending.waits) == ("hard gate", True)
    assert "round 1, assemble" in loop.state.ending.sentence
    monkeypatch.setattr(cheap, "assemble", sound)
    assert to_the_end(Loop(loop.folder)).rule == "rounds"
    assert cheap.calls.count("1 mine") == 1 and cheap.calls.count("1 assemble") == 2


def refused(*_: object) -> None:
    raise DEFT_GATE.error("a clip", "it leaks")


def test_answers_to_the_audit_let_the_loop_go_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cheap = installed(monkeypatch, Cheap(suspects=1))
    loop, ending = carried_out(tmp_path, "stop.rounds=1")
    assert ending.rule == "audit needed" and "audit.html" in ending.sentence
    assert loop.next() == ending
    (loop.folder / "audit_answers.json").write_text(json.dumps({"answers": {"s": {"verdict": "wrong"}}}))
    assert to_the_end(Loop(loop.folder)).rule == "rounds"
    assert cheap.calls.count("1 gaps") == 2 and cheap.calls.count("1 embed") == 1


def test_only_stages_whose_inputs_have_changed_are_repeated(cheap: Cheap, tmp_path: Path) -> None:
    loop, _ = create(tmp_path / "loop", wanted(tmp_path))
    while not (isinstance(pending := loop.pending(), PendingStage) and pending.stage.name == "train"):
        loop.next()
    events = loop.log.events
    (loop.folder / LOG).unlink()
    log = Journal(loop.folder / LOG)
    for event in events:  # as another version wrote it, whose text of the same settings was another one
        inputs = {name: "0" * 32 for name in event.get("inputs", {}) if name.startswith("settings.")}
        log.append({**event, **({"inputs": {**event["inputs"], **inputs}} if inputs else {})})
    pending = Loop(loop.folder).pending()
    assert isinstance(pending, PendingStage) and pending.stage.name == "train"
    mined = loop.folder / "round_1/mined/mined.json"
    mined.write_text(json.dumps(json.loads(mined.read_text())[1:]))  # a person took one out
    done = list(cheap.calls)
    loop = Loop(loop.folder)
    while not (isinstance(pending := loop.pending(), PendingStage) and pending.stage.name == "train"):
        loop.next()
    assert cheap.calls[len(done) :] == ["1 assemble", "1 validate"]


def test_the_control_is_trained_beside_the_round(cheap: Cheap, tmp_path: Path) -> None:
    loop, ending = carried_out(tmp_path, "control=true", "stop.rounds=1")
    assert ending.rule == "rounds" and {"1 control train", "1 control evaluate"} <= set(cheap.calls)
    table = json.loads((write_report(loop).parent / "report.json").read_text())
    assert table["rounds"][1]["control"]["accuracy"] == 0.7


def test_rules_of_a_loop_can_change_and_nothing_else(cheap: Cheap, tmp_path: Path) -> None:
    loop, ending = carried_out(tmp_path, "stop.rounds=1")
    assert ending.rule == "rounds" and create(loop.folder, wanted(tmp_path, "stop.rounds=1"))[1] == "unchanged"
    again, how = create(loop.folder, wanted(tmp_path, "stop.rounds=2"))
    assert how == "changed" and isinstance(again.pending(), PendingStage)
    assert to_the_end(again).rule == "rounds" and again.state.rounds[-1].number == 2
    assert cheap.calls.count("None test") == 1  # once, whatever follows
    for other in (
        wanted(tmp_path, "stop.rounds=2", "augment=true"),
        wanted(tmp_path, "stop.rounds=2", model=str(tmp_path)),
    ):
        with pytest.raises(ProblemError, match=r"DEFT_FOLDER.*\n.*these differ"):
            create(loop.folder, other)


def test_two_programs_do_not_carry_out_one_loop(cheap: Cheap, tmp_path: Path) -> None:
    loop, _ = create(tmp_path / "loop", wanted(tmp_path))
    with loop.alone(), pytest.raises(ProblemError, match="BUSY"), Loop(loop.folder).alone():
        pass
    with Loop(loop.folder).alone():
        assert isinstance(loop.pending(), PendingStage)


@pytest.mark.parametrize(
    "sets",
    [
        *("stop.rounds=0", "stop.round=2", "sets.kpi_looks=-1", "where.platform=moon", "audit"),
        *("stop.budget_hours=inf", "stop.slice_points=nan"),
        *("stop.target=[", "stop.target={a: b: c", "words.mine='--per-gap 4"),
        *("words.mine=--per-gap 0", "words.assemble=--max-per-kind=-1", "words.gaps=--json", "study=--spec other.toml"),
        *("study=--metric val/avg_los", "train=train.output_dir=/tmp", "train=custom.train_dataset.media_path=/tmp"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path: Path, sets: str) -> None:
    with pytest.raises(ProblemError, match="did you mean val/avg_loss" if "avg_los" in sets else "USAGE"):
        create(tmp_path / "loop", wanted(tmp_path, sets))
    assert not (tmp_path / "loop").exists()


@pytest.mark.parametrize(
    ("sets", "code"),
    [
        *(("train=num_epoch=2", "SPEC_UNKNOWN_KEY"), ("train=num_epochs", "SPEC_FILE")),
        *(("train=num_epochs=abc", "SPEC_VALUE"), ("model=/nowhere", "SPEC_PARENT_RUN")),
    ],
)
def test_keys_of_trainings_and_the_model_are_checked_before_a_loop_begins(tmp_path: Path, sets: str, code: str) -> None:
    with pytest.raises(ProblemError, match=code):
        create(tmp_path / "loop", wanted(tmp_path, sets))
    assert not (tmp_path / "loop").exists()


def test_a_file_is_no_place_for_a_loop(tmp_path: Path) -> None:
    (tmp_path / "loop").write_text("mine")
    with pytest.raises(ProblemError, match="DEFT_FOLDER"):
        create(tmp_path / "loop", wanted(tmp_path))


def test_a_setting_that_is_none_is_answered_with_those_that_are_near(tmp_path: Path) -> None:
    with pytest.raises(ProblemError, match="there is no such setting") as wrong:
        create(tmp_path / "loop", wanted(tmp_path, "stop.round=2"))
    assert wrong.value.problems[0].where == "stop.round" and "stop.rounds" in wrong.value.problems[0].remedy


def test_all_wrong_settings_are_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(ProblemError) as wrong:
        create(tmp_path / "loop", wanted(tmp_path, "stop.round=2", "stop.patience=0", "model.wings=1"))
    assert {problem.where for problem in wrong.value.problems} == {"stop.round", "stop.patience", "model"}


@pytest.mark.parametrize(
    "words", [("status", "--labels", "x"), ("run", "--set", "stop.rounds=2"), ("report", "--kpi", "x")]
)
def test_an_option_that_a_verb_does_not_take_is_refused(tmp_path: Path, words: tuple[str, ...]) -> None:
    verb, *options = words
    refused = run_here([sys.executable, str(SKILL_ROOT / "scripts/run_deft.py"), verb, "loop", *options], cwd=tmp_path)
    assert refused.returncode == 2 and f"{verb} takes no {options[0]}" in refused.stderr


def test_an_embedding_costs_once_and_again_where_the_pool_has_changed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    loop, _ = create(tmp_path / "loop", wanted(tmp_path))
    monkeypatch.setattr(data_stages, "evaluated_model", lambda model: {"model.model_name": model})
    for number, (run, seconds) in enumerate((("one", 5), ("one", 0), ("two", 5)), 1):
        monkeypatch.setattr(runner, "job", lambda *_, run=run: (tmp_path / run, {}, Cost(seconds=5)))
        result = data_stages.embed(StageContext(loop.folder, loop.state, number))
        assert result.cost.seconds == seconds
        outputs = {name: Output(path=str(path), fingerprint="") for name, path in result.outputs.items()}
        loop.state.rounds += [RoundState(number=at) for at in range(len(loop.state.rounds), number + 1)]
        loop.state.rounds[number].stages["embed"] = StageState(inputs={}, outputs=outputs)


def test_two_sets_in_one_folder_are_refused(tmp_path: Path) -> None:
    asked = wanted(tmp_path)
    with pytest.raises(ProblemError, match="CURATION_LEAK"):
        create(tmp_path / "loop", replace(asked, folders={**asked.folders, "kpi": asked.folders["pool"]}))
    file = f"{asked.folders['selection']}/annotations.json"
    with pytest.raises(ProblemError, match="CURATION_LEAK"):
        create(tmp_path / "loop", replace(asked, folders={**asked.folders, "pool": file}))


@pytest.mark.parametrize("file", ["/annotations.json", ""])
@pytest.mark.parametrize(("part", "name"), [("train", "selection"), ("val", "selection"), ("train", "kpi")])
def test_a_set_that_the_training_reads_is_refused_before_any_job(
    tmp_path: Path, part: str, name: str, file: str
) -> None:
    asked = wanted(tmp_path)
    values = {f"custom.{part}_dataset.annotation_path": f"{asked.folders[name]}{file}"}
    asked.train_spec.write_text(dump(with_values(load(asked.train_spec, "train"), values)))
    with pytest.raises(ProblemError, match=f"CURATION_LEAK.*\n.*{name} set and custom.{part}_dataset"):
        create(tmp_path / "loop", asked)
    assert not (tmp_path / "loop").exists()


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "loop").mkdir()
    (tmp_path / "loop/notes.txt").write_text("mine")
    with pytest.raises(ProblemError, match="DEFT_FOLDER"):
        create(tmp_path / "loop", wanted(tmp_path))
    assert [path.name for path in (tmp_path / "loop").iterdir()] == ["notes.txt"]
