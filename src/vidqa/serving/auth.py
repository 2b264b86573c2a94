"""The address of the server and its key."""

from __future__ import annotations

import ipaddress
import socket

from vidqa.serving.problems import ADDRESS, OPTION

SHORTEST_KEY = 16  # characters; a shorter one could be guessed, and could not be kept out of logs
NEED_KEY = "Set VIDQA_API_KEY in the environment, or leave --host out: then only this machine reaches the server."
LONGER_KEY = "Set a longer one, for example that of `openssl rand -hex 24`."
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


def served_key(host: str, key: str | None) -> str | None:
    """The key that clients need. Raises SERVE_OPTION."""
    if key is None and host not in LOOPBACK:
        raise OPTION.error("--host", f"{host} is reached by other machines, and VIDQA_API_KEY is not set", NEED_KEY)
    if key is not None and len(key) < SHORTEST_KEY:
        raise OPTION.error("VIDQA_API_KEY", f"{len(key)} characters; {SHORTEST_KEY} are needed", LONGER_KEY)
    return key


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises SERVE_ADDRESS."""
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
    except ValueError:
        family = socket.AF_INET
    door = socket.socket(family, socket.SOCK_STREAM)
    try:
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        door.bind((host, port))
    except (OSError, OverflowError) as failed:
        door.close()
        raise ADDRESS.error(f"{host}:{port}", str(failed)) from failed
    return door
