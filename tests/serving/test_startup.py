"""A server says that it answers once it does: whoever reads the line connects at once."""

from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace

import uvicorn
from uvicorn.lifespan.off import LifespanOff

from vidqa.engine.serve import Server
from vidqa.serving._base import listen


def test_a_server_accepts_connections_when_it_says_that_it_has_begun() -> None:
    door = listen("127.0.0.1", 0)
    connected: list[int] = []

    def began() -> None:
        with socket.create_connection(door.getsockname(), timeout=5):
            connected.append(1)

    async def started() -> None:
        config = uvicorn.Config(lambda *_: None, lifespan="off", log_level="warning")
        server = Server(config, SimpleNamespace(stop=lambda: None), began, lambda: None)  # type: ignore[arg-type]
        server.lifespan = LifespanOff(config)
        config.load()
        await server.startup([door])
        for listener in server.servers:
            listener.close()

    asyncio.run(started())
    assert connected
