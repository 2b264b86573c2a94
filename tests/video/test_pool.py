"""Real worker processes: order, time limits, deaths, and no process left behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from clips import write_clip
from decode_workers import is_worker, pool_workers, workers_of

from vidqa.core.environment import child_environment
from vidqa.core.problem import Exit, Problem
from vidqa.video.pool import DecodePool, DecodeRequest

NUMBERS = "slow_transform:numbers"


@pytest.fixture(autouse=True)
def transforms_can_be_imported(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def ask(path, indices=(0, 5, 23), kind="video", member=None) -> DecodeRequest:
    return DecodeRequest(str(path), member, kind, tuple(indices), 4, 6)


def answers_of(pool: DecodePool, requests: list[DecodeRequest]) -> list[tuple[DecodeRequest, object]]:
    waiting = [pool.submit(request) for request in requests]
    return [(request, answer.result(120)) for request, answer in zip(requests, waiting, strict=True)]


def test_every_request_gets_its_own_answer(tmp_path):
    clips = [write_clip(tmp_path / f"{i}.mp4", frames=60, first_number=i) for i in range(8)]
    requests = [ask(clip, (0, 50, 7, 7, *range(10, 30))) for clip in clips]
    with DecodePool(2, 30, NUMBERS) as pool:
        answers = answers_of(pool, requests)
    for i, (request, frames) in enumerate(answers):
        assert frames.shape == (24, 1, 4, 6) and frames.dtype == np.uint8
        assert frames[:, 0, 0, 0].tolist() == [i + number for number in request.indices]


def test_what_hangs_dies_or_fails_is_named_and_the_rest_goes_on(tmp_path, capfd):
    firsts = [1, 100, 2, 200, 3, 300, 4, 400]
    requests = [ask(write_clip(tmp_path / f"{first}.mp4", first_number=first), (0, 1)) for first in firsts]
    os.mkfifo(tmp_path / "pipe.mp4")
    (tmp_path / "empty.mp4").touch()
    requests += [ask(tmp_path / "pipe.mp4"), ask(tmp_path / "empty.mp4"), ask(tmp_path / "1.mp4", (0, 99))]
    started = time.monotonic()
    with DecodePool(2, 2.0, NUMBERS) as pool:
        answers = dict(answers_of(pool, requests))
    assert time.monotonic() - started < 300
    told = [a.code if isinstance(a, Problem) else a[:, 0, 0, 0].tolist() for a in answers.values()]
    assert told == [
        [1, 2],
        "VIDEO_DECODE_TIMEOUT",
        [2, 3],
        "MEDIA_DECODER_KILLED",
        [3, 4],
        "MEDIA_UNREADABLE",
        [4, 5],
        "MEDIA_UNREADABLE",
        "MEDIA_UNREADABLE",
        "MEDIA_UNREADABLE",
        "MEDIA_UNREADABLE",
    ]
    problems = {r.where: a for r, a in answers.items() if isinstance(a, Problem)}
    assert "2 s" in problems[str(tmp_path / "100.mp4")].message
    assert "SIGKILL" in problems[str(tmp_path / "200.mp4")].message
    assert problems[str(tmp_path / "200.mp4")].exit_code == Exit.ENVIRONMENT
    assert "exit code 1" in problems[str(tmp_path / "300.mp4")].message
    assert "SIGSEGV" in problems[str(tmp_path / "400.mp4")].message
    assert "ZeroDivisionError" in capfd.readouterr().err


def wait_for_hangs(capfd, workers: int) -> None:
    said = []

    def enough() -> bool:
        said.append(capfd.readouterr().err)
        return "".join(said).count("hangs") == workers

    wait_until(enough)


def kill_workers() -> None:
    for worker in pool_workers():
        os.kill(worker, signal.SIGKILL)


def test_what_a_killed_worker_decoded_is_tried_again_and_then_named_for_what_it_is(tmp_path, capfd):
    hanging = ask(write_clip(tmp_path / "h.mp4", first_number=100), (0,))
    good = ask(write_clip(tmp_path / "g.mp4"), (7,))
    with DecodePool(1, 60, NUMBERS) as pool:
        pool.submit(good).result(60)  # the worker has started
        first, second = pool.submit(hanging), pool.submit(good)
        for _ in range(2):
            assert not first.done()
            wait_for_hangs(capfd, 1)
            kill_workers()
        problem = first.result(30)
        assert (problem.code, problem.exit_code) == ("MEDIA_DECODER_KILLED", Exit.ENVIRONMENT)
        assert problem.where == hanging.path and "SIGKILL" in problem.message
        assert second.result(30)[:, 0, 0, 0].tolist() == [7]


def test_a_killed_workers_file_is_tried_again_while_no_other_decodes(tmp_path, capfd):
    """Two workers and a memory that is full: both are killed, then one after the other has it to itself."""
    hanging = ask(write_clip(tmp_path / "h.mp4", first_number=100), (0,))
    waiting = [ask(write_clip(tmp_path / f"{first}.mp4", first_number=first), (0,)) for first in range(3)]
    with DecodePool(2, 60, NUMBERS) as pool:
        killed = [pool.submit(hanging), pool.submit(hanging)]
        answers = [pool.submit(request) for request in waiting]
        wait_for_hangs(capfd, 2)
        kill_workers()
        for still in (2, 1):
            wait_for_hangs(capfd, 1)
            time.sleep(0.3)
            assert capfd.readouterr().err == "" and [a.done() for a in answers] == [False] * 3
            assert [answer.done() for answer in killed].count(False) == still
            kill_workers()
        assert [answer.result(30).code for answer in killed] == ["MEDIA_DECODER_KILLED"] * 2
        assert [answer.result(30)[0, 0, 0, 0] for answer in answers] == [0, 1, 2]


def test_a_worker_that_is_killed_once_costs_nothing_but_time(tmp_path, capfd):
    with DecodePool(1, 60, "slow_transform:killed_once") as pool:
        request = ask(write_clip(tmp_path / "a.mp4"), (7,))
        assert pool.submit(request).result(30)[:, 0, 0, 0].tolist() == [7]
    assert capfd.readouterr().err == "killed\n"


def test_a_worker_without_memory_is_not_a_broken_file(tmp_path):
    with DecodePool(1, 60, "slow_transform:needs_too_much") as pool:
        problem = pool.submit(ask(write_clip(tmp_path / "a.mp4"))).result(30)
    assert problem.code == "MEDIA_DECODER_KILLED" and "memory" in problem.message


def test_closing_cuts_off_what_runs_and_leaves_no_process(tmp_path):
    hanging = ask(write_clip(tmp_path / "h.mp4", first_number=100), (0,))
    pool = DecodePool(2, 600, NUMBERS)
    running = [pool.submit(hanging) for _ in range(4)]
    wait_until(lambda: len(pool_workers()) == 2)
    started = time.monotonic()
    pool.close()
    assert time.monotonic() - started < 10
    assert pool_workers() == []
    assert all(answer.done() for answer in running) and running[-1].cancelled()


def test_a_transform_that_cannot_be_imported_is_a_fault_of_the_program(tmp_path):
    with DecodePool(1, 5, "no_such_module:f") as pool, pytest.raises(RuntimeError, match="exit code 1"):
        pool.submit(ask(write_clip(tmp_path / "a.mp4"))).result(30)


def test_workers_are_replaced_after_some_requests(tmp_path, monkeypatch):
    monkeypatch.setattr("vidqa.video.pool.RETIRE_AFTER", 3)
    clip, seen = write_clip(tmp_path / "a.mp4"), []
    with DecodePool(1, 30, NUMBERS) as pool:
        for number in range(8):
            assert pool.submit(ask(clip, (number,))).result(30)[:, 0, 0, 0].tolist() == [number]
            seen += pool_workers()
    assert [seen.count(worker) for worker in dict.fromkeys(seen)] == [3, 3, 2]


PARENT = """
import sys
from vidqa.video.pool import DecodePool, DecodeRequest
pool = DecodePool(2, 600, "slow_transform:numbers")
answers = [pool.submit(DecodeRequest(sys.argv[1], None, "video", (0,), 4, 6)) for _ in range(2)]
if sys.argv[2] == "idle":
    print([answer.result().shape for answer in answers], file=sys.stderr, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(("first_number", "workers_are"), [(0, "idle"), (100, "hanging")])
def test_no_worker_outlives_a_killed_parent(tmp_path, first_number, workers_are):
    clip = write_clip(tmp_path / "a.mp4", first_number=first_number)
    environment = child_environment(PYTHONPATH=os.pathsep.join(sys.path))
    words = [sys.executable, "-c", PARENT, str(clip), workers_are]
    with subprocess.Popen(words, env=environment, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as parent:
        for _ in range(1 if workers_are == "idle" else 2):
            assert parent.stderr.readline() in (b"hangs\n", b"[(1, 1, 4, 6), (1, 1, 4, 6)]\n")
        workers = workers_of(parent.pid)
        assert len(workers) == 2
        parent.kill()
    wait_until(lambda: not any(map(is_worker, workers)))


def test_workers_do_not_import_torch_nor_the_main_program(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(
        "import sys\nfrom vidqa.video.pool import DecodePool, DecodeRequest\n"
        "print('main program runs', flush=True)\n"
        "with DecodePool(1, 60) as pool:\n"
        "    frames = pool.submit(DecodeRequest(sys.argv[1], None, 'video', (0,), 4, 6)).result(60)\n"
        "    import pathlib; server = pool._servers[0]\n"
        "    maps = pathlib.Path(f'/proc/{server.process.pid}/maps').read_text()\n"
        "print(frames.shape, 'libtorch' in maps)\n"
    )
    environment = child_environment(PYTHONPATH=os.pathsep.join(sys.path))
    words = [sys.executable, str(script), str(write_clip(tmp_path / "a.mp4"))]
    out = subprocess.run(words, env=environment, cwd="/", capture_output=True, text=True, timeout=300)
    assert out.stdout == "main program runs\n(1, 48, 64, 3) False\n", out.stderr


def wait_until(condition, limit_s: float = 120) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)
