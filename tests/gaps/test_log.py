"""The log is the truth: torn ends are dropped and named, damaged lines are refused with their number."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest
from cheap_stages import Cheap, carried_out, installed, to_the_end

from vidqa.core.cli import SKILL_ROOT
from vidqa.core.journal import Journal
from vidqa.core.problem import ProblemError
from vidqa.gaps.deft.context import LOG, STATE
from vidqa.gaps.deft.loop import Loop


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Loop, bytes, bytes]]:
    """A loop that has ended, with its log and its state as they were written."""
    with pytest.MonkeyPatch.context() as patch:
        installed(patch, Cheap())
        loop, _ = carried_out(tmp_path_factory.mktemp("finished"), "stop.rounds=1")
        yield loop, (loop.folder / LOG).read_bytes(), (loop.folder / STATE).read_bytes()


@pytest.fixture
def loop(finished: tuple[Loop, bytes, bytes]) -> Loop:
    """The finished loop, whatever an earlier test has done to its files."""
    loop, log, state = finished
    (loop.folder / LOG).write_bytes(log)
    (loop.folder / STATE).write_bytes(state)
    return loop


def test_events_come_back_as_they_were_written(tmp_path: Path) -> None:
    log = Journal(tmp_path / "log.jsonl")
    for number in range(3):
        log.append({"event": "said", "text": f"ü {number}"})
    again = Journal(tmp_path / "log.jsonl")
    assert again.events == log.events and again.torn is None
    assert [each["seq"] for each in again.events] == [1, 2, 3]


def test_a_log_with_the_keys_of_an_earlier_state_is_continued(loop: Loop) -> None:
    path, check, lines = loop.folder / LOG, "", list[str]()
    for event in loop.log.events[:-1]:
        kept = {key: value for key, value in event.items() if key not in ("seq", "time")}
        line = {"number": event["seq"], "at": event["time"], **kept}
        text = f"{check}\n{json.dumps(line, sort_keys=True, ensure_ascii=False)}"
        check = hashlib.sha256(text.encode()).hexdigest()[:16]
        lines.append(json.dumps({**line, "check": check}, ensure_ascii=False) + "\n")
    path.write_text("".join(lines), encoding="utf-8")
    again = Loop(loop.folder)
    assert to_the_end(again).rule == "rounds" and Loop(loop.folder).state == loop.state


def test_a_torn_last_line_is_dropped_named_and_written_over(loop: Loop) -> None:
    path = loop.folder / LOG
    whole = path.read_bytes()
    for cut in (1, 20, len(whole.splitlines()[-1])):
        path.write_bytes(whole[:-cut])
        found = Loop(loop.folder)
        assert found.log.torn and found.log.torn.code == "JOURNAL_BROKEN"
        assert f":{len(found.log.events) + 1}" in found.log.torn.where
        assert to_the_end(found).rule == "rounds" and Loop(loop.folder).log.torn is None
        assert Loop(loop.folder).state == loop.state


@pytest.mark.parametrize("number", [1, 4, 9])
@pytest.mark.parametrize("how", ["noise", "changed", "lost", "twice", "no object"])
def test_a_corrupt_line_is_refused_with_its_number(loop: Loop, number: int, how: str) -> None:
    path = loop.folder / LOG
    lines = path.read_text().splitlines()
    line = lines[number - 1]
    damaged = {
        "noise": [line[: len(line) // 2] + "\x00#" + line[len(line) // 2 :]],
        "changed": [line.replace('"time": "2', '"time": "3')],
        "lost": [],
        "twice": [line, line],
        "no object": ["[]"],
    }[how]
    path.write_text("\n".join([*lines[: number - 1], *damaged, *lines[number:]]) + "\n")
    with pytest.raises(ProblemError, match="JOURNAL_BROKEN") as refused:
        Loop(loop.folder)
    at = number + (how == "twice")
    assert refused.value.problems[0].where.endswith(f":{at}") and f"line {at}" in refused.value.problems[0].message


def test_the_state_follows_from_the_log_and_fits_its_schema(loop: Loop) -> None:
    schema = json.loads((SKILL_ROOT / "schemas/deft_state.schema.json").read_text())
    written = json.loads((loop.folder / STATE).read_text())
    jsonschema.Draft202012Validator(schema).validate(written)
    (loop.folder / STATE).write_text("{}")
    assert Loop(loop.folder).state == loop.state
    assert written == loop.state.model_dump(mode="json", by_alias=True)


def test_a_folder_without_a_log_is_no_loop(tmp_path: Path) -> None:
    with pytest.raises(ProblemError, match="DEFT_FOLDER"):
        Loop(tmp_path)
