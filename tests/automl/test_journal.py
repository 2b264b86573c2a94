"""The journal: what is written stays, what a power cut leaves is passed over, and other damage is told by its line."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import NoReturn

import pytest

from vidqa.automl.journal import ENQUEUE, JOURNAL, controller_of, only_controller, read, send_request
from vidqa.core import files
from vidqa.core.problem import ProblemError


def written(folder: Path, count: int = 4) -> Path:
    log = read(folder).log
    for number in range(count):
        log.append({"event": "stopped", "elapsed_s": float(number), "why": f"reason {number}"})
    return folder / JOURNAL


def test_events_are_read_as_they_were_written(tmp_path: Path) -> None:
    written(tmp_path)
    assert [(event["seq"], event["why"]) for event in read(tmp_path).log.events] == [
        (n, f"reason {n - 1}") for n in (1, 2, 3, 4)
    ]
    written(tmp_path, 2)
    assert [event["seq"] for event in read(tmp_path).log.events] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("torn", [b'{"seq": 5, "ev', b"\0\0\0\0\0\n", b'{"seq": 5, "event": "stopped"}'])
def test_a_last_line_that_was_cut_off_is_passed_over_and_then_gone(tmp_path: Path, torn: bytes) -> None:
    path = written(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole + torn)
    found = read(tmp_path)
    assert len(found.log.events) == 4 and "line 5" in found.note
    assert path.read_bytes() == whole + torn, "a reader changes nothing"
    written(tmp_path, 1)
    assert [event["seq"] for event in read(tmp_path).log.events] == [1, 2, 3, 4, 5] and read(tmp_path).note == ""


@pytest.mark.parametrize(
    ("line", "instead", "said"),
    [
        (2, b"{garbage\n", "it is not JSON"),
        (3, b"", "lines are missing"),
        (2, b'{"seq": 2, "event": "stopped"}\n', "its checksum differs"),
        (4, b"[]\n", "it is not an event"),
    ],
)
def test_damage_before_the_last_line_is_refused_with_its_number(
    tmp_path: Path, line: int, instead: bytes, said: str
) -> None:
    path = written(tmp_path, 5)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[: line - 1], instead, *lines[line:]]))
    with pytest.raises(ProblemError, match="JOURNAL_BROKEN") as refused:
        read(tmp_path)
    assert refused.value.problems[0].where.endswith(f":{line}") and said in refused.value.problems[0].message


def test_a_journal_of_another_version_is_not_read_as_ours(tmp_path: Path) -> None:
    path = tmp_path / JOURNAL
    event = {"seq": 1, "event": "created", "elapsed_s": 0.0, "schema_version": 99}
    path.write_text(json.dumps(event) + "\n")
    with pytest.raises(ProblemError, match="version 99"):
        read(tmp_path)


def test_a_study_has_one_controller_and_says_which(tmp_path: Path) -> None:
    assert controller_of(tmp_path) is None
    with only_controller(tmp_path):
        running = controller_of(tmp_path)
        assert running and running.is_alive
        with (
            pytest.raises(ProblemError, match=rf"BUSY(.|\n)*process {running.pid} on"),
            only_controller(tmp_path),
        ):
            pass
    assert controller_of(tmp_path) is None
    with only_controller(tmp_path):
        pass


def test_an_event_that_the_disk_refused_leaves_no_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, 1)
    log = read(tmp_path).log
    with monkeypatch.context() as full, pytest.raises(ProblemError, match="ENV_FILE_REFUSED"):
        full.setattr(os, "fsync", lambda file: os.write(-1, b""))
        log.append({"event": "stopped", "elapsed_s": 1.0, "why": "the disk is full"})
    log.append({"event": "stopped", "elapsed_s": 1.0, "why": "it has room again"})
    assert [(event["seq"], event["why"]) for event in read(tmp_path).log.events[1:]] == [(2, "it has room again")]


def test_a_disk_that_fails_is_a_refused_file_whatever_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An input/output error is none of those that all scripts know as refusals of the system."""

    def fails(*args: object, **options: object) -> NoReturn:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(files, "write_json", fails)
    with pytest.raises(ProblemError, match="ENV_FILE_REFUSED"):
        send_request(tmp_path, ENQUEUE, {})
    monkeypatch.setattr(os, "open", fails)
    with pytest.raises(ProblemError, match="ENV_FILE_REFUSED"), only_controller(tmp_path):
        pass
