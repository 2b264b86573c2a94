"""Every container and codec that FFmpeg can write here: a frame is the same asked for alone, among some, or among all.

The reference is FFmpeg's own decoding from the first packet to the last, without a seek.
"""

from collections.abc import Iterator
from contextlib import nullcontext, suppress
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import av
import numpy as np
import pytest
from av.codec import Codec
from clips import decode_frames, draw, mux_silence, ordinary_scheduling

from vidqa.core.problem import ProblemError
from vidqa.video import decode
from vidqa.video.probe import StreamInfo, probe, read_stream_info
from vidqa.video.source import SELF_CONTAINED
from vidqa.video.timeline import Timeline, read_timeline

FRAMES, FPS, GROUP = 11, 25, 5
SIZES = ((64, 48), (176, 144), (720, 576))  # some encoders take a few sizes alone
HARDWARE = ("_amf", "_nvenc", "_qsv", "_v4l2m2m")
# Muxers that write several files, to a device or to the network, or no file that holds pictures.
NO_FILE = (
    *("alsa", "oss", "fbdev", "video4linux2,v4l2", "null", "rtp", "rtsp", "rtp_mpegts", "sap", "tee", "whip", "hds"),
    *("dash", "hls", "smoothstreaming", "segment", "stream_segment,ssegment", "fifo", "ffmetadata", "image2", "ico"),
    *("md5", "framemd5", "framehash", "framecrc", "crc", "hash", "streamhash", "uncodedframecrc", "data"),
    *("webm_dash_manifest", "asf_stream"),  # FFmpeg takes the latter for what is inside it
)
PIXELS = ("yuv420p", "yuvj420p", "yuv422p", "rgb24", "bgr24", "bgr0", "rgb555le", "gray")
FAST = {
    "libx264": {"preset": "ultrafast", "bf": "2", "sc_threshold": "0"},
    "libx264rgb": {"preset": "ultrafast", "bf": "2", "sc_threshold": "0"},
    "libx265": {"preset": "ultrafast", "x265-params": "log-level=none:bframes=2:scenecut=0:pools=1"},
    "libvpx": {"deadline": "realtime", "cpu-used": "8"},
    "libvpx-vp9": {"deadline": "realtime", "cpu-used": "8"},
    "libsvtav1": {"preset": "13"},
    "dnxhd": {"profile": "dnxhr_lb"},
}
# What FFmpeg writes and does not read again, and encoders of other pictures than those tried here.
UNREAD = (
    *("a64multi", "a64multi5", "alias_pix", "bitpacked", "libwebp_anim", "msrle", "pam", "smc", "vbn", "vc2", "vnull"),
    *("wbmp", "xface"),
)
SAME_TIME = (("mpeg2video", "asf"),)  # its muxer gives the last two frames one time, which makes them one
REORDERING = ("mpeg1video", "mpeg2video", "mpeg4", "libx264", "libx264rgb", "libx265")
# What changes how pictures refer to each other.
SPECIAL = {
    "open groups.mkv": ("libx264", {"x264-params": "open-gop=1:keyint=5:min-keyint=5:bframes=3:b-adapt=0:scenecut=0"}),
    "open groups.ts": ("libx264", {"x264-params": "open-gop=1:keyint=5:min-keyint=5:bframes=3:b-adapt=0:scenecut=0"}),
    "open groups of hevc.ts": ("libx265", {"x265-params": "log-level=none:open-gop=1:keyint=5:min-keyint=5:bframes=3"}),
    "open groups of hevc.mp4": (
        "libx265",
        {"x265-params": "log-level=none:open-gop=1:keyint=5:min-keyint=5:bframes=3"},
    ),
    "refreshed column by column.ts": ("libx264", {"x264-params": "intra-refresh=1:keyint=5:bframes=0"}),
    "refreshed column by column.mkv": ("libx264", {"x264-params": "intra-refresh=1:keyint=5:bframes=0"}),
    "hidden pictures.webm": ("libvpx", {"auto-alt-ref": "1", "lag-in-frames": "16", "cpu-used": "4"}),
    "hidden pictures of vp9.webm": ("libvpx-vp9", {"auto-alt-ref": "1", "lag-in-frames": "16", "cpu-used": "8"}),
    "fields.ts": ("libx264", {"x264-params": "tff=1:keyint=5:bframes=2"}),
    "fields.mpg": ("mpeg2video", {"flags": "+ildct+ilme"}),
    "closed groups.mpg": ("mpeg2video", {"flags": "+cgop", "sc_threshold": "1000000000"}),
}


