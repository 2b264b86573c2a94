"""What becomes of a loop, by the scripts that it calls: gaps, mining, assembly, preflight and comparison are real."""

from __future__ import annotations

import json
import os
import shutil
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from table_jobs import Answers, Jobs, write_sets

from demo.clips import pool_clips, selection_clips, train_clips
from demo.scenes import render
from vidqa.core.files import write_json
from vidqa.core.problem import Exit, ProblemError
from vidqa.evaluation.metrics import score
from vidqa.gaps.deft import commands, runner
from vidqa.gaps.deft.commands import LoopConfig, create, go_on
from vidqa.gaps.deft.loop import Loop, PendingStage
from vidqa.gaps.deft.report import write_report
from vidqa.gaps.deft.state import Ending
from vidqa.spec import Layer, dump, resolve
from vidqa.video.encode import write_h264


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sets of demo clips and a tiny model: a sixth of what is asked about is diagonal, the rest the model knows."""
    clips = sorted(selection_clips(0)[:40], key=lambda clip: all(asked.kind != "diagonal" for asked in clip.questions))
    folder = tmp_path_factory.mktemp("world")
    return write_sets(folder, train=train_clips(8, 0), selection=clips[:24], pool=pool_clips(40, 0))


@pytest.fixture(scope="module")
def large_world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With as many clips as it takes to prove a gain; a fifth of them is diagonal."""
    folder = tmp_path_factory.mktemp("world")
    return write_sets(folder, train=train_clips(16, 0), selection=selection_clips(0)[:40], pool=pool_clips(60, 0))


def begun(world: Path, place: Path, *sets: str, **folders: Path) -> Loop:
    table: dict[str, Any] = {
        "custom.train_dataset.annotation_path": str(world / "train/annotations.json"),
        "custom.train_dataset.media_path": str(world / "train"),
        "policy.model_name_or_path": str(world / "model"),
        "policy.model_max_length": 4096,
        "custom.vision.nframes": 4,
        "train.param_dtype": "float32",
        "train.train_batch_per_replica": 4,
    }
    measured = {
        "dataset.annotation_path": str(world / "selection/annotations.json"),
        "dataset.media_dir": str(world / "selection"),
        "model.model_name": str(world / "model"),
        "vision.nframes": 4,
    }
    place.mkdir(exist_ok=True)
    (place / "train.toml").write_text(dump(resolve("train", [Layer("test", table)]).spec))
    (place / "evaluate.toml").write_text(dump(resolve("evaluate", [Layer("test", measured)]).spec))
    places = {"selection": world / "selection", "pool": world / "pool", **folders}
    named: dict[str, str | None] = {name: str(each) for name, each in places.items()}
    return create(place / "loop", LoopConfig(place / "train.toml", place / "evaluate.toml", named, sets=list(sets)))[0]


def ended(monkeypatch: pytest.MonkeyPatch, loop: Loop, answers: Answers) -> tuple[Ending, Jobs]:
    jobs = Jobs(answers)
    monkeypatch.setattr(runner, "job", jobs)
    while not isinstance(step := loop.next(), Ending):
        pass
    write_report(loop)
    return step, jobs


def knows_all(model: str, sample: dict[str, Any]) -> str:
    return str(sample["gt"])


def lacks_diagonals(model: str, sample: dict[str, Any]) -> str:
    return "up" if sample["kind"] == "diagonal" else str(sample["gt"])


def learns_diagonals_and_forgets_colors(model: str, sample: dict[str, Any]) -> str:
    if "safetensors" not in model:
        return lacks_diagonals(model, sample)
    return "pink" if sample["kind"] == "color" else str(sample["gt"])


def learns_diagonals(model: str, sample: dict[str, Any]) -> str:
    return str(sample["gt"]) if "safetensors" in model else lacks_diagonals(model, sample)


