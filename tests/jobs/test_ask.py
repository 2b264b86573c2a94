"""infer.py: questions about files, answered by a real engine; what cannot be asked is said before one starts."""

from __future__ import annotations

import csv
import json
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from programs import run_here
from tiny_world import tiny_data, tiny_model

from vidqa.core.cli import SKILL_ROOT
from vidqa.core.problem import ProblemError
from vidqa.data import load_records
from vidqa.data.record import Record
from vidqa.jobs import local_job
from vidqa.jobs.local_job import Question, ask, rows_of_table, shown
from vidqa.jobs.platforms._base import Job
from vidqa.jobs.platforms.processes import ProcessIdentity
from vidqa.spec.parent_layers import model_layer

TINY = ("--set", "model.dtype=float32", "--set", "generation.max_tokens=6", "--set", "vision.nframes=4")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("asked")
    tiny_model(folder)
    tiny_data(folder, clips=2)
    (folder / "data/videos/2.mp4").write_bytes(b"no video")
    return folder


def infer(*words: object) -> subprocess.CompletedProcess[str]:
    return run_here([sys.executable, str(SKILL_ROOT / "scripts/infer.py"), *map(str, words)], cwd=SKILL_ROOT)


def test_every_question_is_asked_about_every_file(world: Path, tmp_path: Path) -> None:
    (tmp_path / "questions.txt").write_text("Is it (A) few or (B) many?\n\n  Why?\n", encoding="utf-8")
    (world / "data/videos/answers.jsonl").write_text('{"id": "0"}\n')  # of an earlier call; it is no annotation
    media = ("--video", world / "data/videos", "--image", world / "data/images/0.png")
    words = ("--questions", tmp_path / "questions.txt", "--out", tmp_path / "run", "--jsonl", tmp_path / "all.jsonl")
    words += ("--csv", tmp_path / "all.csv")
    command = [sys.executable, SKILL_ROOT / "scripts/infer.py", "--model", world / "model", *media, *words, *TINY]
    done = subprocess.run([*map(str, command), "--json"], capture_output=True, text=True)
    assert done.returncode == 3, done.stderr  # one file is broken; the others are answered
    found = json.loads(done.stdout)
    rows = found["data"]["answers"]
    assert [(Path(row["media"][0]).name, row["question"]) for row in rows] == [
        (name, question)
        for name in ("0.mp4", "1.mp4", "2.mp4", "0.png")
        for question in ("Is it (A) few or (B) many?", "Why?")
    ]
    assert [row["status"] == "error" for row in rows] == [False] * 4 + [True] * 2 + [False] * 2
    (problem,) = found["problems"]  # of two questions about one file
    assert (problem["code"], problem["where"]) == ("MEDIA_UNREADABLE", str(world / "data/videos/2.mp4"))
    assert [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()] == rows
    with (tmp_path / "all.csv").open(newline="", encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    assert [(each["file"], each["question"], each["answer"], each["status"]) for each in table] == [
        (row["media"][0], row["question"], row["response"] or "", row["status"]) for row in rows
    ]
    assert (tmp_path / "run/answers.parquet").is_file() and found["data"]["count"] == 8
    assert "Loading weights" not in done.stdout


def test_a_table_of_questions_is_not_replaced_by_answers(world: Path, tmp_path: Path) -> None:
    (tmp_path / "q.csv").write_text("video,question\na.mp4,Why?\n")
    words = ("--model", world / "model", "--video", world / "data/videos/0.mp4", "--csv", tmp_path / "q.csv")
    done = infer(*words, "--json")
    (problem,) = json.loads(done.stdout)["problems"]
    assert problem["code"] == "ENV_FILE_REFUSED" and "--questions FILE.csv" in problem["remedy"]
    assert (tmp_path / "q.csv").read_text().startswith("video,question")


def views(record: Record) -> tuple[Any, ...]:
    return record.question, [medium.view for medium in record.media], record.turns[0].role


def test_a_table_of_questions_asks_each_about_its_own_video(world: Path, tmp_path: Path) -> None:
    (tmp_path / "q.csv").write_text(f"file,question,answer\n{world}/data/videos/0.mp4,Why?,\nb.png,<image>Is it?,x\n")
    (tmp_path / "b.png").write_bytes((world / "data/images/0.png").read_bytes())
    part = {"type": "video", "video": str(tmp_path / "../a.mp4"), "fps": 2.0}
    shutil.copy(world / "data/videos/1.mp4", tmp_path.parent / "a.mp4")
    turns = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": [part, {"type": "text", "text": "a <video>"}]},
    ]
    (tmp_path / "q.json").write_text(json.dumps([{"messages": turns}]))
    for name in ("q.csv", "q.json"):
        rows = rows_of_table(tmp_path / name)
        (tmp_path / "asked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        before, after = (load_records(tmp_path / file, need_answers=False) for file in (name, "asked.jsonl"))
        assert [views(record) for record in before] == [views(record) for record in after]
        assert all(record.turns[-1].role == "user" for record in after) and len(rows) == (2 if name == "q.csv" else 1)
    assert "<think>" in rows_of_table(tmp_path / "q.csv", reasoning=True)[0]["messages"][0]["content"][-1]["text"]
    done = infer("--model", world / "model", "--questions", tmp_path / "q.csv", "--video", tmp_path / "b.png", "--json")
    assert done.returncode == 2 and "leave --video" in json.loads(done.stdout)["problems"][0]["message"]
    (tmp_path / "q.csv").write_text(f"video,question\nabsent.mp4,Why?\n{world}/data/videos/0.mp4,Why?\n")
    done = infer("--model", world / "model", "--questions", tmp_path / "q.csv", *TINY, "--json")
    assert done.returncode == 3, done.stderr
    assert [row["status"] == "error" for row in json.loads(done.stdout)["data"]["answers"]] == [True, False]
    (tmp_path / "q.csv").write_text("file,answer\na.mp4,x\n")
    with pytest.raises(ProblemError, match="there is no column question;"):
        rows_of_table(tmp_path / "q.csv")


def test_the_engine_ends_with_a_killed_script(world: Path) -> None:
    words = ("--model", str(world / "model"), "--video", str(world / "data/videos"), *TINY)
    endless = ("--set", "generation.max_tokens=100000", "--set", "generation.repetition_penalty=0.1")
    script = subprocess.Popen([sys.executable, str(SKILL_ROOT / "scripts/infer.py"), *words, *endless])
    deadline = time.monotonic() + 800
    while not (engine := engine_of(script.pid)):
        assert script.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    script.kill()
    script.wait()
    try:
        while engine.is_alive:
            assert time.monotonic() < deadline, "it lives on"
            time.sleep(0.05)
    finally:
        engine.send_signal(signal.SIGKILL)


def engine_of(pid: int) -> ProcessIdentity | None:
    """The engine among the children of a process, others of which come and go."""
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with suppress(FileNotFoundError, ProcessLookupError):
            if b"vidqa.engine.torchrun" in Path(f"/proc/{child}/cmdline").read_bytes():
                return ProcessIdentity.of_pid(int(child))
    return None


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ({"media": ("absent.mp4",)}, "DATA_MEDIA_MISSING"),
        ({"model": "absent"}, "SPEC_PARENT_RUN"),
        ({"sets": ("inference.window=3",)}, "SPEC_UNKNOWN_KEY"),
        ({"sets": ("inference.window_s=3", "inference.overlap_s=3")}, "SPEC_CONFLICT"),
        ({"which": "best"}, "SPEC_PARENT_RUN"),
        ({"out": Path("data")}, "OUTPUT_EXISTS"),
        ({"out": Path("kept")}, "OUTPUT_EXISTS"),
        ({"out": Path("damaged")}, "OUTPUT_EXISTS"),
        ({"out": Path("lists")}, "OUTPUT_EXISTS"),
        ({"media": ("model/config.json",)}, "DATA_MEDIA_MISSING"),
        ({"media": ("model",)}, "DATA_MEDIA_MISSING"),
    ],
)
def test_what_cannot_be_asked_is_said_before_an_engine_starts(
    world: Path, monkeypatch: pytest.MonkeyPatch, words: dict[str, Any], code: str
) -> None:
    monkeypatch.chdir(world)
    earlier = {"id": "0", "video": str(world / "data/videos/0.mp4"), "question": "Is it open?"}
    for name, text in {"kept": json.dumps(earlier), "damaged": '{"id": "0",', "lists": "[1]"}.items():
        (world / name).mkdir(exist_ok=True)
        (world / name / "asked.jsonl").write_text(text + "\n")
    with pytest.raises(ProblemError) as refused:
        ask(Question(**{"model": "model", "media": ("data/videos/0.mp4",), **words}))
    assert [problem.code for problem in refused.value.problems] == [code]


