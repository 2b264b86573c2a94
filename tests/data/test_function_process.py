"""A user's function in its process: what it forks holds nobody up, and what it writes itself is told."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from vidqa.core.problem import ProblemError
from vidqa.data import load_records

ROW = '{"conversations": [{"from": "human", "value": "?"}, {"from": "gpt", "value": "yes"}]}'
HEAD = f"""
import os, subprocess, sys, time
ROW = {ROW}
OUT = int(sys.argv[1])
"""


def function(folder: Path, body: str) -> str:
    (folder / "mine.py").write_text(
        f"{HEAD}\ndef records():\n" + "".join(f"    {line}\n" for line in body.splitlines())
    )
    return f"{folder}/mine.py:records"


@pytest.mark.parametrize(
    ("body", "count"),
    [
        ("yield ROW\nif not os.fork(): time.sleep(120)\nyield ROW", 2),
        ("yield ROW\nif not os.fork(): sys.exit(0)\nyield ROW", 2),
        ("yield ROW\nsubprocess.Popen(['sleep', '120'], close_fds=False)\nyield ROW", 2),
        ("os.set_inheritable(OUT, True)\nsubprocess.Popen(['sleep', '120'], close_fds=False)\nyield ROW", 1),
    ],
    ids=["it forks", "its fork ends", "it starts a program", "that holds the pipe"],
)
def test_what_it_starts_holds_nobody_up_and_writes_no_row_twice(tmp_path: Path, body: str, count: int) -> None:
    began = time.monotonic()
    assert len(load_records(function(tmp_path, body))) == count and time.monotonic() - began < 60


def test_a_process_that_ends_before_its_fork_is_told(tmp_path: Path) -> None:
    body = "os.set_inheritable(OUT, True)\nsubprocess.Popen(['sleep', '120'], close_fds=False)\nos._exit(3)\nyield ROW"
    began = time.monotonic()
    with pytest.raises(ProblemError, match=r"USER_FUNCTION(.|\n)*exit code 3"):
        load_records(function(tmp_path, body))
    assert time.monotonic() - began < 60


@pytest.mark.parametrize(
    "written",
    [
        b"hello",
        b"5",
        b"[]",
        b'["row"]',
        b'["unheard of", 1]',
        b'["end", 5]',
        b'["failed", "no"]',
        b'["failed", {"where": 5, "message": null}]',
        b"\xff\xfe",
        b"[" * 100_000,
        b"",
    ],
    ids=lambda line: repr(line[:40]),
)
def test_what_it_writes_itself_is_no_message(tmp_path: Path, written: bytes) -> None:
    body = f"yield ROW\nos.write(OUT, {written!r} + b'\\n')\nyield ROW"
    with pytest.raises(ProblemError, match=r"USER_FUNCTION at .*mine.py:records(.|\n)*message 2 of its process"):
        load_records(function(tmp_path, body))


def test_a_long_row_arrives_whole(tmp_path: Path) -> None:
    body = "ROW['conversations'][1]['value'] = 'yes ' * 500_000\nyield ROW\nyield ROW"
    records = load_records(function(tmp_path, body))
    assert [len(record.answer) for record in records] == [1_999_999] * 2