@pytest.mark.slow
def test_what_is_like_the_gaps_is_mined_and_a_better_model_is_kept(
    monkeypatch: pytest.MonkeyPatch, large_world: Path, tmp_path: Path
) -> None:
    loop = begun(large_world, tmp_path, "stop.target=0.99", "stop.rounds=2", "words.mine=--per-gap 2")
    ending, jobs = ended(monkeypatch, loop, learns_diagonals)
    assert ending.rule == "target" and jobs.launched == ["evaluate", "embed", "train", "evaluate"]
    mined = json.loads((loop.folder / "round_1/mined/mined.json").read_text())
    pool = json.loads((large_world / "pool/annotations.json").read_text())
    wanted = {row["id"] for row in pool if row["kind"] == "diagonal"}
    assert 0 < len(wanted) < 0.05 * len(pool) and wanted <= {row["id"] for row in mined} and len(mined) <= 16
    rows = json.loads((loop.folder / "round_1/train_set/annotations.json").read_text())
    assert len(rows) == len(json.loads((large_world / "train/annotations.json").read_text())) + len(mined)
    told = json.loads((loop.folder / "report.json").read_text())["rounds"][1]
    assert told["accepted"] and told["by_kind"]["diagonal"]["accuracy"] == 1.0 and "Accepted" in told["why"]
    page = (loop.folder / "report.html").read_text()
    assert page.count("<img") >= 4 * min(12, len(mined)) and "0.00 h" not in page
    assert '<div class="q">Which way' in page, "no empty line where the tag of the video was"


@pytest.mark.slow
def test_a_planted_regression_is_rolled_back(
    monkeypatch: pytest.MonkeyPatch, large_world: Path, tmp_path: Path
) -> None:
    loop = begun(large_world, tmp_path, "stop.rounds=2", "words.mine=--per-gap 1")
    ending, jobs = ended(monkeypatch, loop, learns_diagonals_and_forgets_colors)
    assert ending.rule == "regression" and "color" in ending.sentence and jobs.launched.count("train") == 1
    assert loop.state.accepted and loop.state.accepted.round == 0
    assert loop.state.accepted.model == str(large_world / "model")


def test_a_model_without_gaps_ends_the_loop(monkeypatch: pytest.MonkeyPatch, world: Path, tmp_path: Path) -> None:
    ending, jobs = ended(monkeypatch, begun(world, tmp_path), knows_all)
    assert ending.rule == "no gaps" and "train" not in jobs.launched


def test_scores_by_other_answer_rules_are_computed_again(
    monkeypatch: pytest.MonkeyPatch, world: Path, tmp_path: Path
) -> None:
    """The job of an evaluation may be one of an earlier version, and the target is one of the present rules."""
    loop, jobs = begun(world, tmp_path, "stop.target=0.99"), Jobs(knows_all)
    by_present_rules = jobs.evaluate

    def by_earlier_rules(run: Path, asked: dict[str, Any]) -> None:
        by_present_rules(run, asked)
        metrics = json.loads((run / "metrics.json").read_text())
        write_json(run / "metrics.json", {**metrics, "answer_rules": "vidqa.answers.v1", "accuracy": 0.0})

    monkeypatch.setattr(jobs, "evaluate", by_earlier_rules)
    monkeypatch.setattr(runner, "job", jobs)
    while not isinstance(step := loop.next(), Ending):
        pass
    write_report(loop)
    table = json.loads((loop.folder / "report.json").read_text())
    assert step.rule == "target" and table["rounds"][0]["accuracy"] == table["accepted"]["accuracy"] == 1.0


def test_a_target_of_a_kind_that_is_not_there_is_refused_and_in_an_earlier_loop_a_gate_until_it_is_corrected(
    monkeypatch: pytest.MonkeyPatch, world: Path, tmp_path: Path
) -> None:
    target = "stop.target=0.5 stop.target_kind="
    mistyped = f"{target}colour".split()
    with pytest.raises(ProblemError, match=r"stop.target_kind(.|\n)*'colour'(.|\n)*name one of color$"):
        begun(world, tmp_path, *mistyped)
    with monkeypatch.context() as earlier:
        earlier.setattr(commands, "_check_target", lambda settings: None)
        loop = begun(world, tmp_path, *mistyped)
    with pytest.raises(ProblemError, match=r"stop.target_kind(.|\n)*'colour'(.|\n)*color"):
        ended(monkeypatch, loop, knows_all)
    assert ended(monkeypatch, begun(world, tmp_path, *f"{target}color".split()), knows_all)[0].rule == "target"


