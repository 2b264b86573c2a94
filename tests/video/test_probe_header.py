"""Probing by the header alone finds what probing with FFmpeg's own look at the pictures finds."""

import av
import pytest
from clips import write_clip

import vidqa.video.source
from vidqa.core.problem import ProblemError
from vidqa.video.probe import probe

CLIPS = {
    "plain.mp4": {},
    "reordered.mp4": {"b_frames": 2, "fps": 30, "frames": 40},
    "turned.mov": {"rotation": 90},
    "turned.mkv": {"rotation": 180, "b_frames": 2},
    "sound.mkv": {"audio": True, "fps": 24},
    "odd.mkv": {"width": 66, "height": 50, "b_frames": 2},
    "uneven.mkv": {"times_ms": [0, 40, 80, 400, 440, 1000]},
    "uneven.mp4": {"times_ms": [0, 40, 80, 400, 440, 1000]},
    "one.mp4": {"frames": 1},
    "deep.mkv": {"codec": "libx265", "pix_fmt": "yuv420p10le"},
    "vp9.webm": {"codec": "libvpx-vp9"},
    "vp8.webm": {"codec": "libvpx", "audio": True},
    "old.avi": {"codec": "mpeg4"},
    "old_reordered.avi": {"codec": "mpeg4", "b_frames": 2},
    "stream.ts": {"fps": 25},
}


@pytest.mark.parametrize("name", CLIPS)
def test_the_header_alone_says_the_same(name, tmp_path, monkeypatch):
    clip = write_clip(tmp_path / name, **CLIPS[name])
    by_header = probe(clip)
    monkeypatch.setattr(vidqa.video.source, "HEADER_ALONE", {})
    assert by_header == probe(clip)


def test_no_picture_is_decoded_to_open_a_file(tmp_path):
    clip = write_clip(tmp_path / "a.mkv")
    with vidqa.video.source.open_video(clip, None, header_alone=True) as (_, stream):
        assert stream.codec_context.pix_fmt is None and stream.width == 64
    with vidqa.video.source.open_video(clip, None) as (_, stream):
        assert stream.codec_context.pix_fmt == "yuv420p"


def test_a_first_picture_that_is_broken_is_found(tmp_path):
    clip = write_clip(tmp_path / "a.mkv", frames=4, keyframe_every=10)
    with av.open(str(clip)) as container:
        first = next(packet for packet in container.demux(video=0))
        picture = bytes(first)
    data = clip.read_bytes()
    assert data.count(picture) == 1
    clip.write_bytes(data.replace(picture, bytes(len(picture))))
    with pytest.raises(ProblemError) as stopped:
        probe(clip)
    assert stopped.value.problems[0].code == "MEDIA_UNREADABLE"


def test_pictures_without_a_decoder_are_a_problem(tmp_path):
    clip = write_clip(tmp_path / "a.mp4")
    clip.write_bytes(clip.read_bytes().replace(b"avc1", b"zzz9"))
    with pytest.raises(ProblemError) as stopped:
        probe(clip)
    assert stopped.value.problems[0].code == "MEDIA_UNREADABLE"