@cache
def picture(number: int, width: int, height: int) -> np.ndarray:
    """uint8 [height, width, 3]: the number, and noise that makes files longer than what is read at a time."""
    noise = np.random.default_rng(number).integers(-24, 25, (height, width, 1))
    return (draw(37 * number + 1, height, width) + noise).astype(np.uint8)


@cache
def converted(number: int, size: tuple[int, int], pixels: str) -> av.VideoFrame:
    return av.VideoFrame.from_ndarray(picture(number, *size), format="rgb24").reformat(format=pixels)


def video_encoders() -> list[str]:
    found = []
    for name in sorted(av.codecs_available):
        try:
            codec = Codec(name, "w")
        except av.codec.codec.UnknownCodecError:
            continue
        if codec.type == "video" and codec.name == name and not name.endswith(HARDWARE):
            found.append(name)
    return found


def muxers() -> Iterator[str]:
    for name in sorted(av.formats_available):
        try:
            writable = av.ContainerFormat(name, "w").is_output
        except ValueError:
            continue
        if writable and name not in NO_FILE:
            yield name


MUXERS = tuple(muxers())


def decoder_ids() -> Iterator[int]:
    for name in av.codecs_available:
        with suppress(av.codec.codec.UnknownCodecError):
            yield Codec(name, "r").id


DECODED = frozenset(decoder_ids())


class Encoded(NamedTuple):
    """A packet as the encoder gave it, for containers that want the same of it."""

    content: bytes
    times: tuple[int | None, int | None, int]
    is_keyframe: bool
    time_base: Fraction
    side_data: tuple[Any, ...]

    @classmethod
    def from_packet(cls, packet: av.Packet) -> "Encoded":
        times = packet.pts, packet.dts, packet.duration
        return cls(bytes(packet), times, packet.is_keyframe, packet.time_base, tuple(packet.iter_sidedata()))

    def packet(self, stream: av.VideoStream) -> av.Packet:
        packet = av.Packet(self.content)
        packet.pts, packet.dts, packet.duration = self.times
        packet.is_keyframe, packet.time_base, packet.stream = self.is_keyframe, self.time_base, stream
        for side_data in self.side_data:
            packet.set_sidedata(side_data)
        return packet


ENCODED: dict[tuple[Any, ...], list[Encoded]] = {}


def encoded(stream: av.VideoStream, codec: str, size: tuple[int, int], options: dict[str, str]) -> list[av.Packet]:
    """The packets of all frames. They are encoded once for all containers that set the same flags, such as that headers
    stand apart: encoding is most of the work of writing."""
    key = codec, size, int(stream.codec_context.flags), *options.items()
    if key not in ENCODED:
        packets = []
        for number in range(FRAMES):
            frame = converted(number, size, stream.pix_fmt)
            frame.pts, frame.time_base = number, Fraction(1, FPS)
            packets += stream.encode(frame)
        ENCODED[key] = [Encoded.from_packet(packet) for packet in (*packets, *stream.encode())]
    return [one.packet(stream) for one in ENCODED[key]]


def write(path: Path, muxer: str | None, codec: str, size: tuple[int, int], *, sound: bool = False, **options) -> None:
    restored = ordinary_scheduling() if codec == "libsvtav1" else nullcontext()
    with restored, av.open(str(path), "w", format=muxer, **options.pop("container", {})) as container:
        stream = container.add_stream(codec, rate=FPS)
        formats = [each.name for each in stream.codec_context.codec.video_formats or ()]
        stream.pix_fmt = next((each for each in PIXELS if each in formats), formats[0] if formats else "yuv420p")
        stream.width, stream.height = size
        context = stream.codec_context
        context.gop_size, context.thread_count, context.max_b_frames = GROUP, 1, 2 if codec in REORDERING else 0
        if codec == "dnxhd":
            stream.bit_rate, stream.pix_fmt = 0, "yuv422p"
        stream.options = {"strict": "-2", **FAST.get(codec, {}), **options}
        silence = container.add_stream("mp2", rate=48000) if sound else None
        container.start_encoding()  # which refuses what the container does not hold
        container.mux(encoded(stream, codec, size, options))
        if silence:
            mux_silence(container, silence)


def write_in_a_size(path: Path, muxer: str, codec: str, sizes: tuple[tuple[int, int], ...]) -> tuple[int, int] | None:
    """The first of `sizes` that codec and container take, of which a file was written."""
    for size in sizes:
        try:
            write(path, muxer, codec, size)
        except (av.error.FFmpegError, OSError):
            continue
        except ValueError:
            return None  # the container does not hold this codec, whatever the size
        return size
    return None


