"""Media of requests: sent in the request, read from allowed folders, or downloaded from allowed hosts.

A request must not reach other machines of the network: a host name is resolved once, and the connection goes to the
checked address, so that a changing DNS answer has no effect. Redirects are not followed.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import http.client
import ipaddress
import os
import secrets
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from vidqa.core.cli import FILE_REFUSED
from vidqa.core.files import remove
from vidqa.data.record import MediaRef
from vidqa.serving._base import MB, Limits
from vidqa.serving.problems import MEDIA_REFUSED, MEDIA_UNAVAILABLE, REQUEST, TOO_LARGE
from vidqa.serving.schema import NamedMedium

KINDS = {"video": ("video/", "application/octet-stream"), "image": ("image/", "application/octet-stream")}
SHOWN = 200  # most characters of a URL in a message
OTHER_DISK = (
    "Free space for the server's temporary files, or start it with TMPDIR on another disk; then send the request again."
)
CHUNK = 1 << 16
PORTS = {"http": 80, "https": 443}
MAPPED, NAT64 = ipaddress.ip_network("::ffff:0:0/96"), ipaddress.ip_network("64:ff9b::/96")  # contain an IPv4 address
PUBLIC_V6 = ipaddress.ip_network("2000::/3")  # all assigned; the rest is private, a transition form or unknown
# Special blocks of IANA's registries that are not private: protocols, relays and tunnels (one contains any IPv4
# address), documentation.
SPECIAL = [
    ipaddress.ip_network(block)
    for block in ("192.0.0.0/24", "192.88.99.0/24", "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")
]
BROKEN = (OSError, http.client.HTTPException, ValueError)  # ValueError: invalid headers and host names


class MediaStore:
    """Files of media that were sent as bytes, named by the hash of the bytes and deleted after their last request.

    Equal bytes have the same name and modification time. So questions about one video share its computation, and the
    frame cache finds its frames.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._holders: Counter[str] = Counter()
        self._lock = threading.Lock()

    def hold(self, data: bytes, held: ExitStack) -> str:
        """The file with these bytes; it exists until `held` is closed. Raises OSError."""
        path = str(self.path / hashlib.sha256(data).hexdigest())
        with self._lock:
            if is_there := path in self._holders:
                self._holders[path] += 1
        if not is_there:
            self._write(path, data)
        held.callback(self._release, path)
        return path

    def _write(self, path: str, data: bytes) -> None:
        """Write the bytes without the lock, which the event loop also takes, and hold the file after its renaming."""
        temporary = self.path / secrets.token_hex(16)
        try:
            temporary.write_bytes(data)
            os.utime(temporary, ns=(0, 0))
            with self._lock:
                os.replace(temporary, path)
                self._holders[path] += 1
        except OSError:
            with suppress(OSError):
                remove(temporary, owner=self.path)
            raise

    def _release(self, path: str) -> None:
        with self._lock:
            self._holders[path] -= 1
            if not self._holders[path]:
                del self._holders[path]
                with suppress(OSError):
                    remove(Path(path), owner=self.path)


@dataclass(frozen=True)
class Hosts:
    """Allowed hosts, each as `name`, `name:port` or `[address]:port`; without a port, the scheme's default. A private
    address is reachable only if the address itself is allowed, not by a name."""

    names: frozenset[tuple[str, int | None]]

    @staticmethod
    def parse(names_written: Iterable[str]) -> Hosts:
        """Parse host names. Raises ValueError for an invalid one."""
        names = set()
        for name in names_written:
            parts = urlsplit(f"//{name}")
            if not parts.hostname or name != parts.netloc or parts.username is not None:
                raise ValueError(f"{name!r} is not HOST or HOST:PORT")
            names.add((parts.hostname, parts.port))
        return Hosts(frozenset(names))

    def allow(self, host: str, port: int, scheme: str) -> bool:
        return (host, port) in self.names or ((host, None) in self.names and port == PORTS[scheme])


@dataclass(frozen=True)
class MediaAccess:
    """The allowed sources of media. `folders` are real paths."""

    folders: tuple[str, ...]
    hosts: Hosts
    store: MediaStore
    limits: Limits

    def fetch(self, medium: NamedMedium, held: ExitStack) -> MediaRef:
        """The file of a medium, which exists until `held` is closed. Raises SERVE_MEDIA_*."""
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
            message = f"{_address_text(url)} is neither a data, file, http nor https address"
            raise MEDIA_REFUSED.error(medium.where, message)
        if not data:
            raise MEDIA_UNAVAILABLE.error(medium.where, "it has no bytes")
        try:
            path = self.store.hold(data, held)
        except OSError as full:
            raise FILE_REFUSED.error(medium.where, f"it cannot be stored: {full.strerror}", OTHER_DISK) from full
        return MediaRef(medium.kind, medium.where, path, size=len(data), keys=medium.keys)

    def _local(self, medium: NamedMedium) -> tuple[str, int]:
        """A file of an allowed folder. Files elsewhere get the same refusal whether they exist or not."""
        parts = urlsplit(medium.url)
        name = unquote(parts.path)
        refused = MEDIA_REFUSED.error(medium.where, f"{_address_text(medium.url)} is not in an allowed folder")
        if parts.netloc not in ("", "localhost") or not name.startswith("/") or "\0" in name:
            raise refused
        path = os.path.realpath(name)
        if not any(os.path.commonpath([path, folder]) == folder for folder in self.folders):
            raise refused
        try:
            size = os.stat(path).st_size
        except OSError as missing:
            message = f"{_address_text(medium.url)}: {missing.strerror}"
            raise MEDIA_UNAVAILABLE.error(medium.where, message) from missing
        if not os.path.isfile(path):
            raise MEDIA_UNAVAILABLE.error(medium.where, f"{_address_text(medium.url)} is not a file")
        if size > self.limits.media_bytes:
            message = f"{size / MB:.0f} MB; at most {self.limits.media_bytes / MB:.0f} MB allowed"
            raise TOO_LARGE.error(medium.where, message)
        return path, size


