"""Metrics as they come: every row once, wherever a reader stops and whatever becomes of the file meanwhile."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from vidqa.core.run_folder import RunFolder
from vidqa.jobs.api import Position, rows_after


def log(run: RunFolder, *steps: int, at: float = 1.0) -> None:
    """What a training logs after each step: a row of the step, and every other step another of the validation."""
    for step in steps:
        run.log_metrics(step, {"train/loss": 1 / step}, at)
        if step % 2 == 0:
            run.log_metrics(step, {"val/avg_loss": 2 / step}, at)


def steps_after(run: RunFolder, position: Position) -> tuple[list[int], Position]:
    rows = rows_after(run.path, position)
    return [row.values["step"] for row in rows], rows[-1].position if rows else position


def test_rows_come_once_from_any_position(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert rows_after(tmp_path, Position()) == []
    log(run, 1, 2)
    found, position = steps_after(run, Position())
    assert found == [1, 2, 2] and steps_after(run, position) == ([], position)
    log(run, 3)
    position = Position(**json.loads(json.dumps(asdict(position))))  # as a program keeps it that may be killed
    assert steps_after(run, position)[0] == [3]


def test_half_a_line_is_left_for_the_next_time(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    log(run, 1)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "train')
        file.flush()
        found, position = steps_after(run, Position())
        assert found == [1]
        file.write('/loss": 0.5}\n')
    assert rows_after(tmp_path, position)[0].values == {"step": 2, "train/loss": 0.5}


def test_a_resumed_run_goes_on_without_the_steps_it_takes_again(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    log(run, 1, 2, 3, 4, 5)
    _, position = steps_after(run, Position())
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "tra')  # by a process that was killed
    run.forget_metrics_after(3)
    assert steps_after(run, position) == ([], position)
    log(run, 4, at=2.0)
    assert steps_after(run, position) == ([], position)
    log(run, 5, 6, 7, 8, 9, at=2.0)
    assert steps_after(run, position)[0] == [6, 6, 7, 8, 8, 9]


def test_of_a_step_that_was_half_read_the_rest_is_read(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    log(run, 1)
    run.log_metrics(2, {"train/loss": 0.5}, 1.0)
    _, position = steps_after(run, Position())
    run.forget_metrics_after(1)
    log(run, 2, 3, at=2.0)
    rows = rows_after(tmp_path, position)
    assert [sorted(row.values) for row in rows] == [["step", "time", "val/avg_loss"], ["step", "time", "train/loss"]]


def test_what_is_no_event_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(
        b'{"step": 1}\nnull\n{"step": "x"}\n\xff\n{"step": tr{"step": 2}\n{"step": 3}\n'
    )
    assert steps_after(RunFolder(tmp_path), Position())[0] == [1, 3]