def test_a_selection_set_without_answers_is_a_gate(
    monkeypatch: pytest.MonkeyPatch, world: Path, tmp_path: Path
) -> None:
    loop = begun(world, tmp_path)
    jobs = Jobs(knows_all)
    monkeypatch.setattr(runner, "job", jobs)
    sound = jobs.evaluate

    def without_answers(run: Path, asked: dict[str, Any]) -> None:
        sound(run, asked)
        items = [{**item, "gt": "", "correct": None} for item in json.loads((run / "results.json").read_text())]
        write_json(run / "metrics.json", score(items, ""))

    monkeypatch.setattr(jobs, "evaluate", without_answers)
    with pytest.raises(ProblemError, match="none of its questions has an expected answer"):
        loop.next()
    (run,) = (loop.folder / "runs").glob("evaluate-*")
    (run / "metrics.json").write_text('{"accuracy": 1')
    monkeypatch.setattr(jobs, "evaluate", lambda *_: None)
    with pytest.raises(ProblemError, match=r"DEFT_GATE(.|\n)*metrics.json"):
        loop.next()


def test_a_pool_without_anything_like_the_gaps_ends_the_loop(
    monkeypatch: pytest.MonkeyPatch, world: Path, tmp_path: Path
) -> None:
    loop = begun(world, tmp_path, "words.mine=--threshold 0.99")
    ending, jobs = ended(monkeypatch, loop, lacks_diagonals)
    assert ending.rule == "no new samples" and "train" not in jobs.launched


def test_a_damaged_gap_table_is_a_gate_and_no_end(monkeypatch: pytest.MonkeyPatch, world: Path, tmp_path: Path) -> None:
    loop = begun(world, tmp_path)
    monkeypatch.setattr(runner, "job", Jobs(lacks_diagonals))
    while not (isinstance(step := loop.next(), PendingStage) and step.stage.name == "audit"):
        pass
    (loop.folder / "round_1/gaps.parquet").write_text("no table")
    with pytest.raises(ProblemError, match="CURATION_INPUT"):
        while loop.next():
            pass
    assert loop.state.ending and loop.state.ending.rule == "hard gate"


def test_doubtful_labels_wait_for_a_person_and_are_no_gaps_then(
    monkeypatch: pytest.MonkeyPatch, world: Path, tmp_path: Path
) -> None:
    """Two records ask the same of one clip and differ in the answer."""
    rows = json.loads((world / "selection/annotations.json").read_text())
    twin = next(row for row in rows if row["kind"] == "size")
    other = {"yes": "no", "no": "yes"}[twin["conversations"][1]["value"]]
    asked, _ = twin["conversations"]
    rows.append({**twin, "id": "twin", "conversations": [asked, {"from": "gpt", "value": other}]})
    selection = tmp_path / "selection"
    selection.mkdir()
    shutil.copytree(world / "selection/videos", selection / "videos", copy_function=os.link)
    (selection / "annotations.json").write_text(json.dumps(rows))
    truth = {row["id"]: row["conversations"][1]["value"] for row in rows[:-1]} | {
        "twin": twin["conversations"][1]["value"]
    }
    loop = begun(world, tmp_path / "place", selection=selection)
    ending, _ = ended(monkeypatch, loop, lambda model, sample: truth[sample["sample_id"]])
    assert ending.rule == "audit needed" and ending.waits and "audit.html" in ending.sentence
    assert "twin" in (loop.folder / "round_1/audit.html").read_text()
    answers = {"schema": "vidqa.audit_answers.v1", "answers": {"twin": {"verdict": "wrong", "answer": truth["twin"]}}}
    (loop.folder / "audit_answers.json").write_text(json.dumps(answers))
    ending, _ = ended(monkeypatch, Loop(loop.folder), lambda model, sample: truth[sample["sample_id"]])
    assert ending.rule == "no gaps"


@pytest.mark.parametrize("what", ["annotations", "nothing"])
def test_an_empty_pool_ends_the_loop(monkeypatch: pytest.MonkeyPatch, world: Path, tmp_path: Path, what: str) -> None:
    pool = tmp_path / "pool"
    pool.mkdir()
    if what == "annotations":
        (pool / "annotations.json").write_text("[]")
    ending, jobs = ended(monkeypatch, begun(world, tmp_path / "place", pool=pool), lacks_diagonals)
    assert ending.rule == "no new samples" and "train" not in jobs.launched


def test_a_selection_set_that_has_become_empty_is_a_gate(
    monkeypatch: pytest.MonkeyPatch, world: Path, tmp_path: Path
) -> None:
    selection = shutil.copytree(world / "selection", tmp_path / "selection", copy_function=os.link)
    loop = begun(world, tmp_path / "place", selection=selection)
    monkeypatch.setattr(runner, "job", Jobs(lacks_diagonals))
    loop.next()
    (selection / "annotations.json").unlink()
    (selection / "annotations.json").write_text("[]")
    with pytest.raises(ProblemError, match="DATA_EMPTY"):
        loop.next()
    assert loop.state.ending and loop.state.ending.rule == "hard gate"


