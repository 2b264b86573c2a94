"""A short run of the fuzzer, and proof that it would see a reader that fails, hangs, or says nothing."""

from __future__ import annotations

import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import fuzz_readers
from mutations import ODD_VALUES, scrambled, spoiled
from readers import READERS, Reader, make_world

from vidqa.core.problem import Problem, ProblemError


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    kept = signal.getsignal(signal.SIGPROF)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.signal(signal.SIGPROF, kept)


@pytest.mark.parametrize(("inputs", "seed"), [(600, 8), pytest.param(3000, 7, marks=pytest.mark.slow)])
def test_no_spoiled_document_stops_a_reader(inputs: int, seed: int) -> None:
    report = fuzz_readers.fuzz(inputs, seed, only=[])
    assert report.failures == []
    assert {name for name, _ in report.ended} == set(READERS)


@pytest.mark.parametrize("name", [name for name in READERS if name not in ("answers", "log")])
def test_every_reader_reads_what_is_sound(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it would only be seen refusing."""
    for module in ("readers",):
        monkeypatch.setattr(sys.modules[module], "spoiled", lambda chance, document: document)
        monkeypatch.setattr(sys.modules[module], "scrambled", lambda chance, data, other: data)
    world = make_world(tmp_path)
    stopped: list[str] = []
    for seed in range(6):
        file_name, data = READERS[name].make(random.Random(seed))
        file = world.fresh() / file_name
        file.write_bytes(data)
        try:
            READERS[name].read(world, file)
            return
        except ProblemError as problems:
            stopped.append(str(problems))
    pytest.fail("\n".join(stopped))


def hang(*_: Any) -> None:
    while True:
        pass


def fail(*_: Any) -> None:
    raise KeyError("step")


def silent(*_: Any) -> list[Problem]:
    return [Problem("X", "", "m", "r")]


@pytest.mark.parametrize(
    ("read", "told"), [(hang, "Hang"), (fail, "KeyError"), (silent, "AssertionError"), (lambda *_: None, "")]
)
def test_what_is_wrong_is_seen(read: Any, told: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(fuzz_readers, "CPU_LIMIT_S", 0.2)
    monkeypatch.setitem(READERS, "run", Reader(READERS["run"].make, read))
    report = fuzz_readers.fuzz(1, 0, ["run"], tmp_path)
    assert [told in failure for failure in report.failures] == ([True] if told else [])
    assert len(list(tmp_path.glob("run-0-0/*"))) == (2 if told else 0)


def test_the_same_seed_makes_the_same_documents() -> None:
    for name, reader in READERS.items():
        assert reader.make(random.Random("5-1")) == reader.make(random.Random("5-1")), name
    kept = repr(ODD_VALUES)
    chance = random.Random(3)
    document = {"a": [1, {"b": "text"}], "c": None}
    made = {repr(spoiled(chance, document)) for _ in range(200)}
    assert len(made) > 80 and document == {"a": [1, {"b": "text"}], "c": None} and repr(ODD_VALUES) == kept
    assert len({scrambled(chance, b"0123456789", b"abc") for _ in range(200)}) > 80
