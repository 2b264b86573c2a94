"""Whether memory was full is read from the kernel's counter, in both versions of control groups."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from vidqa.jobs import failure
from vidqa.jobs.platforms import engine_process
from vidqa.jobs.platforms.supervisor import memory_evidence, memory_kills

LIMIT = 192 << 20
GREEDY = f"taken = bytearray(b'x') * {2 * LIMIT}"


@pytest.mark.parametrize(
    ("own", "file", "text"),
    [
        ("0::/user.slice/a\n", "user.slice/a/memory.events", "low 0\noom 4\noom_kill 3\noom_group_kill 0\n"),
        ("0::/not/shown/in/a/container\n", "memory.events", "oom 4\noom_kill 3\n"),
        ("0::/\n", "memory.events", "oom_kill 3\n"),
        (
            "9:name=systemd:/x\n4:cpu,memory:/jobs\n0::/\n",
            "memory/jobs/memory.oom_control",
            "under_oom 0\noom_kill 3\n",
        ),
        ("4:memory:/docker/abc\n", "memory/memory.oom_control", "oom_kill_disable 0\noom_kill 3\n"),
        ("4:memory:/a:b\n", "memory/a:b/memory.oom_control", "oom_kill 3\n"),
    ],
)
def test_the_counter_is_found(tmp_path: Path, own: str, file: str, text: str) -> None:
    (tmp_path / "cgroup").write_text(own)
    where = tmp_path / "fs" / file
    where.parent.mkdir(parents=True)
    where.write_text(text)
    assert memory_kills(tmp_path / "cgroup", tmp_path / "fs") == {where: 3}


@pytest.mark.parametrize("own", [None, "", "nonsense\n", "0::/\n"])
def test_without_one_nothing_is_said(tmp_path: Path, own: str | None) -> None:
    if own is not None:
        (tmp_path / "cgroup").write_text(own)
    assert memory_kills(tmp_path / "cgroup", tmp_path) == {}
    now = {tmp_path: 3}
    assert [memory_evidence(*pair) for pair in (({}, now), (now, {}), (now, now), ({tmp_path / "x": 1}, now))] == [
        ""
    ] * 4
    assert "2 process(es)" in memory_evidence({tmp_path: 1}, now)


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A control group of ours with little memory."""
    counter = next(iter(memory_kills()), None)
    if counter is None:
        pytest.skip("this system shows no counter")
    group = counter.with_name(f"vidqa-test-{os.getpid()}")
    limit = "memory.max" if counter.name == "memory.events" else "memory.limit_in_bytes"
    try:
        group.mkdir()
        (group / limit).write_text(str(LIMIT))
    except OSError as refused:
        if group.is_dir():
            group.rmdir()
        pytest.skip(f"a control group cannot be made here: {refused}")
    yield group
    group.rmdir()


def test_the_log_of_a_job_that_the_kernel_ended_says_so(small_group: Path) -> None:
    def enter() -> None:
        (small_group / "cgroup.procs").write_text(str(os.getpid()))

    words = [sys.executable, "-m", "vidqa.jobs.platforms.supervisor", "memory-test", "-", sys.executable, "-c"]
    done = subprocess.run([*words, GREEDY], preexec_fn=enter, capture_output=True, text=True)
    message = engine_process.exit_reason(done.returncode, done.stdout)
    assert done.returncode == 137 and "SIGKILL" in message and f"oom_kill in {small_group}" in done.stdout, done
    assert failure.classify(5, message, [], done.stdout)["class"] == failure.OUT_OF_MEMORY
    by_hand = "import os; os.kill(os.getpid(), 9)"
    done = subprocess.run([*words, by_hand], preexec_fn=enter, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (137, "")
