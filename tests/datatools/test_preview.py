"""Previews: the pieces are all of the sample and nothing else, learned where the engine learns, media as planned."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from tiny_world import tiny_data, tiny_model, tiny_spec
from transformers import AutoProcessor

from tests.programs import run_here
from vidqa import spec
from vidqa.core.cli import SKILL_ROOT
from vidqa.core.problem import ProblemError
from vidqa.data import load_records
from vidqa.datatools.preview import Preview, pick, preview_page, previews, terminal_text
from vidqa.planning.samples import Planner, training_planner

SCRIPT = [sys.executable, str(SKILL_ROOT / "scripts/preview_samples.py")]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    folder = tmp_path_factory.mktemp("world")
    model, root = tiny_model(folder), tiny_data(folder, clips=3)
    rows = json.loads((root / "annotations.json").read_text())
    chat = [
        {"from": "system", "value": "Be brief."},
        {"from": "human", "value": "Compare <video> with <image> and end with Yes"},
        {"from": "gpt", "value": "Yes"},
        {"from": "human", "value": "And é?"},
        {"from": "gpt", "value": "Nein, <b>日本</b>"},
    ]
    rows.append({"id": "long", "video": "videos/1.mp4", "image": "images/0.png", "conversations": chat})
    (root / "annotations.json").write_text(json.dumps(rows))
    return model, root, tiny_spec(folder, model, root)


@pytest.fixture(scope="module")
def planner(world: tuple[Path, Path, Path]) -> Planner:
    return training_planner(spec.load(world[2], "train"), world[0])


@pytest.fixture(scope="module")
def made(world: tuple[Path, Path, Path], planner: Planner) -> list[Preview]:
    found, problems = previews(planner, load_records(world[1]))
    assert problems == []
    return found


def test_the_pieces_are_the_whole_sample(made: list[Preview], planner: Planner, world: tuple[Path, Path, Path]) -> None:
    """By transformers' tokenizer: the texts and the expanded media together are what the ids decode to."""
    tokenizer = AutoProcessor.from_pretrained(world[0]).tokenizer
    for preview in made:
        encoded = planner.encode(preview.sample)
        parts = [p.text if p.plan is None else planner.family.expand(p.plan, 2) for p in preview.pieces]
        assert "".join(parts) == tokenizer.decode(encoded.token_ids)
        assert sum(p.tokens for p in preview.pieces) == len(encoded.token_ids)
        learned = np.concatenate([np.full(p.tokens, p.kind == "learned") for p in preview.pieces])
        assert (learned == encoded.supervised).all()


def test_what_is_learned_are_the_answers(made: list[Preview]) -> None:
    for preview in made:
        answers = [turn.text + "<|im_end|>" for turn in preview.record.turns if turn.role == "assistant"]
        assert [p.text for p in preview.pieces if p.kind == "learned"] == answers
        assert [p.ref for p in preview.pieces if p.ref] == list(preview.record.media)


def test_without_colour_brackets_mark_it(made: list[Preview]) -> None:
    text = terminal_text(made[-1:], colour=False)
    assert "\x1b" not in text and "[[Yes<|im_end|>]]" in text and "[[Nein, <b>日本</b><|im_end|>]]" in text
    assert "video videos/1.mp4: 4 frames 0 (0.00 s)" in text and "image images/0.png: " in text
    coloured = terminal_text(made[-1:], colour=True)
    assert "[[" not in coloured and "\x1b[" in coloured


def test_colours_are_ours_alone(made: list[Preview]) -> None:
    first = made[0]
    hostile = replace(first, pieces=(replace(first.pieces[0], text="\x1b[8mhidden\x1b[0m \x07"), *first.pieces[1:]))
    assert "\\x1b[8mhidden\\x1b[0m \\x07" in terminal_text([hostile], colour=True)


class Marks(HTMLParser):
    """Texts inside <mark>, tags that are not ours, and sources of images."""

    def __init__(self) -> None:
        super().__init__()
        self.marked: list[str] = []
        self.sources: list[str] = []
        self.tags: set[str] = set()
        self.inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.inside = tag == "mark"
        self.sources += [value or "" for name, value in attrs if name == "src"]

    def handle_endtag(self, tag: str) -> None:
        self.inside = False

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.marked.append(data)


def test_the_page_marks_it_and_shows_every_planned_frame(made: list[Preview]) -> None:
    page = Marks()
    page.feed(preview_page("Samples", made, []))
    assert page.marked == [p.text for preview in made for p in preview.pieces if p.kind == "learned"]
    frames = sum(len(plan.indices) or 1 for preview in made for plan in preview.sample.plans)
    assert len(page.sources) == frames and all(s.startswith("data:image/jpeg;base64,/9j/") for s in page.sources)
    assert not page.tags & {"b", "script", "link", "iframe"}