def test_a_pool_of_clips_alone_reaches_its_second_round_by_a_persons_answers(
    monkeypatch: pytest.MonkeyPatch, world: Path, tmp_path: Path
) -> None:
    """What is mined becomes a page; its answers become the round's samples; the next round mines other clips."""
    pool = shutil.copytree(world / "pool/videos", tmp_path / "pool", copy_function=os.link)
    words = ("words.mine=--threshold=-1 --per-gap 1", "stop.rounds=2", "stop.patience=2")
    loop = begun(world, tmp_path / "place", *words, pool=pool)
    monkeypatch.setattr(runner, "job", jobs := Jobs(lacks_diagonals))
    mined: list[set[str]] = []
    for number in (1, 2):
        told = go_on(loop.folder, once=False)
        assert (told.data["ending"]["rule"], told.exit_code) == ("labels needed", int(Exit.NOT_DONE))
        page = loop.folder / f"round_{number}/mined/annotate.html"
        assert page.is_file() and str(page) in told.data["ending"]["sentence"] and "--labels ANSWERS" in told.next[0]
        tasks = json.loads(page.with_name("tasks.json").read_text())
        mined.append({task["id"] for task in tasks})
        labels = tmp_path / "labels.json"
        labels.write_text("{}")
        with pytest.raises(ProblemError, match="CURATION_INPUT"):
            go_on(loop.folder, labels=labels, once=True)
        labels.write_text(json.dumps([{"id": task["id"], "question": "", "answer": "up"} for task in tasks[1:]]))
        assert go_on(loop.folder, labels=labels, once=True).data["stage"] == "label"
    told = go_on(loop.folder, once=False)
    assert not mined[0] & mined[1] and told.data["ending"]["rule"] == "no progress" and told.data["rounds"] == 2
    assert jobs.launched.count("train") == 2
    assert (
        "All wrong answers are in kind diagonal (8 of 8)" in Loop(loop.folder).state.rounds[2].stages["gaps"].sentence
    )
    added = [table["added"] for table in json.loads((loop.folder / "report.json").read_text())["rounds"][1:]]
    assert added == [{"mine": 0, "label": len(names) - 1} for names in mined]
    assert f"{len(mined[0]) - 1} questions added from the pool" in (loop.folder / "report.html").read_text()
    with pytest.raises(ProblemError, match="USAGE"):
        go_on(loop.folder, labels=labels, once=True)


def test_samples_of_a_pool_that_lack_an_answer_are_counted(
    monkeypatch: pytest.MonkeyPatch, world: Path, tmp_path: Path
) -> None:
    pool = shutil.copytree(world / "pool", tmp_path / "pool", copy_function=os.link)
    rows = json.loads((pool / "annotations.json").read_text())
    for row in rows[::3]:
        row["conversations"] = row["conversations"][:1]
    (pool / "annotations.json").unlink()
    (pool / "annotations.json").write_text(json.dumps(rows))
    loop = begun(world, tmp_path / "place", "words.mine=--threshold=-1 --per-gap 4", pool=pool)
    monkeypatch.setattr(runner, "job", Jobs(lacks_diagonals))
    while not (isinstance(step := loop.next(), PendingStage) and step.stage.name == "mine"):
        pass
    mined = loop.folder / "round_1/mined"
    count, unanswered = (len(json.loads((mined / name).read_text())) for name in ("mined.json", "tasks.json"))
    sentence = loop.state.rounds[1].stages["mine"].sentence
    assert count and unanswered and f"{count} samples were mined" in sentence
    assert f"{unanswered} others have no answer" in sentence and "tasks.json" in sentence


def test_a_users_generator_augments_a_round(monkeypatch: pytest.MonkeyPatch, world: Path, tmp_path: Path) -> None:
    generator = tmp_path / "generate.py"
    generator.write_text(
        "import json, sys\n"
        "request = json.load(sys.stdin)\n"
        "row = json.load(open(request['annotations']))[0]\n"
        "json.dump([{**row, 'id': 'made'}], open(request['write_annotations'], 'w'))\n"
    )
    words = f"--generator '{sys.executable} {generator}' --licence CC0 --source here"
    sets = ("augment=true", f"words.augment={words}", "words.mine=--per-gap 1", "words.assemble=--no-balance")
    loop = begun(world, tmp_path / "place", *sets)
    monkeypatch.setattr(runner, "job", Jobs(lacks_diagonals))
    while not (isinstance(step := loop.next(), PendingStage) and step.stage.name == "augment"):
        pass
    assert "1 altered copies" in loop.state.rounds[1].stages["augment"].sentence
    assert json.loads((loop.folder / "round_1/augmented/generated.json").read_text())[0]["id"] == "made"


