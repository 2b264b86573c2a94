"""Open a video or image, a file of its own or a member of a tar read in place, and report why one cannot be opened."""

from __future__ import annotations

import hashlib
import stat
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vidqa.core.problem import ProblemError
from vidqa.video.problems import MEDIA_UNREADABLE

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.stream import VideoStream

HASH_CHUNK = 1 << 20  # bytes
# Containers whose header states everything about a stream but its pixel format, so that FFmpeg need not decode pictures
# to open them. To decode frames they are opened in full all the same: FFmpeg guesses reordering from the first pictures
# where the header does not state it.
SELF_DESCRIBING = ("mov", "matroska", "avi")
MAX_PIXELS = 8192 * 8192  # of one picture; a decoder holds up to 17 pictures
SCALE_DOWN = "Scale it down, for example with `ffmpeg -i FILE -vf scale=1920:-2 NEW.mp4`, or leave it out."
# Formats that contain their pictures. A playlist, a manifest or a list of files leads to other files, which the sender
# of the file may not be allowed to read; the remaining formats are devices, sound, text and pictures.
SELF_CONTAINED = (
    "mov,matroska,avi,mpegts,mpeg,mpegvideo,m4v,h264,hevc,vvc,av1,obu,ivf,flv,live_flv,asf,asf_o,ogg,gif,apng,mxf,nut,dv,"
    "wtv,rm,nsv,nuv,yuv4mpegpipe,mjpeg,dirac,vc1,h263,h261,gxf,swf,dhav,film_cpk,roq,smk,bink,webp_pipe,jpegxl_anim"
)
LIMITS = {"max_pixels": str(MAX_PIXELS)}  # FFmpeg's option, for pictures that are larger than the header says
HEADER_ALONE = {"codec_whitelist": "none", "probesize": "32"}


def place(path: str | Path, member: str | None) -> str:
    """The name of a medium in problems: PATH, or PATH!MEMBER."""
    return str(path) if member is None else f"{path}!{member}"


def extent(path: str | Path, member: str | None) -> tuple[int, int]:
    """Byte offset and length of a medium inside the file `path`. Raises MEDIA_UNREADABLE."""
    where = place(path, member)
    try:
        status = Path(path).stat()
    except (OSError, ValueError) as failed:
        reason = failed.strerror if isinstance(failed, OSError) else str(failed)
        remedy = "restore the file, or leave it out (of a job: engine.on_bad_sample=quarantine)"
        raise MEDIA_UNREADABLE.error(where, f"{path} cannot be opened: {reason}", remedy) from failed
    if not stat.S_ISREG(status.st_mode):  # opening a named pipe would hang
        raise MEDIA_UNREADABLE.error(where, f"{path} is not a regular file", "Give the path of a file.")
    offset, length = 0, status.st_size
    if member is not None:
        offset, length = _member(path, member, where)
    if length == 0:
        raise MEDIA_UNREADABLE.error(where, "the file has 0 bytes", "Copy or record it again, or leave it out.")
    return offset, length


def _member(path: str | Path, member: str, where: str) -> tuple[int, int]:
    status = Path(path).stat()
    try:
        members = _tar_members(str(path), status.st_size, status.st_mtime_ns)
    except (tarfile.TarError, OSError) as broken:
        raise MEDIA_UNREADABLE.error(where, f"{path} cannot be read as an uncompressed tar: {broken}") from broken
    if member not in members:
        raise MEDIA_UNREADABLE.error(
            where, f"the archive has no member {member!r}", "Check the name in the annotations."
        )
    return members[member]


@lru_cache(maxsize=8)
def _tar_members(path: str, size: int, mtime_ns: int) -> dict[str, tuple[int, int]]:
    """Every plain file of a tar, by name: (offset, length). Size and mtime are keys, so a changed tar is reread."""
    with tarfile.open(path, "r:") as archive:
        return {entry.name: (entry.offset_data, entry.size) for entry in archive if entry.isreg()}


@contextmanager
def _open_container(
    path: str | Path, member: str | None, options: dict[str, str] | None = None
) -> Iterator[InputContainer]:
    """Open an FFmpeg container; errors of FFmpeg, here or in the block, become MEDIA_UNREADABLE.

    Only this file is opened: playlists, which name others, are refused. `options` are FFmpeg's.
    """
    import av

    offset, length = extent(path, member)
    file = str(Path(path).absolute())
    url = f"file:{file}" if member is None else f"subfile,,start,{offset},end,{offset + length},,:{file}"
    # PyAV before 19 fails on titles that are not UTF-8 without this option; PyAV 19 no longer has the option.
    lenient: dict[str, Any] = {"metadata_errors": "replace"} if int(av.__version__.split(".")[0]) < 19 else {}
    safe = {"protocol_whitelist": "file,subfile", "format_whitelist": SELF_CONTAINED, **LIMITS}
    try:
        with av.open(url, options=safe | (options or {}), **lenient) as container:
            yield container
    except av.error.FFmpegError as broken:
        raise MEDIA_UNREADABLE.error(place(path, member), f"FFmpeg cannot decode it: {broken.strerror}") from broken


@contextmanager
def open_video(
    path: str | Path, member: str | None, *, header_alone: bool = False
) -> Iterator[tuple[InputContainer, VideoStream]]:
    """Open a container and its first video stream that is not a cover picture; decoding uses one thread.

    With `header_alone` no picture is decoded at opening if the header is sufficient: many times as fast, and meant for
    reading packets, not for decoding frames.
    """
    with ExitStack() as stack:
        container = stack.enter_context(_open_container(path, member, HEADER_ALONE if header_alone else None))
        if header_alone and not _header_is_complete(container):
            container = stack.enter_context(_open_container(path, member))
        streams = _moving(container)
        if not streams:
            kinds = ", ".join(sorted({stream.type for stream in container.streams})) or "no"
            message = f"the file has {kinds} streams, but no video stream"
            raise MEDIA_UNREADABLE.error(place(path, member), message, "Check the name in the annotations.")
        if streams[0].codec_context is None:
            raise MEDIA_UNREADABLE.error(place(path, member), "FFmpeg has no decoder for its pictures")
        width, height = streams[0].width, streams[0].height
        if width * height > MAX_PIXELS:
            message = f"its pictures have {width} x {height} pixels, more than {MAX_PIXELS:,}"
            raise MEDIA_UNREADABLE.error(place(path, member), message, SCALE_DOWN)
        streams[0].codec_context.thread_count = 1
        streams[0].codec_context.options = dict(LIMITS)
        yield container, streams[0]


def _moving(container: InputContainer) -> list[VideoStream]:
    from av.stream import Disposition

    return [stream for stream in container.streams.video if not stream.disposition & Disposition.attached_pic]


def _header_is_complete(container: InputContainer) -> bool:
    streams = _moving(container)
    if not streams or streams[0].codec_context is None or not container.format.name.startswith(SELF_DESCRIBING):
        return False
    return bool(streams[0].width and streams[0].average_rate)


def medium_hash(path: str, member: str | None) -> str | None:
    """sha256 of a file's bytes, or of a member of an uncompressed tar, read in place; None where they cannot be read,
    which a probe of the same file explains."""
    try:
        offset, left = extent(path, member)
        digest = hashlib.sha256()
        with open(path, "rb") as file:
            file.seek(offset)
            while left > 0 and (piece := file.read(min(HASH_CHUNK, left))):
                digest.update(piece)
                left -= len(piece)
    except (OSError, ProblemError):
        return None
    return digest.hexdigest()