def test_what_the_processor_sees_for_generation(made: list[Preview], planner: Planner) -> None:
    prompt, problems = previews(planner.for_generation(), [made[0].record])
    assert problems == [] and [p.kind for p in prompt[0].pieces] == ["given", "video", "given"]
    assert prompt[0].pieces[-1].text.endswith("<|im_start|>assistant\n")
    assert "expected: Yes." in terminal_text(prompt, colour=False)


def test_a_question_without_an_answer_is_warned_of(made: list[Preview], planner: Planner) -> None:
    record = replace(made[0].record, turns=made[0].record.turns[:1])
    _, problems = previews(planner, [record])
    assert [(p.code, p.severity) for p in problems] == [("DATA_FIELD", "warning")]


def test_samples_are_spread_or_named(made: list[Preview]) -> None:
    records = [preview.record for preview in made]
    assert pick(records, [], 3) == [records[0], records[round((len(records) - 1) / 2)], records[-1]]
    assert pick(records, [], 99) == records and pick(records, ["long", "r0"], 3) == [records[-1], records[0]]
    with pytest.raises(ProblemError) as unknown:
        pick(records, ["lung", "r1"], 3)
    assert [p.code for p in unknown.value.problems] == ["USAGE"]
    assert "'long'" in unknown.value.problems[0].remedy


def test_the_script_says_the_same_as_json_text_and_page(world: tuple[Path, Path, Path], tmp_path: Path) -> None:
    words = [*SCRIPT, "--spec", str(world[2]), "--sample", "long", "r0", "--html", "p.html"]
    done = run_here([*words, "--json"], cwd=tmp_path)
    said = json.loads(done.stdout)
    assert done.returncode == 0, said
    assert [sample["id"] for sample in said["data"]["samples"]] == ["long", "r0"]
    piece = next(piece for piece in said["data"]["samples"][0]["pieces"] if piece["kind"] == "video")
    assert (
        len(piece["indices"]) == 4 == len(piece["times_s"])
        and "Content-Security-Policy" in (tmp_path / "p.html").read_text()
    )
    shown = run_here(words, cwd=tmp_path)
    assert "[[Yes<|im_end|>]]" in shown.stdout and "Traceback" not in shown.stderr


def test_a_terminal_gets_colour(world: tuple[Path, Path, Path], tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen([*SCRIPT, "--spec", str(world[2]), "--count", "1"], stdout=theirs, cwd=tmp_path)
    os.close(theirs)
    seen = b""
    try:
        while block := os.read(ours, 65536):
            seen += block
    except OSError:  # the other end is closed
        pass
    assert process.wait() == 0 and b"\x1b[" in seen and b"[[" not in seen


def test_the_prompts_of_an_evaluation(world: tuple[Path, Path, Path], tmp_path: Path) -> None:
    model, root, _ = world
    keys = {"model.model_name": str(model), "dataset.annotation_path": str(root / "annotations.json")}
    keys |= {"dataset.media_dir": str(root), "vision.nframes": 2, "dataset.system_prompt": "Be exact."}
    made = spec.resolve("evaluate", [spec.Layer("test", keys)]).spec
    (tmp_path / "eval.toml").write_text(spec.dump(made))
    done = run_here([*SCRIPT, "--spec", "eval.toml", "--count", "2"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Be exact." in done.stdout and "expected: Yes." in done.stdout and "[[" not in done.stdout
    rows = [{"video": name, "question": "Is it open?", "answer": "Yes"} for name in ("broken.mp4", "videos/1.mp4")]
    (root / "broken.mp4").write_bytes((root / "videos/1.mp4").read_bytes()[:900])
    keys["dataset.annotation_path"] = str(tmp_path / "annotations.json")
    (tmp_path / "annotations.json").write_text(json.dumps(rows))
    for policy, code in (("fail", 3), ("quarantine", 0)):  # the job of the second leaves it out
        made = spec.resolve("evaluate", [spec.Layer("test", {**keys, "engine.on_bad_sample": policy})]).spec
        (tmp_path / "eval.toml").write_text(spec.dump(made))
        done = run_here([*SCRIPT, "--spec", "eval.toml", "--count", "2", "--json"], cwd=tmp_path)
        said = json.loads(done.stdout)
        assert done.returncode == code and [problem["code"] for problem in said["problems"]] == ["MEDIA_UNREADABLE"]


def test_wrong_records_are_told_and_the_others_shown(world: tuple[Path, Path, Path], tmp_path: Path) -> None:
    model, root, _ = world
    rows = json.loads((root / "annotations.json").read_text())
    del rows[1]["conversations"]
    (tmp_path / "data").mkdir()
    (tmp_path / "data/annotations.json").write_text(json.dumps(rows))
    path = tiny_spec(tmp_path, model, tmp_path / "data", {"custom.train_dataset.media_path": str(root)})
    done = run_here([*SCRIPT, "--spec", str(path), "--json"], cwd=tmp_path)
    said = json.loads(done.stdout)
    assert done.returncode == 3 and said["problems"][0]["code"] == "DATA_FIELD"
    assert len(said["data"]["samples"]) == 3