def decoded(path: Path) -> tuple[list[np.ndarray], bool]:
    """Every frame by decoding once from the beginning, and whether the file is whole and of a kind that is taken."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        if stream.codec_context is None:
            raise ValueError("FFmpeg has no decoder for it")
        stream.codec_context.thread_count = 1
        frames = list(container.decode(stream))
        taken = any(name in SELF_CONTAINED.split(",") for name in container.format.name.split(","))
        whole = not any(frame.is_corrupt for frame in frames)
    return [frame.to_ndarray(format="rgb24") for frame in frames], taken and whole


def reading_headers_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on a file's packets are listed, and its first picture looked at, once for all reads of its frames: they
    are the same each time, and opening files is most of this test's work."""
    looked: dict[Path, StreamInfo] = {}
    listed: dict[Path, Timeline] = {}

    def look(path: Path, *opened: Any) -> StreamInfo:
        return looked[path] if path in looked else looked.setdefault(path, read_stream_info(path, *opened))

    def timeline(path: Path, *opened: Any) -> Timeline:
        return listed[path] if path in listed else listed.setdefault(path, read_timeline(path, *opened))

    monkeypatch.setattr(decode, "read_stream_info", look)
    monkeypatch.setattr(decode, "read_timeline", timeline)


def differences(path: Path, expected: list[np.ndarray], first: int = 0, step: int = 1) -> list[str]:
    """Frames that differ, asked for many at once, and alone: each `step`-th from `first`."""
    count = probe(path).frame_count
    if count != len(expected):
        return [f"{count} frames, {len(expected)} are decoded"]
    asked = [list(range(count)), list(range(0, count, 5)), sorted({0, count // 2, count - 1})]
    wrong = []
    for numbers in (*asked, *([number] for number in range(first, count, step))):
        frames = decode_frames(path, None, numbers)
        wrong += [
            f"{number} of {numbers}"
            for number, frame in zip(numbers, frames, strict=True)
            if not np.array_equal(frame, expected[number])
        ]
    return wrong


@pytest.mark.parametrize("codec", video_encoders())
def test_frames_of_a_codec_in_every_container(tmp_path, codec, monkeypatch):
    if codec in UNREAD and Codec(codec, "w").id not in DECODED:
        return  # whatever the container
    reading_headers_once(monkeypatch)
    wrong, sizes, tried = {}, SIZES, []
    for muxer in MUXERS:
        path = tmp_path / f"{muxer.split(',')[0]}.bin"
        size = write_in_a_size(path, muxer, codec, sizes)
        if size is None:
            continue
        sizes = (size,)
        try:
            expected, taken = decoded(path)
        except (av.error.FFmpegError, ValueError, IndexError):
            continue  # FFmpeg does not read what it wrote
        tried.append(muxer)
        expected = expected[: FRAMES - 1] if (codec, muxer) in SAME_TIME else expected
        try:
            found = differences(path, expected, first=len(tried) % 3, step=3)  # all of them over three containers
        except ProblemError as refused:
            found = [str(refused)] if taken else []
        if found:
            wrong[muxer] = found
        path.unlink()
    assert not wrong
    assert tried or codec in UNREAD


@pytest.mark.parametrize("name", SPECIAL)
def test_frames_however_pictures_refer_to_each_other(tmp_path, name):
    codec, options = SPECIAL[name]
    write(tmp_path / name, None, codec, SIZES[0], **options)
    expected, _ = decoded(tmp_path / name)
    assert len(expected) == FRAMES and differences(tmp_path / name, expected) == []


def test_a_fragmented_file(tmp_path):
    options = {"movflags": "frag_keyframe+empty_moov+default_base_moof"}
    write(tmp_path / "a.mp4", None, "libx264", SIZES[0], container={"options": options})
    expected, _ = decoded(tmp_path / "a.mp4")
    assert len(expected) == FRAMES and differences(tmp_path / "a.mp4", expected) == []


@pytest.mark.parametrize("codec", ["mpeg1video", "mpeg2video"])
def test_a_program_stream_with_sound(tmp_path, codec):
    write(tmp_path / "a.mpg", None, codec, SIZES[0], sound=True)
    expected, _ = decoded(tmp_path / "a.mpg")
    assert len(expected) == FRAMES and differences(tmp_path / "a.mpg", expected) == []