def test_random_samples_of_a_pool_without_answers_are_refused(world: Path, tmp_path: Path) -> None:
    with pytest.raises(ProblemError, match="random samples of it have no answers"):
        begun(world, tmp_path, "control=true", pool=world / "pool/videos")


def test_a_pool_may_be_an_annotation_file_and_sets_that_look_alike_are_named(
    monkeypatch: pytest.MonkeyPatch, world: Path, tmp_path: Path
) -> None:
    words = ("words.mine=--per-gap 1", "words.assemble=--max-per-kind 1")
    (tmp_path / "scored").mkdir()
    row = json.loads((world / "train/annotations.json").read_text())[0]
    write_json(tmp_path / "scored/annotations.json", [{**row, "id": "again", "video": "again.mp4"}])
    seen = train_clips(8, 0)[0].scene  # encoded again, with other bytes
    write_h264(tmp_path / "scored/again.mp4", render(seen), Fraction(seen.look.fps), "ultrafast", crf=30)
    loop = begun(world, tmp_path, *words, pool=world / "pool/annotations.json", kpi=tmp_path / "scored")
    monkeypatch.setattr(runner, "job", Jobs(lacks_diagonals))
    while not (isinstance(step := loop.next(), PendingStage) and step.stage.name == "assemble"):
        pass
    rows = json.loads((loop.folder / "round_1/mined/mined.json").read_text())
    assert rows and all(row["video"].startswith(str(world / "pool/videos")) for row in rows)
    left_out = json.loads((loop.folder / "round_1/train_set/assembly.json").read_text())["left_out"]
    reasons = ", ".join(f"{count} {reason}" for reason, count in left_out.items())
    assert left_out and loop.state.rounds[1].stages["assemble"].sentence.endswith(f"mined. Left out: {reasons}.")
    loop.next()
    validated = loop.state.rounds[1].stages["validate"]
    assert validated.sentence == "Preflight has passed; some clips look alike in train and scored."
    assert validated.facts["warnings"] == 1


@pytest.mark.slow
def test_clips_that_leak_are_left_out_and_said(
    monkeypatch: pytest.MonkeyPatch, large_world: Path, tmp_path: Path
) -> None:
    """A pool that holds clips of the selection set, beside clips of its own or alone."""
    pool = tmp_path / "pool"
    (pool / "videos").mkdir(parents=True)
    for clip in (large_world / "selection/videos").iterdir():
        (pool / "videos" / f"copy_{clip.name}").write_bytes(clip.read_bytes())
    rows = json.loads((large_world / "selection/annotations.json").read_text())
    copies = [{**row, "id": f"copy {row['id']}", "video": row["video"].replace("/", "/copy_")} for row in rows]
    (pool / "annotations.json").write_text(json.dumps(copies))
    loop = begun(large_world, tmp_path / "place", "words.mine=--per-gap 1", pool=pool)
    ending, jobs = ended(monkeypatch, loop, lacks_diagonals)
    assert ending.rule == "no new samples" and "leak" in ending.sentence and "train" not in jobs.launched

    own = json.loads((large_world / "pool/annotations.json").read_text())
    kept = [{**row, "video": str(large_world / "pool" / row["video"])} for row in own if row["kind"] == "diagonal"]
    (pool / "annotations.json").write_text(json.dumps([*copies, *kept]))
    loop = begun(
        large_world, tmp_path / "other", "words.mine=--per-gap 2 --duplicate-threshold 2", "stop.rounds=1", pool=pool
    )
    ending, jobs = ended(monkeypatch, loop, learns_diagonals)
    assembled = loop.state.rounds[1].stages["assemble"]
    assert jobs.launched.count("train") == 1 and assembled.facts["leaking"] > 0
    assert f"{assembled.facts['leaking']} leaking" in assembled.sentence
    names = {row["id"] for row in json.loads((loop.folder / "round_1/train_set/annotations.json").read_text())}
    assert {row["id"] for row in kept} & names and not {row["id"] for row in copies} & names
