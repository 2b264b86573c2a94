"""Real video and image files for the tests, written with PyAV; every frame's pixels encode its frame number.

write_clip(tmp_path / "a.mp4", frames=24, fps=8)
frame_numbers(decoded)          # [0, 1, 2, ...] from uint8[N, H, W, 3], also after resizing
"""

from __future__ import annotations

import os
import struct
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

CELLS = 4  # a frame is CELLS x CELLS black or white cells: the bits of its number, lowest first


def draw(number: int, height: int, width: int) -> np.ndarray:
    """Draw `number` (< 65536) as bits, uint8 [H, W, 3]; rows and columns of cells cover the whole frame."""
    bits = (number >> np.arange(CELLS * CELLS)) & 1
    rows, columns = np.arange(height) * CELLS // height, np.arange(width) * CELLS // width
    grey = (40 + 175 * bits.reshape(CELLS, CELLS)[np.ix_(rows, columns)]).astype(np.uint8)
    return np.repeat(grey[:, :, None], 3, axis=2)


def frame_numbers(frames: np.ndarray) -> list[int]:
    """The numbers encoded in frames [N, H, W, 3], read at the center of every cell."""
    height, width = frames.shape[1:3]
    rows = (2 * np.arange(CELLS) + 1) * height // (2 * CELLS)
    columns = (2 * np.arange(CELLS) + 1) * width // (2 * CELLS)
    bits = frames[:, rows][:, :, columns].mean(axis=-1).reshape(len(frames), -1) > 127
    return [int((frame << np.arange(CELLS * CELLS)).sum()) for frame in bits]


@contextmanager
def ordinary_scheduling() -> Iterator[None]:
    """Undo an effect of SVT-AV1 under root: it leaves its caller, and later children, in the real-time class."""
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, parameters)


