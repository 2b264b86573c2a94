"""A journal with values of another kind: each reader names the line, whatever stands there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from small_studies import carry_out, write_study

from vidqa.automl import journal
from vidqa.automl.journal import JOURNAL, read
from vidqa.automl.report import report
from vidqa.automl.status import status
from vidqa.automl.study import open_study
from vidqa.core import files
from vidqa.core.problem import ProblemError

WRONG = (None, True, -1, 1.5, 10**30, "", "text", [], ["x"], {}, {"x": []})


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        from small_studies import install

        install(patch.setattr)
        patch.setenv("VIDQA_STATE_DIR", str(tmp_path_factory.mktemp("state")))
        folder = write_study(tmp_path_factory.mktemp("study"), max_trials=3)
        carry_out(folder)
        opened = open_study(folder)
        patch.setattr("vidqa.automl.study.open_study", lambda folder: opened)  # some hundred times
        yield folder


def changed(event: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for name in event:
        yield {key: value for key, value in event.items() if key != name}
        for wrong in WRONG:
            if type(wrong) is not type(event[name]) or wrong in (-1, 10**30):
                yield {**event, name: wrong}


def test_a_value_of_another_kind_is_told_with_its_line(study: Path) -> None:
    path = study / JOURNAL
    whole = path.read_bytes()
    lines, of_kind = whole.splitlines(keepends=True), {json.loads(line)["event"]: line for line in whole.splitlines()}
    assert {"created", "trial", "submitted", "ended", "measured", "searched", "finished"} <= of_kind.keys()
    refused = 0
    try:
        for place, line in enumerate(lines):
            if of_kind[json.loads(line)["event"]] != line.rstrip(b"\n"):
                continue  # another of its kind is changed
            for event in changed(json.loads(line)):
                path.write_bytes(b"".join([*lines[:place], json.dumps(event).encode() + b"\n", *lines[place + 1 :]]))
                for reader in (status, report):
                    try:
                        reader(study)
                    except ProblemError as told:
                        problem = told.problems[0]
                        assert problem.code in ("JOURNAL_BROKEN", "STUDY_CHANGED"), told
                        assert problem.code == "STUDY_CHANGED" or problem.where.startswith(f"{path}:"), told
                        refused += 1
    finally:
        path.write_bytes(whole)
    assert refused > 500


def test_a_last_line_of_another_kind_is_not_taken_for_one_that_was_cut_off(study: Path) -> None:
    path = study / JOURNAL
    whole = path.read_bytes()
    event = json.loads(whole.splitlines()[-1])
    try:
        path.write_bytes(whole + json.dumps({**event, "seq": event["seq"] + 1, "winner": "best"}).encode() + b"\n")
        with pytest.raises(ProblemError, match="its checksum differs"):
            read(study)
    finally:
        path.write_bytes(whole)


def test_a_request_of_another_kind_is_left_where_it_is_and_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = {"values": {}, "proposer": "me"}
    for name, said in (("a", {"values": 5, "proposer": "me"}), ("b", good), ("c", {**good, "objectives": "high"})):
        verb = "tell" if name == "c" else "enqueue"
        files.write_json(tmp_path / journal.INBOX / f"{name}.json", {"verb": verb, "said": said})
    for _ in range(2):
        assert [request.name for request in journal.pending_requests(tmp_path)] == ["b"]
    assert capsys.readouterr().err.count("not a request of this program") == 2
