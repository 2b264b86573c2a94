"""What a probe says is what decoding the whole file finds, though it decodes no more than the head of one picture."""

import tempfile
from fractions import Fraction
from importlib import import_module
from pathlib import Path

import av
import numpy as np
import pytest
from av.bitstream import BitStreamFilterContext
from clips import decode_frames, draw, frame_numbers, write_clip
from hypothesis import given, settings
from hypothesis import strategies as st

from vidqa.core.problem import ProblemError
from vidqa.video.probe import probe

probing = import_module("vidqa.video.probe")

# Containers that PyAV can write, and what can be in them: a codec with the pixel formats that are tried.
H264 = ("libx264", ("yuv420p", "yuv444p", "yuv420p10le"))
H265, VP8, VP9 = (
    ("libx265", ("yuv420p", "yuv420p10le")),
    ("libvpx", ("yuv420p",)),
    ("libvpx-vp9", ("yuv420p", "yuv444p")),
)
MPEG4, MJPEG, MPEG2 = ("mpeg4", ("yuv420p",)), ("mjpeg", ("yuvj420p",)), ("mpeg2video", ("yuv420p",))
HOLDS = {
    "mp4": (H264, H265, VP9, MPEG4),
    "mov": (H264, H265, MPEG4, MJPEG, ("prores_ks", ("yuv422p10le",))),
    "mkv": (H264, H265, VP8, VP9, MPEG4, MJPEG, ("ffv1", ("yuv420p",))),
    "webm": (VP8, VP9),
    "avi": (H264, MPEG4, MJPEG),
    "ts": (H264, H265, MPEG2),
    "flv": (H264,),
    "3gp": (H264, MPEG4),
}


def decoded(path: Path) -> tuple[int, int, int, int]:
    """(width and height as shown, rotation, frames) by decoding everything; the first picture says the rotation."""
    with av.open(str(path)) as container:
        frames = list(container.decode(video=0))
    ((width, height),) = {(frame.width, frame.height) for frame in frames}
    rotation = frames[0].rotation % 360
    return (height, width, rotation, len(frames)) if rotation % 180 else (width, height, rotation, len(frames))


def probed(path: Path) -> tuple[int, int, int, int]:
    meta = probe(path)
    return meta.width, meta.height, meta.rotation, meta.frame_count


