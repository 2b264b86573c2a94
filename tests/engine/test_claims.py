"""One decoder per new video among real processes, whatever becomes of the one that decodes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import cache_processes
import forked
import numpy as np
import pytest
from cache_processes import sample_of
from clips import frame_numbers, write_clip

from vidqa.core.environment import child_environment
from vidqa.core.problem import Problem
from vidqa.engine.data.claims import Claims, Waiting
from vidqa.engine.data.frame_cache import FrameCache
from vidqa.engine.data.frames import FrameSource
from vidqa.video.pool import DecodeRequest
from vidqa.video.problems import MEDIA_UNREADABLE

KEY, OTHER = "a1" * 32, "b2" * 32
PROBLEM = MEDIA_UNREADABLE.at("a.mp4", "what the owner of the claim found")


def key_of(cache: FrameCache, path: Path) -> str:
    key = cache.key(DecodeRequest(str(path), None, "video", (0, 3), 64, 64))
    assert key
    return key


def test_a_claim_has_one_owner_at_a_time(tmp_path: Path) -> None:
    mine, yours = Claims(tmp_path, "60s"), Claims(tmp_path, "60s")
    assert mine.take(KEY) and mine.take(OTHER)
    assert not yours.take(KEY) and not yours.take(OTHER)
    mine.release(KEY)
    assert yours.take(KEY) and not mine.take(KEY) and not yours.take(OTHER)
    assert yours.failure(KEY, "a.mp4") is None


def test_a_failure_is_told_to_those_whom_it_concerns(tmp_path: Path) -> None:
    mine, yours, patient = Claims(tmp_path, "60s"), Claims(tmp_path, "60s"), Claims(tmp_path, "600s")
    assert mine.take(KEY)
    mine.release(KEY, PROBLEM)
    assert yours.take(KEY) and yours.failure(KEY, "a.mp4") == PROBLEM
    assert yours.failure(KEY, "copy_of_a.mp4") is None  # it would blame a file that nobody asked for
    assert patient.failure(KEY, "a.mp4") is None  # what was too slow for one may be fast enough for the other
    yours.forget(KEY)
    assert yours.failure(KEY, "a.mp4") is None


@pytest.mark.parametrize(
    "left",
    [
        b"",
        b"\0" * 200,
        b'{"code": "MEDIA_UNREADABLE", "whe',
        b"[]",
        json.dumps({**PROBLEM.as_dict(), "message": None}).encode(),
    ],
)
def test_a_note_that_is_none_is_no_reason(tmp_path: Path, left: bytes) -> None:
    claims = Claims(tmp_path, "60s")
    assert claims.take(KEY)
    claims.release(KEY, PROBLEM)
    next(tmp_path.rglob("*.failed")).write_bytes(left)
    assert claims.failure(KEY, "a.mp4") is None


HOLDER = """
import sys
from pathlib import Path
from vidqa.engine.data.claims import Claims
claims = Claims(Path(sys.argv[1]), "60s")
print(claims.take(sys.argv[2]), flush=True)
sys.stdin.read()
"""


def holder(folder: Path, key: str) -> subprocess.Popen:
    """Another process that has the claim."""
    words = [sys.executable, "-c", HOLDER, str(folder), key]
    environment = child_environment(PYTHONPATH=os.pathsep.join(sys.path))
    process = subprocess.Popen(words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout and process.stdout.readline() == b"True\n"
    return process


def test_a_killed_owner_frees_its_claim(tmp_path: Path) -> None:
    claims, passed_on = Claims(tmp_path, "60s"), threading.Event()
    waiting = Waiting(claims)
    waiting.start()
    with holder(tmp_path, KEY) as owner:
        assert not claims.take(KEY)
        waiting.add(KEY, passed_on.set)
        assert not passed_on.wait(0.3)
        owner.kill()
    assert passed_on.wait(20)
    waiting.close()


@pytest.fixture
def source(tmp_path: Path):
    source = FrameSource(1, 60.0, FrameCache(tmp_path / "cache", 1 << 30))
    yield source
    source.close()


def test_a_video_that_another_process_decodes_is_taken_from_the_cache(tmp_path: Path, source: FrameSource) -> None:
    path = write_clip(tmp_path / "a.mp4")
    key, cache = key_of(source.cache, path), FrameCache(tmp_path / "cache", 1 << 30)
    other = Claims(cache.folder, "60s")
    assert other.take(key)
    ticket = source.request([sample_of(path)])
    # A video that nobody has claimed does not wait behind it.
    second = source.request([sample_of(write_clip(tmp_path / "b.mp4", first_number=9))])
    (frames,) = source.collect(second)[0][0]
    assert frame_numbers(frames.transpose(0, 2, 3, 1)) == [9, 12] and not source.has(ticket)
    theirs = np.full((2, 3, 64, 64), 77, np.uint8)  # not what the file holds: it must come from the cache
    cache.put(key, theirs)
    other.release(key)
    (frames,) = source.collect(ticket)[0][0]
    assert (frames == theirs).all()


def test_a_video_whose_decoder_died_is_decoded_by_who_waited(tmp_path: Path, source: FrameSource) -> None:
    path = write_clip(tmp_path / "a.mp4", first_number=5)
    with holder(source.cache.folder, key_of(source.cache, path)) as owner:
        ticket = source.request([sample_of(path)])
        time.sleep(0.3)
        assert not source.has(ticket)
        owner.kill()
    (frames,) = source.collect(ticket)[0][0]
    assert frame_numbers(frames.transpose(0, 2, 3, 1)) == [5, 8]


def test_who_waited_for_a_bad_file_reports_what_its_decoder_reported(tmp_path: Path, source: FrameSource) -> None:
    path = write_clip(tmp_path / "a.mp4")
    key, other = key_of(source.cache, path), Claims(source.cache.folder, "60s")
    assert other.take(key)
    ticket = source.request([sample_of(path)])
    while source._waiting._new.qsize():
        time.sleep(0.01)
    time.sleep(0.3)
    noted = Problem(**{**PROBLEM.as_dict(), "where": str(path)})
    other.release(key, noted)
    assert source.collect(ticket) == ([[None]], [noted])
    # Asked for anew, nobody is waited for and the file is tried again.
    (frames,) = source.collect(source.request([sample_of(path)]))[0][0]
    assert frame_numbers(frames.transpose(0, 2, 3, 1)) == [0, 3]


def test_ranks_that_start_together_decode_every_video_once(tmp_path: Path) -> None:
    """Two processes and the same new videos at the same moment; one of the files is broken."""
    paths = [write_clip(tmp_path / f"{number}.mp4", frames=40, first_number=50 * number) for number in range(12)]
    paths[5].write_bytes(paths[5].read_bytes()[:600])
    words = [sys.executable, cache_processes.__file__, "ranks", tmp_path / "cache", *paths]
    out = forked.run(words, timeout=120)
    assert out.returncode == 0, out.stderr
    (first, sums, problems), other = map(json.loads, out.stdout.splitlines())
    assert first + other[0] == 11 and min(first, other[0]) > 0
    assert [sums, problems] == other[1:]
    assert sums.count(None) == 1 and len(problems) == 1 and "5.mp4" in problems[0]