def _from_data_url(medium: NamedMedium) -> bytes:
    """The decoded bytes of a data URL, data:video/mp4;base64,..."""
    head, comma, body = medium.url.partition(",")
    kind, *parameters = head[len("data:") :].lower().split(";")
    if not comma or "base64" not in parameters:
        raise REQUEST.error(medium.where, "a data URL has the form data:video/mp4;base64,...", "Encode it so.")
    if kind and not kind.startswith(KINDS[medium.kind]):
        message = f"{_address_text(kind)} is sent as {medium.kind}_url"
        remedy = f"Send images as image_url and videos as video_url; {medium.kind}_url takes {medium.kind}/..."
        raise REQUEST.error(medium.where, message, remedy)
    if medium.kind == "video" and "," in body:
        message = "several parts: single frames are not supported, only a video file, which has timestamps"
        raise REQUEST.error(medium.where, message, "Send the video file, or the frames as images.")
    try:
        return base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError) as broken:
        raise MEDIA_UNAVAILABLE.error(medium.where, f"its base64 is broken: {broken}") from broken


def _address_text(url: str) -> str:
    """A URL without the parts that may contain a secret."""
    plain = url.partition("?")[0].partition("#")[0]
    return plain if len(plain) <= SHOWN else f"{plain[:SHOWN]}..."


def download(url: str, hosts: Hosts, limits: Limits, where: str) -> bytes:
    """Download a URL. Raises SERVE_MEDIA_REFUSED, SERVE_MEDIA_UNAVAILABLE, SERVE_TOO_LARGE."""
    deadline = time.monotonic() + limits.fetch_s
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or PORTS[parts.scheme]
    except ValueError as broken:
        raise MEDIA_REFUSED.error(where, f"the address cannot be read: {broken}") from broken
    if parts.username is not None or not hosts.allow(host, port, parts.scheme):
        raise MEDIA_REFUSED.error(where, f"the host {host}:{port} is not allowed")
    try:
        data = _read(parts, _checked_address(host, port, where), port, deadline, limits, where)
        if time.monotonic() >= deadline:  # it may be truncated
            raise TimeoutError
        return data
    except BROKEN as failed:
        is_late = time.monotonic() >= deadline
        reason = f"no response within {limits.fetch_s:g} s" if is_late else str(failed) or type(failed).__name__
        raise MEDIA_UNAVAILABLE.error(where, f"{host}:{port} gives no file: {reason}") from failed


def _checked_address(host: str, port: int, where: str) -> str:
    """An address of the host to which a connection is allowed. Raises SERVE_MEDIA_REFUSED, OSError."""
    addresses = {str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    if addresses == {host}:  # the user allowed the address itself
        return host
    private = [address for address in addresses if not _is_public(address)]
    if private:
        message = f"{host} resolves to {private[0]}, which is not a public address"
        raise MEDIA_REFUSED.error(where, message, "Allow the IP address (--allow-host), and request that.")
    return min(addresses)


def _is_public(address: str) -> bool:
    """Whether an address is public, also for IPv4 inside IPv6."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed in MAPPED or parsed in NAT64:
            return _is_public(str(ipaddress.IPv4Address(int(parsed) & 0xFFFFFFFF)))
        if parsed not in PUBLIC_V6:
            return False
    return parsed.is_global and not parsed.is_multicast and not any(parsed in block for block in SPECIAL)


def _read(parts: SplitResult, address: str, port: int, deadline: float, limits: Limits, where: str) -> bytes:
    """The body of a GET at `address`, or the part received before the deadline, a time.monotonic(). Raises BROKEN."""
    host, data = parts.hostname or "", bytearray()
    with ExitStack() as held:
        sock = held.enter_context(socket.create_connection((address, port), limits.fetch_s))
        if parts.scheme == "https":
            context = ssl.create_default_context()
            sock = held.enter_context(context.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False))
        # A socket's own timeout is that of one read, and a server may send a header of many kilobytes byte by byte.
        ending = threading.Timer(deadline - time.monotonic(), _shut_down, [sock])
        held.callback(ending.cancel)
        ending.start()
        if isinstance(sock, ssl.SSLSocket):
            sock.do_handshake()
        connection = http.client.HTTPConnection(host, port)
        connection.sock = sock
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request("GET", target, headers={"Accept-Encoding": "identity", "User-Agent": "vidqa"})
        response = connection.getresponse()
        if response.status != 200:
            kind = "a redirect, which is not followed" if 300 <= response.status < 400 else "no file"
            raise OSError(f"it answers {response.status}, {kind}")
        while piece := response.read1(CHUNK):
            data += piece
            if len(data) > limits.media_bytes or (response.length or 0) > limits.media_bytes:
                raise TOO_LARGE.error(where, f"more than {limits.media_bytes / MB:.0f} MB")
        if response.length:
            raise OSError(f"it ended {response.length} bytes early")
    return bytes(data)


def _shut_down(sock: socket.socket) -> None:
    """Shut down sending and receiving, in any thread; an SSLSocket's own `shutdown` would change its state."""
    with suppress(OSError):
        socket.socket.shutdown(sock, socket.SHUT_RDWR)