@st.composite
def clips(draw_one: st.DrawFn) -> tuple[str, dict]:
    ending = draw_one(st.sampled_from(sorted(HOLDS)))
    codec, formats = draw_one(st.sampled_from(HOLDS[ending]))
    pix_fmt = draw_one(st.sampled_from(formats))
    odd = "444" in pix_fmt or codec.startswith(("libvpx", "mjpeg"))
    least = 64 if codec == "libx265" else 17  # x265 corrupts its memory with pictures that are smaller than its blocks
    side = st.integers(least, 90).map(lambda value: value if odd else value // 2 * 2)
    options = {"codec": codec, "pix_fmt": pix_fmt, "width": draw_one(side), "height": draw_one(side)}
    options |= {
        "rotation": draw_one(st.sampled_from((0, 90, 180, 270))),
        "frames": draw_one(st.integers(5, 8)),
    }  # FFmpeg finds nothing in a .ts of less
    options["b_frames"] = draw_one(st.integers(0, 2)) if codec in ("libx264", "libx265") else 0
    gaps = draw_one(st.none() | st.lists(st.integers(40, 400), min_size=2, max_size=5))
    if gaps and ending in ("mp4", "mov", "mkv") and codec in ("libx264", "libvpx-vp9"):
        options["times_ms"] = [sum(gaps[:at]) for at in range(len(gaps) + 1)]
    return ending, options


@settings(max_examples=120, deadline=None)
@given(clips())
def test_a_probe_says_what_decoding_finds(asked: tuple[str, dict]) -> None:
    ending, options = asked
    with tempfile.TemporaryDirectory() as folder:
        path = write_clip(Path(folder) / f"a.{ending}", **options)
        assert probed(path) == decoded(path)
        meta = probe(path)
        if "times_ms" in options and meta.frame_times_s is not None:
            assert meta.frame_times_s == pytest.approx([time / 1000 for time in options["times_ms"]], abs=2e-3)


@pytest.mark.parametrize(("ending", "codec"), [("mp4", "libx264"), ("mkv", "libx265"), ("webm", "libvpx-vp9")])
def test_no_decoder_gets_more_than_the_head(tmp_path, monkeypatch, ending, codec) -> None:
    path = tmp_path / f"a.{ending}"
    write_noise(path, codec)
    with av.open(str(path)) as container:
        assert next(container.demux(video=0)).size > 4 * probing.HEAD_BYTES
    given_bytes, picture = [], probing._picture
    monkeypatch.setattr(
        probing, "_picture", lambda decoder, packet: given_bytes.append(packet.size) or picture(decoder, packet)
    )
    opened, open_video = [], probing.open_video
    monkeypatch.setattr(probing, "open_video", lambda *file, **how: opened.append(how) or open_video(*file, **how))
    assert probed(path) == decoded(path)
    assert opened == [{"header_alone": True}]  # nor is the file opened again, for FFmpeg to look at more
    assert len(given_bytes) == 1 and given_bytes[0] <= probing.HEAD_BYTES


def write_noise(path: Path, codec: str, **options: str) -> Path:
    """A clip of two frames of noise, whose pictures are large."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=8)
        stream.width, stream.height, stream.pix_fmt, stream.bit_rate = 324, 244, "yuv420p", 20_000_000
        stream.options = options
        stream.set_display_rotation(90)
        for number in range(2):
            noise = np.random.default_rng(number).integers(0, 256, (244, 324, 3), np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(noise, format="rgb24")))
        container.mux(stream.encode())
    return path


@pytest.mark.parametrize("x264", ["slices=8", "tff=1", "fake-interlaced=1", "intra-refresh=1", "annexb=1"])
def test_pictures_in_many_pieces(tmp_path, x264) -> None:
    for ending in ("mp4", "mkv", "avi"):
        path = write_noise(tmp_path / f"a.{ending}", "libx264", **{"x264-params": x264})
        assert probed(path) == decoded(path)


def copy(source: Path, target: Path, filtered: str) -> Path:
    """The same pictures, their packets changed by a bitstream filter."""
    with av.open(str(source)) as read, av.open(str(target), "w") as written:
        stream = written.add_stream_from_template(read.streams.video[0])
        change = BitStreamFilterContext(filtered, read.streams.video[0], stream)
        for packet in [*read.demux(video=0), None]:
            for each in change.filter(packet if packet is not None and packet.size else None) if packet else ():
                each.stream = stream
                written.mux(each)
    return target


def test_a_turn_that_only_the_pictures_speak_of(tmp_path) -> None:
    plain = write_clip(tmp_path / "plain.mp4", width=96, height=64)
    turned = copy(plain, tmp_path / "turned.mkv", "h264_metadata=display_orientation=insert:rotate=90")
    assert probed(turned)[2] in (90, 270) and probed(turned) == decoded(turned)
    # Encoders say it at every keyframe only; it holds for the pictures between them.
    shown = decode_frames(turned, None, range(24))
    assert shown.shape == (24, 96, 64, 3)
    assert frame_numbers(np.rot90(shown, -probed(turned)[2] // 90, axes=(1, 2))) == list(range(24))


def test_a_picture_behind_a_long_message(tmp_path) -> None:
    plain = write_clip(tmp_path / "plain.mp4", rotation=180)
    said = "086f3693-b7b3-4f2c-9653-21492feee5b8+" + "words " * probing.HEAD_BYTES
    long = copy(plain, tmp_path / "long.mp4", f"h264_metadata=sei_user_data={said}")
    assert long.stat().st_size > plain.stat().st_size + len(said)
    assert probed(long) == decoded(long)


@pytest.mark.parametrize(
    ("name", "codec", "written"),
    [
        ("a.mp4", "libx264", b"\x00\x40\x00\x30"),  # width and height in the sample entry
        ("a.mkv", "libx264", b"\xb0\x81\x40\xba\x81\x30"),  # PixelWidth, PixelHeight
        ("a.webm", "libvpx-vp9", b"\xb0\x81\x40\xba\x81\x30"),
    ],
)
def test_a_container_that_is_wrong_about_the_size(tmp_path, name, codec, written) -> None:
    path = write_clip(tmp_path / name, codec=codec, width=64, height=48)
    data = path.read_bytes()
    assert data.count(written) == 1
    path.write_bytes(data.replace(written, written.replace(b"\x40", b"\x50").replace(b"\x30", b"\x28")))
    assert probed(path) == (64, 48, 0, 24)


@pytest.mark.parametrize(("name", "codec"), [("a.mp4", "libx264"), ("a.webm", "libvpx-vp9"), ("a.avi", "mpeg4")])
def test_a_first_picture_without_a_beginning(tmp_path, name, codec) -> None:
    path = write_clip(tmp_path / name, codec=codec, frames=4, keyframe_every=10)
    with av.open(str(path)) as container:
        first = bytes(next(packet for packet in container.demux(video=0)))
    data = path.read_bytes()
    path.write_bytes(data.replace(first, bytes(len(first))))
    with pytest.raises(ProblemError) as stopped:
        probe(path)
    assert stopped.value.problems[0].code == "MEDIA_UNREADABLE"


def test_the_picture_that_asks_for_a_turn_is_whole() -> None:
    decoder = av.CodecContext.create("vp9", "r")
    (frame,) = decoder.decode(av.Packet(probing.VP9_PICTURE))
    assert (frame.width, frame.height, frame.is_corrupt) == (1, 1, False)


def test_cropping_of_the_pictures_is_applied(tmp_path) -> None:
    """H.264 stores whole blocks of 16 x 16; what is cut off is said in its own parameters."""
    path = tmp_path / "a.mkv"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=Fraction(8))
        stream.width, stream.height, stream.pix_fmt = 70, 50, "yuv420p"
        container.mux(stream.encode(av.VideoFrame.from_ndarray(draw(3, 50, 70), format="rgb24")))
        container.mux(stream.encode())
    assert probed(path) == (70, 50, 0, 1)
    cropped = copy(path, tmp_path / "b.mkv", "h264_metadata=crop_right=20:crop_top=8")
    assert probed(cropped) == decoded(cropped) == (60, 42, 0, 1)