def test_an_answer_may_hold_line_ends_of_text(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"response": "One.\u2028Two.\x85Three."}

    def answer(job: Job) -> None:
        (job.run_dir / "answers.jsonl").write_text(json.dumps(row, ensure_ascii=False) + "\n", encoding="utf-8")

    monkeypatch.setattr(local_job, "run_engine", answer)
    assert ask(Question(str(world / "model"), (str(world / "data/videos/0.mp4"),))) == [row]


def test_a_command_line_without_a_file_is_wrong(world: Path) -> None:
    assert infer("--model", world / "model").returncode == 2


def test_an_adapter_outside_of_a_run_names_its_base(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "hf_model://nvidia/X"}))
    table = model_layer("inference", str(tmp_path)).table
    assert table["model.enable_lora"] and table["model.base_model_path"] == "hf_model://nvidia/X"


ROW = {"media": ["/data/a.mp4"], "question": "Is it?", "response": "Yes.", "status": "parsed", "finish_reason": "stop"}


def test_one_answer_stands_alone_and_several_with_their_questions() -> None:
    row = {**ROW, "tokens": 1, "windows": [], "spans_s": [], "rule": ""}
    assert shown([row], 1, []) == "Yes."
    long = {**row, "windows": [{}], "spans_s": [[0, 30.0]], "rule": "yes if any says yes"}
    assert shown([row, long], 3, ["all.jsonl"]) == (
        "a.mp4: Is it?\nYes.\n\na.mp4: Is it?\nYes.\n(from 0 to 30 s; yes if any says yes)\n\n"
        "... and 1 more, in all.jsonl"
    )
    window = {"start_s": 0, "end_s": 2.5, "response": "perhaps"}
    open_ended = {**long, "response": "", "status": "undecided", "spans_s": [], "windows": [window]}
    assert shown([open_ended], 1, []).endswith("(undecided: yes if any says yes)\n0-2.5 s: perhaps")
    cut = {**row, "finish_reason": "length", "tokens": 6}
    assert "cut off after 6 tokens" in shown([cut], 1, [])
