"""What pools answer, of one worker that all tests of a kind share: each start of one takes as long as ten answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from clips import frame_numbers, write_clip, write_image

from vidqa.core.problem import Problem
from vidqa.video.image import probe_image
from vidqa.video.pool import DecodePool, DecodeRequest, FramesFile, ProbeRequest
from vidqa.video.probe import probe


@pytest.fixture(scope="module")
def numbering() -> Iterator[DecodePool]:
    """Its transform gives the numbers of frames, and it can store them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parent))
        with DecodePool(1, 60, "slow_transform:numbers", "slow_transform:save") as pool:
            yield pool


@pytest.fixture(scope="module")
def plain() -> Iterator[DecodePool]:
    with DecodePool(1, 60) as pool:
        yield pool


def ask(path, indices=(0, 5, 23), kind="video", member=None) -> DecodeRequest:
    return DecodeRequest(str(path), member, kind, tuple(indices), 4, 6)


def test_headers_are_read_by_a_worker_too(tmp_path, plain):
    clip, picture = write_clip(tmp_path / "a.mp4", frames=7, fps=5), write_image(tmp_path / "a.png")
    (tmp_path / "broken.mp4").write_bytes(b"no video")
    asked = [(clip, "video"), (picture, "image"), (tmp_path / "broken.mp4", "video")]
    answers = [plain.submit(ProbeRequest(str(path), None, kind)) for path, kind in asked]
    found, shown, broken = [answer.result() for answer in answers]
    assert (found, shown) == (probe(clip), probe_image(picture))
    assert isinstance(broken, Problem) and broken.code == "MEDIA_UNREADABLE"


def test_without_a_transform_frames_come_back_as_decoded(tmp_path, plain):
    frames = plain.submit(ask(write_clip(tmp_path / "a.mp4"))).result(60)
    image = plain.submit(ask(write_image(tmp_path / "a.png", number=3), kind="image")).result(60)
    missing = plain.submit(ask(tmp_path / "none.png", kind="image")).result(60)
    assert frame_numbers(frames) == [0, 5, 23] and frame_numbers(image) == [3]
    assert isinstance(missing, Problem) and missing.code == "MEDIA_UNREADABLE"


def test_frames_are_stored_by_the_worker_where_asked(tmp_path, numbering):
    clip = write_clip(tmp_path / "a.mp4")
    request = ask(clip, (3, 4))
    stored = numbering.submit(request, store_at=str(tmp_path / "frames.npy")).result(30)
    assert stored == FramesFile(str(tmp_path / "frames.npy"))
    assert np.load(stored.path)[:, 0, 0, 0].tolist() == [3, 4]
    # Where the file cannot be written the frames come themselves; a problem is one as ever.
    frames = numbering.submit(request, store_at=str(tmp_path / "none" / "frames.npy")).result(30)
    assert frames[:, 0, 0, 0].tolist() == [3, 4]
    missing = numbering.submit(ask(tmp_path / "no.mp4"), store_at=str(tmp_path / "no.npy")).result(30)
    assert missing.code == "MEDIA_UNREADABLE" and not (tmp_path / "no.npy").exists()


def test_what_is_not_admitted_is_cancelled_when_a_worker_is_free(tmp_path, numbering):
    clip = write_clip(tmp_path / "a.mp4")
    asked = []
    first = numbering.submit(ask(clip, (1,)))
    refused = numbering.submit(ask(clip, (2,)), admit=lambda: bool(asked.append(first.done())))
    admitted = numbering.submit(ask(clip, (3,)), admit=lambda: True)
    assert admitted.result(30)[:, 0, 0, 0].tolist() == [3]
    assert refused.cancelled() and asked == [True]


def test_what_admitting_raises_is_raised_by_the_answer_and_the_others_go_on(tmp_path, numbering):
    clip = write_clip(tmp_path / "a.mp4")

    def admit() -> bool:
        raise KeyError("no such claim")

    failed = numbering.submit(ask(clip, (2,)), admit=admit)
    answered = numbering.submit(ask(clip, (3,)), admit=lambda: True)
    assert answered.result(60)[:, 0, 0, 0].tolist() == [3]
    with pytest.raises(KeyError, match="no such claim"):
        failed.result(1)
