"""Setup of all tests: imports of shared helpers, and folders apart from the user's."""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from s3_server import bucket, s3_endpoint, s3_files  # noqa: F401  (fixtures)

# Read when torch is imported: tests share few cores with each other and with their subprocesses, and threads that wait
# for one another on a busy core take several times as long.
os.environ["OMP_NUM_THREADS"] = "1"
# Read when the compiler is imported. It would start Python, and torch in it, for every set of vector instructions that
# it tries, and for compiling processes.
os.environ.update(TORCHINDUCTOR_VEC_ISA_OK="1", TORCHINDUCTOR_COMPILE_THREADS="1")
SHARED = "VIDQA_TESTS_SHARED"
DURATIONS = Path(__file__).with_name("durations.json")
# The folder of a whole test session: the process that starts the others creates it, and they use it. The compiler's
# cache is in it, since a half-written library of a killed session would be loaded, and break each later session; and
# the sockets of forking processes.
if own_folder := SHARED not in os.environ:
    os.environ[SHARED] = os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp(prefix="vidqa-tests-")
# Scanning the objects of libraries takes a fifth of their import, and a third of a second at any time later.
gc.disable()


@pytest.fixture(autouse=True)
def own_folders(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put job records and caches of a test into its own temporary folder."""
    home = tmp_path_factory.mktemp("vidqa-home")
    monkeypatch.setenv("VIDQA_STATE_DIR", str(home / "state"))
    monkeypatch.setenv("VIDQA_CACHE_DIR", str(home / "cache"))


@pytest.fixture(autouse=True)
def ordinary_scheduling() -> Iterator[None]:
    """Fail a test whose library leaves the process in the real-time class, which starves the machine."""
    yield
    policy = os.sched_getscheduler(0)
    if policy != os.SCHED_OTHER:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        pytest.fail(f"the test left its process in scheduling class {policy}")


def pytest_configure() -> None:
    """Fork the decode workers of pools in this process from it: each would import torch otherwise."""
    from forked import ForkingWorkers

    from vidqa.video import pool

    pool.subprocess = SimpleNamespace(**vars(subprocess) | {"Popen": ForkingWorkers})  # type: ignore[assignment]


def pytest_unconfigure() -> None:
    if own_folder:
        shutil.rmtree(os.environ[SHARED], ignore_errors=True)


def pytest_collection_finish() -> None:
    """Exclude the objects of all imported libraries from garbage collection."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the longest files first: short ones fill up the end, where one process would wait for the others."""
    seconds = json.loads(DURATIONS.read_text(encoding="utf-8"))
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (-seconds.get(_file_of(item.nodeid), 0), item.path not in slow))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-durations", type=Path, metavar="FILE", help="write the seconds of every test file")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if not (path := config.getoption("--write-durations")):
        return
    seconds: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[_file_of(report.nodeid)] += report.duration
    longest = {file: round(total) for file, total in seconds.most_common() if total >= 1}
    path.write_text(json.dumps(longest, indent=2) + "\n", encoding="utf-8")


def _file_of(nodeid: str) -> str:
    """The file of a test, from the root of the repository."""
    return f"tests/{nodeid.partition('::')[0].removeprefix('tests/')}"
