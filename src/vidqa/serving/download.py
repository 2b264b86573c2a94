"""Downloads media from allowed hosts only: a request must not reach other machines of the network.

The name is resolved once and the connection goes to the checked address, so that a changing DNS answer has no effect.
Redirects are not followed.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import time
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from vidqa.serving._base import MB, Limits
from vidqa.serving.problems import MEDIA_REFUSED, MEDIA_UNAVAILABLE, TOO_LARGE

CHUNK = 1 << 16
PORTS = {"http": 80, "https": 443}
MAPPED, NAT64 = ipaddress.ip_network("::ffff:0:0/96"), ipaddress.ip_network("64:ff9b::/96")  # end in an IPv4 address
PUBLIC_V6 = ipaddress.ip_network("2000::/3")  # all that is assigned; the rest is private, a transition form or unknown
# Special blocks of IANA's registries that are not private: protocols, relays and tunnels (one ends in any IPv4
# address), documentation.
SPECIAL = [
    ipaddress.ip_network(block)
    for block in ("192.0.0.0/24", "192.88.99.0/24", "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")
]
BROKEN = (OSError, http.client.HTTPException, ValueError)  # ValueError: invalid headers and host names


@dataclass(frozen=True)
class Hosts:
    """Allowed hosts, each as `name`, `name:port` or `[address]:port`; without a port, its scheme's own. A private
    address is reached only if the address itself is allowed, not by a name."""

    names: frozenset[tuple[str, int | None]]

    @staticmethod
    def parse(names_written: Iterable[str]) -> Hosts:
        """Raises ValueError for an invalid host."""
        names = set()
        for name in names_written:
            parts = urlsplit(f"//{name}")
            if not parts.hostname or name != parts.netloc or parts.username is not None:
                raise ValueError(f"{name!r} is not HOST or HOST:PORT")
            names.add((parts.hostname, parts.port))
        return Hosts(frozenset(names))

    def allow(self, host: str, port: int, scheme: str) -> bool:
        return (host, port) in self.names or ((host, None) in self.names and port == PORTS[scheme])


def download(url: str, hosts: Hosts, limits: Limits, where: str) -> bytes:
    """The bytes at an address. Raises SERVE_MEDIA_REFUSED, SERVE_MEDIA_UNAVAILABLE, SERVE_TOO_LARGE."""
    deadline = time.monotonic() + limits.fetch_s
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or PORTS[parts.scheme]
    except ValueError as broken:
        raise MEDIA_REFUSED.error(where, f"the address cannot be read: {broken}") from broken
    if parts.username is not None or not hosts.allow(host, port, parts.scheme):
        raise MEDIA_REFUSED.error(where, f"the host {host}:{port} is not allowed")
    try:
        address = _checked_address(host, port, where)
        return _read(parts, address, port, deadline, limits, where)
    except BROKEN as failed:
        reason = str(failed) or type(failed).__name__
        raise MEDIA_UNAVAILABLE.error(where, f"{host}:{port} gives no file: {reason}") from failed


def _checked_address(host: str, port: int, where: str) -> str:
    """An address of the host that may be connected to. Raises SERVE_MEDIA_REFUSED, OSError."""
    addresses = {str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    if addresses == {host}:  # allowed as an address by the user
        return host
    private = [address for address in addresses if not _is_public(address)]
    if private:
        message = f"{host} resolves to {private[0]}, which is no public address"
        raise MEDIA_REFUSED.error(where, message, "Allow the address itself, and write it into the request.")
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
    """The body of a GET at `address`. Raises BROKEN."""

    def left() -> float:
        if (seconds := deadline - time.monotonic()) <= 0:
            raise TimeoutError(f"not there within {limits.fetch_s:g} s")
        return seconds

    host = parts.hostname or ""
    connection = http.client.HTTPConnection(host, port, timeout=left())
    with socket.create_connection((address, port), left()) as plain:
        sock = plain
        if parts.scheme == "https":
            sock = ssl.create_default_context().wrap_socket(plain, server_hostname=host)
        connection.sock = sock
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request("GET", target, headers={"Accept-Encoding": "identity", "User-Agent": "vidqa"})
        response = connection.getresponse()
        if response.status != 200:
            kind = "a redirect, which is not followed" if 300 <= response.status < 400 else "no file"
            raise OSError(f"it answers {response.status}, {kind}")
        data = bytearray()
        while True:
            sock.settimeout(left())
            if not (piece := response.read1(CHUNK)):
                break
            data += piece
            if len(data) > limits.media_bytes or (response.length or 0) > limits.media_bytes:
                message = f"more than {limits.media_bytes / MB:.0f} MB"
                raise TOO_LARGE.error(where, message)
        if response.length:
            raise OSError(f"it ended {response.length} bytes early")
        return bytes(data)
