"""The HTTP server: one process with one model.

    python -P -m vidqa.engine.serve '{"spec": "...", "name": "my-model", "host": "127.0.0.1", "port": 8000, ...}'

`scripts/serve.py` builds the spec and starts it. Exit code 0 after SIGINT or SIGTERM, 5 if the model failed.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import tempfile
import threading
import tomllib
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import uvicorn

from vidqa.core import environment
from vidqa.core.cli import Parser, Result, note, print_result, run
from vidqa.core.files import remove
from vidqa.engine.answering.batch_inference import model_folders, open_session, sampling_of
from vidqa.engine.data.frames import open_frames
from vidqa.engine.distributed import single_process_world
from vidqa.engine.engine_thread import EngineThread
from vidqa.engine.signals import hard_exit
from vidqa.planning.samples import evaluation_planner
from vidqa.serving._base import LOOPBACK, MB, Limits, listen, served_key
from vidqa.serving.app import ServerApp
from vidqa.serving.connections import Connection
from vidqa.serving.handler import RequestHandler
from vidqa.serving.media import Hosts, MediaAccess, MediaStore
from vidqa.serving.problems import FAILED
from vidqa.spec import Layer, resolve
from vidqa.spec.models import InferenceSpec

parser = Parser("Serve a model over HTTP; scripts/serve.py starts it.")
parser.add_argument("arguments", type=json.loads, help="options and spec")
GRACE_S = 5  # seconds for answers in progress when the server ends
LAST_S = 3  # seconds after GRACE_S for the last responses
CONNECTIONS = 256  # besides two for each active or waiting request


def main(arguments: Namespace) -> Result:
    options = Namespace(**arguments.arguments)
    key = served_key(options.host, environment.serving_key())
    spec = cast(InferenceSpec, resolve("inference", [Layer("spec", tomllib.loads(options.spec))]).spec)
    with (
        closing(listen(options.host, options.port)) as listener,
        tempfile.TemporaryDirectory(prefix="vidqa-media-") as own,
        opened(spec) as backend,
    ):
        app = server_app(options, spec, backend, key, Path(own))
        host, port = listener.getsockname()[:2]
        connection: Any = partial(Connection, limits=app.limits)
        config = uvicorn.Config(
            app.app(),
            log_level="warning",
            http=connection,
            access_log=False,
            ws="none",
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=2 * (GRACE_S + LAST_S),  # uvicorn would cancel later than `abandon` does
        )

        def abandon() -> None:
            """End the process although one of its threads is still working; the workers end with it."""
            remove(Path(own), owner=Path(own).parent)
            note(f"work goes on after {GRACE_S + LAST_S} s; it is aborted")
            result = ended(options.name, backend)
            print_result(result, arguments.json)
            hard_exit(result.code, orderly=False)

        server = Server(config, backend, partial(note, f"{options.name} answers at http://{host}:{port}/v1"), abandon)
        backend.ended = server.end
        if backend.problems:
            return Result(problems=backend.problems)
        if backend.is_answering:
            server.run(sockets=[listener])
    for timer in server.timers:
        timer.cancel()
    return ended(options.name, backend)


def ended(name: str, backend: EngineThread) -> Result:
    failed = [FAILED.at("server", "generation failed; the log has the cause")] if backend.has_failed else []
    return Result({"model": name}, f"{name} has ended", failed)


class Server(uvicorn.Server):
    """A server that ends on a signal, or when the generator has ended: answers in progress have GRACE_S. The process
    then cleans up; if some work does not end within LAST_S more, `abandon` is called in another thread. `began` is
    called once clients can connect."""

    def __init__(
        self, config: uvicorn.Config, backend: EngineThread, began: Callable[[], None], abandon: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self.began = began
        self.timers = [threading.Timer(GRACE_S, backend.stop), threading.Timer(GRACE_S + LAST_S, abandon)]
        for timer in self.timers:
            timer.daemon = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.began()

    def end(self, *_: object) -> None:
        if not self.should_exit:
            self.should_exit = True
            for timer in self.timers:
                timer.start()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Replace uvicorn's handlers, which would raise the signal again at the end."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.end)
        yield


@contextmanager
def opened(spec: InferenceSpec) -> Iterator[EngineThread]:
    """The generator thread, once its model is loaded or has failed to load."""
    folder, base = model_folders(spec)
    planner = evaluation_planner(spec, base or folder)
    batch_size, longest = spec.inference.batch_size, spec.model.max_length
    open_model = partial(
        open_session, spec, spec.inference.generator, planner, single_process_world().device, longest, batch_size
    )
    with open_frames(spec.engine, spec.engine.decode_workers) as source:
        backend = EngineThread(open_model, planner, source, longest=longest, batch_size=batch_size)
        with closing(backend):
            backend.start()
            backend.opened.wait()
            yield backend


def server_app(options: Namespace, spec: InferenceSpec, backend: EngineThread, key: str | None, own: Path) -> ServerApp:
    connections = CONNECTIONS + 2 * (backend.batch_size + options.queue)
    limits = Limits(options.max_body_mb * MB, options.max_media_mb * MB, options.queue, connections=connections)
    folders = tuple(os.path.realpath(folder) for folder in options.allow_path)
    access = MediaAccess(folders, Hosts.parse(options.allow_host), MediaStore(own), limits)
    handler = RequestHandler(backend, access, sampling_of(spec), options.choices)
    # Without a key only names of this machine are accepted as Host headers, against DNS rebinding.
    hosts = LOOPBACK | {options.host} if key is None else frozenset()
    return ServerApp(options.name, handler, limits, key, hosts)


if __name__ == "__main__":
    hard_exit(run(parser, main))
