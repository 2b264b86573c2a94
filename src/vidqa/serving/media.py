"""Media of requests: sent in the request, read from allowed folders, or downloaded from allowed hosts."""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import threading
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from vidqa.core.cli import FILE_REFUSED
from vidqa.core.files import remove
from vidqa.data.record import MediaRef
from vidqa.serving._base import MB, Limits
from vidqa.serving.download import Hosts, download
from vidqa.serving.problems import MEDIA_REFUSED, MEDIA_UNAVAILABLE, REQUEST, TOO_LARGE
from vidqa.serving.schema import NamedMedium

KINDS = {"video": ("video/", "application/octet-stream"), "image": ("image/", "application/octet-stream")}
SHOWN = 200  # characters of an address
OTHER_DISK = (
    "Make room where the server's temporary files are, or start it with TMPDIR on another disk; then send the request "
    "again."
)


class MediaStore:
    """Files of media that were sent as bytes, named by the hash of the bytes and deleted with their last request.

    The same bytes have the same name and modification time. So questions about one video share its computation, and the
    frame cache finds its frames.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._holders: Counter[str] = Counter()
        self._lock = threading.Lock()

    def hold(self, data: bytes, held: ExitStack) -> str:
        """The file with these bytes; it is there until `held` is closed. Raises OSError."""
        path = str(self.path / hashlib.sha256(data).hexdigest())
        with self._lock:
            if not self._holders[path]:
                self._write(path, data)
            self._holders[path] += 1
        held.callback(self._let_go, path)
        return path

    def _write(self, path: str, data: bytes) -> None:
        try:
            Path(path).write_bytes(data)
            os.utime(path, ns=(0, 0))
        except OSError:
            with suppress(OSError):
                remove(Path(path), owner=self.path)
            raise

    def _let_go(self, path: str) -> None:
        with self._lock:
            self._holders[path] -= 1
            if not self._holders[path]:
                del self._holders[path]
                with suppress(OSError):
                    remove(Path(path), owner=self.path)


@dataclass(frozen=True)
class MediaAccess:
    """The allowed sources of media. `folders` are real paths."""

    folders: tuple[str, ...]
    hosts: Hosts
    store: MediaStore
    limits: Limits

    def fetch(self, medium: NamedMedium, held: ExitStack) -> MediaRef:
        """The file of a medium, which is there until `held` is closed. Raises SERVE_MEDIA_*."""
        url = medium.url
        scheme = url[:16].partition(":")[0].lower()
        if scheme == "file":
            path, size = self._local(medium)
            return MediaRef(medium.kind, medium.where, path, size=size, keys=medium.keys)
        if scheme == "data":
            data = _from_data_url(medium)
        elif scheme in ("http", "https"):
            data = download(url, self.hosts, self.limits, medium.where)
        else:
            message = f"{_shown(url)} is neither a data, file, http nor https address"
            raise MEDIA_REFUSED.error(medium.where, message)
        if not data:
            raise MEDIA_UNAVAILABLE.error(medium.where, "it has no bytes")
        try:
            path = self.store.hold(data, held)
        except OSError as full:
            raise FILE_REFUSED.error(medium.where, f"it cannot be kept: {full.strerror}", OTHER_DISK) from full
        return MediaRef(medium.kind, medium.where, path, size=len(data), keys=medium.keys)

    def _local(self, medium: NamedMedium) -> tuple[str, int]:
        """A file of an allowed folder. Files elsewhere get the same refusal whether they exist or not."""
        parts = urlsplit(medium.url)
        name = unquote(parts.path)
        refused = MEDIA_REFUSED.error(medium.where, f"{_shown(medium.url)} lies in no folder that is allowed")
        if parts.netloc not in ("", "localhost") or not name.startswith("/") or "\0" in name:
            raise refused
        path = os.path.realpath(name)
        if not any(os.path.commonpath([path, folder]) == folder for folder in self.folders):
            raise refused
        try:
            size = os.stat(path).st_size
        except OSError as missing:
            message = f"{_shown(medium.url)}: {missing.strerror}"
            raise MEDIA_UNAVAILABLE.error(medium.where, message) from missing
        if not os.path.isfile(path):
            raise MEDIA_UNAVAILABLE.error(medium.where, f"{_shown(medium.url)} is no file")
        if size > self.limits.media_bytes:
            message = f"{size / MB:.0f} MB; at most {self.limits.media_bytes / MB:.0f} MB allowed"
            raise TOO_LARGE.error(medium.where, message)
        return path, size


def _from_data_url(medium: NamedMedium) -> bytes:
    """The bytes that data:video/mp4;base64,... holds."""
    head, comma, body = medium.url.partition(",")
    kind, *parameters = head[len("data:") :].lower().split(";")
    if not comma or "base64" not in parameters:
        raise REQUEST.error(medium.where, "a data URL has the form data:video/mp4;base64,...", "Encode it so.")
    if kind and not kind.startswith(KINDS[medium.kind]):
        message = f"{_shown(kind)} is sent as {medium.kind}_url"
        remedy = f"Send images as image_url and videos as video_url; {medium.kind}_url takes {medium.kind}/..."
        raise REQUEST.error(medium.where, message, remedy)
    if medium.kind == "video" and "," in body:
        message = "several parts: single frames are not taken, only a video file, whose times are known"
        raise REQUEST.error(medium.where, message, "Send the video file, or the frames as images.")
    try:
        return base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError) as broken:
        raise MEDIA_UNAVAILABLE.error(medium.where, f"its base64 is broken: {broken}") from broken


def _shown(url: str) -> str:
    """An address without the parts that may hold a secret."""
    plain = url.partition("?")[0].partition("#")[0]
    return plain if len(plain) <= SHOWN else f"{plain[:SHOWN]}..."
