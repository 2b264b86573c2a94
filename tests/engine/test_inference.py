"""Inference: every record gets an answer or an error, a kill loses nothing, windows of long videos are merged."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet
import pytest
from clips import write_clip
from in_process import run_here
from test_evaluation import _answers, _children, _saved, _started
from tiny_world import run_engine, tiny_data, tiny_model

from vidqa.spec import Layer, dump, resolve


def write_spec(folder: Path, world: SimpleNamespace, action: str = "inference", **over: Any) -> Path:
    table = {
        "dataset.annotation_path": str(world.root / "annotations.json"),
        "dataset.media_dir": str(world.root),
        "model.model_name": str(world.model),
        "model.dtype": "float32",
        "vision.nframes": 4,
        "generation.max_tokens": 6,
        "engine.frame_cache_dir": str(world.folder / "cache"),
        **{key.replace("__", "."): value for key, value in over.items()},
    }
    path = folder / f"{action}.toml"
    path.write_text(dump(resolve(action, [Layer("test", table)]).spec), encoding="utf-8")
    return path


def rows_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "answers.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """Records with answers, which evaluation and inference both take, and one whose video is broken."""
    folder = tmp_path_factory.mktemp("inference")
    model, root = tiny_model(folder), tiny_data(folder, clips=3)
    (root / "videos/broken.mp4").write_bytes(b"no video")
    path = root / "annotations.json"
    broken = {"id": "broken", "video": "videos/broken.mp4", "question": "Why?"}
    (root / "with_broken.json").write_text(json.dumps([*json.loads(path.read_text()), broken]))
    return SimpleNamespace(folder=folder, model=model, root=root)


@pytest.fixture(scope="module")
def finished(world: SimpleNamespace) -> Path:
    asked = str(world.root / "with_broken.json")
    run_engine("inference", write_spec(world.folder, world, dataset__annotation_path=asked), world.folder / "one")
    return world.folder / "one"


def test_answers_are_those_of_an_evaluation(world: SimpleNamespace, finished: Path) -> None:
    evaluated = run_here("evaluate", write_spec(world.folder, world, "evaluate"), world.folder / "evaluated")
    scored, rows = _answers(evaluated), rows_of(finished)
    assert [(row["id"], row["response"], row["finish_reason"]) for row in rows[:-1]] == [
        (item["sample_id"], item["response"], item["finish_reason"]) for item in scored
    ]
    assert rows[0]["media"] == [str(world.root / "videos/0.mp4")] and len(rows[0]["frame_times_s"][0]) == 4
    assert all(row["prompt_tokens"] > 0 and row["tokens"] == 6 for row in rows[:-1])


def test_a_broken_video_is_an_error_of_its_own(finished: Path) -> None:
    row = rows_of(finished)[-1]
    assert (row["id"], row["response"], row["status"]) == ("broken", None, "error")
    assert row["problem"]["code"] == "MEDIA_UNREADABLE" and "broken.mp4" in row["problem"]["where"]
    summary = json.loads((finished / "summary.json").read_text())
    assert summary["records"] == len(rows_of(finished)) and summary["statuses"]["error"] == 1
    assert json.loads((finished / "status.json").read_text())["state"] == "COMPLETE"


def test_the_table_holds_what_the_lines_hold(finished: Path) -> None:
    rows = rows_of(finished)
    codes = [row["problem"] and row["problem"]["code"] for row in rows]
    expected = [{**row, "problem": code} for row, code in zip(rows, codes, strict=True)]
    assert pyarrow.parquet.read_table(finished / "answers.parquet").to_pylist() == expected


def test_a_killed_inference_goes_on_without_losing_or_repeating(
    world: SimpleNamespace, finished: Path, tmp_path: Path
) -> None:
    asked = str(world.root / "with_broken.json")
    over = {"dataset__annotation_path": asked, "inference__batch_size": 1, "inference__skip_saved": True}
    spec, run = write_spec(tmp_path, world, **over), tmp_path / "run"
    process = _started(spec, run, answers=3, action="inference")
    for pid in [process.pid, *map(int, _children(process.pid))]:
        os.kill(pid, signal.SIGKILL)
    process.wait()
    before = [line["sample_id"] for line in _saved(run)]
    run_here("inference", spec, run)
    after = [line["sample_id"] for line in _saved(run)]
    assert after[: len(before)] == before and len(after) == len(set(after)) == len(rows_of(finished)) - 1
    assert rows_of(run) == rows_of(finished)


def test_a_long_video_is_asked_about_in_windows(world: SimpleNamespace, tmp_path: Path) -> None:
    clips = tmp_path / "clips"
    long = write_clip(clips / "long.mp4", frames=50, fps=10)
    write_clip(clips / "short.mp4", frames=12, fps=10)
    over: dict[str, Any] = {"dataset__annotation_path": str(clips), "dataset__media_dir": ""}
    over |= {"inference__prompt": "Is it (A) few or (B) many?", "num_gpus": 2}
    windows = {"inference__window_s": 2.0, "inference__overlap_s": 0.5}
    run_engine("inference", write_spec(tmp_path, world, **over, **windows), tmp_path / "run", ranks=2)
    row, short = rows_of(tmp_path / "run")
    assert [(each["start_s"], each["end_s"]) for each in row["windows"]] == [(0, 2), (1.5, 3.5), (3, 5)]
    assert (row["id"], row["media"], row["rule"]) == ("long.mp4", [str(long)], "the choice of most windows")
    assert row["frame_times_s"][0][::4] == [0, 1.5, 3] and short["windows"] == []
    assert row["tokens"] == sum(each["tokens"] for each in row["windows"])
    assert row["windows"][0]["prompt_tokens"] == short["prompt_tokens"]
