"""What is kept of a pod's log, from logs as nodes show them."""

from __future__ import annotations

import tracemalloc
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.platforms.test_kubernetes_state import pod, submitted
from vidqa.core.environment import jobs_folder
from vidqa.jobs.platforms.kubernetes.log import append_new_lines, log_path, pod_log_tail, read_log
from vidqa.jobs.problems import PLATFORM_SILENT

Lines = list[tuple[str, str]]
RUNNING = pod(running={})


class Node:
    """A cluster as far as logs go."""

    def __init__(self, lines: Lines) -> None:
        self.lines = lines
        self.asked: list[int | None] = []

    def log(self, pod: str, container: str, since_s: int | None, tail_lines: int | None = None) -> bytes:
        self.asked.append(since_s)
        return "".join(f"{stamp} {text}\n" for stamp, text in self.lines).encode()


class Lost:
    """A cluster whose node is lost: its kubelet never answers."""

    def log(self, *asked: Any) -> bytes:
        raise PLATFORM_SILENT.error("https://cluster", "ReadTimeoutError")


def stamp(seconds: float) -> str:
    return f"{datetime.now(UTC) + timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%S.%f}000Z"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([(stamp(-5), "a"), (stamp(0), "b")], [(stamp(-30), "c"), (stamp(-29), "d")]),
        (
            [("2026-10-25T02:59:59.000000000+02:00", "a")],
            [("2026-10-25T02:00:01.000000000+01:00", "b"), ("2026-10-25T02:59:58.000000000+01:00", "c")],
        ),
        ([("2026-01-01T00:00:00Z", "a"), ("2026-01-01T00:00:00Z", "b")], [("2026-01-01T00:00:00Z", "c")]),
    ],
    ids=["clock set back", "end of summer time", "one stamp"],
)
def test_every_line_is_kept_once_in_the_order_of_the_file(first: Lines, second: Lines) -> None:
    node = Node(first)
    append_new_lines(submitted(), node, [RUNNING])
    node.lines = first + second
    for _ in range(2):
        append_new_lines(submitted(), node, [RUNNING])
    assert log_path(submitted()).read_text().split() == [text for _, text in first + second]


def test_a_rotated_log_goes_on_by_its_times() -> None:
    node = Node([("2026-10-25T02:59:59+02:00", "a")])
    append_new_lines(submitted(), node, [RUNNING])
    node.lines = [("2026-10-25T02:59:58+02:00", "before"), ("2026-10-25T02:00:01+01:00", "b")]
    append_new_lines(submitted(), node, [RUNNING])
    assert log_path(submitted()).read_text().split() == ["a", "b"]


def test_only_what_is_new_is_asked_whatever_the_offset_of_a_node() -> None:
    hours = timedelta(hours=8)
    node = Node([(f"{datetime.now(UTC) - timedelta(hours=1) + hours:%Y-%m-%dT%H:%M:%S}+08:00", "a")])
    for _ in range(2):
        append_new_lines(submitted(), node, [RUNNING])
    assert node.asked[0] is None and 3600 <= (node.asked[1] or 0) < 3800


def test_a_node_that_is_lost_has_no_log() -> None:
    append_new_lines(submitted(), Lost(), [RUNNING])  # type: ignore[arg-type]
    assert pod_log_tail(Lost(), "p", [RUNNING]) == "" and not log_path(submitted()).exists()  # type: ignore[arg-type]


def test_of_a_long_log_only_what_is_asked_is_read() -> None:
    jobs_folder().mkdir(parents=True, exist_ok=True)
    with log_path(submitted()).open("wb") as kept:
        kept.truncate(2**26)
        kept.seek(2**26)
        kept.write(b"the end\n")
    tracemalloc.start()
    try:
        assert read_log(submitted(log_start=10), -8) == (b"the end\n", 10 + 2**26 + 8)
        assert read_log(submitted(log_start=10), 10 + 2**26 + 4) == (b"end\n", 10 + 2**26 + 8)
        assert read_log(submitted(log_start=10), 10 + 2**26 + 8) == (b"", 10 + 2**26 + 8)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
    assert len(read_log(submitted(), 0)[0]) == 2**26 + 8
