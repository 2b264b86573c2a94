"""Engine processes forked from a process with their imports, which otherwise cost each of them twelve seconds.

    done = run([sys.executable, "-m", "vidqa.engine.torchrun", ...], timeout=180)     as subprocess.run
    process = Started([...], stdout=log, stderr=log)                                  as subprocess.Popen

Processes, sessions, signals, pipes, exit codes and the environment in /proc are real; only the interpreter's start is
shared. Programs that start Python themselves (scripts, platforms) are unchanged, so a missing or too early import
fails there; jobs of the platform "local" fork, too, if their launcher is such a fork. Decode workers fork from the
process whose pool starts them, which has imported their transform: torch costs each of them five seconds otherwise.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import gc
import importlib
import inspect
import io
import json
import os
import runpy
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import sha256
from multiprocessing import resource_tracker
from pathlib import Path
from typing import IO, Any, NoReturn

from vidqa.core.environment import OF_THE_ENGINE
from vidqa.video import pool

# Variables that libraries read at import: a process with other values forks from another parent.
READ_BY_IMPORTS = ("OMP_NUM_THREADS", "HF_HUB_OFFLINE", "HF_HOME", "HF_ENDPOINT", "TRANSFORMERS_OFFLINE")
MODULES = (
    "vidqa.engine",
    "vidqa.engine.torchrun",
    "vidqa.engine.actions.export",
    "vidqa.jobs.platforms.supervisor",
    "vidqa.automl.controller",
    "vidqa.core.pages.training",
    "torch.distributed.run",
)
FOLDERS = ("tests", "benchmarks")  # of this repository: their programs start the engine
DECODE_WORKER = "decode-worker"  # the name of a forked one, whose command line is its parent's
REPOSITORY = Path(__file__).resolve().parents[1]
SHARED = "VIDQA_TESTS_SHARED"  # names the folder of a whole test session, which conftest.py creates
if SHARED not in os.environ:  # a benchmark
    os.environ[SHARED] = tempfile.mkdtemp(prefix="vidqa-tests-")
    atexit.register(shutil.rmtree, os.environ[SHARED], ignore_errors=True)
REQUEST_BYTES = 1 << 17
ROOM, ROOM_BYTES = "FORKED_ROOM", 1 << 15  # free space where /proc shows the environment, for those of the forks
EXECUTE = subprocess.Popen._execute_child
STARTING = threading.Lock()


class Started:
    """The part of subprocess.Popen that tests use, for a forked process."""

    def __init__(self, args: list[Any], *, stdout: IO[Any], stderr: IO[Any], **place: Any) -> None:
        self.args, self.returncode = [str(word) for word in args], None
        # As in launches: the engine of a job and that of a test fork from one parent.
        environment = {**os.environ, **OF_THE_ENGINE}
        place = {"env": environment, "cwd": os.getcwd(), "start_new_session": False} | place
        request = json.dumps({"args": self.args, **place, "cwd": str(place["cwd"])}).encode()
        self._answers, answers = os.pipe()
        with STARTING:  # two threads would start one each, and the one missing from the cache ends at once
            parent = _parent(tuple(place["env"].get(name) for name in READ_BY_IMPORTS))
        socket.send_fds(parent, [request], [stdout.fileno(), stderr.fileno(), answers])
        os.close(answers)
        self.pid = int(self._answer())

    def _answer(self) -> str:
        answer = b""
        while not answer.endswith(b"\n"):
            if not (byte := os.read(self._answers, 1)):
                raise ChildProcessError(f"the process that forks has ended: {self.args}")
            answer += byte
        return answer.decode()

    def poll(self) -> int | None:
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        if (code := self._ended(timeout)) is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def _ended(self, seconds: float | None) -> int | None:
        if self.returncode is None:
            with selectors.DefaultSelector() as selector:
                selector.register(self._answers, selectors.EVENT_READ)
                if selector.select(seconds):
                    self.returncode = int(self._answer())
                    os.close(self._answers)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def run(args: list[Any], *, timeout: float, **place: Any) -> subprocess.CompletedProcess[str]:
    """Run like subprocess.run, with output captured as text."""
    with os.fdopen(os.memfd_create("out"), "w+b") as out, os.fdopen(os.memfd_create("err"), "w+b") as err:
        process = Started(args, stdout=out, stderr=err, **place)
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        printed = [os.pread(each.fileno(), os.fstat(each.fileno()).st_size, 0).decode() for each in (out, err)]
    return subprocess.CompletedProcess(process.args, code, *printed)


@cache
def _parent(values: tuple[str | None, ...]) -> socket.socket:
    """A connection to the process that has imported the engine under these environment variables. All processes of a
    test session share it; it ends with the last of them."""
    place = Path(os.environ[SHARED], f"forks-{sha256(repr(values).encode()).hexdigest()[:8]}")
    with _alone(place):
        with suppress(FileNotFoundError, ConnectionRefusedError):
            return _connected(place)
        place.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(str(place))
            listener.listen()
            chosen = {name: value for name, value in zip(READ_BY_IMPORTS, values, strict=True) if value is not None}
            environment = {name: value for name, value in os.environ.items() if name not in READ_BY_IMPORTS} | chosen
            environment[ROOM] = " " * ROOM_BYTES
            words = [sys.executable, "-P", __file__, str(listener.fileno()), str(place)]
            subprocess.Popen(words, env=environment, pass_fds=[listener.fileno()], stdin=subprocess.DEVNULL)
            return _connected(place)


@contextmanager
def _alone(place: Path) -> Iterator[None]:
    """Lock out all other processes that connect to, start or end the process that listens at `place`."""
    with place.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _connected(place: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect(str(place))
    except OSError:
        connection.close()
        raise
    return connection


def serve(listener: socket.socket, place: Path) -> None:
    """Fork on request, until all clients have disconnected."""
    running: dict[int, tuple[Forking, int]] = {}
    asking: set[socket.socket] = set()
    listener.setblocking(False)
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fd in running:
                    process, answers = running.pop(key.fd)
                    selector.unregister(key.fd)
                    _tell(answers, process.wait())
                    os.close(answers)
                    os.close(key.fd)
                    continue
                if key.fileobj is listener:
                    asking.add(connection := listener.accept()[0])
                    selector.register(connection, selectors.EVENT_READ)
                    continue
                connection = key.fileobj
                message, files, *_ = socket.recv_fds(connection, REQUEST_BYTES, 3)
                if not message:
                    selector.unregister(connection)
                    connection.close()
                    asking.remove(connection)
                    if not asking:
                        _end_unless_asked(listener, place)
                    continue
                out, err, answers = files
                process = Forking(stdin=subprocess.DEVNULL, stdout=out, stderr=err, **json.loads(message))
                os.close(out)
                os.close(err)
                _tell(answers, process.pid)
                ended = os.pidfd_open(process.pid)
                running[ended] = process, answers
                selector.register(ended, selectors.EVENT_READ)


def _end_unless_asked(listener: socket.socket, place: Path) -> None:
    """End this process if no client waits. Clients connect only while they hold the lock, so none can come later."""
    if not place.parent.exists():
        os._exit(0)
    with _alone(place), selectors.DefaultSelector() as waiting:
        waiting.register(listener, selectors.EVENT_READ)
        if not waiting.select(0):
            place.unlink(missing_ok=True)
            os._exit(0)


def _tell(answers: int, number: int) -> None:
    try:
        os.write(answers, f"{number}\n".encode())
    except BrokenPipeError:
        return  # the test that asked has ended


class Forking(subprocess.Popen):
    """A Popen that forks this process instead of starting a decode worker, or Python with one of MODULES or a program
    of FOLDERS."""

    forks_programs = True

    def _execute_child(self, *given: Any) -> None:
        call = inspect.signature(EXECUTE).bind(self, *given).arguments
        environment = os.environ if call["env"] is None else call["env"]
        same = all(environment.get(name) == os.environ.get(name) for name in READ_BY_IMPORTS)
        program = None if call["shell"] or not same else _program_of(call["args"])
        if not program or (program[1] != "-c" and not self.forks_programs):
            return EXECUTE(self, *given)
        files = [call["p2cread"], call["c2pwrite"], call["errwrite"]]
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if not self.pid:
            _become(program, call, dict(environment), files)
        self._child_created = True
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(call[name] for name in pipes))
        return None


class ForkingWorkers(Forking):
    """A Popen that forks only decode workers, for the process of the tests."""

    forks_programs = False


def _program_of(args: Any) -> tuple[list[str], str, list[str]] | None:
    """The flags of Python, the module or file or "-c", and its arguments; None if it is not a program to fork for."""
    python, *words = [os.fspath(word) for word in args] if not isinstance(args, (str, bytes)) else [""]
    flags = []
    while words and words[0] in ("-u", "-P"):
        flags.append(words.pop(0))
    if python != sys.executable or not words:
        return None
    if words[0] == "-m":
        return (flags, words[1], words[2:]) if words[1] in MODULES else None
    if words[:2] == ["-c", pool.BOOT]:
        transform = words[-2].partition(":")[0]
        return (flags, "-c", words[1:]) if transform.startswith("vidqa.") and transform in sys.modules else None
    ours = any(Path(words[0]).is_relative_to(REPOSITORY / folder) for folder in FOLDERS)
    return (flags, words[0], words[1:]) if ours and words[0].endswith(".py") else None


def _become(program: tuple[list[str], str, list[str]], call: Any, environment: dict[str, str], files: Any) -> NoReturn:
    """Do, in the fork, everything that exec does, and run the program. Objects of the parent are never freed."""
    code = 1
    try:
        if call["start_new_session"]:
            os.setsid()
        if call["process_group"] >= 0:
            os.setpgid(0, call["process_group"])
        for number in signal.valid_signals():
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        for number, file in enumerate(files):
            if file >= 0:
                os.dup2(file, number)
        first = 3
        for handed in sorted(call["pass_fds"]):
            os.closerange(first, handed)
            first = handed + 1
        os.closerange(first, os.sysconf("SC_OPEN_MAX"))
        resource_tracker._resource_tracker.__init__()  # another process's: its pipe is closed here
        os.environ.clear()
        os.environ.update(environment)
        _show(environment)
        if call["preexec_fn"]:
            call["preexec_fn"]()
        if call["cwd"] is not None:
            os.chdir(call["cwd"])
        code = _run(*program)
    except BaseException:  # noqa: BLE001  an exception that would end the interpreter ends the fork
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _show(environment: dict[str, str]) -> None:
    """Show this environment in /proc, by which jobs are found: overwrite the parent's initial environment, which is
    unused by now. Only as much as fits is shown."""
    first, last = map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[47:49])
    shown = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in environment.items() if name != ROOM)
    ctypes.memset(first, 0, last - first)
    ctypes.memmove(first, shown, min(len(shown), last - first))


def _run(flags: list[str], program: str, words: list[str]) -> int:
    files = (open(number, "wb", 0, closefd=False) for number in (1, 2))  # noqa: SIM115  as long as the process
    sys.stdout, sys.stderr = (io.TextIOWrapper(file, "utf-8", write_through=True) for file in files)
    if program == "-c":
        return _decode(*words)
    is_module, safe = not program.endswith(".py"), "-P" in flags or os.environ.get("PYTHONSAFEPATH")
    first = [] if safe else [os.getcwd() if is_module else str(Path(program).parent)]
    sys.path[:] = [*first, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), *PATH]
    sys.argv = [program, *words]
    try:
        if is_module:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(program, run_name="__main__")
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
            return 1
        return ended.code or 0
    return 0


def _decode(boot: str, *words: str) -> int:
    Path("/proc/self/comm").write_text(DECODE_WORKER)
    sys.argv = ["-c", *words]
    try:
        exec(boot, {"__name__": "__main__"})  # like the interpreter
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 0
    return 0


if __name__ == "__main__":
    PATH = list(sys.path)
    # As in the engine: no forking process scans the objects of libraries.
    gc.disable()
    for module in ("train", "prove", "actions.evaluate", "actions.export", "rendezvous"):
        importlib.import_module(f"vidqa.engine.{module}")
    # Imported at use. loguru, imported by a thread while another forks, has its lock released by the fork.
    for late in ("av", "pandas", "loguru"):
        importlib.import_module(late)
    importlib.import_module("PIL.Image").init()  # all its formats, as the first picture would
    torchrun = importlib.import_module(
        "torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler"
    )
    gc.freeze()
    gc.enable()
    subprocess.Popen = torchrun.Popen = Forking  # type: ignore[misc,attr-defined]
    serve(socket.socket(fileno=int(sys.argv[1])), Path(sys.argv[2]))
