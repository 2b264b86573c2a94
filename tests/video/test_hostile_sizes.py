"""Videos whose pictures would need gigabytes of memory are refused before any of them is decoded."""

import struct
import subprocess
import sys

import av
import numpy as np
import pytest
from clips import decode_frames, frame_numbers, write_clip

from vidqa.core.problem import ProblemError
from vidqa.evaluation.thumbnails import poster_frames
from vidqa.video import worker
from vidqa.video.pool import DecodePool, DecodeRequest
from vidqa.video.probe import probe

WIDE, HIGH = 8256, 8208
READ = """
import resource, sys
from vidqa.core.problem import ProblemError
from vidqa.video.decode import read_frames
from vidqa.video.probe import probe
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for read in (probe, lambda path: list(read_frames(path, None, [int(sys.argv[2])]))):
    try:
        read(sys.argv[1])
        print("read")
    except ProblemError as stopped:
        print(stopped.problems[0].code, stopped.problems[0].message)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """One picture of 68 million pixels, as an mp4 and as a plain stream."""
    folder = tmp_path_factory.mktemp("large")
    for name in ("large.mp4", "large.h264"):
        with av.open(str(folder / name), "w") as container:
            stream = container.add_stream("libx264", rate=8)
            stream.width, stream.height, stream.pix_fmt = WIDE, HIGH, "yuv420p"
            stream.options = {"preset": "ultrafast"}
            stream.codec_context.thread_count = 1
            frame = av.VideoFrame(WIDE, HIGH, "yuv420p")
            for plane in frame.planes:
                plane.update(bytes(plane.buffer_size))
            container.mux([*stream.encode(frame), *stream.encode()])
    return folder


def outcomes(path, number=0):
    """What a process of its own says of a file when it probes and when it decodes it, and how many KiB that took."""
    done = subprocess.run([sys.executable, "-c", READ, path, str(number)], capture_output=True, text=True, check=True)
    *said, kib = done.stdout.splitlines()
    return said, int(kib)


@pytest.mark.parametrize("name", ["large.mp4", "large.h264"])
def test_pictures_that_are_too_large_are_named_with_their_size_and_the_limit(large, name):
    said, kib = outcomes(large / name)
    assert said == [f"MEDIA_UNREADABLE its pictures have {WIDE} x {HIGH} pixels, more than 67,108,864"] * 2
    assert kib * 1024 < WIDE * HIGH  # not even one picture


def test_a_pool_gives_the_problem_and_goes_on(large, tmp_path):
    clip = write_clip(tmp_path / "a.mp4", frames=2)
    with DecodePool(1, 60.0) as pool:
        asked = [DecodeRequest(str(path), None, "video", (0,), 0, 0) for path in (large / "large.mp4", clip)]
        refused, frames = [pool.submit(request).result() for request in asked]
    assert refused.code == "MEDIA_UNREADABLE" and frames.shape == (1, 48, 64, 3)


def test_no_poster_is_made_of_it(large):
    with pytest.raises(ProblemError) as stopped:
        poster_frames(str(large / "large.mp4"), None, [0])
    assert stopped.value.problems[0].code == "MEDIA_UNREADABLE"


def test_a_header_that_says_less_than_the_stream_is_no_way_in(large, tmp_path):
    honest, small = struct.pack(">HH", WIDE, HIGH), struct.pack(">HH", 64, 48)
    data = (large / "large.mp4").read_bytes()
    assert data.count(honest) == 1
    (tmp_path / "lie.mp4").write_bytes(data.replace(honest, small))
    stream = write_clip(tmp_path / "small.h264", frames=4).read_bytes()
    (tmp_path / "grows.h264").write_bytes(stream + (large / "large.h264").read_bytes())
    for name, number in (("lie.mp4", 0), ("grows.h264", 4)):
        said, kib = outcomes(tmp_path / name, number)
        assert said[-1].split()[0] == "MEDIA_UNREADABLE", said
        assert kib * 1024 < WIDE * HIGH


def test_the_largest_that_is_taken_is_no_smaller_than_8k(tmp_path):
    with av.open(str(tmp_path / "8k.mp4"), "w") as container:
        stream = container.add_stream("mpeg4", rate=8)
        stream.width, stream.height, stream.pix_fmt = 7680, 4320, "yuv420p"
        container.mux([*stream.encode(av.VideoFrame(7680, 4320, "yuv420p")), *stream.encode()])
    meta = probe(tmp_path / "8k.mp4")
    assert (meta.width, meta.height) == (7680, 4320)


def test_large_frames_are_held_a_few_at_a_time(tmp_path, monkeypatch):
    clip = write_clip(tmp_path / "a.mp4", frames=20)
    numbers, held = (0, 3, 3, 7, 12, 19, 1, 2, 5), []

    def same(frames, height, width):
        held.append(len(frames))
        return frames

    request = DecodeRequest(str(clip), None, "video", numbers, 0, 0)
    assert frame_numbers(worker.decode(request, same)) == list(numbers)
    assert held == [8]
    for limit, most in ((1, 1), (64 * 48 * 3 * 3, 3)):
        monkeypatch.setattr(worker, "CHUNK_BYTES", limit)
        held.clear()
        assert np.array_equal(worker.decode(request, same), decode_frames(clip, None, numbers))
        assert max(held) == most and sum(held) == 8