def write_clip(
    path: Path,
    *,
    frames: int = 24,
    fps: float | Fraction = 8,
    width: int = 64,
    height: int = 48,
    codec: str = "libx264",
    pix_fmt: str = "yuv420p",
    keyframe_every: int = 12,
    b_frames: int = 0,
    rotation: int = 0,
    audio: bool = False,
    times_ms: Sequence[int] | None = None,
    first_number: int = 0,
) -> Path:
    """Write one video and return its path; the container follows the suffix (.mp4 .mov .mkv .webm .avi).

    `width` and `height` are as displayed: with `rotation` (degrees counter-clockwise, as in PyAV) the frames are stored
    rotated. `times_ms` sets the timestamp of every frame (variable frame rate). `audio` adds a second of silence.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    rate = Fraction(fps).limit_denominator(100000)
    count = frames if times_ms is None else len(times_ms)
    turned = rotation % 180 != 0
    with ordinary_scheduling(), av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate)
        stream.width, stream.height = (height, width) if turned else (width, height)
        stream.pix_fmt = pix_fmt
        stream.codec_context.gop_size = keyframe_every
        stream.codec_context.thread_count = 1
        if codec in ("libx264", "libx265", "mpeg4"):
            stream.codec_context.max_b_frames = b_frames
        if codec == "libx264":
            stream.options = {"preset": "ultrafast", "crf": "12", "bf": str(b_frames), "sc_threshold": "0"}
        if codec.startswith("libvpx"):
            stream.options = {"deadline": "realtime", "cpu-used": "8"}
        if times_ms is not None:
            stream.codec_context.time_base = Fraction(1, 1000)
        if rotation:
            stream.set_display_rotation(rotation)
        sound = container.add_stream("aac" if path.suffix != ".webm" else "libopus", rate=48000) if audio else None
        for number in range(count):
            upright = draw(first_number + number, height, width)
            picture = np.ascontiguousarray(np.rot90(upright, -rotation // 90))
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts = number if times_ms is None else times_ms[number]
            frame.time_base = 1 / rate if times_ms is None else Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
        if sound is not None:
            mux_silence(container, sound)
    return path


def write_sparse_avi(
    path: Path, *, at: Sequence[int], frames: int, fps: int = 15, index: bool = True, width: int = 64, height: int = 48
) -> Path:
    """Write an AVI of `frames` frames of which only those with the indices `at` have data, as recorders write static
    scenes; their cells encode the index. Written byte by byte, since muxers leave no empty frames at the end."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return kind + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2)

    with tempfile.TemporaryDirectory() as folder:
        pictures = {n: write_image(Path(folder) / f"{n}.jpg", width=width, height=height, number=n) for n in at}
        chunks = [chunk(b"00dc", pictures[n].read_bytes() if n in pictures else b"") for n in range(frames)]
    counts = struct.pack("<14I", 10**6 // fps, 0, 0, 0x10, frames, 0, 1, 0, width, height, 0, 0, 0, 0)
    stream = struct.pack("<4s4sIIIIIIIIIIII", b"vids", b"MJPG", 0, 0, 0, 1, fps, 0, frames, 0, 0, 0, 0, 0)
    bitmap = struct.pack("<IiiHH4sIiiII", 40, width, height, 1, 24, b"MJPG", 3 * width * height, 0, 0, 0, 0)
    streams = chunk(b"LIST", b"strl" + chunk(b"strh", stream) + chunk(b"strf", bitmap))
    headers = chunk(b"LIST", b"hdrl" + chunk(b"avih", counts) + streams)
    starts = np.cumsum([4, *map(len, chunks)])
    entries = [struct.pack("<4sIII", b"00dc", 0x10, at, len(c) - 8) for at, c in zip(starts, chunks, strict=False)]
    body = b"AVI " + headers + chunk(b"LIST", b"movi" + b"".join(chunks))
    path.write_bytes(chunk(b"RIFF", body + (chunk(b"idx1", b"".join(entries)) if index else b"")))
    return path


def write_with_packet_times(path: Path, **clip: Any) -> Path:
    """Write a clip whose muxer used decode timestamps as presentation timestamps."""
    sound = write_clip(path.with_name(f"sound-{path.name}"), **clip)
    with av.open(str(sound)) as source, av.open(str(path), "w") as target:
        stream = source.streams.video[0]
        copy = target.add_stream_from_template(stream)
        packets = [packet for packet in source.demux(stream) if packet.size]
        for packet, pts in zip(packets, sorted(packet.pts for packet in packets), strict=True):
            packet.stream, packet.pts, packet.dts = copy, pts, pts
            target.mux(packet)
    sound.unlink()
    return path


def mux_silence(container: av.container.OutputContainer, stream: av.AudioStream) -> None:
    silence = av.AudioFrame.from_ndarray(np.zeros((1, 48000), np.float32), format="fltp", layout="mono")
    silence.sample_rate, silence.pts = 48000, 0
    resampler = av.AudioResampler(stream.codec_context.format, stream.codec_context.layout, 48000)
    for piece in resampler.resample(silence):
        container.mux(stream.encode(piece))
    container.mux(stream.encode())


def undecodable(clip: Path) -> bytes:
    """The bytes of a clip with intact index and first pictures, so that its header does not show the damage."""
    content = bytearray(clip.read_bytes())
    end = content.rindex(b"moov")
    middle = (content.index(b"mdat") + end) // 2
    content[middle:end] = bytes(end - middle)
    return bytes(content)


def write_image(path: Path, *, width: int = 64, height: int = 48, number: int = 5, codec: str | None = None) -> Path:
    """Write one PNG, JPEG or WebP (by suffix) whose cells encode `number`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    codecs = {".png": ("png", "rgb24"), ".webp": ("libwebp", "yuv420p")}
    name, pix_fmt = codecs.get(path.suffix, ("mjpeg", "yuvj420p"))
    encoder = av.CodecContext.create(codec or name, "w")
    encoder.width, encoder.height, encoder.pix_fmt, encoder.time_base = width, height, pix_fmt, Fraction(1, 25)
    frame = av.VideoFrame.from_ndarray(draw(number, height, width), format="rgb24").reformat(format=pix_fmt)
    frame.pts = 0
    packets = [*encoder.encode(frame), *encoder.encode()]
    path.write_bytes(b"".join(bytes(packet) for packet in packets))
    return path


def decode_frames(path: str | Path, member: str | None, indices: Sequence[int]) -> np.ndarray:
    """The frames with these numbers, in this order, uint8 [N, H, W, 3]; a number may repeat."""
    from vidqa.video.decode import read_frames

    numbers, positions = np.unique(np.asarray(indices, int), return_inverse=True)
    return np.stack(list(read_frames(path, member, numbers.tolist())))[positions]
